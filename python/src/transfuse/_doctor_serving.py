# SPDX-License-Identifier: Apache-2.0
"""What `transfuse doctor` says of serving a model by vLLM: whether it fits, and how many requests its cache holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transfuse._checkpoint import CheckpointInfo
from transfuse._doctor_report import Report, write_size
from transfuse._json_text import parse_json, read_text
from transfuse._nvidia import Gpu
from transfuse._serving_config import NoEstimateError, ServedModel, read_served_model
from transfuse._serving_need import (
    ALLOWANCE_BYTES,
    CODED_BITS,
    LAYOUTS,
    MEMORY_SHARE,
    PACKED_BITS,
    ServedWeights,
    count_cache_bytes,
    count_card_bytes,
    count_requests,
    count_served_weights,
)

_USUAL_CONTEXT = 8192
_USUAL_CARDS_GB = (80.0, 141.0)


@dataclasses.dataclass(frozen=True)
class ServingOptions:
    """The user's question: GPUs that share the model, tokens of a request or None, and the GB of a card not present."""

    gpus: int = 1
    context: int | None = None
    memory_gb: float | None = None


@dataclasses.dataclass(frozen=True)
class _Card:
    """A GPU, or a size that one may have."""

    name: str
    total_bytes: int
    free_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class _Request:
    """What the KV cache keeps of a request on each GPU; with `is_bound` at most, since some layers have a window."""

    tokens: int
    token_bytes: int
    is_bound: bool


