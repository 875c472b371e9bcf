#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plots JSON files of `transfuse bench --device cuda`.

It shows cuBLASLt's time divided by ours for each layer, path and batch, and rates of decoding.

Usage: plot_bench.py BENCH.json... [-o bench.png]
The files are those of --mode layers and batch-sweep. Needs matplotlib.
"""

import argparse
from itertools import product

from medians import read_bench

FAVOR_LINES = {"speed": "-", "size": "--"}
# "ahead" is in older files only.
PATH_MARKERS = {"fused": "o", "wide": "^", "two-step": "s", "ahead": "x", "auto": "*"}


def read_results(paths):
    """All results of the files, each with its file's GPU name."""
    results = []
    for path in paths:
        bench = read_bench(path)
        if "results" not in bench:
            mode = bench.get("mode", "?")
            raise SystemExit(f"{path}: of --mode {mode}; only files of --mode layers and batch-sweep can be plotted")
        results += [dict(result, gpu=bench["gpu"]) for result in bench["results"]]
    return results


def median(measurement):
    return measurement.get("median_seconds") or None


def speedups(result, what, favor):
    """Batches, and for each cuBLASLt's time divided by that of `what`."""
    dense = {m["batch"]: median(m) for m in result["measurements"] if m["what"] == "cublaslt"}
    times = {m["batch"]: median(m) for m in result["measurements"] if m["what"] == what and m["favor"] == favor}
    batches = sorted(batch for batch, time in times.items() if time and dense.get(batch))
    return batches, [dense[batch] / times[batch] for batch in batches]


def name_of(result):
    return f"{result['codec']} {result['rows']}x{result['cols']}"


def plot_ratios(axes, results, codec):
    for index, result in enumerate(result for result in results if result["codec"] == codec):
        for (path, marker), (favor, line) in product(PATH_MARKERS.items(), FAVOR_LINES.items()):
            batches, ratios = speedups(result, path, favor)
            if batches:
                label = f"{result['rows']}x{result['cols']}, {path}, {favor}, {result['gpu']}"
                axes.plot(batches, ratios, line + marker, color=f"C{index % 10}", markersize=4, label=label)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("rows of x")
    axes.set_ylabel("cuBLASLt's time / ours")
    axes.set_title(codec)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.01, 1))


def plot_decoding(axes, results):
    names, rates = [], []
    for result in results:
        for m in result["measurements"]:
            if m["what"] == "decode" and median(m):
                names.append(f"{name_of(result)} {m['favor']}")
                rates.append(m["bytes_written"] / median(m) / 1e9)
    axes.barh(range(len(names)), rates)
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("decoding, GB/s of dense 16-bit weights")
    axes.grid(axis="x", alpha=0.3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="BENCH.json")
    parser.add_argument("-o", "--output", default="bench.png")
    options = parser.parse_args()
    results = read_results(options.files)
    codecs = list(dict.fromkeys(result["codec"] for result in results))
    if not codecs:
        raise SystemExit("nothing was measured")

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(codecs) + 1, 1, figsize=(11, 4 * (len(codecs) + 1)), squeeze=False)
    for place, codec in zip(axes[:-1, 0], codecs):
        plot_ratios(place, results, codec)
    plot_decoding(axes[-1, 0], results)
    figure.tight_layout()
    figure.savefig(options.output, dpi=120)


if __name__ == "__main__":
    main()
