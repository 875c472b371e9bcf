#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/performance/speed-over-batch.svg: cuBLASLt's time by ours over the batch, from the medians beside it.

    python3 tools/bench/plot_speed.py [-o FILE]

Packed layers are at the left and coded ones at the right, on one scale; lines are what plans take, solid on an H200 and
dashed on an H100. The SVG is written here rather than by a plotting library, so that it is small, the same on every
machine, and can be compared with what is committed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from performance_tables import CARDS, DATA, coded_points, packed_points, shape

PLOT = DATA / "speed-over-batch.svg"
# Colours of Okabe and Ito, and shapes, which tell the layers apart without colours, too.
LAYERS = {"28672x8192": ("#0072b2", "circle"), "8192x8192": ("#d55e00", "square"), "4096x4096": ("#009e73", "triangle")}
PANELS: dict[str, Callable[[str, str], list[tuple[int, float]]]] = {
    "packed: 75 % of the memory, nothing to decode": packed_points,
    "coded: 68 %, decoded in each product": coded_points,
}
WIDTH, HEIGHT = 960, 460
LEFT, TOP, BOTTOM = 54, 78, 84
PANEL, GAP = 430, 30
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
LOW, HIGH = 0.3, 1.5
DASHES = ["", ' stroke-dasharray="6 4"']  # of the cards, in their order


def x_of(left: float, batch: int) -> float:
    return left + PANEL * math.log2(batch) / math.log2(BATCHES[-1])


def y_of(ratio: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (ratio - LOW) / (HIGH - LOW)


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 13, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{more}>{words}</text>'


def markers(kind: str, places: list[tuple[float, float]], colour: str) -> str:
    """Makes one path of all of a curve's points, which keeps the file small."""
    if kind == "circle":  # the round ends of lines of no length
        way = "".join(f"M{x:.1f} {y:.1f}h.01" for x, y in places)
        return f'<path d="{way}" stroke="{colour}" stroke-width="7.4" stroke-linecap="round"/>'
    if kind == "square":
        way = "".join(f"M{x - 3.4:.1f} {y - 3.4:.1f}h6.8v6.8h-6.8z" for x, y in places)
    else:
        way = "".join(f"M{x:.1f} {y - 4.4:.1f}l4.4 7.9h-8.8z" for x, y in places)
    return f'<path d="{way}" fill="{colour}"/>'


def line(places: list[tuple[float, float]], colour: str, dashes: str) -> str:
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return f'<path d="M{way}" fill="none" stroke="{colour}" stroke-width="1.8"{dashes}/>'


def axes(left: float, title: str, has_numbers: bool) -> list[str]:
    bottom, one = HEIGHT - BOTTOM, y_of(1)
    parts = [
        text(left, TOP - 12, title, size=14, more=' font-weight="bold"'),
        f'<rect x="{left}" y="{one:.1f}" width="{PANEL}" height="{bottom - one:.1f}" fill="#f2f2f2"/>',
    ]
    tenths = range(round(10 * LOW), round(10 * HIGH) + 1)
    grid = "".join(f"M{left} {y_of(tenth / 10):.1f}h{PANEL}" for tenth in tenths)
    grid += "".join(f"M{x_of(left, batch):.1f} {TOP}V{bottom}" for batch in BATCHES)
    parts.append(f'<path d="{grid}" stroke="#dddddd"/>')
    for tenth in tenths:
        if has_numbers and tenth % 2 == 0:
            parts.append(text(left - 8, y_of(tenth / 10) + 4.5, f"{tenth / 10:.1f}", "end"))
    parts += [text(x_of(left, batch), bottom + 18, str(batch), "middle", 12) for batch in BATCHES]
    return [
        *parts,
        f'<path d="M{left} {one:.1f}h{PANEL}" stroke="#000000" stroke-width="1.4"/>',
        text(left + 6, one - 6, "faster than cuBLASLt", size=12),
        text(left + 6, one + 16, "slower", size=12),
        text(left + PANEL / 2, bottom + 38, "batch: tokens in a product", "middle"),
    ]


def curves(left: float, points_of: Callable[[str, str], list[tuple[int, float]]]) -> list[str]:
    parts = []
    for layer, (colour, kind) in LAYERS.items():
        for card, dashes in zip(CARDS, DASHES):
            points = [point for point in points_of(card, layer) if point[0] <= BATCHES[-1]]
            places = [(x_of(left, batch), y_of(ratio)) for batch, ratio in points]
            parts += [line(places, colour, dashes), markers(kind, places, colour)]
    return parts


def legend() -> list[str]:
    """Makes the legend, one row below the panels."""
    x, y, parts = LEFT, HEIGHT - 18, []
    for layer, (colour, kind) in LAYERS.items():
        parts += [
            f'<path d="M{x} {y}h28" stroke="{colour}" stroke-width="1.8"/>',
            markers(kind, [(x + 14, y)], colour),
            text(x + 36, y + 4.5, shape(layer)),
        ]
        x += 146
    x += 16
    for name, dashes in zip(CARDS.values(), DASHES):
        parts += [
            f'<path d="M{x} {y}h32" stroke="#000000" stroke-width="1.8"{dashes}/>',
            text(x + 40, y + 4.5, name),
        ]
        x += 110
    return parts


def draw() -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif">'
    )
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    words = "Speed of a product with lossless BF16 weights; cuBLASLt on the plain ones = 1"
    parts = [head, background, text(10, 26, words, size=16, more=' font-weight="bold"')]
    for at, (title, points_of) in enumerate(PANELS.items()):
        left = LEFT + at * (PANEL + GAP)
        parts += [*axes(left, title, at == 0), *curves(left, points_of)]
    return "\n".join([*parts, *legend(), "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=PLOT)
    parser.parse_args().output.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
