# SPDX-License-Identifier: Apache-2.0
"""Reads safetensors files for the command line tests: read(path) gives {name: (dtype, numpy array)}."""

import json
from pathlib import Path

import numpy as np

NUMPY_TYPES = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "I64": np.int64,
    "I8": np.int8,
    "BOOL": np.bool_,
}


def read(path):
    path = Path(path)
    tensors = {}
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        data = file.read_bytes()
        header_bytes = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + header_bytes])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
            array = np.frombuffer(data[begin:end], NUMPY_TYPES.get(entry["dtype"], np.uint8)).reshape(entry["shape"])
            tensors[name] = entry["dtype"], array
    return tensors


def widen_e4m3(codes):
    """The values of F8_E4M3's bit patterns, as float64: a sign, four bits of exponent, three of mantissa."""
    exponents, mantissas = codes >> 3 & 15, (codes & 7).astype(np.float64)
    values = np.where(exponents == 0, mantissas * 2.0**-9, (8 + mantissas) * 2.0 ** (exponents.astype(int) - 10))
    values[(codes & 0x7F) == 0x7F] = np.nan
    return np.where(codes & 0x80, -values, values)


def as_float(tensor):
    """The values of an F32, F16, BF16 or F8_E4M3 tensor, as float64."""
    dtype, array = tensor
    if dtype == "F8_E4M3":
        return widen_e4m3(array)
    if dtype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)
