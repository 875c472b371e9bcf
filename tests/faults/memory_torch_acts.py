# SPDX-License-Identifier: Apache-2.0
"""What programs do with the torch ops, for memory_campaign.py."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from transfuse.torch import (
    convert_layer,
    decode,
    decode_experts,
    embedding,
    encode,
    experts,
    join_rows,
    linear,
    linear_group,
    load_layer,
    make_container,
    moe,
    pack,
    pack_experts,
    repack,
    verify_layer,
)

ROWS, COLS, EXPERTS, INNER = 192, 320, 2, 128


def make_fp8(rows: int, cols: int, seed: int) -> torch.Tensor:
    """BF16 weights that are FP8 codes times one scale for each 128x128 of them."""
    generator = torch.Generator().manual_seed(seed)
    codes = (torch.randn(rows, cols, generator=generator) * 130).clamp(-448, 448).to(torch.float8_e4m3fn)
    codes[::128, ::128] = 448
    scales = 0.0002 * (1 + torch.rand((rows + 127) // 128, (cols + 127) // 128, generator=generator))
    wide = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
    return (codes.to(torch.float32) * wide).to(torch.bfloat16)


def as_bytes(*tensors: torch.Tensor) -> bytes:
    return b"".join(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes() for tensor in tensors)


def make_acts(device: str, checkpoint: str) -> dict[str, Callable[[], bytes]]:
    """@return name -> what is done, which returns what has to be the same each time."""
    warnings.simplefilter("ignore")  # of FP8 experts that are packed as BF16
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.02).to(torch.bfloat16)

    weight, fp8 = normal(ROWS, COLS).to(device), make_fp8(INNER, 256, 1).to(device)
    gate_up, down = normal(EXPERTS, 2 * INNER, 128).to(device), normal(EXPERTS, 128, INNER).to(device)
    coded = encode(weight.cpu()).to(device)
    parts = [encode(make_fp8(INNER, 256, seed).cpu(), codec="fp8_e4m3").to(device) for seed in (2, 3)]
    blobs = [encode(gate_up[e].cpu()) for e in range(EXPERTS)]
    x = torch.ones(3, COLS, dtype=torch.bfloat16, device=device)
    ids = torch.tensor([[0, 1], [1, 0], [1, 1]], dtype=torch.int32, device=device)
    shares = torch.full((3, 2), 0.5, device=device)
    offsets = torch.tensor([0, 1, 3], dtype=torch.int32, device=device)

    def load() -> bytes:
        layers = [load_layer(checkpoint, "b.weight", device, layout=name) for name in ("coded", "plain", "packed")]
        return as_bytes(*(linear(x, layer, None, 300) for layer in layers))

    def use_coded() -> bytes:
        blob = coded.clone()
        verify_layer(blob)
        rows = embedding(torch.tensor([0, 5, 191], device=device), blob, ROWS, COLS, torch.bfloat16)
        return as_bytes(linear(x, blob, None, ROWS), decode(blob, ROWS, COLS, torch.bfloat16), rows)

    def convert() -> bytes:
        blob = coded.clone()
        packed, plain = convert_layer(blob, "packed"), convert_layer(blob, "plain")
        return as_bytes(linear(x, packed, None, ROWS), linear(x, plain, None, ROWS), convert_layer(packed, "coded"))

    def pack_dense() -> bytes:
        layer, layer8 = pack(weight), pack(fp8)
        repack(layer, weight)
        verify_layer(layer)
        return as_bytes(linear(x, layer, None, ROWS), linear(x[:, :256], layer8, None, INNER))

    def join() -> bytes:
        joined = join_rows([convert_layer(part.clone(), "packed8") for part in parts])
        return as_bytes(linear(x[:, :256], joined, None, 2 * INNER))

    def group() -> bytes:
        return as_bytes(*linear_group(x, [coded.clone(), coded.clone()], [ROWS, ROWS]))

    def use_experts() -> bytes:
        container = make_container(blobs).to(device)
        dense = decode_experts(container, EXPERTS, 2 * INNER, 128, torch.bfloat16)
        return as_bytes(experts(x[:, :128].contiguous(), offsets, container, 2 * INNER)[:3], dense)

    def mix() -> bytes:
        both = pack_experts(gate_up, interleave=True), pack_experts(down, interleave=False)
        return as_bytes(moe(x[:, :128].contiguous(), ids, shares, *both))

    acts = (load, use_coded, convert, pack_dense, join, group, use_experts, mix)
    return {f"torch, {act.__name__}": act for act in acts}
