# SPDX-License-Identifier: Apache-2.0
"""Layers as torch tensors: a buffer is a contiguous uint8 tensor of one dimension, and is known by where it lies.

A buffer holds a layer in any layout (docs/torch.md), and its first bytes say in which. The buffer of a coded layer is
its blob.

The ops find a layer by the device and address of its buffer. `adopt` validates a buffer and makes it known; an op
adopts a buffer that it meets for the first time. A buffer is forgotten when its storage is freed, or by `forget`. Call
`forget` before you write other bytes into the same memory.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Callable, Sequence

import torch

from transfuse import _structs as s
from transfuse._errors import Status, TransfuseError, make_error
from transfuse._library import library
from transfuse._options import LAYOUTS, layout_name
from transfuse._results import LayerInfo, make_layer_info
from transfuse.torch._containers import ROWS_AS_GIVEN, is_container, read_head, read_order
from transfuse.torch._ops_library import CPU, ExpertsStruct, call, ops_library

_DIRECTORY_ALIGNMENT = 256

# A layer's reason for its layout is a line of fewer bytes (trf_device_layer_get_layout_reason).
_REASON_BYTES = 512

# A key has this many bytes (python/torch_ops/trf_torch_product.h); every buffer has more.
KEY_BYTES = 256

# A plain or packed buffer begins with this (format/trf_layout_head.h): "TRFL", and the number of its layout.
_LAYOUT_HEAD = struct.Struct("<4sH")
_LAYOUT_MAGIC = b"TRFL"

_container_lock = threading.Lock()

# The finalizers of the storages of known buffers, by device and address. Each finalizer holds the directories.
_finalizers: dict[tuple[int, int], weakref.finalize[..., torch.UntypedStorage]] = {}

# An object that stands for the weights that `repack` last put into a known buffer, by device and address.
_repacked: dict[tuple[int, int], object] = {}

# What `layout_reason` says of known buffers that are copies of layers which the library made, and of containers.
_layout_reasons: dict[tuple[int, int], str] = {}


def device_index(device: torch.device) -> int:
    """Returns the CUDA ordinal of a device, or -1 for the CPU.

    Raises
    ------
    ValueError
        The device is neither.
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
    """Validates a layer's buffer, or a container of experts, and makes it known to the ops, unless it is known already.

    Parameters
    ----------
    buffer : torch.Tensor, uint8, [buffer_bytes]
        On the CPU or a CUDA device. The buffer is used where it lies, and its bytes must not change. A coded layer on
        a CUDA device is read back to be checked, which waits for the device, and a directory of about 1 % of its size
        is allocated. A plain or packed layer has no directory, and only its head is checked, but all of a packed layer
        on the CPU.

    Raises
    ------
    ValueError, TypeError
        It is no such tensor.
    RuntimeError
        A CUDA graph is being captured.
    TransfuseError
        The bytes are no valid layer; the device does not exist or cannot be used.
    """
    if is_known(buffer):
        return
    _check_alignment(buffer)
    wait_for(buffer.device)  # work of the stream may still write the buffer
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
    """Makes one buffer of this layout known."""
    device, pointer = _place_of(buffer)
    keeping = Keeping(buffer, [directory_bytes], [0])
    with keeping:
        memory = s.LayerMemoryStruct(pointer, buffer.numel(), *keeping.directories[0])
        try:
            call("trf_torch_adopt", device, pointer, buffer.numel(), layout, ctypes.byref(memory), what=what)
        except TransfuseError as failure:
            if failure.status != Status.TRF_ERR_EXISTS:
                raise
            keeping.keep_nothing()  # another thread adopted it first


def _read_first_bytes(buffer: torch.Tensor) -> bytes:
    """Returns the bytes that tell a container, a blob and the buffers of other layouts apart; waits for the device."""
    return bytes(buffer[: _LAYOUT_HEAD.size].tolist())


def _layout_of_bytes(first_bytes: bytes) -> int:
    """Returns the layout that the first bytes of a tensor claim, which is coded if they are no layout head.

    Whether they begin a blob is for the library to say.

    Raises
    ------
    UnsupportedError
        This version does not know the layout.
    """
    if len(first_bytes) < _LAYOUT_HEAD.size or not first_bytes.startswith(_LAYOUT_MAGIC):
        return s.Layout.CODED
    layout: int = _LAYOUT_HEAD.unpack(first_bytes)[1]
    if layout not in LAYOUTS.values():
        raise make_error(Status.TRF_ERR_UNSUPPORTED, f"a layer of a layout that is not known, {layout}", 4)
    return layout


