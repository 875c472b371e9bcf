# SPDX-License-Identifier: Apache-2.0
"""Finds modules whose weight is read, as a matrix, by the code around them rather than by their own `forward`.

T5 casts activations to `self.wo.weight.dtype`, and torch's own transformer layers hand `self.linear1.weight` to a fused
function. Wan casts time steps to the dtype of the first of `self.time_embedder.parameters()`. RWKV's model divides
`block.attention.output.weight` in place, block by block. None of them works with a buffer, and nothing but their source
code tells.

Some models (ChineseCLIP, Kosmos-2, Blt) clear the row of the padding token once they are loaded, whatever the files
have in it. That has to happen to compressed weights as well.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

from torch import nn


def find_weight_user(model: nn.Module, path: str) -> str:
    """Returns the class of the module that reads the weight of the module at a path, which lies in it; or "".

    Reading the weight's device is no reason, since the buffer is on the same device.
    """
    parts = path.split(".")
    around = model
    for depth in range(len(parts)):
        kind: Any = type(around)
        inner = ".".join(parts[depth:])
        if inner in _find_reads(kind) or any(_is_first(around, place, inner) for place in _find_first_reads(kind)):
            return str(kind.__name__)
        if any(f".{inner}".endswith(f".{below}") for below in _find_reads_below(kind)):
            return str(kind.__name__)
        around = around.get_submodule(parts[depth])
    return ""


def find_padding_clearer(model: nn.Module, path: str) -> str:
    """Returns the class of the model, or of its part, that clears the padding token's row of an embedding, or ""."""
    if getattr(model.get_submodule(path), "padding_idx", None) is None:
        return ""
    parts = path.split(".")
    around = [model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts))]
    inits: list[Any] = [type(module) for module in around if hasattr(module, "_init_weights")]
    # Each part that is itself a model of the framework's initializes its own modules.
    return str(inits[-1].__name__) if inits and _clears_padding(inits[-1]) else ""


def _is_first(around: nn.Module, place: str, path: str) -> bool:
    """Returns whether the weight at a path is the first parameter of the module at a place."""
    try:
        first = next((name for name, _ in around.get_submodule(place).named_parameters()), "")
    except AttributeError:
        return False
    return f"{place}.{first}".removeprefix(".") == f"{path}.weight"


@functools.cache
def _find_reads(kind: Any) -> frozenset[str]:
    """Returns whose weights a class reads: "wo" for `self.wo.weight`."""
    return frozenset(re.findall(r"\bself\.([\w.]+)\.weight\b(?!\.device\b)", _source_of(kind)))


@functools.cache
def _find_reads_below(kind: Any) -> frozenset[str]:
    """Returns whose weights a class reads in modules that it goes through: "mlp.wo" for `layer.mlp.wo.weight`."""
    found = re.findall(r"(?<![\w.\])])(?!self\b)[a-z_]\w*\.((?:\w+\.)+)weight\b(?!\.device\b)", _source_of(kind))
    return frozenset(place.rstrip(".") for place in found)


@functools.cache
def _clears_padding(kind: Any) -> bool:
    """Returns whether a class clears a row of embeddings without asking whether it was loaded."""
    for base in kind.__mro__:
        method = base.__dict__.get("_init_weights")
        try:
            text = inspect.getsource(method) if inspect.isfunction(method) else ""
        except OSError:
            text = ""
        conditions = re.findall(r"\bif ([^\n]*\bpadding_idx\b[^\n]*):\s+init\.\w+\([\w.]+\.weight(?:\.data)?\[", text)
        if any("_is_hf_initialized" not in condition for condition in conditions):
            return True
    return False


@functools.cache
def _find_first_reads(kind: Any) -> frozenset[str]:
    """Returns the modules whose first parameter's dtype a class reads: "x" for `next(self.x.parameters()).dtype`."""
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
