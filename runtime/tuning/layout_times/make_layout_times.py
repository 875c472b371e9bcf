# SPDX-License-Identifier: Apache-2.0
"""Makes trf_layout_times.inc, the times by which layouts are chosen, of what was measured on each card.

    python3 runtime/tuning/layout_times/make_layout_times.py > runtime/tuning/trf_layout_times.inc

Plain and packed layers are those of docs/performance/packed.csv, without early launches and without pauses. Coded ones
are those of docs/performance/speed.csv, the faster of fused and two-step. The two files are of different runs, so that
a coded time counts by its ratio to cuBLASLt's of its own run. So does one of packed8.csv, beside this script, which has
the kernels that plans choose for packed FP8 layers with F32 scales and without records; the other card has the ratios
of the one that is in it. A shape that was not measured has the ratio of those that are near, to plain layers, and for
packed8 to packed ones, so that times between shapes come of the same shapes in all layouts. For larger batches than
were measured coded is two-step: a plain product after decoding, which takes what it took at the largest batch that was
measured. A time beyond a shape's largest batch grows as the batch does.

Each layout and batch has a line through the times of all shapes, overhead + weights * rate, whose relative errors have
the least squares. The library corrects it by how far the nearest shapes are from it.

A layer of experts takes what one matrix of all experts that have tokens would, times a factor for each layout: for
plain ones the geometric mean over experts.csv beside this script, for others that times the mean by plain ones in the
same rows of the file, which may be another card's. Packed8 experts, which nobody has timed, have the factor of packed
ones, whose kernels they run. In the file "rows" are those of all matrices of an expert together; packed ones and the
plain ones beside them are whole layers (gate, up, down and the sum), coded ones single products.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PERFORMANCE = FOLDER.parents[2] / "docs" / "performance"
LAYOUTS = ["coded", "plain", "packed", "packed8"]
BATCHES = [1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048]
CARDS = {"H100": "NVIDIA H100 80GB HBM3", "H200": "NVIDIA H200"}
NEAR = 0.02  # in octaves: what a shape's distance counts at least
HEADING = """\
/* SPDX-License-Identifier: Apache-2.0 */
/* Made by layout_times/make_layout_times.py of docs/performance and of the file beside it. A shape: rows, columns, and
 * the microseconds of a product by layout (coded, plain, packed, packed8) and batch. */"""

Times = dict[int, float]
Shape = tuple[int, int]


def read_rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def parse_shape(text: str) -> Shape:
    rows, cols = text.split("x")
    return int(rows), int(cols)


def at_batch(times: Times, batch: int) -> float:
    """Returns the time for a batch, between those that were measured or behind them."""
    below = max(m for m in times if m <= batch)
    above = min((m for m in times if m >= batch), default=0)
    if not above:
        return times[below] * batch / below
    share = (batch - below) / (above - below) if above > below else 0.0
    return times[below] + share * (times[above] - times[below])


def read_packed(card: str) -> tuple[dict[Shape, Times], dict[Shape, Times]]:
    plain: dict[Shape, Times] = defaultdict(dict)
    packed: dict[Shape, Times] = defaultdict(dict)
    for row in read_rows(PERFORMANCE / "packed.csv"):
        if (row["card"], row["early_launch"], row["pause_s"]) == (card, "0", "0"):
            plain[parse_shape(row["layer"])][int(row["batch"])] = float(row["cublaslt_us"])
            packed[parse_shape(row["layer"])][int(row["batch"])] = float(row["packed_us"])
    return plain, packed


def read_coded(card: str, plain: dict[Shape, Times]) -> dict[Shape, Times]:
    """Returns the times of coded layers at BATCHES, for all shapes that plain ones have."""
    paths: dict[Shape, dict[str, Times]] = defaultdict(lambda: defaultdict(dict))
    for row in read_rows(PERFORMANCE / "speed.csv"):
        if row["card"] == CARDS[card] and row["codec"] == "bf16":
            paths[parse_shape(row["subject"])][row["what"]][int(row["batch"])] = float(row["median_us"])
    coded: dict[Shape, Times] = {}
    for shape, by_path in paths.items():
        if shape not in plain:
            continue
        cublaslt, two_step, fused = by_path["cublaslt"], by_path["two-step"], by_path["fused"]
        last = max(two_step)
        decoding = two_step[last] - cublaslt[last]
        coded[shape] = {}
        for batch in BATCHES:
            time = at_batch(plain[shape], batch)
            if batch > last:
                coded[shape][batch] = time + decoding
                continue
            own = at_batch(two_step, batch)
            if batch <= max(fused):
                own = min(own, at_batch(fused, batch))
            coded[shape][batch] = time * own / at_batch(cublaslt, batch)
    return add_unmeasured(coded, plain)


def read_packed8(plain: dict[Shape, Times], packed: dict[Shape, Times]) -> dict[Shape, Times]:
    """Returns the times of packed FP8 layers at BATCHES, for all shapes that plain ones have."""
    ratios: dict[Shape, Times] = defaultdict(dict)
    for row in read_rows(FOLDER / "packed8.csv"):
        ratios[parse_shape(row["layer"])][int(row["batch"])] = float(row["packed8_us"]) / float(row["cublaslt_us"])
    packed8 = {
        shape: {m: at_batch(plain[shape], m) * at_batch(of_shape, m) for m in BATCHES}
        for shape, of_shape in ratios.items()
    }
    return add_unmeasured(packed8, packed)


def add_unmeasured(measured: dict[Shape, Times], known: dict[Shape, Times]) -> dict[Shape, Times]:
    """Returns times with those of the shapes that only another layout's times have."""
    others = sorted(known.keys() - measured.keys())
    found = {
        shape: {m: at_batch(known[shape], m) * find_ratio(measured, known, m, shape) for m in BATCHES}
        for shape in others
    }
    return {**measured, **found}


