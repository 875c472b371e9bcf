# SPDX-License-Identifier: Apache-2.0
"""Sorts the tensors of a mixture of experts into the blobs that a compressed experts module takes.

Files have the experts one by one (`experts.3.w1.weight`), which the framework merges to `gate_up_proj` and `down_proj`,
or have these 3-D tensors themselves. The compressed module keeps gate and up apart where the files do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter

from transfuse._checkpoint import TensorInfo
from transfuse._memory_need import layer_packed_bytes
from transfuse.hf._module_kinds import multiplies
from transfuse.torch._dtypes import BF16_CODINGS
from transfuse.torch._experts import find_experts_obstacle
from transfuse.torch._packed_experts import find_packing_obstacle, find_shape_obstacle

if TYPE_CHECKING:
    from transfuse.hf._load_plan import Part

# The alignment of buffers in a container, and the bytes that its head takes for each expert.
_ALIGNMENT = 256
_HEAD_BYTES = 16


class CannotTake(Exception):
    """The experts of a module must be decoded; the text says why."""


def sort_experts(
    module: nn.Module,
    weights: dict[str, tuple[list[Part], WeightConverter | None]],
    dtype: torch.dtype,
) -> dict[str, list[Part]]:
    """Returns the parts of each blob of a compressed experts module, in the order of the experts.

    Parameters
    ----------
    module : nn.Module
        The model's experts module, dense and on the meta device.
    weights : dict
        The tensors of each of its parameters, and the converter that the framework would merge them by, if any.
    dtype : torch.dtype
        The dtype of the model's activations.

    Returns
    -------
    dict of str to list of Part
        The parts by "gate_proj", "up_proj", "down_proj" or "gate_up_proj"; a single part is a 3-D tensor of all
        experts.

    Raises
    ------
    CannotTake
    """
    obstacle = find_experts_obstacle(module)
    if obstacle:
        raise CannotTake(obstacle)
    sorted_parts: dict[str, list[Part]] = {}
    for name, parameter in module.named_parameters(recurse=False):
        if name not in weights:
            raise CannotTake(f"there are no files for its {name}")
        parts, converter = weights[name]
        blobs = {name: parts[-1:]} if converter is None else _split(module, name, parts, converter)
        for key, blob in blobs.items():
            shape = _shape_of(parameter, len(blobs))
            _check(key, blob, shape, dtype)
        sorted_parts.update(blobs)
    return sorted_parts


def find_packing_reason(module: nn.Module, sorted_parts: dict[str, list[Part]]) -> str:
    """Returns why the experts of a module, dense and on the meta device, cannot be packed, or "".

    What depends on the device and on the weights shows only when they are loaded.
    """
    nowhere = torch.device("meta")
    reason = find_packing_obstacle(module, nowhere)
    reason = reason or find_shape_obstacle(module.get_parameter("gate_up_proj").shape, nowhere)
    tensors = [part.tensor for parts in sorted_parts.values() for part in parts]
    other = next((tensor for tensor in tensors if (tensor.codec, tensor.dtype) not in BF16_CODINGS), None)
    if not reason and other is not None:
        reason = f"packed layers are of BF16, and not of {other.codec} and {other.dtype}"
    return reason or ""


def make_placeholders(sorted_parts: dict[str, list[Part]], layout: str) -> dict[str, Any]:
    """Returns the arguments of `replace_experts` on the meta device, about as large as they will be."""
    sizes = {name: sum(_count_bytes(part.tensor, layout) for part in parts) for name, parts in sorted_parts.items()}
    return {
        name.removesuffix("_proj"): torch.empty(size, dtype=torch.uint8, device="meta") for name, size in sizes.items()
    }


def _count_bytes(tensor: TensorInfo, layout: str) -> int:
    """Returns how many bytes of a container one expert takes, or all those of a 3-D tensor."""
    if layout == "coded" or tensor.layer is None:
        return _aligned(tensor.bytes) + _HEAD_BYTES
    return math.prod(tensor.shape[:-2]) * (_aligned(layer_packed_bytes(tensor.layer)) + _HEAD_BYTES)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _split(module: nn.Module, name: str, parts: list[Part], converter: WeightConverter) -> dict[str, list[Part]]:
    """Returns the parts by blob, if the converter only merges experts, and puts gate and up together."""
    steps = [(type(operation), getattr(operation, "dim", None)) for operation in converter.operations]
    patterns = list(converter.source_patterns)
    if steps == [(MergeModulelist, 0)] and len(patterns) == 1:
        return {name: parts}
    if steps == [(MergeModulelist, 0), (Concatenate, 1)] and len(patterns) == 2 and name == "gate_up_proj":
        if not module.is_concatenated:
            raise CannotTake("it keeps the rows of gate and up in turns")
        keys = ("gate_proj", "up_proj")
        return {key: [p for p in parts if p.pattern == pattern] for key, pattern in zip(keys, patterns)}
    raise CannotTake(f"the model has it converted ({', '.join(kind.__name__ for kind, _ in steps)})")


def _shape_of(parameter: torch.Tensor, blobs: int) -> tuple[int, int, int]:
    experts, rows, cols = parameter.shape
    return experts, rows // blobs, cols


def _check(name: str, parts: Sequence[Part], shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    tensors = [part.tensor for part in parts]
    if not all(tensor.compressed for tensor in tensors):
        raise CannotTake("not all of its experts are compressed")
    whole = len(tensors) == 1 and tensors[0].shape == shape
    if not whole and (len(tensors) != shape[0] or any(tensor.shape != shape[1:] for tensor in tensors)):
        raise CannotTake(f"its {name} is not {shape[0]} experts of {shape[1]} x {shape[2]} in the files")
    if len({_traits(tensor) for tensor in tensors}) > 1:
        raise CannotTake(f"the experts of its {name} are coded in several ways")
    if not multiplies(tensors[0], dtype):
        raise CannotTake(f"experts of the codec {tensors[0].codec} do not multiply {dtype}")


def _traits(tensor: TensorInfo) -> tuple[object, ...]:
    """Returns the properties that experts have to share to be multiplied at once."""
    layer = tensor.layer
    assert layer is not None
    coding = layer.codec, layer.class_bits, layer.raw_bits, layer.state_bits, layer.slab_cols
    return (*coding, layer.dtype, layer.granularity)
