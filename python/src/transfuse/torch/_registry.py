# SPDX-License-Identifier: Apache-2.0
"""Layers as torch tensors: a blob is a contiguous uint8 tensor of one dimension, and is known by where it lies.

A tensor may hold a layer in another layout than the coded one (docs/torch.md), and stands for a blob then wherever one
is taken: its first bytes say which it is.

The ops find a layer by the device and address of its blob. `adopt` validates a blob and makes it known; a blob that an
op meets for the first time is adopted then. What is known is forgotten when the blob's storage goes, or by `forget`,
which whoever writes other bytes into the same memory has to call.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref

import torch

from transfuse import _structs as s
from transfuse._errors import Status, TransfuseError, make_error
from transfuse._options import LAYOUTS, layout_name
from transfuse._results import LayerInfo, make_layer_info
from transfuse.torch._containers import is_container, read_head
from transfuse.torch._shim import CPU, call, shim

_DIRECTORY_ALIGNMENT = 256

# How a buffer of another layout than the coded one begins (format/trf_layout_head.h): "TRFL", and which it is.
_LAYOUT_HEAD = struct.Struct("<4sH")
_LAYOUT_MAGIC = b"TRFL"

_container_lock = threading.Lock()

# Those of the storages of blobs that are known, by device and address; each holds the directories.
_finalizers: dict[tuple[int, int], weakref.finalize[..., torch.UntypedStorage]] = {}


def device_index(device: torch.device) -> int:
    """Returns the CUDA ordinal of a device, or -1 for the CPU.

    Raises
    ------
    ValueError
        It is neither.
    """
    if device.type == "cpu":
        return CPU
    if device.type == "cuda":
        return int(torch.cuda.current_device()) if device.index is None else device.index
    raise ValueError(f"a blob is on the CPU or on a CUDA device, not on {device}")


def _place_of(blob: torch.Tensor) -> tuple[int, int]:
    if not isinstance(blob, torch.Tensor):
        raise TypeError(f"blob must be a torch.Tensor, not {type(blob).__name__}")
    if blob.dtype != torch.uint8 or blob.dim() != 1 or not blob.is_contiguous():
        raise ValueError(
            f"blob must be a contiguous uint8 tensor of one dimension; this is {blob.dtype} of shape "
            f"{tuple(blob.shape)}"
        )
    return device_index(blob.device), blob.data_ptr()


def _check_alignment(blob: torch.Tensor) -> None:
    wanted = 16 if blob.device.type == "cpu" else 256
    if blob.data_ptr() % wanted:
        raise ValueError(
            f"blob lies at {blob.data_ptr() % wanted} beyond a multiple of {wanted} bytes; what clone() gives does not"
        )


def adopt(blob: torch.Tensor) -> None:
    """Validates a blob, or a container of experts, and makes it known to the ops; one that is known is left as it is.

    Parameters
    ----------
    blob : torch.Tensor, uint8, [blob_bytes]
        On the CPU or a CUDA device, where it is used as it lies: its bytes must not change. On a CUDA device it is
        read back to be checked, which waits for the device, and a directory of about 1 % of its size is allocated.
        Of a layer in another layout the head alone is checked (of a packed one on the CPU all), without a directory.

    Raises
    ------
    ValueError, TypeError
        It is no such tensor.
    RuntimeError
        A CUDA graph is being captured.
    TransfuseError
        The bytes are no valid blob; the device is not there or cannot be used.
    """
    if is_known(blob):
        return
    _check_alignment(blob)
    wait_for(blob.device)  # what writes it
    first_bytes = _read_first_bytes(blob)
    if is_container(first_bytes):
        with _container_lock:
            if not is_known(blob):
                _adopt_container(blob)
        return
    layout = _layout_of_bytes(first_bytes)
    what = f"blob of {blob.numel()} bytes on {blob.device}: "
    _adopt_blob(blob, layout, get_size(blob, layout, what).directory_bytes, what)


def _adopt_blob(blob: torch.Tensor, layout: int, directory_bytes: int, what: str) -> None:
    """Makes one blob known, or a buffer of this layout."""
    device, pointer = _place_of(blob)
    keeping = Keeping(blob, [directory_bytes], [0])
    with keeping:
        memory = s.LayerMemoryStruct(pointer, blob.numel(), *keeping.directories[0])
        try:
            call("trf_torch_adopt", device, pointer, blob.numel(), layout, ctypes.byref(memory), what=what)
        except TransfuseError as failure:
            if failure.status != Status.TRF_ERR_EXISTS:
                raise
            keeping.drop()  # another thread was faster


def _read_first_bytes(blob: torch.Tensor) -> bytes:
    """Returns what tells a container, a blob and the buffers of other layouts apart; waits for a CUDA device."""
    return bytes(blob[: _LAYOUT_HEAD.size].tolist())


def _layout_of_bytes(first_bytes: bytes) -> int:
    """Returns the layout that a tensor claims to be in, by its first bytes; whatever is no head is left to the library.

    Raises
    ------
    UnsupportedError
        It is one that this version does not know.
    """
    if len(first_bytes) < _LAYOUT_HEAD.size or not first_bytes.startswith(_LAYOUT_MAGIC):
        return s.Layout.CODED
    layout: int = _LAYOUT_HEAD.unpack(first_bytes)[1]
    if layout not in LAYOUTS.values():
        raise make_error(Status.TRF_ERR_UNSUPPORTED, f"a layer of a layout that is not known, {layout}", 4)
    return layout


def wait_for(device: torch.device) -> None:
    """Waits for the current stream, so that memory may be written or read that its work uses."""
    if device.type != "cuda":
        return
    stream = torch.cuda.current_stream(device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("layers cannot be adopted or loaded while a CUDA graph is captured; do so before")
    stream.synchronize()


def _adopt_container(container: torch.Tensor) -> None:
    """Makes a container known. Experts that are known by themselves become its own."""
    device, pointer = _place_of(container)
    what = f"container of {container.numel()} bytes on {container.device}: "
    offsets, sizes = read_head(container)
    blobs = [container[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
    layouts = [_layout_of_bytes(_read_first_bytes(blob)) for blob in blobs]
    layer_sizes = [get_size(blob, layout, what) for blob, layout in zip(blobs, layouts)]
    keeping = Keeping(container, [size.directory_bytes for size in layer_sizes], offsets)
    with keeping:
        for index, (blob, layout, directory) in enumerate(zip(blobs, layouts, keeping.directories, strict=True)):
            place = blob.data_ptr(), blob.numel()
            memory = s.LayerMemoryStruct(*place, *directory)
            while True:  # until no thread has adopted this one expert in between
                shim().trf_torch_forget(device, place[0])
                try:
                    call(
                        "trf_torch_adopt",
                        device,
                        *place,
                        layout,
                        ctypes.byref(memory),
                        what=f"{what}expert {index}: ",
                    )
                    break
                except TransfuseError as failure:
                    if failure.status != Status.TRF_ERR_EXISTS:
                        raise
        make_experts(container, offsets, what)


def get_size(blob: torch.Tensor, layout: int, what: str = "") -> s.LayerSizeStruct:
    """Returns the memory of the layer that a blob, or a buffer of this layout, is.

    Raises
    ------
    DataError
        The head is malformed.
    """
    size = s.LayerSizeStruct()
    call("trf_torch_get_size", *_place_of(blob), blob.numel(), layout, ctypes.byref(size), what=what)
    return size


def convert(blob: torch.Tensor, layout: int) -> torch.Tensor:
    """Returns a layer that is known in another layout, plain or packed, in memory of its own size.

    It is made on its device, without decoding to the host. The old one, its plans included, stays as it is.

    Raises
    ------
    UnsupportedError
        The layout does not take the codec, or not these weights.
    DataError
        The blob is corrupt.
    """
    size = s.LayerSizeStruct()
    source = *_place_of(blob), blob.numel()
    call("trf_torch_get_converted_size", *source, layout, ctypes.byref(size))
    made = torch.empty(size.buffer_bytes, dtype=torch.uint8, device=blob.device)
    keeping = Keeping(made, [size.directory_bytes], [0])
    wait_for(blob.device)
    with keeping:
        memory = s.LayerMemoryStruct(made.data_ptr(), made.numel(), *keeping.directories[0])
        call("trf_torch_convert", *source, layout, ctypes.byref(memory))
    return fit_memory(made)


def make_experts(container: torch.Tensor, offsets: list[int], what: str = "") -> None:
    """Makes experts of the blobs of a container, which are known."""
    array = (ctypes.c_uint64 * len(offsets))(*offsets)
    device, pointer = _place_of(container)
    call("trf_torch_make_experts", device, pointer, container.numel(), array, len(offsets), what=what)


class Keeping:
    """Keeps what layers need beside their blobs for as long as the storage of these, which has them forgotten.

    It is there before the layers are, so that no exception can come in between; one that leaves the block undoes it.
    """

    def __init__(self, blob: torch.Tensor, directory_bytes: list[int], offsets: list[int]) -> None:
        starts = [0]
        for size in directory_bytes:
            starts.append(-(-(starts[-1] + size) // _DIRECTORY_ALIGNMENT) * _DIRECTORY_ALIGNMENT)
        memory = torch.empty(starts[-1], dtype=torch.uint8, device=blob.device)
        # Address and bytes of each.
        self.directories = [
            (memory.data_ptr() + start, size) for start, size in zip(starts, directory_bytes, strict=False)
        ]
        self._place = _place_of(blob)
        self._finalizer = weakref.finalize(blob.untyped_storage(), _forget, *self._place, offsets, memory)
        self._finalizer.atexit = False

    def __enter__(self) -> Keeping:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._finalizer.alive:
            _call_now(self._finalizer)
        elif self._finalizer.alive:
            _finalizers[self._place] = self._finalizer

    def drop(self) -> None:
        """Leaves storage and layers alone."""
        self._finalizer.detach()


def is_known(blob: torch.Tensor) -> bool:
    """Returns whether the ops know a blob or container."""
    device, pointer = _place_of(blob)
    return bool(shim().trf_torch_is_known(device, pointer, blob.numel()))


def get_adoption(blob: torch.Tensor) -> object:
    """Returns what stands for the adoption of a blob that is known, as long as it is; None for any other."""
    return _finalizers.get(_place_of(blob))


def forget(blob: torch.Tensor) -> None:
    """Makes a blob or container unknown, as to be done before its bytes change; an unknown one is left as it is."""
    finalizer = _finalizers.get(_place_of(blob))
    if finalizer:
        _call_now(finalizer)


def _call_now(finalizer: weakref.finalize[..., torch.UntypedStorage]) -> None:
    found = finalizer.detach()
    if found:
        _, function, arguments, _ = found
        function(*arguments)


def _forget(device: int, pointer: int, offsets: list[int], _directories: torch.Tensor) -> None:
    shim().trf_torch_forget_experts(device, pointer)
    for offset in offsets:
        shim().trf_torch_forget(device, pointer + offset)
    _finalizers.pop((device, pointer), None)


def layer_info(blob: torch.Tensor) -> LayerInfo:
    """Returns what a blob says of itself; one that is not known is adopted. Raises what `adopt` does.

    Of a layer in another layout it is what the blob said that it was made of, whose size `blob_bytes` is.
    """
    return make_layer_info(_find(blob).layer)


def layer_layout(blob: torch.Tensor) -> str:
    """Returns how a layer lies in memory, "coded", "packed" or "plain"; one that is not known is adopted.

    Raises
    ------
    ValueError
        It is a container of experts.
    TransfuseError
        What `adopt` raises.
    """
    return layout_name(_find(blob).layout)


def fit_memory(blob: torch.Tensor) -> torch.Tensor:
    """Returns a layer in memory of its own size: itself, or a copy of one that was made in memory with room for more.

    How large a packed layer is shows when it is there. While the copy is made the memory is there twice, of this layer
    alone; the larger one goes with the last reference to it.
    """
    info = _find(blob)
    size = int(info.memory_bytes)
    if size >= blob.numel():
        return blob
    fitted = blob[:size].clone()
    wait_for(fitted.device)
    # What it is need not be read from its bytes, which would wait for all that the device does, other loads included.
    _adopt_blob(fitted, info.layout, 0, f"copy of {size} bytes on {fitted.device}: ")
    return fitted


def _find(blob: torch.Tensor) -> s.DeviceLayerInfoStruct:
    adopt(blob)
    device, pointer = _place_of(blob)
    info = s.DeviceLayerInfoStruct()
    if not shim().trf_torch_find(device, pointer, blob.numel(), ctypes.byref(info)):
        raise ValueError("this is a container of experts; expert_infos tells of them")
    return info


def expert_infos(container: torch.Tensor) -> list[LayerInfo]:
    """Returns what the blobs of a container say of themselves; one that is not known is adopted.

    Raises
    ------
    DataError
        It is no container, or a malformed one.
    TransfuseError
        What `adopt` raises.
    """
    offsets, sizes = read_head(container)
    adopt(container)
    return [layer_info(container[offset : offset + size]) for offset, size in zip(offsets, sizes, strict=True)]


def check_experts_dtype(container: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises the reason if `experts` does not take a container with an x of this dtype, BF16 or F16.

    Raises
    ------
    UnsupportedError, ArgumentError
        Experts of several codecs; on a CUDA device also those that cannot share launches.
    """
    adopt(container)
    known = {torch.bfloat16: s.Dtype.BF16, torch.float16: s.Dtype.F16}
    if dtype not in known:
        raise make_error(Status.TRF_ERR_UNSUPPORTED, f"experts do not multiply x of {dtype}")
    call("trf_torch_check_experts_dtype", *_place_of(container), container.numel(), known[dtype])


def count_layers() -> int:
    """Returns how many layers are known."""
    return int(shim().trf_torch_count())


def adopt_kernel(blob: torch.Tensor) -> None:
    """The kernel of `transfuse::adopt`, by which an op that misses a blob has it adopted.

    An exception would not reach the op's caller with its text, so that the text goes by another way.
    """
    try:
        with torch.utils._python_dispatch._disable_current_modes():
            adopt(blob)
    except Exception as failure:
        shim().trf_torch_set_adoption_error(str(failure).encode())
