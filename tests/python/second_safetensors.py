# SPDX-License-Identifier: Apache-2.0
"""Reads compressed safetensors files (section 10 of format/FORMAT.md) with the second decoder.

`read_safetensors` gives the source's tensors, `rebuild_source` the source file. `write_safetensors` writes plain
files for tests.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from second_decoder import (
    DTYPE_NAMES,
    MAGIC,
    FormatError,
    Header,
    align16,
    check,
    read_blob,
    scale_fp8,
    source_bytes,
    weight_scales,
)

INDEX_MAGIC = 0x58414E53
SUFFIX = "_trf"
FORMAT_KEY, HEADER_KEY = "transfuse_format", "transfuse_source_header"
SIDE_TABLES_KEY = "transfuse_side_tables"
#: of files, as opposed to blobs
FORMAT = "TRF_ERR_FORMAT"
#: of the index of a 3-D tensor
HEADER = "TRF_ERR_HEADER"


@dataclass
class Tensor:
    """One tensor: its dtype as safetensors names it, its shape and its bytes."""

    dtype: str
    shape: list[int]
    data: bytes


def read_plain(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """`__metadata__` and all tensors of a safetensors file, as they stand."""
    content = Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = Tensor(entry["dtype"], entry["shape"], content[begin:end])
    return metadata, tensors


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file with the tensors in the order given."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.data)


def find_codes(h: Header, elements: np.ndarray) -> bytes:
    """The FP8 codes of the elements of scaled FP8, of which each has one with its scale."""
    spread = np.broadcast_to(weight_scales(h), elements.shape)
    codes, numbers = np.full(elements.shape, -1), np.array([code for code in range(256) if code & 0x7F != 0x7F])
    for scale in np.unique(spread):
        products, place = scale_fp8(numbers, scale), spread == scale
        check(len(np.unique(products)) == len(numbers), FORMAT, "two codes give one element")
        order = np.argsort(products)
        found = np.searchsorted(products[order], elements[place]).clip(max=len(numbers) - 1)
        codes[place] = np.where(products[order][found] == elements[place], numbers[order][found], -1)
    codes[elements == 0x7FC0], codes[elements == 0xFFC0] = 0x7F, 0xFF
    check(bool(np.all(codes >= 0)), FORMAT, "an element without a code")
    return codes.astype(np.uint8).tobytes()


def decode_blob(blob: bytes, as_codes: bool = False) -> Tensor:
    """A 2-D tensor. as_codes: of F8_E4M3, if the blob is scaled FP8."""
    header, elements = read_blob(blob)
    if as_codes and header.is_scaled_fp8:
        return Tensor("F8_E4M3", list(elements.shape), find_codes(header, elements))
    return Tensor(DTYPE_NAMES[header.source_dtype], list(elements.shape), source_bytes(header, elements))


def decode_expert_tensor(data: bytes, as_codes: bool = False) -> Tensor:
    """A 3-D tensor: an index, followed by blobs."""
    _, count, reserved = struct.unpack_from("<IIQ", data)
    check(reserved == 0, HEADER, "reserved field of the index")
    check(1 <= count < 2**31, HEADER, f"an index of {count} blobs")
    end = align16(16 + 8 * count)
    check(len(data) >= end, "TRF_ERR_TRUNCATED", "the index is longer than the tensor")
    check(not any(data[16 + 8 * count : end]), HEADER, "padding of the index is not zero")
    offsets = [*struct.unpack_from(f"<{count}Q", data, 16), len(data)]
    check(offsets[0] == end, HEADER, "blob 0 does not begin behind the index")
    check(offsets == sorted(offsets), HEADER, "offsets of the index do not ascend")
    # Each blob must fill its place: read_blob rejects one that is longer or shorter than the bytes it gets.
    slices = [decode_blob(data[a:b], as_codes) for a, b in zip(offsets, offsets[1:])]
    first = slices[0]
    alike = all((s.shape, s.dtype) == (first.shape, first.dtype) for s in slices)
    check(alike, HEADER, "the blobs of a 3-D tensor differ in shape or dtype")
    return Tensor(first.dtype, [count, *first.shape], b"".join(s.data for s in slices))


def is_compressed(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of a file without a kept header holds blobs."""
    if not name.endswith(SUFFIX) or tensor.dtype != "U8" or len(tensor.shape) != 1 or len(tensor.data) < 16:
        return False
    return struct.unpack_from("<I", tensor.data)[0] in (MAGIC, INDEX_MAGIC)


