# SPDX-License-Identifier: Apache-2.0
"""Compressing the layers of a torch module in place."""

from __future__ import annotations

import dataclasses
import fnmatch
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from transfuse import _structs as s
from transfuse._checkpoint import Progress
from transfuse._errors import Status, argument_error, make_error
from transfuse._options import Granularity, fill_encode_options
from transfuse._results import LayerInfo
from transfuse.torch._blob_module import as_parameter
from transfuse.torch._modules import (
    CompressedModule,
    TransfuseLinear,
    encode_weight,
    find_scale,
    make_embedding,
)

# Which tensors are kept by default is what the command has in loader/trf_tensor_selection.c: below these sides nothing
# shrinks, tables that are looked up by row are taken on request, and the side tables of quantized checkpoints never.
_LEAST_SIDE = 16
_EMBEDDING_PARTS = (
    "embed_tokens*", "embed_positions*", "embed_in", "wte", "wpe", "emb", "embed", "shared", "*embedding",
    "*embeddings", "*pos_embed", "*_embed",
)  # fmt: skip
_SIDE_PARTS = ("*_scale", "*_scale_inv", "*_scales", "scale", "scales", "*_zero_point")
_LOSSLESS = {
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


@dataclasses.dataclass(frozen=True)
class ModelReport:
    """What `compress_model` came to.

    Attributes
    ----------
    compressed : dict of str to LayerInfo
        By the name of the parameter, "lm_head.weight"; one that modules share stands there under each of its names.
    left : dict of str to str
        The weights of linear layers and embeddings that stay as they are, and why.
    source_bytes, compressed_bytes : int
        Of what was compressed, before and after; shared weights count once.
    left_bytes : int
        Of all other parameters and buffers of the model.
    """

    compressed: dict[str, LayerInfo]
    left: dict[str, str]
    source_bytes: int
    compressed_bytes: int
    left_bytes: int

    def __str__(self) -> str:
        after = self.compressed_bytes + self.left_bytes
        lines = [
            f"{len(self.compressed)} weights compressed, {self.source_bytes} bytes to {self.compressed_bytes}; "
            f"the model takes {after} bytes, and took {self.source_bytes + self.left_bytes}"
        ]
        lines += [f"left: {name}: {why}" for name, why in self.left.items()]
        return "\n".join(lines)


def compress_model(
    model: nn.Module,
    *,
    codec: str = "auto",
    bits: float | None = None,
    granularity: Granularity | None = None,
    favor: str = "speed",
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
    embeddings: bool = False,
    threads: int = 0,
    layout: str = "coded",
    progress: Progress | None = None,
) -> ModelReport:
    """Compresses the weights of a model's linear layers, and of its embeddings on request, in place.

    Each `nn.Linear` becomes a `TransfuseLinear`, each `nn.Embedding` a `TransfuseEmbedding`, and stays the same object.
    Weights that modules share stay shared. One layer at a time is encoded on the CPU, on whatever device it lies, and
    its dense weights are given back as soon as the blob is there; beside the model that takes the memory of one layer.
    Ctrl-C, and whatever else is raised, leaves a model that works, of which some layers are compressed.

    Which weights are taken follows the rules of the command. Left, with the reason in the report: modules whose weight
    is on the meta device, not a plain parameter (`torch.nn.utils.parametrize`, `weight_norm`, tensor subclasses), or
    shared with something that stays dense; modules with hooks, and those of other classes that derive from `nn.Linear`
    or `nn.Embedding`, unless transfuse knows them; weights with a side below 16; dtypes that the codec does not take.
    F32 has no lossless codec: `codec="bf16"` rounds it, `bits` quantizes it. Products with x of F32 then decode to F32.

    Parameters
    ----------
    model : nn.Module
        May itself be an `nn.Linear`.
    codec, bits, granularity, favor, threads
        As of `transfuse.compress`.
    include, exclude : iterables of str, optional
        Names of parameters ("model.layers.0.mlp.up_proj.weight") or patterns, as of `transfuse.compress`.
    embeddings : bool
        Take embeddings, too, and linear layers that share their weights.
    layout : str
        How weights lie in memory; "coded" is the only one so far.
    progress : callable, optional
        Is called before each layer with its name and with bytes of weights, done and in all, and once at the end. If
        it returns something true, the call ends with CancelledError.

    Returns
    -------
    ModelReport

    Raises
    ------
    ArgumentError
        An option is out of its range, or `include` names a weight that cannot be compressed.
    NotFoundError
        `include` names a parameter that there is not.
    CancelledError
    """
    if layout != "coded":
        raise argument_error(f"layout is {layout!r}; 'coded' is the only one so far")
    options: dict[str, Any] = {
        "codec": codec, "bits": bits, "granularity": granularity, "favor": favor, "threads": threads,
    }  # fmt: skip
    fill_encode_options(s.EncodeOptionsStruct(), verify=True, **options)
    rules = _Rules("int" if bits is not None else codec, _as_list(include), _as_list(exclude), embeddings)
    taken, left = _select(model, rules)
    total, done, compressed_bytes = sum(weight.source_bytes for weight in taken), 0, 0
    infos: dict[str, LayerInfo] = {}
    for weight in taken:
        _report_progress(progress, weight.names[0], done, total)
        info = _compress_weight(weight, _options_for(options, weight))
        infos.update(dict.fromkeys(weight.names, info))
        done += weight.source_bytes
        compressed_bytes += info.blob_bytes
    if taken:
        _report_progress(progress, taken[-1].names[0], done, total)
    return ModelReport(infos, left, total, compressed_bytes, _count_bytes(model) - compressed_bytes)


@dataclasses.dataclass
class _Weight:
    """One weight and the modules that share it. It keeps no tensor, so that dense weights can go."""

    names: list[str]
    modules: list[nn.Module]
    owners: int  # parameters of any module that are this memory
    source_bytes: int
    dtype: torch.dtype
    obstacle: str | None  # why it cannot be compressed


@dataclasses.dataclass(frozen=True)
class _Rules:
    codec: str
    include: list[str]
    exclude: list[str]
    embeddings: bool


def _as_list(patterns: Iterable[str] | None) -> list[str]:
    if isinstance(patterns, str):
        raise TypeError("include and exclude are lists of names or patterns, not a str")
    return list(patterns or ())


def _is_name(pattern: str) -> bool:
    return not any(sign in pattern for sign in "*?[\\")


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _memory_of(tensor: Tensor) -> object:
    """Returns what two parameters have in common if they are the same memory."""
    if tensor.is_meta or type(tensor.data) is not Tensor or tensor.numel() == 0:
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _count_bytes(model: nn.Module) -> int:
    tensors = {_memory_of(t): t for part in (model.parameters(), model.buffers()) for t in part}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _walk(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Module | None]]:
    """Yields each module once: the name that its weight has, itself, and the module above."""
    above: dict[nn.Module, nn.Module] = {}
    for name, module in model.named_modules():
        for child in module.children():
            above.setdefault(child, module)
        yield (f"{name}.weight" if name else "weight"), module, above.get(module)


