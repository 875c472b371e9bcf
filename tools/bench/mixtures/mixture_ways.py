# SPDX-License-Identifier: Apache-2.0
"""Ways to compute a mixture: transfuse's packed and coded experts, and torch's grouped products.

Each way is a function of x, BF16 [tokens][hidden], ids, int32 [tokens][routed], and weights, float32 alike, to y, BF16
[tokens][hidden]. A way that is not there raises Missing, whose text says why.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import ModuleType

import torch
import torch.nn.functional as F
from mixture_routes import Mixture
from torch import Tensor

Layer = Callable[[Tensor, Tensor, Tensor], Tensor]


class Missing(Exception):
    """A way is not there; it is left out."""


@dataclasses.dataclass(frozen=True)
class Experts:
    """Dense weights: gate_up is [experts][2 * inner][hidden], gate's rows first, and down [experts][hidden][inner]."""

    mixture: Mixture
    gate_up: Tensor
    down: Tensor


def draw_experts(mixture: Mixture, device: torch.device) -> Experts:
    """Normal weights with a standard deviation of 0.02, as trained ones have it."""
    generator = torch.Generator(device).manual_seed(42)
    gate_up = torch.empty(mixture.experts, 2 * mixture.inner, mixture.hidden, dtype=torch.bfloat16, device=device)
    down = torch.empty(mixture.experts, mixture.hidden, mixture.inner, dtype=torch.bfloat16, device=device)
    for weights in (gate_up, down):
        weights.normal_(0, 0.02, generator=generator)
    return Experts(mixture, gate_up, down)


# ---- transfuse ----


def _import_transfuse() -> ModuleType:
    try:
        import transfuse.torch
    except ImportError as fault:
        raise Missing(f"transfuse.torch cannot be imported: {fault}") from fault
    if not hasattr(transfuse.torch, "pack_experts") or not hasattr(torch.ops.transfuse, "moe"):
        raise Missing("this transfuse has no pack_experts, or no op transfuse::moe")
    return transfuse.torch


def make_packed(experts: Experts) -> tuple[Layer, float]:
    """Packs the experts. Returns the layer, and the bytes of a packed expert."""
    ops = _import_transfuse()
    gate_up = ops.pack_experts(experts.gate_up, interleave=True)
    down = ops.pack_experts(experts.down, interleave=False)

    def forward(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return torch.ops.transfuse.moe(x, ids, weights, gate_up, down, None, None, None, "silu", 0)

    return forward, (gate_up.numel() + down.numel()) / experts.mixture.experts


def make_coded(experts: Experts, compiled: bool) -> tuple[Layer, Layer]:
    """Encodes the experts, gate and up apart as checkpoints have them.

    Returns the layer that packs them in each call, and the one that decodes them for torch's grouped products.
    """
    ops = _import_transfuse()
    parts = (*experts.gate_up.chunk(2, dim=1), experts.down)
    gate, up, down = (
        ops.make_container([ops.encode(expert) for expert in part.cpu()]).to(part.device) for part in parts
    )

    def pack(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return ops.moe(x, ids, weights, gate, down, up=up)

    def decode(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        dense = Experts(experts.mixture, torch.empty_like(experts.gate_up), torch.empty_like(experts.down))
        for container, out in zip((gate, up, down), (*dense.gate_up.chunk(2, dim=1), dense.down)):
            ops.decode_experts_into(container, out)
        return make_grouped(dense, compiled)(x, ids, weights)

    return pack, decode


# ---- torch's grouped products ----


def _activate(hidden: Tensor) -> Tensor:
    gate, up = hidden.chunk(2, dim=-1)
    return F.silu(gate) * up


def _gather(x: Tensor, order: Tensor, routed: int) -> Tensor:
    return x[order // routed]


def _sum_experts(slots: Tensor, place: Tensor, weights: Tensor) -> Tensor:
    """Sums each token's rows of slots, which are sorted by expert: the row of route i is place[i]."""
    rows = slots[place].view(*weights.shape, slots.shape[-1])
    return (rows * weights.to(rows.dtype).unsqueeze(-1)).sum(1)


def _sum_experts_in_f32(slots: Tensor, place: Tensor, weights: Tensor) -> Tensor:
    rows = slots[place].view(*weights.shape, slots.shape[-1])
    return (rows.float() * weights.unsqueeze(-1)).sum(1).to(slots.dtype)


@functools.cache
def _compiled() -> tuple[Callable, Callable, Callable]:
    """What stands around the products, compiled: each becomes one kernel, which makes no rows of F32 in memory."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 64  # one for each kind of sizes: a single token, even rows ...
    functions = (_gather, _activate, _sum_experts_in_f32)
    return tuple(torch.compile(function, dynamic=True, fullgraph=True) for function in functions)


def make_grouped(experts: Experts, compiled: bool) -> Layer:
    """A whole layer around torch's grouped product: routes sorted by expert, x gathered, SwiGLU, and the sum."""
    multiply = getattr(torch, "_grouped_mm", None) or getattr(F, "grouped_mm", None)
    if multiply is None:
        raise Missing(f"torch {torch.__version__} has no grouped_mm")
    mixture = experts.mixture
    numbers = torch.arange(mixture.experts, dtype=torch.int32, device=experts.gate_up.device)
    gather, activate, sum_experts = _compiled() if compiled else (_gather, _activate, _sum_experts)

    def forward(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        in_order, order = torch.sort(ids.flatten())
        ends = torch.searchsorted(in_order, numbers, right=True, out_int32=True)
        rows = gather(x, order, mixture.routed)
        hidden = activate(multiply(rows, experts.gate_up.transpose(1, 2), offs=ends))
        slots = multiply(hidden, experts.down.transpose(1, 2), offs=ends)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return sum_experts(slots, place, weights)

    return forward


# ---- a reference ----


def reference(experts: Experts, x: Tensor, ids: Tensor, weights: Tensor, token: int) -> Tensor:
    """One token's y in F64 but for what the activation gives, which is rounded to BF16 as everywhere."""
    y = torch.zeros(experts.mixture.hidden, dtype=torch.float64, device=x.device)
    for expert, weight in zip(ids[token].tolist(), weights[token].tolist()):
        hidden = _activate(experts.gate_up[expert].double() @ x[token].double())
        y += weight * (experts.down[expert].double() @ hidden.to(torch.bfloat16).double())
    return y


def relative_error(experts: Experts, y: Tensor, x: Tensor, ids: Tensor, weights: Tensor) -> float:
    """The relative error of y's first and last rows."""
    rows = sorted({0, len(x) - 1})
    expected = torch.stack([reference(experts, x, ids, weights, row) for row in rows])
    return float((y[rows].double() - expected).norm() / expected.norm())
