# SPDX-License-Identifier: Apache-2.0
"""What `transfuse doctor` says of the layouts that a model's layers should have on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from transfuse._doctor_report import Report, write_size
from transfuse._doctor_serving import ServingOptions
from transfuse._errors import OutOfMemoryError, TransfuseError
from transfuse._layout_choice import LayoutChoice, choose_layouts
from transfuse._nvidia import Gpu
from transfuse._serving_need import count_card_bytes

_BATCHES = (1, 32)


@dataclasses.dataclass(frozen=True)
class _Card:
    label: str
    bytes: int
    name: str | None  # as CUDA has it; None: only its memory is known


class LayoutsDoctor:
    """Asks `choose_layouts` about one model.

    Parameters
    ----------
    report : Report
    gpus : sequence of Gpu
        The GPUs that products run on.
    options : ServingOptions, optional
        What the user asked about: GPUs, tokens of the KV cache, and the memory of a card that is not here.
    """

    def __init__(self, report: Report, gpus: Sequence[Gpu], options: ServingOptions | None) -> None:
        self.report, self.gpus, self.options = report, gpus, options or ServingOptions()

    def look(self, path: str, facts: dict[str, Any]) -> None:
        """Reports on a model, and adds "chosen_layouts" to `facts`, which are what programs get."""
        cards = self._find_cards()
        if not cards:
            return
        known: list[dict[str, Any]] = []
        facts["chosen_layouts"] = known
        for card in cards:
            try:
                choice = choose_layouts(
                    path,
                    card.bytes,
                    _BATCHES,
                    gpus=self.options.gpus,
                    context=self.options.context,
                    card=card.name,
                )
            except OutOfMemoryError as failure:
                known.append({"card": card.label, "fits": False})
                self.report.row(f"layouts, {card.label}", f"none fits: {failure.message}")
            except TransfuseError as failure:
                known.append({"card": card.label, "fits": None, "why": failure.message})
                self.report.row(f"layouts, {card.label}", f"not chosen: {failure.message}")
                return
            else:
                known.append(self._say_choice(card, choice))
        batches = " and ".join(map(str, _BATCHES))
        self.report.row("", f"for batches of {batches}; 'transfuse layouts' has each layer,")
        self.report.row("", "other batches and budgets; layout='auto' loads so")

    def _find_cards(self) -> list[_Card]:
        if self.options.memory_gb:
            return [_Card(f"{self.options.memory_gb:g} GB", count_card_bytes(self.options.memory_gb), None)]
        return [
            _Card(f"GPU {gpu.index}", gpu.total_bytes if gpu.free_bytes is None else gpu.free_bytes, gpu.name)
            for gpu in self.gpus
        ]

    def _say_choice(self, card: _Card, choice: LayoutChoice) -> dict[str, Any]:
        report = self.report
        counts = {name: count for name, count in choice.count_layouts().items() if count}
        text = ", ".join(f"{count} {name}" for name, count in counts.items())
        report.row(f"layouts, {card.label}", f"{text}: {write_size(choice.layer_bytes)}")
        speed = choice.plain_microseconds / choice.microseconds if choice.microseconds else 1.0
        report.row("", f"products {speed:.2f} times as fast as plain, by an {choice.times_of}'s times")
        if choice.one_gb_microseconds > 0:
            share = 100 * choice.one_gb_microseconds / choice.microseconds
            report.row("", f"one more GB would save {share:.1f} % of that time")
        return {
            "card": card.label,
            "fits": True,
            "tensors": counts,
            "layer_bytes": choice.layer_bytes,
            "times_faster_than_plain": speed,
            "times_of": choice.times_of,
            "is_own_card": choice.is_own_card,
        }
