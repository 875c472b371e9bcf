# SPDX-License-Identifier: Apache-2.0
"""Decides from the headers, before any weights are read, what each tensor of the files becomes in the model.

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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from transfuse._checkpoint import TensorInfo, info
from transfuse._errors import Status, UnsupportedError, make_error
from transfuse._memory_need import layer_packed_bytes
from transfuse.hf._expert_parts import CannotTake, find_packing_reason, sort_experts
from transfuse.hf._file_check import SUFFIX, refuse_second
from transfuse.hf._module_kinds import find_taker, reject_dtype
from transfuse.hf._name_check import check_missing, raise_unfit
from transfuse.hf._weight_users import find_padding_clearer, find_weight_user
from transfuse.torch._buffer_module import as_parameter
from transfuse.torch._dtypes import TORCH_DTYPES
from transfuse.torch._load import Checkpoint, get_load_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# This many bytes of two tensors are compared at a time.
_COMPARED_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True)
class Part:
    """A tensor of the files on its way to a target, and the pattern of the converter that it matched, if any."""

    tensor: TensorInfo
    pattern: str | None

    @property
    def disk_name(self) -> str:
        """The name that the file has for it."""
        return self.tensor.name + SUFFIX if self.tensor.compressed else self.tensor.name


@dataclasses.dataclass
class Taken:
    """A blob that becomes the parameter `target` as it is."""

    target: str
    part: Part


@dataclasses.dataclass
class TakenExperts:
    """The blobs of an experts module, as parts of each of its parameters. The module stays the same object."""

    path: str
    blobs: dict[str, list[Part]]
    layout: str = "coded"


@dataclasses.dataclass
class Decoded:
    """Tensors that are decoded, or read, while loading, and become `target` (with a converter also its siblings)."""

    target: str
    parts: list[Part]
    converter: WeightConverter | None
    reason: str


@dataclasses.dataclass
class LoadPlan:
    """What a load does with the files of a checkpoint.

    Attributes
    ----------
    layout : str
        How taken weights will lie in memory; experts lie coded, or packed if it is "packed" or "packed8".
    layouts : dict of str to str
        Layouts of single tensors, by their names, in place of `layout`.
    refused : dict of str to str
        Targets that lie coded because the layout does not take them, each with the reason.
    taken, experts, decoded : list
    replaced : dict of str to nn.Module
        Modules, on the meta device, that take the place of the modules of these names.
    targets : set of str
        Parameters that we load; the framework loads the others.
    dtypes : dict of str to torch.dtype
        The dtypes of all parameters that the files give, as the framework would load them from the source.
    conversions : list
        The framework's conversions that matched a name.
    followers : dict of str to str
        Parameters that no file gives, each with the taken parameter that it is tied to and will be the same as.
    left : set of str
        Tensors, by their names in the files, that the framework must not see: we load them, or nobody does.
    unexpected : set of str
        Compressed tensors that no parameter takes, by the names that the framework would report.
    drawn : list of str
        Parameters that no file gives, and that the framework draws at random, as it would for the source.
    mismatched : set of (str, torch.Size, torch.Size)
        Parameters whose compressed tensors have another shape, as the framework reports them: the name, the tensor's
        shape and the parameter's.
    """

    taken: list[Taken] = dataclasses.field(default_factory=list)
    experts: list[TakenExperts] = dataclasses.field(default_factory=list)
    decoded: list[Decoded] = dataclasses.field(default_factory=list)
    conversions: list[Any] = dataclasses.field(default_factory=list)
    replaced: dict[str, nn.Module] = dataclasses.field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = dataclasses.field(default_factory=dict)
    targets: set[str] = dataclasses.field(default_factory=set)
    layout: str = "coded"
    layouts: dict[str, str] = dataclasses.field(default_factory=dict)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    followers: dict[str, str] = dataclasses.field(default_factory=dict)
    left: set[str] = dataclasses.field(default_factory=set)
    unexpected: set[str] = dataclasses.field(default_factory=set)
    drawn: list[str] = dataclasses.field(default_factory=list)
    mismatched: set[tuple[str, torch.Size, torch.Size]] = dataclasses.field(default_factory=set)

    def get_layout(self, tensor: TensorInfo) -> str:
        """Returns how a tensor will lie in memory, if it is taken."""
        return self.layouts.get(tensor.name, self.layout)


def describe_refusal(refusal: UnsupportedError, tensor: TensorInfo) -> str:
    """Returns why a layout does not take a tensor, without file and tensor, so that equal reasons have equal texts."""
    head, found, reason = refusal.message.rpartition(f"tensor '{tensor.name}': ")
    return reason if found else head


def read_headers(files: Sequence[str]) -> list[TensorInfo]:
    """Returns the tensors of the files, whose heads the C library checks.

    Raises
    ------
    ArgumentError
        A file is no .safetensors file.
    NotFoundError, InputOutputError, DataError, UnsupportedError
        A file is missing, cut, corrupt or of another version, or two files have the same tensor.
    """
    tensors: dict[str, TensorInfo] = {}
    for path in files:
        if not str(path).endswith(".safetensors"):
            raise make_error(Status.TRF_ERR_ARGUMENT, f"{path}: compressed checkpoints are .safetensors files")
        for tensor in info(path).tensors:
            first = tensors.setdefault(tensor.name, tensor)
            if first is not tensor:
                raise refuse_second(path, tensor.name, first.file)
    return list(tensors.values())


def make_meta_tensors(path: str) -> dict[str, torch.Tensor]:
    """Returns the tensors of a file's source, without data, in the order of their names."""
    tensors = sorted(info(path).tensors, key=lambda each: each.name)
    dtypes = {**TORCH_DTYPES, "F64": torch.float64}
    return {
        each.name: torch.empty(each.shape, dtype=dtypes[each.dtype], device="meta")
        for each in tensors
        if each.dtype in dtypes
    }


