# SPDX-License-Identifier: Apache-2.0
"""Where weights and their raw bits lie in a slab: sections 6 and 7 of FORMAT.md, for the second decoder and encoder."""

from __future__ import annotations

import numpy as np

LANES = 32
CHUNK_WEIGHTS = 64


def ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b


def plane_widths(raw_bits: int) -> list[int]:
    """Widths of the planes of R, widest first."""
    return [width for width in (8, 4, 2, 1) if raw_bits & width]


def plane_words(m: int, width: int) -> int:
    """Z: 32-bit words of one lane in a plane of `m` weights."""
    return ceil_div(m * width, 32)


def chunk_weights(n: int) -> list[int]:
    """m of every chunk of a slab with n weights a lane."""
    return [min(CHUNK_WEIGHTS, n - first) for first in range(0, n, CHUNK_WEIGHTS)]


def raw_bytes(n: int, raw_bits: int) -> int:
    """Size of all chunks of a slab."""
    return sum(128 * plane_words(m, width) for m in chunk_weights(n) for width in plane_widths(raw_bits))


def weight_places(n: int, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of weight i of lane l inside a slab: two arrays [lane][i] (section 6)."""
    lane = np.arange(LANES)[:, None]
    i = np.arange(n)[None, :]
    steps = n // (8 * blocks)
    step, block, a, half = i // (8 * blocks), i // 8 % blocks, i // 2 % 4, i % 2
    span = np.where(2 * (step // 2) + 1 < steps, 8, 4)
    row = 16 * block + lane // 4 + 8 * (a % 2)
    return row, 32 * (step // 2) + span * (lane % 4) + 4 * (step % 2) + 2 * (a // 2) + half


def plane_word_offsets(z_count: int) -> np.ndarray:
    """Byte offset from the plane's start of word z of lane l: array [lane][z]."""
    lane = np.arange(LANES)[:, None]
    z = np.arange(z_count)[None, :]
    whole = 512 * (z // 4) + 16 * lane + 4 * (z % 4)
    rest = 512 * (z_count // 4) + 4 * (z_count % 4) * lane + 4 * (z % 4)
    return np.where(z // 4 < z_count // 4, whole, rest)


def plane_bit_places(width: int) -> np.ndarray:
    """Bit position in its word of bit b of weight i, for one word's worth of weights: array [i][b]."""
    i = np.arange(32 // width)[:, None]
    return width * (i // 4 % (8 // width)) + 8 * (i // 2 % 2) + 16 * (i % 2) + np.arange(width)[None, :]
