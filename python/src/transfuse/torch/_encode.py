# SPDX-License-Identifier: Apache-2.0
"""Encodes a torch tensor to a blob."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy.typing as npt
import torch

from transfuse._layer import Layer
from transfuse._results import LayerInfo

# The dtypes that codecs take: their names in Layer.encode, and dtypes for their bits where NumPy has no such dtype.
_DTYPES: dict[torch.dtype, tuple[str, torch.dtype | None]] = {
    torch.float32: ("f32", None),
    torch.float16: ("f16", None),
    torch.bfloat16: ("bf16", torch.uint16),
    torch.int8: ("i8", None),
    torch.float8_e4m3fn: ("fp8_e4m3", torch.uint8),
    torch.float8_e5m2: ("fp8_e5m2", torch.uint8),
}


def encode(weight: torch.Tensor, **options: Any) -> torch.Tensor:
    """Encodes a matrix.

    Parameters
    ----------
    weight : torch.Tensor, [rows][cols]
        float32, float16, bfloat16, int8, float8_e4m3fn or float8_e5m2, on any device; it is encoded on the CPU.
    options
        The options of `transfuse.Layer.encode`: codec, favor, bits, granularity, threads, verify ...

    Returns
    -------
    torch.Tensor, uint8, [blob_bytes]
        The blob, on the CPU and not yet known to the ops.

    Raises
    ------
    TypeError, ValueError
        `weight` is not such a matrix.
    TransfuseError
        What `transfuse.Layer.encode` raises.
    """
    if not isinstance(weight, torch.Tensor):
        raise TypeError(f"weight must be a torch.Tensor, not {type(weight).__name__}")
    if weight.dtype not in _DTYPES:
        raise ValueError(f"weight is of {weight.dtype}; codecs take {', '.join(str(dtype) for dtype in _DTYPES)}")
    if weight.layout is not torch.strided or weight.is_nested or weight.is_meta:
        found = "nested" if weight.is_nested else "on the meta device" if weight.is_meta else weight.layout
        raise ValueError(f"weight must be dense and in memory; this is {found}")
    return _tensor_of(Layer.encode(_array_of(weight), dtype=_DTYPES[weight.dtype][0], **options))


def encode_like(weight: torch.Tensor, info: LayerInfo) -> torch.Tensor:
    """Encodes a matrix, [rows][cols], as `transfuse.Layer.encode_like` does; the blob is on the CPU."""
    return _tensor_of(Layer.encode_like(_array_of(weight), info, dtype=_DTYPES[weight.dtype][0]))


def _array_of(weight: torch.Tensor) -> npt.NDArray[Any]:
    bits = _DTYPES[weight.dtype][1]
    array = weight.detach().cpu().resolve_neg().contiguous()
    return (array.view(bits) if bits else array).numpy()


def _tensor_of(layer: Layer) -> torch.Tensor:
    """Returns a layer's blob as a tensor on the CPU."""
    data = layer.to_bytes()
    blob = torch.empty(len(data), dtype=torch.uint8)
    ctypes.memmove(blob.data_ptr(), data, len(data))
    return blob