class Planner:
    """Makes the plan for one model, which lies on the meta device and still has its dense modules."""

    model: nn.Module
    conversions: list[Any]
    renamings: list[Any]
    converters: list[Any]
    dtype_rules: list[tuple[re.Pattern[str], torch.dtype]]
    # It holds the files that are open while sizes are asked for.
    _files: ExitStack
    _checkpoints: dict[str, Checkpoint]

    def __init__(
        self,
        model: PreTrainedModel,
        conversions: Iterable[Any],
        dtype: torch.dtype,
        layout: str = "coded",
        ignore_mismatched_sizes: bool = False,
        layouts: Mapping[str, str] | None = None,
    ) -> None:
        """`layouts` has those of single tensors, by their names, which count more than `layout`."""
        self.model = model
        self.ignore_mismatched_sizes = ignore_mismatched_sizes
        self.conversions = copy.deepcopy(list(conversions))
        self.renamings = [rule for rule in self.conversions if isinstance(rule, WeightRenaming)]
        self.converters = [rule for rule in self.conversions if isinstance(rule, WeightConverter)]
        self.expected: dict[str, torch.Tensor] = model.state_dict()
        self.dtype_rules = [(re.compile(p.replace("*", ".*")), d) for p, d in model._get_dtype_plan(dtype).items()]
        self.ties: dict[str, str] = model.all_tied_weights_keys
        self.plan = LoadPlan(layout=layout, layouts=dict(layouts or {}))

    def make(self, tensors: Iterable[TensorInfo]) -> LoadPlan:
        """Plans for all tensors of the files.

        Raises
        ------
        ValueError
            The files lack parameters; the message lists them.
        ShapeError
            A compressed tensor has another shape than its parameter.
        ArgumentError
            Weights do not fit the dtype that the model is loaded in.
        """
        groups: dict[str, list[Part]] = {}
        unknown: list[str] = []
        for tensor in sorted(tensors, key=lambda each: dot_natural_key(each.name)):
            if tensor.compressed:
                self.plan.left.add(tensor.name + SUFFIX)
            target, pattern = self._rename(tensor.name)
            if target in self.expected:
                groups.setdefault(target, []).append(Part(tensor, pattern))
                continue
            unknown.append(tensor.name)
            if tensor.compressed:
                self.plan.unexpected.update(self._report_names(target, pattern))
        given = {name for target, parts in groups.items() for name in self._targets_of(target, parts[0].pattern)}
        self.plan.drawn = self._check_missing(given, unknown)
        self.plan.dtypes = {name: self._dtype_of(name) for name in given if name in self.expected}
        self._leave_mismatched(groups)
        self._checkpoints = {}
        with ExitStack() as self._files:
            reasons = self._settle_ties(groups)
            self._place_experts(groups)
            for target, parts in groups.items():
                self._place(target, parts, reasons.get(target, ""))
        self.plan.conversions = [rule for rule in self.conversions if rule.was_used()]
        return self.plan

    def _report_names(self, target: str, pattern: str | None) -> list[str]:
        """Returns the names, after renaming, by which the framework reports a tensor that it has no use for."""
        if pattern is None:
            return [target]
        first, *others = self._converter_of(pattern).target_patterns
        return [target, *(target.replace(first, other) for other in others)]

    def _get_bytes(self, tensor: TensorInfo) -> tuple[int, str]:
        """Returns the bytes that a tensor will take in memory, and why its layout does not take it, or ""."""
        layout = self.plan.get_layout(tensor)
        if layout == "coded":
            return tensor.bytes, ""
        if tensor.file not in self._checkpoints:
            self._checkpoints[tensor.file] = self._files.enter_context(Checkpoint(tensor.file))
        try:
            most = get_load_bytes(self._checkpoints[tensor.file], tensor.name, layout)
        except UnsupportedError as refusal:
            return tensor.bytes, describe_refusal(refusal, tensor)
        assert tensor.layer is not None
        return (layer_packed_bytes(tensor.layer) if layout == "packed" else most), ""

    def _check_missing(self, given: set[str], unknown: list[str]) -> list[str]:
        return check_missing(self.model, self.expected, given, unknown)

    def _rename(self, name: str) -> tuple[str, str | None]:
        """Returns the parameter that the framework would load a tensor into, and its converter's pattern, if any."""
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
        """Plans for the experts modules that can take blobs, and removes their parameters from `groups`."""
        paths = {
            target.rpartition(".")[0] for target, parts in groups.items() if any(p.tensor.compressed for p in parts)
        }
        for path in sorted(paths, key=dot_natural_key):
            module = self.model.get_submodule(path)
            # transformers' decorator puts this attribute on the experts modules that it knows how to run.
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
            wanted = {self.plan.get_layout(part.tensor) for parts in blobs.values() for part in parts}
            layout = next(iter(wanted)) if wanted in ({"packed"}, {"packed8"}) else "coded"
            refusal = find_packing_reason(module, blobs) if layout != "coded" else ""
            if refusal:
                layout = "coded"
                self.plan.refused.update((f"{path}.{name}", refusal) for name in blobs)
            self.plan.experts.append(TakenExperts(path, blobs, layout))
            self.plan.targets.update(f"{path}.{name}" for name in (*names, *blobs))
            for name in names:
                del groups[f"{path}.{name}"]

    def _with_converter(self, parts: list[Part]) -> tuple[list[Part], WeightConverter | None]:
        pattern = parts[0].pattern
        return parts, self._converter_of(pattern) if pattern is not None else None

    def _place(self, target: str, parts: list[Part], tie: str) -> None:
        pattern = parts[0].pattern
        if not any(part.tensor.compressed for part in parts):
            return
        if pattern is not None:
            converter = self._converter_of(pattern)
            steps = ", ".join(type(operation).__name__ for operation in converter.operations)
            self._decode(target, parts, converter, f"the model has it converted ({steps})")
            return
        # Where the names of several tensors become the same the framework takes the first of them.
        if not parts[0].tensor.compressed:
            return
        self.plan.left.update(part.disk_name for part in parts)
        reason = tie or self._find_taker(target, parts[0])
        if reason:
            self._decode(target, parts[:1], None, reason)
        else:
            self.plan.taken.append(Taken(target, parts[0]))
            self.plan.targets.add(target)

    def _find_taker(self, target: str, part: Part) -> str:
        """Enters the module that takes a blob into the plan, and returns ""; returns the reason if there is none."""
        path, _, name = target.rpartition(".")
        module = self.model.get_submodule(path)
        taker, reason = find_taker(module, name, part.tensor, self.plan.get_layout(part.tensor))
        if taker is None:
            return reason
        reader = find_weight_user(self.model, path)
        if reader:
            return f"{reader} reads its weight"
        clearer = find_padding_clearer(self.model, path)
        if clearer:
            return f"{clearer} clears its row of padding"
        wanted = self._dtype_of(target)
        unfit = reject_dtype(part.tensor, wanted)
        if unfit and wanted == self.expected[target].dtype:
            raise make_error(Status.TRF_ERR_ARGUMENT, f"{part.tensor.file}: tensor {part.tensor.name!r}: {unfit}")
        if unfit:
            return f"the model keeps it in {wanted}"
        taker.expect_compute_dtype(wanted)
        num_bytes, refusal = self._get_bytes(part.tensor)
        if refusal:
            self.plan.refused[target] = refusal
        if num_bytes != part.tensor.bytes:
            taker.weight = as_parameter(torch.empty(num_bytes, dtype=torch.uint8, device="meta"))
        self.plan.replaced[path] = taker
        return ""

    def _decode(self, target: str, parts: list[Part], converter: WeightConverter | None, reason: str) -> None:
        self.plan.decoded.append(Decoded(target, parts, converter, reason))
        self.plan.left.update(part.disk_name for part in parts)
        self.plan.targets.update(self._targets_of(target, parts[0].pattern))

    def _leave_mismatched(self, groups: dict[str, list[Part]]) -> None:
        """Leaves parameters whose compressed tensors have another shape to be drawn, if the user said so, or raises."""
        for target, (first, *_) in list(groups.items()):
            wanted, found = self.expected[target].shape, torch.Size(first.tensor.shape)
            if first.pattern is not None or not first.tensor.compressed or wanted == found:
                continue
            if not self.ignore_mismatched_sizes:
                raise make_error(
                    Status.TRF_ERR_SHAPE,
                    f"{first.tensor.file}: tensor {first.tensor.name!r} has shape {list(found)}, and the model's "
                    f"{target!r} has {list(wanted)}",
                )
            self.plan.mismatched.add((target, found, wanted))
            del groups[target]

    def _settle_ties(self, groups: dict[str, list[Part]]) -> dict[str, str]:
        """Decides what becomes of tied parameters if a file has one of them compressed.

        Parameters that no file gives become the same parameter as a given one: the source of the tie, or else the first
        of its members. The framework does so for dense ones. Where several are given the framework compares them, and
        ties them if they are equal. Tensors of the same bytes need no comparison; others are decoded so that the
        framework can compare them.

        Returns
        -------
        dict of str to str
            Parameters that have to be decoded because of a tie, each with the reason.
        """
        reasons: dict[str, str] = {}
        members: dict[str, list[str]] = {}
        for member, source in self.ties.items():
            members.setdefault(source, [source]).append(member)
        for names in members.values():
            there = [name for name in names if name in groups]
            if not any(part.tensor.compressed for name in there for part in groups[name]):
                continue
            first, *rivals = there
            for rival in rivals:
                if self._are_same_bytes(groups[first], groups[rival]):
                    self.plan.left.update(part.disk_name for part in groups.pop(rival))
                else:
                    reasons[rival] = f"it is tied to {first}, which the files have, too"
                    reasons[first] = f"it is tied to {rival}, which the files have, too"
            followers = [name for name in names if name not in groups]
            if first not in reasons and followers:
                reasons[first] = self._follow(first, followers, groups[first])
        return reasons

    def _are_same_bytes(self, ones: list[Part], others: list[Part]) -> bool:
        pairs = [(a.tensor, b.tensor) for a, b in zip(ones, others)]
        if len(ones) != len(others) or len(ones) != 1 or ones[0].pattern is not None or others[0].pattern is not None:
            return False
        return all(a.compressed and b.compressed and a.bytes == b.bytes and have_same_bytes(a, b) for a, b in pairs)

    def _follow(self, first: str, followers: list[str], parts: list[Part]) -> str:
        """Has the modules of followers take the blob of the first, too; returns why not all of them can, or ""."""
        if parts[0].pattern is not None or not parts[0].tensor.compressed:
            return ""
        kept = dict(self.plan.replaced), dict(self.plan.refused)
        for name in (first, *followers):
            reason = self._find_taker(name, parts[0])
            if reason:
                self.plan.replaced, self.plan.refused = kept
                return reason if name == first else f"it is tied to {name}, and {reason}"
        self.plan.followers.update(dict.fromkeys(followers, first))
        self.plan.targets.update(followers)
        return ""


