# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and devices that tests share, and the command that the package holds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from transfuse._library import find_installed

Tensors = dict[str, tuple[str, npt.NDArray[Any]]]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def normal_bf16(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.uint16]:
    """Returns the bits of normally distributed BF16 numbers."""
    values = (0.02 * rng.standard_normal(shape, np.float32)).view(np.uint32) >> 16
    return values.astype(np.uint16)


def was_fp8_bf16(rng: np.random.Generator, rows: int, cols: int) -> npt.NDArray[np.uint16]:
    """Returns the bits of BF16 numbers that are FP8 E4M3 codes times a scale for each block of 128 rows and columns."""
    exponents, mantissas = rng.integers(-6, 9, (rows, cols)), rng.integers(8, 15, (rows, cols))
    scales = rng.uniform(1e-4, 2e-4, (-(-rows // 128), -(-cols // 128))).astype(np.float32)
    signs = rng.choice([-1, 1], (rows, cols))
    numbers = (signs * np.ldexp(mantissas.astype(np.float32), exponents - 3)).astype(np.float32)
    products = (numbers * scales.repeat(128, 0).repeat(128, 1)[:rows, :cols]).view(np.uint32)
    rounded: npt.NDArray[np.uint16] = ((products + 0x7FFF + (products >> 16 & 1)) >> 16).astype(np.uint16)
    return rounded


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Writes a file in the canonical layout: tensors by falling alignment, then by name."""
    sizes = {"F32": 4, "BF16": 2, "F16": 2}
    names = sorted(tensors, key=lambda name: (-sizes.get(tensors[name][0], 1), name))
    header: dict[str, object] = {}
    offset = 0
    for name in names:
        dtype, array = tensors[name]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(tensors[name][1].tobytes())


@pytest.fixture(scope="session")
def tensors() -> Tensors:
    """A tensor of each dtype that has a codec, experts, and two that are not compressed."""
    rng = np.random.default_rng(1)
    half = (0.02 * rng.standard_normal((100, 300))).astype(np.float16)
    return {
        "layers.0.q_proj.weight": ("BF16", normal_bf16(rng, 300, 520)),
        "layers.0.k_proj.weight": ("F16", half),
        "layers.0.v_proj.weight": ("F8_E5M2", (half.view(np.uint16) >> 8).astype(np.uint8)),
        "layers.0.codes.weight": ("I8", np.clip(rng.normal(0, 30, (192, 320)), -127, 127).astype(np.int8)),
        "layers.0.experts.up_proj": ("BF16", normal_bf16(rng, 3, 96, 160)),
        "layers.0.norm.weight": ("BF16", normal_bf16(rng, 64)),
        "layers.0.float.weight": ("F32", rng.standard_normal((64, 96), np.float32)),
    }


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory, tensors: Tensors) -> Path:
    """A checkpoint of one file."""
    path = tmp_path_factory.mktemp("source") / "model.safetensors"
    write_safetensors(path, tensors)
    return path


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """The devices that torch has here, for tests that need torch anyway."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return str(request.param)


@pytest.fixture(scope="session")
def command() -> Command:
    """Runs the command that the package holds."""
    binary = find_installed("bin", "transfuse")

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True, check=False)

    return run
