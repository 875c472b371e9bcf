# SPDX-License-Identifier: Apache-2.0
"""A second, independent decoder of the transfuse layer blob, written from format/FORMAT.md alone.

It shares nothing with the C library, so that a fault has to be made twice to go unseen. Section numbers in the
comments are those of FORMAT.md. Needs numpy and xxhash.

Usage: second_decoder.py FILE.trf [--dump] [--npy OUT]
"""

from __future__ import annotations

import argparse
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash
from second_places import (
    LANES,
    ceil_div,
    chunk_weights,
    plane_bit_places,
    plane_widths,
    plane_word_offsets,
    plane_words,
    raw_bytes,
    weight_places,
)

MAGIC = 0x52414E53
VERSION = 4
SCALED_FP8_VERSION = 5
HEADER_BYTES = 64
EXTENSION_BYTES = 256
TABLE_OFFSET = 320
TILES_OFFSET = 832
TILE_SIZE = 256
SLAB_ROWS = 32

BF16, FP16, E4M3, E5M2, INT = 1, 2, 3, 4, 5
CODEC_NAMES = {BF16: "bf16", FP16: "fp16", E4M3: "fp8 e4m3", E5M2: "fp8 e5m2", INT: "int"}
EXPONENT_MAX = {BF16: 255, FP16: 31, E4M3: 15, E5M2: 31}
MANTISSA_BITS = {BF16: 7, FP16: 10, E4M3: 3, E5M2: 2}
ELEMENT_BYTES = {BF16: 2, FP16: 2, E4M3: 1, E5M2: 1}
#: raw_bits of the float codecs, by codec and class_bits (section 5)
RAW_BITS = {
    (BF16, 4): 8, (BF16, 2): 10,
    (FP16, 4): 11, (FP16, 2): 13,
    (E4M3, 4): 4, (E4M3, 2): 6,
    (E5M2, 4): 3, (E5M2, 2): 5,
}  # fmt: skip
#: place of the sign in R, by codec and class_bits (section 5)
SIGN_BIT = {
    (BF16, 4): 7, (BF16, 2): 7,
    (FP16, 4): 7, (FP16, 2): 7,
    (E4M3, 4): 0, (E4M3, 2): 4,
    (E5M2, 4): 0, (E5M2, 2): 0,
}  # fmt: skip
#: the weight of the same four in whose place a weight's sign is stored (section 7)
SIGN_STORED_AT = [2, 3, 1, 0]

F32, F16, BF16_DTYPE, F8_E4M3, F8_E5M2, I8 = 1, 2, 3, 4, 5, 6
DTYPE_NAMES = {F32: "F32", F16: "F16", BF16_DTYPE: "BF16", F8_E4M3: "F8_E4M3", F8_E5M2: "F8_E5M2", I8: "I8"}
FLOAT_PAIRS = {
    (BF16_DTYPE, BF16), (F32, BF16), (F16, FP16), (F8_E4M3, E4M3), (F8_E5M2, E5M2), (BF16_DTYPE, E4M3),
}  # fmt: skip

GRANULARITY_NONE, TENSOR, CHANNEL, SCALE_GROUP, BLOCK = range(5)
GRANULARITY_NAMES = ["none", "tensor", "channel", "scale-group", "scale-block"]
SCALE_NONE, SCALE_F32, SCALE_F16 = range(3)
ROW_OFFSETS, COL_OFFSETS = 1, 2
CODED, STORED = 0, 1


