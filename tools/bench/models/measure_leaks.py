# SPDX-License-Identifier: Apache-2.0
"""Load-free cycles: a layer is loaded, used and freed again and again, and memory must stay the same."""

from __future__ import annotations

import gc
import json
import resource
from pathlib import Path

import torch
import transfuse.torch
from model_session import Session, judge, synchronize


def _measure_held(device: torch.device) -> dict[str, int]:
    """Returns the bytes of device memory that the process holds now, and the most host memory that it has held."""
    gc.collect()
    synchronize(device)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    held = {"host": pages * resource.getpagesize()}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        held |= {"device": total - free, "allocated": torch.cuda.memory_allocated(device)}
    return held


def measure_leaks(session: Session) -> None:
    """k: memory after many cycles against that after the first tenth of them."""
    folder, device = session.folder, session.device
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    name = next(key for key in index if "layers.0" in key and "k_proj.weight" in key or "qkv_proj.weight" in key)
    name = name.removesuffix("_trf")
    cycles = session.options.cycles
    held = {}
    for cycle in range(cycles + 1):
        if cycle in (cycles // 10, cycles):
            held[cycle] = _measure_held(device)
        blob = transfuse.torch.load_layer(folder, name, device)
        info = transfuse.torch.layer_info(blob)
        x = torch.ones(1, info.cols, device=device, dtype=torch.bfloat16)
        transfuse.torch.linear(x, blob, None, info.rows)
        del blob, x
    first, last = held.values()
    grown = {key: last[key] - first[key] for key in first}
    # The host's heap may still change a little; a blob that leaks in each cycle would be hundreds of megabytes.
    value = max(grown.get("device", 0), grown.get("allocated", 0), grown["host"] - (16 << 20), 0)
    session.emit(
        "k",
        what=f"bytes by which memory grew from cycle {cycles // 10} to cycle {cycles} of load, product and free",
        value=value,
        tensor=name,
        grown=grown,
        held=last,
        **judge(value, "== 0"),
    )
