# SPDX-License-Identifier: Apache-2.0
"""What the library says about one layer, as dataclasses."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from transfuse import _structs as s
from transfuse._library import library
from transfuse._options import granularity_name


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """The results of an encoding (`trf_layer_report`).

    `entropy_bits` are bits a weight: the order-0 entropy of the exponents, plus sign and mantissa bits; with the codec
    int, only the entropy of the codes. `relative_rms_error` is sqrt(sum (w - w')^2 / sum w^2), and `weight_energy` sum
    w^2, both 0 for lossless codecs.
    """

    weights: int
    source_bytes: int
    blob_bytes: int
    exceptions: int
    entropy_bits: float
    relative_rms_error: float
    weight_energy: float
    predictor_modes: int


@dataclasses.dataclass(frozen=True)
class LayerInfo:
    """What a blob says of itself (`trf_layer_info`).

    `dtype` is the dtype of the source and of the decoded weights, by its safetensors name such as "BF16"; `codec` is
    "bf16", "fp16", "fp8_e4m3", "fp8_e5m2" or "int"; `granularity` is "none", "tensor", "channel", "scale-group:G" or
    "scale-block:B".
    """

    rows: int
    cols: int
    dtype: str
    codec: str
    class_bits: int
    raw_bits: int
    probability_bits: int
    state_bits: int
    slab_cols: int
    granularity: str
    predictor_modes: int
    blob_bytes: int
    tiles: int
    stored_tiles: int
    exceptions: int


def make_layer_report(report: s.LayerReportStruct) -> LayerReport:
    """Returns the dataclass of a struct."""
    return LayerReport(**{field.name: getattr(report, field.name) for field in dataclasses.fields(LayerReport)})


def make_layer_info(info: s.LayerInfoStruct) -> LayerInfo:
    """Returns the dataclass of a struct."""
    # This has to be quick, since a checkpoint may have tens of thousands of blobs.
    values: dict[str, Any] = {name: getattr(info, name) for name in _NUMBERS}
    values.update(_name_traits(info.dtype, info.codec, info.granularity, info.scale_group_size))
    return LayerInfo(**values)


_NAMED = ("dtype", "codec", "granularity")
_NUMBERS = [field.name for field in dataclasses.fields(LayerInfo) if field.name not in _NAMED]


@functools.cache
def _name_traits(dtype: int, codec: int, granularity: int, scale_group_size: int) -> dict[str, str]:
    names = (
        library().trf_dtype_name(dtype).decode(),
        library().trf_codec_name(codec).decode(),
        granularity_name(granularity, scale_group_size),
    )
    return dict(zip(_NAMED, names, strict=True))
