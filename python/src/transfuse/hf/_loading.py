# SPDX-License-Identifier: Apache-2.0
"""Executes a load plan: blobs go from the files into a model's modules, and what no module takes is decoded."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers.utils import logging

from transfuse._errors import UnsupportedError
from transfuse._layer import PAIR_CLASS_BITS
from transfuse._memory_need import is_scaled_fp8
from transfuse._threads import Cancel, run_on_threads
from transfuse.hf._expert_parts import make_placeholders
from transfuse.hf._load_plan import Decoded, LoadPlan, Part, TakenExperts, describe_refusal
from transfuse.torch import _load, _ops, _registry
from transfuse.torch._buffer_module import BufferModule, note_paths
from transfuse.torch._containers import container_buffers, make_container
from transfuse.torch._dtypes import TORCH_DTYPES
from transfuse.torch._encode import encode
from transfuse.torch._experts import TransfuseExperts, replace_experts
from transfuse.torch._layouts import describe_packed_fp8, describe_refusals
from transfuse.torch._modules import CompressedModule
from transfuse.torch._streams import find_streams

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.get_logger(__name__)

# Reading and checking one blob does not use a machine up, so we read as many at once as transformers reads tensors.
_THREADS = min(4, os.cpu_count() or 4)
# The experts of a module are read while those of another one are packed; more would be in memory twice for nothing.
_PACKED_AT_ONCE = 2
_NAMES_SHOWN = 6


@dataclasses.dataclass(frozen=True)
class _Load:
    """A parameter to load, one layer or a container of several; or all those of a module whose experts are packed."""

    target: str
    parts: list[Part]
    into_container: bool = False
    experts: TakenExperts | None = None


class Loader:
    """Loads what a plan names. `device_of` tells where a parameter goes, by its name."""

    def __init__(self, model: PreTrainedModel, plan: LoadPlan, device_of: Callable[[str], torch.device]) -> None:
        self.model, self.plan, self.device_of = model, plan, device_of
        self._files = ExitStack()
        self._checkpoints: dict[str, _load.Checkpoint] = {}
        self._dense_files: dict[str, Any] = {}
        self._cancel = Cancel()
        self._packing = threading.Semaphore(_PACKED_AT_ONCE)
        self._packed_fp8: dict[str, str] = {}  # FP8 weights that lie packed as BF16, and why

    def run(self) -> None:
        """Loads everything, and warns of what the plan's layout does not take. Ctrl-C ends it within a second.

        Raises
        ------
        TransfuseError
            A tensor failed; the model must not be used then.
        """
        with self._files, logging.tqdm(total=self._num_parts(), desc="Loading compressed weights") as bar:
            self._open_checkpoints()
            self._read_all(self._make_loads(), bar)
            for decoded in self.plan.decoded:
                self._decode(decoded)
                bar.update(len(decoded.parts))
            for follower, first in self.plan.followers.items():
                set_parameter(self.model, follower, get_tensor(self.model, first))
        if self._packed_fp8:
            logger.warning(describe_packed_fp8(self._packed_fp8))
        if self.plan.refused:
            chosen = "what was chosen for them" if self.plan.layouts else self.plan.layout
            logger.warning(describe_refusals(chosen, self.plan.refused))

    def _num_parts(self) -> int:
        experts = sum(len(parts) for each in self.plan.experts for parts in each.blobs.values())
        return len(self.plan.taken) + experts + sum(len(each.parts) for each in self.plan.decoded)

    def _open_checkpoints(self) -> None:
        lists = [[taken.part] for taken in self.plan.taken] + [decoded.parts for decoded in self.plan.decoded]
        lists += [parts for experts in self.plan.experts for parts in experts.blobs.values()]
        for path in {part.tensor.file for parts in lists for part in parts}:
            self._checkpoints[path] = self._files.enter_context(_load.open_checkpoint(path))

    def _make_loads(self) -> list[_Load]:
        loads = [_Load(taken.target, [taken.part]) for taken in self.plan.taken]
        for experts in self.plan.experts:
            if experts.layout != "coded":
                loads.append(
                    _Load(experts.path, [part for parts in experts.blobs.values() for part in parts], True, experts)
                )
            else:
                loads += [_Load(f"{experts.path}.{name}", parts, True) for name, parts in experts.blobs.items()]
        return loads

    def _read_all(self, loads: list[_Load], bar: Any) -> None:
        """Reads layers on several threads, in the order of the files, and sets them as they come."""
        take_over_streams = find_streams()

        def read(load: _Load) -> Callable[[], None]:
            take_over_streams()
            return self._read(load)

        def take(load: _Load, put: Callable[[], None]) -> None:
            put()
            bar.update(len(load.parts))

        loads = sorted(loads, key=lambda load: (load.parts[0].tensor.file, load.parts[0].tensor.file_offset))
        run_on_threads(read, loads, take, num_threads=_THREADS, cancel=self._cancel)

    def _read(self, load: _Load) -> Callable[[], None]:
        """Reads what is to be loaded to the device of its target, adopted; the function that it returns sets it."""
        if load.experts is not None:
            return self._read_packed(load.experts)
        buffer = self._read_buffer(load)
        return lambda: set_parameter(self.model, load.target, nn.Parameter(buffer, requires_grad=False))

    def _read_packed(self, experts: TakenExperts) -> Callable[[], None]:
        """Reads the experts of a module and packs them."""
        loads = {name: _Load(f"{experts.path}.{name}", parts, True) for name, parts in experts.blobs.items()}
        module = self.model.get_submodule(experts.path)
        assert isinstance(module, TransfuseExperts)
        with self._packing:
            coded = {name: self._read_buffer(load) for name, load in loads.items()}
            reason, swap = module.prepare_packed(coded, experts.layout)

        def put_coded() -> None:
            self.plan.refused.update((load.target, reason) for load in loads.values())
            for name, load in loads.items():
                set_parameter(self.model, load.target, nn.Parameter(coded[name], requires_grad=False))

        def put_packed() -> None:
            swap()
            for name in module._buffer_names():
                mark_loaded(getattr(module, name))
            reasons = module.layout_reasons().items()
            self._packed_fp8.update((f"{experts.path}.{name}", reason) for name, reason in reasons)

        return put_coded if reason else put_packed

    def _read_alike(self, load: _Load, sources: list[tuple[_load.Checkpoint, str]], device: torch.device) -> Tensor:
        """Returns a container of BF16 experts of which some were FP8, in tensors of their own.

        Products of experts take one codec, so these are encoded again, as the others are.
        """
        blobs = []
        for source, part in zip(sources, load.parts, strict=True):
            blob = _load.load_layer(*source, "cpu", layout="coded", cancel=self._cancel)
            layer = part.tensor.layer
            assert layer is not None
            if is_scaled_fp8(layer):
                favor = "size" if layer.class_bits == PAIR_CLASS_BITS else "speed"
                dense = _ops.decode(blob, layer.rows, layer.cols, torch.bfloat16)
                blob = encode(dense, codec="bf16", favor=favor)
            blobs.append(blob)
        container = make_container(blobs).to(device)
        _registry.adopt(container)
        return container

    def _read_buffer(self, load: _Load) -> Tensor:
        """Returns a layer's buffer, or a container, on the device of its target, adopted."""
        device = self.device_of(load.target)
        sources = [(self._checkpoints[part.tensor.file], part.tensor.name) for part in load.parts]
        # A 3-D tensor of a file already has all experts.
        if load.into_container and len(load.parts[0].tensor.shape) == 2:
            if len({part.tensor.codec for part in load.parts}) > 1:
                return self._read_alike(load, sources, device)
            return _load.load_experts(sources, device, cancel=self._cancel)
        layout = self.plan.get_layout(load.parts[0].tensor)
        if load.into_container or load.target in self.plan.refused:
            layout = "coded"
        try:
            buffer = _load.load_layer(*sources[0], device, layout=layout, cancel=self._cancel)
            if layout == "packed" and (reason := _registry.layout_reason(buffer)):
                self._packed_fp8[load.target] = reason
            return buffer
        except UnsupportedError as refusal:
            if layout == "coded":
                raise
            self.plan.refused[load.target] = describe_refusal(refusal, load.parts[0].tensor)
        return _load.load_layer(*sources[0], device, cancel=self._cancel)

    def _decode(self, item: Decoded) -> None:
        """Decodes the parts of an item, has the framework convert them, and sets the results."""
        if item.converter is None:
            self._set_dense(item.target, self._read_dense(item.parts[0], item.target))
            return
        converter = copy.deepcopy(item.converter)
        for part in item.parts:
            # The converter calls these when it needs them, so that decoded weights do not pile up beyond one target.
            converter.add_tensor(item.target, part.tensor.name, part.pattern, self._deferred(part, item.target))
        values = converter.convert(item.target, model=self.model, config=self.model.config)
        for name, value in values.items():
            self._set_dense(name, value[0] if isinstance(value, list) else value)

    def _deferred(self, part: Part, target: str) -> Callable[[], Tensor]:
        return lambda: self._read_dense(part, target)

    def _read_dense(self, part: Part, target: str) -> Tensor:
        """Returns a tensor as the source had it, on the device of its target."""
        tensor, device = part.tensor, self.device_of(target)
        if not tensor.compressed:
            if tensor.file not in self._dense_files:
                self._dense_files[tensor.file] = self._files.enter_context(safe_open(tensor.file, framework="pt"))
            return self._dense_files[tensor.file].get_tensor(tensor.name).to(device)  # type: ignore[no-any-return]
        assert tensor.layer is not None
        dtype, (*_, rows, cols) = TORCH_DTYPES[tensor.layer.dtype], tensor.shape
        blob = _load.load_layer(self._checkpoints[tensor.file], tensor.name, device)
        if len(tensor.shape) == 2:
            return _ops.decode(blob, rows, cols, dtype)
        dense = torch.empty(tensor.shape, dtype=dtype, device=device)
        for index, expert in enumerate(container_buffers(blob)):
            dense[index] = _ops.decode(expert, rows, cols, dtype)
        return dense

    def _set_dense(self, target: str, value: Tensor) -> None:
        wanted = get_tensor(self.model, target)
        if wanted.shape != value.shape:
            raise ValueError(f"{target} has shape {list(wanted.shape)}, and the checkpoint gives {list(value.shape)}")
        set_parameter(self.model, target, value.to(self.plan.dtypes[target]))


