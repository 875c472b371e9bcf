# SPDX-License-Identifier: Apache-2.0
"""Finding modules whose weight is read by the code around them, as a matrix, rather than by their own `forward`.

T5 casts activations to `self.wo.weight.dtype`, and torch's own transformer layers hand `self.linear1.weight` to a fused
function. Wan casts time steps to the dtype of the first of `self.time_embedder.parameters()`. Neither would do with a
buffer, and nothing but the source tells.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

from torch import nn


def find_weight_user(model: nn.Module, path: str) -> str:
    """Returns the class of a module around that of a path which reads its weight, or "".

    The device of a weight is that of the buffer, and so is no reason.
    """
    parts = path.split(".")
    around = model
    for depth in range(len(parts)):
        kind: Any = type(around)
        inner = ".".join(parts[depth:])
        if inner in _find_reads(kind) or any(_is_first(around, place, inner) for place in _find_first_reads(kind)):
            return str(kind.__name__)
        around = around.get_submodule(parts[depth])
    return ""


def _is_first(around: nn.Module, place: str, path: str) -> bool:
    """Returns whether the weight of a path is the first parameter of what is at a place."""
    try:
        first = next((name for name, _ in around.get_submodule(place).named_parameters()), "")
    except AttributeError:
        return False
    return f"{place}.{first}".removeprefix(".") == f"{path}.weight"


@functools.cache
def _find_reads(kind: Any) -> frozenset[str]:
    """Returns what a class reads the weights of: "wo" for `self.wo.weight`."""
    return frozenset(re.findall(r"\bself\.([\w.]+)\.weight\b(?!\.device\b)", _source_of(kind)))


@functools.cache
def _find_first_reads(kind: Any) -> frozenset[str]:
    """Returns what a class reads the dtype of, by the first parameter: "x" for `next(self.x.parameters()).dtype`."""
    found = re.findall(r"\bself\.((?:\w+\.)*)parameters\(\)\)+\.dtype\b", _source_of(kind))
    return frozenset(place.rstrip(".") for place in found)


def _source_of(kind: Any) -> str:
    """Returns the text of `forward` and of the methods of the class that it calls, directly or not."""
    texts: dict[str, str] = {}
    waiting = ["forward"]
    while waiting:
        name = waiting.pop()
        method = getattr(kind, name, None)
        if name in texts or not inspect.isfunction(method) or getattr(nn.Module, name, None) is method:
            continue
        try:
            texts[name] = inspect.getsource(method)
        except (OSError, TypeError):
            texts[name] = ""
        waiting += re.findall(r"\bself\.(\w+)\(", texts[name])
    return "\n".join(texts.values())