class FormatError(ValueError):
    """A blob that section 9 rejects. `status` is the name of the trf_status that the C library gives."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


def check(condition: bool, status: str, message: str) -> None:
    if not condition:
        raise FormatError(status, message)


def align16(x: int) -> int:
    return (x + 15) // 16 * 16


def align128(x: int) -> int:
    return (x + 127) // 128 * 128


@dataclass
class Tile:
    """Metadata of one tile, and what follows from its place."""

    index: int
    row: int
    col: int
    height: int
    width: int
    data_offset: int
    data_size: int
    predictor_mode: int
    coding: int
    exception_count: int
    checksum: int

    @property
    def coded_rows(self) -> int:
        return self.height // 16 * 16 if self.coding == CODED else 0

    @property
    def coded_cols(self) -> int:
        return self.width // 16 * 16 if self.coding == CODED else 0


@dataclass
class Header:
    """All fields of the header and the extension, the tables of the head, and the tiles' metadata."""

    codec: int
    source_dtype: int
    class_bits: int
    raw_bits: int
    rows: int
    cols: int
    num_tile_rows: int
    num_tile_cols: int
    probability_bits: int
    state_bits: int
    slab_cols: int
    stored_element_bytes: int
    predictor_modes: int
    blob_bytes: int
    head_checksum: int
    class_value: list[int]
    exponent_offset: int
    granularity: int
    scale_dtype: int
    scale_group_size: int
    scale_exponent: int
    scales_offset: int
    scales_bytes: int
    row_offsets_offset: int
    row_offsets_bytes: int
    col_offsets_offset: int
    col_offsets_bytes: int
    data_offset: int
    exception_count: int
    frequencies: np.ndarray = field(default_factory=lambda: np.zeros(256, np.int64), repr=False)
    scales: np.ndarray | None = field(default=None, repr=False)
    row_offsets: np.ndarray | None = field(default=None, repr=False)
    col_offsets: np.ndarray | None = field(default=None, repr=False)
    tiles: list[Tile] = field(default_factory=list, repr=False)

    @property
    def num_tiles(self) -> int:
        return self.num_tile_rows * self.num_tile_cols

    @property
    def is_int(self) -> bool:
        return self.codec == INT

    @property
    def is_scaled_fp8(self) -> bool:
        return (self.codec, self.source_dtype) == (E4M3, BF16_DTYPE)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of a float codec."""
        return 2 if self.is_scaled_fp8 else ELEMENT_BYTES[self.codec]


# ---------------------------------------------------------------------------------------------------------------
# The head: sections 2 and 3, metadata of section 4
# ---------------------------------------------------------------------------------------------------------------


def scale_shape(header: Header) -> tuple[int, ...]:
    """Shape of the scale table."""
    n, k, g = header.rows, header.cols, header.scale_group_size
    if header.granularity == TENSOR:
        return (1,)
    if header.granularity == CHANNEL:
        return (n,)
    if header.granularity == SCALE_GROUP:
        return (n, ceil_div(k, g))
    return (ceil_div(n, g), ceil_div(k, g))


def check_ranges(h: Header) -> None:
    """Ranges and consistency of the fields that need nothing else from the blob."""

    def require(condition: bool, message: str) -> None:
        check(condition, "TRF_ERR_HEADER", message)

    require(h.codec in CODEC_NAMES, f"codec {h.codec}")
    require(h.source_dtype in DTYPE_NAMES, f"source_dtype {h.source_dtype}")
    if h.is_int:
        require(h.source_dtype in (I8, F32, F16, BF16_DTYPE), "source dtype of an int blob")
        require((h.source_dtype == I8) == (h.granularity == GRANULARITY_NONE), "scales if and only if not I8")
    else:
        require((h.source_dtype, h.codec) in FLOAT_PAIRS, "pair of source dtype and codec")
        allowed = (TENSOR, CHANNEL, BLOCK) if h.is_scaled_fp8 else (GRANULARITY_NONE,)
        require(h.granularity in allowed, f"granularity {h.granularity} of a float blob")
    require(h.class_bits in (2, 4), f"class_bits {h.class_bits}")
    if h.is_int:
        require(0 <= h.raw_bits <= 8, f"raw_bits {h.raw_bits}")
        require(h.stored_element_bytes in (1, 2), f"stored_element_bytes {h.stored_element_bytes}")
    else:
        require(h.raw_bits == RAW_BITS[h.codec, h.class_bits], f"raw_bits {h.raw_bits}")
        require(h.stored_element_bytes == h.element_bytes, f"stored_element_bytes {h.stored_element_bytes}")
    require(1 <= h.rows < 2**31 and 1 <= h.cols < 2**31, f"shape {h.rows} x {h.cols}")
    require(h.num_tile_rows == ceil_div(h.rows, TILE_SIZE), f"num_tile_rows {h.num_tile_rows}")
    require(h.num_tile_cols == ceil_div(h.cols, TILE_SIZE), f"num_tile_cols {h.num_tile_cols}")
    require(9 <= h.probability_bits <= 12, f"probability_bits {h.probability_bits}")
    require(h.probability_bits <= h.state_bits <= 16, f"state_bits {h.state_bits}")
    require(h.slab_cols in (128, 256), f"slab_cols {h.slab_cols}")
    require(h.predictor_modes <= 3, f"predictor_modes {h.predictor_modes}")
    require(not h.is_int or h.predictor_modes == 0, "predictor_modes of an int blob")
    require(h.blob_bytes % 128 == 0, f"blob_bytes {h.blob_bytes}")

    used, unused = h.class_value[: 1 << h.class_bits], h.class_value[1 << h.class_bits :]
    require(not any(unused), "class_value beyond 2^c is not zero")
    if h.is_int:
        step = 1 << h.raw_bits
        require(all(v == used[0] + k * step for k, v in enumerate(used)), "class_value is no progression")
        require(all(-1024 <= v <= 1023 for v in used), "class_value out of range")
    else:
        require(all(0 <= v <= EXPONENT_MAX[h.codec] for v in used), "class_value out of range")
        require(len(set(used)) == len(used), "class_value twice")
        require(h.class_bits == 4 or all(v % 4 == 0 for v in used), "class_value of quads is no multiple of 4")
    require(-254 <= h.exponent_offset <= 254, f"exponent_offset {h.exponent_offset}")
    require(not h.is_int or h.exponent_offset == 0, "exponent_offset of an int blob")

    require(h.granularity <= BLOCK, f"granularity {h.granularity}")
    wanted = {GRANULARITY_NONE: SCALE_NONE, TENSOR: SCALE_F32, CHANNEL: SCALE_F32}.get(h.granularity, SCALE_F16)
    if h.is_scaled_fp8:
        wanted = SCALE_F32
    require(h.scale_dtype == wanted, f"scale_dtype {h.scale_dtype}")
    if h.granularity in (SCALE_GROUP, BLOCK):
        is_size = h.scale_group_size % 16 == 0 and 16 <= h.scale_group_size <= 2**20
        require(is_size, f"scale_group_size {h.scale_group_size}")
    else:
        require(h.scale_group_size == 0, f"scale_group_size {h.scale_group_size}")
    require(-126 <= h.scale_exponent <= 126, f"scale_exponent {h.scale_exponent}")
    require(h.scale_dtype == SCALE_F16 or h.scale_exponent == 0, "scale_exponent without F16 scales")


def section_layout(h: Header) -> list[tuple[str, int, int]]:
    """(name, offset, bytes) of the optional sections as section 3 demands them."""
    sizes = {"scales": 0, "row_offsets": 0, "col_offsets": 0}
    if h.granularity != GRANULARITY_NONE:
        item = 4 if h.scale_dtype == SCALE_F32 else 2
        count = 1
        for extent in scale_shape(h):
            count *= extent
        sizes["scales"] = item * count
    if h.predictor_modes & ROW_OFFSETS:
        sizes["row_offsets"] = h.rows
    if h.predictor_modes & COL_OFFSETS:
        sizes["col_offsets"] = h.cols
    end = TILES_OFFSET + 32 * h.num_tiles
    layout = []
    for name, size in sizes.items():
        offset = align16(end) if size else 0
        layout.append((name, offset, size))
        end = offset + size if size else end
    layout.append(("data", align128(end), 0))
    return layout


def read_header(blob: bytes) -> Header:
    """Parses and checks the fixed first 320 bytes."""
    check(len(blob) >= TABLE_OFFSET, "TRF_ERR_TRUNCATED", f"{len(blob)} bytes, fewer than header and extension")
    (
        magic, version, codec, source_dtype, class_bits, raw_bits, tile_size, rows, cols, tiles_row, tiles_col,
        probability_bits, state_bits, slab_rows, rans_streams, slab_cols, stored_element_bytes, predictor_modes,
        extension_offset, extension_bytes, flags, blob_bytes, head_checksum,
    ) = struct.unpack_from("<IHBBBBHIIIIBBBBHBBIIIQQ", blob, 0)  # fmt: skip
    (
        *class_value, exponent_offset, granularity, scale_dtype, reserved, scale_group_size, scale_exponent,
    ) = struct.unpack_from("<16hiBBHIi", blob, HEADER_BYTES)  # fmt: skip
    (
        frequency_offset, tiles_offset, scales_offset, scales_bytes, row_offsets_offset, row_offsets_bytes,
        col_offsets_offset, col_offsets_bytes, data_offset, exception_count,
    ) = struct.unpack_from("<10Q", blob, HEADER_BYTES + 48)  # fmt: skip

    check(magic == MAGIC, "TRF_ERR_MAGIC", f"magic {magic:#010x}")
    is_scaled_fp8 = (codec, source_dtype) == (E4M3, BF16_DTYPE)
    known = version == VERSION or (version == SCALED_FP8_VERSION and is_scaled_fp8)
    check(known, "TRF_ERR_VERSION", f"version {version}")
    check(not is_scaled_fp8 or version == SCALED_FP8_VERSION, "TRF_ERR_HEADER", f"scaled FP8 in version {version}")
    constants = {
        "tile_size": (tile_size, TILE_SIZE),
        "slab_rows": (slab_rows, SLAB_ROWS),
        "rans_streams_per_lane": (rans_streams, 1),
        "extension_offset": (extension_offset, HEADER_BYTES),
        "extension_bytes": (extension_bytes, EXTENSION_BYTES),
        "flags": (flags, 0),
        "reserved field of the extension": (reserved, 0),
        "frequency_offset": (frequency_offset, TABLE_OFFSET),
        "tiles_offset": (tiles_offset, TILES_OFFSET),
    }
    for name, (value, wanted) in constants.items():
        check(value == wanted, "TRF_ERR_HEADER", f"{name} is {value}, not {wanted}")
    check(not any(blob[HEADER_BYTES + 128 : TABLE_OFFSET]), "TRF_ERR_HEADER", "reserved bytes of the extension")

    header = Header(
        codec=codec, source_dtype=source_dtype, class_bits=class_bits, raw_bits=raw_bits, rows=rows, cols=cols,
        num_tile_rows=tiles_row, num_tile_cols=tiles_col, probability_bits=probability_bits, state_bits=state_bits,
        slab_cols=slab_cols, stored_element_bytes=stored_element_bytes, predictor_modes=predictor_modes,
        blob_bytes=blob_bytes, head_checksum=head_checksum, class_value=list(class_value),
        exponent_offset=exponent_offset, granularity=granularity, scale_dtype=scale_dtype,
        scale_group_size=scale_group_size, scale_exponent=scale_exponent, scales_offset=scales_offset,
        scales_bytes=scales_bytes, row_offsets_offset=row_offsets_offset, row_offsets_bytes=row_offsets_bytes,
        col_offsets_offset=col_offsets_offset, col_offsets_bytes=col_offsets_bytes,
        data_offset=data_offset, exception_count=exception_count,
    )  # fmt: skip
    check_ranges(header)
    return header


def read_head(blob: bytes) -> Header:
    """Parses and checks everything before the tile data, and the sequence of the tiles."""
    h = read_header(blob)

    # Sections. Their places follow from the other fields, so "inside, in order, no overlap" is one comparison.
    end = TILES_OFFSET + 32 * h.num_tiles
    for name, offset, size in section_layout(h):
        if name == "data":
            check(h.data_offset == offset, "TRF_ERR_HEADER", f"data_offset {h.data_offset}, not {offset}")
            continue
        given = (getattr(h, f"{name}_offset"), getattr(h, f"{name}_bytes"))
        check(given == (offset, size), "TRF_ERR_HEADER", f"{name} at (offset, bytes) {given}, not {(offset, size)}")
    check(h.blob_bytes > h.data_offset, "TRF_ERR_HEADER", f"blob_bytes {h.blob_bytes} leaves no tile data")
    check(len(blob) >= h.blob_bytes, "TRF_ERR_TRUNCATED", f"{len(blob)} bytes of {h.blob_bytes}")
    check(len(blob) == h.blob_bytes, "TRF_ERR_HEADER", f"{len(blob)} bytes, {h.blob_bytes} announced")

    hashed = blob[:56] + bytes(8) + blob[64 : h.data_offset]
    check(xxhash.xxh3_64_intdigest(hashed) == h.head_checksum, "TRF_ERR_CHECKSUM", "head_checksum")

    h.frequencies = np.frombuffer(blob, "<u2", 256, TABLE_OFFSET).astype(np.int64)
    slots = 1 << h.probability_bits
    check(int(h.frequencies.max()) < slots, "TRF_ERR_TABLE", "a frequency of 2^p or more")
    check(int(h.frequencies.sum()) == slots, "TRF_ERR_TABLE", f"frequencies sum to {h.frequencies.sum()}")

    # Zero bytes between the sections and in front of the tiles.
    for name, offset, size in section_layout(h):
        if offset:
            check(not any(blob[end:offset]), "TRF_ERR_HEADER", f"padding before {name} is not zero")
            end = offset + size

    if h.scales_bytes:
        dtype = "<f4" if h.scale_dtype == SCALE_F32 else "<f2"
        shape = scale_shape(h)
        table = np.frombuffer(blob, dtype, int(np.prod(shape)), h.scales_offset).reshape(shape)
        check(bool(np.all(np.isfinite(table) & (table > 0))), "TRF_ERR_HEADER", "a scale is not finite and > 0")
        if h.is_scaled_fp8:
            in_range = np.all((table >= 2.0**-100) & (table <= 2.0**100))
            check(bool(in_range), "TRF_ERR_HEADER", "a scale of scaled FP8 is not in 2^-100 ... 2^100")
        h.scales = table
        check(bool(np.all(np.isfinite(scale_values(h)))), "TRF_ERR_HEADER", "a scale times 2^q is infinite")
    if h.row_offsets_bytes:
        h.row_offsets = np.frombuffer(blob, "i1", h.rows, h.row_offsets_offset).astype(np.int64)
    if h.col_offsets_bytes:
        h.col_offsets = np.frombuffer(blob, "i1", h.cols, h.col_offsets_offset).astype(np.int64)

    read_tiles(blob, h)
    return h


def read_tiles(blob: bytes, h: Header) -> None:
    """Parses the tiles' metadata into `h.tiles` and checks it."""
    offset, modes, exceptions = h.data_offset, 0, 0
    for t in range(h.num_tiles):
        data_offset, data_size, mode, coding, reserved, count, reserved2, checksum = struct.unpack_from(
            "<QIBBHIIQ", blob, TILES_OFFSET + 32 * t
        )
        row, col = t // h.num_tile_cols * TILE_SIZE, t % h.num_tile_cols * TILE_SIZE
        tile = Tile(
            t, row, col, min(TILE_SIZE, h.rows - row), min(TILE_SIZE, h.cols - col),
            data_offset, data_size, mode, coding, count, checksum,
        )  # fmt: skip

        def require(condition: bool, message: str, t: int = t) -> None:
            check(condition, "TRF_ERR_TILE", f"tile {t}: {message}")

        require(data_offset == offset, f"data_offset {data_offset}, not {offset}")
        require(data_size % 128 == 0, f"data_size {data_size}")
        require(data_offset + data_size <= h.blob_bytes, "ends behind the blob")
        require(reserved == 0 and reserved2 == 0, "reserved field")
        require(coding in (CODED, STORED), f"coding {coding}")
        require(mode <= 3, f"predictor_mode {mode}")
        require(not h.is_int or mode == 0, "predictor_mode in an int blob")
        if coding == STORED:
            require(mode == 0, "predictor_mode of a stored tile")
            require(count == 0, "exceptions in a stored tile")
            size = align128(tile.height * tile.width * h.stored_element_bytes)
            require(data_size == size, f"data_size {data_size} of a stored tile, not {size}")
        else:
            require(tile.coded_rows >= 16 and tile.coded_cols >= 16, "coded, but narrower than 16")
        offset += data_size
        modes |= mode
        exceptions += count
        h.tiles.append(tile)
    check(offset == h.blob_bytes, "TRF_ERR_TILE", f"tiles end at {offset}, the blob at {h.blob_bytes}")
    check(modes == h.predictor_modes, "TRF_ERR_TILE", f"predictor_modes {h.predictor_modes}, tiles have {modes}")
    check(exceptions == h.exception_count, "TRF_ERR_TILE", f"exception_count {h.exception_count}, not {exceptions}")


