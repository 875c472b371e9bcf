# SPDX-License-Identifier: Apache-2.0
"""vLLM's fused_experts in BF16: with its tuned table, its default, and where no table fits, what a search finds."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from mixture_routes import Mixture
from mixture_ways import Experts, Layer, Missing
from torch import Tensor

Config = dict[str, Any]
MOST_TRIALS = 20  # configurations that a search tries for each number of tokens


class Vllm:
    """vLLM's fused experts. Importing it takes seconds and does not touch the GPU.

    Raises
    ------
    Missing
        vLLM is not there, or has no fused experts of the kind that this file knows (0.26's).
    """

    def __init__(self) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        try:
            import vllm.model_executor.layers.fused_moe as module
            from vllm.config import VllmConfig, set_current_vllm_config
            from vllm.model_executor.layers.fused_moe import fused_moe
        except Exception as fault:  # it imports what a machine may not have
            raise Missing(f"vLLM cannot be imported: {type(fault).__name__}: {fault}") from fault
        names = ("fused_experts", "get_moe_configs", "get_default_config")
        if not hasattr(module, "override_config") or not all(hasattr(fused_moe, name) for name in names):
            raise Missing(f"this vLLM lacks one of override_config, {', '.join(names)}")
        self._module, self._fused_moe = module, fused_moe
        self._contexts = VllmConfig, set_current_vllm_config

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """vLLM's functions are to be called within this context."""
        make_config, use = self._contexts
        with torch.no_grad(), use(make_config()):
            yield

    def configs(self, mixture: Mixture, tokens: int) -> dict[str, Config]:
        """What vLLM would take: "table", if it has one for this card and shape, and "default"."""
        table = self._fused_moe.get_moe_configs(mixture.experts, mixture.inner, None)
        default = self._fused_moe.get_default_config(
            tokens, mixture.experts, mixture.inner, mixture.hidden, mixture.routed, None
        )
        found = {"default": default}
        if table:
            found["table"] = table[min(table, key=lambda size: abs(size - tokens))]
        return found

    def layer(self, experts: Experts, config: Config) -> Layer:
        def forward(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
            with self._module.override_config(dict(config)):
                return self._fused_moe.fused_experts(x, experts.gate_up, experts.down, weights, ids)

        return forward


def trials(mixture: Mixture, tokens: int) -> list[Config]:
    """What a search tries: tiles about as high as an expert has tokens, in an order that is the same in every run."""
    per_expert = tokens * mixture.routed / mixture.experts
    heights = [height for height in (16, 32, 64, 128) if height <= max(16, 4 * per_expert)][-2:]
    found = [
        {
            "BLOCK_SIZE_M": m,
            "BLOCK_SIZE_N": n,
            "BLOCK_SIZE_K": k,
            "GROUP_SIZE_M": group,
            "SPLIT_K": 1,
            "num_warps": warps,
            "num_stages": stages,
        }
        for m in heights
        for n in (64, 128, 256)
        for k in (64, 128)
        for group in ((1, 16) if per_expert > 128 else (1,))
        for warps in (4, 8)
        for stages in (3, 4)
        if 2 * stages * k * (m + n) <= 220 << 10 and m * n <= 128 * warps * 32
    ]
    random.Random(7).shuffle(found)
    return found[:MOST_TRIALS]


def compile_ahead(vllm: Vllm, units: list[tuple[Mixture, int, Config]], processes: int, until: float) -> None:
    """Compiles Triton's kernels in child processes, which leave them in its cache on disk. Nothing may have touched the
    GPU before. What is not done by `until` (time.monotonic) is compiled at its first call."""
    if torch.cuda.is_initialized():
        print("vLLM's kernels are compiled one by one: something has used the GPU already", file=sys.stderr)
        return
    children = []
    for number in range(processes):
        child = os.fork()
        if child:
            children.append(child)
            continue
        with contextlib.suppress(Exception), vllm.current():
            _compile_units(vllm, units[number::processes], until)
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)


def _compile_units(vllm: Vllm, units: list[tuple[Mixture, int, Config]], until: float) -> None:
    like = {"dtype": torch.bfloat16, "device": "cuda"}
    experts: Experts | None = None
    for mixture, tokens, config in units:
        if time.monotonic() > until:
            return
        if experts is None or experts.mixture != mixture:
            experts = None
            torch.cuda.empty_cache()
            gate_up = torch.empty(mixture.experts, 2 * mixture.inner, mixture.hidden, **like)
            experts = Experts(mixture, gate_up, torch.empty(mixture.experts, mixture.hidden, mixture.inner, **like))
            del gate_up
        ids = torch.arange(mixture.routed, dtype=torch.int32, device="cuda").repeat(tokens, 1)
        weights = torch.ones(tokens, mixture.routed, device="cuda")
        with contextlib.suppress(Exception):  # tiles that do not fit are found again where they are timed
            vllm.layer(experts, config)(torch.zeros(tokens, mixture.hidden, **like), ids, weights)
            torch.cuda.synchronize()
