# SPDX-License-Identifier: Apache-2.0
"""A small encoder of the transfuse layer blob, written from format/FORMAT.md alone.

It is slow and optimizes nothing, but makes any choice that the format allows, as the caller asks. So tests can check
that a decoder takes every legal blob. Section numbers in the comments are those of FORMAT.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import second_decoder as ref
import second_places
import xxhash
from second_decoder import COL_OFFSETS, ROW_OFFSETS
from second_places import ceil_div


@dataclass
class Options:
    """The choices of an encoder."""

    codec: int
    source_dtype: int
    class_bits: int = 4
    probability_bits: int = 12
    state_bits: int = 16
    slab_cols: int = 256
    #: float codecs: the list of classes; by default the most frequent coded exponents first. int: only [0] counts
    class_value: list[int] | None = None
    #: int only
    raw_bits: int = 4
    stored_element_bytes: int | None = None
    exponent_offset: int = 0
    row_offsets: np.ndarray | None = None
    col_offsets: np.ndarray | None = None
    #: predictor_mode by tile
    modes: Callable[[int], int] = lambda t: 0
    #: tiles to store uncoded
    stored: Callable[[int], bool] = lambda t: False
    #: weights to list as exceptions although a class could express them: bool [N][K]
    force: np.ndarray | None = None
    #: exact table, in place of one from the counts
    frequencies: np.ndarray | None = None
    granularity: int = 0
    scale_group_size: int = 0
    scales: np.ndarray | None = None
    scale_exponent: int = 0
    #: class and raw bits that an exception is coded with
    exception_class: int = 0
    exception_raw: int = 0


@dataclass
class Coded:
    """The coded region of a tile, split for the entropy coder."""

    tile: int
    classes: np.ndarray
    raw: np.ndarray
    #: the elements, and which of them go into the list of exceptions
    elements: np.ndarray
    exception: np.ndarray
    symbols: list[np.ndarray] = field(default_factory=list)


class Encoder:
    def __init__(self, elements: np.ndarray, options: Options) -> None:
        self.o = options
        self.elements = np.asarray(elements).astype(np.int64)
        self.rows, self.cols = self.elements.shape
        self.tiles_row, self.tiles_col = ceil_div(self.rows, 256), ceil_div(self.cols, 256)
        self.is_int = options.codec == ref.INT
        if self.is_int:
            self.raw_bits = options.raw_bits
            self.stored_element_bytes = options.stored_element_bytes or 2
        else:
            self.raw_bits = ref.RAW_BITS[options.codec, options.class_bits]
            self.stored_element_bytes = ref.ELEMENT_BYTES[options.codec]
        #: what is split: the elements, or the codes of scaled FP8
        self.codes = self.elements
        self.is_scaled_fp8 = (options.codec, options.source_dtype) == (ref.E4M3, ref.BF16_DTYPE)
        if self.is_scaled_fp8:
            self.stored_element_bytes = 2
            self.codes = self.find_codes()

    def find_codes(self) -> np.ndarray:
        """E4M3 codes that give the elements with their scales; NaNs, which are exceptions, where there is none."""
        table, size = np.asarray(self.o.scales, np.float32), self.o.scale_group_size
        rows, cols = np.arange(self.rows)[:, None], np.arange(self.cols)[None, :]
        if self.o.granularity == ref.TENSOR:
            at = np.zeros((self.rows, self.cols), np.int64)
        elif self.o.granularity == ref.CHANNEL:
            at = rows + 0 * cols
        else:
            at = rows // size * table.shape[1] + cols // size
        codes = np.full(self.elements.shape, 0x7F)
        every = np.array([c for c in range(256) if c & 0x7F != 0x7F])
        for index, scale in enumerate(table.reshape(-1)):
            code_of = np.full(1 << 16, 0x7F)
            code_of[ref.scale_fp8(every, scale)] = every
            codes = np.where(at == index, code_of[self.elements], codes)
        return codes

    # -- places -------------------------------------------------------------------------------------------------

    def place(self, t: int) -> tuple[int, int, int, int]:
        """Row, column, height and width of tile t."""
        row, col = t // self.tiles_col * 256, t % self.tiles_col * 256
        return row, col, min(256, self.rows - row), min(256, self.cols - col)

    def is_stored(self, t: int) -> bool:
        _, _, height, width = self.place(t)
        return height < 16 or width < 16 or self.o.stored(t)

    def mode(self, t: int) -> int:
        return 0 if self.is_stored(t) else self.o.modes(t)

    def offsets(self, t: int, height: int, width: int) -> np.ndarray:
        """D plus the offsets of the tile's mode: [height][width]."""
        row, col, _, _ = self.place(t)
        total = np.full((height, width), self.o.exponent_offset, np.int64)
        if self.mode(t) & ROW_OFFSETS:
            total += np.asarray(self.o.row_offsets, np.int64)[row : row + height, None]
        if self.mode(t) & COL_OFFSETS:
            total += np.asarray(self.o.col_offsets, np.int64)[None, col : col + width]
        return total

    # -- section 5 ----------------------------------------------------------------------------------------------

    def coded_exponents(self, t: int, exponent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """C of every weight of a coded region, and whether section 5 allows to code it."""
        e_max = ref.EXPONENT_MAX[self.o.codec]
        c = exponent - self.offsets(t, *exponent.shape)
        if self.o.exponent_offset == 0 and self.mode(t) == 0:
            return c, np.ones(c.shape, bool)
        return c, (exponent >= 1) & (exponent < e_max) & (c >= 1) & (c < e_max)

    def region(self, t: int) -> np.ndarray:
        """Elements of the coded region; with scaled FP8 their codes."""
        row, col, height, width = self.place(t)
        return self.codes[row : row + height // 16 * 16, col : col + width // 16 * 16]

    def fields(self, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sign, exponent field and mantissa of elements."""
        m = ref.MANTISSA_BITS[self.o.codec]
        sign_bit = 8 * ref.ELEMENT_BYTES[self.o.codec] - 1
        return v >> sign_bit, v >> m & ref.EXPONENT_MAX[self.o.codec], v & ((1 << m) - 1)

    def choose_classes(self) -> list[int]:
        """The class list: 2^c entries."""
        count = 1 << self.o.class_bits
        if self.is_int:
            first = self.o.class_value[0] if self.o.class_value else int(self.elements.min())
            return [first + k * (1 << self.raw_bits) for k in range(count)]
        if self.o.class_value:
            return list(self.o.class_value)
        e_max, unit = ref.EXPONENT_MAX[self.o.codec], 1 if self.o.class_bits == 4 else 4
        histogram = np.zeros(e_max // unit + 1, np.int64)
        for t in range(self.tiles_row * self.tiles_col):
            if not self.is_stored(t):
                c, allowed = self.coded_exponents(t, self.fields(self.region(t))[1])
                np.add.at(histogram, c[allowed] // unit, 1)
        return [int(k) * unit for k in np.argsort(-histogram, kind="stable")[:count]]

    def split(self, t: int, class_value: list[int]) -> Coded:
        """Classes and raw bits of the coded region of tile t."""
        region = self.region(t)
        if self.is_int:
            k = (region - class_value[0]) >> self.raw_bits
            exception = (k < 0) | (k >= len(class_value))
            raw = (region - class_value[0]) & ((1 << self.raw_bits) - 1)
            coded = Coded(t, k, raw, region, exception)
        else:
            sign, exponent, mantissa = self.fields(region)
            c, allowed = self.coded_exponents(t, exponent)
            if self.o.codec == ref.E4M3:
                allowed = allowed & (region & 0x7F != 0x7F)  # NaNs are exceptions
            quads = self.o.class_bits == 2
            class_of = np.full(ref.EXPONENT_MAX[self.o.codec] + 1, -1)
            class_of[class_value] = np.arange(len(class_value))
            key = np.where(allowed, c, 0)
            classes = class_of[key & ~3] if quads else class_of[key]
            exception = ~allowed | (classes < 0)
            coded = Coded(t, classes, self.join_raw(sign, key & 3, mantissa), region, exception)
        row, col, _, _ = self.place(t)
        coded.elements = self.elements[row : row + region.shape[0], col : col + region.shape[1]]
        if self.o.force is not None:
            coded.exception |= self.o.force[row : row + region.shape[0], col : col + region.shape[1]]
        self.neutralize(coded, coded.exception)
        return coded

    def neutralize(self, coded: Coded, where: np.ndarray) -> None:
        """Codes weights that are exceptions with a class and raw bits of the caller's choice."""
        coded.classes = np.where(where, self.o.exception_class, coded.classes)
        coded.raw = np.where(where, self.o.exception_raw, coded.raw)

    def join_raw(self, sign: np.ndarray, e: np.ndarray, mantissa: np.ndarray) -> np.ndarray:
        """R of the float codecs."""
        place, m = ref.SIGN_BIT[self.o.codec, self.o.class_bits], ref.MANTISSA_BITS[self.o.codec]
        if (self.o.codec, self.o.class_bits) == (ref.E4M3, 2):
            return (mantissa & 1) << 5 | sign << 4 | e << 2 | mantissa >> 1
        low = mantissa >> place << (place + 1) | sign << place | mantissa & ((1 << place) - 1)
        return e << (m + 1) | low if self.o.class_bits == 2 else low

    # -- sections 6 and 7 ---------------------------------------------------------------------------------------

    def slab_count(self, coded: Coded) -> int:
        rows, cols = coded.classes.shape
        return ceil_div(rows, 32) * ceil_div(cols, self.o.slab_cols)

    def slab_weights(self, coded: Coded, s: int, grid: np.ndarray) -> np.ndarray:
        """One slab of a grid [H][V] in the order [lane][i]."""
        return grid[self.weight_places(grid, s)]

    def weight_places(self, grid: np.ndarray, s: int) -> tuple[np.ndarray, np.ndarray]:
        """Row and column in a grid [H][V] of the weights of a slab: two arrays [lane][i]."""
        band, j = divmod(s, ceil_div(grid.shape[1], self.o.slab_cols))
        row, col = 32 * band, self.o.slab_cols * j
        height, width = grid[row : row + 32, col : col + self.o.slab_cols].shape
        rows, cols = second_places.weight_places(height * width // 32, height // 16)
        return row + rows, col + cols

    def make_symbols(self, coded: Coded) -> None:
        per_symbol = 8 // self.o.class_bits
        coded.symbols = []
        for s in range(self.slab_count(coded)):
            classes = self.slab_weights(coded, s, coded.classes).reshape(32, -1, per_symbol)
            coded.symbols.append((classes << (self.o.class_bits * np.arange(per_symbol))).sum(axis=2))

    def drop_rare(self, coded: Coded, frequencies: np.ndarray) -> None:
        """Makes exceptions of the weights whose symbol has a frequency of 0."""
        for s, symbols in enumerate(coded.symbols):
            bad = np.repeat(frequencies[symbols] == 0, 8 // self.o.class_bits, axis=1)
            where = np.zeros(coded.classes.shape, bool)
            where[self.weight_places(where, s)] = bad
            coded.exception |= where
            self.neutralize(coded, where)
        self.make_symbols(coded)

    def choose_frequencies(self, regions: list[Coded]) -> np.ndarray:
        total = 1 << self.o.probability_bits
        counts = np.zeros(256, np.int64)
        for coded in regions:
            for symbols in coded.symbols:
                counts += np.bincount(symbols.reshape(-1), minlength=256)
        if np.count_nonzero(counts) < 2:
            # No frequency may be 2^p: a second symbol shares the table.
            counts[0] += 1
            counts[255] += 1
        frequencies = np.maximum(counts * total // counts.sum(), counts > 0)
        while frequencies.sum() > total:
            frequencies[np.argmax(frequencies)] -= 1
        frequencies[np.argmax(frequencies)] += total - frequencies.sum()
        return frequencies

    def encode_lane(self, symbols: list[int], frequencies: list[int], start: list[int]) -> tuple[int, list[int]]:
        """Start state and words of one lane, in the order in which a decoder takes them."""
        p, lower = self.o.probability_bits, self.o.state_bits
        x, words = 1 << lower, []
        for s in reversed(symbols):
            f = frequencies[s]
            assert f > 0
            while x >= f << (lower + 16 - p):
                words.append(x & 0xFFFF)
                x >>= 16
            x = (x // f << p) + start[s] + x % f
        if x >= 1 << 16:
            words.append(x & 0xFFFF)
            x >>= 16
        return x, words[::-1]

    def plane_bytes(self, raw: np.ndarray, width: int) -> bytes:
        """One plane of a chunk; `raw` [lane][i] holds its bits."""
        m = raw.shape[1]
        z_count = second_places.plane_words(m, width)
        per_word = 32 // width
        padded = np.zeros((32, z_count * per_word), np.int64)
        padded[:, :m] = raw
        bits = padded.reshape(32, z_count, per_word, 1) >> np.arange(width) & 1
        words = (bits << second_places.plane_bit_places(width)).sum(axis=(2, 3))
        out = np.zeros(32 * z_count, "<u4")
        out[second_places.plane_word_offsets(z_count) // 4] = words
        return out.tobytes()

    def chunk_bytes(self, raw: np.ndarray) -> bytes:
        """All chunks of a slab; `raw` [lane][i] is R."""
        if not self.is_int:
            mask = 1 << ref.SIGN_BIT[self.o.codec, self.o.class_bits]
            signs, moved = (raw & mask).reshape(32, -1, 4), np.zeros((32, raw.shape[1] // 4, 4), np.int64)
            moved[:, :, ref.SIGN_STORED_AT] = signs
            raw = raw & ~mask | moved.reshape(raw.shape)
        out = b""
        for first in range(0, raw.shape[1], second_places.CHUNK_WEIGHTS):
            chunk, shift = raw[:, first : first + second_places.CHUNK_WEIGHTS], 0
            for width in second_places.plane_widths(self.raw_bits):
                out += self.plane_bytes(chunk >> shift & ((1 << width) - 1), width)
                shift += width
        return out

    def rans_bytes(self, coded: Coded, s: int, frequencies: np.ndarray) -> tuple[bytes, int]:
        """One slab's rANS streams and its number of exceptions."""
        start = (np.cumsum(frequencies) - frequencies).tolist()
        lanes = [self.encode_lane(row, frequencies.tolist(), start) for row in coded.symbols[s].tolist()]
        out = struct.pack("<32H", *(state for state, _ in lanes))
        lane_pairs = [lanes[k][1] + lanes[k + 16][1][::-1] for k in range(16)]
        out += bytes(len(words) for words in lane_pairs)
        # By index, then lane: the order of the positions.
        index_lane = np.argwhere(self.slab_weights(coded, s, coded.exception).T)
        elements = self.slab_weights(coded, s, coded.elements).T[tuple(index_lane.T)] & 0xFFFF
        out += struct.pack("<HH", len(elements), 0)
        out += (index_lane @ np.array([32, 1]) << 19 | elements).astype("<u4").tobytes()
        for words in lane_pairs:
            out += struct.pack(f"<{len(words)}H", *words)
        return out + bytes(-len(out) % 16), len(elements)

    # -- section 4 ----------------------------------------------------------------------------------------------

    def stored_elements(self, values: np.ndarray) -> bytes:
        return values.astype("<i8").reshape(-1, 1).view("u1")[:, : self.stored_element_bytes].tobytes()

    def tile_bytes(self, t: int, coded: Coded | None, frequencies: np.ndarray) -> tuple[bytes, int]:
        row, col, height, width = self.place(t)
        tile = self.elements[row : row + height, col : col + width]
        if coded is None:
            out = self.stored_elements(tile)
            return out + bytes(-len(out) % 128), 0
        coded_rows, coded_cols = coded.classes.shape
        count = self.slab_count(coded)
        raw, table, rans_streams, total = b"", b"", b"", 0
        for s in range(count):
            raw += self.chunk_bytes(self.slab_weights(coded, s, coded.raw))
            data, exceptions = self.rans_bytes(coded, s, frequencies)
            rans_streams += data
            total += exceptions
            table += struct.pack("<H", len(rans_streams) // 16)
        slivers = self.stored_elements(tile[:coded_rows, coded_cols:]) + self.stored_elements(tile[coded_rows:])
        out = raw + table + bytes(-len(table) % 16) + rans_streams + slivers
        return out + bytes(-len(out) % 128), total

    # -- sections 2 and 3 ---------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        o = self.o
        num_tiles = self.tiles_row * self.tiles_col
        class_value = self.choose_classes()
        regions = {t: self.split(t, class_value) for t in range(num_tiles) if not self.is_stored(t)}
        for coded in regions.values():
            self.make_symbols(coded)
        if o.frequencies is not None:
            frequencies = np.asarray(o.frequencies, np.int64)
            for coded in regions.values():
                self.drop_rare(coded, frequencies)
        else:
            frequencies = self.choose_frequencies(list(regions.values()))
        bodies = [self.tile_bytes(t, regions.get(t), frequencies) for t in range(num_tiles)]

        modes = 0
        for t in range(num_tiles):
            modes |= self.mode(t)
        scale_dtype, scales = 0, b""
        if o.granularity:
            scale_dtype = 1 if o.granularity in (ref.TENSOR, ref.CHANNEL) or self.is_scaled_fp8 else 2
            scales = np.asarray(o.scales).astype("<f4" if scale_dtype == 1 else "<f2").tobytes()
        sections = [scales]
        for bit, offsets in ((ROW_OFFSETS, o.row_offsets), (COL_OFFSETS, o.col_offsets)):
            sections.append(np.asarray(offsets).astype("i1").tobytes() if modes & bit else b"")
        head = bytearray(832 + 32 * num_tiles)
        places = []
        for section in sections:
            if section:
                head += bytes(-len(head) % 16)
            places += [len(head) if section else 0, len(section)]
            head += section
        head += bytes(-len(head) % 128)

        version = ref.SCALED_FP8_VERSION if self.is_scaled_fp8 else ref.VERSION
        offset = len(head)
        for t, (data, exceptions) in enumerate(bodies):
            struct.pack_into(
                "<QIBBHIIQ", head, 832 + 32 * t, offset, len(data), self.mode(t), int(self.is_stored(t)), 0,
                exceptions, 0, 0,
            )  # fmt: skip
            offset += len(data)
        struct.pack_into(
            "<IHBBBBHIIIIBBBBHBBIIIQQ", head, 0, ref.MAGIC, version, o.codec, o.source_dtype, o.class_bits,
            self.raw_bits, 256, self.rows, self.cols, self.tiles_row, self.tiles_col, o.probability_bits,
            o.state_bits, 32, 1, o.slab_cols, self.stored_element_bytes, modes, 64, 256, 0, offset, 0,
        )  # fmt: skip
        struct.pack_into(
            "<16hiBBHIi", head, 64, *(class_value + [0] * (16 - len(class_value))), o.exponent_offset,
            o.granularity, scale_dtype, 0, o.scale_group_size, o.scale_exponent,
        )  # fmt: skip
        exception_count = sum(exceptions for _, exceptions in bodies)
        struct.pack_into("<10Q", head, 112, 320, 832, *places, len(head), exception_count)
        struct.pack_into("<256H", head, 320, *frequencies.tolist())
        return bytes(seal(head + b"".join(data for data, _ in bodies)))


def seal(blob: bytearray) -> bytearray:
    """Writes the checksums of all tiles and of the head, as far as the offsets make sense."""
    tiles_row, tiles_col = struct.unpack_from("<II", blob, 20)
    (data_offset,) = struct.unpack_from("<Q", blob, 176)
    for t in range(min(tiles_row * tiles_col, (len(blob) - 832) // 32)):
        at = 832 + 32 * t
        offset, size = struct.unpack_from("<QI", blob, at)
        data = bytes(blob[offset : offset + size])
        struct.pack_into("<Q", blob, at + 24, xxhash.xxh3_64_intdigest(data, t))
    seal_head(blob, data_offset)
    return blob


def seal_head(blob: bytearray, data_offset: int) -> None:
    hashed = bytes(blob[:56]) + bytes(8) + bytes(blob[64:data_offset])
    struct.pack_into("<Q", blob, 56, xxhash.xxh3_64_intdigest(hashed))


def encode(elements: np.ndarray, options: Options) -> bytes:
    """The blob of a matrix of elements [N][K]."""
    return Encoder(elements, options).encode()