def _find_module_obstacle(module: nn.Linear | nn.Embedding, parent: nn.Module | None) -> str | None:
    """Returns why a module cannot become a compressed one, or None."""
    kind = type(module)
    known = kind in (nn.Linear, nn.Embedding) or (isinstance(module, nn.Embedding) and find_scale(module) is not None)
    weight = module._parameters.get("weight")
    if hasattr(module, "parametrizations") or weight is None:
        return "it is not a plain parameter (parametrized, or with weight_norm)"
    if not known:
        return f"what a {kind.__name__} does with its weights is not known"
    if isinstance(parent, (nn.MultiheadAttention, nn.TransformerEncoderLayer)):
        return f"the {type(parent).__name__} above reads it itself"
    if type(weight) is not nn.Parameter or type(weight.data) is not Tensor:
        return f"it is a {type(weight.data).__name__}"
    if weight.is_meta:
        return "it is on the meta device"
    if "forward" in module.__dict__:
        return "the module's forward was replaced"
    if any(getattr(module, hooks, None) for hooks in _HOOKS):
        return "the module has hooks"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "the embedding has a max_norm, which changes weights while they are read"
    return None


def _find_dtype_obstacle(dtype: torch.dtype, codec: str) -> str | None:
    taken = dtype in _LOSSLESS if codec == "auto" else dtype in _TAKEN[codec]
    if taken:
        return None
    if dtype == torch.float32:
        return "F32 has no lossless codec; codec='bf16' rounds, bits quantizes"
    return f"codec {codec} does not take {dtype}"


