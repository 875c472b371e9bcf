# SPDX-License-Identifier: Apache-2.0
"""Compares the layouts that are chosen for whole models with the best ones by times that are measured in this run.

Usage: measure_layout_choice.py [--times TIMES.json] [--out TIMES.json] [--experts EXPERTS.csv] [--batches 1,32,256]

On a GPU it times the products of each shape of each model in each layout (CUDA graphs over copies of the weights, so
that they lie in no cache), and writes them to --out. With --times it takes them from such a file, and needs no GPU.
Experts are not timed here: EXPERTS.csv has them, with the columns of runtime/tuning/layout_times/experts.csv; without
it models with experts are left out. For each model it then takes five budgets, from the least memory to that of plain
layers, chooses layouts as `transfuse layouts` does, adds up the measured times of that choice, and finds the best
choice by the measured times, exactly. It fails if a choice takes more than 3 % longer, or more memory than the budget.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transfuse import _structs as s
from transfuse._layout_choice import choose_among
from transfuse._library import library
from transfuse._options import LAYOUTS

NAMES = sorted(LAYOUTS, key=lambda name: LAYOUTS[name])  # by their values: coded, plain, packed
MOST_LOSS = 0.03
BUDGETS = 5
COPIED_BYTES = 300 << 20  # more than any cache
REPEATS = 15


@dataclasses.dataclass(frozen=True)
class Kind:
    """Layers of one shape. `experts` is 0, or how many there are, and rows are those of all matrices of one expert."""

    count: int
    rows: int
    cols: int
    experts: int = 0
    routed: int = 0

    @property
    def key(self) -> str:
        return f"{self.rows}x{self.cols}" + (f"/{self.experts}/{self.routed}" if self.experts else "")


def decoder(layers: int, hidden: int, inner: int, qkv: int, vocabulary: int) -> list[Kind]:
    return [
        Kind(layers, qkv, hidden),
        Kind(layers, hidden, hidden),
        Kind(layers, 2 * inner, hidden),
        Kind(layers, hidden, inner),
        Kind(1, vocabulary, hidden),
    ]


MODELS = {
    "8B": decoder(32, 4096, 14336, 6144, 128256),
    "70B": decoder(80, 8192, 28672, 10240, 128256),
    "30B-A3B": [
        Kind(48, 5120, 2048),
        Kind(48, 2048, 4096),
        Kind(48, 3 * 768, 2048, 128, 8),
        Kind(1, 151936, 2048),
    ],
}

# By a kind's key and a layout: bytes, and microseconds by batch.
Measured = dict[str, dict[str, dict[str, Any]]]


# ---- measuring ----


def time_graph(call: Callable[[], None], calls: int) -> float:
    """Returns the microseconds of one of so many calls: the median of a graph's replays."""
    import torch

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / calls)
    return statistics.median(times)


def measure_kind(kind: Kind, layout: str, batches: Sequence[int]) -> dict[str, Any]:
    import torch
    from transfuse.torch import TransfuseLinear

    copies = max(2, min(32, math.ceil(COPIED_BYTES / (2 * kind.rows * kind.cols))))
    layers = []
    for _ in range(copies):
        dense = torch.nn.Linear(kind.cols, kind.rows, bias=False, dtype=torch.bfloat16, device="cuda")
        torch.nn.init.normal_(dense.weight, std=0.02)
        layers.append(TransfuseLinear.from_linear(dense, layout=layout))
        del dense
    times = {}
    for batch in batches:
        x = torch.randn(batch, kind.cols, dtype=torch.bfloat16, device="cuda")

        def call() -> None:
            for layer in layers:
                layer(x)  # noqa: B023

        with torch.no_grad():
            times[str(batch)] = time_graph(call, copies)
    return {"bytes": layers[0].weight.numel(), "microseconds": times}


def measure(batches: Sequence[int], models: Sequence[str]) -> Measured:
    measured: Measured = {}
    for kind in {kind.key: kind for model in models for kind in MODELS[model]}.values():
        if not kind.experts:
            measured[kind.key] = {layout: measure_kind(kind, layout, batches) for layout in NAMES}
            print(kind.key, json.dumps(measured[kind.key]), flush=True)
    return measured


