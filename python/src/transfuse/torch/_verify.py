# SPDX-License-Identifier: Apache-2.0
"""Finds out whether the memory of layers has changed since they were made."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from transfuse.torch import _registry
from transfuse.torch._containers import read_head


def verify_layer(buffer: Tensor) -> None:
    """Compares a layer, or all layers of a container of experts, with the checksums that were made with them.

    The memory is read where it lies, on a CUDA device at about the speed of that memory; the call waits for the device.
    A buffer that the ops do not know yet is adopted, which checks a coded one on the host.

    Parameters
    ----------
    buffer : torch.Tensor, uint8, [buffer_bytes]
        A layer's buffer, or a container. No other work may write it meanwhile.

    Raises
    ------
    DataError
        The memory has changed. The message says where.
    TransfuseError
        What `adopt` raises.
    RuntimeError
        A CUDA graph is being captured.
    """
    _registry.adopt(buffer)
    _verify_known(buffer, "")


def verify_model(model: nn.Module) -> int:
    """Does what `verify_layer` does for all compressed weights of a model that the ops know.

    These are the parameters and buffers of `TransfuseLinear`, `TransfuseEmbedding` and `TransfuseExperts`, and of
    vLLM's layers.

    Parameters
    ----------
    model : nn.Module
        Any module. Weights that several modules share are verified once.

    Returns
    -------
    int
        How many layers were verified; each expert counts.

    Raises
    ------
    DataError
        The memory of a layer has changed. The message begins with the parameter's name.
    RuntimeError
        A CUDA graph is being captured.
    """
    return sum(_verify_known(buffer, f"{name}: ") for name, buffer in _find_buffers(model))


def _find_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields what may be buffers and containers, once each, with their names."""
    seen: set[tuple[torch.device, int]] = set()
    for tensors in (model.named_parameters(), model.named_buffers()):
        for name, tensor in tensors:
            is_candidate = tensor.dtype == torch.uint8 and tensor.dim() == 1 and tensor.numel() and not tensor.is_meta
            place = (tensor.device, tensor.data_ptr()) if is_candidate else None
            if place is None or place in seen or not _registry.is_known(tensor):
                continue
            seen.add(place)
            yield name, tensor


def _verify_known(buffer: Tensor, what: str) -> int:
    """Verifies a layer or a container that is known; returns how many layers it has."""
    if _registry.is_layer(buffer):
        _registry.verify(buffer, what)
        return 1
    offsets, sizes = read_head(buffer)
    for i, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        _registry.verify(buffer[offset : offset + size], f"{what}expert {i}: ")
    return len(offsets)


__all__ = ["verify_layer", "verify_model"]
