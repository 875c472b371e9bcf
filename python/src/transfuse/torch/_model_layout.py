# SPDX-License-Identifier: Apache-2.0
"""Changes how the layers of a model lie in memory, after they were loaded or compressed."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

from torch import Tensor, nn

from transfuse._checkpoint import Progress
from transfuse._errors import Status, make_error
from transfuse._options import find_layout, fits_layout
from transfuse.torch import _layouts
from transfuse.torch._buffer_module import has_bytes
from transfuse.torch._compress import run_abandonable
from transfuse.torch._experts import TransfuseExperts
from transfuse.torch._modules import CompressedModule


def set_layout(model: nn.Module, layout: str, *, progress: Progress | None = None) -> dict[str, str]:
    """Converts the weights of a compressed module, or of all those of a model, to another layout, in place.

    One layer at a time is converted on its device. Besides the model this takes the memory of one layer in both layouts
    and, for "coded", that of its dense weights, which are encoded on the CPU. Parameters stay the same objects, so that
    ties hold. But their memory is new, so compiled models are compiled anew, and CUDA graphs must be captured again.
    Modules whose weights are to be loaded are told how. No other thread may use the model meanwhile. Weights that the
    layout does not take stay as they are, and a warning names them: weights of other codecs, for "packed" weights whose
    exponents lie too far apart and experts that cannot run so, for "plain" all experts. Another one names FP8 weights
    that become packed BF16, and says why. Packed experts have other parameters than coded ones. After Ctrl-C, or any
    other exception, the model still works, and some of its layers are converted.

    Parameters
    ----------
    model : nn.Module
        A `TransfuseLinear` or `TransfuseEmbedding`, or any module that contains some.
    layout : str
        "coded", "packed", "plain" or "packed8".
    progress : callable, optional
        As in `compress_model`; bytes are those of the weights before they are converted.

    Returns
    -------
    dict of str to str
        The compressed weights that stay as they are, and why.

    Raises
    ------
    ArgumentError
        There is no such layout.
    UnsupportedError
        The layout does not take `model` itself, which is a single layer, or a module of experts.
    CancelledError
        `progress` asked to stop.
    """
    find_layout(layout)
    weights: dict[int, _Weight] = {}
    for path, module in model.named_modules():
        start = f"{path}." if path else ""
        if isinstance(module, CompressedModule):
            weights.setdefault(id(module.weight), _Weight()).add(f"{start}weight", module)
        elif isinstance(module, TransfuseExperts):
            for name in module.container_shapes:
                weights.setdefault(id(module), _Weight()).add(f"{start}{name}", module)
    taken = [weight for weight in weights.values() if not fits_layout(weight.modules[0].layout, layout)]
    total, done = sum(weight.count_bytes() for weight in taken), 0
    refused: dict[str, str] = {}
    for weight in taken:
        size = weight.count_bytes()
        _report_progress(progress, weight.names[0], done, total)
        reason = _convert(weight, layout)
        if reason and weight.modules[0] is model:
            raise make_error(Status.TRF_ERR_UNSUPPORTED, reason)
        if reason:
            refused.update(dict.fromkeys(weight.names, reason))
        done += size
    if taken:
        _report_progress(progress, taken[-1].names[0], done, total)
    if refused:
        warnings.warn(_layouts.describe_refusals(layout, refused), stacklevel=2)
    if layout == "packed" and (packed := {name: why for weight in taken for name, why in weight.find_packed_fp8()}):
        warnings.warn(_layouts.describe_packed_fp8(packed), stacklevel=2)
    return refused


@dataclasses.dataclass
class _Weight:
    """A weight that modules share, or the experts of one module, with all names of parameters."""

    names: list[str] = dataclasses.field(default_factory=list)
    modules: list[CompressedModule | TransfuseExperts] = dataclasses.field(default_factory=list)

    def add(self, name: str, module: CompressedModule | TransfuseExperts) -> None:
        self.names.append(name)
        self.modules.append(module)

    def find_packed_fp8(self) -> list[tuple[str, str]]:
        """Returns the names of FP8 weights that lie packed as BF16, and why."""
        first = self.modules[0]
        if isinstance(first, CompressedModule):
            return [(self.names[0], first.layout_reason)] if first.layout_reason else []
        path = self.names[0].removesuffix(self.names[0].rpartition(".")[2])
        return [(path + name, reason) for name, reason in first.layout_reasons().items()]

    def count_bytes(self) -> int:
        first = self.modules[0]
        return sum(first.get_parameter(name).numel() for name in first._buffer_names())


def _convert(weight: _Weight, layout: str) -> str:
    """Converts a weight; returns why the layout does not take it, or ""."""
    first = weight.modules[0]
    if isinstance(first, TransfuseExperts):
        return _convert_experts(first, layout)
    modules = [module for module in weight.modules if isinstance(module, CompressedModule)]
    if has_bytes(first.weight):
        return _convert_matrix(modules, layout)
    for module in modules:
        module.expect_layout(layout)
    return ""


def _convert_experts(module: TransfuseExperts, layout: str) -> str:
    reasons: list[str] = []

    def convert() -> Callable[[], None]:
        reason, swap = module.prepare_layout(layout)
        reasons.append(reason)
        return swap

    run_abandonable(convert)
    return reasons[0]


def _convert_matrix(modules: list[CompressedModule], layout: str) -> str:
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