def set_parameter(model: nn.Module, name: str, value: Tensor) -> None:
    """Sets a parameter or buffer, and marks it as loaded."""
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    if attribute not in module._buffers and not isinstance(value, nn.Parameter):
        value = nn.Parameter(value, requires_grad=value.is_floating_point())
    setattr(module, attribute, mark_loaded(value))


def mark_loaded(value: Tensor) -> Tensor:
    """Returns a parameter or buffer that the framework does not draw at random."""
    value._is_hf_initialized = True  # type: ignore[attr-defined]
    return value


def get_tensor(model: nn.Module, name: str) -> Tensor:
    """Returns a parameter or buffer."""
    path, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(path), attribute)  # type: ignore[no-any-return]


def put_modules(model: nn.Module, plan: LoadPlan) -> None:
    """Puts our modules, still without blobs, in the place of others, under all names that these have."""
    for experts in plan.experts:
        replaced = replace_experts(
            model.get_submodule(experts.path), **make_placeholders(experts.blobs, experts.layout)
        )
        replaced._is_hf_initialized = True  # type: ignore[assignment]
    names = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        names[id(module)].append(name)
    for path, module in plan.replaced.items():
        # Otherwise the framework would call the random initialization of nn.Linear on it.
        module._is_hf_initialized = True  # type: ignore[assignment]
        for name in names[id(model.get_submodule(path))]:
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, module)
    for module in model.modules():
        if isinstance(module, BufferModule):
            module._is_loading = True


