# SPDX-License-Identifier: Apache-2.0
"""Containers of packed experts: made of dense or coded ones, and encoded again.

`transfuse::moe` wants rows of gate and up in turns, 8 of each, in one matrix. A container's head says whether its rows
lie so; whatever decodes it gives them back in the order that they had.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from transfuse import _structs as s
from transfuse._errors import MismatchError, Status, UnsupportedError, make_error
from transfuse._memory_need import is_scaled_fp8, packed_bytes
from transfuse._results import LayerInfo
from transfuse.torch import _ops, _registry
from transfuse.torch._containers import (
    ROWS_AS_GIVEN,
    ROWS_INTERLEAVED,
    container_buffers,
    is_container,
    make_container,
    place_buffers,
    read_order,
    write_head,
)
from transfuse.torch._dtypes import BF16_CODINGS, TORCH_DTYPES
from transfuse.torch._encode import encode, encode_like

# Rows of gate, or of up, that follow each other.
_TURN = 8
# Inner and hidden size are multiples of this.
_SIDE = 8
# The most experts of a token, and the most of a layer on a GPU, that a mixture takes.
MOST_ROUTES = 32
_MOST_EXPERTS = 512
_CAPABILITY = (9, 0)
# A container gets this many times the room that was expected where experts take more.
_GROWTH = 1.03

# The activations of gates that mixtures have, by the classes of torch and transformers.
_ACTIVATIONS = {"SiLU": "silu", "SiLUActivation": "silu", "GELUTanh": "gelu_tanh", "PytorchGELUTanh": "gelu_tanh"}


def pack_experts(*weights: Tensor, interleave: bool, packed_bf16: bool = False) -> Tensor:
    """Packs experts losslessly, one at a time, on the device where they lie.

    Parameters
    ----------
    *weights : Tensor, bfloat16, [experts][rows][cols]; or a container of BF16 experts, uint8, [container_bytes]
        One, or gate and up, whose rows follow each other in the packed experts. They are only read. An expert of a
        container is decoded, which takes the memory of one dense expert.
    interleave : bool
        Whether the first half of an expert's rows is gate and the second up, which are to lie in turns, as `moe` takes
        them. The number of rows is a multiple of 16 then.
    packed_bf16 : bool
        Whether experts lie "packed", also where they were FP8.

    Returns
    -------
    Tensor, uint8, [container_bytes]
        A container of packed experts, known to the ops. Coded experts of FP8 with scales, and dense ones that were FP8
        as `pack` finds it, lie "packed8"; if one of them does not fit that layout, or is no FP8, all lie "packed", as
        BF16, and `layout_reason` and a warning say why. Where neither the first nor the last dense expert is FP8, they
        are taken for what never was.

    Raises
    ------
    TypeError, ValueError
        These are no such experts, they do not fit together, or their rows cannot be interleaved.
    UnsupportedError
        The weights cannot be packed: they are not BF16, or their exponents lie too far apart. The message names the
        expert.
    RuntimeError
        A CUDA graph is being captured.
    TransfuseError
        A container is corrupt, or memory is short.
    """
    container = pack_experts_quietly(*weights, interleave=interleave, packed_bf16=packed_bf16)
    if reason := _registry.layout_reason(container):
        warnings.warn(f"FP8 experts are packed as BF16: {reason}", stacklevel=2)
    return container


def pack_experts_quietly(*weights: Tensor, interleave: bool, packed_bf16: bool = False) -> Tensor:
    """Does what `pack_experts` does, without a warning."""
    parts = _open_parts(weights, interleave)
    rows, first, reason = sum(part.rows for part in parts), parts[0], ""
    try:
        container = None if packed_bf16 else _pack_as_fp8(parts, interleave)
        if container is not None:
            return container
    except UnsupportedError as refusal:
        reason = refusal.message
    writer = _Writer(first.count, packed_bytes(rows, first.cols), first.device)
    for index in range(first.count):
        matrix = _take_rows(parts, index)
        try:
            writer.add(_registry.pack(_interleave(matrix) if interleave else matrix, packed_bf16=True))
        except UnsupportedError as refusal:
            raise make_error(Status.TRF_ERR_UNSUPPORTED, f"expert {index}: {refusal.message}") from refusal
    container = _end_container(writer, interleave)
    if reason:
        _registry.note_layout_reason(container, reason)
    return container


def pack_fp8_experts(*weights: Tensor, interleave: bool) -> Tensor:
    """Does what `pack_experts` does, but packs as FP8 alone: containers of coded FP8 experts with scales.

    Raises
    ------
    UnsupportedError
        They are others, or one of them does not fit.
    """
    parts = _open_parts(weights, interleave)
    if not all(part.is_fp8 for part in parts):
        raise make_error(Status.TRF_ERR_UNSUPPORTED, "the experts are no coded FP8 with scales")
    return _pack_fp8(parts, interleave)


def encode_packed(container: Tensor, infos: Sequence[LayerInfo | None], *, is_interleaved: bool) -> list[Tensor]:
    """Encodes packed experts to coded ones, on the CPU, whose rows have the order that they had before.

    Parameters
    ----------
    container : Tensor, uint8, [container_bytes]
        A container of packed experts.
    infos : sequence of LayerInfo or None
        For each container that is to be made, of as many rows each, how it was encoded; None: the encoder's defaults.
    is_interleaved : bool
        Whether rows of gate and up lie in turns, as they were packed. The container's head, whose memory may have
        changed since it was adopted, is not asked.

    Returns
    -------
    list of Tensor, uint8, [container_bytes]
        Containers on the CPU, not yet known to the ops.
    """
    blobs: list[list[Tensor]] = [[] for _ in infos]
    for buffer, about in zip(container_buffers(container), _registry.expert_infos(container)):
        dense = _ops.decode(buffer, about.rows, about.cols, TORCH_DTYPES[about.dtype])
        if is_interleaved:
            dense = _put_apart(dense)
        for made, info, matrix in zip(blobs, infos, dense.chunk(len(infos))):
            made.append(encode(matrix) if info is None else encode_like(matrix, info))
    return [make_container(each) for each in blobs]


def find_packing_obstacle(module: nn.Module, device: torch.device) -> str | None:
    """Returns why the experts of a module of transformers cannot run packed on a device, or None.

    It looks at shapes and attributes, so the module may be on the meta device, and nothing of its weights. `module` is
    one for which `find_experts_obstacle` returns None, or a compressed one.
    """
    if not module.has_gate or not module.is_concatenated:
        return "packed experts have a gate, whose rows lie before those of up"
    if getattr(module._apply_gate, "__name__", "") != "_default_apply_gate":
        return "packed experts have no gate but activation(gate) * up"
    if name_activation(module) is None:
        return f"packed experts have the activations silu and gelu_tanh, and not {type(module.act_fn).__name__}"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) != _CAPABILITY:
        return "packed experts need a GPU of compute capability 9.0"
    return None


def find_shape_obstacle(shape: Sequence[int], device: torch.device) -> str | None:
    """Returns why gate and up of [experts][2 x intermediate][hidden] cannot be multiplied by packed, or None."""
    inner, hidden = shape[1] // 2, shape[2]
    if device.type == "cuda" and shape[0] > _MOST_EXPERTS:
        return f"there are {shape[0]} experts, and a GPU takes {_MOST_EXPERTS} packed ones"
    if inner % _SIDE or hidden % _SIDE:
        return f"sizes of packed experts are multiples of {_SIDE}, and not {inner} and {hidden}"
    return None


def name_activation(module: nn.Module) -> str | None:
    """Returns what `moe` calls the activation of a module's gate; None if it has it not."""
    act_fn = module.act_fn
    if isinstance(act_fn, nn.GELU):
        return "gelu_tanh" if act_fn.approximate == "tanh" else None
    return _ACTIVATIONS.get(type(act_fn).__name__)


