# SPDX-License-Identifier: Apache-2.0
"""What tests of the torch parts share: devices, random weights, small models, and skipping where torch is missing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import Tensor, nn

from transfuse._memory_need import packed_bytes

try:
    from transfuse.torch import _ops
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]


def layout_bytes(layout: str, rows: int, cols: int) -> int:
    """Returns what a layer of 16-bit weights takes, plain or packed, where its weights are nothing special."""
    return packed_bytes(rows, cols) if layout == "packed" else 256 + 2 * rows * cols


# Weights that packing refuses, and words of the reason.
UNPACKABLE = {"wide": "would have to be stored", "inexact": "is no BF16 in the scale"}


def make_unpackable(kind: str, rows: int, cols: int) -> Tensor:
    """Returns BF16 weights of very different size, or with one that the others' scale makes a denormal."""
    weight = normal(rows, cols)
    if kind == "wide":
        weight[:, ::4] *= 2.0**40
        return weight
    weight = weight * 2.0**100
    weight[rows // 2, cols // 2] = torch.tensor(0x0083, dtype=torch.int16).view(torch.bfloat16)
    return weight


def resident_bytes() -> int:
    """Returns how much memory this process has in RAM."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def normal(*sizes: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0, scale: float = 0.02) -> Tensor:
    """Returns normally distributed numbers, the same ones for the same arguments."""
    return (scale * torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))).to(dtype)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Returns whether two tensors have shape, dtype and bits in common, those of NaNs too."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.equal(
            a.detach().cpu().contiguous().view(torch.uint8), b.detach().cpu().contiguous().view(torch.uint8)
        )
    )


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Exact mode, as long as it lasts."""
    _ops.set_exact(True)
    try:
        yield
    finally:
        _ops.set_exact(False)


class TiedModel(nn.Module):
    """An embedding, an MLP of odd sizes, a convolution and a norm, and an output that is tied to the embedding."""

    # What compress_model changes: dense modules, or compressed ones, or adapters around them.
    embed_tokens: Any
    up: Any
    down: Any
    lm_head: Any

    def __init__(self, vocabulary: int = 130, width: int = 72, inner: int = 300) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width, padding_idx=3)
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Conv1d(width, width, 1)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width, bias=False)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.embed_tokens.weight

    def hidden(self, ids: Tensor) -> Tensor:
        x = self.norm(self.embed_tokens(ids))
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        result: Tensor = x + self.down(torch.nn.functional.gelu(self.up(x)))
        return result

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.hidden(ids))
        return logits


def make_model(dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> TiedModel:
    """Returns a model with random weights, without gradients."""
    model = TiedModel()
    for index, parameter in enumerate(model.parameters()):
        parameter.data = normal(*parameter.shape, dtype=torch.float32, seed=100 * seed + index, scale=0.1)
    return model.to(dtype).requires_grad_(False).eval()


def make_ids(model: TiedModel, *sizes: int, seed: int = 0) -> Tensor:
    """Returns random ids for a model."""
    return torch.randint(0, model.embed_tokens.num_embeddings, sizes, generator=torch.Generator().manual_seed(seed))
