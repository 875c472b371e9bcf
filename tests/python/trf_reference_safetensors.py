"""Reads compressed safetensors files (section 10 of format/FORMAT.md) with the second decoder.

`read_safetensors` gives the source's tensors, `rebuild_source` the source file. `write_safetensors` writes plain
files for tests.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from trf_reference import DTYPE_NAMES, MAGIC, FormatError, align16, check, read_blob, source_bytes

INDEX_MAGIC = 0x58414E53
SUFFIX = "_trf"


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


def decode_blob(blob: bytes) -> Tensor:
    header, elements = read_blob(blob)
    return Tensor(DTYPE_NAMES[header.source_dtype], list(elements.shape), source_bytes(header, elements))


def decode_stack(data: bytes) -> Tensor:
    """A 3-D tensor: blobs behind an index."""
    _, count, reserved = struct.unpack_from("<IIQ", data)
    check(reserved == 0, "TRF_ERR_HEADER", "reserved field of the index")
    check(len(data) >= 16 + 8 * count, "TRF_ERR_TRUNCATED", "index of a 3-D tensor")
    offsets = [*struct.unpack_from(f"<{count}Q", data, 16), len(data)]
    end = align16(16 + 8 * count)
    check(offsets[0] == end and not any(data[16 + 8 * count : end]), "TRF_ERR_HEADER", "padding of the index")
    # Each blob must fill its place: read_blob rejects one that is longer or shorter than the bytes it gets.
    slices = [decode_blob(data[a:b]) for a, b in zip(offsets, offsets[1:])]
    first = slices[0]
    if any(s.shape != first.shape or s.dtype != first.dtype for s in slices):
        raise FormatError("TRF_ERR_HEADER", "the blobs of a 3-D tensor differ in shape or dtype")
    return Tensor(first.dtype, [count, *first.shape], b"".join(s.data for s in slices))


def is_compressed(name: str, tensor: Tensor) -> bool:
    """Whether a tensor holds blobs: by suffix and magic."""
    if not name.endswith(SUFFIX) or tensor.dtype != "U8" or len(tensor.data) < 16:
        return False
    return struct.unpack_from("<I", tensor.data)[0] in (MAGIC, INDEX_MAGIC)


def decode_tensor(tensor: Tensor) -> Tensor:
    if struct.unpack_from("<I", tensor.data)[0] == MAGIC:
        return decode_blob(tensor.data)
    return decode_stack(tensor.data)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The source's tensors by name."""
    metadata, tensors = read_plain(path)
    known = metadata.get("transfuse_format", "1")
    check(known == "1", "TRF_ERR_VERSION", f"transfuse_format {known}")
    result = {}
    for name, tensor in tensors.items():
        if is_compressed(name, tensor):
            result[name.removesuffix(SUFFIX)] = decode_tensor(tensor)
        else:
            result[name] = tensor
    return result


def rebuild_source(path: Path) -> bytes:
    """The source file, from the header that the writer kept."""
    metadata, _ = read_plain(path)
    text = metadata["transfuse_source_header"].encode()
    header = json.loads(text)
    header.pop("__metadata__", None)
    data = bytearray(max((entry["data_offsets"][1] for entry in header.values()), default=0))
    tensors = read_safetensors(path)
    for name, entry in header.items():
        tensor = tensors[name]
        check((tensor.dtype, tensor.shape) == (entry["dtype"], entry["shape"]), "TRF_ERR_HEADER", name)
        begin, end = entry["data_offsets"]
        check(end - begin == len(tensor.data), "TRF_ERR_HEADER", name)
        data[begin:end] = tensor.data
    return struct.pack("<Q", len(text)) + text + bytes(data)
