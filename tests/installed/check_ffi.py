# SPDX-License-Identifier: Apache-2.0
"""Uses the shared library through FFI. Usage: check_ffi.py LIBRARY SOURCE_DIR; Python's own modules only."""

from __future__ import annotations

import ctypes
import json
import re
import struct
import sys
import tempfile
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

TRF_OK, TRF_ERR_ARGUMENT, TRF_ERR_NOT_FOUND = 0, 1, 5
TRF_DTYPE_F32, TRF_DTYPE_BF16 = 1, 3
TRF_DEVICE_CPU = -1


class Error(ctypes.Structure):
    _fields_ = [("status", c_int), ("cuda", c_int32), ("offset", c_uint64), ("message", ctypes.c_char * 1024)]


class LayerMemory(ctypes.Structure):
    _fields_ = [
        ("buffer", c_void_p),
        ("buffer_bytes", c_uint64),
        ("directory", c_void_p),
        ("directory_bytes", c_uint64),
    ]


class LoadOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("layout", c_int),
        ("shard", c_uint32 * 4),
        ("row_ranges", c_void_p),
        ("num_row_ranges", c_uint32),
        ("buffer_is_on_device", c_int),
        ("memory", LayerMemory),
        ("threads", c_int),
        ("progress", c_void_p),
        ("progress_context", c_void_p),
        ("packed_bf16", c_int),
        ("limits", c_void_p),
    ]


class LayerSize(ctypes.Structure):
    _fields_ = [("buffer_bytes", c_uint64), ("directory_bytes", c_uint64)]


class PlanOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("m", c_uint32),
        ("x_dtype", c_int),
        ("y_dtype", c_int),
        ("path", c_int),
        ("activation", c_int),
        ("has_bias", c_int),
        ("has_multiplier", c_int),
        ("has_residual", c_int),
        ("y_stride", c_uint64),
        ("multiplier_stride", c_uint64),
        ("residual_stride", c_uint64),
    ]


class PlanInfo(ctypes.Structure):
    _fields_ = [
        ("m", c_uint32),
        ("x_dtype", c_int),
        ("y_dtype", c_int),
        ("path", c_int),
        ("path_name", c_char_p),
        ("reason", c_char_p),
        ("workspace_bytes", c_uint64),
    ]


class Operands(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("x", c_void_p),
        ("y", c_void_p),
        ("bias", c_void_p),
        ("multiplier", c_void_p),
        ("residual", c_void_p),
    ]