def wait_for(device: torch.device) -> None:
    """Waits for the current stream, so that memory that its work uses may be read or written."""
    if device.type != "cuda":
        return
    stream = torch.cuda.current_stream(device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("layers cannot be adopted or loaded while a CUDA graph is captured; do so before")
    stream.synchronize()


def _adopt_container(container: torch.Tensor) -> None:
    """Makes a container known. Experts that are already known as single layers become its own."""
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
            while True:  # another thread may adopt this expert alone in between
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
        make_experts(container, offsets, read_order(container), what)


def get_size(buffer: torch.Tensor, layout: int, what: str = "") -> s.LayerSizeStruct:
    """Returns how much memory the layer in a buffer of this layout takes; the buffer of a coded layer is its blob.

    Raises
    ------
    DataError
        The head is malformed.
    """
    size = s.LayerSizeStruct()
    call("trf_torch_get_size", *_place_of(buffer), buffer.numel(), layout, ctypes.byref(size), what=what)
    return size


def convert(buffer: torch.Tensor, layout: int) -> torch.Tensor:
    """Converts a known layer to another layout, plain or packed, and returns it in memory of its own size.

    It is made on the device, without decoding to the host. The old layer stays as it is, and so do its plans.

    Raises
    ------
    UnsupportedError
        The layout does not take the codec, or does not take these weights.
    DataError
        A tile of a coded layer does not decode. Other layers are not compared with their checksums (`verify`).
    """
    size = s.LayerSizeStruct()
    source = *_place_of(buffer), buffer.numel()
    call("trf_torch_get_converted_size", *source, layout, ctypes.byref(size))

    def fill(memory: s.LayerMemoryStruct) -> None:
        call("trf_torch_convert", *source, layout, ctypes.byref(memory))

    return _make_layer(size, buffer.device, fill)


def convert_gate_up(gate: torch.Tensor, up: torch.Tensor | None) -> torch.Tensor:
    """Makes one packed FP8 layer of known coded FP8 layers, with rows of gate and up in turns.

    Both keep their own scales. `up` is None where `gate` has both, one half each. The old layers stay as they are.

    Raises
    ------
    UnsupportedError
        They are no FP8 with scales, or do not fit that layout; the message has the reason.
    ArgumentError
        They do not fit each other.
    DataError
        A layer is corrupt.
    """
    size = s.LayerSizeStruct()
    device, pointer = _place_of(gate)
    source = device, pointer, gate.numel(), *((None, 0) if up is None else (_place_of(up)[1], up.numel()))
    call("trf_torch_get_gate_up_size", *source, ctypes.byref(size))

    def fill(memory: s.LayerMemoryStruct) -> None:
        call("trf_torch_convert_gate_up", *source, ctypes.byref(memory))

    return _make_layer(size, gate.device, fill)


def join_rows(buffers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Makes one layer of several that lie "packed8", whose rows follow each other, and returns it.

    Bytes are copied on the device, and no weight is formed. The old layers stay as they are.

    Parameters
    ----------
    buffers : sequence of torch.Tensor, uint8, [buffer_bytes]
        Known layers on one device, of the same number of columns and the same source dtype. All but the last have a
        multiple of 64 rows.

    Returns
    -------
    torch.Tensor, uint8

    Raises
    ------
    ArgumentError
        There are none, or they do not fit together.
    UnsupportedError
        One lies otherwise, or has another number of rows.
    NotFoundError
        One is not known.
    """
    if not buffers:
        raise make_error(Status.TRF_ERR_ARGUMENT, "there are no layers to join")
    count = len(buffers)
    pointers = (ctypes.c_void_p * count)(*(buffer.data_ptr() for buffer in buffers))
    sizes = (ctypes.c_uint64 * count)(*(buffer.numel() for buffer in buffers))
    device, _ = _place_of(buffers[0])
    size = s.LayerSizeStruct()
    call("trf_torch_get_joined_size", device, pointers, sizes, count, ctypes.byref(size))

    def fill(memory: s.LayerMemoryStruct) -> None:
        call("trf_torch_join", device, pointers, sizes, count, ctypes.byref(memory))

    return _make_layer(size, buffers[0].device, fill)


def pack(weight: torch.Tensor, *, stored_room: int = 0, packed_bf16: bool = False) -> torch.Tensor:
    """Packs a matrix losslessly and returns the layer, in memory of its own size; no blob is made.

    It is packed on the device where the weights lie. On an H100, 470 MB take 1 ms, which includes memory of its size.
    Weights that were FP8, E4M3 codes times a scale for each 128x128 of them, are found, and lie "packed8".

    Parameters
    ----------
    weight : torch.Tensor, bfloat16, [rows][cols]
        On the CPU or a CUDA device. It is only read, and not needed afterwards. If the weights of a row are not
        contiguous, a copy is packed.
    stored_room : int
        Room for `repack`: later weights may have this many more tiles of 64x32 that do not fit the layer's form. A
        "packed8" layer has none of these.
    packed_bf16 : bool
        Whether the layer lies "packed", also where the weights were FP8.

    Returns
    -------
    torch.Tensor, uint8
        The layer's buffer, on the device of `weight`; the ops know it. `convert_layer` makes a coded layer of it, with
        the encoder's default options.

    Raises
    ------
    TypeError, ValueError
        `weight` is no such matrix.
    UnsupportedError
        These weights cannot be packed.
    RuntimeError
        A CUDA graph is being captured.
    TransfuseError
        The device does not exist, or is out of memory.
    """
    return _pack(weight, stored_room, None, packed_bf16=packed_bf16)


def pack_gate_up(weight: torch.Tensor) -> torch.Tensor:
    """Makes one packed FP8 layer of gate and up that were FP8, one half of the rows each, with their rows in turns.

    In each half a scale for each 128x128 of the weights is looked for. The rest is as in `pack`.

    Raises
    ------
    MismatchError
        One half is no FP8, or the GPU has no products of FP8.
    UnsupportedError
        They are FP8, and do not fit that layout; or their rows do not interleave.
    TypeError, ValueError, RuntimeError, TransfuseError
        What `pack` raises.
    """
    device, dense, matrix, size = _describe(weight)

    def fill(memory: s.LayerMemoryStruct) -> None:
        call("trf_torch_pack_gate_up", device, ctypes.byref(matrix), ctypes.byref(memory), _stream_of(dense))

    return _make_layer(size, dense.device, fill)


def repack(buffer: torch.Tensor, weight: torch.Tensor) -> None:
    """Replaces the weights of a packed layer by others of the same shape.

    The layer stays where it is, with its keys and plans, and CUDA graphs that have captured its products multiply by
    the new weights from then on. While the call lasts, a second layer is in memory. The copy is work of the current
    stream: work of other streams that uses the layer has to end before.

    Parameters
    ----------
    buffer : torch.Tensor, uint8, [buffer_bytes]
        The buffer of a layer of BF16 that lies "packed", without row offsets, or "packed8", as `pack` makes it.
    weight : torch.Tensor, bfloat16, [rows][cols]
        On the device of `buffer`; as in `pack`.

    Raises
    ------
    ArgumentError, ValueError
        `buffer` is no such layer, or the weights have another shape or are on another device.
    UnsupportedError
        The new weights do not fit the layer's form, which was chosen for the old weights: too many of their tiles; or,
        if it lies "packed8", they are no FP8, or have constants or exceptions of which it has none. The layer still
        has the old weights.
    TransfuseError, RuntimeError, TypeError
        What `pack` raises.
    """
    adopt(buffer)
    if weight.device != buffer.device:
        raise ValueError(f"the layer is on {buffer.device}, weight is on {weight.device}")
    overwrite(buffer, _pack(weight, 0, buffer))


def overwrite(buffer: torch.Tensor, made: torch.Tensor) -> None:
    """Copies a layer over a known one that differs by its weights alone, which keeps its keys, plans and graphs.

    Parameters
    ----------
    buffer, made : torch.Tensor, uint8, [buffer_bytes]
        Two layers of one device, layout, shape and form, plain ones or packed ones.
    """
    if buffer.device.type == "cpu":  # where ops recognize a layer by its first bytes, too
        forget(buffer)
        buffer.copy_(made)
        adopt(buffer)
    else:
        buffer.copy_(made)
    _repacked[_place_of(buffer)] = object()


def _pack(weight: torch.Tensor, stored_room: int, like: torch.Tensor | None, packed_bf16: bool = False) -> torch.Tensor:
    """Packs a matrix; the layer takes the form of the layer `like`, if there is one."""
    device, dense, matrix, size = _describe(weight)

    def fill(memory: s.LayerMemoryStruct) -> None:
        form = (None, 0) if like is None else (like.data_ptr(), like.numel())
        options = (_stream_of(dense), stored_room, int(packed_bf16), *form)
        call("trf_torch_pack", device, ctypes.byref(matrix), ctypes.byref(memory), *options)

    return _make_layer(size, dense.device, fill)


def _stream_of(dense: torch.Tensor) -> int | None:
    return torch.cuda.current_stream(dense.device).cuda_stream if dense.device.type == "cuda" else None


def _describe(weight: torch.Tensor) -> tuple[int, torch.Tensor, s.DeviceMatrixStruct, s.LayerSizeStruct]:
    """Checks a matrix that is to be packed.

    Returns its device, the tensor that has to live until it is packed, what describes that, and the size of the layer
    as packed BF16.
    """
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
    dense = weight.detach().resolve_neg()  # a view may have signs that are not those in memory
    if (dense.stride(1) != 1 and dense.shape[1] > 1) or (dense.stride(0) < dense.shape[1] and dense.shape[0] > 1):
        dense = dense.contiguous()
    rows, cols = dense.shape
    matrix = s.DeviceMatrixStruct()
    library().trf_device_matrix_init(ctypes.byref(matrix))
    matrix.weights, matrix.rows, matrix.cols, matrix.ld = dense.data_ptr(), rows, cols, max(dense.stride(0), cols)
    size = s.LayerSizeStruct()
    call("trf_torch_get_packed_size", device, ctypes.byref(matrix), ctypes.byref(size))
    return device, dense, matrix, size


def _make_layer(
    size: s.LayerSizeStruct, device: torch.device, fill: Callable[[s.LayerMemoryStruct], None]
) -> torch.Tensor:
    """Has `fill` make a layer in the memory that it is given, and returns the layer in memory of its own size."""
    made = torch.empty(size.buffer_bytes, dtype=torch.uint8, device=device)
    keeping = Keeping(made, [size.directory_bytes], [0])
    wait_for(device)
    with keeping:
        fill(s.LayerMemoryStruct(made.data_ptr(), made.numel(), *keeping.directories[0]))
    return fit_memory(made)


def make_experts(container: torch.Tensor, offsets: list[int], order: int = ROWS_AS_GIVEN, what: str = "") -> None:
    """Makes experts of the known layers of a container, whose rows lie in this order."""
    _combine("trf_torch_make_experts", container, offsets, order, what=what)


def assemble_rows(container: torch.Tensor, offsets: list[int]) -> None:
    """Makes one matrix of the known layers of a container; their rows follow each other."""
    _combine("trf_torch_assemble_rows", container, offsets)


def _combine(function: str, container: torch.Tensor, offsets: list[int], *arguments: int, what: str = "") -> None:
    array = (ctypes.c_uint64 * len(offsets))(*offsets)
    device, pointer = _place_of(container)
    call(function, device, pointer, container.numel(), array, len(offsets), *arguments, what=what)


def check_decoded(buffer: torch.Tensor) -> None:
    """Waits for the device, and raises DataError if it met corrupt data while it decoded a known coded layer.

    On the CPU the decoding itself raises.
    """
    call("trf_torch_check", *_place_of(buffer), buffer.numel())


def is_layer(buffer: torch.Tensor) -> bool:
    """Returns whether a buffer is a known layer, and no container."""
    info = s.DeviceLayerInfoStruct()
    return bool(ops_library().trf_torch_find(*_place_of(buffer), buffer.numel(), ctypes.byref(info)))


def verify(buffer: torch.Tensor, what: str = "") -> None:
    """Compares a known layer with its checksums; `what` begins the message of an error."""
    wait_for(buffer.device)
    call("trf_torch_verify", *_place_of(buffer), buffer.numel(), what=what)


class Keeping:
    """Keeps the directories of layers as long as the storage of their buffers, with which the layers are forgotten.

    It exists before the layers do, so that no exception can come in between; an exception that leaves the block undoes
    it.
    """

    def __init__(self, buffer: torch.Tensor, directory_bytes: list[int], offsets: list[int]) -> None:
        starts = [0]
        for size in directory_bytes:
            starts.append(-(-(starts[-1] + size) // _DIRECTORY_ALIGNMENT) * _DIRECTORY_ALIGNMENT)
        memory = torch.empty(starts[-1], dtype=torch.uint8, device=buffer.device)
        # Each directory is an address and a number of bytes.
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
        """Undoes what the constructor did: no layer is forgotten with the storage, and the directories are released."""
        self._finalizer.detach()


def is_known(buffer: torch.Tensor) -> bool:
    """Returns whether the ops know a buffer or container."""
    device, pointer = _place_of(buffer)
    return bool(ops_library().trf_torch_is_known(device, pointer, buffer.numel()))


def find_adopted(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the buffer or container that a uint8 tensor is, or whose key it is, if one was adopted there, else None.

    It is found even if the ops know it no longer, because its first bytes have changed on the CPU.
    """
    size = int(ops_library().trf_torch_get_bytes(*_place_of(tensor)))
    if size and tensor.numel() == size:
        return tensor
    room = tensor.untyped_storage().nbytes() - tensor.storage_offset()
    if not size or tensor.numel() != KEY_BYTES or room < size:
        return None
    return tensor.detach().as_strided((size,), (1,))  # a key is a view of its buffer


def places_in(container: torch.Tensor) -> tuple[list[int], list[int], int]:
    """Returns where the layers of a known container lay in it when it was adopted, and the order of their rows."""
    place, order = (*_place_of(container), container.numel()), ctypes.c_int()
    offsets = sizes = (ctypes.c_uint64 * 0)()
    count = int(ops_library().trf_torch_get_places(*place, 0, offsets, sizes, ctypes.byref(order)))
    offsets, sizes = (ctypes.c_uint64 * count)(), (ctypes.c_uint64 * count)()
    if ops_library().trf_torch_get_places(*place, count, offsets, sizes, ctypes.byref(order)) != count:
        raise RuntimeError("the container was forgotten meanwhile")
    return list(offsets), list(sizes), order.value


def layer_key(buffer: torch.Tensor) -> torch.Tensor:
    """Returns the key of a layer, by which the ops that end in `_by_key` find it; all keys have the same size.

    Graphs in which keys stand for layers depend neither on the sizes of buffers nor on how the layers lie.

    Parameters
    ----------
    buffer : torch.Tensor, uint8, [buffer_bytes]
        The buffer of a layer in any layout, what `load_assembled` returns, or a container of experts. An unknown one is
        adopted.

    Returns
    -------
    torch.Tensor, uint8, [256]
        A view of the buffer's first bytes, which keeps the buffer in memory; it may be made a parameter. The ops find
        it by its address: a copy, on this device or another, is no key.

    Raises
    ------
    TransfuseError
        What `adopt` raises.
    """
    adopt(buffer)
    return buffer[:KEY_BYTES]


def adoption_token(buffer: torch.Tensor) -> object:
    """Returns an object that stands for the content of a known buffer, or None for any other; compare it with `is`.

    It is another object once the buffer has been forgotten and adopted again, or repacked.
    """
    place = _place_of(buffer)
    return _repacked.get(place, _finalizers.get(place))


def forget(buffer: torch.Tensor) -> None:
    """Makes a buffer or container unknown; call it before the bytes change. An unknown one is left as it is."""
    finalizer = _finalizers.get(_place_of(buffer))
    if finalizer:
        _call_now(finalizer)


def _call_now(finalizer: weakref.finalize[..., torch.UntypedStorage]) -> None:
    found = finalizer.detach()
    if found:
        _, function, arguments, _ = found
        function(*arguments)


def _forget(device: int, pointer: int, offsets: list[int], directories: torch.Tensor) -> None:
    ops_library().trf_torch_forget_experts(device, pointer)
    for offset in offsets:
        ops_library().trf_torch_forget(device, pointer + offset)
    _finalizers.pop((device, pointer), None)
    _repacked.pop((device, pointer), None)
    _layout_reasons.pop((device, pointer), None)
    # Products of the stream on which the buffer is dropped may still be read from the directories, which torch may have
    # allocated for another stream: that on which the layer was adopted. A forked process has no streams.
    if directories.is_cuda and torch.cuda.is_initialized():
        directories.record_stream(torch.cuda.current_stream(directories.device))


def layer_info(buffer: torch.Tensor) -> LayerInfo:
    """Returns what a layer says of itself; an unknown one is adopted. It raises what `adopt` raises.

    A plain or packed layer says what its blob said, and `blob_bytes` is the size of that blob.
    """
    return make_layer_info(_find(buffer).layer)


def layer_layout(buffer: torch.Tensor) -> str:
    """Returns how a layer lies in memory, "coded", "packed", "plain" or "packed8"; an unknown one is adopted.

    Raises
    ------
    ValueError
        The buffer is a container of experts.
    TransfuseError
        What `adopt` raises.
    """
    return layout_name(_find(buffer).layout)


def layout_reason(buffer: torch.Tensor) -> str:
    """Returns why a layer of FP8 weights for which "packed" was asked lies "packed", and not "packed8".

    It is "" for every other layer, and for a copy of one. Of a container of experts the reason names the expert. An
    unknown one is adopted; it raises what `adopt` raises.
    """
    adopt(buffer)
    place = _place_of(buffer)
    kept = _layout_reasons.get(place)
    if kept is not None:
        return kept
    reason = ctypes.create_string_buffer(_REASON_BYTES)
    ops_library().trf_torch_get_layout_reason(*place, buffer.numel(), reason, len(reason))
    return reason.value.decode("utf-8", "replace")


def note_layout_reason(container: torch.Tensor, reason: str) -> None:
    """Sets what `layout_reason` says of a known container, until it is forgotten."""
    _layout_reasons[_place_of(container)] = reason


def fit_memory(buffer: torch.Tensor) -> torch.Tensor:
    """Returns a layer in memory of its own size: the same buffer, or a copy if the buffer has room for more.

    The size of a packed layer is only known once it is made. While it is copied, this one layer is in memory twice; the
    larger buffer is freed with the last reference to it.
    """
    info = _find(buffer)
    size = int(info.memory_bytes)
    if size >= buffer.numel():
        return buffer
    fitted, reason = buffer[:size].clone(), layout_reason(buffer)
    wait_for(fitted.device)
    # The layout is known. Reading it from the bytes would wait for all that the device does, other loads included.
    _adopt_buffer(fitted, info.layout, 0, f"copy of {size} bytes on {fitted.device}: ")
    if reason:
        _layout_reasons[_place_of(fitted)] = reason
    return fitted


def _find(buffer: torch.Tensor) -> s.DeviceLayerInfoStruct:
    adopt(buffer)
    device, pointer = _place_of(buffer)
    info = s.DeviceLayerInfoStruct()
    if not ops_library().trf_torch_find(device, pointer, buffer.numel(), ctypes.byref(info)):
        raise ValueError("this is a container of experts; expert_infos tells of them")
    return info


def expert_infos(container: torch.Tensor) -> list[LayerInfo]:
    """Returns what the layers of a container say of themselves; an unknown one is adopted.

    Raises
    ------
    DataError
        The tensor is no container, or a malformed one.
    TransfuseError
        What `adopt` raises.
    """
    offsets, sizes = read_head(container)
    adopt(container)
    return [layer_info(container[offset : offset + size]) for offset, size in zip(offsets, sizes, strict=True)]


def check_experts_dtype(container: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises an error if `experts` does not take a container with an x of this dtype, which is BF16 or F16.

    Raises
    ------
    UnsupportedError, ArgumentError
        The experts have several codecs, or, on a CUDA device, cannot share launches; or the dtype is another one.
    """
    adopt(container)
    known = {torch.bfloat16: s.Dtype.BF16, torch.float16: s.Dtype.F16}
    if dtype not in known:
        raise make_error(Status.TRF_ERR_UNSUPPORTED, f"experts do not multiply x of {dtype}")
    call("trf_torch_check_experts_dtype", *_place_of(container), container.numel(), known[dtype])


def prepare_moe(
    gate_up: torch.Tensor, down: torch.Tensor, *, up: torch.Tensor | None, top_k: int, activation: str
) -> None:
    """Prepares the mixture that `moe` computes of these containers, so that its first call need not.

    With coded experts on a GPU this packs all of them once, and waits.

    Raises
    ------
    UnsupportedError
        The device has no mixtures of these experts; the message says why.
    TransfuseError
        They do not fit each other, memory is short, and so on.
    """
    containers = (gate_up, down) if up is None else (gate_up, down, up)
    for container in containers:
        adopt(container)
    device, _ = _place_of(gate_up)
    found = [ExpertsStruct(container.data_ptr(), container.numel()) for container in containers]
    given = [ctypes.byref(each) for each in (*found, ExpertsStruct())[:3]]
    call("trf_torch_prepare_moe", device, *given, top_k, int(activation == "gelu_tanh"))


def count_layers() -> int:
    """Returns how many layers are known."""
    return int(ops_library().trf_torch_count_layers())


def adopt_kernel(buffer: torch.Tensor) -> None:
    """Adopts a buffer that an op has missed: this is the kernel of `transfuse::adopt`.

    An exception would not reach the op's caller with its text, so the text is left in the ops library.
    """
    try:
        with torch.utils._python_dispatch._disable_current_modes():
            adopt(buffer)
    except Exception as failure:
        ops_library().trf_torch_set_adoption_error(str(failure).encode())
