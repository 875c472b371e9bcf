# SPDX-License-Identifier: Apache-2.0
"""Turns words that say how to encode into the library's struct."""

from __future__ import annotations

import ctypes
import numbers
import os
import re
from typing import TypeAlias

from transfuse import _structs as s
from transfuse._errors import argument_error
from transfuse._library import library

# It is "tensor", "channel", "scale-group:G" or "scale-block:B", as in the command.
Granularity: TypeAlias = str

_CODECS = {
    "auto": s.Codec.AUTO,
    "bf16": s.Codec.BF16,
    "fp16": s.Codec.FP16,
    "fp8_e4m3": s.Codec.E4M3,
    "fp8_e5m2": s.Codec.E5M2,
    "int": s.Codec.INT,
}
_FAVORS = {"speed": s.Favor.SPEED, "size": s.Favor.SIZE}
_GRANULARITIES = {
    "none": s.GranularityKind.NONE,
    "tensor": s.GranularityKind.TENSOR,
    "channel": s.GranularityKind.CHANNEL,
    "scale-group": s.GranularityKind.SCALE_GROUP,
    "scale-block": s.GranularityKind.SCALE_BLOCK,
}

# The layouts, ways in which the weights of a layer can lie in memory, that this package knows by name.
# "packed" may give a layer that lies "packed8": FP8 that fits that layout.
LAYOUTS = {
    "coded": s.Layout.CODED,
    "packed": s.Layout.PACKED,
    "plain": s.Layout.PLAIN,
    "packed8": s.Layout.PACKED8,
}

# One of these is what asking for "packed" gives.
PACKED_LAYOUTS = ("packed", "packed8")


def find_layout(name: str) -> s.Layout:
    """Returns the layout with a name.

    Raises
    ------
    ArgumentError
        There is no such layout.
    """
    if not isinstance(name, str) or name not in LAYOUTS:
        raise argument_error(f"layout is {name!r}; it must be one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def layout_name(layout: int) -> str:
    """Returns the word for a layout."""
    return next(name for name, value in LAYOUTS.items() if value == layout)


def fits_layout(found: str, wanted: str) -> bool:
    """Returns whether a layer lies as was asked for; "packed" and "packed8" are what "packed" gives."""
    return found == wanted or (found, wanted) == ("packed8", "packed")


def granularity_name(kind: int, scale_group_size: int) -> str:
    """Returns the word for a granularity, with its size where it has one."""
    names = {value: name for name, value in _GRANULARITIES.items()}
    name = names[s.GranularityKind(kind)]
    return f"{name}:{scale_group_size}" if kind >= s.GranularityKind.SCALE_GROUP else name


def check_threads(threads: int) -> int:
    """Returns a number of threads; 0 stands for one for each core."""
    if isinstance(threads, bool) or not isinstance(threads, int):
        raise TypeError(f"threads must be an int, not {type(threads).__name__}")
    if not 0 <= threads < 2**31:
        raise argument_error(f"threads is {threads}; it must be 0 (one for each core) or more")
    return threads


def check_flag(flag: bool, what: str) -> int:
    """Returns 1 for True and 0 for False, of Python or NumPy; 1 and 0 stand for them."""
    # What ctypes makes an int of a number or text would be another answer than the caller's: 0.5 becomes 0.
    if type(flag).__name__ in ("bool", "bool_") or (isinstance(flag, int) and flag in (0, 1)):
        return int(flag)
    raise TypeError(f"{what} must be True or False, not {flag!r}")


def check_callable(function: object, what: str) -> None:
    """Refuses what is to be called later, and cannot be."""
    if function is not None and not callable(function):
        raise TypeError(f"{what} must be a function or None, not {type(function).__name__}")


def make_limits(max_output_bytes: int | None = None, max_memory_bytes: int | None = None) -> s.LimitsStruct:
    """Returns the library's struct; None is no limit."""
    limits = s.LimitsStruct()
    library().trf_limits_init(ctypes.byref(limits))
    limits.max_output_bytes = _check_limit(max_output_bytes, "max_output_bytes")
    limits.max_memory_bytes = _check_limit(max_memory_bytes, "max_memory_bytes")
    return limits


def _check_limit(limit: int | None, what: str) -> int:
    if limit is None:
        return 0
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"{what} must be an int or None, not {type(limit).__name__}")
    if not 1 <= limit < 2**64:
        raise argument_error(f"{what} is {limit}; it must be at least 1, or None")
    return limit


def encode_path(path: str | os.PathLike[str]) -> bytes:
    """Returns a path as the library takes it."""
    try:
        return _without_nul(os.fsencode(path), "a path")
    except UnicodeEncodeError as failure:
        raise argument_error(f"a path has characters that no file name has: {os.fspath(path)!r}") from failure


def encode_text(text: str, what: str) -> bytes:
    """Returns a name or glob as the library takes it."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    try:
        return _without_nul(text.encode(), what)
    except UnicodeEncodeError as failure:
        raise argument_error(f"{what} has half of a surrogate pair in it, which is no character: {text!r}") from failure


def _without_nul(text: bytes, what: str) -> bytes:
    if b"\0" in text:
        raise argument_error(f"{what} has a NUL character in it: {text!r}")
    return text


def _parse_granularity(granularity: Granularity) -> tuple[int, int]:
    if not isinstance(granularity, str):
        raise TypeError(f"granularity must be a str, not {type(granularity).__name__}")
    match = re.fullmatch(r"(tensor|channel)|(scale-group|scale-block):([0-9]{1,7})", granularity)
    if not match:
        raise argument_error(
            f"granularity is {granularity!r}; it must be 'tensor', 'channel', 'scale-group:G' or 'scale-block:B'"
        )
    return _GRANULARITIES[match[1] or match[2]], int(match[3] or 0)


def fill_encode_options(
    options: s.EncodeOptionsStruct,
    *,
    codec: str,
    favor: str,
    bits: float | None,
    granularity: Granularity | None,
    threads: int,
    verify: bool,
) -> None:
    """Sets defaults, then the caller's options. `bits` without a codec means the codec int."""
    library().trf_encode_options_init(ctypes.byref(options))
    if not isinstance(codec, str) or codec not in _CODECS:
        raise argument_error(f"codec is {codec!r}; it must be one of {', '.join(_CODECS)}")
    if not isinstance(favor, str) or favor not in _FAVORS:
        raise argument_error(f"favor is {favor!r}; it must be 'speed' or 'size'")
    if bits is not None and codec not in ("auto", "int"):
        raise argument_error(f"bits go with the codec int, not with {codec}")
    options.codec = _CODECS[codec] if bits is None else s.Codec.INT
    options.favor = _FAVORS[favor]
    if bits is not None:
        if not isinstance(bits, numbers.Real):
            raise TypeError(f"bits must be a number, not {type(bits).__name__}")
        if not 2 <= bits <= 8:
            raise argument_error(f"bits is {bits}; it must be a number from 2 to 8")
        options.bits = float(bits)
    if granularity is not None:
        if options.codec != s.Codec.INT:
            raise argument_error("granularity goes with bits, or with the codec int, alone")
        options.granularity, options.scale_group_size = _parse_granularity(granularity)
    options.threads = check_threads(threads)
    options.verify = check_flag(verify, "verify")
