# SPDX-License-Identifier: Apache-2.0
"""The NumPy arrays that hold the library's dtypes."""

from __future__ import annotations

import importlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from transfuse import _structs as s
from transfuse._errors import Status, argument_error, make_error

Array: TypeAlias = npt.NDArray[Any]

# The name in NumPy or in ml_dtypes, and the dtype that holds the bits if ml_dtypes is not installed.
_NAMES: dict[s.Dtype, tuple[str, str]] = {
    s.Dtype.F32: ("float32", "float32"),
    s.Dtype.F16: ("float16", "float16"),
    s.Dtype.BF16: ("bfloat16", "uint16"),
    s.Dtype.F8_E4M3: ("float8_e4m3fn", "uint8"),
    s.Dtype.F8_E5M2: ("float8_e5m2", "uint8"),
    s.Dtype.I8: ("int8", "int8"),
}
_WORDS = {
    "f32": s.Dtype.F32,
    "f16": s.Dtype.F16,
    "fp16": s.Dtype.F16,
    "bf16": s.Dtype.BF16,
    "f8_e4m3": s.Dtype.F8_E4M3,
    "fp8_e4m3": s.Dtype.F8_E4M3,
    "f8_e5m2": s.Dtype.F8_E5M2,
    "fp8_e5m2": s.Dtype.F8_E5M2,
    "i8": s.Dtype.I8,
    "int8": s.Dtype.I8,
}


def numpy_dtype(dtype: s.Dtype) -> np.dtype[Any]:
    """Returns the dtype of arrays of decoded weights: that of ml_dtypes or, without it, one that holds the bits."""
    own, bits = _NAMES[dtype]
    if own == bits:
        return np.dtype(own)
    try:
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), own))
    except ImportError:
        return np.dtype(bits)


def _check_array(array: object, what: str) -> Array:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{what} must be a numpy.ndarray, not {type(array).__name__}")
    if isinstance(array, np.ma.MaskedArray) and bool(np.any(array.mask)):
        raise argument_error(f"{what} has masked elements, which would count as if they were not; use filled()")
    if not array.dtype.isnative:
        raise argument_error(f"{what} has the byte order of another machine ({array.dtype.str}); use astype")
    return array


def take_weights(array: object, dtype: str | None) -> tuple[Array, s.Dtype]:
    """Returns a matrix as the library takes it, copied if it is not contiguous, and what its elements are."""
    weights = _check_array(array, "array")
    if weights.ndim != 2:
        raise make_error(Status.TRF_ERR_SHAPE, f"array has {weights.ndim} dimensions; a layer is a matrix")
    if dtype is None:
        named = [known for known, (own, _) in _NAMES.items() if own == weights.dtype.name]
        if not named:
            raise argument_error(
                f"array is of {weights.dtype.name}, which no codec takes; there are {_list_names()}, and uint16 or "
                "uint8 with dtype='bf16', 'fp8_e4m3' or 'fp8_e5m2'"
            )
        known = named[0]
    else:
        if not isinstance(dtype, str):
            raise TypeError(f"dtype must be a str or None, not {type(dtype).__name__}")
        if dtype.lower() not in _WORDS:
            raise argument_error(f"dtype is {dtype!r}; it must be one of {', '.join(_WORDS)}")
        known = _WORDS[dtype.lower()]
        if weights.dtype.name not in _NAMES[known]:
            raise argument_error(
                f"array is of {weights.dtype.name}; dtype={dtype!r} takes {' or '.join(sorted(set(_NAMES[known])))}"
            )
    if max(weights.shape) >= 2**32:
        raise make_error(Status.TRF_ERR_SHAPE, f"array has the shape {weights.shape}; sides are below 2^32")
    return np.ascontiguousarray(weights), known


def take_activations(x: object, cols: int) -> npt.NDArray[np.float32]:
    """Returns rows of x in F32, [m][cols]."""
    values = _check_array(x, "x")
    if values.dtype.name not in ("float32", "float16", "bfloat16"):
        raise argument_error(f"x is of {values.dtype.name}; it must be float32, float16 or bfloat16")
    if values.ndim == 0 or values.shape[-1] != cols:
        raise make_error(Status.TRF_ERR_SHAPE, f"x has the shape {values.shape}; its last side must be {cols}")
    rows: npt.NDArray[np.float32] = np.ascontiguousarray(values, np.float32).reshape(values.size // cols, cols)
    if len(rows) >= 2**32:
        raise make_error(Status.TRF_ERR_SHAPE, f"x has {len(rows)} rows; there must be fewer than 2^32")
    return rows


def copy_aligned(data: object) -> npt.NDArray[np.uint8]:
    """Returns a copy of bytes that begins at a multiple of 16, as blobs have to."""
    with memoryview(data) as view:  # type: ignore[arg-type]
        if not view.c_contiguous:
            raise argument_error("the bytes of a blob must be contiguous, and these are not; use bytes()")
        if "O" in view.format:
            raise TypeError("a blob is bytes, and these are the addresses of Python objects")
    source = np.frombuffer(data, np.uint8)  # type: ignore[call-overload]
    room = np.empty(source.size + 15, np.uint8)
    first = -room.ctypes.data % 16
    copy = room[first : first + source.size]
    copy[:] = source
    return copy


def _list_names() -> str:
    return ", ".join(own for own, _ in _NAMES.values())
