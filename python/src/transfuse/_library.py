# SPDX-License-Identifier: Apache-2.0
"""The shared library: opening it at its first use, and the types of the functions that the package calls."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from pathlib import Path

from transfuse import _structs as s
from transfuse._errors import Status, make_error

# The name says which minor version of the library this package goes with.
LIBRARY_NAME = "libtransfuse.so.0.2"


def find_installed(folder: str, name: str) -> Path:
    """Returns the path of a file that CMake has put into the package; an editable one lies in two folders."""
    import transfuse

    paths = [Path(top) / folder / name for top in transfuse.__path__]
    for path in paths:
        if path.is_file():
            return path
    raise ImportError(f"transfuse is not installed: there is no {paths[0]}; 'pip install .' builds it")


def _list_layout_functions() -> dict[str, tuple[object, list[object]]]:
    """Returns the types of the functions of `transfuse/layouts.h`, and of tunings."""
    error, handle, handle_out = POINTER(s.ErrorStruct), c_void_p, POINTER(c_void_p)
    return {
        "trf_tuning_read": (c_int, [c_char_p, handle_out, error]),
        "trf_tuning_free": (None, [handle]),
        "trf_layouts_options_init": (None, [POINTER(s.LayoutsOptionsStruct)]),
        "trf_layout_layer_init": (None, [POINTER(s.LayoutLayerStruct)]),
        "trf_layouts_choose": (
            c_int,
            [
                POINTER(s.LayoutLayerStruct),
                c_uint32,
                POINTER(s.LayoutsOptionsStruct),
                POINTER(c_int),
                POINTER(s.LayoutsChoiceStruct),
                error,
            ],
        ),
        "trf_layout_set_options_init": (None, [POINTER(s.LayoutSetOptionsStruct)]),
        "trf_layout_set_read": (c_int, [handle, POINTER(s.LayoutSetOptionsStruct), handle_out, error]),
        "trf_layout_set_free": (None, [handle]),
        "trf_layout_set_get_info": (None, [handle, POINTER(s.LayoutSetInfoStruct)]),
        "trf_layout_set_layers": (POINTER(s.LayoutLayerStruct), [handle]),
        "trf_layout_set_find": (c_uint32, [handle, c_char_p]),
    }


@functools.cache
def library() -> ctypes.CDLL:
    """Returns the library, whose functions release the interpreter's lock while they run."""
    lib = ctypes.CDLL(str(find_installed("lib", LIBRARY_NAME)))
    error, path = POINTER(s.ErrorStruct), c_char_p
    handle, handle_out = c_void_p, POINTER(c_void_p)
    limits = POINTER(s.LimitsStruct)
    options, report = POINTER(s.CheckpointOptionsStruct), POINTER(s.CheckpointReportStruct)
    functions: dict[str, tuple[object, list[object]]] = {
        "trf_version": (c_char_p, []),
        "trf_get_build_info": (None, [POINTER(s.BuildInfoStruct)]),
        "trf_dtype_name": (c_char_p, [c_int]),
        "trf_codec_name": (c_char_p, [c_int]),
        "trf_left_reason_text": (c_char_p, [c_int]),
        "trf_free": (None, [c_void_p]),
        "trf_matrix_init": (None, [POINTER(s.MatrixStruct)]),
        "trf_device_matrix_init": (None, [POINTER(s.DeviceMatrixStruct)]),
        "trf_encode_options_init": (None, [POINTER(s.EncodeOptionsStruct)]),
        "trf_checkpoint_options_init": (None, [options]),
        "trf_encode_layer": (
            c_int,
            [
                POINTER(s.MatrixStruct),
                POINTER(s.EncodeOptionsStruct),
                handle_out,
                POINTER(c_uint64),
                POINTER(s.LayerReportStruct),
                error,
            ],
        ),
        "trf_layer_from_memory": (c_int, [c_void_p, c_uint64, handle_out, error]),
        "trf_layer_open": (c_int, [path, handle_out, error]),
        "trf_layer_free": (None, [handle]),
        "trf_layer_get_info": (None, [handle, POINTER(s.LayerInfoStruct)]),
        "trf_layer_decode": (c_int, [handle, c_void_p, c_uint64, c_int, error]),
        "trf_layer_matmul_cpu": (c_int, [handle, c_void_p, c_uint32, c_void_p, c_int, error]),
        "trf_compress_checkpoint": (c_int, [path, path, options, report, error]),
        "trf_decompress_checkpoint": (c_int, [path, path, options, report, error]),
        "trf_verify_checkpoint": (c_int, [path, path, options, report, error]),
        "trf_limits_init": (None, [limits]),
        "trf_checkpoint_open": (c_int, [path, handle_out, error]),
        "trf_checkpoint_open_within": (c_int, [path, limits, handle_out, error]),
        "trf_checkpoint_close": (None, [handle]),
        "trf_checkpoint_num_tensors": (c_uint64, [handle]),
        "trf_checkpoint_tensor": (c_int, [handle, c_uint64, POINTER(s.TensorInfoStruct), error]),
        "trf_extract_layer_within": (c_int, [path, c_char_p, path, c_int, limits, error]),
    }
    for name, (result, arguments) in (functions | _list_layout_functions()).items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def call(name: str, *arguments: object) -> None:
    """Calls a function that returns a status and takes a `trf_error` last; raises what it reports."""
    err = s.ErrorStruct()
    status = int(getattr(library(), name)(*arguments, ctypes.byref(err)))
    if status != Status.TRF_OK:
        offset = None if err.offset == s.NO_OFFSET else int(err.offset)
        raise make_error(status, err.message.decode("utf-8", "replace"), offset, int(err.cuda))
