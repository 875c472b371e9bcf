# SPDX-License-Identifier: Apache-2.0
"""Finds out whether the memory of layers has changed since they were made."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn

from transfuse._errors import DataError, Status, UnsupportedError, make_error
from transfuse.torch import _registry
from transfuse.torch._buffer_module import has_bytes, is_buffer
from transfuse.torch._containers import pack_head
from transfuse.torch._experts import TransfuseExperts
from transfuse.torch._modules import CompressedModule


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

    These are the parameters and buffers of `TransfuseLinear`, `TransfuseEmbedding` and `TransfuseExperts`, and all
    others that are a known buffer, or the key of one (`layer_key`), as those of vLLM's layers are.

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
    """Yields buffers and containers, once each, with the names that they, or their keys (`layer_key`), have.

    Those that the ops do not know are adopted first: buffers of the modules of this package, and any that was adopted
    before and whose first bytes have changed on the CPU. If that fails, a DataError names them.
    """
    seen: set[tuple[torch.device, int]] = set()
    for path, module in model.named_modules():
        own = module._buffer_names() if isinstance(module, CompressedModule | TransfuseExperts) else ()
        for name, tensor in chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)):
            if not is_buffer(tensor) or not has_bytes(tensor):
                continue
            if name not in own and not (tensor.is_contiguous() and tensor.device.type in ("cpu", "cuda")):
                continue
            place = (tensor.device, tensor.data_ptr())
            if place in seen:
                continue
            found = tensor if name in own else _registry.find_adopted(tensor)
            if found is None:
                continue
            seen.add(place)
            what = f"{path}.{name}" if path else name
            _adopt_again(found, what)
            yield what, found


def _adopt_again(buffer: Tensor, name: str) -> None:
    """Adopts a buffer that the ops do not know: one of a module, or one whose first bytes have changed on the CPU."""
    try:
        _registry.adopt(buffer)
    except (DataError, UnsupportedError) as failure:
        raise make_error(
            Status.TRF_ERR_CHECKSUM, f"{name}: it is no layer, or its first bytes have changed: {failure.message}"
        ) from failure


def _verify_known(buffer: Tensor, what: str) -> int:
    """Verifies a layer or a container that is known; returns how many layers it has."""
    if _registry.is_layer(buffer):
        _registry.verify(buffer, what)
        return 1
    _registry.wait_for(buffer.device)
    offsets, sizes, order = _registry.places_in(buffer)
    head = pack_head(offsets, sizes, order)
    if bytes(buffer[: len(head)].tolist()) != head:
        raise make_error(Status.TRF_ERR_CHECKSUM, f"{what}the head of a container has changed in memory")
    for i, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        _registry.verify(buffer[offset : offset + size], f"{what}expert {i}: ")
    return len(offsets)


__all__ = ["verify_layer", "verify_model"]
