# SPDX-License-Identifier: Apache-2.0
"""Makes trf_crossovers.inc, the tables of crossovers that the library brings along, of the cards beside this script.

    python3 runtime/tuning/crossovers/make_crossovers.py > runtime/tuning/trf_crossovers.inc
    python3 runtime/tuning/crossovers/make_crossovers.py --card TUNING.json > runtime/tuning/crossovers/CARD.csv

For each layer that was measured a table says up to which batch the fused path is the fastest, and up to which the wide
one; the two-step path has the rest. Of all pairs of batches that were measured the one with the least time over all of
them is taken, each batch's times counting by their ratio to its fastest: so noise where paths are alike makes no
islands. These layers are coded ones.

Packed layers have one number a card, "packed_to": the largest batch for which the packed kernels are chosen, the
two-step path having the rest; 0 where nobody measured it. 16,383 is of the four products of a layer of an 8B on an
H200, compared with cuBLASLt on BF16: at 16,384 rows decoding first takes 1.01 to 1.05 of its time and the packed
kernels 1.03 to 1.13; at 8,192 it is 1.04 to 1.07 against 1.01 to 1.06. The H100 has the H200's number. Plain layers
have one path.

A card is a CSV file: two lines that say which card it is, a line with the batches, and then a line for each layer and
path with the medians in microseconds, nothing where the path does not take the batch. The second command makes one of a
tuning (transfuse tune). What that does not say of the card (capability, multiprocessors, memory_gb_per_second,
packed_to) is to be filled in; the bandwidth may be the driver's or the vendor's, which differ by a few per cent, cards
by more.
"""

import csv
import json
import math
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CODECS = {
    "bf16": "TRF_CODEC_BF16",
    "fp16": "TRF_CODEC_FP16",
    "int": "TRF_CODEC_INT",
    "fp8_e4m3": "TRF_CODEC_E4M3",
    "fp8_e5m2": "TRF_CODEC_E5M2",
}
CARD_FIELDS = ["name", "capability", "multiprocessors", "memory_gb_per_second", "packed_to"]
MAY_BE_0 = ["packed_to"]
KEY_FIELDS = ["codec", "class_bits", "raw_bits", "scale_groups", "rows", "cols"]
PATHS = ["fused", "wide", "two-step"]
HEADING = """\
/* SPDX-License-Identifier: Apache-2.0 */
/* Made by crossovers/make_crossovers.py of the cards beside it. A layer: layout, codec, class bits, raw bits,
 * scale groups, rows, columns; batches to which FUSED and WIDE are chosen. A table's last number is the batch to which
 * PACKED is chosen. */"""


def read_card(path):
    """Returns the card, and for each layer its key and, batch by batch, the times of the paths that take it."""
    with open(path, newline="") as file:
        lines = list(csv.reader(file))
    if len(lines) < 3 or lines[0] != CARD_FIELDS or lines[2][: len(KEY_FIELDS) + 1] != [*KEY_FIELDS, "path"]:
        sys.exit(f"{path}: not a card as make_crossovers.py writes it")
    card = dict(zip(CARD_FIELDS, lines[1]))
    for field in CARD_FIELDS[1:]:
        if not card.get(field, "").isdigit() or (int(card[field]) == 0 and field not in MAY_BE_0):
            sys.exit(f"{path}: '{field}' of the card is to be filled in")
    batches = list(map(int, lines[2][len(KEY_FIELDS) + 1 :]))
    layers = {}
    for line in lines[3:]:
        times = layers.setdefault(tuple(line[: len(KEY_FIELDS)]), {m: {} for m in batches})
        for m, time in zip(batches, line[len(KEY_FIELDS) + 1 :]):
            if time:
                times[m][line[len(KEY_FIELDS)]] = float(time)
    return card, layers


def loss(times, path):
    return math.log(times[path] / min(times.values())) if path in times else math.inf


def path_of(m, fused_to, wide_to):
    return "fused" if m <= fused_to else "wide" if m <= wide_to else "two-step"


def crossovers(layer):
    ends = [0, *layer]
    best = (math.inf, 0, 0)
    for fused_to in ends:
        for wide_to in ends:
            if wide_to < fused_to:
                continue
            total = sum(loss(times, path_of(m, fused_to, wide_to)) for m, times in layer.items() if times)
            best = min(best, (total, fused_to, wide_to))
    return best[1], best[2]


def write_tables(cards):
    print(HEADING)
    tables = []
    for card, layers in cards:
        name = "kOf" + "".join(part[0].upper() + part[1:] for part in card["name"].split())
        print(f"static const trf_layer_crossovers {name}[] = {{")
        for key, layer in layers.items():
            fields = ", ".join(["TRF_LAYOUT_CODED", CODECS[key[0]], *key[1:]])
            fused_to, wide_to = crossovers(layer)
            print(f"    {{{{{fields}}}, {fused_to}, {wide_to}}},")
        print("};")
        numbers = ", ".join(card[field] for field in CARD_FIELDS[1:4])
        count = f"sizeof {name} / sizeof {name}[0]"
        tables.append(
            f'    {{{{"{card["name"]}", {numbers}}},\n     {name},\n     {count},\n     {card["packed_to"]}}},'
        )
    print("static const trf_crossover_table kTables[] = {", *tables, "};", sep="\n")


def write_card(path):
    with open(path) as file:
        tuning = json.load(file)
    batches = sorted({batch["to"] for layer in tuning["layers"] for batch in layer["batches"]})
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(CARD_FIELDS)
    out.writerow([tuning["device"], *(tuning.get(field) or "" for field in CARD_FIELDS[1:])])
    out.writerow([*KEY_FIELDS, "path", *batches])
    for layer in tuning["layers"]:
        if layer.get("layout", "coded") != "coded":
            continue
        times = {batch["to"]: batch["microseconds"] for batch in layer["batches"]}
        key = [layer["codec"], *(int(layer[field]) for field in KEY_FIELDS[1:])]
        for name in PATHS:
            of_path = [times.get(m, {}).get(name) for m in batches]
            if any(of_path):
                out.writerow([*key, name, *(f"{time:.2f}" if time else "" for time in of_path)])


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--card":
        write_card(sys.argv[2])
    elif len(sys.argv) == 1:
        write_tables([read_card(path) for path in sorted(FOLDER.glob("*.csv"))])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