def hide_from_framework(model: nn.Module, names: set[str]) -> Any:
    """Hides names in the state dict, by which the framework loads; returns a handle that undoes it."""

    def hide(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name in names:
            state_dict.pop(prefix + name, None)

    return model.register_state_dict_post_hook(hide)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def stand_ins(model: nn.Module) -> Iterator[None]:
    """Makes compressed modules show weights of the shape of the decoded ones, to which nothing can be written.

    The code of a model that draws missing weights sees all modules, loaded ones as well: Whisper asks for the shape of
    its positions, and Kosmos-2 clears a row of an embedding that was compressed in memory. Whatever it writes to loaded
    weights is lost on purpose.
    """
    modules = [module for module in model.modules() if isinstance(module, BufferModule)]
    kept = [dict(module._parameters) for module in modules]
    shown: dict[tuple[int, ...], Any] = {}  # modules that share weights share these, too
    for module in modules:
        buffers = tuple(id(module._parameters.pop(name)) for name in module._buffer_names())
        for number, (name, (shape, dtype)) in enumerate(_describe_dense(module).items()):
            dense = nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)
            module._parameters[name] = shown.setdefault((*buffers, number), mark_loaded(dense))
    try:
        yield
    finally:
        for module, parameters in zip(modules, kept):
            module._parameters.clear()
            module._parameters.update(parameters)


def _describe_dense(module: BufferModule) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Returns shape and dtype of the weights for which a module has buffers."""
    if isinstance(module, TransfuseExperts):
        return {name: (shape, module.dense_dtype) for name, shape in module.dense_shapes().items()}
    assert isinstance(module, CompressedModule)
    return {"weight": (module.weight_shape, module.weight_dtype)}


def end_loading(model: nn.Module) -> None:
    """Lets modules take other weights than those that were loaded again.

    Raises
    ------
    RuntimeError
        No file gave a parameter, or it was taken away again.
    """
    empty = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if empty:
        more = f" and {len(empty) - _NAMES_SHOWN} more" if len(empty) > _NAMES_SHOWN else ""
        raise RuntimeError(
            f"no weights were loaded for {', '.join(empty[:_NAMES_SHOWN])}{more}: they are on the meta device. Call "
            "from_pretrained outside of accelerate's init_empty_weights and the like, which leave models without "
            "weights"
        )
    for module in model.modules():
        if isinstance(module, BufferModule):
            module.__dict__.pop("_is_loading", None)
    note_paths(model)


def compressed_parameters(model: PreTrainedModel) -> dict[str, BufferModule]:
    """Returns the modules with compressed parameters by the names that a state dict has; each name has an entry."""
    modules = [(p, m) for p, m in model.named_modules(remove_duplicate=False) if isinstance(m, BufferModule)]
    return {f"{path}.{name}": module for path, module in modules for name in module._state_names()}


def warn_of_decoded(plan: LoadPlan) -> None:
    """Names the weights that take as much memory as in the uncompressed model, by their reasons."""
    names = defaultdict(list)
    for item in plan.decoded:
        names[item.reason].append(item.target)
    for reason, targets in names.items():
        more = f" and {len(targets) - _NAMES_SHOWN} more" if len(targets) > _NAMES_SHOWN else ""
        logger.warning(f"decoded at load, since {reason}: {', '.join(targets[:_NAMES_SHOWN])}{more}")
