# SPDX-License-Identifier: Apache-2.0
"""Shapes of mixtures, and routes as a router gives them: which experts a token has, and their weights."""

from __future__ import annotations

import dataclasses
import re

import numpy as np

# Qwen3-30B-A3B, Mixtral 8x7B, and the part of DeepSeek-V3 that one of four cards has. `transfuse bench --mode moe` has
# the same ones, and the same routes in kind.
MIXTURES = "128x768x2048/8,8x14336x4096/2,64x2048x7168/8"
TOKENS = "1,4,16,64,256,1024,4096,16384"


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Experts with gate and up of [2 * inner][hidden] and down of [hidden][inner]; a token has `routed` of them."""

    experts: int
    inner: int
    hidden: int
    routed: int

    @classmethod
    def parse(cls, text: str) -> Mixture:
        """Reads "128x768x2048/8"; raises ValueError for anything else."""
        found = re.fullmatch(r"(\d+)x(\d+)x(\d+)/(\d+)", text)
        mixture = cls(*map(int, found.groups())) if found else None
        if not mixture or min(dataclasses.astuple(mixture)) < 1 or mixture.routed > mixture.experts:
            raise ValueError(f"{text}: a mixture is EXPERTSxINNERxHIDDEN/ROUTED, such as 128x768x2048/8")
        if mixture.inner % 8 or mixture.hidden % 8:
            raise ValueError(f"{text}: packed experts take multiples of 8")
        return mixture

    @property
    def weights(self) -> int:
        """Of one expert."""
        return 3 * self.inner * self.hidden

    def subject(self, routes: str) -> str:
        """As files of figures name it."""
        return f"{self.experts} of {self.inner}x{self.hidden}, {self.routed} routed, {routes}"


def calls_of(tokens: int) -> int:
    """How many calls a graph has: few tokens take many, or their time would be too short to measure."""
    return 16 if tokens <= 64 else 4 if tokens <= 1024 else 1


def draw_routes(mixture: Mixture, tokens: int, routes: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids, int32, and weights, float32, both [calls][tokens][routed] and the same in every run.

    uniform: each token has random experts. With one token the calls go through all experts before one comes again.
    skewed: a quarter of all routes, at most one a token, go to one expert, and 5 of 16 experts have none; which ones
    differs from call to call. It is the same as uniform with one token, or where experts are too few to choose among.
    """
    calls, experts, routed = calls_of(tokens), mixture.experts, mixture.routed
    random = np.random.default_rng(1000 * tokens + experts)
    order = random.permutation(experts)
    ids = np.empty((calls, tokens, routed), np.int32)
    for call in range(calls):
        if tokens == 1:
            first = call % (experts // routed) * routed
            ids[call, 0] = order[first : first + routed]
            continue
        order = random.permutation(experts)
        is_skewed = routes == "skewed" and experts > routed + 1
        others = order[1 : experts - min(experts * 5 // 16, experts - routed - 1)] if is_skewed else order
        ids[call] = others[np.argsort(random.random((tokens, len(others))), axis=1)[:, :routed]]
        if is_skewed:
            quarters = np.arange(tokens + 1) * routed // 4
            ids[call, quarters[1:] > quarters[:-1], 0] = order[0]
    weights = random.random(ids.shape).astype(np.float32) + np.float32(0.1)
    return ids, weights / weights.sum(-1, keepdims=True)


def mean_active(ids: np.ndarray) -> float:
    """How many experts have tokens, averaged over calls."""
    return float(np.mean([len(np.unique(call)) for call in ids]))