def _gather(model: nn.Module, codec: str) -> tuple[list[_Weight], dict[str, str]]:
    """Returns the weights of linear layers and embeddings, shared ones once, and those that are no parameters."""
    owners: dict[object, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                key = _memory_of(parameter)
                owners[key] = owners.get(key, 0) + 1
    weights: dict[object, _Weight] = {}
    without: dict[str, str] = {}
    for name, module, parent in _walk(model):
        if not isinstance(module, (nn.Linear, nn.Embedding)) or isinstance(module, CompressedModule):
            continue
        obstacle = _find_module_obstacle(module, parent)
        parameter = module._parameters.get("weight")
        if parameter is None:
            without[name] = obstacle or "there is none"
            continue
        key = _memory_of(parameter)
        if key not in weights:
            nbytes = parameter.numel() * parameter.element_size()
            weights[key] = _Weight([], [], owners[key], nbytes, parameter.dtype, None)
        weight = weights[key]
        weight.names.append(name)
        weight.modules.append(module)
        weight.obstacle = weight.obstacle or obstacle or _find_dtype_obstacle(parameter.dtype, codec)
    for weight in weights.values():
        if weight.owners > len(weight.modules):
            weight.obstacle = weight.obstacle or "other modules have it as a parameter, too"
    return list(weights.values()), without


def _find_default_reason(weight: _Weight, embeddings: bool) -> str | None:
    """Returns why a weight is kept unless `include` asks for it, or None."""
    for name, module in zip(weight.names, weight.modules):
        rows_and_cols = module._parameters["weight"]
        if rows_and_cols is not None and min(rows_and_cols.shape) < _LEAST_SIDE:
            return f"a side is below {_LEAST_SIDE}"
        last = name.removesuffix(".weight").rpartition(".")[2]
        if not embeddings and (isinstance(module, nn.Embedding) or _matches(last, _EMBEDDING_PARTS)):
            return "embeddings are taken with embeddings=True"
        if _matches(last, _SIDE_PARTS):
            return "its name is that of a side table of quantized weights"
    return None


def _find_reason(weight: _Weight, rules: _Rules) -> str | None:
    """Returns why a weight is left, or None for one to compress."""
    if any(_matches(name, rules.exclude) for name in weight.names):
        return "it is excluded"
    asked = [pattern for pattern in rules.include if _is_name(pattern) and pattern in weight.names]
    if asked and weight.obstacle:
        raise argument_error(f"{asked[0]} is to be compressed with codec {rules.codec}, but {weight.obstacle}")
    if weight.obstacle:
        return weight.obstacle
    if not rules.include:
        return _find_default_reason(weight, rules.embeddings)
    return None if any(_matches(name, rules.include) for name in weight.names) else "include does not name it"


def _select(model: nn.Module, rules: _Rules) -> tuple[list[_Weight], dict[str, str]]:
    weights, left = _gather(model, rules.codec)
    known = {name for weight in weights for name in weight.names} | set(left)
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


def _options_for(options: dict[str, Any], weight: _Weight) -> dict[str, Any]:
    """Returns the options for a dtype: either FP8 codec stands for both, and codes of I8 are not quantized again."""
    own = dict(options)
    if weight.dtype == torch.int8:
        own.update(codec="int", bits=None, granularity=None)
    elif own["codec"] in ("fp8_e4m3", "fp8_e5m2"):
        own["codec"] = _LOSSLESS[weight.dtype]
    return own


def _report_progress(progress: Progress | None, name: str, done: int, total: int) -> None:
    if progress is not None and progress(name, done, total):
        raise make_error(Status.TRF_ERR_CANCELLED, f"compressing the model was cancelled before {name}")


def _make_compressed(module: nn.Module, blob: nn.Parameter) -> CompressedModule:
    made: CompressedModule
    if isinstance(module, nn.Linear):
        made = TransfuseLinear.from_blob(blob, module.out_features, module.in_features, None, module.bias)
    else:
        assert isinstance(module, nn.Embedding)
        made = make_embedding(module, blob)
    return made.train(module.training)


def become(module: nn.Module, made: nn.Module) -> None:
    """Makes a module what another one is, of which it takes class, parameters and all; its other attributes stay."""
    state = {**module.__dict__, **made.__dict__}
    object.__setattr__(module, "__dict__", state)
    object.__setattr__(module, "__class__", type(made))


def _compress_weight(weight: _Weight, options: dict[str, Any]) -> LayerInfo:
    """Encodes a weight and swaps the modules that share it, all or none."""
    infos: list[LayerInfo] = []

    def encode() -> Callable[[], None]:
        dense = weight.modules[0]._parameters["weight"]
        assert dense is not None
        blob = as_parameter(encode_weight(dense, **options))
        made = [_make_compressed(module, blob) for module in weight.modules]

        def swap() -> None:
            for module, compressed in zip(weight.modules, made):
                become(module, compressed)

        infos.append(made[0].info())
        return swap

    run_abandonable(encode)
    return infos[0]


def run_abandonable(prepare: Callable[[], Callable[[], None]]) -> None:
    """Runs `prepare` on a thread of its own, then there, too, what it returns; passes on what it raises.

    An exception that comes meanwhile in the calling thread, such as KeyboardInterrupt, goes on its way at once. Then
    `prepare` ends by itself, later, and what it returned is not run: the encoder cannot be stopped within a layer. What
    is run is run to its end, since no KeyboardInterrupt reaches that thread.
    """
    lock = threading.Lock()
    done = threading.Event()
    raised: list[BaseException] = []
    abandoned = False

    def run() -> None:
        try:
            finish = prepare()
            with lock:
                if not abandoned:
                    finish()
        except BaseException as failure:
            raised.append(failure)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="transfuse", daemon=True)
    try:
        thread.start()
        done.wait()
    except BaseException:
        with lock:
            abandoned = True
        raise
    if raised:
        raise raised[0]


__all__ = ["ModelReport", "compress_model"]