@dataclasses.dataclass(frozen=True)
class _Part:
    """Experts of one tensor; `take` gives one of them, dense."""

    count: int
    rows: int
    cols: int
    device: torch.device
    take: Callable[[int], Tensor]
    # The coded layers of FP8 experts with scales; none of any others.
    fp8: tuple[Tensor, ...] = ()
    # Whether FP8 may be found in the experts: those that are dense, or packed FP8.
    is_searched: bool = False

    @property
    def is_fp8(self) -> bool:
        return bool(self.fp8)


def _open_parts(weights: Sequence[Tensor], interleave: bool) -> list[_Part]:
    """Opens what is to be packed together, and checks that it fits."""
    parts = [_open_part(each) for each in weights]
    if not parts:
        raise ValueError("pack_experts needs the weights of experts")
    first = parts[0]
    if any((part.count, part.cols, part.device) != (first.count, first.cols, first.device) for part in parts):
        listed = ", ".join(f"{part.count} of {part.rows} x {part.cols} on {part.device}" for part in parts)
        raise ValueError(f"experts whose rows follow each other differ: {listed}")
    rows = sum(part.rows for part in parts)
    if interleave and rows % (2 * _TURN):
        raise ValueError(f"gate and up of {rows} rows in all cannot take turns by {_TURN} rows")
    return parts


