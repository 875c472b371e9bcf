#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/performance.md and README.md from the medians in docs/performance.

    python3 tools/bench/performance_tables.py            # into the pages, in place of the tables between marks
    python3 tools/bench/performance_tables.py --check    # exit status 1 if a page has others

A table stands in a page between `<!-- table: NAME -->` and `<!-- end -->`. A second card is more lines in the CSV
files (tools/bench/medians.py writes them, tools/packed_choice/packed_medians.py those of packed layers, and
tools/bench/mixtures/measure_mixtures.py those of mixtures), which make rows beside the first one's; a third one is a
line in CARDS, too.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs" / "performance"
PAGES = [ROOT / name for name in ("docs/performance.md", "README.md")]
CARDS = {"NVIDIA H200": "H200", "NVIDIA H100": "H100"}  # beginnings of names as the driver has them
LAYERS = ["28672x8192", "8192x8192", "14336x4096", "5120x5120", "4096x4096", "2048x5632", "1024x4096"]
BATCHES = [1, 8, 32, 64, 128, 512]
CODECS = {
    "fp16": "F16, lossless",
    "fp8_e4m3": "FP8 E4M3, lossless",
    "fp8_e5m2": "FP8 E5M2, lossless",
    "int8": "INT8, absmax a channel",
    "bits:4.25": "`--bits 4.25`",
}
# The batches at which packed layers have been measured on both cards: those of the plot.
PACKED = [1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192]
DECODED = [1, 8, 16, 32, 64]  # of whole models: batches of decoding steps
PROMPTS = [512, 2048, 8192]  # and tokens of a prompt
FIRST = {"packed": [1, 32, 128], "coded": [1, 16, 64]}  # of README.md
FIRST_FILES = {"packed": "packed.csv", "coded": "speed.csv"}
# As the bench names mixtures of experts in its subjects.
MIXTURES = {
    "128 of 768x2048, 8 routed": "Qwen3-30B-A3B: 128 of 768×2048, 8 a token",
    "8 of 14336x4096, 2 routed": "Mixtral 8x7B: 8 of 14336×4096, 2 a token",
    "64 of 2048x7168, 8 routed": "a part of DeepSeek-V3: 64 of 2048×7168, 8 a token",
}
MIXTURE_TOKENS = [1, 4, 16, 64, 256, 1024, 4096, 16384]
NONE = "–"


