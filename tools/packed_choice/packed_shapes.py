#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says what it would cost to leave a kernel of packed products out, and which of them can go together.

    python3 tools/packed_choice/packed_shapes.py TIMES.csv... [--mean 0.3] [--worst 3]

packed_choice_times writes the files, for one card or several; with several runs, each time is the median. A product
takes the fastest kernel and cut that is left. A card's cost is how much longer all its products take together, and its
worst product is the one that takes longest beside its time with all kernels, both in percent. A kernel can go if the
limits hold on each card, for it and for all that went before it: the cheapest one goes first. The last kernel that a
product has never goes.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Collection
from statistics import median

from packed_medians import read

# For a card: the time of each kernel in its fastest cut, for each product.
Card = dict[tuple[str, ...], dict[str, float]]


def read_cards(paths: list[str]) -> dict[str, Card]:
    times: dict = defaultdict(lambda: defaultdict(list))
    for path in paths:
        read(path, times, {})
    cards: dict[str, Card] = defaultdict(dict)
    for product, ways in times.items():
        fastest: dict[str, float] = {}
        for (kernel, _), found in ways.items():
            if kernel != "cublaslt":
                fastest[kernel] = min(median(found), fastest.get(kernel, float("inf")))
        if not fastest:
            raise SystemExit(f"{' '.join(product)}: no time of a kernel")
        cards[product[0]][product] = fastest
    return cards


def find_cost(card: Card, left_out: Collection[str]) -> tuple[float, float, tuple[str, ...]]:
    """Returns a card's cost and its worst product's, in percent, and which product that is."""
    ratios, before, after = {}, 0.0, 0.0
    for product, fastest in card.items():
        least = min(fastest.values())
        left = min((us for kernel, us in fastest.items() if kernel not in left_out), default=float("inf"))
        before, after = before + least, after + left
        ratios[product] = left / least
    worst = max(ratios, key=lambda product: ratios[product])
    return 100 * (after / before - 1), 100 * (ratios[worst] - 1), worst


def is_within(cards: dict[str, Card], left_out: Collection[str], limits: tuple[float, float]) -> bool:
    found = [find_cost(card, left_out) for card in cards.values()]
    return all(cost <= limits[0] and worst <= limits[1] for cost, worst, _ in found)


def choose(cards: dict[str, Card], kernels: list[str], limits: tuple[float, float]) -> list[str]:
    """Returns the kernels that can go, in the order in which they went."""
    gone: list[str] = []
    while True:
        left = [kernel for kernel in kernels if kernel not in gone and is_within(cards, [*gone, kernel], limits)]
        if not left:
            return gone
        gone.append(min(left, key=lambda kernel: max(find_cost(card, [*gone, kernel])[0] for card in cards.values())))


def describe(cards: dict[str, Card], left_out: Collection[str]) -> str:
    parts = []
    for name, card in sorted(cards.items()):
        cost, worst, product = find_cost(card, left_out)
        parts.append(f"{name}: {cost:.2f} %, worst {worst:.1f} % at {product[3]} by {product[4]}")
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="TIMES.csv")
    parser.add_argument("--mean", type=float, default=0.3, help="the most that a card may cost, in percent")
    parser.add_argument("--worst", type=float, default=3.0, help="the most that a product may, in percent")
    args = parser.parse_args()
    cards = read_cards(args.files)
    kernels = sorted({kernel for card in cards.values() for fastest in card.values() for kernel in fastest})
    for kernel in kernels:
        print(f"without {kernel}: {describe(cards, [kernel])}")
    gone = choose(cards, kernels, (args.mean, args.worst))
    print(f"can go: {', '.join(gone) or 'none'}")
    print(f"without all of them: {describe(cards, gone)}")


if __name__ == "__main__":
    main()