def _open_part(weights: Tensor) -> _Part:
    if not isinstance(weights, Tensor):
        raise TypeError(f"experts are a torch.Tensor, not a {type(weights).__name__}")
    if weights.dim() == 3 and weights.numel():
        count, rows, cols = weights.shape
        return _Part(count, rows, cols, weights.device, lambda index: weights.detach()[index], is_searched=True)
    if weights.dim() != 1 or weights.dtype != torch.uint8 or not is_container(bytes(weights[:4].tolist())):
        raise ValueError(
            "experts are a tensor of [experts][rows][cols] that has weights, or a container; this is "
            f"{weights.dtype} of shape {tuple(weights.shape)}"
        )
    infos = _registry.expert_infos(weights)
    about = infos[0]
    other = next((info for info in infos if (info.codec, info.dtype) not in BF16_CODINGS), None)
    if other is not None:
        raise make_error(
            Status.TRF_ERR_UNSUPPORTED, f"packed layers are of BF16, and not of {other.codec} and {other.dtype}"
        )
    buffers, is_interleaved = container_buffers(weights), read_order(weights) == ROWS_INTERLEAVED

    def take(index: int) -> Tensor:
        dense = _ops.decode(buffers[index], about.rows, about.cols, torch.bfloat16)
        _registry.check_decoded(buffers[index])
        return _put_apart(dense) if is_interleaved else dense

    layouts = {_registry.layer_layout(buffer) for buffer in buffers}
    fp8 = tuple(buffers) if layouts == {"coded"} and all(is_scaled_fp8(info) for info in infos) else ()
    return _Part(len(infos), about.rows, about.cols, weights.device, take, fp8, layouts == {"packed8"})


def _pack_as_fp8(parts: list[_Part], interleave: bool) -> Tensor | None:
    """Packs experts as FP8 if they are that; raises UnsupportedError if only some are, or one does not fit."""
    if all(part.is_fp8 for part in parts):
        return _pack_fp8(parts, interleave)
    if any(part.is_fp8 for part in parts):
        raise make_error(Status.TRF_ERR_UNSUPPORTED, "of gate and up only one is FP8")
    if all(part.is_searched for part in parts):
        return _pack_dense_fp8(parts, interleave)
    return None


def _take_rows(parts: list[_Part], index: int) -> Tensor:
    """Returns an expert, dense, with the rows of all parts."""
    matrices = [part.take(index) for part in parts]
    return matrices[0] if len(matrices) == 1 else torch.cat(matrices)


