# SPDX-License-Identifier: Apache-2.0
"""Times ways to compute a mixture, in turns, and the rates that limits are made of."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

PAUSE_TOKENS = 256  # from so many tokens on the device idles before each graph, or large products would find it hot
PAUSE_SECONDS = 0.06
READ_BYTES = 2 << 30
MATRIX = 8192


class Timer:
    """Several calls in a row: a CUDA graph of them, or on the CPU the calls themselves.

    `call` takes the number of the call and returns its y. `y` is that of the last call, once `run` has returned.
    """

    def __init__(self, call: Callable[[int], Tensor], calls: int, device: torch.device) -> None:
        self._call, self._calls, self._device = call, calls, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self.y: Tensor
        if device.type != "cuda":
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for number in range(min(calls, 2)):  # what is compiled or loaded at a first call cannot be captured
                call(number)
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=stream):
                for number in range(calls):
                    self.y = call(number)
        torch.cuda.synchronize()

    def run(self) -> float:
        """Runs all calls and waits. Returns seconds a call."""
        if not self._graph:
            begin = time.perf_counter()
            for number in range(self._calls):
                self.y = self._call(number)
            return (time.perf_counter() - begin) / self._calls
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        self._graph.replay()
        events[1].record()
        events[1].synchronize()
        return 1e-3 * events[0].elapsed_time(events[1]) / self._calls


def time_in_turns(timers: dict[str, Timer], rounds: int, pause: float) -> dict[str, list[float]]:
    """Returns the seconds a call of each timer and round; each round has another order, and a first one is dropped."""
    order = list(timers)
    shuffle = random.Random(1)
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    for number in range(rounds + 1):
        shuffle.shuffle(order)
        for name in order:
            time.sleep(pause)
            taken = timers[name].run()
            if number:
                seconds[name].append(taken)
    return seconds


@dataclasses.dataclass(frozen=True)
class Rates:
    """What the device reads and computes in a second at best."""

    bytes: float
    flops: float
    origin: str

    def limit(self, active: float, expert_bytes: float, flops: float) -> float:
        """Returns the seconds that a mixture takes at least: to read its experts that have tokens, or to multiply."""
        return max(active * expert_bytes / self.bytes, flops / self.flops)


def read_rates(path: Path) -> Rates:
    """Takes the rates that `transfuse bench --device cuda --mode moe --json FILE` has measured."""
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    medians = {figure["what"]: figure["median_seconds"] for figure in figures if figure["what"] in ("read", "cuBLASLt")}
    if medians.keys() != {"read", "cuBLASLt"}:
        raise ValueError(f"{path}: not a file of bench --mode moe: it lacks the rates of reading or of cuBLASLt")
    return Rates(READ_BYTES / medians["read"], 2 * MATRIX**3 / medians["cuBLASLt"], str(path))


def measure_rates(device: torch.device, rounds: int) -> Rates:
    """Measures torch's sum of 2 GiB of F32 and its BF16 product of 8192x8192 by 8192 rows; on a CPU smaller ones."""
    size = MATRIX if device.type == "cuda" else 256
    read_bytes = READ_BYTES if device.type == "cuda" else 1 << 20
    memory = torch.zeros(read_bytes // 4, device=device)
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    timers = {
        "read": Timer(lambda _: memory.sum(), 1, device),
        "multiply": Timer(lambda _: a @ b.T, 1, device),
    }
    seconds = time_in_turns(timers, rounds, PAUSE_SECONDS if device.type == "cuda" else 0)
    best = {name: min(taken) for name, taken in seconds.items()}
    return Rates(read_bytes / best["read"], 2 * size**3 / best["multiply"], "torch's sum and product")