def find_ratio(measured: dict[Shape, Times], known: dict[Shape, Times], batch: int, shape: Shape) -> float:
    """Returns times by another layout's for a shape that was not measured: the mean of the near ones."""
    total = weight = 0.0
    for rows, cols in measured:
        near = 1 / (abs(math.log2(rows / shape[0])) + abs(math.log2(cols / shape[1])) + NEAR) ** 2
        total += near * math.log(at_batch(measured[rows, cols], batch) / at_batch(known[rows, cols], batch))
        weight += near
    return math.exp(total / weight)


def fit_line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Returns overhead and rate of the line through (weights, time); the overhead is not below 0."""
    aa = sum(1 / (t * t) for _, t in points)
    ab = sum(w / (t * t) for w, t in points)
    bb = sum(w * w / (t * t) for w, t in points)
    a, b = sum(1 / t for _, t in points), sum(w / t for w, t in points)
    overhead = (a * bb - b * ab) / (aa * bb - ab * ab)
    return (overhead, (b - overhead * ab) / bb) if overhead > 0 else (0.0, b / bb)


def predict(times: dict[Shape, Times], batch: int, rows: float, cols: float) -> float:
    """Returns what the library will find for a shape at a batch of BATCHES."""
    points = {shape: at_batch(each, batch) for shape, each in times.items()}
    overhead, rate = fit_line([(r * c, time) for (r, c), time in points.items()])
    total = weight = 0.0
    for (r, c), time in points.items():
        distance = abs(math.log2(rows / r)) + abs(math.log2(cols / c))
        near = 1 / (distance + NEAR) ** 2
        total += near * math.log(time / (overhead + r * c * rate))
        weight += near
    return (overhead + rows * cols * rate) * math.exp(total / weight)


def predict_experts(times: dict[Shape, Times], row: dict[str, str]) -> float:
    """Returns the time of a matrix that has the rows of all experts with tokens, between batches in logarithms."""
    experts, routed, tokens = int(row["experts"]), int(row["routed"]), int(row["tokens"])
    active = experts * (1 - (1 - routed / experts) ** tokens)
    batch = max(1.0, tokens * routed / active)
    rows, cols = active * int(row["rows"]), int(row["cols"])
    if batch >= BATCHES[-1]:
        return predict(times, BATCHES[-1], rows, cols) * batch / BATCHES[-1]
    at = max(i for i, each in enumerate(BATCHES) if each <= batch)
    below, above = BATCHES[at], BATCHES[at + 1]
    share = math.log(batch / below) / math.log(above / below)
    ends = [math.log(predict(times, each, rows, cols)) for each in (below, above)]
    return math.exp(ends[0] + share * (ends[1] - ends[0]))


def find_factors(card: str, by_layout: dict[str, dict[Shape, Times]]) -> dict[str, float]:
    """Returns plain experts' factor, and those of other layouts by plain ones' in the same rows of the file."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in read_rows(FOLDER / "experts.csv"):
        ratios = {
            layout: math.log(float(row[f"{layout}_us"]) / predict_experts(by_layout[layout], row))
            for layout in LAYOUTS
            if row["card"] == card and row.get(f"{layout}_us")
        }
        for layout, ratio in ratios.items():
            found[layout].append(ratio if layout == "plain" else ratio - ratios["plain"])
    return {layout: math.exp(sum(logs) / len(logs)) for layout, logs in found.items()}


