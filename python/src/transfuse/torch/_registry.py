# SPDX-License-Identifier: Apache-2.0
"""Layers as torch tensors: a blob is a contiguous uint8 tensor of one dimension, and is known by where it lies.

The ops find a layer by the device and address of its blob. `adopt` validates a blob and makes it known; a blob that an
op meets for the first time is adopted then. What is known is forgotten when the blob's storage goes, or by `forget`,
which whoever writes other bytes into the same memory has to call.
"""

from __future__ import annotations

import ctypes
import threading
import weakref

import torch

from transfuse import _structs as s
from transfuse._errors import Status, TransfuseError, make_error
from transfuse._results import LayerInfo, make_layer_info
from transfuse.torch._containers import is_container, read_head
from transfuse.torch._shim import CPU, call, shim

_DIRECTORY_ALIGNMENT = 256

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
    if is_container(blob):
        with _container_lock:
            if not is_known(blob):
                _adopt_container(blob)
        return
    device, pointer = _place_of(blob)
    what = f"blob of {blob.numel()} bytes on {blob.device}: "
    keeping = Keeping(blob, [_measure(device, pointer, blob.numel(), what)], [0])
    with keeping:
        try:
            call("trf_torch_adopt", device, pointer, blob.numel(), *keeping.directories[0], what=what)
        except TransfuseError as failure:
            if failure.status != Status.TRF_ERR_EXISTS:
                raise
            keeping.drop()  # another thread was faster


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
    places = [(pointer + offset, size) for offset, size in zip(offsets, sizes, strict=True)]
    keeping = Keeping(container, [_measure(device, *place, what) for place in places], offsets)
    with keeping:
        for index, (place, directory) in enumerate(zip(places, keeping.directories, strict=True)):
            while True:  # until no thread has adopted this one expert in between
                shim().trf_torch_forget(device, place[0])
                try:
                    call("trf_torch_adopt", device, *place, *directory, what=f"{what}expert {index}: ")
                    break
                except TransfuseError as failure:
                    if failure.status != Status.TRF_ERR_EXISTS:
                        raise
        make_experts(container, offsets, what)


def _measure(device: int, pointer: int, count: int, what: str) -> int:
    """Returns how large the directory of a blob is."""
    size = ctypes.c_uint64()
    call("trf_torch_measure", device, pointer, count, ctypes.byref(size), what=what)
    return size.value


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


def blob_info(blob: torch.Tensor) -> LayerInfo:
    """Returns what a blob says of itself; one that is not known is adopted. Raises what `adopt` does."""
    adopt(blob)
    device, pointer = _place_of(blob)
    info = s.LayerInfoStruct()
    if not shim().trf_torch_find(device, pointer, blob.numel(), ctypes.byref(info)):
        raise ValueError("this is a container of experts; expert_infos tells of them")
    return make_layer_info(info)


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
    return [blob_info(container[offset : offset + size]) for offset, size in zip(offsets, sizes, strict=True)]


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
