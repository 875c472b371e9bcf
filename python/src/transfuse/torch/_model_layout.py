# SPDX-License-Identifier: Apache-2.0
"""Changes how the layers of a model lie in memory, after they were loaded or compressed."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from torch import Tensor, nn

from transfuse._checkpoint import Progress
from transfuse._errors import Status, make_error
from transfuse._options import find_layout
from transfuse.torch import _layouts
from transfuse.torch._buffer_module import has_bytes
from transfuse.torch._compress import run_abandonable
from transfuse.torch._experts import TransfuseExperts
from transfuse.torch._modules import CompressedModule

_NO_EXPERTS = "experts lie coded"


def set_layout(model: nn.Module, layout: str, *, progress: Progress | None = None) -> dict[str, str]:
    """Converts the weights of a compressed module, or of all those of a model, to another layout, in place.

    One layer at a time is converted on its device. Besides the model this takes the memory of one layer in both layouts
    and, for "coded", that of its dense weights, which are encoded on the CPU. Parameters stay the same objects, so that
    ties hold. But their memory is new, so compiled models are compiled anew, and CUDA graphs must be captured again.
    Modules whose weights are to be loaded are told how. No other thread may use the model meanwhile. Weights that the
    layout does not take stay as they are, and a warning names them: weights of other codecs and, for "packed", weights
    whose exponents lie too far apart. After Ctrl-C, or any other exception, the model still works, and some of its
    layers are converted.

    Parameters
    ----------
    model : nn.Module
        A `TransfuseLinear` or `TransfuseEmbedding`, or any module that contains some.
    layout : str
        "coded", "packed" or "plain".
    progress : callable, optional
        As in `compress_model`; bytes are those of the weights before they are converted.

    Returns
    -------
    dict of str to str
        The compressed weights that stay as they are, and why: those of experts, which lie coded, are among them.

    Raises
    ------
    ArgumentError
        There is no such layout.
    UnsupportedError
        The layout does not take `model` itself, which is a single layer, or a module of experts.
    CancelledError
        `progress` asked to stop.
    """
    wanted = find_layout(layout)
    weights: dict[int, list[tuple[str, CompressedModule]]] = {}
    left: dict[str, str] = {}
    for path, module in model.named_modules():
        if isinstance(module, CompressedModule):
            weights.setdefault(id(module.weight), []).append((f"{path}.weight" if path else "weight", module))
        elif isinstance(module, TransfuseExperts) and wanted != find_layout("coded"):
            if module is model:
                raise make_error(Status.TRF_ERR_UNSUPPORTED, f"{_NO_EXPERTS}, and not {layout}")
            left.update(dict.fromkeys((f"{path}.{name}" for name in module.container_shapes), _NO_EXPERTS))
    taken = [members for members in weights.values() if members[0][1].layout != layout]
    total, done = sum(members[0][1].weight.numel() for members in taken), 0
    refused: dict[str, str] = {}
    for members in taken:
        name, first = members[0]
        size = first.weight.numel()
        _report_progress(progress, name, done, total)
        if has_bytes(first.weight):
            reason = _convert([module for _, module in members], layout)
            if reason and first is model:
                raise make_error(Status.TRF_ERR_UNSUPPORTED, reason)
            if reason:
                refused.update((each, reason) for each, _ in members)
        else:
            for _, module in members:
                module.expect_layout(layout)
        done += size
    if taken:
        _report_progress(progress, taken[-1][0][0], done, total)
    if refused:
        warnings.warn(_layouts.describe_refusals(layout, refused), stacklevel=2)
    return left | refused


def _convert(modules: list[CompressedModule], layout: str) -> str:
    """Converts the weight that modules share; returns why the layout does not take it, or ""."""
    reasons: list[str] = []

    def convert() -> Callable[[], None]:
        made, reason = _layouts.convert_or_keep(modules[0].weight, layout)
        reasons.append(reason)
        return lambda: None if reason else swap(made)

    def swap(made: Tensor) -> None:
        for module in modules:
            module._change_data("weight", made)

    run_abandonable(convert)
    return reasons[0]


def _report_progress(progress: Progress | None, name: str, done: int, total: int) -> None:
    if progress is not None and progress(name, done, total):
        raise make_error(Status.TRF_ERR_CANCELLED, f"converting the model was cancelled before {name}")


__all__ = ["set_layout"]
