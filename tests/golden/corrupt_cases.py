# SPDX-License-Identifier: Apache-2.0
"""Blobs that a reader has to reject, each with exactly one fault and the status that this fault has.

If a checksum covers the fault, the checksums are corrected, so that the intended check reports it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
import second_decoder as ref
import xxhash
from second_encoder import Options, encode, seal, seal_head

Case = tuple[str, bytes, str, str]

TRUNCATED, MAGIC, VERSION, HEADER = "TRF_ERR_TRUNCATED", "TRF_ERR_MAGIC", "TRF_ERR_VERSION", "TRF_ERR_HEADER"
TABLE, TILE, CHECKSUM, RANS = "TRF_ERR_TABLE", "TRF_ERR_TILE", "TRF_ERR_CHECKSUM", "TRF_ERR_RANS"

#: struct format and byte offset of the fields, extension fields included
FIELDS = {
    "magic": ("I", 0), "version": ("H", 4), "codec": ("B", 6), "source_dtype": ("B", 7), "class_bits": ("B", 8),
    "raw_bits": ("B", 9), "tile_size": ("H", 10), "rows": ("I", 12), "cols": ("I", 16), "num_tile_rows": ("I", 20),
    "num_tile_cols": ("I", 24), "probability_bits": ("B", 28), "state_bits": ("B", 29), "slab_rows": ("B", 30),
    "rans_streams_per_lane": ("B", 31), "slab_cols": ("H", 32), "stored_element_bytes": ("B", 34),
    "predictor_modes": ("B", 35), "extension_offset": ("I", 36), "extension_bytes": ("I", 40), "flags": ("I", 44),
    "blob_bytes": ("Q", 48), "head_checksum": ("Q", 56), "exponent_offset": ("i", 96), "granularity": ("B", 100),
    "scale_dtype": ("B", 101), "reserved": ("H", 102), "scale_group_size": ("I", 104), "scale_exponent": ("i", 108),
    "frequency_offset": ("Q", 112), "tiles_offset": ("Q", 120), "scales_offset": ("Q", 128), "scales_bytes": ("Q", 136),
    "row_offsets_offset": ("Q", 144), "row_offsets_bytes": ("Q", 152), "col_offsets_offset": ("Q", 160),
    "col_offsets_bytes": ("Q", 168), "data_offset": ("Q", 176), "exception_count": ("Q", 184),
    **{f"class_value[{k}]": ("h", 64 + 2 * k) for k in range(16)},
    **{f"extension byte {k}": ("B", 64 + k) for k in range(128, 256)},
}  # fmt: skip
TILE_FIELDS = {
    "data_offset": ("Q", 0), "data_size": ("I", 8), "predictor_mode": ("B", 12), "coding": ("B", 13),
    "reserved (14)": ("H", 14), "exception_count": ("I", 16), "reserved (20)": ("I", 20), "checksum": ("Q", 24),
}  # fmt: skip


def get(blob: bytes, field: str) -> int:
    return struct.unpack_from("<" + FIELDS[field][0], blob, FIELDS[field][1])[0]


def put(blob: bytearray, field: str, value: int) -> None:
    struct.pack_into("<" + FIELDS[field][0], blob, FIELDS[field][1], value)


def get_tile(blob: bytes, t: int, field: str) -> int:
    code, at = TILE_FIELDS[field]
    return struct.unpack_from("<" + code, blob, 832 + 32 * t + at)[0]


def put_tile(blob: bytearray, t: int, field: str, value: int) -> None:
    code, at = TILE_FIELDS[field]
    struct.pack_into("<" + code, blob, 832 + 32 * t + at, value)


class Places:
    """Where the parts of one slab are, in bytes of the blob."""

    def __init__(self, blob: bytes, t: int, s: int) -> None:
        h = ref.read_head(blob)
        tile = h.tiles[t]
        weights = [
            min(32, tile.coded_rows - row) * min(h.slab_cols, tile.coded_cols - col) // 32
            for row in range(0, tile.coded_rows, 32)
            for col in range(0, tile.coded_cols, h.slab_cols)
        ]
        slab_count = len(weights)
        raw = [ref.raw_bytes(n, h.raw_bits) for n in weights]
        self.n = weights[s]
        self.tile, self.raw = tile.data_offset, tile.data_offset + sum(raw[:s])
        self.raw_end = self.raw + raw[s]
        table = tile.data_offset + sum(raw)
        self.table, self.table_end = table + 2 * s, table + 2 * slab_count
        self.rans_streams = table + ref.align16(2 * slab_count)
        ends = struct.unpack_from(f"<{slab_count}H", blob, table)
        self.state = self.rans_streams + (16 * ends[s - 1] if s else 0)
        self.end = self.rans_streams + 16 * ends[s]
        self.slivers = self.rans_streams + 16 * ends[-1]
        self.lane_pairs = self.state + 64
        self.count = self.lane_pairs + 16
        self.list = self.count + 4
        self.exceptions = struct.unpack_from("<H", blob, self.count)[0]
        self.words = self.list + 4 * self.exceptions
        self.contents_end = self.words + 2 * sum(blob[self.lane_pairs : self.count])


def values(seed: int, rows: int, cols: int) -> np.ndarray:
    """Small numbers with a lean towards 0."""
    x = (np.arange(rows * cols, dtype=np.uint64) + np.uint64(seed)) * np.uint64(2654435761) >> np.uint64(7)
    return ((x & np.uint64(3)) * (x >> np.uint64(5) & np.uint64(3))).astype(np.int64).reshape(rows, cols)


def bases() -> dict[str, bytes]:
    """The legal blobs that get a fault."""
    signs = values(5, 53, 41) % 2 << 7
    force = np.zeros((53, 41), bool)
    force[:48:9, :32:7] = True
    e4m3 = signs | 2 + values(1, 53, 41) << 3 | values(2, 53, 41) % 8
    e5m2 = 18 + values(3, 17, 273) << 2 | values(4, 17, 273) & 3
    scale_groups = {"granularity": ref.SCALE_GROUP, "scale_group_size": 16}
    codes = values(6, 17, 17) - 4
    return {
        "tiny": encode(np.full((1, 1), 0x3F80), Options(ref.BF16, ref.BF16_DTYPE)),
        "slabs": encode(e4m3, Options(ref.E4M3, ref.F8_E4M3, force=force)),
        "quads": encode(e4m3[:16, :16], Options(ref.E4M3, ref.F8_E4M3, class_bits=2)),
        "offsets": encode(
            e5m2,
            Options(
                ref.E5M2, ref.F8_E5M2, row_offsets=values(7, 1, 17)[0] - 1, col_offsets=values(8, 1, 273)[0] - 2,
                modes=lambda t: 3, exponent_offset=1,
            ),
        ),
        "stored": encode(e5m2[:1, :257], Options(ref.E5M2, ref.F8_E5M2)),
        "scale_group": encode(
            codes,
            Options(ref.INT, ref.F16, class_value=[-8], raw_bits=1, scales=np.full((17, 2), 0.5), **scale_groups),
        ),
        "channel": encode(
            codes[:3],
            Options(ref.INT, ref.F32, class_value=[-8], raw_bits=1, granularity=ref.CHANNEL, scales=np.ones(3)),
        ),
        # Its plane of width 1 has 8 weights in a word of 32 bits.
        "i8": encode(codes, Options(ref.INT, ref.I8, class_value=[-8], raw_bits=1, stored_element_bytes=1)),
        # Its exceptions are codes, which may not use all of their 16 bits.
        "codes": encode(
            values(9, 16, 48) * 7 - 30,
            Options(ref.INT, ref.F32, class_value=[-16], raw_bits=1, granularity=ref.TENSOR, scales=np.ones(1)),
        ),
        # 80 weights a lane: a chunk of 64 and one of 16, whose planes of widths 2 and 1 are not full words.
        "chunks": encode(18 + values(10, 32, 80) << 2 | values(11, 32, 80) & 3, Options(ref.E5M2, ref.F8_E5M2)),
        # Two slabs in a band, of 128 and 16 columns.
        "narrow": encode(
            18 + values(12, 48, 144) << 2 | values(13, 48, 144) & 3,
            Options(ref.E5M2, ref.F8_E5M2, class_bits=2, slab_cols=128, force=values(14, 48, 144) == 9),
        ),
        # 16 slabs: a table without padding.
        "sixteen": encode(
            18 + values(17, 240, 144) % 2 << 2 | values(18, 240, 144) & 3,
            Options(ref.E5M2, ref.F8_E5M2, slab_cols=128),
        ),
        "scaled_fp8": encode(
            ref.scale_fp8(e4m3[:48, :32], np.float32(0.0123)),
            Options(
                ref.E4M3, ref.BF16_DTYPE, granularity=ref.BLOCK, scale_group_size=32, force=force[:48, :32],
                scales=np.full((2, 1), 0.0123),
            ),
        ),
        "wide": encode(18 + values(15, 32, 144) << 2 | values(16, 32, 144) & 3, Options(ref.E5M2, ref.F8_E5M2)),
    }  # fmt: skip


def slug(text: str) -> str:
    kept = "".join(c if c.isalnum() or c == "-" else "_" for c in text)
    return "_".join(part for part in kept.split("_") if part)


def set_bit(blob: bytearray, at: int, bit: int) -> None:
    """Sets a bit, zero until then, of the word at `at`."""
    assert not blob[at + bit // 8] >> bit % 8 & 1
    blob[at + bit // 8] |= 1 << bit % 8


def changed(base: bytes, change: Callable[[bytearray], None], sealed: bool = True) -> bytes:
    blob = bytearray(base)
    change(blob)
    return bytes(seal(blob) if sealed else blob)


def truncated_cases(base: dict[str, bytes]) -> Iterator[Case]:
    blob = base["scale_group"]
    data_offset, scales_offset = get(blob, "data_offset"), get(blob, "scales_offset")
    for name, size in (
        ("empty", 0), ("one_byte", 1), ("inside_header", 63), ("after_header", 64), ("inside_extension", 319),
        ("after_extension", 320), ("inside_table", 700), ("after_table", 832), ("inside_tile_metadata", 850),
        ("after_tile_metadata", scales_offset), ("inside_scales", scales_offset + 20), ("before_data", data_offset),
        ("inside_tile", data_offset + 100), ("by_128_bytes", len(blob) - 128), ("by_16_bytes", len(blob) - 16),
        ("by_one_byte", len(blob) - 1),
    ):  # fmt: skip
        yield f"truncated_{name}", blob[:size], TRUNCATED, f"the first {size} of {len(blob)} bytes"


def header_cases(base: dict[str, bytes]) -> Iterator[Case]:
    # base, field, value, status
    table = [
        ("tiny", "magic", 0, MAGIC), ("tiny", "magic", 0x58414E53, MAGIC),
        ("tiny", "version", 0, VERSION), ("tiny", "version", 1, VERSION), ("tiny", "version", 2, VERSION),
        ("tiny", "version", 3, VERSION), ("tiny", "version", 5, VERSION), ("slabs", "version", 1, VERSION),
        ("slabs", "version", 2, VERSION), ("slabs", "version", 3, VERSION),
        ("tiny", "codec", 0, HEADER), ("tiny", "codec", 6, HEADER), ("tiny", "codec", ref.FP16, HEADER),
        ("tiny", "source_dtype", 0, HEADER), ("tiny", "source_dtype", 7, HEADER),
        ("tiny", "source_dtype", ref.F16, HEADER), ("tiny", "source_dtype", ref.I8, HEADER),
        ("i8", "source_dtype", ref.F32, HEADER), ("i8", "source_dtype", ref.F8_E4M3, HEADER),
        ("channel", "source_dtype", ref.I8, HEADER), ("channel", "source_dtype", ref.F8_E5M2, HEADER),
        ("tiny", "class_bits", 0, HEADER), ("tiny", "class_bits", 3, HEADER), ("tiny", "class_bits", 8, HEADER),
        ("tiny", "raw_bits", 7, HEADER), ("tiny", "raw_bits", 10, HEADER), ("i8", "raw_bits", 9, HEADER),
        ("tiny", "tile_size", 128, HEADER), ("tiny", "rows", 0, HEADER), ("tiny", "cols", 0, HEADER),
        ("tiny", "rows", 1 << 31, HEADER), ("tiny", "cols", 0xFFFFFFFF, HEADER), ("tiny", "rows", 257, HEADER),
        ("tiny", "num_tile_rows", 0, HEADER), ("tiny", "num_tile_rows", 2, HEADER),
        ("tiny", "num_tile_cols", 0, HEADER), ("tiny", "num_tile_cols", 0xFFFFFFFF, HEADER),
        ("tiny", "probability_bits", 8, HEADER), ("tiny", "probability_bits", 13, HEADER),
        ("tiny", "state_bits", 11, HEADER), ("tiny", "state_bits", 17, HEADER), ("tiny", "slab_rows", 16, HEADER),
        ("tiny", "rans_streams_per_lane", 2, HEADER), ("tiny", "slab_cols", 0, HEADER),
        ("tiny", "slab_cols", 64, HEADER), ("tiny", "slab_cols", 129, HEADER), ("tiny", "slab_cols", 192, HEADER),
        ("tiny", "slab_cols", 512, HEADER), ("narrow", "slab_cols", 16, HEADER), ("narrow", "slab_cols", 144, HEADER),
        ("tiny", "stored_element_bytes", 1, HEADER), ("i8", "stored_element_bytes", 3, HEADER),
        ("i8", "stored_element_bytes", 0, HEADER),
        ("tiny", "predictor_modes", 4, HEADER), ("tiny", "predictor_modes", 1, HEADER),
        ("i8", "predictor_modes", 2, HEADER),
        ("tiny", "extension_offset", 80, HEADER), ("tiny", "extension_bytes", 240, HEADER),
        ("tiny", "flags", 1, HEADER), ("tiny", "flags", 1 << 31, HEADER),
        ("tiny", "blob_bytes", len(base["tiny"]) - 8, HEADER), ("tiny", "blob_bytes", 0, HEADER),
        ("tiny", "blob_bytes", len(base["tiny"]) + 16, HEADER),
        ("tiny", "blob_bytes", len(base["tiny"]) + 128, TRUNCATED),
        ("tiny", "blob_bytes", 1 << 63, TRUNCATED),
        ("tiny", "head_checksum", get(base["tiny"], "head_checksum") ^ 1, CHECKSUM),
        ("tiny", "class_value[0]", -1, HEADER), ("tiny", "class_value[15]", 256, HEADER),
        ("tiny", "class_value[3]", get(base["tiny"], "class_value[2]"), HEADER),
        ("quads", "class_value[4]", 12, HEADER), ("quads", "class_value[15]", -4, HEADER),
        ("quads", "class_value[0]", get(base["quads"], "class_value[0]") + 1, HEADER),
        ("quads", "class_value[0]", 16, HEADER), ("slabs", "class_value[1]", 16, HEADER),
        ("i8", "class_value[1]", 0, HEADER), ("i8", "class_value[15]", 1023, HEADER),
        ("tiny", "exponent_offset", 255, HEADER), ("tiny", "exponent_offset", -255, HEADER),
        ("i8", "exponent_offset", 1, HEADER),
        ("tiny", "granularity", 1, HEADER), ("channel", "granularity", 5, HEADER),
        ("channel", "granularity", 0, HEADER), ("scale_group", "granularity", 4, HEADER),
        ("channel", "scale_dtype", 2, HEADER), ("scale_group", "scale_dtype", 1, HEADER),
        ("tiny", "scale_dtype", 1, HEADER),
        ("scale_group", "scale_dtype", 3, HEADER), ("tiny", "reserved", 1, HEADER),
        ("tiny", "scale_group_size", 16, HEADER),
        ("channel", "scale_group_size", 32, HEADER), ("scale_group", "scale_group_size", 0, HEADER),
        ("scale_group", "scale_group_size", 24, HEADER), ("scale_group", "scale_group_size", (1 << 20) + 16, HEADER),
        ("scale_group", "scale_exponent", 127, HEADER), ("scale_group", "scale_exponent", -127, HEADER),
        ("channel", "scale_exponent", 1, HEADER), ("tiny", "scale_exponent", -1, HEADER),
        ("scaled_fp8", "version", 4, HEADER), ("scaled_fp8", "version", 6, VERSION), ("slabs", "version", 5, VERSION),
        ("scaled_fp8", "codec", ref.BF16, VERSION), ("scaled_fp8", "source_dtype", ref.F8_E4M3, VERSION),
        ("scaled_fp8", "stored_element_bytes", 1, HEADER), ("scaled_fp8", "granularity", 0, HEADER),
        ("scaled_fp8", "granularity", ref.SCALE_GROUP, HEADER), ("scaled_fp8", "granularity", 5, HEADER),
        ("scaled_fp8", "scale_dtype", ref.SCALE_F16, HEADER), ("scaled_fp8", "scale_dtype", 0, HEADER),
        ("scaled_fp8", "scale_group_size", 0, HEADER), ("scaled_fp8", "scale_group_size", 24, HEADER),
        ("scaled_fp8", "scale_exponent", 1, HEADER), ("slabs", "source_dtype", ref.BF16_DTYPE, HEADER),
        ("tiny", "extension byte 128", 1, HEADER), ("tiny", "extension byte 255", 128, HEADER),
    ]  # fmt: skip
    for name, field, value, status in table:
        before = get(base[name], field)

        def change(blob: bytearray, name: str = name, field: str = field, value: int = value) -> None:
            put(blob, field, value)
            if field != "head_checksum":
                seal_head(blob, get(base[name], "data_offset"))

        label = slug(f"{field} wrong" if field == "head_checksum" else f"{field} {value}")
        yield f"{name}_{label}", changed(base[name], change, False), status, f"{field} {value}, was {before}"

    def shift_progression(blob: bytearray) -> None:
        for k in range(16):
            put(blob, f"class_value[{k}]", 1010 + 2 * k)

    yield "i8_class_values_beyond_1023", changed(base["i8"], shift_progression), HEADER, "class_value 1010…1040"

    blob = bytearray(base["stored"][:-128])
    put(blob, "blob_bytes", len(blob))
    yield "stored_last_tile_behind_blob", bytes(seal(blob)), TILE, "file and blob_bytes are 128 bytes shorter"
    blob = bytearray(base["tiny"] + bytes(128))
    put(blob, "blob_bytes", len(blob))
    yield "tiny_gap_behind_last_tile", bytes(seal(blob)), TILE, "the last 128 bytes belong to no tile"


def section_cases(base: dict[str, bytes]) -> Iterator[Case]:
    table = [
        ("tiny", "frequency_offset", 336), ("tiny", "tiles_offset", 848), ("tiny", "tiles_offset", 320),
        ("tiny", "data_offset", get(base["tiny"], "data_offset") + 16),
        ("tiny", "data_offset", get(base["tiny"], "data_offset") - 16),
        ("tiny", "data_offset", get(base["tiny"], "data_offset") + 128),
        ("scale_group", "data_offset", get(base["scale_group"], "data_offset") - 128),
        ("tiny", "data_offset", get(base["tiny"], "data_offset") + 8), ("tiny", "data_offset", 1 << 63),
        ("scale_group", "scales_offset", get(base["scale_group"], "scales_offset") + 16),
        ("scale_group", "scales_offset", 832), ("scale_group", "scales_offset", 0),
        ("scale_group", "scales_bytes", get(base["scale_group"], "scales_bytes") - 2),
        ("scale_group", "scales_bytes", 0),
        ("tiny", "scales_offset", 864), ("tiny", "scales_bytes", 16),
        ("offsets", "row_offsets_offset", get(base["offsets"], "col_offsets_offset")),
        ("offsets", "row_offsets_offset", 0), ("offsets", "row_offsets_bytes", 16),
        ("offsets", "col_offsets_offset", get(base["offsets"], "row_offsets_offset")),
        ("offsets", "col_offsets_bytes", 272), ("offsets", "col_offsets_bytes", (1 << 64) - 1),
        ("tiny", "row_offsets_bytes", 1), ("tiny", "col_offsets_offset", 864),
    ]  # fmt: skip
    for name, field, value in table:

        def change(blob: bytearray, name: str = name, field: str = field, value: int = value) -> None:
            put(blob, field, value)
            seal_head(blob, get(base[name], "data_offset"))

        what = f"{field} {value}, was {get(base[name], field)}"
        yield f"{name}_section_{slug(f'{field} {value}')}", changed(base[name], change, False), HEADER, what

    def swap_sections(blob: bytearray) -> None:
        for suffix in ("offset", "bytes"):
            row, col = get(blob, f"row_offsets_{suffix}"), get(blob, f"col_offsets_{suffix}")
            put(blob, f"row_offsets_{suffix}", col)
            put(blob, f"col_offsets_{suffix}", row)

    yield "offsets_sections_swapped", changed(base["offsets"], swap_sections), HEADER, "column before row offsets"

    for name, field in (("offsets", "row_offsets"), ("offsets", "col_offsets"), ("scale_group", "scales")):
        at = get(base[name], f"{field}_offset") + get(base[name], f"{field}_bytes")
        assert at % 16
        blob = changed(base[name], lambda b, at=at: b.__setitem__(at, 1))
        yield f"{name}_padding_behind_{field}", blob, HEADER, f"byte {at} between two sections is 1"
    assert get(base["tiny"], "data_offset") == 896
    for at in (864, 895):  # no section between
        blob = changed(base["tiny"], lambda b, at=at: b.__setitem__(at, 1))
        yield f"tiny_padding_at_{at}", blob, HEADER, f"byte {at} between the metadata and the tile is 1"
    at = get(base["scale_group"], "data_offset") - 1
    assert at - get(base["scale_group"], "scales_offset") - get(base["scale_group"], "scales_bytes") >= 16
    blob = changed(base["scale_group"], lambda b: b.__setitem__(at, 1))
    yield "scale_group_padding_before_data", blob, HEADER, f"byte {at} in front of the tile is 1"

    def move_data(blob: bytearray) -> None:
        del blob[864:896]
        blob += bytes(32)
        put(blob, "data_offset", 864)
        put_tile(blob, 0, "data_offset", 864)
        put_tile(blob, 0, "data_size", get_tile(blob, 0, "data_size") + 32)

    yield "tiny_data_at_864", changed(base["tiny"], move_data), HEADER, "data at a multiple of 16, all else follows"


def table_cases(base: dict[str, bytes]) -> Iterator[Case]:
    def frequencies(change: Callable[[np.ndarray], None]) -> bytes:
        def apply(blob: bytearray) -> None:
            table = np.frombuffer(bytes(blob[320:832]), "<u2").copy()
            change(table)
            blob[320:832] = table.tobytes()

        return changed(base["quads"], apply)

    def add(table: np.ndarray, amount: int) -> None:
        table[np.argmax(table)] += amount

    yield "table_sum_too_large", frequencies(lambda t: add(t, 1)), TABLE, "sum 2^p + 1"
    yield "table_sum_too_small", frequencies(lambda t: t.__setitem__(np.argmax(t), t.max() - 1)), TABLE, "sum 2^p − 1"
    yield "table_zero", frequencies(lambda t: t.fill(0)), TABLE, "all zero"

    def single(table: np.ndarray) -> None:
        table.fill(0)
        table[0] = 4096

    yield "table_one_symbol", frequencies(single), TABLE, "one symbol of 2^p"

    def wrapped(table: np.ndarray) -> None:
        table.fill(272)

    yield "table_sum_wraps_16_bits", frequencies(wrapped), TABLE, "every entry in range, sum 2^p + 2^16"


def scale_cases(base: dict[str, bytes]) -> Iterator[Case]:
    for name, code, entries in (
        ("scale_group", "<H", {"zero": 0, "minus_zero": 0x8000, "negative": 0xB800, "inf": 0x7C00, "nan": 0x7E01}),
        ("channel", "<I", {"zero": 0, "negative": 0xBF800000, "inf": 0x7F800000, "nan": 0x7FC00000}),
        ("scaled_fp8", "<I", {"zero": 0, "negative": 0xBF800000, "small": 0x0D7FFFFF, "large": 0x71800001,
                              "nan": 0x7FC00000}),
    ):  # fmt: skip
        size = struct.calcsize(code)
        for k, (label, value) in enumerate(entries.items()):
            count = get(base[name], "scales_bytes") // size
            at = get(base[name], "scales_offset") + size * (k % count)
            blob = changed(base[name], lambda b, c=code, a=at, v=value: struct.pack_into(c, b, a, v))
            yield f"{name}_scale_{label}", blob, HEADER, f"scale {k % count} is {label}"

    def enlarge(blob: bytearray) -> None:
        put(blob, "scale_exponent", 126)
        struct.pack_into("<H", blob, get(blob, "scales_offset") + 2, 0x4400)

    yield (
        "scale_group_scale_times_q_inf",
        changed(base["scale_group"], enlarge),
        HEADER,
        "scale 1 is 4 and q 126: infinite",
    )


def tile_cases(base: dict[str, bytes]) -> Iterator[Case]:
    o, two = base["offsets"], base["stored"]
    # base, tile, field, value
    table = [
        ("offsets", 0, "data_offset", get_tile(o, 0, "data_offset") + 128),
        ("offsets", 0, "data_offset", get_tile(o, 0, "data_offset") - 16),
        ("offsets", 0, "data_offset", get_tile(o, 0, "data_offset") - 128),
        ("offsets", 1, "data_offset", get_tile(o, 1, "data_offset") - 16),
        ("offsets", 1, "data_offset", get_tile(o, 1, "data_offset") - 128),
        ("offsets", 1, "data_offset", get_tile(o, 1, "data_offset") + 8),
        ("offsets", 1, "data_offset", get_tile(o, 0, "data_offset")),
        ("offsets", 1, "data_offset", (1 << 64) - 128),
        ("offsets", 0, "data_size", get_tile(o, 0, "data_size") + 16),
        ("offsets", 0, "data_size", get_tile(o, 0, "data_size") + 128),
        ("offsets", 0, "data_size", get_tile(o, 0, "data_size") - 128),
        ("offsets", 0, "data_size", get_tile(o, 0, "data_size") - 8),
        ("offsets", 0, "data_size", 0), ("offsets", 1, "data_size", 0xFFFFFF80),
        ("offsets", 0, "predictor_mode", 4), ("offsets", 0, "predictor_mode", 128),
        ("slabs", 0, "predictor_mode", 1), ("i8", 0, "predictor_mode", 1), ("stored", 0, "predictor_mode", 2),
        ("offsets", 0, "coding", 2), ("offsets", 0, "coding", 255), ("offsets", 0, "coding", 1),
        ("stored", 1, "coding", 0), ("tiny", 0, "coding", 0),
        ("offsets", 1, "reserved (14)", 1), ("offsets", 1, "reserved (20)", 1 << 31),
    ]  # fmt: skip
    for name, t, field, value in table:
        blob = changed(base[name], lambda b, t=t, f=field, v=value: put_tile(b, t, f, v))
        before = get_tile(base[name], t, field)
        yield f"{name}_tile{t}_{slug(f'{field} {value}')}", blob, TILE, f"tile {t}: {field} {value}, was {before}"

    def swap(blob: bytearray) -> None:
        blob[832:864], blob[864:896] = blob[864:896], blob[832:864]

    yield "stored_tiles_swapped", changed(two, swap), TILE, "metadata of the two tiles exchanged"

    def move_tile(blob: bytearray) -> None:
        at = get_tile(blob, 1, "data_offset")
        assert not any(blob[-16:])
        blob[at:] = bytes(16) + blob[at:-16]
        put_tile(blob, 0, "data_size", get_tile(blob, 0, "data_size") + 16)
        put_tile(blob, 1, "data_offset", at + 16)
        put_tile(blob, 1, "data_size", get_tile(blob, 1, "data_size") - 16)

    yield "stored_tile_at_multiple_of_16", changed(two, move_tile), TILE, "tile 1 is 16 bytes behind a multiple of 128"

    def count(blob: bytearray, t: int, amount: int) -> None:
        put_tile(blob, t, "exception_count", get_tile(blob, t, "exception_count") + amount)
        put(blob, "exception_count", get(blob, "exception_count") + amount)

    yield "slabs_tile_exception_count", changed(base["slabs"], lambda b: count(b, 0, 1)), TILE, "one too many"
    yield "stored_tile_exception_count", changed(two, lambda b: count(b, 1, 1)), TILE, "exceptions in a stored tile"

    def total(blob: bytearray) -> None:
        put(blob, "exception_count", get(blob, "exception_count") + 1)

    yield "slabs_blob_exception_count", changed(base["slabs"], total), TILE, "not the sum over the tiles"


def checksum_cases(base: dict[str, bytes]) -> Iterator[Case]:
    for name, field in (("scale_group", "scales"), ("offsets", "row_offsets"), ("offsets", "col_offsets")):
        at = get(base[name], f"{field}_offset")
        blob = changed(base[name], lambda b, at=at: b.__setitem__(at, b[at] ^ 1), False)
        yield f"{name}_head_bit_at_{at}", blob, CHECKSUM, "one bit of a section"
    for at, what in ((330, "the frequency table"), (833, "a tile's data_offset"), (856, "a tile's checksum")):
        blob = changed(base["slabs"], lambda b, at=at: b.__setitem__(at, b[at] ^ 64), False)
        yield f"slabs_head_bit_at_{at}", blob, CHECKSUM, f"one bit of {what}"
    data = get(base["offsets"], "data_offset")
    second = get_tile(base["offsets"], 1, "data_offset")
    for at in (data, second - 1, second, len(base["offsets"]) - 1):
        blob = changed(base["offsets"], lambda b, at=at: b.__setitem__(at, b[at] ^ 128), False)
        yield f"offsets_tile_bit_at_{at}", blob, CHECKSUM, "one bit of tile data"

    def wrong_seed(blob: bytearray) -> None:
        offset, size = get_tile(blob, 1, "data_offset"), get_tile(blob, 1, "data_size")
        put_tile(blob, 1, "checksum", xxhash.xxh3_64_intdigest(bytes(blob[offset : offset + size]), 0))
        seal_head(blob, get(blob, "data_offset"))

    yield "offsets_tile_checksum_seed_0", changed(base["offsets"], wrong_seed, False), CHECKSUM, "tile 1 with seed 0"


def slab_cases(base: dict[str, bytes]) -> Iterator[Case]:
    slabs = base["slabs"]
    first, second = Places(slabs, 0, 0), Places(slabs, 0, 1)

    def put16(at: int, value: int) -> bytes:
        return changed(slabs, lambda b: struct.pack_into("<H", b, at, value))

    def put8(name: str, at: int, value: int) -> bytes:
        return changed(base[name], lambda b: b.__setitem__(at, value))

    end0, end1 = (struct.unpack_from("<H", slabs, p.table)[0] for p in (first, second))
    yield "slab_ends_equal", put16(second.table, end0), TILE, "slab 1 ends where slab 0 ends"
    yield "slab_ends_descending", put16(first.table, end1 + 1), TILE, "slab 0 ends behind slab 1"
    yield "slab_end_zero", put16(first.table, 0), TILE, "slab 0 has no rANS streams"
    message = "the rANS streams of slab 0 are 80 bytes, too short for their head"
    yield "slab_end_in_head", put16(first.table, 5), TILE, message
    yield "slab_end_behind_tile", put16(second.table, 0xFFFF), TILE, "slab 1 ends behind the tile"
    yield "slab_one_unit_too_small", put16(first.table, end0 - 1), TILE, "slab 0 is 16 bytes too short"
    yield "slab_one_unit_too_large", put16(second.table, end1 + 1), TILE, "slab 1 takes 16 bytes of the slivers"
    yield "slab_exceptions_too_many", put16(first.count, first.exceptions + 16), TILE, "contents are too long"
    yield "slab_exceptions_too_few", put16(second.count, second.exceptions - 4), TILE, "contents are too short"
    yield "slab_exceptions_all", put16(first.count, 0xFFFF), TILE, "65535 exceptions"
    yield "slab_count_reserved_1", put16(first.count + 2, 1), TILE, "the field behind the count of exceptions is 1"
    yield "slab_count_reserved_32768", put16(second.count + 2, 1 << 15), TILE, "the same field is 2^15"
    yield "slab_table_padding", put8("slabs", first.table_end, 1), TILE, "a byte behind the slab table"
    yield (
        "slab_table_padding_end",
        put8("slabs", first.rans_streams - 1, 1),
        TILE,
        "the last byte before the rANS streams",
    )
    yield (
        "slab_lane_pair_words_too_many",
        put8("slabs", first.lane_pairs, slabs[first.lane_pairs] + 8),
        TILE,
        "8 words too many",
    )
    yield "slab_lane_pair_words_too_few", put8("slabs", first.lane_pairs + 15, 0), TILE, "none in place of some"

    padded = next(p for p in (first, second) if p.contents_end < p.end)
    yield "slab_padding", put8("slabs", padded.end - 1, 255), TILE, "last byte of a slab"
    yield "sliver_padding", put8("slabs", len(slabs) - 1, 1), TILE, "last byte of the tile"
    yield "stored_tile_padding", put8("tiny", len(base["tiny"]) - 1, 1), TILE, "last byte of the tile"
    i8 = Places(base["i8"], 0, 0)
    # Two quads fill the bits 0 and 1 of each byte.
    for bit in (2, 15, 31):
        blob = changed(base["i8"], lambda b, bit=bit: set_bit(b, i8.raw, bit))
        yield f"plane_unused_bit_{bit}", blob, TILE, f"bit {bit} of a plane's word that has 8 weights"
    chunks = Places(base["chunks"], 0, 0)
    assert (chunks.n, chunks.raw_end - chunks.raw) == (80, 256 * 3 + 128 * 2)
    second_chunk = chunks.raw + 256 * 3
    blob = changed(base["chunks"], lambda b: set_bit(b, second_chunk + 128 + 4 * 31, 4))
    yield "chunk_unused_bit", blob, TILE, "bit 4 of the last lane's word of width 1 in the second chunk, of 16 weights"
    middle = Places(base["codes"], 0, 0)
    assert middle.n == 24
    blob = changed(base["codes"], lambda b: set_bit(b, middle.raw + 4 * 7, 30))
    yield "plane_unused_bit_of_24_weights", blob, TILE, "bit 30 of lane 7's word of width 1"

    def cut(blob: bytearray, at: int) -> None:
        assert at % 128 == 0 and at < len(blob)
        put_tile(blob, 0, "data_size", at - first.tile)
        put(blob, "blob_bytes", at)
        del blob[at:]

    def more_slivers(blob: bytearray) -> None:
        put_tile(blob, 0, "data_size", len(blob) + 128 - first.tile)
        put(blob, "blob_bytes", len(blob) + 128)
        blob += bytes(128)

    for name, at, what in (
        ("slivers_missing", ref.align128(first.slivers), "the tile ends with the 128 bytes in which its slabs end"),
        ("slivers_cut_short", len(slabs) - 128, "the last 128 bytes of the tile are missing"),
        ("tile_without_table", second.raw_end, "the tile ends with its raw bits"),
        ("tile_too_small_for_raw_bits", first.tile + 128, "the tile has 128 bytes"),
    ):
        yield name, changed(slabs, lambda b, at=at: cut(b, at)), TILE, what
    yield "slivers_too_long", changed(slabs, more_slivers), TILE, "128 zero bytes more"
    stored = base["tiny"]

    def longer_stored(blob: bytearray) -> None:
        put_tile(blob, 0, "data_size", get_tile(blob, 0, "data_size") + 128)
        put(blob, "blob_bytes", len(blob) + 128)
        blob += bytes(128)

    yield "stored_tile_too_long", changed(stored, longer_stored), TILE, "128 zero bytes more"


def narrow_slab_cases(base: dict[str, bytes]) -> Iterator[Case]:
    def put16(name: str, at: int, value: int) -> bytes:
        return changed(base[name], lambda b: struct.pack_into("<H", b, at, value))

    for name, before, after in (("narrow", 128, 256), ("wide", 256, 128)):
        blob = changed(base[name], lambda b, v=after: put(b, "slab_cols", v))
        yield f"{name}_slab_cols_{after}", blob, TILE, f"slabs of {before} columns, called {after}"
    at = [Places(base["sixteen"], 0, s) for s in range(16)]
    ends = [struct.unpack_from("<H", base["sixteen"], p.table)[0] for p in at]
    assert at[15].table_end == at[0].rans_streams
    for label, s, end, what in (
        ("ends_in_a_band_equal", 1, ends[0], "slab 1 ends where slab 0 ends"),
        ("ends_descending", 14, ends[15] + 1, "slab 14 ends behind slab 15"),
        ("one_unit_too_large", 0, ends[0] + 1, "slab 0 takes 16 bytes of slab 1"),
        ("last_behind_tile", 15, 0xFFFF, "slab 15 ends behind the tile"),
    ):
        yield f"sixteen_slabs_{label}", put16("sixteen", at[s].table, end), TILE, what
    narrow = base["narrow"]
    at = [Places(narrow, 0, s) for s in range(4)]
    assert [p.n for p in at] == [128, 16, 64, 8]
    for s, p in enumerate(at):
        assert p.exceptions
        place = p.list + 4 * (p.exceptions - 1)
        value = (32 * p.n) << 19 | struct.unpack_from("<I", narrow, place)[0] & 0xFFFF
        blob = changed(narrow, lambda b, a=place, v=value: struct.pack_into("<I", b, a, v))
        yield f"narrow_exception_behind_slab_{s}", blob, TILE, f"index n = {p.n}"
        blob = changed(narrow, lambda b, a=p.state: b.__setitem__(a + 2, b[a + 2] ^ 1))
        yield f"narrow_start_state_of_slab_{s}", blob, RANS, "one bit of a start state"


def exception_cases(base: dict[str, bytes]) -> Iterator[Case]:
    places = {"first": ("slabs", 0), "second": ("slabs", 1), "codes": ("codes", 0)}
    at = {label: Places(base[name], 0, s) for label, (name, s) in places.items()}

    def record(label: str, e: int) -> int:
        """Exception e of a slab, from the last one backwards if e < 0."""
        return struct.unpack_from("<I", base[places[label][0]], at[label].list + 4 * (e % at[label].exceptions))[0]

    def put32(label: str, e: int, value: int) -> bytes:
        place = at[label].list + 4 * (e % at[label].exceptions)
        return changed(base[places[label][0]], lambda b: struct.pack_into("<I", b, place, value))

    def moved(label: str, e: int, position: int) -> bytes:
        return put32(label, e, position << 19 | record(label, e) & 0xFFFF)

    def of(label: str, e: int, element: int) -> bytes:
        return put32(label, e, record(label, e) & ~0xFFFF | element & 0xFFFF)

    def position(label: str, e: int) -> int:
        return record(label, e) >> 19

    yield "exceptions_equal", moved("first", 1, position("first", 0)), TILE, "a position twice"
    yield "exceptions_descending", moved("first", 0, position("first", -1)), TILE, "the first position is the last"
    yield "exceptions_descend_at_the_end", moved("codes", -1, position("codes", 0)), TILE, "the last is the first"
    yield "exception_behind_slab", moved("first", -1, 32 * at["first"].n), TILE, "index n"
    yield "exception_far_behind_slab", moved("first", -1, 0x1FFF), TILE, "the last position there is"
    yield "exception_behind_short_slab", moved("second", -1, 32 * at["second"].n), TILE, "index n, 16 rows"
    for bit in (16, 17, 18):
        label = "codes" if bit == 17 else "second"
        blob = put32(label, 0, record(label, 0) | 1 << bit)
        yield f"exception_bit_{bit}", blob, TILE, f"bit {bit} of an exception"
    yield "exception_element_256", of("first", 0, 256), TILE, "element 256 in e4m3"
    yield "exception_element_high_bit", of("second", -1, 0x8000 | record("second", -1) & 255), TILE, "bit 15 in e4m3"
    for label, code in (("1024", 1024), ("32767", 32767), ("minus_1025", -1025), ("minus_32768", -32768)):
        yield f"exception_code_{label}", of("codes", code % 3, code), TILE, f"code {code}"


def rans_stream_cases(base: dict[str, bytes]) -> Iterator[Case]:
    slabs = base["slabs"]
    for s in (0, 1):
        p = Places(slabs, 0, s)
        for lane in (0, 31):
            blob = changed(slabs, lambda b, p=p, k=lane: struct.pack_into("<H", b, p.state + 2 * k, 0))
            yield f"start_state_0_slab{s}_lane{lane}", blob, RANS, "start state 0"
        for lane in (5, 16):
            at = p.state + 2 * lane
            blob = changed(slabs, lambda b, at=at: b.__setitem__(at, b[at] ^ 1))
            yield f"start_state_wrong_slab{s}_lane{lane}", blob, RANS, "one bit of a start state"

    first = Places(slabs, 0, 0)
    for label, at in (("first", first.words), ("last", first.contents_end - 2)):
        blob = changed(slabs, lambda b, at=at: b.__setitem__(at, b[at] ^ 1))
        yield f"rans_{label}_word", blob, RANS, "one bit of a word"
    counts = slabs[first.lane_pairs : first.count]

    def move_word(blob: bytearray) -> None:
        blob[first.lane_pairs] += 1
        blob[first.lane_pairs + 1] -= 1

    yield "rans_word_of_other_lane_pair", changed(slabs, move_word), RANS, "lane pair 0 gets a word of lane pair 1"
    k = next(k for k in range(15) if counts[k] != counts[k + 1])

    def swap_counts(blob: bytearray) -> None:
        blob[first.lane_pairs + k], blob[first.lane_pairs + k + 1] = counts[k + 1], counts[k]

    yield "rans_lane_pair_counts_swapped", changed(slabs, swap_counts), RANS, f"counts of lane pairs {k} and {k + 1}"

    def swap_frequencies(blob: bytearray) -> None:
        table = np.frombuffer(bytes(blob[320:832]), "<u2").copy()
        a, b = np.argsort(table, kind="stable")[[-1, -4]]
        table[[a, b]] = table[[b, a]]
        blob[320:832] = table.tobytes()

    yield "rans_other_table", changed(slabs, swap_frequencies), RANS, "frequencies of two symbols exchanged"
    yield "rans_other_state_bits", changed(slabs, lambda b: put(b, "state_bits", 15)), RANS, "L 15 in place of 16"
    yield "rans_word_left", word_left(slabs), RANS, "all states end right, but a pair has a word more than it takes"


def word_left(base: bytes) -> bytes:
    """Puts a word between those of a pair's two lanes, which neither takes."""
    for s in (0, 1):
        p = Places(base, 0, s)
        if p.end - p.contents_end < 2:
            continue
        for pair in range(16):
            start = p.words + 2 * sum(base[p.lane_pairs : p.lane_pairs + pair])
            for k in range(base[p.lane_pairs + pair] + 1):

                def insert(blob: bytearray, at: int = start + 2 * k, pair: int = pair, p: Places = p) -> None:
                    blob[p.lane_pairs + pair] += 1
                    blob[at : p.end] = b"\xab\xcd" + blob[at : p.end - 2]

                blob = changed(base, insert)
                try:
                    ref.read_blob(blob)
                except ref.FormatError as error:
                    if "words" in str(error):
                        return blob
    raise AssertionError("no slab has room for one word more")


def all_cases() -> Iterator[Case]:
    base = bases()
    for blob in base.values():
        ref.read_blob(blob)
    for cases in (
        truncated_cases, header_cases, section_cases, table_cases, scale_cases, tile_cases, checksum_cases,
        slab_cases, narrow_slab_cases, exception_cases, rans_stream_cases,
    ):  # fmt: skip
        yield from cases(base)
