# SPDX-License-Identifier: Apache-2.0
"""Decides which parameters that no tensor of a checkpoint gives the framework may draw at random.

transformers reports missing parameters, and draws them. A compressed checkpoint that is loaded by the wrong names must
not pass for a model, so we raise an error. But a head, or another whole part, of a class that the checkpoint was not
made of may be missing: a classifier that is to be trained on a language model, for instance. So may a part that a class
can be made without: a pooler, or a decoder's attention to an encoder. Surplus tensors are reported and left out, as the
framework does it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

SHOWN = 8
_POOLER = re.compile(r"^pooler\.")
_CROSS_ATTENTION = re.compile(r"cross_?att|encoder_attn")
_NUMBER = re.compile(r"\.\d+(?=\.|$)")
_BLOCK = re.compile(r"^(.*?\.)?\*(?=\.)")
_LAST_NORM = re.compile(r"^(ln_f|(final_)?(layer_?)?norm)\.(weight|bias)$")


def check_missing(
    model: PreTrainedModel, expected: dict[str, Any], given: set[str], unknown: Iterable[str]
) -> list[str]:
    """Looks at what is missing, by the names that the checkpoint's tensors have after the framework's renaming.

    Parameters
    ----------
    model : PreTrainedModel
    expected : dict
        The model's state dict.
    given : set of str
        Parameters that the files have tensors for.
    unknown : iterable of str
        Tensors of the files for which the model has no parameter, for the message.

    Returns
    -------
    list of str
        Parameters that the framework draws at random, as it does for the source.

    Raises
    ------
    ValueError
        The framework would draw parameters at random that are no heads.
    """
    ties: dict[str, str] = model.all_tied_weights_keys
    sources = {source for pair in ties.items() if given & set(pair) for source in pair[1:]}
    tied = sources | {member for member, source in ties.items() if source in sources}
    missing = [name for name in expected if name not in given and name not in tied]
    missing = _without(missing, model._keys_to_ignore_on_load_missing)
    holes = missing
    if missing and given:
        is_other = not _is_class_of_checkpoint(model)
        holes = _find_holes(model, expected, given, missing) if is_other else _without_options(model, given, missing)
    if holes:
        raise_unfit(model, holes, unknown)
    return missing


def raise_unfit(model: nn.Module, missing: Iterable[str], untaken: Iterable[str]) -> None:
    """Raises ValueError, which lists parameters that no file gives, and tensors that no module takes."""
    lines = [f"the checkpoint does not fit {type(model).__name__}"]
    if untaken:
        lines.append(f"no module takes {_listed(untaken)}")
    lines.append(f"no file gives {_listed(missing)}")
    lines.append(
        "the framework would draw what is missing at random: load another class, or, if that is what you want, run "
        "'transfuse decompress' and load what it writes"
    )
    raise ValueError("; ".join(lines))


def _without(names: Iterable[str], patterns: Iterable[str] | None) -> list[str]:
    rules = [re.compile(pattern) for pattern in patterns or ()]
    return [name for name in names if not any(rule.search(name) for rule in rules)]


def _without_options(model: PreTrainedModel, given: set[str], missing: list[str]) -> list[str]:
    """Leaves out what the class can be made without, if the files have none of it, like the pooler of DINO's ViT."""
    options = []
    if "add_pooling_layer" in inspect.signature(type(model).__init__).parameters:
        options.append(_POOLER)
    if getattr(model.config, "add_cross_attention", False):
        options.append(_CROSS_ATTENTION)
    absent = [rule for rule in options if not any(rule.search(name) for name in given)]
    return [name for name in missing if not any(rule.search(name) for rule in absent)]


def _is_class_of_checkpoint(model: PreTrainedModel) -> bool:
    """Returns whether the checkpoint says that it was made of the model's class."""
    return type(model).__name__ in (getattr(model.config, "architectures", None) or ())


def _find_holes(model: PreTrainedModel, expected: dict[str, Any], given: set[str], missing: list[str]) -> list[str]:
    """Returns what is missing in parts that the checkpoint otherwise has, or all, if it has less than it lacks."""
    prefix = f"{model.base_model_prefix}."
    has_base = model.base_model is not model
    base = [name for name in missing if not has_base or name.startswith(prefix)]
    if sum(expected[name].numel() for name in base) > sum(expected[name].numel() for name in given & expected.keys()):
        return missing
    # A missing parameter is a hole if the files have others of its module, or of the list of blocks that it is in. The
    # blocks of classes with one base differ only in whether they attend to an encoder.
    modules = {name.rpartition(".")[0] for name in given}
    kinds = {_NUMBER.sub(".*", name) for name in given}
    blocks = {_find_block(name) for name in given} - {None}
    ends = _input_names(model) | {name for name in base if _LAST_NORM.search(name.removeprefix(prefix))}
    return [
        name
        for name in base
        if name.rpartition(".")[0] in modules
        or _NUMBER.sub(".*", name) in kinds
        or (_find_block(name) in blocks and not _CROSS_ATTENTION.search(name))
        or name in ends
    ]


def _find_block(name: str) -> str | None:
    """Returns the outermost list of like blocks that a parameter is in, such as "model.layers.*"."""
    found = _BLOCK.match(_NUMBER.sub(".*", name))
    return found[0] if found else None


def _input_names(model: PreTrainedModel) -> set[str]:
    """Returns the names of the tables in which a model looks up its tokens."""
    try:
        weight = getattr(model.get_input_embeddings(), "weight", None)
    except (AttributeError, NotImplementedError):
        return set()
    return {name for name, each in model.named_parameters(remove_duplicate=False) if each is weight}


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more
