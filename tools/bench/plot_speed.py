#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/performance/speed-over-batch.svg: cuBLASLt's time by ours over the batch, from the medians beside it.

    python3 tools/bench/plot_speed.py [-o FILE]

Lines are what plans take, solid on an H200 and dashed on an H100. The SVG is written here rather than by a
plotting library, so that it is small, the same on every machine, and can be compared with what is committed.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from performance_tables import CARDS, DATA, plan_ratio, read, read_crossovers, shape, times_of

PLOT = DATA / "speed-over-batch.svg"
# Colours of Okabe and Ito, and shapes, which tell the layers apart without colours, too.
LAYERS = {"28672x8192": ("#0072b2", "circle"), "8192x8192": ("#d55e00", "square"), "4096x4096": ("#009e73", "triangle")}
WIDTH, HEIGHT = 800, 470
LEFT, RIGHT, TOP, BOTTOM = 62, 186, 52, 58
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
LOW, HIGH = 0.4, 1.5
DASHES = ["", ' stroke-dasharray="7 5"']  # of the cards, in their order


def x_of(batch: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(batch) / math.log2(BATCHES[-1])


def y_of(ratio: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (ratio - LOW) / (HIGH - LOW)


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 13, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{more}>{words}</text>'


def marker(kind: str, x: float, y: float, colour: str, filled: bool) -> str:
    paint = f'fill="{colour if filled else "#ffffff"}" stroke="{colour}" stroke-width="1.6"'
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.2" {paint}/>'
    if kind == "square":
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {paint}/>'
    return f'<path d="M{x:.1f} {y - 5:.1f}L{x + 5:.1f} {y + 4:.1f}L{x - 5:.1f} {y + 4:.1f}Z" {paint}/>'


def line(points: list[tuple[int, float]], colour: str, dashes: str) -> str:
    way = "L".join(f"{x_of(batch):.1f} {y_of(ratio):.1f}" for batch, ratio in points)
    return f'<path d="M{way}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'


def axes() -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [
        f'<rect x="{LEFT}" y="{y_of(1):.1f}" width="{right - LEFT}" height="{bottom - y_of(1):.1f}" fill="#f2f2f2"/>'
    ]
    for tenth in range(4, 16, 1):
        y = y_of(tenth / 10)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#dddddd"/>')
        if tenth % 2 == 0:
            parts.append(text(LEFT - 8, y + 4.5, f"{tenth / 10:.1f}", "end"))
    for batch in BATCHES:
        x = x_of(batch)
        parts += [f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#dddddd"/>', text(x, bottom + 20, str(batch), "middle")]
    parts += [
        f'<path d="M{LEFT} {y_of(1):.1f}H{right}" stroke="#000000" stroke-width="1.6"/>',
        text(LEFT + 6, y_of(1) - 6, "faster than cuBLASLt", size=12),
        text(LEFT + 6, y_of(1) + 16, "slower", size=12),
        text((LEFT + right) / 2, HEIGHT - 16, "batch (rows of x)", "middle"),
        text(
            LEFT - 44,
            TOP - 30,
            "Speed of a product with lossless BF16 weights: cuBLASLt on the plain ones = 1",
            size=16,
            more=' font-weight="bold"',
        ),
    ]
    return parts


def legend() -> list[str]:
    left, parts = WIDTH - RIGHT + 16, []
    y = TOP + 12
    for layer, (colour, kind) in LAYERS.items():
        parts += [
            f'<path d="M{left} {y}h28" stroke="{colour}" stroke-width="2"/>',
            marker(kind, left + 14, y, colour, True),
            text(left + 36, y + 4.5, shape(layer)),
        ]
        y += 24
    y += 8
    for name, dashes in zip(CARDS.values(), DASHES):
        parts += [
            f'<path d="M{left} {y}h28" stroke="#000000" stroke-width="2"{dashes}/>',
            text(left + 36, y + 4.5, name),
        ]
        y += 24
    y += 8
    parts += [marker("circle", left + 14, y, "#000000", True), text(left + 36, y + 4.5, "fused path")]
    y += 24
    parts += [marker("circle", left + 14, y, "#000000", False), text(left + 36, y + 4.5, "two-step")]
    return parts


def curves() -> list[str]:
    times, crossovers = times_of(read("speed.csv")), read_crossovers()
    parts = []
    for layer, (colour, kind) in LAYERS.items():
        for card, dashes in zip(CARDS, DASHES):
            batches = sorted({key[3] for key in times if key[:2] == (card, layer) and key[3] <= BATCHES[-1]})
            found = [(batch, plan_ratio(times, crossovers, card, layer, batch)) for batch in batches]
            points = [(batch, *ratio) for batch, ratio in found if ratio]
            parts.append(line([point[:2] for point in points], colour, dashes))
            parts += [marker(kind, x_of(batch), y_of(ratio), colour, path == "fused") for batch, ratio, path in points]
    return parts


def draw() -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif">'
    )
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    return "\n".join([head, background, *axes(), *curves(), *legend(), "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=PLOT)
    parser.parse_args().output.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