def write_card(card: str, by_layout: dict[str, dict[Shape, Times]]) -> None:
    """Prints a card's shapes and lines."""
    print(f"static const trf_shape_times kShapesOf{card}[] = {{")
    for shape in sorted(by_layout["plain"], key=lambda each: (each[0] * each[1], each), reverse=True):
        print(f"    {{{shape[0]},\n     {shape[1]},\n     {{")
        for layout in LAYOUTS:
            times = by_layout[layout].get(shape)
            values = ", ".join(f"{at_batch(times, m):.2f}" if times else "0" for m in BATCHES)
            print(f"         {{{values}}},")
        print("     }},")
    print("};")
    print(f"static const trf_size_line kLinesOf{card}[TRF_TIMED_LAYOUTS][TRF_TIMED_BATCHES] = {{")
    for layout in LAYOUTS:
        lines = [
            fit_line([(r * c, at_batch(times, m)) for (r, c), times in by_layout[layout].items()]) for m in BATCHES
        ]
        print("    {" + ", ".join(f"{{{overhead:.4f}, {rate:.6e}}}" for overhead, rate in lines) + "},")
    print("};")


def main() -> None:
    times = {}
    for card in CARDS:
        plain, packed = read_packed(card)
        coded, packed8 = read_coded(card, plain), read_packed8(plain, packed)
        times[card] = {"coded": coded, "plain": plain, "packed": packed, "packed8": packed8}
    factors = {card: find_factors(card, times[card]) for card in CARDS}
    print(HEADING)
    print(f"static const uint32_t kTimedBatches[TRF_TIMED_BATCHES] = {{{', '.join(map(str, BATCHES))}}};")
    for card in CARDS:
        write_card(card, times[card])
    print("static const trf_card_times kCardTimes[] = {")
    for card, name in CARDS.items():
        known = (factors[card], *factors.values())
        by_plain = {layout: next(each[layout] for each in known if layout in each) for layout in LAYOUTS[:-1]}
        by_plain["packed8"] = by_plain["packed"]
        plain = factors[card]["plain"]
        values = [plain if layout == "plain" else plain * by_plain[layout] for layout in LAYOUTS]
        print(f'    {{"{name}", kShapesOf{card}, sizeof kShapesOf{card} / sizeof kShapesOf{card}[0], kLinesOf{card},')
        print(f"     {{{', '.join(f'{value:.3f}' for value in values)}}}}},")
    print("};")


if __name__ == "__main__":
    main()
