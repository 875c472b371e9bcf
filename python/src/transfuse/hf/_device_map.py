# SPDX-License-Identifier: Apache-2.0
"""Checks device maps of from_pretrained, and finds where a parameter goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transfuse._errors import Status, make_error

if TYPE_CHECKING:
    import torch

MAP_WORDS = ("auto", "balanced", "balanced_low_0", "sequential")


def check_device_map(device_map: Any) -> None:
    """Refuses maps that we do not support.

    Raises
    ------
    UnsupportedError
        The map puts parts on a disk, or some on a GPU and some on the CPU, or on a device that is neither.
    """
    if device_map is None or (isinstance(device_map, str) and device_map in MAP_WORDS):
        return
    import torch

    places = device_map.values() if isinstance(device_map, dict) else [device_map]
    kinds = {"disk" if place == "disk" else torch.device(place).type for place in places}
    if "disk" in kinds:
        raise make_error(
            Status.TRF_ERR_UNSUPPORTED,
            "the device map puts parts of the model on the disk: compressed weights have to be in memory. Give the "
            "model more memory (max_memory), or more GPUs",
        )
    if not kinds <= {"cpu", "cuda"}:
        raise make_error(
            Status.TRF_ERR_UNSUPPORTED, f"compressed weights are for 'cuda' and 'cpu', not for {sorted(kinds)}"
        )
    if len(kinds) > 1:
        raise make_error(
            Status.TRF_ERR_UNSUPPORTED,
            "the device map puts one part of the model on a GPU and another one on the CPU: compressed models lie on "
            "GPUs or on the CPU as a whole. With device_map='auto' that means that the GPUs have too little memory",
        )


def make_device_finder(device_map: dict[str, Any] | None) -> Callable[[str], torch.device]:
    """Returns a function that tells the device of a parameter, which is that of the longest name above it in the map.

    Without a map that is the CPU.
    """
    import torch

    places = {name: torch.device(place) for name, place in (device_map or {"": "cpu"}).items()}

    def find(name: str) -> torch.device:
        path = name
        while path not in places and path:
            path = path.rpartition(".")[0]
        return places.get(path, torch.device("cpu"))

    return find
