# SPDX-License-Identifier: Apache-2.0
"""Layers as torch tensors: a blob is a contiguous uint8 tensor of one dimension, and is known by where it lies.

The ops find a layer by the device and address of its blob. `adopt` validates a blob and makes it known; a blob that an
op meets for the first time is adopted then. What is known is forgotten when the blob's storage goes, or by `forget`,
which whoever writes other bytes into the same memory has to call.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any

import torch

from transfuse import _structs as s
from transfuse._errors import Status, TransfuseError
from transfuse._layer import Layer
from transfuse._library import call as library_call
from transfuse._library import call_interruptible, library
from transfuse._options import encode_path, encode_text
from transfuse._results import LayerInfo, make_layer_info
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

# Those of the storages of blobs that are known, by device and address; each holds its layer's directory.
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
        return torch.cuda.current_device() if device.index is None else device.index
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


def adopt(blob: torch.Tensor) -> None:
    """Validates a blob and makes it known to the ops; of one that is known nothing is done.

    Parameters
    ----------
    blob : torch.Tensor, uint8, [blob_bytes]
        On the CPU or a CUDA device, where it is used as it lies: its bytes must not change. On a CUDA device it is
        read back to be checked, which waits for the device, and a directory of about 1 % of its size is allocated.

    Raises
    ------
    ValueError, TypeError
        It is no such tensor.
    TransfuseError
        The bytes are no valid blob; the device is not there or cannot be used.
    """
    device, pointer = _place_of(blob)
    if shim().trf_torch_find(device, pointer, ctypes.byref(s.LayerInfoStruct())):
        return
    what = f"blob of {blob.numel()} bytes on {blob.device}: "
    if blob.device.type == "cuda":
        torch.cuda.current_stream(blob.device).synchronize()  # what writes it
    size = ctypes.c_uint64()
    call("trf_torch_measure", device, pointer, blob.numel(), ctypes.byref(size), what=what)
    directory = torch.empty(size.value, dtype=torch.uint8, device=blob.device)
    with _Keeping(blob, directory) as keeping:
        try:
            call("trf_torch_adopt", device, pointer, blob.numel(), directory.data_ptr(), size.value, what=what)
        except TransfuseError as failure:
            if failure.status != Status.TRF_ERR_EXISTS:
                raise
            keeping.drop()  # another thread was faster


class _Keeping:
    """Keeps what a layer needs beside its blob for as long as the blob's storage, which has it forgotten.

    It is there before the layer is, so that no exception can come in between; one that leaves the block undoes it.
    """

    def __init__(self, blob: torch.Tensor, directory: torch.Tensor) -> None:
        self._place = device_index(blob.device), blob.data_ptr()
        self._finalizer = weakref.finalize(blob.untyped_storage(), _forget, *self._place, directory)
        self._finalizer.atexit = False

    def __enter__(self) -> _Keeping:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.drop()
            if not issubclass(kind, TransfuseError):  # those come from the call, which has made nothing then
                shim().trf_torch_forget(*self._place)
        elif self._finalizer.alive:
            _finalizers[self._place] = self._finalizer

    def drop(self) -> None:
        """Leaves the storage alone."""
        self._finalizer.detach()


def forget(blob: torch.Tensor) -> None:
    """Makes a blob unknown, as to be done before its bytes change; of one that is not known nothing is done."""
    device, pointer = _place_of(blob)
    finalizer = _finalizers.get((device, pointer))
    if finalizer:
        finalizer.detach()
    _forget(device, pointer)


def _forget(device: int, pointer: int, _directory: torch.Tensor | None = None) -> None:
    shim().trf_torch_forget(device, pointer)
    _finalizers.pop((device, pointer), None)


def blob_info(blob: torch.Tensor) -> LayerInfo:
    """Returns what a blob says of itself; one that is not known is adopted. Raises what `adopt` does."""
    device, pointer = _place_of(blob)
    info = s.LayerInfoStruct()
    if not shim().trf_torch_find(device, pointer, ctypes.byref(info)):
        adopt(blob)
        shim().trf_torch_find(device, pointer, ctypes.byref(info))
    return make_layer_info(info)


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
        The source's name; an expert of a 3-D tensor is "name[3]".
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
    place = torch.device(device)
    index = device_index(place)
    name = encode_text(tensor, "tensor")
    size = LayerSize()
    call("trf_torch_measure_tensor", index, checkpoint.handle, name, ctypes.byref(size))
    blob = torch.empty(size.blob_bytes, dtype=torch.uint8, device=place)
    directory = torch.empty(size.directory_bytes, dtype=torch.uint8, device=place)
    if place.type == "cuda":
        # The memory may have been another tensor's, of work that is still under way.
        torch.cuda.current_stream(place).synchronize()
    memory = LayerMemory(blob.data_ptr(), blob.numel(), directory.data_ptr(), directory.numel())
    asked = cancel or Cancel()
    arguments = (index, checkpoint.handle, name, ctypes.byref(memory), ctypes.byref(asked.flag))
    with _Keeping(blob, directory):
        if cancel:
            call("trf_torch_load", *arguments)
        else:
            call_interruptible(lambda: call("trf_torch_load", *arguments), asked)
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
