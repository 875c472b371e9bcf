# SPDX-License-Identifier: Apache-2.0
"""The structs and enums of include/transfuse.h that this package uses.

`tests/test_binding_structs.py` compiles a program against the header and holds sizes, offsets and values to it.
"""

from __future__ import annotations

import ctypes
import enum
from ctypes import c_char, c_char_p, c_double, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

NO_OFFSET = 2**64 - 1


class Dtype(enum.IntEnum):
    """`trf_dtype`."""

    NONE = 0
    F32 = 1
    F16 = 2
    BF16 = 3
    F8_E4M3 = 4
    F8_E5M2 = 5
    I8 = 6


class Codec(enum.IntEnum):
    """`trf_codec`."""

    AUTO = 0
    BF16 = 1
    FP16 = 2
    E4M3 = 3
    E5M2 = 4
    INT = 5


class GranularityKind(enum.IntEnum):
    """`trf_granularity`."""

    NONE = 0
    TENSOR = 1
    CHANNEL = 2
    SCALE_GROUP = 3
    SCALE_BLOCK = 4


class Favor(enum.IntEnum):
    """`trf_favor`."""

    SPEED = 0
    SIZE = 1


class LeftReason(enum.IntEnum):
    """`trf_left_reason`."""

    NO_MATRIX = 0
    SMALL = 1
    EMBEDDING = 2
    TIED = 3
    F32 = 4
    DTYPE = 5
    SIDE_TABLE = 6
    EXCLUDED = 7
    NOT_SMALLER = 8
    ADAPTER = 9


class Layout(enum.IntEnum):
    """`trf_layout`."""

    CODED = 0
    PLAIN = 1
    PACKED = 2
    PACKED8 = 3


class ErrorStruct(ctypes.Structure):
    """`trf_error`."""

    _fields_ = [("status", c_int), ("cuda", c_int32), ("offset", c_uint64), ("message", c_char * 1024)]


class BuildInfoStruct(ctypes.Structure):
    """`trf_build_info`."""

    _fields_ = [("device_code", c_char_p), ("cuda_version", c_int)]


class MatrixStruct(ctypes.Structure):
    """`trf_matrix`."""

    _fields_ = [
        ("struct_bytes", c_size_t),
        ("weights", c_void_p),
        ("dtype", c_int),
        ("rows", c_uint32),
        ("cols", c_uint32),
    ]


class EncodeOptionsStruct(ctypes.Structure):
    """`trf_encode_options`."""

    _fields_ = [
        ("struct_bytes", c_size_t),
        ("codec", c_int),
        ("favor", c_int),
        ("bits", c_double),
        ("granularity", c_int),
        ("scale_group_size", c_uint32),
        ("threads", c_int),
        ("verify", c_int),
        ("probability_bits", c_uint32),
        ("slab_cols", c_uint32),
    ]


class LayerReportStruct(ctypes.Structure):
    """`trf_layer_report`."""

    _fields_ = [
        ("weights", c_uint64),
        ("source_bytes", c_uint64),
        ("blob_bytes", c_uint64),
        ("exceptions", c_uint64),
        ("entropy_bits", c_double),
        ("relative_rms_error", c_double),
        ("weight_energy", c_double),
        ("predictor_modes", c_uint32),
    ]


class LayerInfoStruct(ctypes.Structure):
    """`trf_layer_info`."""

    _fields_ = [
        ("rows", c_uint32),
        ("cols", c_uint32),
        ("dtype", c_int),
        ("codec", c_int),
        ("class_bits", c_uint32),
        ("raw_bits", c_uint32),
        ("probability_bits", c_uint32),
        ("state_bits", c_uint32),
        ("slab_cols", c_uint32),
        ("granularity", c_int),
        ("scale_group_size", c_uint32),
        ("predictor_modes", c_uint32),
        ("blob_bytes", c_uint64),
        ("tiles", c_uint64),
        ("stored_tiles", c_uint64),
        ("exceptions", c_uint64),
    ]


class LayerSizeStruct(ctypes.Structure):
    """`trf_layer_size`."""

    _fields_ = [("buffer_bytes", c_uint64), ("directory_bytes", c_uint64)]


class DeviceMatrixStruct(ctypes.Structure):
    """`trf_device_matrix`; its defaults are those of `trf_device_matrix_init`."""

    _fields_ = [
        ("struct_bytes", c_size_t),
        ("weights", c_void_p),
        ("dtype", c_int),
        ("rows", c_uint32),
        ("cols", c_uint32),
        ("ld", c_uint64),
    ]


class LayerMemoryStruct(ctypes.Structure):
    """`trf_layer_memory`."""

    _fields_ = [
        ("buffer", c_void_p),
        ("buffer_bytes", c_uint64),
        ("directory", c_void_p),
        ("directory_bytes", c_uint64),
    ]


class DeviceLayerInfoStruct(ctypes.Structure):
    """`trf_device_layer_info`."""

    _fields_ = [("layer", LayerInfoStruct), ("layout", c_int), ("memory_bytes", c_uint64), ("plans", c_uint32)]


class LimitsStruct(ctypes.Structure):
    """`trf_limits`."""

    _fields_ = [
        ("struct_bytes", c_size_t),
        ("max_output_bytes", c_uint64),
        ("max_memory_bytes", c_uint64),
        ("max_device_bytes", c_uint64),
    ]


