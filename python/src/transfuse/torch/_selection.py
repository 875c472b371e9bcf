# SPDX-License-Identifier: Apache-2.0
"""Decides which weights of a torch module are compressed, and says why the others are left."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from transfuse._errors import Status, argument_error, make_error
from transfuse.torch._experts import find_experts_obstacle, get_expert_names
from transfuse.torch._modules import CompressedModule, find_scale

# The command keeps the same tensors by default (loader/trf_tensor_selection.c): matrices with a smaller side than this
# do not shrink, tables that are looked up by row are compressed on request, and the side tables of quantized
# checkpoints are not.
LEAST_SIDE = 16
_EMBEDDING_PARTS = (
    "embed_tokens*", "embed_positions*", "embed_in", "wte", "wpe", "emb", "embed", "shared", "*embedding",
    "*embeddings", "*pos_embed", "*_embed",
)  # fmt: skip
# A check looks at this many weights at once, so that it takes little memory.
_WEIGHTS_AT_ONCE = 1 << 24
_SIDE_PARTS = ("*_scale", "*_scale_inv", "*_scales", "scale", "scales", "*_zero_point")
LOSSLESS = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8_e4m3",
    torch.float8_e5m2: "fp8_e5m2",
    torch.int8: "int",
}
_TAKEN = {
    "bf16": (torch.bfloat16, torch.float32),
    "fp16": (torch.float16,),
    "fp8_e4m3": (torch.float8_e4m3fn, torch.float8_e5m2),
    "fp8_e5m2": (torch.float8_e4m3fn, torch.float8_e5m2),
    "int": (torch.int8, torch.float32, torch.float16, torch.bfloat16),
}
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


@dataclasses.dataclass
class Weight:
    """One weight and the modules that share it, or all weights of one experts module.

    It keeps no tensor, so that dense weights can be freed.
    """

    names: list[str]
    modules: list[nn.Module]
    source_bytes: int
    dtype: torch.dtype
    least_side: int
    obstacle: str | None  # why it cannot be compressed
    widened: bool = False  # the dtype is F32, and each weight is a BF16 number
    asked: bool = False  # `include` has its name, so that it is compressed even if it does not shrink


@dataclasses.dataclass(frozen=True)
class Rules:
    codec: str
    include: list[str]
    exclude: list[str]
    embeddings: bool


def _is_name(pattern: str) -> bool:
    return not any(sign in pattern for sign in "*?[\\")


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _memory_of(tensor: Tensor) -> object:
    """Returns a key that is equal for two parameters if they are the same memory."""
    if is_lazy(tensor) or tensor.is_meta or type(tensor.data) is not Tensor or tensor.layout is not torch.strided:
        return id(tensor)
    if tensor.numel() == 0:
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def count_bytes(model: nn.Module) -> int:
    """Returns the bytes of a model's parameters and buffers; those that lazy modules are still to make have none."""
    tensors = {_memory_of(t): t for part in (model.parameters(), model.buffers()) for t in part if not is_lazy(t)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _walk(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Module | None]]:
    """Yields each module once, as the name of its weight, the module itself, and the module above it."""
    above: dict[nn.Module, nn.Module] = {}
    for name, module in model.named_modules():
        for child in module.children():
            above.setdefault(child, module)
        yield (f"{name}.weight" if name else "weight"), module, above.get(module)


def _find_module_obstacle(module: nn.Linear | nn.Embedding, parent: nn.Module | None) -> str | None:
    """Returns why a module cannot become a compressed one, or None."""
    kind = type(module)
    known = kind in (nn.Linear, nn.Embedding) or (isinstance(module, nn.Embedding) and find_scale(module) is not None)
    if hasattr(module, "parametrizations") or module._parameters.get("weight") is None:
        return "it is not a plain parameter (parametrized, or with weight_norm)"
    if not known:
        return f"what a {kind.__name__} does with its weights is not known"
    if isinstance(parent, (nn.MultiheadAttention, nn.TransformerEncoderLayer)):
        return f"the {type(parent).__name__} above reads it itself"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "the embedding has a max_norm, which changes weights while they are read"
    linear = isinstance(module, nn.Linear)
    shape = (module.out_features, module.in_features) if linear else (module.num_embeddings, module.embedding_dim)
    if tuple(module.weight.shape) != shape:
        return f"its shape is {list(module.weight.shape)}, and the module says {list(shape)}"
    return _find_state_obstacle(module)


