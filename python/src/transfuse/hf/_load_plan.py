# SPDX-License-Identifier: Apache-2.0
"""Which tensor of the files becomes what of the model, decided from the headers before anything is read.

transformers renames the tensors of a file, and converts some of them (experts that lie one by one are merged, fused
projections are cut), by rules of each architecture. We apply these rules, on a copy, to the names that the tensors had
before they were compressed. A compressed tensor is then *taken* by a module as it is, or, where no module can take it,
*decoded* while the model is loaded and put through the framework's own conversion. What is not compressed is left to
the framework.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from transfuse._checkpoint import TensorInfo, info
from transfuse._errors import Status, UnsupportedError, make_error
from transfuse._memory_need import packed_bytes
from transfuse.hf._expert_parts import CannotTake, sort_experts
from transfuse.hf._module_kinds import find_taker, reject_dtype
from transfuse.hf._name_check import check_names, raise_unfit
from transfuse.hf._weight_users import find_weight_user
from transfuse.torch._buffer_module import as_parameter
from transfuse.torch._load import Checkpoint, get_load_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What is appended to the name of a compressed tensor (format/FORMAT.md, section 10).
SUFFIX = "_trf"


@dataclasses.dataclass(frozen=True)
class Part:
    """A tensor of the files on its way to a target, and the pattern of the converter that it matched, if any."""

    tensor: TensorInfo
    pattern: str | None

    @property
    def disk_name(self) -> str:
        """The name by which the file has it."""
        return self.tensor.name + SUFFIX if self.tensor.compressed else self.tensor.name


@dataclasses.dataclass
class Taken:
    """A blob that becomes the parameter `target` as it is."""

    target: str
    part: Part


@dataclasses.dataclass
class TakenExperts:
    """The blobs of an experts module, which stays the same object: the parts of each of its parameters."""

    path: str
    blobs: dict[str, list[Part]]


@dataclasses.dataclass
class Decoded:
    """Tensors that are decoded, or read, while loading, and become `target` (with a converter also its siblings)."""

    target: str
    parts: list[Part]
    converter: WeightConverter | None
    reason: str


@dataclasses.dataclass
class LoadPlan:
    """What is to be done with the files of a checkpoint.

    Attributes
    ----------
    layout : str
        How what is taken is to lie in memory; experts lie coded.
    refused : dict of str to str
        Targets that lie coded, since the layout does not take them, and why.
    taken, experts, decoded : list
    replaced : dict of str to nn.Module
        Modules, on the meta device, that go in the place of those of these names.
    targets : set of str
        Parameters that we load; the framework loads the others.
    dtypes : dict of str to torch.dtype
        Of all parameters that the files give, as the framework would have them from the uncompressed checkpoint.
    conversions : list
        Those of the framework that the names made use of.
    """

    taken: list[Taken] = dataclasses.field(default_factory=list)
    experts: list[TakenExperts] = dataclasses.field(default_factory=list)
    decoded: list[Decoded] = dataclasses.field(default_factory=list)
    conversions: list[Any] = dataclasses.field(default_factory=list)
    replaced: dict[str, nn.Module] = dataclasses.field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = dataclasses.field(default_factory=dict)
    targets: set[str] = dataclasses.field(default_factory=set)
    layout: str = "coded"
    refused: dict[str, str] = dataclasses.field(default_factory=dict)


def describe_refusal(refusal: UnsupportedError, tensor: TensorInfo) -> str:
    """Returns why a layout does not take a tensor, without file and tensor: the same for all that share the reason."""
    head, found, reason = refusal.message.rpartition(f"tensor '{tensor.name}': ")
    return reason if found else head


def read_headers(files: Sequence[str]) -> list[TensorInfo]:
    """Returns the tensors of the files, whose heads the C library checks.

    Raises
    ------
    ArgumentError
        Nothing in the files is compressed, or one is no .safetensors file.
    NotFoundError, InputOutputError, DataError, UnsupportedError
        A file is missing, cut, corrupt or of another version.
    """
    tensors: dict[str, TensorInfo] = {}
    for path in files:
        if not str(path).endswith(".safetensors"):
            raise make_error(Status.TRF_ERR_ARGUMENT, f"{path}: compressed checkpoints are .safetensors files")
        tensors.update((tensor.name, tensor) for tensor in info(path).tensors)
    if not any(tensor.compressed for tensor in tensors.values()):
        names = ", ".join(map(str, files))
        raise make_error(
            Status.TRF_ERR_ARGUMENT,
            f"{names}: no tensor is compressed, though config.json says so; 'transfuse compress' writes both",
        )
    return list(tensors.values())


class Planner:
    """Makes the plan for one model, which lies on the meta device and has its dense modules still."""

    model: nn.Module
    conversions: list[Any]
    renamings: list[Any]
    converters: list[Any]
    dtype_rules: list[tuple[re.Pattern[str], torch.dtype]]
    # Files that are open while sizes are asked for.
    _files: ExitStack
    _checkpoints: dict[str, Checkpoint]

    def __init__(
        self, model: PreTrainedModel, conversions: Iterable[Any], dtype: torch.dtype, layout: str = "coded"
    ) -> None:
        self.model = model
        self.conversions = copy.deepcopy(list(conversions))
        self.renamings = [rule for rule in self.conversions if isinstance(rule, WeightRenaming)]
        self.converters = [rule for rule in self.conversions if isinstance(rule, WeightConverter)]
        self.expected: dict[str, torch.Tensor] = model.state_dict()
        self.dtype_rules = [(re.compile(p.replace("*", ".*")), d) for p, d in model._get_dtype_plan(dtype).items()]
        self.ties: dict[str, str] = model.all_tied_weights_keys
        self.plan = LoadPlan(layout=layout)

    def make(self, tensors: Iterable[TensorInfo]) -> LoadPlan:
        """Plans for all tensors of the files.

        Raises
        ------
        ValueError
            Names of files and model differ; the message lists both sides.
        ShapeError
            A tensor has another shape than its parameter.
        ArgumentError
            Weights do not go with the dtype that the model is loaded in.
        """
        groups: dict[str, list[Part]] = {}
        unknown: list[str] = []
        for tensor in sorted(tensors, key=lambda each: dot_natural_key(each.name)):
            target, pattern = self._rename(tensor.name)
            if target in self.expected:
                groups.setdefault(target, []).append(Part(tensor, pattern))
            else:
                unknown.append(tensor.name)
        given = {name for target, parts in groups.items() for name in self._targets_of(target, parts[0].pattern)}
        self._check_names(given, unknown)
        self.plan.dtypes = {name: self._dtype_of(name) for name in given if name in self.expected}
        self._place_experts(groups)
        self._checkpoints = {}
        with ExitStack() as self._files:
            for target, parts in groups.items():
                self._place(target, parts)
            self._keep_ties_alike()
        self.plan.conversions = [rule for rule in self.conversions if rule.was_used()]
        return self.plan

    def _get_bytes(self, tensor: TensorInfo) -> tuple[int, str]:
        """Returns the bytes that a tensor will take in memory, and why not in the plan's layout, or ""."""
        if self.plan.layout == "coded":
            return tensor.bytes, ""
        if tensor.file not in self._checkpoints:
            self._checkpoints[tensor.file] = self._files.enter_context(Checkpoint(tensor.file))
        try:
            most = get_load_bytes(self._checkpoints[tensor.file], tensor.name, self.plan.layout)
        except UnsupportedError as refusal:
            return tensor.bytes, describe_refusal(refusal, tensor)
        return (packed_bytes(*tensor.shape) if self.plan.layout == "packed" else most), ""

    def _check_names(self, given: set[str], unknown: list[str]) -> None:
        check_names(self.model, self.expected, given, unknown)

    def _rename(self, name: str) -> tuple[str, str | None]:
        """Returns the parameter that the framework would load a tensor into, and its converter's pattern."""
        prefix = self.model.base_model_prefix
        target, pattern = rename_source_key(name, self.renamings, self.converters, prefix, self.expected)
        if target not in self.expected and name in self.expected:
            target, pattern = rename_source_key(name, [], [], prefix, self.expected)
        return target, pattern

    def _converter_of(self, pattern: str) -> WeightConverter:
        return next(converter for converter in self.converters if pattern in converter.source_patterns)

    def _targets_of(self, target: str, pattern: str | None) -> list[str]:
        """Returns all parameters that a converter makes at once; a star in a pattern stands for any number."""
        if pattern is None:
            return [target]
        first, *others = self._converter_of(pattern).target_patterns
        names = [target] + [target.replace(first, other) for other in others]
        if not any("*" in name for name in names):
            return names
        wanted = [re.compile(".*".join(map(re.escape, name.split("*")))) for name in names]
        return [name for name in self.expected if any(each.fullmatch(name) for each in wanted)]

    def _dtype_of(self, target: str) -> torch.dtype:
        """Returns the dtype that the framework would give a parameter: some are kept in F32 whatever is asked for."""
        for rule, dtype in self.dtype_rules:
            if rule.search(target):
                return dtype
        return self.expected[target].dtype

    def _place_experts(self, groups: dict[str, list[Part]]) -> None:
        """Plans for the experts modules that can take blobs, whose parameters are then no longer in `groups`."""
        paths = {
            target.rpartition(".")[0] for target, parts in groups.items() if any(p.tensor.compressed for p in parts)
        }
        for path in sorted(paths, key=dot_natural_key):
            module = self.model.get_submodule(path)
            # What transformers' decorator puts on the experts modules that it knows to run.
            if not hasattr(module, "is_transposed"):
                continue
            names = [name for name, _ in module.named_parameters(recurse=False) if f"{path}.{name}" in groups]
            weights = {name: self._with_converter(groups[f"{path}.{name}"]) for name in names}
            try:
                blobs = sort_experts(module, weights, self._dtype_of(f"{path}.{names[0]}"))
            except CannotTake as obstacle:
                for name, (parts, converter) in weights.items():
                    if any(part.tensor.compressed for part in parts):
                        self._decode(f"{path}.{name}", groups.pop(f"{path}.{name}"), converter, str(obstacle))
                continue
            self.plan.experts.append(TakenExperts(path, blobs))
            self.plan.targets.update(f"{path}.{name}" for name in (*names, *blobs))
            for name in names:
                del groups[f"{path}.{name}"]

    def _with_converter(self, parts: list[Part]) -> tuple[list[Part], WeightConverter | None]:
        pattern = parts[0].pattern
        return parts, self._converter_of(pattern) if pattern is not None else None

    def _place(self, target: str, parts: list[Part]) -> None:
        compressed = [part for part in parts if part.tensor.compressed]
        pattern = parts[0].pattern
        if pattern is None:
            self._check_shape(target, parts[-1].tensor)
        if not compressed:
            return
        if pattern is not None:
            converter = self._converter_of(pattern)
            steps = ", ".join(type(operation).__name__ for operation in converter.operations)
            self._decode(target, parts, converter, f"the model has it converted ({steps})")
            return
        part = parts[-1]
        reason = self._find_taker(target, part)
        if reason:
            self._decode(target, [part], None, reason)
        else:
            self.plan.taken.append(Taken(target, part))
            self.plan.targets.add(target)

    def _find_taker(self, target: str, part: Part) -> str:
        """Enters the module that takes a blob; returns why there is none, or ""."""
        path, _, name = target.rpartition(".")
        module = self.model.get_submodule(path)
        taker, reason = find_taker(module, name, part.tensor, self.plan.layout)
        if taker is None:
            return reason
        reader = find_weight_user(self.model, path)
        if reader:
            return f"{reader} reads its weight"
        wanted = self._dtype_of(target)
        unfit = reject_dtype(part.tensor, wanted)
        if unfit and wanted == self.expected[target].dtype:
            raise make_error(Status.TRF_ERR_ARGUMENT, f"{part.tensor.file}: tensor {part.tensor.name!r}: {unfit}")
        if unfit:
            return f"the model keeps it in {wanted}"
        num_bytes, refusal = self._get_bytes(part.tensor)
        if refusal:
            self.plan.refused[target] = refusal
        if num_bytes != part.tensor.bytes:
            taker.weight = as_parameter(torch.empty(num_bytes, dtype=torch.uint8, device="meta"))
        self.plan.replaced[path] = taker
        return ""

    def _decode(self, target: str, parts: list[Part], converter: WeightConverter | None, reason: str) -> None:
        self.plan.decoded.append(Decoded(target, parts, converter, reason))
        self.plan.targets.update(self._targets_of(target, parts[0].pattern))

    def _check_shape(self, target: str, tensor: TensorInfo) -> None:
        wanted = tuple(self.expected[target].shape)
        if wanted != tensor.shape:
            raise make_error(
                Status.TRF_ERR_SHAPE,
                f"{tensor.file}: tensor {tensor.name!r} has shape {list(tensor.shape)}, and the model's {target!r} has "
                f"{list(wanted)}",
            )

    def _keep_ties_alike(self) -> None:
        """Has parameters that are tied be compressed in all of their modules, or in none."""
        taken = {each.target: each for each in self.plan.taken}
        for member, source in self.ties.items():
            for name, other in ((source, member), (member, source)):
                if name in taken and other not in taken:
                    reason = self._find_taker(other, taken[name].part)
                    if reason:
                        self._give_up(taken.pop(name), f"it is tied to {other}, and {reason}")

    def _give_up(self, taken: Taken, reason: str) -> None:
        self.plan.taken.remove(taken)
        self.plan.refused.pop(taken.target, None)
        self.plan.replaced.pop(taken.target.rpartition(".")[0], None)
        self._decode(taken.target, [taken.part], None, reason)


class NamesPlanner(Planner):
    """Plans for a model whose parameters have the names of the files, as those of diffusers: nothing is converted."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.conversions, self.renamings, self.converters, self.dtype_rules = [], [], [], []
        self.expected = model.state_dict()
        self.ties = {}
        self.plan = LoadPlan()

    def _check_names(self, given: set[str], unknown: list[str]) -> None:
        raise_unfit(self.model, [name for name in self.expected if name not in given], unknown)

    def _rename(self, name: str) -> tuple[str, str | None]:
        return name, None
