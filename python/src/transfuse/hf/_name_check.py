# SPDX-License-Identifier: Apache-2.0
"""Comparing the names of a checkpoint with those of a model, both ways.

Where names do not fit, transformers warns and draws random weights. A compressed checkpoint that is loaded by the
wrong names must not pass for a model, so that we raise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

SHOWN = 8


def check_names(model: PreTrainedModel, expected: dict[str, Any], given: set[str], unknown: Iterable[str]) -> None:
    """Compares names, those of the checkpoint after the framework's renaming.

    Parameters
    ----------
    model : PreTrainedModel
    expected : dict
        Its state dict.
    given : set of str
        Parameters that the files have tensors for.
    unknown : iterable of str
        Tensors of the files for which the model has no parameter.

    Raises
    ------
    ValueError
        Tensors that no module takes, or parameters that no file gives. What the architecture itself declares as left
        out is fine, and so are the heads where the model is of another class than the checkpoint, such as a classifier
        that is to be trained on a language model: these the framework reports, and draws at random.
    """
    ties: dict[str, str] = model.all_tied_weights_keys
    tied = {name for pair in ties.items() if given & set(pair) for name in pair}
    missing = [name for name in expected if name not in given and name not in tied]
    missing = _without(missing, model._keys_to_ignore_on_load_missing)
    ignored = set(model._keys_to_ignore_on_load_unexpected or ()) | _old_buffers(model)
    untaken = _without(unknown, ignored)
    if _is_another_class(model):
        heads = _HeadNames(model)
        missing = [name for name in missing if not heads.is_of_model_head(name)]
        untaken = [name for name in untaken if not heads.is_of_file_head(name)]
    raise_unfit(model, missing, untaken)


def raise_unfit(model: nn.Module, missing: list[str], untaken: list[str]) -> None:
    """Raises ValueError if there are names on either side that the other one lacks."""
    if missing or untaken:
        lines = [f"the checkpoint does not fit {type(model).__name__}"]
        if untaken:
            lines.append(f"no module takes {_listed(untaken)}")
        if missing:
            lines.append(f"no file gives {_listed(missing)}")
        raise ValueError("; ".join(lines))


def _without(names: Iterable[str], patterns: Iterable[str] | None) -> list[str]:
    rules = [re.compile(pattern) for pattern in patterns or ()]
    return [name for name in names if not any(rule.search(name) for rule in rules)]


def _old_buffers(model: PreTrainedModel) -> set[str]:
    """Returns patterns of buffers that old checkpoints hold, and that the framework leaves out, too."""
    names = [name for name, _ in model.named_buffers()]
    patterns = set()
    if any(name.endswith("rotary_emb.inv_freq") for name in names):
        patterns.add(r"rotary_emb\.inv_freq")
    if any(name.endswith("position_ids") for name in names):
        patterns.add(r"(^|\.)position_ids$")
    return patterns


def _is_another_class(model: PreTrainedModel) -> bool:
    """Returns whether the checkpoint says that it was made of another class than the model's."""
    architectures: list[str] = getattr(model.config, "architectures", None) or []
    return bool(architectures) and type(model).__name__ not in architectures


class _HeadNames:
    """Tells what belongs to the base model, which a checkpoint and a model of two classes share."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._prefix = f"{model.base_model_prefix}."
        self._has_base = model.base_model is not model

    def is_of_model_head(self, name: str) -> bool:
        return self._has_base and not name.startswith(self._prefix)

    def is_of_file_head(self, name: str) -> bool:
        return not name.startswith(self._prefix)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more
