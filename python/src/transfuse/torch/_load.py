# SPDX-License-Identifier: Apache-2.0
"""Loads layers from checkpoints to memory of torch, where the ops know them."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import weakref
from collections.abc import Sequence

import torch

from transfuse import _structs as s
from transfuse._checkpoint import TensorInfo, read_tensor_info
from transfuse._errors import Status, make_error
from transfuse._library import call as library_call
from transfuse._library import library
from transfuse._options import encode_path, encode_text, find_layout
from transfuse._threads import Cancel, call_interruptible
from transfuse.torch._containers import place_buffers, write_head
from transfuse.torch._ops_library import CPU, call
from transfuse.torch._registry import Keeping, assemble_rows, device_index, fit_memory, get_size, make_experts, wait_for

# The library takes a part as its first row, rows, first column and columns. These numbers mean the whole matrix.
_WHOLE = (0, 0, 0, 0)


class _Handle(ctypes.c_void_p):
    """The library's `trf_checkpoint`. It is closed when the last reference to it goes, which calls on it hold, too."""


class Checkpoint:
    """A checkpoint that is open for loading: a ``.safetensors`` file, an index, a folder, or a ``.trf`` file.

    It must be closed, which `with` does. Several threads may load from it at once; what still loads when it is closed
    goes on to its end.

    Raises
    ------
    NotFoundError, InputOutputError, DataError, UnsupportedError
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        handle = _Handle()
        library_call("trf_checkpoint_open", encode_path(path), ctypes.byref(handle))
        # At the end of the process all memory is freed anyway, and threads may still load.
        close = library().trf_checkpoint_close
        weakref.finalize(handle, close, ctypes.c_void_p(handle.value)).atexit = False
        self._handle: _Handle | None = handle

    @functools.cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """The tensors in it, by the source's names."""
        handle = self.handle
        count = library().trf_checkpoint_num_tensors(handle)
        found = [read_tensor_info(handle, index) for index in range(count)]
        return {tensor.name: tensor for tensor in found}

    @property
    def handle(self) -> ctypes.c_void_p:
        """The library's `trf_checkpoint`, which stays open as long as somebody holds it."""
        if self._handle is None:
            raise ValueError(f"the checkpoint {self.path} is closed")
        return self._handle

    def close(self) -> None:
        """Closes it; tensors that were loaded stay."""
        self._handle = None

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Opens a checkpoint for `load_layer`; raises what `Checkpoint` does."""
    return Checkpoint(path)


def load_layer(
    checkpoint: Checkpoint | str | os.PathLike[str],
    tensor: str,
    device: torch.device | str,
    *,
    layout: str = "coded",
    rows: tuple[int, int] | None = None,
    cols: tuple[int, int] | None = None,
    cancel: Cancel | None = None,
) -> torch.Tensor:
    """Reads one compressed tensor of a checkpoint to memory that torch allocates, and makes it known to the ops.

    The library reads, checks and copies the bytes. Ctrl-C ends it within about a second, and nothing is left behind.

    Parameters
    ----------
    checkpoint : Checkpoint or path
        A path is opened and closed, which takes longer for each tensor.
    tensor : str
        The source's name; an expert of a 3-D tensor is "name[3]", and the name of a whole 3-D tensor gives a container.
    device : torch.device
        The CPU or a CUDA device.
    layout : str
        How it will lie in memory: "coded"; or "packed", "packed8" or "plain", which transcode it while it is loaded.
        FP8 that fits "packed8" lies so with "packed", too.
    rows, cols : tuple of int, optional
        A part of the matrix: the first row or column, and how many. Both are multiples of 16; the last part of a matrix
        may end with it instead. Only the tiles of 256x256 weights that the part touches are read. A coded part that
        does not begin and end at multiples of 256, or with the matrix, can be multiplied by but not decoded, and a copy
        of its buffer is a layer of the whole tiles.
    cancel : Cancel, optional
        From a caller who handles Ctrl-C: the call then runs on the caller's thread.

    Returns
    -------
    torch.Tensor, uint8, [buffer_bytes]
        The layer's buffer; its blob, if the whole matrix lies coded.

    Raises
    ------
    NotFoundError
        There is no such checkpoint, tensor or expert.
    ArgumentError
        The tensor is not compressed, or one of experts, and no expert is named; there is no such layout or part.
    UnsupportedError
        Also: the layout does not take the codec, or not these weights, or a tensor of experts.
    CancelledError
        `cancel` was set.
    DeviceError, InputOutputError, DataError, UnsupportedError
    """
    if not isinstance(checkpoint, Checkpoint):
        with Checkpoint(checkpoint) as opened:
            return load_layer(opened, tensor, device, layout=layout, rows=rows, cols=cols, cancel=cancel)
    wanted = find_layout(layout)
    info = checkpoint.tensors.get(tensor)
    if rows is not None or cols is not None:
        part = *_check_range(rows, "rows"), *_check_range(cols, "cols")
        return _load([(checkpoint, tensor)], torch.device(device), cancel, False, wanted, part)
    if info is not None and info.compressed and len(info.shape) == 3:
        if wanted != s.Layout.CODED:
            raise make_error(
                Status.TRF_ERR_UNSUPPORTED,
                f"{tensor}: experts are loaded coded, and not {layout}; pack_experts packs them",
            )
        return load_experts([(checkpoint, f"{tensor}[{index}]") for index in range(info.blobs)], device, cancel=cancel)
    return _load([(checkpoint, tensor)], torch.device(device), cancel, into_container=False, layout=wanted)


def _check_range(wanted: tuple[int, int] | None, what: str) -> Sequence[int]:
    """Returns a range as the library takes it. A count of 0, which means all that follows there, is refused here."""
    if wanted is None:
        return _WHOLE[:2]
    is_pair = isinstance(wanted, (tuple, list)) and len(wanted) == 2
    if not is_pair or any(isinstance(number, bool) or not isinstance(number, int) for number in wanted):
        raise TypeError(f"{what} must be two ints, the first one and a count; this is {wanted!r}")
    first, count = wanted
    if not (0 <= first < 2**32 and 0 < count < 2**32):
        raise make_error(Status.TRF_ERR_ARGUMENT, f"{what} must be the first one and a count from 1; this is {wanted}")
    return first, count


def load_experts(
    tensors: Sequence[tuple[Checkpoint, str]], device: torch.device | str, *, cancel: Cancel | None = None
) -> torch.Tensor:
    """Reads compressed tensors that files have one by one into one container of experts, as `load_layer` reads one.

    Parameters
    ----------
    tensors : sequence of (Checkpoint, str)
        In the order of the experts.

    Returns
    -------
    torch.Tensor, uint8, [container_bytes]
    """
    return _load(tensors, torch.device(device), cancel, into_container=True)


@dataclasses.dataclass(frozen=True)
class TensorPart:
    """A part of a compressed tensor; rows and cols are as in `load_layer`."""

    checkpoint: Checkpoint
    tensor: str
    rows: tuple[int, int]
    cols: tuple[int, int]


def load_assembled(parts: Sequence[TensorPart | torch.Tensor], device: torch.device | str) -> torch.Tensor:
    """Makes one coded matrix of several layers, whose rows follow each other; none of them is decoded.

    Its key (`layer_key`) serves for products, in which each layer writes its own columns of one y, and for decoding;
    but rows cannot be looked up.

    Parameters
    ----------
    parts : sequence of TensorPart or torch.Tensor
        Each is read from its checkpoint, or is a blob on the CPU, such as `encode` returns. All have the same number of
        columns and the same source dtype. Each begins and ends at multiples of 256 rows and columns of its tensor, or
        where the tensor does.
    device : torch.device
        The CPU or a CUDA device.

    Returns
    -------
    torch.Tensor, uint8, [container_bytes]
        A container of the layers, known to the ops that take keys.

    Raises
    ------
    ArgumentError
        The layers do not fit together.
    TransfuseError
        What `load_layer` and `adopt` raise.
    """
    place = torch.device(device)
    index = device_index(place)
    in_files = {at: _get_part_size(index, part) for at, part in enumerate(parts) if isinstance(part, TensorPart)}
    sizes = [
        part.numel() if isinstance(part, torch.Tensor) else int(in_files[at].buffer_bytes)
        for at, part in enumerate(parts)
    ]
    offsets, total = place_buffers(sizes)
    container = torch.empty(total, dtype=torch.uint8, device=place)
    write_head(container, offsets, sizes)
    places = [container[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
    for part, here in zip(parts, places, strict=True):
        if isinstance(part, torch.Tensor):
            here.copy_(part)
    wait_for(place)  # the library reads the blobs' heads
    directory_bytes = [
        int((in_files[at] if at in in_files else get_size(here, s.Layout.CODED)).directory_bytes)
        for at, here in enumerate(places)
    ]
    keeping = Keeping(container, directory_bytes, offsets)
    wait_for(place)  # the memory may have been another tensor's, which running work still uses
    cancel = Cancel()

    def load() -> None:
        for part, offset, size, directory in zip(parts, offsets, sizes, keeping.directories, strict=True):
            at = container.data_ptr() + offset
            memory = s.LayerMemoryStruct(at, size, *directory)
            if isinstance(part, torch.Tensor):
                call("trf_torch_adopt", index, at, size, s.Layout.CODED, ctypes.byref(memory))
                continue
            source = part.checkpoint.handle, encode_text(part.tensor, "tensor"), s.Layout.CODED
            where = *part.rows, *part.cols
            call("trf_torch_load", index, *source, *where, ctypes.byref(memory), ctypes.byref(cancel.flag))

    with keeping:
        call_interruptible(load, cancel)
        assemble_rows(container, offsets)
    return container


def _get_part_size(index: int, part: TensorPart) -> s.LayerSizeStruct:
    name = encode_text(part.tensor, "tensor")
    return _get_load_size(index, part.checkpoint.handle, name, s.Layout.CODED, (*part.rows, *part.cols))


def get_load_bytes(checkpoint: Checkpoint, tensor: str, layout: str) -> int:
    """Returns the bytes that `load_layer` allocates for a tensor of one matrix, which it returns at most.

    It raises what `load_layer` raises, but does not look at the weights.
    """
    return int(_get_load_size(CPU, checkpoint.handle, encode_text(tensor, "tensor"), find_layout(layout)).buffer_bytes)


def _get_load_size(
    device: int, handle: ctypes.c_void_p, name: bytes, layout: int, part: Sequence[int] = _WHOLE
) -> s.LayerSizeStruct:
    size = s.LayerSizeStruct()
    call("trf_torch_get_load_size", device, handle, name, layout, *part, ctypes.byref(size))
    return size


def _load(
    tensors: Sequence[tuple[Checkpoint, str]],
    place: torch.device,
    cancel: Cancel | None,
    into_container: bool,
    layout: s.Layout = s.Layout.CODED,
    part: Sequence[int] = _WHOLE,
) -> torch.Tensor:
    index = device_index(place)
    sources = [(checkpoint.handle, encode_text(name, "tensor")) for checkpoint, name in tensors]
    sizes = [_get_load_size(index, handle, name, layout, part) for handle, name in sources]
    offsets, total = (
        place_buffers([size.buffer_bytes for size in sizes]) if into_container else ([0], sizes[0].buffer_bytes)
    )
    buffer = torch.empty(total, dtype=torch.uint8, device=place)
    if into_container:
        write_head(buffer, offsets, [size.buffer_bytes for size in sizes])
    keeping = Keeping(buffer, [size.directory_bytes for size in sizes], offsets)
    wait_for(place)  # the memory may have been another tensor's, which running work still uses
    asked = cancel or Cancel()

    def load() -> None:
        for source, offset, size, directory in zip(sources, offsets, sizes, keeping.directories, strict=True):
            memory = s.LayerMemoryStruct(buffer.data_ptr() + offset, size.buffer_bytes, *directory)
            call("trf_torch_load", index, *source, layout, *part, ctypes.byref(memory), ctypes.byref(asked.flag))

    with keeping:
        if cancel:
            load()
        else:
            call_interruptible(load, asked)
        if into_container:
            make_experts(buffer, offsets)
    return buffer if into_container else fit_memory(buffer)
