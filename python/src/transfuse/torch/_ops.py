# SPDX-License-Identifier: Apache-2.0
"""The ops on compressed layers, as functions for products, decoding and the look-up of rows.

All of them trace under `torch.compile(fullgraph=True)`. A layer is given as its buffer, a uint8 tensor, together with
the shape of its weights. The shape cannot be read from the buffer while a graph is traced; the op checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from transfuse._options import check_flag
from transfuse.torch._ops_library import ops_library
from transfuse.torch._registry import KEY_BYTES, adopt_kernel

ops_library()
_library = torch.library.Library("transfuse", "FRAGMENT")
_linear = torch.ops.transfuse.linear.default
_linear_group = torch.ops.transfuse.linear_group.default
_experts = torch.ops.transfuse.experts.default
_moe = torch.ops.transfuse.moe.default
_moe_by_key = torch.ops.transfuse.moe_by_key.default
_decode = torch.ops.transfuse.decode.default
_decode_experts = torch.ops.transfuse.decode_experts.default
_decode_experts_into = torch.ops.transfuse.decode_experts_into.default
_embedding = torch.ops.transfuse.embedding.default
_linear_by_key = torch.ops.transfuse.linear_by_key.default
_decode_by_key = torch.ops.transfuse.decode_by_key.default
_embedding_by_key = torch.ops.transfuse.embedding_by_key.default

# `linear` reads this, so that graphs are guarded by it: a switch recompiles them.
_exact = False


def set_exact(exact: bool) -> None:
    """Switches exact mode on or off, for the whole process.

    In exact mode products are `F.linear` of the decoded weights: with lossless codecs they are bit for bit what the
    uncompressed model gives on the same machine, but slow. Compiled models are compiled anew at their next call, except
    for ops that take keys, which check the mode when they run. A CUDA graph keeps what it has captured.
    """
    global _exact
    _exact = bool(check_flag(exact, "exact"))
    ops_library().trf_torch_set_exact(_exact)


def is_exact() -> bool:
    """Returns whether exact mode is on."""
    return _exact


def linear(x: torch.Tensor, buffer: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
    """Multiplies by a compressed layer: y = x . W^T + bias.

    Parameters
    ----------
    x : torch.Tensor, [..., cols]
        BF16 or F16, whichever the codec multiplies (BF16 for bf16, F16 for fp16, either for fp8 and int), on the CPU or
        a CUDA device. For any other float dtype the layer is decoded to it, and torch multiplies: the same values, at
        the cost of a dense matrix while the call runs. Under `torch.autocast` x is cast as `F.linear`'s.
    buffer : torch.Tensor, uint8, [buffer_bytes]
    bias : torch.Tensor, [rows], or None
        Its dtype is x's.
    rows : int
        The number of the layer's rows.

    Returns
    -------
    torch.Tensor, [..., rows]
        y, whose dtype is x's, with a gradient with respect to x and bias. Within forward-mode differentiation
        (`torch.func.jvp`, `torch.autograd.forward_ad`) it is `F.linear` of the decoded weights.

    Raises
    ------
    RuntimeError
        Shapes, dtypes or devices do not fit; the layer is corrupt, or unknown while a CUDA graph is captured.
    """
    if _exact or _needs_gradients(x, bias):
        return _linear_by_torch(x, buffer, bias, rows)
    result: torch.Tensor = _linear(x, buffer, bias, rows)
    return result


def decode(buffer: torch.Tensor, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """Decodes a layer.

    Returns
    -------
    torch.Tensor, [rows][cols]
        The weights as `transfuse decompress` gives them (for lossless codecs the source's bits, for int on floats
        rounded once to the source's dtype), converted to `dtype`.
    """
    result: torch.Tensor = _decode(buffer, rows, cols, dtype)
    return result


def embedding(ids: torch.Tensor, buffer: torch.Tensor, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """Decodes single rows, as for token embeddings.

    Parameters
    ----------
    ids : torch.Tensor, int32 or int64, of any shape
        Row numbers, which may repeat. One that does not exist is an IndexError on the CPU; on a CUDA device, whose
        memory is not read back, its row becomes NaN (zeros if weights are integers).

    Returns
    -------
    torch.Tensor, [*ids.shape, cols]
        Rows of what `decode` gives.
    """
    result: torch.Tensor = _embedding(ids, buffer, rows, cols, dtype)
    return result


def linear_group(x: torch.Tensor, buffers: Sequence[torch.Tensor], rows: Sequence[int]) -> list[torch.Tensor]:
    """Multiplies by several layers that have one x, such as q, k and v, on a GPU in shared launches where that is
    estimated to be faster.

    Parameters
    ----------
    x : torch.Tensor, [..., cols]
        As in `linear`, with a gradient, too.
    buffers : sequence of torch.Tensor, uint8, [buffer_bytes]
    rows : sequence of int
        The number of rows of each layer.

    Returns
    -------
    list of torch.Tensor, [..., rows[i]]
        Their dtype is x's. If layers share a launch, sums are added in another order than in `linear`.
    """
    if _exact or _needs_gradients(x, None):
        return [linear(x, buffer, None, count) for buffer, count in zip(buffers, rows, strict=True)]
    results: list[torch.Tensor] = _linear_group(x, list(buffers), list(rows))
    return results


def experts(x: torch.Tensor, offsets: torch.Tensor, container: torch.Tensor, rows: int) -> torch.Tensor:
    """Multiplies tokens by the experts that they belong to: y[t] = x[t] . W(e)^T for offsets[e] <= t < offsets[e + 1].

    Parameters
    ----------
    x : torch.Tensor, [tokens][cols]
        Tokens, sorted by expert, of a dtype that the codec multiplies, as in `linear`.
    offsets : torch.Tensor, int32, [experts + 1]
        On x's device, not decreasing; the last one is at most `tokens`. It is not read back from a GPU.
    container : torch.Tensor, uint8, [container_bytes]
        What `make_container` returned.
    rows : int
        The number of rows of each expert.

    Returns
    -------
    torch.Tensor, [tokens][rows]
        y, whose dtype is x's. Rows that no expert has are uninitialized.

    Raises
    ------
    RuntimeError
        As in `linear`; also if x requires a gradient or exact mode is on (use `decode_experts` then), or if
        `check_experts_dtype` refuses the experts.
    """
    if _exact or _needs_gradients(x, None):
        raise RuntimeError("experts has neither gradients nor an exact mode; multiply by what decode_experts gives")
    result: torch.Tensor = _experts(x, offsets, container, rows)
    return result


def moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    expert_map: torch.Tensor | None = None,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    activation: str = "silu",
    num_ids: int = 0,
    up: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes a whole mixture: y[t] = sum over i of weights[t][i] * down(activation(gate(x[t])) * up(x[t])) of the
    expert ids[t][i].

    Nothing is read back from a GPU, so the call can be captured in a CUDA graph. Ids that are out of range add nothing.
    Coded experts on a GPU are for many tokens: each call packs all of them to a workspace of 12.6 bits a weight of gate
    and up. The first call of such a mixture waits for the device, and cannot be captured.

    Parameters
    ----------
    x : torch.Tensor, bfloat16, [tokens][hidden]
    ids : torch.Tensor, int32 or int64, [tokens][k]
        The experts of each token; k is 32 at most.
    weights : torch.Tensor, float32, [tokens][k]
    gate_up : torch.Tensor, uint8, [container_bytes]
        BF16 experts of [2 x intermediate][hidden]: packed ones that `pack_experts(..., interleave=True)` made, or coded
        ones. A GPU's compute capability is 9.0.
    down : torch.Tensor, uint8, [container_bytes]
        As many experts of [hidden][intermediate] in the same layout; packed ones are those of
        `pack_experts(..., interleave=False)`.
    expert_map : torch.Tensor, int32, [num_ids], or None
        Which of the experts here an id means, or -1 for one that is elsewhere and adds nothing.
    gate_up_bias, down_bias : torch.Tensor, bfloat16, [experts][rows], or None
        The former has 8 rows of gate and 8 of up in turns, however they lie in gate_up.
    activation : str
        "silu" or "gelu_tanh": of the gate.
    num_ids : int
        How many experts there are everywhere, which ids count; 0: those here.
    up : torch.Tensor, uint8, [container_bytes], or None
        Coded experts of the up projections, where gate_up has the gates alone, of [intermediate][hidden] each.

    Returns
    -------
    torch.Tensor, bfloat16, [tokens][hidden]

    Raises
    ------
    RuntimeError
        Shapes, dtypes or devices do not fit; rows of a container lie in another order; experts are unknown while a CUDA
        graph is captured, or the device does not take them; a tensor requires a gradient, or exact mode is on (use
        `decode_experts` then).
    """
    _refuse_exact_moe("moe", x, weights, gate_up_bias, down_bias)
    result: torch.Tensor = _moe(
        x, ids, weights, gate_up, down, expert_map, gate_up_bias, down_bias, activation, num_ids, up
    )
    return result


def decode_experts(container: torch.Tensor, count: int, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """Decodes all experts of a container.

    Returns
    -------
    torch.Tensor, [count][rows][cols]
        Each as `decode` gives it, but for interleaved rows of gate and up, which are in the order that they had before.
    """
    result: torch.Tensor = _decode_experts(container, count, rows, cols, dtype)
    return result


def decode_experts_into(container: torch.Tensor, out: torch.Tensor) -> None:
    """Decodes all experts of a container to existing memory.

    Parameters
    ----------
    container : torch.Tensor, uint8, [container_bytes]
    out : torch.Tensor, [count][rows][cols]
        It has the weights' dtype. Each matrix is contiguous, but they need not follow each other: gate and up of the
        experts can be decoded to one tensor, [count][2 x rows][cols].
    """
    _decode_experts_into(container, out)


# ---- layers by their keys ----


def linear_by_key(x: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
    """Multiplies by the layer that a key stands for: y = x . W^T + bias, without gradients.

    Its graph depends only on the shape of the weights: not on the layer's size or layout, nor on exact mode, which the
    op checks when it runs. So one compiled graph serves all layers of a shape, and is the same in every process.

    Parameters
    ----------
    x, bias, rows
        As in `linear`.
    key : torch.Tensor, uint8, [256]
        From `layer_key`. Assembled layers each write their own columns of the result.

    Returns
    -------
    torch.Tensor, [..., rows]
        y, whose dtype is x's, and which is what `linear` gives, bit for bit.

    Raises
    ------
    RuntimeError
        As in `linear`; also if the key belongs to no known layer, since the buffer was moved, freed or forgotten or the
        key was copied; or if x or bias requires a gradient.
    """
    _refuse_gradients("linear_by_key", x, bias)
    result: torch.Tensor = _linear_by_key(x, key, bias, rows)
    return result


def decode_by_key(key: torch.Tensor, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """Decodes the layer that a key stands for, as `decode` does; raises RuntimeError if there is none."""
    result: torch.Tensor = _decode_by_key(key, rows, cols, dtype)
    return result


def embedding_by_key(ids: torch.Tensor, key: torch.Tensor, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """Decodes rows of the layer that a key stands for, as `embedding` does; raises RuntimeError if there is none."""
    result: torch.Tensor = _embedding_by_key(ids, key, rows, cols, dtype)
    return result


def moe_by_key(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up_key: torch.Tensor,
    down_key: torch.Tensor,
    expert_map: torch.Tensor | None = None,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    activation: str = "silu",
    num_ids: int = 0,
) -> torch.Tensor:
    """Does what `moe` does by the keys of the containers (`layer_key`), so that its graph does not depend on their
    sizes.

    Raises
    ------
    RuntimeError
        As in `moe`; also if a key belongs to no known container. Exact mode is looked at when the op runs.
    """
    if _needs_gradients(x, weights) or _needs_gradients(x, gate_up_bias) or _needs_gradients(x, down_bias):
        raise RuntimeError("moe_by_key has no gradients; call it under torch.no_grad()")
    result: torch.Tensor = _moe_by_key(
        x, ids, weights, gate_up_key, down_key, expert_map, gate_up_bias, down_bias, activation, num_ids
    )
    return result


def _refuse_exact_moe(name: str, x: torch.Tensor, *others: torch.Tensor | None) -> None:
    if _exact or any(_needs_gradients(x, other) for other in others):
        raise RuntimeError(f"{name} has neither gradients nor an exact mode; multiply by what decode_experts gives")


def _refuse_gradients(name: str, x: torch.Tensor, bias: torch.Tensor | None) -> None:
    if _needs_gradients(x, bias):
        raise RuntimeError(
            f"{name} has no gradients: call it under torch.no_grad() and outside of forward-mode differentiation, or "
            "take the buffer's op"
        )


# ---- gradients, and exact mode ----


def is_forward_mode() -> bool:
    """Returns whether a call may be differentiated forwards; the ops alone would give tangents of zero."""
    return forward_ad._current_level >= 0


def _needs_gradients(x: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return is_forward_mode() or (
        torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))
    )


class _Linear(torch.autograd.Function):
    """The product with its gradients, for which the layer is decoded again rather than kept."""

    @staticmethod
    def forward(
        x: torch.Tensor, buffer: torch.Tensor, bias: torch.Tensor | None, rows: int, exact: bool
    ) -> torch.Tensor:
        if exact:
            return F.linear(x, decode(buffer, rows, x.shape[-1], x.dtype), bias)
        result: torch.Tensor = _linear(x, buffer, bias, rows)
        return result

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        x, buffer, _, ctx.rows, _ = inputs
        ctx.cols = x.shape[-1]
        ctx.save_for_backward(buffer)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (buffer,) = ctx.saved_tensors
        grad_x = grad_bias = None
        rows_of_grad = grad.reshape(-1, ctx.rows)
        if ctx.needs_input_grad[0]:
            weight = decode(buffer, ctx.rows, ctx.cols, grad.dtype)
            grad_x = rows_of_grad.mm(weight).reshape(*grad.shape[:-1], ctx.cols)
        if ctx.needs_input_grad[2]:
            grad_bias = rows_of_grad.sum(0)
        return grad_x, None, grad_bias, None, None


def _check_float(x: torch.Tensor) -> None:
    # Weights would become integers, too, and mostly zero.
    if not (x.is_floating_point() or x.is_complex()):
        raise RuntimeError(f"transfuse::linear: x has {x.dtype}; its dtype must be a float one")


def _linear_by_torch(x: torch.Tensor, buffer: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
    """Multiplies in exact mode or with gradients; x is cast here, outside of what autograd sees as one step."""
    device = x.device.type
    if torch.is_autocast_enabled(device):
        x, bias = _cast(x, bias, torch.get_autocast_dtype(device))
    _check_float(x)
    if _needs_gradients(x, bias) and not is_forward_mode():
        result: torch.Tensor = _Linear.apply(x, buffer, bias, rows, _exact)
        return result
    return F.linear(x, decode(buffer, rows, x.shape[-1], x.dtype), bias)


# ---- autocast ----


def _cast(x: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Casts as autocast does for F.linear, which leaves F64 as it is."""
    if x.is_floating_point() and x.dtype != torch.float64:
        x = x.to(dtype)
    if bias is not None and bias.dtype != torch.float64:
        bias = bias.to(dtype)
    return x, bias


def _register_autocast(device: str, key: str) -> None:
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def linear_kernel(x: torch.Tensor, buffer: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            x, bias = _cast(x, bias, torch.get_autocast_dtype(device))
            result: torch.Tensor = _linear(x, buffer, bias, rows)
            return result

    def key_kernel(x: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            x, bias = _cast(x, bias, torch.get_autocast_dtype(device))
            result: torch.Tensor = _linear_by_key(x, key, bias, rows)
            return result

    def group_kernel(x: torch.Tensor, buffers: list[torch.Tensor], rows: list[int]) -> list[torch.Tensor]:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            results: list[torch.Tensor] = _linear_group(
                _cast(x, None, torch.get_autocast_dtype(device))[0], buffers, rows
            )
            return results

    def experts_kernel(x: torch.Tensor, offsets: torch.Tensor, container: torch.Tensor, rows: int) -> torch.Tensor:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            x, _ = _cast(x, None, torch.get_autocast_dtype(device))
            result: torch.Tensor = _experts(x, offsets, container, rows)
            return result

    def moe_kernel(x: torch.Tensor, *operands: object) -> torch.Tensor:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            x, _ = _cast(x, None, torch.get_autocast_dtype(device))
            result: torch.Tensor = _moe(x, *operands)
            return result

    def moe_key_kernel(x: torch.Tensor, *operands: object) -> torch.Tensor:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            x, _ = _cast(x, None, torch.get_autocast_dtype(device))
            result: torch.Tensor = _moe_by_key(x, *operands)
            return result

    _library.impl("moe", moe_kernel, key)
    _library.impl("moe_by_key", moe_key_kernel, key)
    _library.impl("linear", linear_kernel, key)
    _library.impl("linear_by_key", key_kernel, key)
    _library.impl("linear_group", group_kernel, key)
    _library.impl("experts", experts_kernel, key)


# ---- what torch would do wrong ----


def _refuse_view(_container: torch.Tensor, _out: torch.Tensor) -> None:
    raise RuntimeError(
        "transfuse::decode_experts_into: out is a view that negates or conjugates what is in memory (torch._neg_view, "
        "conj); give it memory of its own"
    )


# torch would have an op fill a clone and then look for it among the op's results, beyond the end of these: a crash.
for _key in ("Negative", "Conjugate"):
    _library.impl("decode_experts_into", _refuse_view, _key)


# ---- fake implementations ----


def _check_fake(buffer: torch.Tensor, other: torch.Tensor) -> None:
    torch._check(buffer.dtype == torch.uint8 and buffer.dim() == 1, lambda: "buffer must be uint8 of one dimension")
    torch._check(buffer.device == other.device, lambda: f"tensors are on {other.device} and {buffer.device}")


@torch.library.register_fake("transfuse::linear", lib=_library)
def _(x: torch.Tensor, buffer: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
    _check_fake(buffer, x)
    return x.new_empty((*x.shape[:-1], rows))


def _check_fake_key(key: torch.Tensor, other: torch.Tensor) -> None:
    _check_fake(key, other)
    torch._check(key.shape[0] == KEY_BYTES, lambda: f"a key has {KEY_BYTES} bytes, this tensor has {key.shape[0]}")


@torch.library.register_fake("transfuse::linear_by_key", lib=_library)
def _(x: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
    _check_fake_key(key, x)
    return x.new_empty((*x.shape[:-1], rows))


@torch.library.register_fake("transfuse::decode_by_key", lib=_library)
def _(key: torch.Tensor, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    _check_fake_key(key, key)
    return key.new_empty((rows, cols), dtype=dtype)


@torch.library.register_fake("transfuse::embedding_by_key", lib=_library)
def _(ids: torch.Tensor, key: torch.Tensor, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    _check_fake_key(key, ids)
    return ids.new_empty((*ids.shape, cols), dtype=dtype)


@torch.library.register_fake("transfuse::linear_epilogue", lib=_library)
def _(
    x: torch.Tensor,
    buffer: torch.Tensor,
    bias: torch.Tensor | None,
    multiplier: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str,
    rows: int,
) -> torch.Tensor:
    _check_fake(buffer, x)
    return x.new_empty((*x.shape[:-1], rows))


@torch.library.register_fake("transfuse::linear_group", lib=_library)
def _(x: torch.Tensor, buffers: list[torch.Tensor], rows: list[int]) -> list[torch.Tensor]:
    for buffer in buffers:
        _check_fake(buffer, x)
    return [x.new_empty((*x.shape[:-1], count)) for count in rows]


@torch.library.register_fake("transfuse::experts", lib=_library)
def _(x: torch.Tensor, offsets: torch.Tensor, container: torch.Tensor, rows: int) -> torch.Tensor:
    _check_fake(container, x)
    return x.new_empty((x.shape[0], rows))


def _fake_moe(
    check_experts: Callable[[torch.Tensor, torch.Tensor], None],
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    up: torch.Tensor | None = None,
) -> torch.Tensor:
    torch._check(x.dtype == torch.bfloat16 and x.dim() == 2, lambda: "x must be BF16 [tokens, hidden]")
    torch._check(ids.dtype in (torch.int32, torch.int64), lambda: "ids must be int32 or int64")
    torch._check(weights.dtype == torch.float32, lambda: "weights must be F32")
    torch._check(ids.dim() == 2 and weights.dim() == 2, lambda: "ids and weights must be [tokens, k]")
    for experts in (gate_up, down) if up is None else (gate_up, down, up):
        check_experts(experts, x)
    return x.new_empty(x.shape)


@torch.library.register_fake("transfuse::moe", lib=_library)
def _(*operands: Any) -> torch.Tensor:
    # The last one is `up`, which torch leaves out where it is None.
    return _fake_moe(_check_fake, *operands[:5], *operands[10:])


@torch.library.register_fake("transfuse::moe_by_key", lib=_library)
def _(*operands: Any) -> torch.Tensor:
    return _fake_moe(_check_fake_key, *operands[:5])


@torch.library.register_fake("transfuse::decode_experts", lib=_library)
def _(container: torch.Tensor, count: int, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    return container.new_empty((count, rows, cols), dtype=dtype)


@torch.library.register_fake("transfuse::decode", lib=_library)
def _(buffer: torch.Tensor, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    return buffer.new_empty((rows, cols), dtype=dtype)


@torch.library.register_fake("transfuse::decode_experts_into", lib=_library)
def _(container: torch.Tensor, out: torch.Tensor) -> None:
    _check_fake(container, out)


@torch.library.register_fake("transfuse::embedding", lib=_library)
def _(ids: torch.Tensor, buffer: torch.Tensor, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    _check_fake(buffer, ids)
    return ids.new_empty((*ids.shape, cols), dtype=dtype)


for _device, _key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
    _register_autocast(_device, _key)
for _key in ("CPU", "CUDA"):
    _library.impl("adopt", adopt_kernel, _key)
