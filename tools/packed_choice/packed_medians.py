#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes lines for docs/performance/packed.csv from times that packed_choice_times has measured.

    python3 tools/packed_choice/packed_medians.py TIMES.csv... > lines.csv

With several runs, each time is the median. packed_us is the time of the kernel and cut that the library takes, which
the line names; fastest_us is that of the fastest kernel and cut. tools/bench/performance_tables.py makes tables of the
lines.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from statistics import median

COLUMNS = ["card", "early_launch", "pause_s", "layer", "batch"]  # of a product
INPUT = [*COLUMNS, "kernel", "cut", "chosen", "rounds", "median_us", "q1_us", "q3_us"]
OUTPUT = [*COLUMNS, "cublaslt_us", "packed_us", "fastest_us", "kernel", "cut"]


def read(path: str, times: dict, chosen: dict) -> None:
    """Adds a file's times by product, then by kernel and cut, and the kernel and cut that each product takes."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if rows.fieldnames != INPUT:
            raise SystemExit(f"{path}:1: not a file of times: its columns should be {','.join(INPUT)}")
        for row in rows:
            try:
                product, way = tuple(row[name] for name in COLUMNS), (row["kernel"], row["cut"])
                times[product][way].append(float(row["median_us"]))
            except (TypeError, ValueError):
                raise SystemExit(f"{path}:{rows.line_num}: no line of times") from None
            if row["chosen"] == "1" and chosen.setdefault(product, way) != way:
                raise SystemExit(f"{path}:{rows.line_num}: {' '.join(chosen[product])} was chosen before")


def make_line(product: tuple[str, ...], of_product: dict, chosen: dict) -> list[str]:
    medians = {way: median(values) for way, values in of_product.items()}
    dense = medians.pop(("cublaslt", ""), None)
    if dense is None or product not in chosen:
        raise SystemExit(f"{' '.join(product)}: no time of {'cublaslt' if dense is None else 'what is chosen'}")
    us = (dense, medians[chosen[product]], min(medians.values()))
    return [*product, *(f"{value:.2f}" for value in us), *chosen[product]]


def main() -> None:
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    times: dict = defaultdict(lambda: defaultdict(list))
    chosen: dict = {}
    for path in sys.argv[1:]:
        read(path, times, chosen)
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerow(OUTPUT)
    lines.writerows(make_line(product, of_product, chosen) for product, of_product in times.items())


if __name__ == "__main__":
    main()
