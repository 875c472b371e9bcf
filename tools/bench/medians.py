#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Condenses JSON files of `transfuse bench --device cuda` to medians with their spread, as docs/performance has them.

    python3 tools/bench/medians.py BENCH.json... > rows.csv
    python3 tools/bench/medians.py --sizes BENCH.json... > rows.csv     also of --device cpu

Each line is one timed case: card, commit, number of rounds, what was multiplied and how, and the median and the
quartiles of the rounds in microseconds. error_f32 is the relative error of an F32 y against F64. With --sizes each line
is one compressed layer: its bits a weight, and the entropy of what is coded plus the raw bits.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from pathlib import Path

FIELDS = [
    "card",
    "commit",
    "rounds",
    "subject",
    "codec",
    "favor",
    "batch",
    "what",
    "median_us",
    "q1_us",
    "q3_us",
    "error_f32",
]
SIZE_FIELDS = ["card", "commit", "subject", "codec", "favor", "entropy_bits", "bits", "relative_error"]
# Cases that no reader of the tables needs, since their path is gone.
GONE = {"ahead"}


def read_bench(path: str | Path, devices: tuple[str, ...] = ("cuda",)) -> dict:
    try:
        bench = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise SystemExit(f"{path}: cannot be read: {fault}") from fault
    if bench.get("device") not in devices:
        raise SystemExit(f"{path}: not a file of bench --device {' or '.join(devices)}")
    return bench


def spread(seconds: list[float]) -> list[str]:
    """Median, lower and upper quartile of the rounds in microseconds, four digits or more."""
    times = [1e6 * second for second in seconds]
    quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [times[0]] * 3
    values = [statistics.median(times), quartiles[0], quartiles[2]]
    return [f"{value:.2f}" if value < 1000 else f"{value:.1f}" for value in values]


def rows_of(bench: dict) -> list[dict]:
    """The timed cases of a file of any mode, by FIELDS."""
    measured = [
        ({"subject": f"{result['rows']}x{result['cols']}", "codec": result["codec"], "favor": m["favor"] or ""}, m)
        for result in bench.get("results", [])
        for m in result["measurements"]
    ] + [
        ({"subject": figure["subject"], "codec": "bf16", "favor": "speed"}, figure)
        for figure in bench.get("figures", [])
    ]
    rows = []
    for subject, m in measured:
        if m["what"] in GONE or not m.get("seconds"):
            continue
        median, q1, q3 = spread(m["seconds"])
        error = f"{m['error_f32']:.2g}" if m.get("error_f32") else ""
        rows.append(
            {
                "card": bench["gpu"],
                "commit": bench.get("commit", ""),
                "rounds": len(m["seconds"]),
                **subject,
                "batch": m.get("batch") or 0,
                "what": m["what"],
                "median_us": median,
                "q1_us": q1,
                "q3_us": q3,
                "error_f32": error,
            }
        )
    return rows


def sizes_of(bench: dict) -> list[dict]:
    """The compressed layers of a file of --mode layers or batch-sweep, by SIZE_FIELDS."""
    return [
        {
            "card": bench["gpu"] if bench["device"] == "cuda" else bench["cpu"],
            "commit": bench.get("commit", ""),
            "subject": f"{result['rows']}x{result['cols']}",
            "codec": result["codec"],
            "favor": blob["favor"],
            "entropy_bits": f"{blob['entropy_bits']:.3f}",
            "bits": f"{blob['bits_per_weight']:.3f}",
            "relative_error": f"{blob['relative_rms_error']:.3g}",
        }
        for result in bench.get("results", [])
        for blob in result.get("blobs", [result])  # a CPU's results are of one blob each
    ]


def write(rows: list[dict], fields: list[str], file) -> None:
    out = csv.DictWriter(file, fields, lineterminator="\n")
    out.writeheader()
    out.writerows(rows)


def main() -> None:
    arguments = sys.argv[1:]
    sizes = "--sizes" in arguments
    paths = [argument for argument in arguments if argument != "--sizes"]
    if not paths or any(path.startswith("-") for path in paths):
        raise SystemExit(__doc__)
    make, fields = (sizes_of, SIZE_FIELDS) if sizes else (rows_of, FIELDS)
    devices = ("cuda", "cpu") if sizes else ("cuda",)
    write([row for path in paths for row in make(read_bench(path, devices))], fields, sys.stdout)


if __name__ == "__main__":
    main()
