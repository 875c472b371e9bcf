# SPDX-License-Identifier: Apache-2.0
"""Rows about loading: device memory after loading and during it, and the time that it takes."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch
from model_session import MODELS, DeviceMemory, Session, collect, count_tensor_bytes, judge, synchronize


@torch.inference_mode()
def run_prefill(session: Session, name: str, tokens: torch.Tensor) -> None:
    """Runs a model over its prompt as `generate` does: with a cache, and only the last token's logits."""
    session.get(name)(tokens, use_cache=True, logits_to_keep=1)


def warm_up_device(session: Session) -> None:
    """Makes the device's context and what its libraries allocate once, which does not belong to a model."""
    a = torch.ones(64, 64, device=session.device, dtype=torch.bfloat16)
    (a @ a).sum().item()


def measure_memory(session: Session) -> None:
    """c: memory after loading against BF16's, the peak of a prefill, and the peak while loading."""
    session.drop()
    warm_up_device(session)
    tokens = session.make_tokens(1, 128 if session.tiny else 2048)
    loaded: dict[str, DeviceMemory] = {}
    prefill: dict[str, DeviceMemory] = {}
    tensors = {}
    for name in reversed(MODELS):
        with DeviceMemory(session.device) as loaded[name]:
            session.get(name)
        tensors[name] = count_tensor_bytes(session.get(name))
        with DeviceMemory(session.device) as prefill[name]:
            run_prefill(session, name, tokens)
        session.drop(name)
    held = {name: loaded[name].held or tensors[name] for name in MODELS}
    ratio = held["compressed"] / held["bf16"]
    session.emit(
        "c",
        what="parameters and directories after loading, against BF16's",
        value=round(ratio, 4),
        bytes=held,
        bytes_of_tensors=tensors,
        device_bytes={name: loaded[name].device_held for name in MODELS},
        prefill_tokens=tokens.shape[1],
        prefill_peak={name: held[name] + (prefill[name].peak or 0) for name in MODELS},
        prefill_device_peak={name: prefill[name].device_peak for name in MODELS},
        **judge(ratio, "<= 0.70"),
    )
    coded = loaded["compressed"]
    if coded.device_peak is not None:
        peak = coded.device_peak / session.compressed_bytes
        session.emit(
            "c",
            what="peak of device memory while loading, against the compressed size",
            value=round(peak, 4),
            compressed_bytes=session.compressed_bytes,
            peak_of_the_device=coded.device_peak,
            peak_allocated=coded.peak,
            peak_reserved=coded.reserved,
            **judge(peak, "<= 1.15"),
        )


def read_whole(folder: Path) -> int:
    """Reads the files of a checkpoint, so that they are in the page cache; returns their bytes."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while chunk := file.read(64 << 20):
                total += len(chunk)
    return total


def measure_load_time(session: Session, plain_folder: Path) -> None:
    """d: time to load from the page cache, both by from_pretrained."""
    folders = dict(zip(MODELS, (plain_folder, session.folder), strict=True))
    session.drop()
    warm_up_device(session)
    sizes = {name: read_whole(folder) for name, folder in folders.items()}
    times: dict[str, list[float]] = {name: [] for name in MODELS}
    for at in range(1 + session.options.rounds_of_loading):
        for name in MODELS if at % 2 == 0 else reversed(MODELS):
            start = time.perf_counter()
            model = session.load(folders[name])
            synchronize(session.device)
            times[name].append(time.perf_counter() - start)
            del model
            collect(session.device)
    # The first round warms up.
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    ratio = medians["compressed"] / medians["bf16"]
    session.emit(
        "d",
        what="time to load from the page cache, against BF16's from_pretrained",
        value=round(ratio, 4),
        seconds=medians,
        all_seconds=times,
        bytes=sizes,
        file_system=str(session.folder),
        **judge(ratio, "<= 1.0"),
    )