def decode_tensor(tensor: Tensor, as_codes: bool = False) -> Tensor:
    check(tensor.dtype == "U8" and len(tensor.shape) == 1, FORMAT, "blobs are not in a U8 tensor of one dimension")
    check(len(tensor.data) >= 16, FORMAT, "no room for a blob")
    if struct.unpack_from("<I", tensor.data)[0] == INDEX_MAGIC:
        return decode_expert_tensor(tensor.data, as_codes)
    return decode_blob(tensor.data, as_codes)


def kept_header(metadata: dict[str, str]) -> dict[str, dict[str, object]] | None:
    """The tensors of the source's header, if the file keeps it."""
    if FORMAT_KEY not in metadata:
        return None
    check(metadata[FORMAT_KEY] == "1", "TRF_ERR_VERSION", f"{FORMAT_KEY} {metadata[FORMAT_KEY]}")
    if HEADER_KEY not in metadata:
        return None
    try:
        header = json.loads(metadata[HEADER_KEY])
    except json.JSONDecodeError as error:
        raise FormatError(FORMAT, f"the kept header: {error}") from error
    header.pop("__metadata__", None)
    return header


def read_side_tables(metadata: dict[str, str], kept: dict[str, dict[str, object]]) -> dict[str, Tensor]:
    """The tensors of scales that a file has in its metadata."""
    text = metadata.get(SIDE_TABLES_KEY)
    if text is None:
        return {}
    told = json.loads(text)
    digest = xxhash.xxh3_64_hexdigest(text.encode())
    check(metadata.get(SIDE_TABLES_KEY + "_checksum", digest) == digest, "TRF_ERR_CHECKSUM", "side tables")
    check(isinstance(told, dict) and {"used", "unused"} <= told.keys(), FORMAT, "side tables")
    check(not told["used"].keys() & told["unused"].keys(), FORMAT, "a side table twice")
    tables = {}
    for name, data in {**told["used"], **told["unused"]}.items():
        check(name in kept, FORMAT, f"{name} is not in the kept header")
        try:
            tables[name] = Tensor(kept[name]["dtype"], kept[name]["shape"], base64.b64decode(data, validate=True))
        except binascii.Error as error:
            raise FormatError(FORMAT, f"{name}: {error}") from error
    return tables


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The source's tensors by name."""
    metadata, tensors = read_plain(path)
    kept = kept_header(metadata)
    result: dict[str, Tensor] = {}
    if kept is None:
        for name, tensor in tensors.items():
            packed = is_compressed(name, tensor)
            source_name = name.removesuffix(SUFFIX) if packed else name
            check(source_name not in result, FORMAT, f"{source_name} twice")
            result[source_name] = decode_tensor(tensor) if packed else tensor
        return result
    side_tables = read_side_tables(metadata, kept)
    check(not side_tables.keys() & tensors.keys(), FORMAT, "a side table that is also a tensor")
    for name, entry in kept.items():
        if name in side_tables:
            result[name] = side_tables[name]
        elif name in tensors:
            result[name] = tensors.pop(name)
        else:
            check(name + SUFFIX in tensors, FORMAT, f"neither {name} nor {name}{SUFFIX}")
            result[name] = decode_tensor(tensors.pop(name + SUFFIX), entry["dtype"] == "F8_E4M3")
        found = (result[name].dtype, result[name].shape)
        check(found == (entry["dtype"], entry["shape"]), FORMAT, f"{name} is {found}, not as the kept header says")
        begin, end = entry["data_offsets"]
        check(end - begin == len(result[name].data), FORMAT, f"data_offsets of {name} in the kept header")
    check(not tensors, FORMAT, f"tensors that the kept header does not name: {list(tensors)}")
    return result


def rebuild_source(path: Path) -> bytes:
    """The source file, from the header that the writer kept."""
    metadata, _ = read_plain(path)
    text = metadata[HEADER_KEY].encode()
    kept = kept_header(metadata)
    data = bytearray(max((entry["data_offsets"][1] for entry in kept.values()), default=0))
    for name, tensor in read_safetensors(path).items():
        begin, end = kept[name]["data_offsets"]
        data[begin:end] = tensor.data
    return struct.pack("<Q", len(text)) + text + bytes(data)
