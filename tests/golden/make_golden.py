# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files: small blobs that exercise every corner of format/FORMAT.md, and corrupt ones.

    tests/golden/NAME.trf            legal blobs; golden.json has size and XXH3-64 of what they decode to
    tests/golden/corrupt/NAME.trf    blobs to reject; corrupt.json has the status of each

They come from the Python encoder, not from the C one, and are the same every time. Golden files of a released format
version are never written again: they must stay readable as they are.

Usage: make_golden.py [--check]      --check only compares with the files that are there
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE)]

import corrupt_cases  # noqa: E402
import second_decoder as ref  # noqa: E402
import xxhash  # noqa: E402
from second_encoder import Options, encode  # noqa: E402

FLOATS = {"bf16": ref.BF16, "fp16": ref.FP16, "e4m3": ref.E4M3, "e5m2": ref.E5M2}
DTYPE_OF = {ref.BF16: ref.BF16_DTYPE, ref.FP16: ref.F16, ref.E4M3: ref.F8_E4M3, ref.E5M2: ref.F8_E5M2}
MIDDLE = {ref.BF16: 122, ref.FP16: 12, ref.E4M3: 10, ref.E5M2: 18}

Case = tuple[str, np.ndarray, Options]


def random_bits(seed: int, *shape: int) -> np.ndarray:
    """SplitMix64: numbers that no change of numpy's generators can alter."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return (z ^ z >> np.uint64(31)).reshape(shape)


def below(seed: int, bound: int, *shape: int) -> np.ndarray:
    """Numbers 0…bound−1, all about as likely."""
    return (random_bits(seed, *shape) >> np.uint64(16)).astype(np.int64) % bound


def weights(codec: int, seed: int, rows: int, cols: int, spread: int = 12) -> np.ndarray:
    """Floats like those of a trained matrix: each lower exponent is half as frequent; a few weights are odd."""
    m, e_max = ref.MANTISSA_BITS[codec], ref.EXPONENT_MAX[codec]
    runs = below(seed, 1 << spread, rows, cols) | 1 << spread
    zeros = np.log2(runs & -runs).astype(np.int64)
    exponent = np.clip(MIDDLE[codec] - zeros, 0, e_max)
    odd = below(seed + 1, 97, rows, cols) == 0
    exponent = np.where(odd, below(seed + 2, e_max + 1, rows, cols), exponent)
    sign_mantissa = below(seed + 3, 2 << m, rows, cols)
    sign, mantissa = sign_mantissa >> m, sign_mantissa & ((1 << m) - 1)
    return sign << (8 * ref.ELEMENT_BYTES[codec] - 1) | exponent << m | mantissa


def codes(seed: int, rows: int, cols: int, limit: int) -> np.ndarray:
    """Codes −limit…limit, small ones more frequent."""
    thirds = [below(seed + k, 2 * limit + 1, rows, cols) for k in range(3)]
    return sum(thirds) // 3 - limit


def patterns(count: int, cols: int) -> np.ndarray:
    """All `count` bit patterns, scattered."""
    order = np.arange(count) * 40503 % count  # odd: a permutation of a power of two
    return order.reshape(-1, cols)


def float_options(codec: int, **others: object) -> Options:
    return Options(codec, DTYPE_OF[codec], **others)


def plain_cases() -> Iterator[Case]:
    """Every float codec with pairs and quads, each with another p and L; slivers on both sides."""
    settings = [(12, 16), (9, 9), (10, 13), (11, 12), (12, 12), (9, 16), (11, 16), (10, 10)]
    for k, (name, codec) in enumerate(FLOATS.items()):
        for c in (4, 2):
            p, lower = settings[2 * k + (c == 2)]
            options = float_options(codec, class_bits=c, probability_bits=p, state_bits=lower)
            word = "pairs" if c == 4 else "quads"
            yield f"{name}_{word}_p{p}_L{lower}", weights(codec, 10 * k + c, 53, 75), options


def shape_cases() -> Iterator[Case]:
    for name, codec in FLOATS.items():
        yield f"{name}_1x1", weights(codec, 100, 1, 1), float_options(codec)
    yield "bf16_15x300_stored", weights(ref.BF16, 101, 15, 300), float_options(ref.BF16)
    # Sections end and tiles lie at multiples of 128 bytes, so that nothing is padded but the last tile.
    yield "e4m3_1x1300_stored", weights(ref.E4M3, 108, 1, 1300), float_options(ref.E4M3)
    yield "bf16_16x16", weights(ref.BF16, 102, 16, 16), float_options(ref.BF16)
    yield "e5m2_16x16_quads", weights(ref.E5M2, 103, 16, 16), float_options(ref.E5M2, class_bits=2)
    yield "fp16_257x33", weights(ref.FP16, 104, 257, 33), float_options(ref.FP16, class_bits=2)
    yield "e5m2_272x273_grid", weights(ref.E5M2, 105, 272, 273, 3), float_options(ref.E5M2, probability_bits=11)
    yield (
        "e4m3_20x1040_stored_amid_coded",
        weights(ref.E4M3, 106, 20, 1040),
        float_options(ref.E4M3, class_bits=2, stored=lambda t: t in (1, 3)),
    )
    yield (
        "f32_source_bf16_40x50",
        weights(ref.BF16, 107, 40, 50),
        Options(ref.BF16, ref.F32, class_bits=2, probability_bits=10, state_bits=15),
    )


def step_cases() -> Iterator[Case]:
    """Every codec with pairs and quads on one column step, which has no partner, and on slabs of full chunks."""
    for k, (name, codec) in enumerate(FLOATS.items()):
        for c, word in ((4, "pairs"), (2, "quads")):
            options = float_options(codec, class_bits=c, probability_bits=10, state_bits=13)
            yield f"{name}_{word}_one_step", weights(codec, 110 + 2 * k + c // 4, 48, 19), options
    options = float_options(ref.BF16, class_bits=2)
    yield "bf16_quads_full_chunks", weights(ref.BF16, 120, 48, 256), options
    yield "fp16_quads_full_chunks", weights(ref.FP16, 121, 48, 256), float_options(ref.FP16, class_bits=2)
    # Codes beyond the classes at both ends, the extreme ones among them.
    for seed, (name, c, r, first, cols) in enumerate(
        (("pairs_r7_one_step", 4, 7, -1024, 16), ("quads_r3_one_step", 2, 3, -16, 31), ("pairs_r3_T5", 4, 3, -64, 80),
         ("quads_r7_T11", 2, 7, -256, 176), ("quads_r8_T16", 2, 8, -512, 256))
    ):  # fmt: skip
        elements = codes(122 + seed, 48, cols, 1023)
        elements[::3, ::5] = np.where(below(130 + seed, 2, 16, -(-cols // 5)) == 1, 1023, -1023)
        elements[1, 1] = -1024  # no encoder's code, but in the range of exceptions
        options = Options(
            ref.INT, ref.F32, class_bits=c, raw_bits=r, class_value=[first], exception_class=c - 1,
            granularity=ref.CHANNEL, scales=np.float32(1.0) + np.arange(48, dtype=np.float32),
        )  # fmt: skip
        yield f"int_{name}", elements, options


def pattern_cases() -> Iterator[Case]:
    for name in ("e4m3", "e5m2"):
        for c in (4, 2):
            elements = np.tile(patterns(256, 32), (4, 1))
            yield f"{name}_all_patterns_c{c}", elements, float_options(FLOATS[name], class_bits=c)
    # Every exponent with both signs and the mantissas that matter.
    for name in ("bf16", "fp16"):
        codec = FLOATS[name]
        m, e_max = ref.MANTISSA_BITS[codec], ref.EXPONENT_MAX[codec]
        mantissas = np.array([0, 1, 1 << (m - 1), (1 << m) - 1])
        edge = np.arange(2 * (e_max + 1))[:, None] << m | mantissas[None, :]
        yield f"{name}_every_exponent", edge.reshape(-1, 32), float_options(codec, class_bits=4)


def predictor_cases() -> Iterator[Case]:
    """Row and column offsets, and a layer-wide one."""
    row = (below(200, 9, 20) - 4).astype(np.int64)
    col = (below(201, 13, 784) - 6).astype(np.int64)
    for name, codec, c in (("bf16", ref.BF16, 4), ("e4m3", ref.E4M3, 2), ("fp16", ref.FP16, 2)):
        m, e_max = ref.MANTISSA_BITS[codec], ref.EXPONENT_MAX[codec]
        elements = weights(codec, 210 + c, 20, 784)
        exponent = np.clip((elements >> m & e_max) + row[:, None] + col[None, :], 0, e_max)
        elements = elements & ~(e_max << m) | exponent << m
        options = float_options(
            codec, class_bits=c, exponent_offset=-3 if c == 4 else 2, row_offsets=row, col_offsets=col,
            modes=lambda t: t, probability_bits=11, state_bits=14,
        )  # fmt: skip
        yield f"{name}_modes_0123_and_layer_offset", elements, options
    high = np.full(40, 127), np.full(48, -128)
    yield (
        "bf16_extreme_offsets",
        weights(ref.BF16, 220, 40, 48),
        float_options(ref.BF16, row_offsets=high[0], col_offsets=high[1], modes=lambda t: 3, exponent_offset=30),
    )
    elements = weights(ref.E5M2, 221, 48, 48)
    yield "e5m2_layer_offset_only", elements, float_options(ref.E5M2, exponent_offset=7, class_bits=2)
    elements = weights(ref.BF16, 222, 33, 47)
    yield "bf16_layer_offset_254", elements, float_options(ref.BF16, exponent_offset=254)
    elements = weights(ref.FP16, 223, 528, 17)
    row = (below(224, 5, 528) - 2).astype(np.int64)
    yield (
        "fp16_row_offsets_on_one_tile",
        elements,
        float_options(ref.FP16, row_offsets=row, modes=lambda t: int(t == 1), stored=lambda t: t == 2),
    )


def special_values(codec: int) -> np.ndarray:
    """Both zeros, denormals, the ends of the normal numbers, infinities and NaNs of either sign."""
    m, e_max = ref.MANTISSA_BITS[codec], ref.EXPONENT_MAX[codec]
    full = (1 << m) - 1
    special = e_max << m
    ends = [0, 1, full, 1 << m, 2 << m | 1, special - 1, special, special | 1, special | 1 << (m - 1), special | full]
    return np.array([sign | value for sign in (0, (e_max + 1) << m) for value in ends])


def kind_cases() -> Iterator[Case]:
    """Every kind of exception under offsets of either direction, on an odd number of column steps."""
    steps = iter((3, 5, 7, 9, 11, 13, 15, 3))
    for k, (name, codec) in enumerate(FLOATS.items()):
        for c, word in ((4, "pairs"), (2, "quads")):
            cols, seed = 16 * next(steps), 230 + 8 * k + c
            picked = special_values(codec)[below(seed + 1, 20, 48, cols)]
            elements = np.where(below(seed + 2, 11, 48, cols) == 0, picked, weights(codec, seed, 48, cols))
            options = float_options(codec, class_bits=c, exponent_offset=2 if c == 4 else -2, probability_bits=11)
            options.exception_class = 3
            options.exception_raw = (1 << ref.RAW_BITS[codec, c]) - 2
            if k % 2 == c // 4:
                options.row_offsets = below(seed + 3, 5, 48) - 2
                options.col_offsets = below(seed + 4, 3, cols) - 1
                options.modes = lambda t: 3
            yield f"{name}_{word}_exceptions_T{cols // 16}", elements, options


def exception_cases() -> Iterator[Case]:
    everywhere = np.ones((32, 256), bool)
    elements = weights(ref.E4M3, 300, 32, 256)
    yield "e4m3_all_exceptions", elements, float_options(ref.E4M3, force=everywhere, exception_class=9, exception_raw=6)
    elements = codes(301, 48, 64, 1023)
    yield (
        "int_all_exceptions",
        elements,
        Options(
            ref.INT, ref.F32, class_bits=2, raw_bits=3, class_value=[-16], force=np.ones((48, 64), bool),
            exception_class=2, exception_raw=5, granularity=ref.TENSOR, scales=np.float32([1.5]),
        ),
    )  # fmt: skip
    elements = weights(ref.BF16, 302, 48, 32)
    options = float_options(
        ref.BF16, class_value=[255, 0, 254, 1, 128, 127, 126, 125, 124, 123, 122, 3, 120, 119, 118, 117]
    )
    yield "bf16_unusual_class_list", elements, options
    elements = weights(ref.FP16, 303, 64, 48)
    yield "fp16_quads_unusual_class_list", elements, float_options(ref.FP16, class_bits=2, class_value=[28, 12, 0, 16])
    # A table in which most symbols are impossible.
    frequencies = np.zeros(256, np.int64)
    frequencies[[0x00, 0x01, 0x10, 0x11]] = [1000, 24, 512, 512]
    elements = weights(ref.E5M2, 304, 48, 80)
    options = float_options(ref.E5M2, frequencies=frequencies, probability_bits=11, state_bits=11)
    yield "e5m2_few_symbols", elements, options


def stream_cases() -> Iterator[Case]:
    """Tables that make streams empty or long."""
    elements = np.full((48, 48), 0x3F80)
    elements[::7, ::5] = 0xBF81
    yield "bf16_no_words", elements, float_options(ref.BF16, probability_bits=12, state_bits=12)
    frequencies = np.ones(256, np.int64)
    frequencies[0xAA] = 4096 - 255
    elements = weights(ref.E5M2, 400, 32, 256, 2)
    options = float_options(ref.E5M2, frequencies=frequencies, class_value=list(range(10, 26)))
    yield "e5m2_most_words", elements, options


def int_cases() -> Iterator[Case]:
    i8 = codes(500, 53, 75, 128).clip(-128, 127)
    yield "int_i8_pairs", i8, Options(ref.INT, ref.I8, raw_bits=4, class_value=[-128], stored_element_bytes=1)
    quads = Options(ref.INT, ref.I8, class_bits=2, raw_bits=6, class_value=[-128], stored_element_bytes=2)
    yield "int_i8_quads", i8, quads
    yield "int_i8_1x1", np.array([[-128]]), Options(ref.INT, ref.I8, stored_element_bytes=1)

    def scales16(seed: int, *shape: int) -> np.ndarray:
        return (below(seed, 0x7BFF, *shape) + 1).astype(np.uint16).view(np.float16)

    def scales32(seed: int, *shape: int) -> np.ndarray:
        bits = (below(seed, 40, *shape) + 100) << 23 | below(seed + 1, 1 << 23, *shape)
        return bits.astype(np.uint32).view(np.float32)

    n, k = 53, 91
    groups = {g: ((n, -(-k // g)), (-(-n // g), -(-k // g))) for g in (16, 32, 64, 1 << 20)}
    # name, class_bits, raw_bits, first class, largest code, stored_element_bytes, dtype, granularity, G, scales, q
    table = [
        ("r0_tensor_f32", 4, 0, -8, 9, 1, ref.F32, ref.TENSOR, 0, scales32(510, 1), 0),
        ("r1_channel_bf16", 4, 1, -16, 17, 2, ref.BF16_DTYPE, ref.CHANNEL, 0, scales32(511, n), 0),
        ("r2_scale_group16_f16", 4, 2, -32, 40, 1, ref.F16, ref.SCALE_GROUP, 16, scales16(512, *groups[16][0]), -12),
        ("r3_scale_block32_bf16", 4, 3, -64, 64, 2, ref.BF16_DTYPE, ref.BLOCK, 32, scales16(513, *groups[32][1]), 100),
        ("r5_scale_group64_f32", 4, 5, -256, 255, 2, ref.F32, ref.SCALE_GROUP, 64, scales16(514, *groups[64][0]), -100),
        ("r6_channel_f32", 4, 6, -512, 600, 2, ref.F32, ref.CHANNEL, 0, scales32(515, n), 0),
        ("r7_scale_group_all_bf16", 4, 7, -1024, 1023, 2, ref.BF16_DTYPE, ref.SCALE_GROUP, 1 << 20,
         scales16(516, *groups[1 << 20][0]), 3),
        ("quads_r0_scale_block16_f16", 2, 0, -2, 2, 1, ref.F16, ref.BLOCK, 16, scales16(517, *groups[16][1]), -20),
        ("quads_r3_tensor_f16_inf", 2, 3, -16, 30, 2, ref.F16, ref.TENSOR, 0, np.float32([5000.0]), 0),
        ("quads_r7_channel_denormal", 2, 7, -256, 300, 2, ref.F32, ref.CHANNEL, 0,
         (below(518, 1 << 12, n) + 1).astype(np.uint32).view(np.float32), 0),
        ("quads_r8_scale_block_all_f32", 2, 8, -512, 700, 2, ref.F32, ref.BLOCK, 1 << 20,
         np.float16([[6e-8]]), 126),
        ("quads_r5_underflow_bf16", 2, 5, -64, 64, 1, ref.BF16_DTYPE, ref.CHANNEL, 0,
         np.full(n, 2.0**-140, np.float32), 0),
    ]  # fmt: skip
    for seed, (name, c, r, first, limit, stored, dtype, granularity, size, scales, q) in enumerate(table):
        options = Options(
            ref.INT, dtype, class_bits=c, raw_bits=r, class_value=[first], stored_element_bytes=stored,
            granularity=granularity, scale_group_size=size, scales=scales, scale_exponent=q,
            probability_bits=9 + seed % 4, state_bits=13 + seed % 4,
        )  # fmt: skip
        yield f"int_{name}", codes(520 + seed, n, k, limit), options


def narrow_slab_cases() -> Iterator[Case]:
    """Slabs of 128 columns: every codec with pairs and quads, second slabs of every kind, all predictor modes."""
    # Columns: one slab; one and a sliver; a second one of 1, 2, 3, 7 and 8 steps; two tiles, the last with two slabs.
    cols = iter((128, 131, 144, 161, 179, 255, 256, 256 + 147))
    for k, (name, codec) in enumerate(FLOATS.items()):
        for c, word in ((4, "pairs"), (2, "quads")):
            width, seed = next(cols), 600 + 8 * k + c
            picked = special_values(codec)[below(seed + 1, 20, 53, width)]
            elements = np.where(below(seed + 2, 41, 53, width) == 0, picked, weights(codec, seed, 53, width))
            options = float_options(codec, class_bits=c, slab_cols=128, probability_bits=9 + k, state_bits=13 + k)
            if k % 2 == c // 4:
                options.exponent_offset = -1
                options.row_offsets = below(seed + 3, 5, 53) - 2
                options.col_offsets = below(seed + 4, 3, width) - 1
                options.modes = lambda t: 3
            yield f"{name}_{word}_slabs128_53x{width}", elements, options
    i8 = codes(640, 31, 200, 128).clip(-128, 127)
    yield (
        "int_i8_pairs_slabs128_31x200",
        i8,
        Options(ref.INT, ref.I8, raw_bits=4, class_value=[-128], stored_element_bytes=1, slab_cols=128),
    )
    scales = (below(641, 0x4000, 50, 13) + 0x2000).astype(np.uint16).view(np.float16)
    yield "int_quads_slabs128_50x407", codes(642, 50, 407, 500), Options(
        ref.INT, ref.F32, class_bits=2, raw_bits=7, class_value=[-256], granularity=ref.SCALE_GROUP,
        scale_group_size=32, scales=scales, slab_cols=128,
    )  # fmt: skip
    # 16 slabs in a tile, those of the last band 16 rows high, every other one a step wide.
    options = float_options(ref.E5M2, class_bits=2, slab_cols=128, probability_bits=10, state_bits=10)
    yield "e5m2_quads_slabs128_16_in_a_tile", weights(ref.E5M2, 643, 241, 147), options
    # Modes 0 to 3 in a row of tiles, one of them stored.
    options = float_options(
        ref.BF16, slab_cols=128, exponent_offset=2, row_offsets=below(644, 9, 20) - 4,
        col_offsets=below(645, 13, 5 * 256 - 100) - 6, modes=lambda t: t % 4, stored=lambda t: t == 4,
    )  # fmt: skip
    yield "bf16_slabs128_modes_0123_and_stored", weights(ref.BF16, 646, 20, 5 * 256 - 100), options
    elements = weights(ref.E4M3, 647, 32, 256)
    yield (
        "e4m3_slabs128_all_exceptions",
        elements,
        float_options(ref.E4M3, force=np.ones((32, 256), bool), exception_class=9, exception_raw=6, slab_cols=128),
    )


def scaled_fp8_weights(seed: int, rows: int, cols: int, scales: np.ndarray) -> np.ndarray:
    """BF16 of E4M3 codes times scales, which broadcast to [rows][cols]; every code but NaN occurs."""
    every = patterns(256, 256).reshape(-1)
    picked = every[below(seed, 256, rows, cols)]
    codes_ = np.where(below(seed + 1, 3, rows, cols) == 0, picked, weights(ref.E4M3, seed + 2, rows, cols))
    return ref.scale_fp8(np.where(codes_ & 0x7F == 0x7F, codes_ ^ 1, codes_), np.broadcast_to(scales, (rows, cols)))


def scaled_fp8_cases() -> Iterator[Case]:
    """BF16 that is E4M3 times F32 scales of every granularity, with exceptions, slivers and stored tiles."""

    def scales(seed: int, *shape: int) -> np.ndarray:
        """Of any mantissa, 2^-100 to 2^100 and these two."""
        bits = (below(seed, 200, *shape) + 27) << 23 | below(seed + 1, 1 << 23, *shape)
        table = bits.astype(np.uint32).view(np.float32)
        table.reshape(-1)[:2] = [2.0**-100, 2.0**100][: table.size]
        return table

    def options(granularity: int, table: np.ndarray, **others: object) -> Options:
        return Options(ref.E4M3, ref.BF16_DTYPE, granularity=granularity, scales=table, **others)

    def spread(table: np.ndarray, size: int, rows: int, cols: int) -> np.ndarray:
        return table.repeat(size, 0).repeat(size, 1)[:rows, :cols]

    def with_specials(elements: np.ndarray, seed: int, share: int) -> np.ndarray:
        picked = special_values(ref.BF16)[below(seed, 20, *elements.shape)]
        return np.where(below(seed + 1, share, *elements.shape) == 0, picked, elements)

    table = np.array([2.0**-10 * 1.7320508], np.float32)
    elements = scaled_fp8_weights(700, 53, 75, table)
    yield "scaled_fp8_tensor_pairs", elements, options(ref.TENSOR, table, probability_bits=10, state_bits=10)
    table = scales(701, 53)
    elements = with_specials(scaled_fp8_weights(710, 53, 147, table[:, None]), 711, 40)
    yield (
        "scaled_fp8_channel_quads_exceptions",
        elements,
        options(ref.CHANNEL, table, class_bits=2, slab_cols=128, probability_bits=9, state_bits=9),
    )
    table = scales(702, 3, 3)
    elements = with_specials(scaled_fp8_weights(720, 273, 289, spread(table, 128, 273, 289)), 721, 500)
    yield "scaled_fp8_block128_pairs", elements, options(ref.BLOCK, table, scale_group_size=128, slab_cols=128)
    table = scales(703, 1, 12)
    elements = scaled_fp8_weights(730, 40, 565, spread(table, 48, 40, 565))
    yield "scaled_fp8_block48_quads_stored", elements, options(
        ref.BLOCK, table, scale_group_size=48, class_bits=2, stored=lambda t: t == 1,
        force=below(731, 9, 40, 565) == 0, exception_class=3, exception_raw=63,
    )  # fmt: skip
    table = scales(704, 1, 1)
    elements = with_specials(scaled_fp8_weights(740, 48, 64, table), 741, 11)
    yield "scaled_fp8_block_all_offsets", elements, options(
        ref.BLOCK, table, scale_group_size=1 << 20, exponent_offset=-1, row_offsets=below(742, 5, 48) - 2,
        col_offsets=below(743, 3, 64) - 1, modes=lambda t: 3,
    )  # fmt: skip
    table = np.array([1.0], np.float32)
    yield "scaled_fp8_1x1", np.array([[0xFFC1]]), options(ref.TENSOR, table)
    # Every code with every one of 64 scales.
    table = ((127 + np.arange(64) % 3) << 23 | np.arange(64) * 131071).astype(np.uint32).view(np.float32)
    every = np.array([c ^ (c & 0x7F == 0x7F) for c in range(256)])
    elements = ref.scale_fp8(np.broadcast_to(every, (64, 256)), table[:, None])
    yield "scaled_fp8_all_codes", elements, options(ref.CHANNEL, table)


def all_cases() -> Iterator[Case]:
    for cases in (
        plain_cases, shape_cases, step_cases, pattern_cases, predictor_cases, kind_cases, exception_cases,
        stream_cases, int_cases, narrow_slab_cases, scaled_fp8_cases,
    ):  # fmt: skip
        yield from cases()


def golden_files() -> tuple[dict[str, bytes], dict[str, dict[str, object]]]:
    """The blobs by file name, and the entries of golden.json."""
    blobs, index = {}, {}
    for name, elements, options in all_cases():
        blob = encode(elements, options)
        header, decoded = ref.read_blob(blob)
        if not np.array_equal(decoded.astype(np.int64), elements):
            raise AssertionError(f"{name} does not decode to what was encoded")
        element_type = {1: "u1", 2: "<u2"}[2 if header.is_int else header.element_bytes]
        raw_elements = (elements & 0xFFFF).astype(element_type).tobytes()
        # This is what was encoded, not what the decoder gave.
        raw = ref.source_bytes(header, elements.astype(decoded.dtype))
        blobs[f"{name}.trf"] = blob
        index[f"{name}.trf"] = {
            "rows": header.rows,
            "cols": header.cols,
            "codec": ref.CODEC_NAMES[header.codec],
            "dtype": ref.DTYPE_NAMES[header.source_dtype],
            "exceptions": header.exception_count,
            "bytes": len(raw),
            "xxh3": xxhash.xxh3_64_hexdigest(raw),
            "element_bytes": len(raw_elements),
            "element_xxh3": xxhash.xxh3_64_hexdigest(raw_elements),
        }
    return blobs, index


def corrupt_files() -> tuple[dict[str, bytes], dict[str, dict[str, str]]]:
    blobs, index = {}, {}
    for name, blob, status, what in corrupt_cases.all_cases():
        if f"{name}.trf" in blobs:
            raise AssertionError(f"two corrupt files are named {name}")
        blobs[f"{name}.trf"] = blob
        index[f"{name}.trf"] = {"status": status, "what": what}
    return blobs, index


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the golden files.")
    parser.add_argument("--check", action="store_true", help="compare with the files that are there")
    check_only = parser.parse_args().check

    differences = 0
    for folder, index_name, (blobs, index) in (
        (HERE, "golden.json", golden_files()),
        (HERE / "corrupt", "corrupt.json", corrupt_files()),
    ):
        files = {folder / name: blob for name, blob in blobs.items()}
        files[HERE / index_name] = (json.dumps(index, indent=1) + "\n").encode()
        stale = [path for path in sorted(folder.glob("*.trf")) if path not in files]
        if check_only:
            changed = [path for path, data in files.items() if not path.exists() or path.read_bytes() != data]
            for path in changed + stale:
                print(f"differs: {path.relative_to(HERE)}")
            differences += len(changed + stale)
            continue
        folder.mkdir(exist_ok=True)
        for path in stale:
            path.unlink()
        for path, data in files.items():
            path.write_bytes(data)
        sizes = [len(blob) for blob in blobs.values()]
        print(f"{index_name}: {len(sizes)} blobs, {sum(sizes)} bytes, largest {max(sizes)}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