# ---------------------------------------------------------------------------------------------------------------
# Slabs: sections 6, 7 and 8
# ---------------------------------------------------------------------------------------------------------------


@dataclass
class Slab:
    """One slab of a coded tile, parsed and checked but not yet entropy decoded."""

    row: int
    col: int
    blocks: int
    n: int
    raw: np.ndarray
    start_state: np.ndarray
    lane_pair_words: np.ndarray
    words: np.ndarray
    exception_index: np.ndarray
    exception_lane: np.ndarray
    exception_element: np.ndarray


def read_plane(data: bytes, width: int, m: int, where: str) -> np.ndarray:
    """The `width` bits of every weight of a chunk: array [lane][m]."""
    z_count = plane_words(m, width)
    words = np.frombuffer(data, "<u4", LANES * z_count)[plane_word_offsets(z_count) // 4].astype(np.int64)
    bits = words[:, :, None, None] >> plane_bit_places(width)[None, None] & 1
    fields = (bits << np.arange(width)).sum(axis=3).reshape(LANES, -1)
    check(not fields[:, m:].any(), "TRF_ERR_TILE", f"{where}: unused bits of the plane of width {width}")
    return fields[:, :m]


def read_raw(h: Header, data: bytes, n: int, where: str) -> np.ndarray:
    """R of every weight out of the chunks: array [lane][n]."""
    chunks, position = [], 0
    for k, m in enumerate(chunk_weights(n)):
        raw, shift = np.zeros((LANES, m), np.int64), 0
        for width in plane_widths(h.raw_bits):
            raw |= read_plane(data[position:], width, m, f"{where} chunk {k}") << shift
            shift += width
            position += 128 * plane_words(m, width)
        chunks.append(raw)
    raw = np.concatenate(chunks, axis=1)
    if h.is_int:
        return raw
    mask = 1 << SIGN_BIT[h.codec, h.class_bits]
    signs = (raw & mask).reshape(LANES, -1, 4)[:, :, SIGN_STORED_AT]
    return raw & ~mask | signs.reshape(LANES, -1)


def slab_places(h: Header, tile: Tile) -> list[tuple[int, int, int, int]]:
    """Row and column of the first weight, B and n of every slab of a coded tile."""
    places = []
    for row in range(0, tile.coded_rows, SLAB_ROWS):
        for col in range(0, tile.coded_cols, h.slab_cols):
            blocks = min(2, (tile.coded_rows - row) // 16)
            places.append((row, col, blocks, 8 * blocks * (min(h.slab_cols, tile.coded_cols - col) // 16)))
    return places


def read_slab(h: Header, chunks: bytes, data: bytes, tile: Tile, s: int) -> Slab:
    """Parses and checks slab `s`, whose raw bits are `chunks` and whose rANS streams are `data`."""
    where = f"tile {tile.index} slab {s}"

    def require(condition: bool, message: str) -> None:
        check(condition, "TRF_ERR_TILE", f"{where}: {message}")

    row, col, blocks, n = slab_places(h, tile)[s]
    require(len(data) >= 84, f"{len(data)} bytes are too few")
    start_state = np.frombuffer(data, "<u2", LANES)
    lane_pair_words = np.frombuffer(data, "u1", 16, 64).astype(np.int64)
    exceptions, reserved = struct.unpack_from("<HH", data, 80)
    require(reserved == 0, f"reserved field {reserved}")
    word_count = int(lane_pair_words.sum())
    end = 84 + 4 * exceptions + 2 * word_count
    require(len(data) == align16(end), f"{len(data)} bytes, the contents take {align16(end)}")
    require(not any(data[end:]), "padding is not zero")
    records = np.frombuffer(data, "<u4", exceptions, 84).astype(np.int64)
    words = np.frombuffer(data, "<u2", word_count, 84 + 4 * exceptions)
    raw = read_raw(h, chunks, n, where)

    places, element = records >> 19, records & 0xFFFF
    require(bool(np.all(np.diff(places) > 0)), "exceptions do not ascend")
    require(bool(np.all(places // 32 < n)), "an exception behind the last weight")
    require(not (records >> 16 & 7).any(), "bits 18:16 of an exception are not zero")
    if h.is_int:
        element = np.where(element >= 1 << 15, element - (1 << 16), element)
        require(bool(np.all((element >= -1024) & (element <= 1023))), "the code of an exception is too large")
    else:
        require(bool(np.all(element < 256**h.element_bytes)), "the element of an exception is too large")
    check(bool(np.all(start_state != 0)), "TRF_ERR_RANS", f"{where}: a start state of 0")
    return Slab(row, col, blocks, n, raw, start_state, lane_pair_words, words, places // 32, places % 32, element)


def decode_symbols(h: Header, slabs: list[Slab], where: str) -> list[np.ndarray]:
    """Runs all lanes of all slabs of a tile at once; gives each slab's symbols as an array [lane][j]."""
    counts = [slab.n * h.class_bits // 8 for slab in slabs]
    words = np.concatenate([slab.words for slab in slabs] + [np.zeros(1, np.uint16)]).astype(np.uint64)
    owned = np.concatenate([slab.lane_pair_words for slab in slabs])
    first = np.cumsum(owned) - owned
    # Lanes 0…15 of a slab start at their lane pair's first word, lanes 16…31 at its last.
    pointer = np.stack([first.reshape(-1, 16), (first + owned - 1).reshape(-1, 16)], axis=1).reshape(-1)
    start = pointer.copy()
    direction = np.tile(np.repeat([1, -1], 16), len(slabs))

    lower = np.uint64(1 << h.state_bits)
    mask, bits = np.uint64((1 << h.probability_bits) - 1), np.uint64(h.probability_bits)
    frequency = h.frequencies.astype(np.uint64)
    begin = np.cumsum(frequency) - frequency
    symbol_of_slot = np.repeat(np.arange(256), h.frequencies)

    def refill(active: np.ndarray) -> None:
        low = x[active] < lower
        word = words[np.clip(pointer[active], 0, len(words) - 1)]
        x[active] = np.where(low, x[active] << np.uint64(16) | word, x[active])
        pointer[active] += np.where(low, direction[active], 0)

    x = np.concatenate([slab.start_state for slab in slabs]).astype(np.uint64)
    symbols = np.zeros((max(counts), len(x)), np.uint8)
    refill(np.arange(len(x)))
    for j in range(max(counts)):
        active = np.flatnonzero(np.repeat(np.array(counts) > j, LANES))
        slot = x[active] & mask
        symbol = symbol_of_slot[slot]
        symbols[j, active] = symbol
        x[active] = frequency[symbol] * (x[active] >> bits) + slot - begin[symbol]
        refill(active)

    check(bool(np.all(x == lower)), "TRF_ERR_RANS", f"{where}: a lane does not end at 2^L")
    taken = np.abs(pointer - start).reshape(-1, 2, 16).sum(axis=1).reshape(-1)
    check(bool(np.all(taken == owned)), "TRF_ERR_RANS", f"{where}: a pair does not take its words exactly")
    return [symbols[:count, LANES * s : LANES * (s + 1)].T for s, count in enumerate(counts)]


def symbols_to_classes(symbols: np.ndarray, class_bits: int) -> np.ndarray:
    """Classes [lane][i] of the symbols [lane][j]."""
    shifts = np.arange(0, 8, class_bits)
    classes = symbols.astype(np.int64)[:, :, None] >> shifts & ((1 << class_bits) - 1)
    return classes.reshape(len(symbols), -1)


# ---------------------------------------------------------------------------------------------------------------
# Tiles and elements: sections 4 and 5
# ---------------------------------------------------------------------------------------------------------------


def split_raw(h: Header, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sign, the two low bits of C (0 for pairs) and mantissa out of R."""
    m, place = MANTISSA_BITS[h.codec], SIGN_BIT[h.codec, h.class_bits]
    sign = raw >> place & 1
    if (h.codec, h.class_bits) == (E4M3, 2):  # M[0] | s | e | M[2:1]
        return sign, raw >> 2 & 3, (raw & 3) << 1 | raw >> 5
    e = raw >> (m + 1) if h.class_bits == 2 else np.zeros_like(raw)
    below, above = raw & ((1 << place) - 1), raw >> (place + 1)
    return sign, e, (above << place | below) & ((1 << m) - 1)


def decode_coded_region(h: Header, tile: Tile, slabs: list[Slab]) -> np.ndarray:
    """Elements [H][V] of the coded region."""
    shape = (tile.coded_rows, tile.coded_cols)
    classes, raw = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    exceptions: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for slab, symbols in zip(slabs, decode_symbols(h, slabs, f"tile {tile.index}")):
        rows, cols = weight_places(slab.n, slab.blocks)
        rows, cols = rows + slab.row, cols + slab.col
        classes[rows, cols] = symbols_to_classes(symbols, h.class_bits)
        raw[rows, cols] = slab.raw
        at = (slab.exception_lane, slab.exception_index)
        exceptions.append((rows[at], cols[at], slab.exception_element))

    elements = np.array(h.class_value)[classes]
    if h.is_int:
        elements += raw
    else:
        sign, e, mantissa = split_raw(h, raw)
        exponent = elements + e + h.exponent_offset
        if tile.predictor_mode & ROW_OFFSETS:
            exponent += h.row_offsets[tile.row : tile.row + shape[0], None]
        if tile.predictor_mode & COL_OFFSETS:
            exponent += h.col_offsets[None, tile.col : tile.col + shape[1]]
        exponent %= EXPONENT_MAX[h.codec] + 1
        elements = sign << (8 * ELEMENT_BYTES[h.codec] - 1) | exponent << MANTISSA_BITS[h.codec] | mantissa
    if h.is_scaled_fp8:
        place = np.s_[tile.row : tile.row + shape[0], tile.col : tile.col + shape[1]]
        elements = scale_fp8(elements, np.broadcast_to(weight_scales(h), (h.rows, h.cols))[place])
    for rows, cols, values in exceptions:
        elements[rows, cols] = values
    return elements


def decode_tile(h: Header, blob: bytes, tile: Tile) -> np.ndarray:
    """Checks one tile and gives its elements [h][w]."""
    data = blob[tile.data_offset : tile.data_offset + tile.data_size]
    digest = xxhash.xxh3_64_intdigest(data, tile.index)
    check(digest == tile.checksum, "TRF_ERR_CHECKSUM", f"tile {tile.index}: checksum")

    def require(condition: bool, message: str) -> None:
        check(condition, "TRF_ERR_TILE", f"tile {tile.index}: {message}")

    elements = np.zeros((tile.height, tile.width), np.int64)
    coded_rows, coded_cols = tile.coded_rows, tile.coded_cols
    position = 0
    slabs: list[Slab] = []
    if tile.coding == CODED:
        raw_sizes = [raw_bytes(n, h.raw_bits) for _, _, _, n in slab_places(h, tile)]
        slab_count = len(raw_sizes)
        table_at = sum(raw_sizes)
        rans_streams_at = position = table_at + align16(2 * slab_count)
        require(len(data) >= position, "no room for raw bits and slab table")
        require(not any(data[table_at + 2 * slab_count : position]), "padding of the slab table is not zero")
        ends = struct.unpack_from(f"<{slab_count}H", data, table_at)
        for s, (size, units) in enumerate(zip(raw_sizes, ends)):
            end = rans_streams_at + 16 * units
            require(position < end <= len(data), f"the rANS streams of slab {s} end at {end}")
            chunks = data[sum(raw_sizes[:s]) :][:size]
            slabs.append(read_slab(h, chunks, data[position:end], tile, s))
            position = end
        count = sum(len(slab.exception_element) for slab in slabs)
        require(count == tile.exception_count, f"{count} exceptions, {tile.exception_count} announced")

    right, below = coded_rows * (tile.width - coded_cols), (tile.height - coded_rows) * tile.width
    sliver_bytes = (right + below) * h.stored_element_bytes
    require(len(data) == align128(position + sliver_bytes), "size of the slivers")
    require(not any(data[position + sliver_bytes :]), "padding at the end is not zero")
    dtype = {(False, 1): "u1", (False, 2): "<u2", (True, 1): "i1", (True, 2): "<i2"}[h.is_int, h.stored_element_bytes]
    stored = np.frombuffer(data, dtype, right + below, position)
    elements[:coded_rows, coded_cols:] = stored[:right].reshape(coded_rows, tile.width - coded_cols)
    elements[coded_rows:, :] = stored[right:].reshape(tile.height - coded_rows, tile.width)
    if slabs:
        elements[:coded_rows, :coded_cols] = decode_coded_region(h, tile, slabs)
    return elements


def read_blob(blob: bytes) -> tuple[Header, np.ndarray]:
    """Checks and decodes a whole blob: its header, and its elements [N][K] as uint16 (float codecs) or int16."""
    h = read_head(blob)
    elements = np.zeros((h.rows, h.cols), np.int16 if h.is_int else np.uint16)
    for tile in h.tiles:
        place = np.s_[tile.row : tile.row + tile.height, tile.col : tile.col + tile.width]
        elements[place] = decode_tile(h, blob, tile)
    return h, elements


# ---------------------------------------------------------------------------------------------------------------
# Back to the source's dtype
# ---------------------------------------------------------------------------------------------------------------


def scale_values(h: Header) -> np.ndarray:
    """The scale table's values times 2^q, in float32."""
    with np.errstate(over="ignore"):
        return h.scales.astype(np.float32) * np.float32(2.0**h.scale_exponent)


def weight_scales(h: Header) -> np.ndarray:
    """The scale s of every weight as float64, in a shape that broadcasts to [N][K]."""
    table = scale_values(h).astype(np.float64)
    if h.granularity == TENSOR:
        return table[None, :]
    if h.granularity == CHANNEL:
        return table[:, None]
    table = np.repeat(table, h.scale_group_size, axis=1)[:, : h.cols]
    if h.granularity == BLOCK:
        table = np.repeat(table, h.scale_group_size, axis=0)[: h.rows]
    return table


def round_to_bf16(values: np.ndarray) -> np.ndarray:
    """float64 to BF16 bit patterns, rounded once to nearest even, with gradual underflow."""
    _, exponent = np.frexp(values)
    quantum = np.maximum(exponent - 1, -126) - 7
    rounded = np.ldexp(np.rint(np.ldexp(values, -quantum)), quantum)
    with np.errstate(over="ignore"):
        return (rounded.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def scale_fp8(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """BF16 bit patterns of E4M3 codes times scales (which broadcast to them): rounded to F32, then to BF16.

    A NaN's code is the number 480 that its bits would be (section 5).
    """
    exponent, mantissa = codes >> 3 & 15, codes & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    products = values.astype(np.float32) * np.asarray(scales, np.float32)
    return (codes >> 7) << 15 | round_to_bf16(products.astype(np.float64)).astype(np.int64)


def source_bytes(h: Header, elements: np.ndarray) -> bytes:
    """The raw bytes of the tensor in its source dtype."""
    if h.is_int and h.source_dtype != I8:
        with np.errstate(invalid="ignore", over="ignore"):
            values = elements.astype(np.float64) * weight_scales(h)
            if h.source_dtype == F32:
                return values.astype("<f4").tobytes()
            if h.source_dtype == F16:
                return values.astype("<f2").tobytes()
        return round_to_bf16(values).astype("<u2").tobytes()
    if h.source_dtype == F32:
        return (elements.astype("<u4") << 16).astype("<u4").tobytes()
    if h.source_dtype in (BF16_DTYPE, F16):
        return elements.astype("<u2").tobytes()
    return elements.astype("u1").tobytes()


# ---------------------------------------------------------------------------------------------------------------
# Command line
# ---------------------------------------------------------------------------------------------------------------


def dump(h: Header) -> str:
    """The fields of the head as text, one a line."""
    lines = []
    for name, value in vars(h).items():
        if name in ("frequencies", "scales", "row_offsets", "col_offsets", "tiles"):
            continue
        meaning = {
            "codec": CODEC_NAMES, "source_dtype": DTYPE_NAMES, "granularity": dict(enumerate(GRANULARITY_NAMES)),
        }.get(name, {})  # fmt: skip
        text = f"{value:#018x}" if name == "head_checksum" else str(value)
        lines.append(f"{name:20} {text}" + (f"  ({meaning[value]})" if meaning else ""))
    used = np.flatnonzero(h.frequencies)
    lines.append(f"{'symbols':20} {len(used)}, largest frequency {h.frequencies.max()}")
    for tile in h.tiles:
        lines.append(
            f"tile {tile.index}: rows {tile.row}+{tile.height} cols {tile.col}+{tile.width}"
            f" {'stored' if tile.coding == STORED else 'coded'} mode {tile.predictor_mode}"
            f" at {tile.data_offset} size {tile.data_size} exceptions {tile.exception_count}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks and decodes one .trf file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--dump", action="store_true", help="print the fields of the head")
    parser.add_argument("--npy", type=Path, metavar="OUT", help="write the elements as a .npy file")
    args = parser.parse_args()
    try:
        header, elements = read_blob(args.file.read_bytes())
    except FormatError as error:
        print(f"{args.file}: {error}", file=sys.stderr)
        return 1
    if args.dump:
        print(dump(header))
    if args.npy:
        np.save(args.npy, elements)
    data = source_bytes(header, elements)
    print(f"{header.rows} x {header.cols} {DTYPE_NAMES[header.source_dtype]}, XXH3-64 {xxhash.xxh3_64_hexdigest(data)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
