# SPDX-License-Identifier: Apache-2.0
"""Compresses the layers of a torch module in place."""

from __future__ import annotations

import dataclasses
import math
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from transfuse import _structs as s
from transfuse._checkpoint import Progress
from transfuse._errors import Status, make_error
from transfuse._options import Granularity, check_callable, check_flag, fill_encode_options, find_layout
from transfuse.torch import _layouts, _registry
from transfuse.torch._buffer_module import as_parameter, note_paths
from transfuse.torch._containers import container_buffers
from transfuse.torch._dense_experts import lay_out_experts
from transfuse.torch._experts import get_expert_names, replace_experts
from transfuse.torch._modules import CompressedModule, TransfuseLinear, make_embedding
from transfuse.torch._selection import LOSSLESS, Rules, Weight, count_bytes, select
from transfuse.torch._streams import find_streams


@dataclasses.dataclass(frozen=True)
class CompressedWeight:
    """One parameter, a matrix of weights, that was compressed.

    It has the source's shape and dtype, the codec, and the bytes in memory before and after. `layout` says how it lies
    in memory now.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    codec: str
    source_bytes: int
    compressed_bytes: int
    layout: str = "coded"

    @property
    def bits(self) -> float:
        """Bits a weight after compressing."""
        return 8 * self.compressed_bytes / math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class ModelReport:
    """The results of `compress_model`.

    Attributes
    ----------
    compressed : dict of str to CompressedWeight
        The results by the names of parameters, such as "lm_head.weight"; a shared one has an entry for each name.
    left : dict of str to str
        The weights of linear layers, embeddings and experts that stay as they are, and why.
    source_bytes, compressed_bytes : int
        The bytes of what was compressed, before and after; shared weights count once.
    left_bytes : int
        The bytes of all other parameters and buffers of the model.
    widened : tuple of str
        Names of F32 parameters in which each weight is a BF16 number, so that the codec bf16 took them without loss.
    """

    compressed: dict[str, CompressedWeight]
    left: dict[str, str]
    source_bytes: int
    compressed_bytes: int
    left_bytes: int
    widened: tuple[str, ...] = ()

    def __str__(self) -> str:
        after = self.compressed_bytes + self.left_bytes
        lines = [
            f"{len(self.compressed)} weights compressed, {self.source_bytes} bytes to {self.compressed_bytes}; "
            f"the model takes {after} bytes, and took {self.source_bytes + self.left_bytes}"
        ]
        if self.widened:
            lines.append(
                f"{len(self.widened)} of them are of F32, and each weight is a BF16 number: nothing is lost. Products "
                "by x of F32 are slow: model.to(torch.bfloat16) makes them fast"
            )
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

    Each `nn.Linear` becomes a `TransfuseLinear`, each `nn.Embedding` a `TransfuseEmbedding`, and stays the same object;
    so do the experts of transformers (`TransfuseExperts`). Weights that modules share stay shared. One layer at a time
    is encoded on the CPU, whatever device it lies on, and its dense weights are freed as soon as there is a blob; so
    besides the model this takes the memory of one layer. After Ctrl-C, or any other exception, the model still works,
    and some of its layers are compressed.

    The rules of the command decide which weights are taken. These are left, with the reason in the report: modules
    whose weight is on the meta device, sparse, of another shape than the module says, not a plain parameter
    (`torch.nn.utils.parametrize`, `weight_norm`, tensor subclasses), or shared with something that stays dense; modules
    with hooks, and those of other classes that derive from `nn.Linear` or `nn.Embedding`, unless transfuse knows them;
    weights with a side below 16, or that would not become smaller; dtypes that the codec does not take. F32 has no
    lossless codec, unless each weight of a layer is a BF16 number, as where a BF16 model was loaded in F32: then it is
    compressed as such, and decoded to F32 bit for bit. Otherwise `codec="bf16"` rounds it, and `bits` quantizes it.
    Products with x of F32 decode the layer to F32 each time, which is slow; `model.to(torch.bfloat16)` makes them fast.

    Parameters
    ----------
    model : nn.Module
        May itself be an `nn.Linear`.
    codec, bits, granularity, favor, threads
        As in `transfuse.compress`.
    include, exclude : iterables of str, optional
        Names of parameters ("model.layers.0.mlp.up_proj.weight") or patterns, as in `transfuse.compress`. Each must
        match a parameter.
    embeddings : bool
        Take embeddings, too, and linear layers that share their weights; not together with `include`, which decides
        alone.
    layout : str
        How weights lie in memory: "coded", "packed", or "plain", which takes no less memory than before. Weights that
        the layout does not take lie coded, and a warning names them; experts lie coded or packed.
    progress : callable, optional
        Called before each layer with its name, the bytes of weights that are done, and all bytes; and once at the end.
        If it returns something true, the call ends with CancelledError.

    Returns
    -------
    ModelReport

    Raises
    ------
    ArgumentError
        An option is out of its range, or `include` names a weight that cannot be compressed.
    ValueError
        `embeddings` is set, and `include` is given.
    NotFoundError
        `include` or `exclude` matches no parameter, or `include` names one that cannot be compressed.
    CancelledError
    """
    find_layout(layout)
    if check_flag(embeddings, "embeddings") and include is not None:
        raise ValueError("embeddings goes with the usual choice of tensors, not with include")
    check_callable(progress, "progress")
    options: dict[str, Any] = {
        "codec": codec, "bits": bits, "granularity": granularity, "favor": favor, "threads": threads,
    }  # fmt: skip
    fill_encode_options(s.EncodeOptionsStruct(), verify=True, **options)
    # This makes the model's framework save it compressed, and refuse what no longer works.
    rules = Rules("int" if bits is not None else codec, _as_list(include), _as_list(exclude), embeddings)
    taken, left = select(model, rules)
    total, done = sum(weight.source_bytes for weight in taken), 0
    compressed: dict[str, CompressedWeight] = {}
    refused: dict[str, str] = {}
    source_bytes = compressed_bytes = 0
    for weight in taken:
        _report_progress(progress, weight.names[0], done, total)
        results = _compress_weight(weight, _options_for(options, weight), layout, refused)
        if results:
            compressed.update(results)
            source_bytes += weight.source_bytes
            compressed_bytes += _count_compressed(results)
        else:
            left.update(dict.fromkeys(weight.names, "it would not become smaller"))
        done += weight.source_bytes
    note_paths(model)
    if taken:
        _report_progress(progress, taken[-1].names[0], done, total)
    if refused:
        warnings.warn(_layouts.describe_refusals(layout, refused), stacklevel=2)
    widened = tuple(name for weight in taken if weight.widened for name in weight.names if name in compressed)
    left_bytes = count_bytes(model) - compressed_bytes
    return ModelReport(compressed, left, source_bytes, compressed_bytes, left_bytes, widened)


