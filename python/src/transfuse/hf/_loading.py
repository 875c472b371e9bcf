# SPDX-License-Identifier: Apache-2.0
"""Carries out a load plan: the blobs go from the files into a model's modules, and what no module takes is decoded."""

from __future__ import annotations

import copy
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers.utils import logging

from transfuse.hf._load_plan import Decoded, LoadPlan, Part, Taken
from transfuse.torch import _ops, _registry
from transfuse.torch._modules import TORCH_DTYPES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.get_logger(__name__)

# Reading and checking one blob does not use a machine up; as many at once as transformers reads tensors.
_THREADS = min(4, os.cpu_count() or 4)
_NAMES_SHOWN = 6


class Loader:
    """Loads what a plan names. `device_of` tells where the parameter of a name goes."""

    def __init__(self, model: PreTrainedModel, plan: LoadPlan, device_of: Callable[[str], torch.device]) -> None:
        self.model, self.plan, self.device_of = model, plan, device_of
        self._files = ExitStack()
        self._open_files: dict[str, Any] = {}

    def run(self) -> None:
        """Loads everything.

        Ctrl-C ends it when the blobs that are being read at the moment are done.

        Raises
        ------
        TransfuseError
            Of any tensor; the model is not to be used then.
        """
        with self._files, logging.tqdm(total=self._num_parts(), desc="Loading compressed weights") as bar:
            for taken, blob in self._read_all(self.plan.taken):
                set_parameter(self.model, taken.target, nn.Parameter(blob, requires_grad=False))
                bar.update(1)
            for decoded in self.plan.decoded:
                self._decode(decoded)
                bar.update(len(decoded.parts))

    def _num_parts(self) -> int:
        return len(self.plan.taken) + sum(len(each.parts) for each in self.plan.decoded)

    def _read_all(self, items: list[Taken]) -> Iterator[tuple[Taken, Tensor]]:
        """Reads blobs on several threads, in the order of the files, and gives them as they come."""
        order = iter(sorted(items, key=lambda item: (item.part.tensor.file, item.part.tensor.file_offset)))
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="transfuse")
        running: dict[Future[Tensor], Taken] = {}
        try:
            while True:
                # No more at once than there are threads, so that little is left to do once somebody interrupts.
                for item in order:
                    running[pool.submit(self._read, item.part, item.target)] = item
                    if len(running) > _THREADS:
                        break
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, part: Part, target: str) -> Tensor:
        """Returns a blob on the device of its target, validated and registered."""
        return _registry.load_blob(part.tensor.file, part.tensor.name, self.device_of(target))

    def _decode(self, item: Decoded) -> None:
        """Decodes the parts of an item, has the host convert them, and sets what comes of it."""
        if item.converter is None:
            self._set_dense(item.target, self._read_dense(item.parts[0], item.target))
            return
        converter = copy.deepcopy(item.converter)
        for part in item.parts:
            # The converter calls them when it comes to them: decoded weights do not pile up beyond one target.
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
            if tensor.file not in self._open_files:
                self._open_files[tensor.file] = self._files.enter_context(safe_open(tensor.file, framework="pt"))
            return self._open_files[tensor.file].get_tensor(tensor.name).to(device)
        assert tensor.layer is not None
        dtype, (*_, rows, cols) = TORCH_DTYPES[tensor.layer.dtype], tensor.shape
        if len(tensor.shape) == 2:
            return _ops.decode(self._read(part, target), rows, cols, dtype)
        dense = torch.empty(tensor.shape, dtype=dtype, device=device)
        for index in range(tensor.shape[0]):
            name = f"{tensor.name}[{index}]"
            blob = _registry.load_blob(tensor.file, name, device)
            dense[index] = _ops.decode(blob, rows, cols, dtype)
        return dense

    def _set_dense(self, target: str, value: Tensor) -> None:
        wanted = get_tensor(self.model, target)
        if wanted.shape != value.shape:
            raise ValueError(f"{target} has shape {list(wanted.shape)}, and the checkpoint gives {list(value.shape)}")
        set_parameter(self.model, target, value.to(self.plan.dtypes[target]))


def set_parameter(model: nn.Module, name: str, value: Tensor) -> None:
    """Sets a parameter or buffer, marked so that the host does not draw it at random."""
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    if attribute not in module._buffers and not isinstance(value, nn.Parameter):
        value = nn.Parameter(value, requires_grad=value.is_floating_point())
    value._is_hf_initialized = True  # type: ignore[attr-defined]
    setattr(module, attribute, value)


def get_tensor(model: nn.Module, name: str) -> Tensor:
    """Returns a parameter or buffer."""
    path, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(path), attribute)  # type: ignore[no-any-return]


def put_modules(model: nn.Module, modules: dict[str, nn.Module]) -> None:
    """Puts modules in the place of others; one that has several names is replaced by all of them."""
    names = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        names[id(module)].append(name)
    for path, module in modules.items():
        # The host would call the random initialization of nn.Linear on it.
        module._is_hf_initialized = True  # type: ignore[assignment]
        for name in names[id(model.get_submodule(path))]:
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, module)


def warn_of_decoded(plan: LoadPlan) -> None:
    """Names the weights that take as much memory as in the uncompressed model, by their reasons."""
    names = defaultdict(list)
    for item in plan.decoded:
        names[item.reason].append(item.target)
    for reason, targets in names.items():
        more = f" and {len(targets) - _NAMES_SHOWN} more" if len(targets) > _NAMES_SHOWN else ""
        logger.warning(f"decoded at load, since {reason}: {', '.join(targets[:_NAMES_SHOWN])}{more}")

