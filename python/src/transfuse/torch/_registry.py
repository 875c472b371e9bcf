# SPDX-License-Identifier: Apache-2.0
"""Layers as torch tensors: a blob is a contiguous uint8 tensor of one dimension, and is known by where it lies.

The ops find a layer by the device and address of its blob. `adopt` validates a blob and makes it known; a blob that an
op meets for the first time is adopted then. What is known is forgotten when the blob's storage goes, or by `forget`,
which whoever writes other bytes into the same memory has to call.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from transfuse import _structs as s
from transfuse._checkpoint import TensorInfo, read_tensor_info
from transfuse._errors import Status, TransfuseError, make_error
from transfuse._layer import Layer
from transfuse._library import call as library_call
from transfuse._library import call_interruptible, library
from transfuse._options import encode_path, encode_text
from transfuse._results import LayerInfo, make_layer_info
from transfuse.torch._containers import is_container, layout, read_head, write_head
from transfuse.torch._shim import CPU, LayerMemory, LayerSize, call, shim

# What codecs take: the name by which Layer.encode knows it, and a dtype of its bits where NumPy has none of its own.
_DTYPES: dict[torch.dtype, tuple[str, torch.dtype | None]] = {
    torch.float32: ("f32", None),
    torch.float16: ("f16", None),
    torch.bfloat16: ("bf16", torch.uint16),
    torch.int8: ("i8", None),
    torch.float8_e4m3fn: ("fp8_e4m3", torch.uint8),
    torch.float8_e5m2: ("fp8_e5m2", torch.uint8),
}

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
    _wait_for(blob.device)  # what writes it
    if is_container(blob):
        with _container_lock:
            if not is_known(blob):
                _adopt_container(blob)
        return
    device, pointer = _place_of(blob)
    what = f"blob of {blob.numel()} bytes on {blob.device}: "
    keeping = _Keeping(blob, [_measure(device, pointer, blob.numel(), what)], [0])
    with keeping:
        try:
            call("trf_torch_adopt", device, pointer, blob.numel(), *keeping.directories[0], what=what)
        except TransfuseError as failure:
            if failure.status != Status.TRF_ERR_EXISTS:
                raise
            keeping.drop()  # another thread was faster


def _wait_for(device: torch.device) -> None:
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
    keeping = _Keeping(container, [_measure(device, *place, what) for place in places], offsets)
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
        _make_experts(container, offsets, what)


def _measure(device: int, pointer: int, count: int, what: str) -> int:
    """Returns how large the directory of a blob is."""
    size = ctypes.c_uint64()
    call("trf_torch_measure", device, pointer, count, ctypes.byref(size), what=what)
    return size.value


def _make_experts(container: torch.Tensor, offsets: list[int], what: str = "") -> None:
    array = (ctypes.c_uint64 * len(offsets))(*offsets)
    device, pointer = _place_of(container)
    call("trf_torch_make_experts", device, pointer, container.numel(), array, len(offsets), what=what)


class _Keeping:
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

    def __enter__(self) -> _Keeping:
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


def encode(weight: torch.Tensor, **options: Any) -> torch.Tensor:
    """Encodes a matrix.

    Parameters
    ----------
    weight : torch.Tensor, [rows][cols]
        float32, float16, bfloat16, int8, float8_e4m3fn or float8_e5m2, on any device; it is encoded on the CPU.
    options
        Those of `transfuse.Layer.encode`: codec, favor, bits, granularity, threads, verify ...

    Returns
    -------
    torch.Tensor, uint8, [blob_bytes]
        On the CPU, not yet known to the ops.

    Raises
    ------
    TypeError, ValueError
        It is no such matrix.
    TransfuseError
        What `transfuse.Layer.encode` raises.
    """
    if not isinstance(weight, torch.Tensor):
        raise TypeError(f"weight must be a torch.Tensor, not {type(weight).__name__}")
    if weight.dtype not in _DTYPES:
        raise ValueError(f"weight is of {weight.dtype}; codecs take {', '.join(str(dtype) for dtype in _DTYPES)}")
    name, bits = _DTYPES[weight.dtype]
    array = weight.detach().cpu().contiguous()
    return tensor_of(Layer.encode((array.view(bits) if bits else array).numpy(), dtype=name, **options))


def tensor_of(layer: Layer) -> torch.Tensor:
    """Returns a layer's blob as a tensor on the CPU."""
    data = layer.to_bytes()
    blob = torch.empty(len(data), dtype=torch.uint8)
    ctypes.memmove(blob.data_ptr(), data, len(data))
    return blob


