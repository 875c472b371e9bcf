# SPDX-License-Identifier: Apache-2.0
"""Containers as the modules of experts take them: what they are asked, and what is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from transfuse._errors import TransfuseError
from transfuse.torch import _registry
from transfuse.torch._buffer_module import align_buffer, has_bytes, is_buffer
from transfuse.torch._containers import container_buffers, make_container


def multiplies(container: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether the library multiplies x of a dtype by these experts, where they are."""
    try:
        _registry.check_experts_dtype(container, dtype)
    except TransfuseError:
        return False
    return True


def layout_of(container: Tensor) -> str:
    """Returns how the experts of a container lie; "" if it is none yet."""
    try:
        return _registry.layer_layout(container_buffers(container)[0])
    except TransfuseError:
        return ""


def packed_name(name: str) -> str:
    """Returns the name of the packed container that the weights of a coded one go to."""
    return name if name == "down_proj" else "gate_up_proj"


def take_container(container: Any, what: str, shape: tuple[int, int, int]) -> Tensor:
    """Returns a container, aligned; raises an error if something is none of as many experts of a shape."""
    if not isinstance(container, Tensor) or not is_buffer(container):
        raise TypeError(f"{what} is a container (torch.uint8, 1-D)")
    if not has_bytes(container):
        raise ValueError(f"{what} is a container, and this one has no bytes")
    aligned = align_buffer(container)
    infos = _registry.expert_infos(aligned)
    if len(infos) != shape[0] or {(info.rows, info.cols) for info in infos} != {shape[1:]}:
        raise ValueError(f"{what} has {shape[0]} experts of {shape[1]} x {shape[2]}, and this container has others")
    return aligned


def as_container(experts: Tensor | Sequence[Tensor]) -> Tensor:
    """Returns a container as it is, or one that is made of the blobs of experts."""
    return experts if isinstance(experts, Tensor) else make_container(list(experts))