def have_same_bytes(one: TensorInfo, other: TensorInfo) -> bool:
    """Compares the bytes that two tensors have in their files."""
    with open(one.file, "rb") as a, open(other.file, "rb") as b:
        a.seek(one.file_offset)
        b.seek(other.file_offset)
        left = one.bytes
        while left:
            size = min(left, _COMPARED_BYTES)
            if a.read(size) != b.read(size):
                return False
            left -= size
    return True


class NamesPlanner(Planner):
    """Plans for a model whose tensors are at most renamed, as those of diffusers: nothing is converted."""

    def __init__(
        self, model: nn.Module, names: dict[str, str], dtype: torch.dtype | None, kept: Iterable[str] = ()
    ) -> None:
        """`names` maps tensors to parameters; `kept` has the modules that stay in F32 in a model loaded in `dtype`."""
        self.model, self.names = model, names
        self.conversions, self.renamings, self.converters, self.dtype_rules = [], [], [], []
        self.dtype, self.kept = dtype, set(kept)
        self.expected = model.state_dict()
        self.ties = {}
        self.ignore_mismatched_sizes = False
        self.plan = LoadPlan()

    def _check_missing(self, given: set[str], unknown: list[str]) -> list[str]:
        missing = [name for name in self.expected if name not in given]
        if missing:
            raise_unfit(self.model, missing, unknown)
        return []

    def _rename(self, name: str) -> tuple[str, str | None]:
        return self.names.get(name, name), None

    def _dtype_of(self, target: str) -> torch.dtype:
        if self.dtype is not None and self.kept & set(target.split(".")):
            return torch.float32
        return super()._dtype_of(target)