def _find_state_obstacle(module: nn.Module) -> str | None:
    """Returns why the state of a module keeps it from being replaced by another one, or None."""
    for weight in module._parameters.values():
        if weight is not None and (type(weight) is not nn.Parameter or type(weight.data) is not Tensor):
            return f"it is a {type(weight.data).__name__}"
        if weight is not None and weight.is_meta:
            return "it is on the meta device"
        if weight is not None and weight.layout is not torch.strided:
            return f"its layout is {weight.layout}"
    if "forward" in module.__dict__:
        return "the module's forward was replaced"
    if any(getattr(module, hooks, None) for hooks in _HOOKS):
        return "the module has hooks"
    return None


def _find_dtype_obstacle(dtype: torch.dtype, codec: str) -> str | None:
    """Returns why a codec does not take a dtype, or None. Whether F32 weights are BF16 numbers is found out later."""
    taken = dtype in LOSSLESS or dtype == torch.float32 if codec == "auto" else dtype in _TAKEN[codec]
    return None if taken else f"codec {codec} does not take {dtype}"


def _find_widened_obstacle(weight: Weight, codec: str) -> str | None:
    """Returns why F32 weights are not compressed without loss, or None; notes in `weight` if all are BF16 numbers."""
    if codec != "auto" or weight.dtype != torch.float32:
        return None
    module = weight.modules[0]
    parameters = [module._parameters[name] for name in get_expert_names(module) or ("weight",)]
    weight.widened = all(parameter is not None and _is_widened_bf16(parameter) for parameter in parameters)
    if weight.widened:
        return None
    return "F32 has no lossless codec, unless each weight is a BF16 number; codec='bf16' rounds, bits quantizes"