def _as_list(patterns: Iterable[str] | None) -> list[str]:
    if isinstance(patterns, str):
        raise TypeError("include and exclude are lists of names or patterns, not a str")
    found = list(patterns or ())
    for pattern in found:
        if not isinstance(pattern, str):
            raise TypeError(f"include and exclude have names or patterns, not {type(pattern).__name__}")
    return found


def _options_for(options: dict[str, Any], weight: Weight) -> dict[str, Any]:
    """Returns the options for a weight. Each FP8 codec stands for both, and codes of I8 are not quantized again."""
    own, dtype = dict(options), weight.dtype
    if weight.widened:
        own["codec"] = "bf16"
    elif dtype == torch.int8:
        own.update(codec="int", bits=None, granularity=None)
    elif own["codec"] in ("fp8_e4m3", "fp8_e5m2"):
        own["codec"] = LOSSLESS[dtype]
    return own


def _report_progress(progress: Progress | None, name: str, done: int, total: int) -> None:
    if progress is not None and progress(name, done, total):
        raise make_error(Status.TRF_ERR_CANCELLED, f"compressing the model was cancelled before {name}")


def _make_compressed(module: nn.Module, buffer: nn.Parameter) -> CompressedModule:
    made: CompressedModule
    if isinstance(module, nn.Linear):
        made = TransfuseLinear.from_buffer(buffer, module.out_features, module.in_features, None, module.bias)
    else:
        assert isinstance(module, nn.Embedding)
        made = make_embedding(module, buffer)
    return made.train(module.training)


def become(module: nn.Module, made: nn.Module) -> None:
    """Turns a module into another one: it takes that one's class, parameters and so on; its other attributes stay."""
    state = {**module.__dict__, **made.__dict__}
    object.__setattr__(module, "__dict__", state)
    object.__setattr__(module, "__class__", type(made))