class ServingDoctor:
    """Estimates the serving of one model.

    Parameters
    ----------
    report : Report
    gpus : sequence of Gpu
        The GPUs that products run on.
    options : ServingOptions
    """

    def __init__(self, report: Report, gpus: Sequence[Gpu], options: ServingOptions) -> None:
        self.report, self.gpus, self.options = report, gpus, options

    def look(self, path: str, checkpoint: CheckpointInfo, facts: dict[str, Any]) -> None:
        """Reports on a folder, and adds "serving" to `facts`, which are what programs get."""
        count = self.options.gpus
        self.report.section(f"Serving {path} by vLLM: an estimate")
        said: dict[str, Any] = {"gpus": count}
        facts["serving"] = said
        try:
            model = read_served_model(_read_config(Path(path)))
            weights = count_served_weights(checkpoint, model, count)
        except NoEstimateError as why:
            self.say_no_estimate(path, str(why), facts)
            return
        obstacle = model.find_obstacle(count)
        if obstacle:
            said["obstacle"] = obstacle
            self.report.row("GPUs", f"not {count}: {obstacle}")
            self.report.add_problem(f"{path}: vLLM does not serve it on {count} GPUs: {obstacle}")
            return
        request = self._say_request(model, said)
        self._say_assumptions(model, weights, said)
        said["layouts"] = {}
        cards = self._choose_cards()
        for layout in LAYOUTS:
            said["layouts"][layout] = self._say_layout(layout, weights, cards, request)
        fits = [card["fits"] for layout in said["layouts"].values() for card in layout["cards"]]
        if not any(each is not False for each in fits):
            self.report.add_problem(
                f"{path}: on {_count(count, 'GPU')} no layout leaves room for one request of {request.tokens:,} tokens"
            )

    def say_no_estimate(self, path: str, why: str, facts: dict[str, Any]) -> None:
        """Says that there is no estimate, which is better than a number that may be wrong."""
        facts["serving"] = {"gpus": self.options.gpus, "no_estimate": why}
        self.report.row("estimate", f"none: {why}")
        self.report.not_tried.append(f"estimating how {path} is served: {why}")

    def _say_request(self, model: ServedModel, said: dict[str, Any]) -> _Request:
        """Says how long a request is, and what it takes."""
        report, count, context = self.report, self.options.gpus, self.options.context
        most = model.max_tokens
        if context is None:
            context = min(most or _USUAL_CONTEXT, _USUAL_CONTEXT)
            why = "what the model is made for" if most == context else "unless --context says another"
        else:
            why = "as asked"
        report.row("GPUs", f"{count}, each with its part of every layer" if count > 1 else "1")
        if not self.options.memory_gb and 0 < len(self.gpus) < count:
            report.row("", f"{_count(len(self.gpus), 'GPU')} here: the others are taken to be alike")
        report.row("a request", f"{context:,} tokens, {why}")
        if most and context > most:
            report.row("", f"above config.json's {most:,}: vLLM may refuse")
        each = "" if count == 1 else " on each GPU"
        size = model.count_token_bytes(count)
        # A window of the context's length or more leaves nothing out.
        is_bound = 0 < model.window < context
        report.row("KV cache of a token", f"{size:,} bytes{each}, in BF16")
        if is_bound:
            report.row("", "an upper bound: some layers keep a window of")
            report.row("", f"{model.window:,} tokens, and are counted as the others")
        if count > model.kv_heads:
            what = "the latent vector is" if model.is_latent else f"heads of keys and values, {model.kv_heads}, are"
            report.row("", f"{what} on several GPUs")
        report.row("KV cache of a request", f"{write_size(size * context)}{each}{' at most' * is_bound}")
        said |= {"context": context, "kv_token_bytes": size, "kv_is_upper_bound": is_bound}
        return _Request(context, size, is_bound)

    def _say_assumptions(self, model: ServedModel, weights: ServedWeights, said: dict[str, Any]) -> None:
        report = self.report
        report.row("assumed", f"vLLM takes {100 * MEMORY_SHARE:.0f} % of a GPU, its default")
        report.row("", f"{write_size(ALLOWANCE_BYTES)} of it for activations, CUDA graphs")
        report.row("", "and what else is no weight and no cache")
        report.row("", f"packed takes {PACKED_BITS:.2f} bits a weight, embeddings too")
        if weights.is_coded_estimated:
            report.row("", f"coded would take {CODED_BITS}, and embeddings 16")
        if weights.expert_bytes:
            report.row("experts", f"plain in every layout so far: {write_size(weights.expert_bytes)}")
        said |= {"memory_share": MEMORY_SHARE, "allowance_bytes": ALLOWANCE_BYTES}
        said |= {"expert_bytes": weights.expert_bytes}

    def _choose_cards(self) -> list[_Card]:
        """Returns the cards to reckon with, and says what they have."""
        report = self.report
        if self.gpus and not self.options.memory_gb:
            cards = [_Card(f"GPU {gpu.index}", gpu.total_bytes, gpu.free_bytes) for gpu in self.gpus]
            if len(cards) > 1 and len({card.total_bytes for card in cards}) == 1:
                free = [card.free_bytes for card in cards if card.free_bytes is not None]
                cards = [_Card("each GPU", cards[0].total_bytes, min(free, default=None))]
        else:
            sizes = (self.options.memory_gb,) if self.options.memory_gb else _USUAL_CARDS_GB
            cards = [_Card(f"{size:g} GB", count_card_bytes(size)) for size in sizes]
        for card in cards:
            taken = int(card.total_bytes * MEMORY_SHARE)
            report.row(f"memory of {card.name}", f"{write_size(card.total_bytes)}, and vLLM takes {write_size(taken)}")
            if card.free_bytes is not None and card.free_bytes < taken:
                report.row("", f"{write_size(card.free_bytes)} are free now: vLLM would not start")
        return cards

    def _say_layout(self, layout: str, weights: ServedWeights, cards: list[_Card], request: _Request) -> dict[str, Any]:
        report, count = self.report, self.options.gpus
        taken = weights.bytes[layout]
        is_estimate = layout == "coded" and weights.is_coded_estimated
        source = (", estimated" if is_estimate else ", as stored") if layout == "coded" else ""
        report.row(f"{layout}, weights", f"{write_size(taken)}{' on each GPU' * (count > 1)}{source}")
        facts: dict[str, Any] = {"weight_bytes": taken, "is_estimate": is_estimate, "cards": []}
        for card in cards:
            left = count_cache_bytes(card.total_bytes, taken)
            requests = count_requests(left, request.token_bytes, request.tokens)
            fits: bool | None = requests > 0
            if left < 0:
                text = f"does not fit: {write_size(-left)} short"
            elif requests:
                text = f"{write_size(left)} left: {'at least ' * request.is_bound}{_count(requests, 'request')}"
            elif request.is_bound:
                text, fits = f"{write_size(left)} left: one request perhaps", None
            else:
                text = f"does not fit: {write_size(left)} left, no request"
            report.row(f"{layout}, on {card.name}", text)
            known = {"name": card.name, "memory_bytes": card.total_bytes, "kv_cache_bytes": left}
            facts["cards"].append({**known, "requests": requests, "fits": fits})
        return facts


def _read_config(folder: Path) -> dict[str, Any]:
    """Returns config.json, read as Python reads it."""
    if not folder.is_dir():
        raise NoEstimateError("it is not the folder of a model")
    try:
        config = parse_json(read_text(folder / "config.json"))
    except FileNotFoundError:
        raise NoEstimateError("there is no config.json") from None
    except (OSError, ValueError) as failure:
        raise NoEstimateError("config.json cannot be read") from failure
    if not isinstance(config, dict):
        raise NoEstimateError("config.json is not of a JSON object")
    return config


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