def read(name: str) -> list[dict]:
    with open(DATA / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def card_of(name: str) -> str:
    return next((card for card in CARDS if name.startswith(card)), name)


def times_of(rows: list[dict]) -> dict:
    """Medians in microseconds by card, subject, codec, batch, and what ("what/favor" where it has one)."""
    times = defaultdict(dict)
    for row in rows:
        what = row["what"] + (f"/{row['favor']}" if row["favor"] else "")
        times[card_of(row["card"]), row["subject"], row["codec"], int(row["batch"])][what] = float(row["median_us"])
    return times


def read_crossovers() -> dict:
    """For each card its layers of bf16 (quads): rows, columns, and to which batch plans take FUSED, before TWO_STEP."""
    text = (ROOT / "runtime" / "tuning" / "trf_crossovers.inc").read_text(encoding="utf-8")
    tables = {}
    for name, body in re.findall(r"static const trf_layer_crossovers (\w+)\[\] = \{(.*?)\n\};", text, re.S):
        card = re.search(r"\{\{\"([^\"]+)\", [^}]*\},\s+" + name + r"\b", text)[1]
        layers = re.findall(r"TRF_CODEC_BF16, 2, \d+, 0, (\d+), (\d+)\}, (\d+)", body)
        tables[card_of(card)] = [tuple(map(int, layer)) for layer in layers]
    return tables


def path_of(crossovers: list[tuple], layer: str, batch: int) -> str | None:
    """The path that plans take: that of the nearest layer, in octaves of rows and columns (trf_tuning_key_distance)."""
    if not crossovers:
        return None
    rows, cols = map(int, layer.split("x"))
    _, _, fused_to = min(crossovers, key=lambda of: abs(math.log2(rows / of[0])) + abs(math.log2(cols / of[1])))
    return "fused" if batch <= fused_to else "two-step"


def plan_ratio(times: dict, crossovers: dict, card: str, layer: str, batch: int) -> float | None:
    """cuBLASLt's time divided by that of the path that a plan takes; None if it was not measured.

    A sweep has timed "auto", which is a plan's choice. Elsewhere it is the path that the card's table names.
    """
    measured = times.get((card, layer, "bf16", batch), {})
    dense = measured.get("cublaslt")
    path = path_of(crossovers.get(card, []), layer, batch)
    time = measured.get("auto/speed") or measured.get(f"{path}/speed")
    return dense / time if dense and time else None


def bold(ratio: float) -> str:
    text = f"{ratio:.2f}"
    return f"**{text}**" if float(text) >= 1 else text


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def measured_rows(rows: list[list[str]]) -> list[list[str]]:
    """The rows that have a figure after their two headings."""
    return [row for row in rows if set(row[2:]) != {NONE}]


def weights_of(layer: str) -> int:
    return math.prod(map(int, layer.split("x")))


def shape(layer: str) -> str:
    return layer.replace("x", "×")


def coded_points(card: str, layer: str) -> list[tuple[int, float]]:
    """Batches of coded layers, and for each cuBLASLt's time divided by that of the path that a plan takes."""
    times, crossovers = times_of(read("speed.csv")), read_crossovers()
    batches = sorted(key[3] for key in times if key[:3] == (card, layer, "bf16"))
    found = [(batch, plan_ratio(times, crossovers, card, layer, batch)) for batch in batches]
    return [(batch, ratio) for batch, ratio in found if ratio]


def packed_points(card: str, layer: str) -> list[tuple[int, float]]:
    """The same for packed layers, without early launches and pauses."""
    rows = [
        row
        for row in read("packed.csv")
        if (row["card"], row["layer"]) == (CARDS[card], layer)
        and row["early_launch"] == "0"
        and float(row["pause_s"]) == 0
        and int(row["batch"]) in PACKED
    ]
    return sorted((int(row["batch"]), float(row["cublaslt_us"]) / float(row["packed_us"])) for row in rows)


def first_cell(layer: str, layout: str, batch: int, found: list[dict[int, float]]) -> str:
    """The lowest ratio of all cards. found: ratios by batch, for each card."""
    lacking = [card for card, ratios in zip(CARDS, found) if batch not in ratios]
    if lacking:
        raise SystemExit(
            f"{DATA / FIRST_FILES[layout]}: the table of README.md needs {layout} {layer} at batch {batch}, which "
            f"{' and '.join(lacking)} lacks"
        )
    return bold(min(ratios[batch] for ratios in found))


def first_table() -> str:
    """The table in README.md: packed layers beside coded ones, on the card that has the lower figure."""
    columns = [(layout, batch) for layout, batches in FIRST.items() for batch in batches]
    rows = []
    for layer in ("28672x8192", "8192x8192", "4096x4096"):
        found = {
            layout: [dict(points(card, layer)) for card in CARDS]
            for layout, points in (("packed", packed_points), ("coded", coded_points))
        }
        rows.append([shape(layer), *(first_cell(layer, layout, batch, found[layout]) for layout, batch in columns)])
    heads = [f"{layout}: {batch}" if batch == 1 else str(batch) for layout, batch in columns]
    return table(["layer", *heads], rows)


def layouts_table() -> str:
    """Packed and coded layers side by side."""
    rows = []
    for layer in LAYERS:
        for card, name in CARDS.items():
            packed, coded = dict(packed_points(card, layer)), dict(coded_points(card, layer))
            cells = []
            for batch in BATCHES:
                found = [bold(points[batch]) if batch in points else NONE for points in (packed, coded)]
                cells.append(NONE if set(found) == {NONE} else "/".join(found))
            rows.append([shape(layer), name, *cells])
    return table(["packed / coded", "card", *map(str, BATCHES)], measured_rows(rows))


def packed8_table() -> str:
    """Packed FP8 beside packed BF16 of the same layer, with early launches."""
    times = {
        (row["card"], row["layer"], int(row["batch"])): row for row in read("packed8.csv") if row["early_launch"] == "1"
    }
    rows = []
    for layer in dict.fromkeys(layer for _, layer, _ in times):
        for card in CARDS.values():
            cells = []
            for batch in BATCHES:
                row = times.get((card, layer, batch))
                ratios = (
                    [float(row["cublaslt_us"]) / float(row[f"{layout}_us"]) for layout in ("packed8", "packed")]
                    if row
                    else []
                )
                cells.append("/".join(map(bold, ratios)) or NONE)
            rows.append([shape(layer), card, *cells])
    return table(["packed8 / packed", "card", *map(str, BATCHES)], measured_rows(rows))


def models_table() -> str:
    """Whole models: ratios by layout and card."""
    ratios = defaultdict(dict)
    for row in read("models.csv"):
        if row["ratio"]:
            ratios[row["model"], row["layout"], row["card"]][row["what"], int(row["size"])] = float(row["ratio"])
    columns = [("decode", size) for size in DECODED] + [("prompt", size) for size in PROMPTS]
    rows = [
        [model, layout, card, *(bold(found[column]) if column in found else NONE for column in columns)]
        for (model, layout, card), found in ratios.items()
    ]
    heads = [f"prompt of {size:,}" if what == "prompt" else str(size) for what, size in columns]
    heads[0] = f"batch {heads[0]}"
    return table(["model", "layout", "card", *heads], rows)


def mixture_cell(measured: dict[str, float]) -> str:
    """How much faster packed experts are than the fastest of the others, and how much of their time is the limit."""
    ours, limit = measured.get("packed mixture/speed"), measured.get("limit, packed/speed")
    others = [time for what, time in measured.items() if what.startswith(("vllm, ", "torch "))]
    if not ours or not others:
        return NONE
    ratio = bold(min(others) / ours)
    return f"{ratio}, {100 * limit / ours:.0f} %" if limit else ratio


def mixtures_table() -> str:
    """Whole mixtures of experts, by tokens."""
    times = times_of(read("mixtures.csv"))
    rows = []
    for subject, name in MIXTURES.items():
        for routes in ("uniform", "skewed"):
            for card, short in CARDS.items():
                found = [times.get((card, f"{subject}, {routes}", "bf16", tokens), {}) for tokens in MIXTURE_TOKENS]
                label = name if routes == "uniform" else f"{name}, skewed"
                rows.append([label, short, *map(mixture_cell, found)])
    return table(["experts", "card", *(f"{tokens:,}" for tokens in MIXTURE_TOKENS)], measured_rows(rows))


def codecs_table() -> str:
    times = times_of(read("codecs.csv"))
    sizes = {(row["codec"], row["favor"]): row["bits"] for row in read("sizes.csv") if row["subject"] == "8192x8192"}
    points = [("28672x8192", batch) for batch in (1, 8)] + [("8192x8192", batch) for batch in (1, 8, 16, 32)]
    rows = []
    for codec, name in CODECS.items():
        bits = f"{float(sizes[codec, 'speed']):.2f} / {float(sizes[codec, 'size']):.2f}"
        for card, short in CARDS.items():
            found = [times.get((card, layer, codec, batch), {}) for layer, batch in points]
            rows.append(
                [
                    f"{name}, {bits}",
                    short,
                    *(
                        bold(m["cublaslt"] / m["fused/speed"]) if m.keys() >= {"cublaslt", "fused/speed"} else NONE
                        for m in found
                    ),
                ]
            )
    heads = [f"{shape(layer)}: {batch}" if batch == 1 else str(batch) for layer, batch in points]
    return table(["codec, bits (speed / size)", "card", *heads], measured_rows(rows))


# Of what does not fit in the other tables: each function gives a card's cells by the row's name, without those that
# were not measured.


def pairs_cells(card: str) -> dict[str, str]:
    """Pairs of weights a symbol: `--favor size`."""
    pairs = times_of(read("pairs.csv"))
    layers = ("65536x8192", "28672x8192", "8192x8192")
    found = [pairs.get((card, layer, "bf16", 1)) for layer in layers]
    if not all(found):
        return {}
    name = f"bf16, `--favor size`: {', '.join(map(shape, layers))}, batch 1"
    return {name: ", ".join(bold(m["cublaslt"] / m["fused/size"]) for m in found)}


def groups_cells(card: str) -> dict[str, str]:
    """Layers that share a launch."""
    groups = times_of(read("groups.csv"))
    cells = {}
    for subject, name in (
        ("5 x 2048x5632 bf16", "five 2048×5632"),
        ("4096x4096, 2 x 1024x4096 bf16", "q, k and v"),
        ("2 x 14336x4096 bf16", "gate and up, 14336×4096"),
    ):
        found = [groups.get((card, subject, "bf16", batch)) for batch in (1, 8)]
        if all(found):
            ratios = (m["one after another/speed"] / m["grouped/speed"] for m in found)
            cells[f"layers in one launch: {name}, batch 1, 8"] = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return cells


def experts_cells(card: str) -> dict[str, str]:
    """Mixtures of experts."""
    experts = times_of(read("experts.csv"))
    cells = {}
    for layer in ("4096x1536", "1536x4096"):
        found = [m for key, m in experts.items() if key[0] == card and layer in key[1]]
        dense = [min(time for what, time in m.items() if what.startswith("cuBLAS")) for m in found]
        if found:
            ratios = (bold(time / m["experts/speed"]) for time, m in zip(dense, found))
            cells[f"64 experts of {shape(layer)}, 8 a token, batch 1, 16"] = ", ".join(ratios)
    return cells


def offload_cells(card: str) -> dict[str, str]:
    """Layers in host memory."""
    offload = times_of(read("offload.csv")).get((card, "32 x 7 layers, 6.98 G weights", "bf16", 1), {})
    cells = {}
    for end, name in (("none stay", "none stays"), ("in 8 GB", "8 GB stay")):
        ours, dense = (offload.get(f"{what}, {end}/speed") for what in ("compressed", "bf16"))
        if ours and dense:
            rates = f"{1e6 / ours:.2f} / {1e6 / dense:.2f} tokens/s"
            cells[f"7 G weights in host memory, {name}, batch 1"] = f"{bold(dense / ours)}: {rates}"
    return cells


def decode_cells(card: str) -> dict[str, str]:
    """Decoding to memory, alone."""
    decode = times_of(read("decode.csv"))
    bits = {(row["subject"], row["codec"], row["favor"]): float(row["bits"]) for row in read("sizes.csv")}
    layer = "8192x8192"
    measured = decode.get((card, layer, "bf16", 0), {})
    if not measured.keys() >= {"decode/speed", "copy"}:
        return {}
    both_ways = (16 + bits[layer, "bf16", "speed"]) / 8 * weights_of(layer) / measured["decode/speed"] / 1e6
    copy = 2 * 2**30 / measured["copy"] / 1e6
    return {f"decoding {shape(layer)}: TB/s read and written": f"{both_ways:.2f} / {copy:.2f}"}


def load_times(card: str) -> dict:
    return {
        (row["what"], int(row["batch"])): float(row["median_us"])
        for row in read("load.csv")
        if card_of(row["card"]) == card
    }


def load_cells(card: str) -> dict[str, str]:
    """Loading a checkpoint."""
    times = load_times(card)
    if not times:
        return {}
    ratio = times["copy, page-locked", 0] / times["load", 0]
    return {"loading 3.28 GB from the page cache, all checked": f"{ratio:.2f}"}


def packing_cells(card: str) -> dict[str, str]:
    """Packing dense weights that lie on the device."""
    rows = [row for row in read("packing.csv") if (row["card"], row["run"]) == (CARDS[card], "1")]
    times = {row["layer"]: int(row["us"]) for row in rows if row["what"] == "pack dense"}
    layers = [layer for layer in ("28672x8192", "8192x8192", "4096x4096") if layer in times]
    name = f"packing dense {', '.join(map(shape, layers))}, µs"
    return {name: ", ".join(str(times[layer]) for layer in layers)} if layers else {}


def rows_cells(card: str) -> dict[str, str]:
    """Look-ups of single rows."""
    times = load_times(card)
    if not times:
        return {}
    counts = (1, 64, 4096)
    pairs = (f"{times['decode rows', n]:.0f} / {times['gather, plain table', n]:.1f}" for n in counts)
    return {"1, 64, 4096 random rows of 32768×4096, µs": ", ".join(pairs)}


PRODUCTS = {
    pairs_cells: "cuBLASLt",
    groups_cells: "the same layers one after another",
    experts_cells: "the fastest of cuBLAS and cuBLASLt",
    offload_cells: "dense BF16",
}
TRANSFERS = {
    load_cells: "a copy of page-locked memory, 16 threads",
    decode_cells: "after the slash: a copy within the device",
    packing_cells: NONE,
    rows_cells: "after the slash: a gather from the dense table",
}


def cells_table(makers: dict) -> str:
    rows = []
    for make_cells, compared_with in makers.items():
        cells = {name: make_cells(card) for card, name in CARDS.items()}
        for row in dict.fromkeys(row for of_card in cells.values() for row in of_card):
            rows.append([row, *(cells[name].get(row, NONE) for name in CARDS.values()), compared_with])
    return table(["ratio, unless it says otherwise", *CARDS.values(), "compared with"], rows)


def products_table() -> str:
    """Products of coded layers that do not fit in the other tables."""
    return cells_table(PRODUCTS)


def transfers_table() -> str:
    """What is not a product: loading, decoding, packing and look-ups."""
    return cells_table(TRANSFERS)


TABLES = {
    "first": first_table,
    "layouts": layouts_table,
    "packed8": packed8_table,
    "models": models_table,
    "mixtures": mixtures_table,
    "codecs": codecs_table,
    "products": products_table,
    "transfers": transfers_table,
}


def fill(text: str) -> str:
    def replace(found: re.Match) -> str:
        return f"{found[1]}\n{TABLES[found[2]]()}<!-- end -->"

    return re.sub(r"(<!-- table: ([\w-]+) -->)\n.*?<!-- end -->", replace, text, flags=re.S)


def main() -> None:
    if sys.argv[1:] not in ([], ["--check"]):
        raise SystemExit(__doc__)
    filled = {page: fill(page.read_text(encoding="utf-8")) for page in PAGES}
    for page, text in filled.items():
        if not sys.argv[1:]:
            page.write_text(text, encoding="utf-8")
        elif text != page.read_text(encoding="utf-8"):
            raise SystemExit(f"{page}: its tables are not those of {DATA}; run this without --check")


if __name__ == "__main__":
    main()
