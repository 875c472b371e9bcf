# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of FP8 with scales, made of dense ones, and what they are as BF16."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

BLOCK = 128
_GROUP = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}}


@dataclasses.dataclass(frozen=True)
class Fp8Kind:
    """A way in which checkpoints are FP8: what `config.json` says, and which weights share a scale of which dtype.

    `region` gives the rows and columns of a scale for a matrix of so many rows and columns.
    """

    config: Mapping[str, Any]
    region: Callable[[int, int], tuple[int, int]]
    end: str
    dtype: torch.dtype = torch.float32
    input_scales: bool = False


FP8_KINDS = {
    "block": Fp8Kind(
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]},
        lambda rows, cols: (BLOCK, BLOCK),
        "_scale_inv",
    ),
    "channel": Fp8Kind(
        {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": _GROUP}},
        lambda rows, cols: (1, cols),
        "_scale",
        torch.bfloat16,
    ),
    "tensor": Fp8Kind(
        {"quant_method": "modelopt", "quant_algo": "FP8"}, lambda rows, cols: (rows, cols), "_scale", input_scales=True
    ),
}


def quantize(weight: torch.Tensor, kind: Fp8Kind) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns a matrix as codes, its scales [rows of regions][columns of regions], and codes times scales as BF16."""
    rows, cols = kind.region(*weight.shape)
    counts = [-(-size // part) for size, part in zip(weight.shape, (rows, cols), strict=True)]
    scales = torch.empty(counts, dtype=torch.float32)
    for i in range(counts[0]):
        for j in range(counts[1]):
            region = weight[i * rows : (i + 1) * rows, j * cols : (j + 1) * cols]
            scales[i, j] = region.float().abs().max() / 448
    scales = scales.to(kind.dtype)
    spread = scales.float().repeat_interleave(rows, 0)[: weight.shape[0]]
    spread = spread.repeat_interleave(cols, 1)[:, : weight.shape[1]]
    codes = (weight.float() / spread).to(torch.float8_e4m3fn)
    return codes, scales, (codes.float() * spread).to(torch.bfloat16)


def quantize_all(
    tensors: Mapping[str, torch.Tensor], kind: Fp8Kind, is_quantized: Callable[[str], bool]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Returns the tensors of an FP8 checkpoint, and the same without scales, as BF16."""
    source, dense = {}, {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or not is_quantized(name):
            source[name] = dense[name] = tensor
            continue
        codes, scales, dense[name] = quantize(tensor, kind)
        source[name] = codes
        source[name + kind.end] = scales.reshape(()) if scales.numel() == 1 and kind.input_scales else scales
        if kind.input_scales:
            source[f"{name.removesuffix('.weight')}.input_scale"] = torch.tensor(0.5)
    return source, dense


def write_fp8(folder: Path, tensors: Mapping[str, torch.Tensor], kind: Fp8Kind, config: Mapping[str, Any]) -> None:
    """Makes the folder of an FP8 checkpoint, with every other tensor in a second file."""
    folder.mkdir()
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, members in files.items():
        save_file({name: tensors[name].contiguous() for name in members}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, members in files.items() for name in members}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    fields = {**config, "quantization_config": kind.config}
    (folder / "config.json").write_text(json.dumps(fields, indent=2))
