# SPDX-License-Identifier: Apache-2.0
"""The format in which the layers of several experts lie in one tensor, a *container*.

bytes 0 .. 15        "TRFX", then as little-endian u32: version 1, count, order of rows (ROWS_AS_GIVEN ...)
then                 u64 offset[count], u64 bytes[count]
at each offset       a layer's buffer, mostly a blob; offsets are multiples of 256, ascending, and no buffer overlaps
                     another
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from transfuse._errors import Status, make_error

_MAGIC = b"TRFX"
_VERSION = 1
_HEAD = struct.Struct("<4sIII")
_ALIGNMENT = 256

# In which order an expert's rows lie; these are the numbers of trf_gate_up_order.
ROWS_AS_GIVEN = 0
ROWS_INTERLEAVED = 1  # 8 rows of gate, the same 8 rows of up, the next 8 rows of gate ...


def place_buffers(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Returns the offsets of buffers of these sizes in a container, and the container's size."""
    offsets = []
    end = _HEAD.size + 16 * len(sizes)
    for size in sizes:
        offsets.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = offsets[-1] + size
    return offsets, end


def pack_head(offsets: Sequence[int], sizes: Sequence[int], order: int) -> bytes:
    """Returns the head of a container."""
    count = len(offsets)
    return _HEAD.pack(_MAGIC, _VERSION, count, order) + struct.pack(f"<{2 * count}Q", *offsets, *sizes)


def write_head(
    container: torch.Tensor, offsets: Sequence[int], sizes: Sequence[int], order: int = ROWS_AS_GIVEN
) -> None:
    """Writes all of a container but its buffers: its head, and zeros between the buffers."""
    data = pack_head(offsets, sizes, order)
    container[: len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    end = len(data)
    for offset, size in zip(offsets, sizes, strict=True):
        container[end:offset].zero_()
        end = offset + size


def is_container(first_bytes: bytes) -> bool:
    """Returns whether a tensor begins as a container does."""
    return first_bytes.startswith(_MAGIC)


def read_head(container: torch.Tensor) -> tuple[list[int], list[int]]:
    """Returns offsets and sizes of the buffers; waits for a CUDA device.

    Raises
    ------
    DataError
        The tensor is not a container, or is a malformed one.
    """
    total = container.numel()
    if total < _HEAD.size:
        raise make_error(Status.TRF_ERR_TRUNCATED, f"a container of experts has {total} bytes", total)
    magic, version, count, order = _HEAD.unpack(bytes(container[: _HEAD.size].tolist()))
    if magic != _MAGIC:
        raise make_error(Status.TRF_ERR_MAGIC, "not a container of experts", 0)
    if version != _VERSION:
        raise make_error(Status.TRF_ERR_VERSION, f"a container of experts of version {version}", 4)
    end = _HEAD.size + 16 * count
    if count < 1 or end > total:
        raise make_error(Status.TRF_ERR_HEADER, f"a container of {total} bytes cannot have {count} experts", 8)
    if order not in (ROWS_AS_GIVEN, ROWS_INTERLEAVED):
        raise make_error(
            Status.TRF_ERR_HEADER, f"a container whose rows lie in an order that is not known, {order}", 12
        )
    numbers = struct.unpack(f"<{2 * count}Q", bytes(container[_HEAD.size : end].tolist()))
    offsets, sizes = list(numbers[:count]), list(numbers[count:])
    for index, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        if offset % _ALIGNMENT or offset < end or size < 1 or offset + size > total:
            raise make_error(
                Status.TRF_ERR_HEADER,
                f"expert {index} cannot lie at {offset} to {offset + size} of a container of {total} bytes",
                _HEAD.size + 8 * index,
            )
        end = offset + size
    return offsets, sizes


def read_order(container: torch.Tensor) -> int:
    """Returns in which order the rows of a container's experts lie. `container` is one that `read_head` accepts."""
    order: int = _HEAD.unpack(bytes(container[: _HEAD.size].tolist()))[3]
    return order


def make_container(buffers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Puts the buffers of layers into one tensor, on the device of the first one.

    Parameters
    ----------
    buffers : sequence of torch.Tensor, uint8, [buffer_bytes]
        Their layers have one shape, codec and source dtype.

    Returns
    -------
    torch.Tensor, uint8, [container_bytes]
        The container, which the ops do not know yet.

    Raises
    ------
    ValueError
        There are no buffers, or one is not a uint8 tensor of one dimension.
    """
    if not buffers:
        raise ValueError("a container needs one expert at least")
    for buffer in buffers:
        if buffer.dtype != torch.uint8 or buffer.dim() != 1:
            raise ValueError(f"a buffer is uint8 of one dimension, not {buffer.dtype} of shape {tuple(buffer.shape)}")
    sizes = [buffer.numel() for buffer in buffers]
    offsets, total = place_buffers(sizes)
    container = torch.empty(total, dtype=torch.uint8, device=buffers[0].device)
    write_head(container, offsets, sizes)
    for buffer, offset, size in zip(buffers, offsets, sizes, strict=True):
        container[offset : offset + size].copy_(buffer)
    return container


def container_buffers(container: torch.Tensor) -> list[torch.Tensor]:
    """Returns the buffers of a container's layers, as views of it. Raises what `read_head` does."""
    offsets, sizes = read_head(container)
    return [container[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