def write_checkpoint(path: Path) -> None:
    header = json.dumps({"bias": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"abc")


def check_symbols(library: ctypes.CDLL, source: Path) -> None:
    text = "".join(path.read_text() for path in sorted((source / "include").rglob("*.h")))
    public = re.findall(r"^TRF_API .*?\b(trf_\w+)\(", text, re.MULTILINE)
    missing = [name for name in public if not hasattr(library, name)]
    assert len(public) > 60 and not missing, missing
    assert not hasattr(library, "trf_fail"), "internals are exported"

    library.trf_version.restype = library.trf_status_name.restype = c_char_p
    assert library.trf_version().startswith(b"0.2."), library.trf_version()
    assert library.trf_status_name(TRF_ERR_NOT_FOUND) == b"TRF_ERR_NOT_FOUND"


def check_checkpoints(library: ctypes.CDLL, golden: Path) -> None:
    open_checkpoint, error, checkpoint = library.trf_checkpoint_open, Error(), c_void_p()
    library.trf_checkpoint_num_tensors.restype = c_uint64
    assert open_checkpoint(b"/no/such/file", byref(checkpoint), byref(error)) == TRF_ERR_NOT_FOUND
    assert error.status == TRF_ERR_NOT_FOUND and b"/no/such/file" in error.message, error.message

    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.safetensors"
        write_checkpoint(plain)
        for path in (plain, golden):
            status = open_checkpoint(bytes(path), byref(checkpoint), byref(error))
            assert status == TRF_OK, error.message
            assert library.trf_checkpoint_num_tensors(checkpoint) == 1
            library.trf_checkpoint_close(checkpoint)


def widen_bf16(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def check_product(library: ctypes.CDLL, golden: Path) -> None:
    """An x with a single 1 gives a column of the weights; y's row is wider than that."""
    rows, cols, one = 16, 16, 5
    error, context, layer, plan, none = Error(), c_void_p(), c_void_p(), c_void_p(), c_void_p()

    def check(status: int) -> None:
        assert status == TRF_OK, error.message

    library.trf_device_layer_create.argtypes = [
        c_void_p, c_void_p, c_uint64, c_void_p, POINTER(c_void_p), POINTER(Error)]  # fmt: skip
    library.trf_device_layer_decode.argtypes = [c_void_p, c_int, c_void_p, c_uint64, c_void_p, POINTER(Error)]
    library.trf_linear.argtypes = [c_void_p, POINTER(Operands), c_void_p, c_void_p, POINTER(Error)]
    library.trf_device_allocate.argtypes = [c_void_p, c_uint64, POINTER(c_void_p), POINTER(Error)]
    for name in ("trf_context_destroy", "trf_device_layer_destroy", "trf_plan_destroy"):
        getattr(library, name).argtypes = [c_void_p]
    library.trf_device_free.argtypes = [c_void_p, c_void_p]

    check(library.trf_context_create(TRF_DEVICE_CPU, byref(context), byref(error)))
    content = golden.read_bytes()
    blob = c_void_p()  # aligned as blobs have to be
    check(library.trf_device_allocate(context, len(content), byref(blob), byref(error)))
    ctypes.memmove(blob, content, len(content))
    check(library.trf_device_layer_create(context, blob, len(content), None, byref(layer), byref(error)))
    library.trf_device_free(context, blob)

    options, info, operands = PlanOptions(), PlanInfo(), Operands()
    library.trf_plan_options_init(byref(options))
    assert options.struct_bytes == ctypes.sizeof(options) and options.m == 1
    options.x_dtype, options.y_dtype, options.y_stride = TRF_DTYPE_BF16, TRF_DTYPE_F32, rows + 3
    check(library.trf_plan_create(layer, byref(options), byref(plan), byref(error)))
    library.trf_plan_get_info(plan, byref(info))
    assert (info.m, info.path_name) == (1, b"fused")

    x, y = (ctypes.c_uint16 * cols)(), (ctypes.c_float * (rows + 3))(*([-7] * (rows + 3)))
    x[one] = 0x3F80
    workspace = c_void_p()
    check(library.trf_device_allocate(context, info.workspace_bytes, byref(workspace), byref(error)))
    library.trf_operands_init(byref(operands))
    assert operands.struct_bytes == ctypes.sizeof(operands)
    operands.x, operands.y = ctypes.addressof(x), ctypes.addressof(y)
    check(library.trf_linear(plan, byref(operands), workspace, None, byref(error)))
    operands.y = None
    assert library.trf_linear(plan, byref(operands), workspace, None, byref(error)) == TRF_ERR_ARGUMENT
    options.struct_bytes = 0
    assert library.trf_plan_create(layer, byref(options), byref(none), byref(error)) == TRF_ERR_ARGUMENT and not none

    weights = c_void_p()  # 16-byte aligned
    check(library.trf_device_allocate(context, 2 * rows * cols, byref(weights), byref(error)))
    check(library.trf_device_layer_decode(layer, 0, weights, 2 * rows * cols, None, byref(error)))
    decoded = (ctypes.c_uint16 * (rows * cols)).from_address(weights.value)
    assert list(y) == [widen_bf16(decoded[r * cols + one]) for r in range(rows)] + [-7] * 3, list(y)
    for memory in (workspace, weights):
        library.trf_device_free(context, memory)
    library.trf_plan_destroy(plan)
    library.trf_device_layer_destroy(layer)
    library.trf_context_destroy(context)


def check_load(library: ctypes.CDLL, golden: Path) -> None:
    """Loads a tensor of a checkpoint to this program's memory."""
    error, context, checkpoint, layer = Error(), c_void_p(), c_void_p(), c_void_p()
    options, size = LoadOptions(), LayerSize()

    def check(status: int) -> None:
        assert status == TRF_OK, error.message

    library.trf_device_layer_get_load_size.argtypes = [
        c_void_p, c_void_p, c_char_p, POINTER(LoadOptions), POINTER(LayerSize), POINTER(Error)]  # fmt: skip
    library.trf_device_layer_load.argtypes = [
        c_void_p, c_void_p, c_char_p, POINTER(LoadOptions), POINTER(c_void_p), POINTER(Error)]  # fmt: skip
    check(library.trf_context_create(TRF_DEVICE_CPU, byref(context), byref(error)))
    check(library.trf_checkpoint_open(bytes(golden), byref(checkpoint), byref(error)))
    library.trf_load_options_init(byref(options))
    assert options.struct_bytes == ctypes.sizeof(options)
    check(library.trf_device_layer_get_load_size(
        context, checkpoint, b"weight", byref(options), byref(size), byref(error)))  # fmt: skip
    assert (size.buffer_bytes, size.directory_bytes) == (golden.stat().st_size, 0)
    memory = ctypes.create_string_buffer(size.buffer_bytes + 16)
    blob = (ctypes.addressof(memory) + 15) // 16 * 16
    options.memory = LayerMemory(blob, size.buffer_bytes - 1, None, 0)
    load = library.trf_device_layer_load
    status = load(context, checkpoint, b"weight", byref(options), byref(layer), byref(error))
    assert status == TRF_ERR_ARGUMENT and not layer and b"'weight'" in error.message, error.message
    options.memory.buffer_bytes += 1
    check(load(context, checkpoint, b"weight", byref(options), byref(layer), byref(error)))
    library.trf_checkpoint_close(checkpoint)
    library.trf_device_layer_destroy(layer)
    assert ctypes.string_at(blob, size.buffer_bytes) == golden.read_bytes()
    library.trf_context_destroy(context)


def main() -> None:
    library, source = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2])
    golden = source / "tests/golden/bf16_16x16.trf"
    check_symbols(library, source)
    check_checkpoints(library, golden)
    check_product(library, golden)
    check_load(library, golden)


if __name__ == "__main__":
    main()
