# SPDX-License-Identifier: Apache-2.0
"""What the rows share: the two models, memory, timing in turns, and a line of JSON for each result."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import model_shapes
import torch
import transfuse.torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

MODELS = ("bf16", "compressed")


class Session:
    """One model in a process: the compressed checkpoint, the two models in memory, and where results go."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device("cuda:0" if options.device == "cuda" else options.device)
        self.device_name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        self.tiny = options.scale == "tiny"
        config = model_shapes.make_config(options.model, options.scale, options.layers)
        self.source = model_shapes.Source(config, options.seed, options.repeat)
        self.folder: Path = options.folder
        self.compressed_bytes = 0 if options.in_memory else _read_compressed_bytes(self.folder)
        self.load_seconds: float | None = None
        self._models: dict[str, PreTrainedModel] = {}

    def emit(self, row: str, **values: object) -> None:
        """Writes one result as a line of JSON, to the standard output and to --out."""
        options = self.options
        where = {"model": options.model, "layers": self.source.config.num_hidden_layers, "scale": options.scale}
        where["layout"] = options.layout
        text = json.dumps({"row": row, "case": self.folder.name, **where, "device": self.device_name, **values})
        print(text, flush=True)
        if self.options.out:
            with self.options.out.open("a") as file:
                file.write(text + "\n")

    def log(self, text: str) -> None:
        """Prints what is being done to standard error."""
        print(f"[{time.strftime('%H:%M:%S')}] {self.options.model}: {text}", file=self.options.log, flush=True)

    def load(self, folder: Path) -> PreTrainedModel:
        """Loads a checkpoint by transformers, as users do; a compressed one in the layout of --layout."""
        more = {}
        if folder == self.folder and self.options.layout != "coded":
            more["quantization_config"] = transfuse.TransfuseConfig(layout=self.options.layout)
        place = {"": str(self.device)}
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map=place, **more)
        return model.eval().requires_grad_(False)

    def _compress(self) -> PreTrainedModel:
        """Makes the model on the device and compresses it there, in the layout of --layout; there is no checkpoint."""
        model = model_shapes.build_reference(self.source, str(self.device))
        report = transfuse.compress_model(model, layout=self.options.layout)
        self.log(str(report).splitlines()[0])
        collect(self.device)
        return model

    def get(self, name: str) -> PreTrainedModel:
        """Returns the model "bf16" or "compressed", which stays in memory until `drop`."""
        if name not in self._models:
            self.log(f"making the model {name}")
            start = time.perf_counter()
            if name == "bf16":
                self._models[name] = model_shapes.build_reference(self.source, str(self.device))
            else:
                self._models[name] = self._compress() if self.options.in_memory else self.load(self.folder)
                synchronize(self.device)
                self.load_seconds = time.perf_counter() - start
        return self._models[name]

    def drop(self, *names: str) -> None:
        """Frees models, all of them if none is named."""
        for name in names or MODELS:
            self._models.pop(name, None)
        collect(self.device)

    def takes(self, way: str, usual: bool) -> bool:
        """Returns whether --ways asks for a way to decode or, if --ways is not given, whether the way is usual."""
        return self.options.ways in (way, "both") if self.options.ways else usual

    def make_tokens(self, batch: int, length: int, seed: int = 0) -> torch.Tensor:
        """Returns random tokens [batch][length] on the device."""
        generator = torch.Generator().manual_seed(seed)
        vocabulary = self.source.config.vocab_size
        return torch.randint(0, vocabulary, (batch, length), generator=generator).to(self.device)


def _read_compressed_bytes(folder: Path) -> int:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return int(index["metadata"]["total_size"])


@contextlib.contextmanager
def exact_mode(on: bool) -> Iterator[None]:
    """Runs the block in exact mode, or out of it."""
    before = transfuse.torch.is_exact()
    transfuse.torch.set_exact(on)
    try:
        yield
    finally:
        transfuse.torch.set_exact(before)


# ---- memory ----


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def collect(device: torch.device) -> None:
    """Frees what nothing refers to, also on the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def count_tensor_bytes(model: nn.Module) -> int:
    """Returns the bytes of the memory under a model's parameters and buffers, shared memory once."""
    storages = {}
    for tensor in (*model.parameters(), *model.buffers()):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class DeviceMemory:
    """Device memory while a block runs, beyond what was taken before: by torch's allocator, and seen from outside.

    Attributes, in bytes, all None on the CPU: `held` (allocated at the end), `peak` (allocated at most), `reserved`
    (by torch from the driver at most), `device_held` and `device_peak` (taken from the device by anyone, sampled every
    2 ms).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.held = self.peak = self.reserved = self.device_held = self.device_peak = None

    def _used(self) -> int:
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free

    def __enter__(self) -> DeviceMemory:
        if self.device.type == "cuda":
            collect(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
            self._reserved_before = torch.cuda.memory_reserved(self.device)
            self._used_before = self._most_used = self._used()
            self._done = threading.Event()
            self._thread = threading.Thread(target=self._sample)
            self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._done.wait(0.002):
            self._most_used = max(self._most_used, self._used())

    def __exit__(self, *failure: object) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self._done.set()
            self._thread.join()
            self.held = torch.cuda.memory_allocated(self.device) - self._before
            self.peak = torch.cuda.max_memory_allocated(self.device) - self._before
            self.reserved = torch.cuda.max_memory_reserved(self.device) - self._reserved_before
            self.device_peak = max(self._most_used, self._used()) - self._used_before
            torch.cuda.empty_cache()
            self.device_held = self._used() - self._used_before


# ---- time ----


def time_once(work: Callable[[], object], device: torch.device) -> float:
    """Returns the seconds that some work takes: on a GPU by events around it, with nothing before it in the queue."""
    synchronize(device)
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def time_in_turns(works: dict[str, Callable[[], object]], device: torch.device, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each work in each round; in each round all of them take a turn, the order alternating."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        time_once(work, device)
    for at in range(rounds):
        for name in works if at % 2 == 0 else reversed(works):
            times[name].append(time_once(works[name], device))
    return times


def summarize(times: dict[str, list[float]]) -> dict[str, object]:
    """Returns the medians of the two models' times, their ratio (above 1 if compressed is faster), and the spread."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = sorted(old / new for old, new in zip(times["bf16"], times["compressed"], strict=True))
    return {
        "bf16_seconds": medians["bf16"],
        "compressed_seconds": medians["compressed"],
        "ratio": round(medians["bf16"] / medians["compressed"], 4),
        "ratio_least": round(ratios[0], 4),
        "ratio_most": round(ratios[-1], 4),
        "rounds": len(ratios),
    }


def judge(value: float, must: str) -> dict[str, object]:
    """Returns the bound and whether it holds; `must` is such as ">= 1.15"."""
    sign, bound = must.split()
    holds = {">=": value >= float(bound), "<=": value <= float(bound), "==": value == float(bound)}[sign]
    return {"must": must, "pass": bool(holds)}