def read_experts(path: Path, kind: Kind, batches: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Returns the times of a kind of experts in those layouts that the file has at all batches."""
    times: dict[str, dict[str, float]] = {name: {} for name in NAMES}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if f"{row['rows']}x{row['cols']}/{row['experts']}/{row['routed']}" == kind.key:
                for name in NAMES:
                    if row[f"{name}_us"]:
                        times[name][row["tokens"]] = float(row[f"{name}_us"])
    bits = {"coded": 10.85, "plain": 16.0, "packed": 12.016}
    weights = kind.rows * kind.cols * kind.experts
    return {
        name: {"bytes": int(bits[name] / 8 * weights), "microseconds": of_layout}
        for name, of_layout in times.items()
        if name != "plain" and {str(batch) for batch in batches} <= of_layout.keys()
    }


# ---- comparing ----


def expect(entry: dict[str, Any], batches: Sequence[int]) -> float:
    return statistics.fmean(entry["microseconds"][str(batch)] for batch in batches)


def merge(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns sums of (bytes, microseconds) of two lists, without those that another one beats in both."""
    sums = (a[:, None, :] + b[None, :, :]).reshape(-1, 2)
    sums = sums[np.lexsort((sums[:, 1], sums[:, 0]))]
    best = np.minimum.accumulate(sums[:, 1])
    kept = np.concatenate(([True], sums[1:, 1] < best[:-1]))
    return sums[kept]


def find_front(kinds: Sequence[Kind], measured: Measured, batches: Sequence[int]) -> np.ndarray:
    """Returns all choices, as bytes and time, that no other one beats: exact, since layers of a kind are alike."""
    front = np.zeros((1, 2))
    for kind in kinds:
        options = [(entry["bytes"], expect(entry, batches)) for entry in measured[kind.key].values()]
        alone = np.zeros((1, 2))
        for _ in range(kind.count):
            alone = merge(alone, np.array(options, float))
        front = merge(front, alone)
    return front


def make_layers(kinds: Sequence[Kind], measured: Measured) -> tuple[ctypes.Array[s.LayoutLayerStruct], list[Kind]]:
    each = [kind for kind in kinds for _ in range(kind.count)]
    layers = (s.LayoutLayerStruct * len(each))()
    for layer, kind in zip(layers, each):
        library().trf_layout_layer_init(ctypes.byref(layer))
        layer.rows, layer.cols, layer.experts, layer.routed = kind.rows, kind.cols, kind.experts, kind.routed
        for name, entry in measured[kind.key].items():
            layer.layouts |= 1 << LAYOUTS[name]
            layer.bytes[LAYOUTS[name]] = entry["bytes"]
    return layers, each


def compare(model: str, measured: Measured, batches: Sequence[int], card: str | None) -> bool:
    kinds = MODELS[model]
    front = find_front(kinds, measured, batches)
    least, most = front[0, 0], sum(k.count * max(e["bytes"] for e in measured[k.key].values()) for k in kinds)
    layers, each = make_layers(kinds, measured)
    is_good = True
    for step in range(BUDGETS):
        budget = int(least + (most - least) * step / (BUDGETS - 1))
        chosen, _ = choose_among(layers, budget, list(batches), card)
        size = sum(measured[kind.key][name]["bytes"] for kind, name in zip(each, chosen))
        time = sum(expect(measured[kind.key][name], batches) for kind, name in zip(each, chosen))
        best = front[front[:, 0] <= budget][-1, 1]
        counts = {name: chosen.count(name) for name in NAMES}
        good = time <= (1 + MOST_LOSS) * best and size <= budget
        is_good &= good
        print(
            f"{model:8} {budget / 1e9:8.2f} GB: {size / 1e9:8.2f} GB, {time:9.1f} us, best {best:9.1f} us, "
            f"{100 * (time / best - 1):+.2f} %, {counts}{'' if good else '  MISSED'}",
            flush=True,
        )
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=Path, help="a file that --out wrote: nothing is timed")
    parser.add_argument("--out", type=Path, help="where to write what was timed")
    parser.add_argument("--experts", type=Path, help="a CSV file of experts' times")
    parser.add_argument("--batches", default="1,32,256")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--card", help="the GPU whose times the library goes by; the one here, or the H200")
    options = parser.parse_args()
    batches, models = [int(text) for text in options.batches.split(",")], options.models.split(",")
    card = options.card
    if options.times:
        measured: Measured = json.loads(options.times.read_text())
    else:
        import torch

        card = card or torch.cuda.get_device_name()
        measured = measure(batches, models)
    if options.out:
        options.out.write_text(json.dumps(measured, indent=1))
    is_good = True
    for model in models:
        missing = None
        for kind in MODELS[model]:
            if kind.experts and options.experts and kind.key not in measured:
                measured[kind.key] = read_experts(options.experts, kind, batches)
            if not measured.get(kind.key):
                missing = kind.key
        if missing:
            print(f"{model:8} left out: {missing} was not timed for all batches (--experts)", flush=True)
        else:
            is_good &= compare(model, measured, batches, card)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
