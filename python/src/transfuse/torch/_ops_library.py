# SPDX-License-Identifier: Apache-2.0
"""Loads libtransfuse_torch.so, which registers the torch ops and has functions that manage layers."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_int, c_int32, c_uint32, c_uint64, c_void_p

import torch

from transfuse import _structs as s
from transfuse._errors import Status, make_error
from transfuse._library import find_installed

LIBRARY_NAME = "libtransfuse_torch.so"
OLDEST_TORCH = (2, 10)

# This stands for the CPU in place of a CUDA ordinal (TRF_DEVICE_CPU).
CPU = -1


class ExpertsStruct(ctypes.Structure):
    """`trf_torch_experts`."""

    _fields_ = [("container", c_void_p), ("container_bytes", c_uint64)]


@functools.cache
def ops_library() -> ctypes.CDLL:
    """Returns the torch ops' library, which the first call loads.

    Raises
    ------
    ImportError
        torch is too old, or this installation of transfuse was built without torch.
    """
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST_TORCH:
        raise ImportError(f"transfuse.torch needs torch 2.10 or newer; this is torch {torch.__version__}")
    try:
        path = str(find_installed("lib", LIBRARY_NAME))
    except ImportError as missing:
        raise ImportError(
            f"this installation of transfuse has no torch ops ({LIBRARY_NAME}): torch 2.10 or newer was not there when "
            "it was built. Install torch, then transfuse again: 'pip install --force-reinstall --no-deps .'"
        ) from missing
    torch.ops.load_library(path)
    lib = ctypes.CDLL(path)
    error, info = POINTER(s.ErrorStruct), POINTER(s.DeviceLayerInfoStruct)
    size, memory = POINTER(s.LayerSizeStruct), POINTER(s.LayerMemoryStruct)
    dense, experts = POINTER(s.DeviceMatrixStruct), POINTER(ExpertsStruct)
    two: list[object] = [c_void_p, c_uint64, c_void_p, c_uint64]  # buffers, and their bytes
    numbers = POINTER(c_uint64)
    buffers = [POINTER(c_void_p), POINTER(c_uint64), c_uint32]
    part = [c_uint32] * 4  # the first row, rows, the first column, columns
    functions: dict[str, tuple[object, list[object]]] = {
        "trf_torch_get_size": (c_int, [c_int, c_void_p, c_uint64, c_int, size, error]),
        "trf_torch_adopt": (c_int, [c_int, c_void_p, c_uint64, c_int, memory, error]),
        "trf_torch_get_converted_size": (c_int, [c_int, c_void_p, c_uint64, c_int, size, error]),
        "trf_torch_convert": (c_int, [c_int, c_void_p, c_uint64, c_int, memory, error]),
        "trf_torch_get_gate_up_size": (c_int, [c_int, *two, size, error]),
        "trf_torch_convert_gate_up": (c_int, [c_int, *two, memory, error]),
        "trf_torch_get_joined_size": (c_int, [c_int, *buffers, size, error]),
        "trf_torch_join": (c_int, [c_int, *buffers, memory, error]),
        "trf_torch_get_packed_size": (c_int, [c_int, dense, size, error]),
        "trf_torch_pack": (c_int, [c_int, dense, memory, c_void_p, c_uint64, c_int, c_void_p, c_uint64, error]),
        "trf_torch_pack_gate_up": (c_int, [c_int, dense, memory, c_void_p, error]),
        "trf_torch_get_load_size": (c_int, [c_int, c_void_p, c_char_p, c_int, *part, size, error]),
        "trf_torch_load": (c_int, [c_int, c_void_p, c_char_p, c_int, *part, memory, POINTER(c_int32), error]),
        "trf_torch_is_known": (c_int, [c_int, c_void_p, c_uint64]),
        "trf_torch_get_bytes": (c_uint64, [c_int, c_void_p]),
        "trf_torch_get_places": (c_uint32, [c_int, c_void_p, c_uint64, c_uint32, numbers, numbers, POINTER(c_int)]),
        "trf_torch_find": (c_int, [c_int, c_void_p, c_uint64, info]),
        "trf_torch_get_layout_reason": (None, [c_int, c_void_p, c_uint64, c_char_p, c_uint64]),
        "trf_torch_make_experts": (c_int, [c_int, c_void_p, c_uint64, POINTER(c_uint64), c_uint32, c_int, error]),
        "trf_torch_assemble_rows": (c_int, [c_int, c_void_p, c_uint64, POINTER(c_uint64), c_uint32, error]),
        "trf_torch_check": (c_int, [c_int, c_void_p, c_uint64, error]),
        "trf_torch_verify": (c_int, [c_int, c_void_p, c_uint64, error]),
        "trf_torch_check_experts_dtype": (c_int, [c_int, c_void_p, c_uint64, c_int, error]),
        "trf_torch_prepare_moe": (c_int, [c_int, experts, experts, experts, c_uint32, c_int, error]),
        "trf_torch_set_exact": (None, [c_int]),
        "trf_torch_forget": (None, [c_int, c_void_p]),
        "trf_torch_forget_experts": (None, [c_int, c_void_p]),
        "trf_torch_count_layers": (c_uint64, []),
        "trf_torch_set_adoption_error": (None, [c_char_p]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def call(name: str, *arguments: object, what: str = "") -> None:
    """Calls a function that returns a status and takes a `trf_error` last; raises what it reports, after `what`."""
    err = s.ErrorStruct()
    status = int(getattr(ops_library(), name)(*arguments, ctypes.byref(err)))
    if status != Status.TRF_OK:
        offset = None if err.offset == s.NO_OFFSET else int(err.offset)
        raise make_error(status, what + err.message.decode("utf-8", "replace"), offset, int(err.cuda))