def _pack_dense_fp8(parts: list[_Part], interleave: bool) -> Tensor | None:
    """Does what `_pack_as_fp8` does for dense experts, which are searched for FP8."""

    def pack(index: int) -> Tensor:
        matrix = _take_rows(parts, index)
        if interleave:
            return _registry.pack_gate_up(matrix)
        layer = _registry.pack(matrix)
        if _registry.layer_layout(layer) == "packed8":
            return layer
        if reason := _registry.layout_reason(layer):
            raise make_error(Status.TRF_ERR_UNSUPPORTED, reason)
        raise make_error(Status.TRF_ERR_MISMATCH, "the weights are no codes times scales of 128x128 of them")

    def is_fp8(index: int) -> bool:
        try:
            pack(index)
        except MismatchError:
            return False
        except UnsupportedError:
            pass
        return True

    first = parts[0]
    writer: _Writer | None = None
    for index in range(first.count):
        try:
            layer = pack(index)
        except (MismatchError, UnsupportedError) as refusal:
            if isinstance(refusal, MismatchError) and index == 0 and not is_fp8(first.count - 1):
                return None
            raise make_error(Status.TRF_ERR_UNSUPPORTED, f"expert {index}: {refusal.message}") from refusal
        writer = writer or _Writer(first.count, layer.numel(), first.device)
        writer.add(layer)
    return _end_container(writer, interleave)


def _end_container(writer: _Writer | None, interleave: bool) -> Tensor:
    assert writer is not None
    container = writer.end(ROWS_INTERLEAVED if interleave else ROWS_AS_GIVEN)
    _registry.adopt(container)
    return container


def _pack_fp8(parts: list[_Part], interleave: bool) -> Tensor:
    """Packs coded FP8 experts with their scales; raises UnsupportedError if one does not fit."""
    if len(parts) > 2 or (len(parts) == 2 and not interleave):
        raise make_error(Status.TRF_ERR_UNSUPPORTED, "rows of several tensors are packed as FP8 in turns")
    first = parts[0]
    writer: _Writer | None = None
    for index in range(first.count):
        layers = [part.fp8[index] for part in parts]
        try:
            layer = (
                _registry.convert_gate_up(layers[0], layers[1] if len(layers) > 1 else None)
                if interleave
                else _registry.convert(layers[0], s.Layout.PACKED8)
            )
        except UnsupportedError as refusal:
            raise make_error(Status.TRF_ERR_UNSUPPORTED, f"expert {index}: {refusal.message}") from refusal
        writer = writer or _Writer(first.count, layer.numel(), first.device)
        writer.add(layer)
    return _end_container(writer, interleave)


def _interleave(matrix: Tensor) -> Tensor:
    """Puts rows of gate and up, one half each, in turns."""
    rows, cols = matrix.shape
    return matrix.reshape(2, rows // (2 * _TURN), _TURN, cols).transpose(0, 1).reshape(rows, cols)


def _put_apart(matrix: Tensor) -> Tensor:
    """Undoes `_interleave`."""
    rows, cols = matrix.shape
    return matrix.view(rows // (2 * _TURN), 2, _TURN, cols).transpose(0, 1).reshape(rows, cols)


class _Writer:
    """Puts layers into a container as they come, so that no more than one of them is in memory twice.

    Nearly all layers of one shape are equally large. If one is larger, the container gets new memory with more room.
    """

    def __init__(self, count: int, expected_bytes: int, device: torch.device) -> None:
        self._sizes: list[int] = []
        self._expected = [expected_bytes] * count
        total = place_buffers(self._expected)[1]
        self._memory = torch.empty(total, dtype=torch.uint8, device=device)

    def add(self, layer: Tensor) -> None:
        index = len(self._sizes)
        self._sizes.append(layer.numel())
        to_come = self._expected[index + 1 :]
        offsets, total = place_buffers(self._sizes + to_come)
        if total > self._memory.numel():
            before = self._memory
            self._memory = torch.empty(int(total * _GROWTH), dtype=torch.uint8, device=before.device)
            self._memory[: offsets[index]].copy_(before[: offsets[index]])
        self._memory[offsets[index] : offsets[index] + layer.numel()].copy_(layer)

    def end(self, order: int) -> Tensor:
        offsets, total = place_buffers(self._sizes)
        container = self._memory[:total]
        write_head(container, offsets, self._sizes, order)
        return container
