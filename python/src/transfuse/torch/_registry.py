# SPDX-License-Identifier: Apache-2.0
"""Layers as torch tensors: a buffer is a contiguous uint8 tensor of one dimension, and is known by where it lies.

It holds a layer in any layout (docs/torch.md), and its first bytes say in which; that of a coded layer is its blob.

The ops find a layer by the device and address of its buffer. `adopt` validates a buffer and makes it known; one that an
op meets for the first time is adopted then. What is known is forgotten when the buffer's storage goes, or by `forget`,
which whoever writes other bytes into the same memory has to call.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Callable

import torch

from transfuse import _structs as s
from transfuse._errors import Status, TransfuseError, make_error
from transfuse._library import library
from transfuse._options import LAYOUTS, layout_name
from transfuse._results import LayerInfo, make_layer_info
from transfuse.torch._containers import is_container, read_head
from transfuse.torch._ops_library import CPU, call, ops_library

_DIRECTORY_ALIGNMENT = 256

# Of a key (python/torch_ops/trf_torch_product.h); every buffer has more.
KEY_BYTES = 256

# How a buffer of another layout than the coded one begins (format/trf_layout_head.h): "TRFL", and which it is.
_LAYOUT_HEAD = struct.Struct("<4sH")
_LAYOUT_MAGIC = b"TRFL"

_container_lock = threading.Lock()

# Those of the storages of buffers that are known, by device and address; each holds the directories.
_finalizers: dict[tuple[int, int], weakref.finalize[..., torch.UntypedStorage]] = {}

# What stands for the weights that `repack` put into a known buffer last, by the same.
_repacked: dict[tuple[int, int], object] = {}


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
    raise ValueError(f"a buffer is on the CPU or on a CUDA device, not on {device}")


def _place_of(buffer: torch.Tensor) -> tuple[int, int]:
    if not isinstance(buffer, torch.Tensor):
        raise TypeError(f"buffer must be a torch.Tensor, not {type(buffer).__name__}")
    if buffer.dtype != torch.uint8 or buffer.dim() != 1 or not buffer.is_contiguous():
        raise ValueError(
            f"buffer must be a contiguous uint8 tensor of one dimension; this is {buffer.dtype} of shape "
            f"{tuple(buffer.shape)}"
        )
    return device_index(buffer.device), buffer.data_ptr()


def _check_alignment(buffer: torch.Tensor) -> None:
    wanted = 16 if buffer.device.type == "cpu" else 256
    if buffer.data_ptr() % wanted:
        raise ValueError(
            f"buffer lies at {buffer.data_ptr() % wanted} beyond a multiple of {wanted} bytes; what clone() gives does "
            "not"
        )


def adopt(buffer: torch.Tensor) -> None:
    """Validates a layer's buffer, or a container of experts, and makes it known to the ops; a known one stays as it is.

    Parameters
    ----------
    buffer : torch.Tensor, uint8, [buffer_bytes]
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
        The bytes are no valid layer; the device is not there or cannot be used.
    """
    if is_known(buffer):
        return
    _check_alignment(buffer)
    wait_for(buffer.device)  # what writes it
    first_bytes = _read_first_bytes(buffer)
    if is_container(first_bytes):
        with _container_lock:
            if not is_known(buffer):
                _adopt_container(buffer)
        return
    layout = _layout_of_bytes(first_bytes)
    what = f"buffer of {buffer.numel()} bytes on {buffer.device}: "
    _adopt_buffer(buffer, layout, get_size(buffer, layout, what).directory_bytes, what)


def _adopt_buffer(buffer: torch.Tensor, layout: int, directory_bytes: int, what: str) -> None:
    """Makes one buffer known, which is of this layout."""
    device, pointer = _place_of(buffer)
    keeping = Keeping(buffer, [directory_bytes], [0])
    with keeping:
        memory = s.LayerMemoryStruct(pointer, buffer.numel(), *keeping.directories[0])
        try:
            call("trf_torch_adopt", device, pointer, buffer.numel(), layout, ctypes.byref(memory), what=what)
        except TransfuseError as failure:
            if failure.status != Status.TRF_ERR_EXISTS:
                raise
            keeping.keep_nothing()  # another thread was faster


def _read_first_bytes(buffer: torch.Tensor) -> bytes:
    """Returns what tells a container, a blob and the buffers of other layouts apart; waits for a CUDA device."""
    return bytes(buffer[: _LAYOUT_HEAD.size].tolist())


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
    buffers = [container[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
    layouts = [_layout_of_bytes(_read_first_bytes(buffer)) for buffer in buffers]
    layer_sizes = [get_size(buffer, layout, what) for buffer, layout in zip(buffers, layouts)]
    keeping = Keeping(container, [size.directory_bytes for size in layer_sizes], offsets)
    with keeping:
        for index, (buffer, layout, directory) in enumerate(zip(buffers, layouts, keeping.directories, strict=True)):
            place = buffer.data_ptr(), buffer.numel()
            memory = s.LayerMemoryStruct(*place, *directory)
            while True:  # until no thread has adopted this one expert in between
                ops_library().trf_torch_forget(device, place[0])
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


def get_size(buffer: torch.Tensor, layout: int, what: str = "") -> s.LayerSizeStruct:
    """Returns the memory of the layer that a blob, or a buffer of this layout, is.

    Raises
    ------
    DataError
        The head is malformed.
    """
    size = s.LayerSizeStruct()
    call("trf_torch_get_size", *_place_of(buffer), buffer.numel(), layout, ctypes.byref(size), what=what)
    return size


def convert(buffer: torch.Tensor, layout: int) -> torch.Tensor:
    """Returns a layer that is known in another layout, plain or packed, in memory of its own size.

    It is made on its device, without decoding to the host. The old one, its plans included, stays as it is.

    Raises
    ------
    UnsupportedError
        The layout does not take the codec, or not these weights.
    DataError
        The layer is corrupt.
    """
    size = s.LayerSizeStruct()
    source = *_place_of(buffer), buffer.numel()
    call("trf_torch_get_converted_size", *source, layout, ctypes.byref(size))

    def fill(memory: s.LayerMemoryStruct) -> None:
        call("trf_torch_convert", *source, layout, ctypes.byref(memory))

    return _make_layer(size, buffer.device, fill)


def pack(weight: torch.Tensor, *, stored_room: int = 0) -> torch.Tensor:
    """Returns a packed layer of a matrix, losslessly, in memory of its own size; no blob is made.

    It is made on the device where the weights lie: on an H100 470 MB take 1 ms, memory of just its size included.

    Parameters
    ----------
    weight : torch.Tensor, bfloat16, [rows][cols]
        On the CPU or a CUDA device; only read, and not needed afterwards. Where a row's weights do not lie one behind
        the other a copy is packed.
    stored_room : int
        For `repack`: how many more tiles of 64x32 weights that do not fit the layer's form there may be later.

    Returns
    -------
    torch.Tensor, uint8
        The layer's buffer, on the device of `weight`, known to the ops. `convert_layer` makes a coded layer of it, with
        the encoder's default options.

    Raises
    ------
    TypeError, ValueError
        It is no such matrix.
    UnsupportedError
        These weights cannot be packed.
    RuntimeError
        A CUDA graph is being captured.
    TransfuseError
        The device is not there, or out of memory.
    """
    return _pack(weight, stored_room, None)


def repack(buffer: torch.Tensor, weight: torch.Tensor) -> None:
    """Puts other weights of the same shape in the place of those of a packed layer.

    The layer stays where it is, with its keys and plans, and CUDA graphs that have captured its products multiply by
    the new weights from then on. A second layer is there while the call lasts. The copy is work of the current stream:
    let work of other streams that uses the layer end before.

    Parameters
    ----------
    buffer : torch.Tensor, uint8, [buffer_bytes]
        Of a packed layer without row offsets, as `pack` makes them.
    weight : torch.Tensor, bfloat16, [rows][cols]
        On the device of `buffer`; as in `pack`.

    Raises
    ------
    ArgumentError, ValueError
        It is no such layer, or the weights are of another shape, or on another device.
    UnsupportedError
        The new weights have too many tiles that do not fit the layer's form, which was chosen for the old ones. These
        are still there.
    TransfuseError, RuntimeError, TypeError
        What `pack` raises.
    """
    adopt(buffer)
    if weight.device != buffer.device:
        raise ValueError(f"the layer is on {buffer.device}, weight is on {weight.device}")
    made = _pack(weight, 0, buffer)
    if buffer.device.type == "cpu":  # where ops know a layer by its first bytes as well
        forget(buffer)
        buffer.copy_(made)
        adopt(buffer)
    else:
        buffer.copy_(made)
    _repacked[_place_of(buffer)] = object()


def _pack(weight: torch.Tensor, stored_room: int, like: torch.Tensor | None) -> torch.Tensor:
    """Packs; `like`: a layer whose form the new one takes."""
    if not isinstance(weight, torch.Tensor):
        raise TypeError(f"weight must be a torch.Tensor, not {type(weight).__name__}")
    if weight.layout is not torch.strided or weight.is_nested:
        found = "nested" if weight.is_nested else weight.layout
        raise ValueError(f"weight must be a bfloat16 matrix that is dense; this is {found}")
    if weight.dtype != torch.bfloat16 or weight.dim() != 2 or weight.numel() == 0:
        raise ValueError(
            f"weight must be a bfloat16 matrix that has weights; this is {weight.dtype} of shape {tuple(weight.shape)}"
        )
    device = device_index(weight.device)
    dense = weight.detach()
    if (dense.stride(1) != 1 and dense.shape[1] > 1) or (dense.stride(0) < dense.shape[1] and dense.shape[0] > 1):
        dense = dense.contiguous()
    rows, cols = dense.shape
    matrix = s.DeviceMatrixStruct()
    library().trf_device_matrix_init(ctypes.byref(matrix))
    matrix.weights, matrix.rows, matrix.cols, matrix.ld = dense.data_ptr(), rows, cols, max(dense.stride(0), cols)
    size = s.LayerSizeStruct()
    call("trf_torch_get_packed_size", device, ctypes.byref(matrix), ctypes.byref(size))

    def fill(memory: s.LayerMemoryStruct) -> None:
        stream = torch.cuda.current_stream(dense.device).cuda_stream if dense.device.type == "cuda" else None
        form = (None, 0) if like is None else (like.data_ptr(), like.numel())
        call("trf_torch_pack", device, ctypes.byref(matrix), ctypes.byref(memory), stream, stored_room, *form)

    return _make_layer(size, dense.device, fill)


def _make_layer(
    size: s.LayerSizeStruct, device: torch.device, fill: Callable[[s.LayerMemoryStruct], None]
) -> torch.Tensor:
    """Returns the layer that `fill` makes in memory which it is given, in memory of its own size."""
    made = torch.empty(size.buffer_bytes, dtype=torch.uint8, device=device)
    keeping = Keeping(made, [size.directory_bytes], [0])
    wait_for(device)
    with keeping:
        fill(s.LayerMemoryStruct(made.data_ptr(), made.numel(), *keeping.directories[0]))
    return fit_memory(made)


def make_experts(container: torch.Tensor, offsets: list[int], what: str = "") -> None:
    """Makes experts of the layers of a container, which are known."""
    _combine("trf_torch_make_experts", container, offsets, what)


def assemble_rows(container: torch.Tensor, offsets: list[int]) -> None:
    """Makes one matrix of the layers of a container, which are known; their rows follow each other."""
    _combine("trf_torch_assemble_rows", container, offsets)


def _combine(function: str, container: torch.Tensor, offsets: list[int], what: str = "") -> None:
    array = (ctypes.c_uint64 * len(offsets))(*offsets)
    device, pointer = _place_of(container)
    call(function, device, pointer, container.numel(), array, len(offsets), what=what)


def check_decoded(buffer: torch.Tensor) -> None:
    """Waits for the device, and raises DataError if what it decoded of a known coded layer was corrupt.

    On the CPU decoding itself fails.
    """
    call("trf_torch_check", *_place_of(buffer), buffer.numel())


class Keeping:
    """Keeps what layers need beside their buffers for as long as the storage of these, which has them forgotten.

    It is there before the layers are, so that no exception can come in between; one that leaves the block undoes it.
    """

    def __init__(self, buffer: torch.Tensor, directory_bytes: list[int], offsets: list[int]) -> None:
        starts = [0]
        for size in directory_bytes:
            starts.append(-(-(starts[-1] + size) // _DIRECTORY_ALIGNMENT) * _DIRECTORY_ALIGNMENT)
        memory = torch.empty(starts[-1], dtype=torch.uint8, device=buffer.device)
        # Address and bytes of each.
        self.directories = [
            (memory.data_ptr() + start, size) for start, size in zip(starts, directory_bytes, strict=False)
        ]
        self._place = _place_of(buffer)
        self._finalizer = weakref.finalize(buffer.untyped_storage(), _forget, *self._place, offsets, memory)
        self._finalizer.atexit = False

    def __enter__(self) -> Keeping:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._finalizer.alive:
            _call_now(self._finalizer)
        elif self._finalizer.alive:
            _finalizers[self._place] = self._finalizer

    def keep_nothing(self) -> None:
        """Undoes what the constructor did: the storage has nothing forgotten, and the directories are released."""
        self._finalizer.detach()


def is_known(buffer: torch.Tensor) -> bool:
    """Returns whether the ops know a buffer or container."""
    device, pointer = _place_of(buffer)
    return bool(ops_library().trf_torch_is_known(device, pointer, buffer.numel()))


def layer_key(buffer: torch.Tensor) -> torch.Tensor:
    """Returns the key of a layer: a tensor of one size for all layers, by which the ops that end in `_by_key` find it.

    Graphs in which keys stand for layers depend neither on the sizes of buffers nor on how the layers lie.

    Parameters
    ----------
    buffer : torch.Tensor, uint8, [buffer_bytes]
        Of a layer in any layout, which is adopted if it is not known; or what `load_assembled` gives.

    Returns
    -------
    torch.Tensor, uint8, [256]
        A view of the buffer's first bytes, which keeps it in memory; it may be made a parameter. It is found by its
        address: a copy, on this device or another, is a key of nothing.

    Raises
    ------
    ValueError
        It is a container of experts.
    TransfuseError
        What `adopt` raises.
    """
    adopt(buffer)
    if not ops_library().trf_torch_has_key(*_place_of(buffer), buffer.numel()):
        raise ValueError("this is a container of experts, which has no key")
    return buffer[:KEY_BYTES]


def adoption_token(buffer: torch.Tensor) -> object:
    """Returns what stands for the content of a known buffer, to be compared by `is` alone; None for any other.

    It is another one when the buffer has been forgotten and adopted, or packed again.
    """
    place = _place_of(buffer)
    return _repacked.get(place, _finalizers.get(place))


def is_repacked(buffer: torch.Tensor) -> bool:
    """Returns whether a known buffer has other weights than those that it was made of."""
    return _place_of(buffer) in _repacked


def forget(buffer: torch.Tensor) -> None:
    """Makes a buffer or container unknown, as to be done before its bytes change; an unknown one is left as it is."""
    finalizer = _finalizers.get(_place_of(buffer))
    if finalizer:
        _call_now(finalizer)


def _call_now(finalizer: weakref.finalize[..., torch.UntypedStorage]) -> None:
    found = finalizer.detach()
    if found:
        _, function, arguments, _ = found
        function(*arguments)


def _forget(device: int, pointer: int, offsets: list[int], _directories: torch.Tensor) -> None:
    ops_library().trf_torch_forget_experts(device, pointer)
    for offset in offsets:
        ops_library().trf_torch_forget(device, pointer + offset)
    _finalizers.pop((device, pointer), None)
    _repacked.pop((device, pointer), None)


def layer_info(buffer: torch.Tensor) -> LayerInfo:
    """Returns what a layer says of itself; one that is not known is adopted. Raises what `adopt` does.

    In another layout than the coded one that is what the blob said that it was made of, whose size `blob_bytes` is.
    """
    return make_layer_info(_find(buffer).layer)


def layer_layout(buffer: torch.Tensor) -> str:
    """Returns how a layer lies in memory, "coded", "packed" or "plain"; one that is not known is adopted.

    Raises
    ------
    ValueError
        It is a container of experts.
    TransfuseError
        What `adopt` raises.
    """
    return layout_name(_find(buffer).layout)


def fit_memory(buffer: torch.Tensor) -> torch.Tensor:
    """Returns a layer in memory of its own size: itself, or a copy of one that was made in memory with room for more.

    How large a packed layer is shows when it is there. While the copy is made the memory is there twice, of this layer
    alone; the larger one goes with the last reference to it.
    """
    info = _find(buffer)
    size = int(info.memory_bytes)
    if size >= buffer.numel():
        return buffer
    fitted = buffer[:size].clone()
    wait_for(fitted.device)
    # What it is need not be read from its bytes, which would wait for all that the device does, other loads included.
    _adopt_buffer(fitted, info.layout, 0, f"copy of {size} bytes on {fitted.device}: ")
    return fitted


def _find(buffer: torch.Tensor) -> s.DeviceLayerInfoStruct:
    adopt(buffer)
    device, pointer = _place_of(buffer)
    info = s.DeviceLayerInfoStruct()
    if not ops_library().trf_torch_find(device, pointer, buffer.numel(), ctypes.byref(info)):
        raise ValueError("this is a container of experts; expert_infos tells of them")
    return info


def expert_infos(container: torch.Tensor) -> list[LayerInfo]:
    """Returns what the layers of a container say of themselves; one that is not known is adopted.

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
    return int(ops_library().trf_torch_count_layers())


def adopt_kernel(buffer: torch.Tensor) -> None:
    """The kernel of `transfuse::adopt`, by which an op that misses a buffer has it adopted.

    An exception would not reach the op's caller with its text, so that the text goes by another way.
    """
    try:
        with torch.utils._python_dispatch._disable_current_modes():
            adopt(buffer)
    except Exception as failure:
        ops_library().trf_torch_set_adoption_error(str(failure).encode())