def _compress_weight(
    weight: Weight, options: dict[str, Any], layout: str, refused: dict[str, str]
) -> dict[str, CompressedWeight]:
    """Encodes a weight and swaps the modules that share it, all or none.

    Returns what became of each name, and nothing if the blob is no smaller and nobody asked for it by name. `refused`
    gets the names of a weight that the layout does not take, and the reason.
    """
    results: dict[str, CompressedWeight] = {}
    prepare = _prepare_experts if get_expert_names(weight.modules[0]) else _prepare_matrix

    def prepare_if_smaller() -> Callable[[], None]:
        found, blob_bytes, refusal, swap = prepare(weight, options, layout)
        if weight.asked or blob_bytes < weight.source_bytes:
            results.update(found)
            if refusal:
                refused.update(dict.fromkeys(weight.names, refusal))
            return swap
        return lambda: None

    run_abandonable(prepare_if_smaller)
    return results


def _count_compressed(results: dict[str, CompressedWeight]) -> int:
    """Returns the bytes of what was compressed; weights that modules share have several names and one result."""
    return sum({id(each): each.compressed_bytes for each in results.values()}.values())


# It has the result for each name, the bytes of the blobs, why the layout does not take them, and what swaps modules.
_Prepared = tuple[dict[str, CompressedWeight], int, str, Callable[[], None]]


def _prepare_matrix(weight: Weight, options: dict[str, Any], layout: str) -> _Prepared:
    """Encodes one matrix; the function that it returns swaps the modules."""
    dense = weight.modules[0]._parameters["weight"]
    assert dense is not None
    laid_out, compressed_bytes, refusal = _layouts.lay_out(dense, layout, options)
    layer = as_parameter(laid_out)
    made = [_make_compressed(module, layer) for module in weight.modules]
    codec, lies = made[0].info().codec, made[0].layout
    result = CompressedWeight(tuple(dense.shape), dense.dtype, codec, weight.source_bytes, layer.numel(), lies)

    def swap() -> None:
        for module, compressed in zip(weight.modules, made):
            become(module, compressed)

    return dict.fromkeys(weight.names, result), compressed_bytes, refusal, swap


def _prepare_experts(weight: Weight, options: dict[str, Any], layout: str) -> _Prepared:
    """Encodes or packs the experts of a module; the function that it returns puts them in."""
    module = weight.modules[0]
    containers, refusal = lay_out_experts(module, layout, options)
    results = {}
    for name in weight.names:
        own = name.rpartition(".")[2]
        dense = module._parameters[own]
        assert dense is not None
        parts = [container for key, container in containers.items() if key == own.removesuffix("_proj")]
        parts = parts or [container for key, container in containers.items() if key in own.split("_")]
        codec = _registry.expert_infos(parts[0])[0].codec
        lies = _registry.layer_layout(container_buffers(parts[0])[0])
        nbytes = dense.numel() * dense.element_size()
        size = sum(part.numel() for part in parts)
        results[name] = CompressedWeight(tuple(dense.shape), dense.dtype, codec, nbytes, size, lies)

    def swap() -> None:
        replace_experts(module, **containers)

    return results, _count_compressed(results), refusal, swap


def run_abandonable(prepare: Callable[[], Callable[[], None]]) -> None:
    """Runs `prepare`, and then the function that it returns, on a thread of its own; passes on what they raise.

    The thread has the caller's current streams.
    An exception that comes meanwhile in the calling thread, such as KeyboardInterrupt, is passed on at once. Then
    `prepare` ends by itself, later, since the encoder cannot be stopped within a layer, and the function that it
    returned is not run. If that function has begun it is run to its end, since no KeyboardInterrupt reaches the thread.
    """
    lock = threading.Lock()
    done = threading.Event()
    raised: list[BaseException] = []
    abandoned = False
    take_over_streams = find_streams()

    def run() -> None:
        try:
            take_over_streams()
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
        # The wait ends now and then by itself, since a signal that another thread got does not wake this one.
        while not done.wait(0.1):
            pass
        thread.join()  # a daemon that still runs when the interpreter ends aborts the process
    except BaseException:
        with lock:
            abandoned = True
        raise
    if raised:
        raise raised[0]


__all__ = ["CompressedWeight", "ModelReport", "compress_model"]