def _is_widened_bf16(weight: Tensor) -> bool:
    """Returns whether each of the F32 weights is a BF16 number that comes back bit for bit.

    Signaling NaNs do not come back as they were, since they are made quiet.
    """
    bits = weight.detach().resolve_neg().view(torch.int32)
    rows = max(1, _WEIGHTS_AT_ONCE // max(1, weight[0].numel()))
    for part in bits.split(rows):
        signaling = ((part & 0x7FC00000) == 0x7F800000) & ((part & 0x003FFFFF) != 0)
        if bool(((part & 0xFFFF) != 0).any()) or bool(signaling.any()):
            return False
    return True


def _find_experts(model: nn.Module, owners: dict[object, int], codec: str) -> Iterator[Weight]:
    """Yields the weights of each experts module of transformers."""
    for name, module in model.named_modules():
        names = get_expert_names(module)
        weights = [weight for weight in (module._parameters.get(own) for own in names) if weight is not None]
        if not weights:
            continue
        obstacle = find_experts_obstacle(module) or _find_state_obstacle(module)
        for weight in weights:
            obstacle = obstacle or _find_dtype_obstacle(weight.dtype, codec)
            if owners[_memory_of(weight)] > 1:
                obstacle = obstacle or "other modules have it as a parameter, too"
        yield Weight(
            [f"{name}.{own}" if name else own for own in names],
            [module],
            sum(weight.numel() * weight.element_size() for weight in weights),
            weights[0].dtype,
            min(min(weight.shape[1:], default=0) for weight in weights),
            obstacle,
        )


def _collect(model: nn.Module, codec: str) -> tuple[list[Weight], dict[str, str]]:
    """Returns the weights, shared ones once, and the names of those that are no parameters, each with the reason."""
    owners: dict[object, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                key = _memory_of(parameter)
                owners[key] = owners.get(key, 0) + 1
    weights: dict[object, Weight] = {}
    without: dict[str, str] = {}
    for name, module, parent in _walk(model):
        if not isinstance(module, (nn.Linear, nn.Embedding)) or isinstance(module, CompressedModule):
            continue
        obstacle = _find_module_obstacle(module, parent)
        parameter = module._parameters.get("weight")
        if parameter is None or is_lazy(parameter):
            without[name] = obstacle or "there is none"
            continue
        key = _memory_of(parameter)
        if key not in weights:
            nbytes = parameter.numel() * parameter.element_size()
            weights[key] = Weight([], [], nbytes, parameter.dtype, min(parameter.shape, default=0), None)
        weight = weights[key]
        weight.names.append(name)
        weight.modules.append(module)
        weight.obstacle = weight.obstacle or obstacle or _find_dtype_obstacle(parameter.dtype, codec)
    for key, weight in weights.items():
        if owners[key] > len(weight.modules):
            weight.obstacle = weight.obstacle or "other modules have it as a parameter, too"
    return [*weights.values(), *_find_experts(model, owners, codec)], without


def _find_default_reason(weight: Weight, embeddings: bool) -> str | None:
    """Returns why a weight is kept unless `include` asks for it, or None."""
    if weight.least_side < LEAST_SIDE:
        return f"a side is below {LEAST_SIDE}"
    tables = any(isinstance(module, nn.Embedding) for module in weight.modules)
    for name in weight.names:
        last = name.removesuffix(".weight").rpartition(".")[2]
        if not embeddings and (tables or _matches(last, _EMBEDDING_PARTS)):
            return "embeddings are taken with embeddings=True"
        if _matches(last, _SIDE_PARTS):
            return "its name is that of a side table of quantized weights"
    return None


def _find_reason(weight: Weight, rules: Rules) -> str | None:
    """Returns why a weight is left, or None if it is to be compressed."""
    if any(_matches(name, rules.exclude) for name in weight.names):
        return "it is excluded"
    asked = [pattern for pattern in rules.include if _is_name(pattern) and pattern in weight.names]
    weight.asked = bool(asked)
    if asked and weight.obstacle:
        raise argument_error(f"{asked[0]} is to be compressed with codec {rules.codec}, but {weight.obstacle}")
    if weight.obstacle:
        return weight.obstacle
    if not rules.include:
        reason = _find_default_reason(weight, rules.embeddings)
    elif any(_matches(name, rules.include) for name in weight.names):
        reason = None
    else:
        reason = "include does not name it"
    widened = reason or _find_widened_obstacle(weight, rules.codec)
    if asked and widened:
        raise argument_error(f"{asked[0]} is to be compressed with codec {rules.codec}, but {widened}")
    return widened


def _check_patterns(model: nn.Module, rules: Rules, known: set[str]) -> None:
    """Refuses patterns that match no parameter, since they are probably typos."""
    names = known | {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for what, patterns in (("include", rules.include), ("exclude", rules.exclude)):
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                near = difflib.get_close_matches(pattern, names, n=1)
                meant = f"; did you mean {near[0]!r}?" if near else ""
                raise make_error(
                    Status.TRF_ERR_NOT_FOUND, f"{what} has {pattern!r}, which matches no parameter of the model{meant}"
                )


def select(model: nn.Module, rules: Rules) -> tuple[list[Weight], dict[str, str]]:
    """Returns the weights that are to be compressed, and why the others are left.

    Raises
    ------
    NotFoundError
        A pattern matches nothing.
    ArgumentError
        `include` names a weight that cannot be compressed.
    """
    weights, left = _collect(model, rules.codec)
    known = {name for weight in weights for name in weight.names} | set(left)
    _check_patterns(model, rules, known)
    for pattern in rules.include:
        if _is_name(pattern) and pattern not in known:
            raise make_error(
                Status.TRF_ERR_NOT_FOUND,
                f"include names {pattern!r}, which is no weight of a linear layer or embedding",
            )
        if pattern in left:
            raise argument_error(f"{pattern} is to be compressed, but {left[pattern]}")
    taken = []
    for weight in weights:
        reason = _find_reason(weight, rules)
        if reason is None:
            taken.append(weight)
        else:
            left.update(dict.fromkeys(weight.names, reason))
    return taken, left