# trf_progress_fn
ProgressFunction = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_uint64, c_uint64)

# trf_note_fn
NoteFunction = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)


class CheckpointOptionsStruct(ctypes.Structure):
    """`trf_checkpoint_options`."""

    _fields_ = [
        ("struct_bytes", c_size_t),
        ("encode", EncodeOptionsStruct),
        ("include", ctypes.POINTER(c_char_p)),
        ("exclude", ctypes.POINTER(c_char_p)),
        ("overwrite", c_int),
        ("progress", ProgressFunction),
        ("progress_context", c_void_p),
        ("embeddings", c_int),
        ("store_only", c_int),
        ("dry_run", c_int),
        ("skip_extra", ctypes.POINTER(c_char_p)),
        ("note", NoteFunction),
        ("note_context", c_void_p),
        ("resume", c_int),
        ("limits", ctypes.POINTER(LimitsStruct)),
    ]


class LeftTensorsStruct(ctypes.Structure):
    """`trf_left_tensors`."""

    _fields_ = [("tensors", c_uint64), ("bytes", c_uint64)]


class CheckpointReportStruct(ctypes.Structure):
    """`trf_checkpoint_report`."""

    _fields_ = [
        ("tensors", c_uint64),
        ("compressed_tensors", c_uint64),
        ("source_bytes", c_uint64),
        ("output_bytes", c_uint64),
        ("compressed_source_bytes", c_uint64),
        ("compressed_bytes", c_uint64),
        ("compressed_weights", c_uint64),
        ("rounded_tensors", c_uint64),
        ("relative_rms_error", c_double),
        ("peak_buffer_bytes", c_uint64),
        ("warning", c_char * 1024),
        ("models", c_uint64),
        ("widened_tensors", c_uint64),
        ("source_file_bytes", c_uint64),
        ("output_file_bytes", c_uint64),
        ("extra_files", c_uint64),
        ("extra_bytes", c_uint64),
        ("skipped_files", c_uint64),
        ("skipped_bytes", c_uint64),
        ("left", LeftTensorsStruct * len(LeftReason)),
        ("compared_files", c_uint64),
        ("added_files", c_uint64),
        ("scaled_fp8_tensors", c_uint64 * 5),
        ("source_fp8_tensors", c_uint64 * 5),
        ("source_fp8_block", c_uint64),
        ("side_tables", c_uint64),
        ("unused_side_tables", c_uint64),
        ("side_table_bytes", c_uint64),
        ("differing_tensors", c_uint64),
    ]


class TensorInfoStruct(ctypes.Structure):
    """`trf_tensor_info`."""

    _fields_ = [
        ("name", c_char_p),
        ("file", c_char_p),
        ("dtype", c_char_p),
        ("shape", ctypes.POINTER(c_uint64)),
        ("num_dims", c_uint32),
        ("compressed", c_int),
        ("source_bytes", c_uint64),
        ("bytes", c_uint64),
        ("file_offset", c_uint64),
        ("blobs", c_uint64),
        ("layer", LayerInfoStruct),
        ("is_bare_blob", c_int),
    ]


LAYOUTS = 3  # `TRF_LAYOUTS`


class LayoutLayerStruct(ctypes.Structure):
    """`trf_layout_layer`."""

    _fields_ = [
        ("struct_bytes", c_size_t),
        ("name", c_char_p),
        ("codec", c_int),
        ("rows", c_uint32),
        ("cols", c_uint32),
        ("experts", c_uint32),
        ("routed", c_uint32),
        ("is_lookup", c_int),
        ("layouts", c_uint32),
        ("bytes", c_uint64 * LAYOUTS),
        ("coded_workspace_bytes", c_uint64),
        ("packed_is_fp8", c_int),
    ]


class LayoutsOptionsStruct(ctypes.Structure):
    """`trf_layouts_options`."""

    _fields_ = [
        ("struct_bytes", c_size_t),
        ("memory_bytes", c_uint64),
        ("batches", ctypes.POINTER(c_uint32)),
        ("shares", ctypes.POINTER(c_double)),
        ("num_batches", c_uint32),
        ("card", c_char_p),
        ("tuning", c_void_p),
    ]


class LayoutsChoiceStruct(ctypes.Structure):
    """`trf_layouts_choice`."""

    _fields_ = [
        ("memory_bytes", c_uint64),
        ("microseconds", c_double),
        ("least_microseconds", c_double),
        ("plain_microseconds", c_double),
        ("one_gb_microseconds", c_double),
        ("least_bytes", c_uint64),
        ("card", c_char_p),
        ("is_own_card", c_int),
    ]


class LayoutSetOptionsStruct(ctypes.Structure):
    """`trf_layout_set_options`."""

    _fields_ = [("struct_bytes", c_size_t), ("gpus", c_uint32), ("context_tokens", c_uint64)]


class LayoutSetInfoStruct(ctypes.Structure):
    """`trf_layout_set_info`."""

    _fields_ = [
        ("num_layers", c_uint32),
        ("tensors", c_uint64),
        ("other_bytes", c_uint64),
        ("cache_bytes", c_uint64),
        ("is_estimated", c_int),
    ]