class Checkpoint:
    """A checkpoint that is open for loading: a ``.safetensors`` file, an index, a folder, or a ``.trf`` file.

    To be closed, which `with` does; several threads may load from it at once.

    Raises
    ------
    NotFoundError, InputOutputError, DataError, UnsupportedError
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        handle = ctypes.c_void_p()
        library_call("trf_checkpoint_open", encode_path(path), ctypes.byref(handle))
        self._handle: ctypes.c_void_p | None = handle
        self._close = weakref.finalize(self, library().trf_checkpoint_close, handle)

    @functools.cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """What is in it, by the source's names."""
        count = library().trf_checkpoint_num_tensors(self.handle)
        found = [read_tensor_info(self.handle, index) for index in range(count)]
        return {tensor.name: tensor for tensor in found}

    @property
    def handle(self) -> ctypes.c_void_p:
        """The library's `trf_checkpoint`."""
        if self._handle is None:
            raise ValueError(f"the checkpoint {self.path} is closed")
        return self._handle

    def close(self) -> None:
        """Closes it; tensors that were loaded stay."""
        self._handle = None
        self._close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Opens a checkpoint for `load_blob`; raises what `Checkpoint` does."""
    return Checkpoint(path)


class Cancel(threading.Event):
    """An event that stops loads: `set` ends those that were given it within a second."""

    def __init__(self) -> None:
        super().__init__()
        self.flag = ctypes.c_int32(0)

    def set(self) -> None:
        """Asks to stop."""
        self.flag.value = 1
        super().set()


def load_blob(
    checkpoint: Checkpoint | str | os.PathLike[str],
    tensor: str,
    device: torch.device | str,
    *,
    cancel: Cancel | None = None,
) -> torch.Tensor:
    """Reads one compressed tensor of a checkpoint to memory that torch allocates, and makes it known to the ops.

    The library reads, checks and copies the bytes. Ctrl-C ends it within about a second, and nothing is left behind.

    Parameters
    ----------
    checkpoint : Checkpoint or path
        A path is opened and closed, which takes longer for each tensor.
    tensor : str
        The source's name; an expert of a 3-D tensor is "name[3]", and of the whole of it a container is made.
    device : torch.device
        The CPU or a CUDA device.
    cancel : Cancel, optional
        Of a caller who looks after Ctrl-C: the call then runs on the thread that it comes from.

    Returns
    -------
    torch.Tensor, uint8, [blob_bytes]

    Raises
    ------
    NotFoundError
        There is no such checkpoint, tensor or expert.
    ArgumentError
        The tensor is not compressed, or one of experts without an index.
    CancelledError
        `cancel` was set.
    DeviceError, InputOutputError, DataError, UnsupportedError
    """
    if not isinstance(checkpoint, Checkpoint):
        with Checkpoint(checkpoint) as opened:
            return load_blob(opened, tensor, device, cancel=cancel)
    info = checkpoint.tensors.get(tensor)
    if info is not None and info.compressed and len(info.shape) == 3:
        return load_experts([(checkpoint, f"{tensor}[{index}]") for index in range(info.blobs)], device, cancel=cancel)
    return _load([(checkpoint, tensor)], torch.device(device), cancel, is_set=False)


def load_experts(
    tensors: Sequence[tuple[Checkpoint, str]], device: torch.device | str, *, cancel: Cancel | None = None
) -> torch.Tensor:
    """Reads compressed tensors that files have one by one into one container of experts, as `load_blob` reads one.

    Parameters
    ----------
    tensors : sequence of (Checkpoint, str)
        In the order of the experts.

    Returns
    -------
    torch.Tensor, uint8, [container_bytes]
    """
    return _load(tensors, torch.device(device), cancel, is_set=True)


def _load(
    tensors: Sequence[tuple[Checkpoint, str]], place: torch.device, cancel: Cancel | None, *, is_set: bool
) -> torch.Tensor:
    index = device_index(place)
    sources = [(checkpoint.handle, encode_text(name, "tensor")) for checkpoint, name in tensors]
    sizes = []
    for handle, name in sources:
        size = LayerSize()
        call("trf_torch_measure_tensor", index, handle, name, ctypes.byref(size))
        sizes.append(size)
    offsets, total = layout([size.blob_bytes for size in sizes]) if is_set else ([0], sizes[0].blob_bytes)
    blob = torch.empty(total, dtype=torch.uint8, device=place)
    if is_set:
        write_head(blob, offsets, [size.blob_bytes for size in sizes])
    keeping = _Keeping(blob, [size.directory_bytes for size in sizes], offsets)
    _wait_for(place)  # the memory may have been another tensor's, of work that is still under way
    asked = cancel or Cancel()

    def load() -> None:
        for source, offset, size, directory in zip(sources, offsets, sizes, keeping.directories, strict=True):
            memory = LayerMemory(blob.data_ptr() + offset, size.blob_bytes, *directory)
            call("trf_torch_load", index, *source, ctypes.byref(memory), ctypes.byref(asked.flag))

    with keeping:
        if cancel:
            load()
        else:
            call_interruptible(load, asked)
        if is_set:
            _make_experts(blob, offsets)
    return blob


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
