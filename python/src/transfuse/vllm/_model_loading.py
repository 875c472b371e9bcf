# SPDX-License-Identifier: Apache-2.0
"""Does what has to happen around vLLM's loading of a model, and reports it.

vLLM has plugin points for layers, but none for work before the first weight and after the last one. So we wrap five of
its functions, only in processes that serve with transfuse: the one that notes what a new model looks like, the one that
reads a folder's weights (compressed ones come as lazy tensors), the one that loads them (vLLM checks for weights that
no file has, but only where it quantizes nothing), the one that makes a layer whose weights are all there, and the one
that finishes layers. We also wrap a worker's methods after which CUDA graphs may have to be captured again (`_graphs`).
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from tqdm.auto import tqdm  # type: ignore[import-untyped]
from vllm.config import ModelConfig
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.model_executor.model_loader import base_loader, weight_utils
from vllm.model_executor.model_loader import utils as loader_utils
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.reload.layerwise import (
    _get_original_loader,
    get_layerwise_info,
    initialize_online_processing,
)

from transfuse.vllm import _graphs, _lazy_weight
from transfuse.vllm._config import EXCLUDED, METHOD
from transfuse.vllm._settings import Settings

if TYPE_CHECKING:
    from transfuse.vllm._mixtures import PackedMixture
    from transfuse.vllm._packer import Packed

logger = init_logger("vllm.transfuse")

# An attribute of the layers that the quantization config was asked about; the others were made without one.
ASKED = "transfuse_asked"

# The parameters by which vLLM finds a folder's files.
_PREPARED_BY = ("model_name_or_path", "subfolder", "revision", "fall_back_to_pt", "allow_patterns_overrides")


class _Report:
    """Collects what became of the layers since the last report."""

    def __init__(self) -> None:
        self.layers: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.dense_bytes: Counter[str] = Counter()
        self.plain: dict[str, list[str]] = {}
        self.encoded: dict[str, list[str]] = {}
        self.fp8_refusals: dict[str, list[str]] = {}
        self.settings, self.is_whole = Settings(), True


_report = _Report()


def note_packed(packed: Packed | PackedMixture) -> None:
    """Counts a layer that serves for the report."""
    _report.layers[packed.layout] += 1
    _report.bytes[packed.layout] += packed.held_bytes
    _report.dense_bytes[packed.layout] += packed.dense_bytes


def note_plain(name: str, reason: str) -> None:
    """Notes a layer that stays as vLLM has it."""
    _report.plain.setdefault(reason, []).append(name)


def expect_excluded(settings: Settings, is_whole: bool) -> None:
    """Has each pattern of `exclude` fit some layer of the next model, or be named when its layers are there.

    Parameters
    ----------
    settings : Settings
        The settings of the model.
    is_whole : bool
        Whether this process has all layers that patterns may mean. If so, one that fits none is an error; if not, the
        log names it.
    """
    _report.settings, _report.is_whole = settings, is_whole


def note_encoded(name: str, reason: str) -> None:
    """Notes a layer that will lie coded, and that has to be encoded for that, at least in part."""
    _report.encoded.setdefault(reason, []).append(name)


def note_fp8_refusal(name: str, reason: str) -> None:
    """Notes a layer that is FP8 in its files, and does not lie as packed FP8."""
    _report.fp8_refusals.setdefault(reason, []).append(name)


def install() -> None:
    """Wraps vLLM's functions; calls after the first one change nothing.

    Raises
    ------
    RuntimeError
        This version of vLLM has other functions.
    """
    _check_parameters(DefaultModelLoader, "_prepare_weights", ["self", *_PREPARED_BY])
    _wrap(loader_utils, "record_metadata_for_reloading", ["model"], _note_model)
    _wrap(DefaultModelLoader, "_get_weights_iterator", ["self", "source"], _read_weights)
    _wrap(DefaultModelLoader, "load_weights", ["self", "model", "model_config"], _load_weights)
    _wrap(layerwise, "_layerwise_process", ["layer", "info"], _make_layer)
    _wrap(base_loader, "finalize_layerwise_processing", ["model", "model_config"], _finish)
    workers = sys.modules.get("vllm.v1.worker.gpu_worker")
    if workers is not None:  # without that module, layers are used without an engine
        for name, around in _graphs.AROUND_WORKER.items():
            _wrap(workers.Worker, name, None, around)


def _check_parameters(owner: Any, name: str, parameters: list[str] | None) -> None:
    """Raises RuntimeError if vLLM has no such function, or if its parameters are others than these; None skips that."""
    function = getattr(owner, name, None)
    found = list(inspect.signature(function).parameters) if function else None
    if found is None or (parameters is not None and found != parameters):
        has = f"has {name}({', '.join(found)})" if found is not None else f"has no {name}"
        raise RuntimeError(
            f"transfuse does not know vLLM {importlib.metadata.version('vllm')}: {owner.__name__} {has}, where "
            f"{name}({', '.join(parameters or ['...'])}) was expected; docs/serving.md says which versions it was "
            "tried with"
        )


def _wrap(owner: Any, name: str, parameters: list[str] | None, around: Callable[..., Any]) -> None:
    _check_parameters(owner, name, parameters)
    wrapped = getattr(owner, name)
    if hasattr(wrapped, "transfuse_wraps"):
        return

    @functools.wraps(wrapped)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(wrapped, *args, **kwargs)

    wrapper.transfuse_wraps = wrapped  # type: ignore[attr-defined]
    setattr(owner, name, wrapper)


def _note_model(note: Callable[..., Any], model: torch.nn.Module) -> None:
    """Notes what a new model looks like, and has vLLM watch all parameters of our layers.

    vLLM does not see a bias before the layer's first load. We have it note the parameters' own loaders, since those
    that watch hold the layer, which would then never be freed.
    """
    from transfuse.vllm._layers import dense_weights_of
    from transfuse.vllm._packer import Packer

    weights = {layer: dense for layer in model.modules() if (dense := dense_weights_of(layer))}
    layers: list[Any] = list(weights)
    for weight in (weight for dense in weights.values() for weight in dense):
        weight.weight_loader = _get_original_loader(weight)  # type: ignore[attr-defined]
    _graphs.forget_changes()
    note(model)
    for layer in layers:
        initialize_online_processing(layer)
    # Containers of experts have memory of their own.
    shapes = {
        layer: [(weight.shape[0], weight.shape[1]) for weight in dense if weight.dim() == 2]
        for layer, dense in weights.items()
    }
    packer = Packer.of(get_layerwise_info(model).restore_device)
    if layers and layers[0].quant_method.settings.layout == "coded":
        packer.expect_encoding(shape for of_layer in shapes.values() for shape in of_layer)
    else:
        # Embeddings and heads have memory of their own, too.
        linear = (of_layer for layer, of_layer in shapes.items() if not isinstance(layer, VocabParallelEmbedding))
        packer.expect(shape for of_layer in linear for shape in of_layer)


def _read_weights(read: Callable[..., Any], loader: Any, source: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields a folder's weights by the source's names; compressed ones are lazy tensors."""
    prepared = loader._prepare_weights(
        source.model_or_path,
        source.subfolder,
        source.revision,
        source.fall_back_to_pt,
        source.allow_patterns_overrides,
    )
    _, files, is_safetensors = prepared[:3]  # newer versions have a fourth
    if not (is_safetensors and _lazy_weight.is_compressed(files)):
        loader._prepare_weights = lambda *_, **__: prepared  # so that the files are not looked for, or fetched, again
        try:
            weights: Iterator[tuple[str, torch.Tensor]] = read(loader, source)
        finally:
            del loader._prepare_weights
        return weights
    from transfuse.vllm._packer import Packer

    Packer.expect_compressed()
    config = loader.load_config
    extra = config.model_loader_extra_config or {}
    if extra.get("enable_multithread_load") or getattr(config, "safetensors_load_strategy", None) not in (None, "lazy"):
        logger.warning(
            "transfuse: %s is compressed: its layers are read one by one, whatever the options of loading say",
            source.model_or_path,
        )
    if loader.counter_before_loading_weights == 0.0:
        loader.counter_before_loading_weights = time.perf_counter()
    # Under expert parallelism vLLM leaves out the experts of other ranks before it reads them.
    local = getattr(loader, "local_expert_ids", None)
    progress = tqdm(
        sorted(files),
        desc="Loading compressed safetensors checkpoint shards",
        disable=not weight_utils.enable_tqdm(loader.load_config.use_tqdm_on_load),
    )
    tensors = _lazy_weight.iterate_dense(progress, skip=lambda name: should_skip_weight(name, local))
    return ((source.prefix + name, tensor) for name, tensor in tensors)


def _load_weights(load: Callable[..., Any], loader: Any, model: torch.nn.Module, model_config: ModelConfig) -> Any:
    """Loads weights with the check that vLLM makes where it quantizes nothing: each weight has to be in a file.

    All layers of the model are there: a pattern that fits none of them is found now, before the files are read.
    """
    if model_config.quantization == METHOD:
        _check_excluded(model)
        if loader.enable_weights_track is None:
            loader.enable_weights_track = True
    return load(loader, model, model_config)


def _make_layer(make: Callable[..., Any], layer: torch.nn.Module, info: Any) -> None:
    """Makes a layer whose weights are all there; where it can be, of compressed tensors, without dense weights."""
    from transfuse.vllm._layers import take_compressed

    if take_compressed(layer):
        info.loaded_weights = [load for load in info.loaded_weights if load[0] != "weight"]
    make(layer, info)


def _finish(finish: Callable[..., Any], model: torch.nn.Module, model_config: ModelConfig) -> None:
    """Finishes the layers that wait, gives tied layers their weights, and reports what became of all of them."""
    finish(model, model_config)
    if model_config.quantization != METHOD:
        return
    from transfuse.vllm import _layers
    from transfuse.vllm._packer import Packer

    for name, layer in model.named_modules():
        weight = layer._parameters.get("weight")
        owner = _layers.find_owner(weight) if weight is not None else None
        if owner is not None and owner is not layer and isinstance(layer, VocabParallelEmbedding):
            if isinstance(layer.quant_method, UnquantizedEmbeddingMethod):  # it was made without a quantization config
                layer.quant_method = owner.quant_method
                layer.transfuse_rows, layer.transfuse_cols = owner.transfuse_rows, owner.transfuse_cols
            _layers.follow_owner(layer)
        for weight in map(layer._parameters.get, ("weight", "w13_weight", "w2_weight")):
            if weight is not None and (weight.is_meta or _layers.find_owner(weight) is not None):
                raise ValueError(f"{name}: nothing gave this layer weights")
    Packer.end()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    _check_excluded(model)  # dummy weights do not come by `_load_weights`
    for name in _find_unasked(model):
        note_plain(name, "the model makes it without a quantization config")
    _write_report()


def _find_unasked(model: torch.nn.Module) -> list[str]:
    """Returns the names of the layers with dense weights that a model makes without a quantization config."""
    return [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, LinearBase | VocabParallelEmbedding | RoutedExperts)
        and not hasattr(layer, ASKED)
        and any(each.dim() > 1 and each.is_floating_point() and not each.is_meta for each in layer.parameters(False))
    ]


def _check_excluded(model: torch.nn.Module) -> None:
    """Raises ValueError, once for a model, if a pattern of the option "exclude" fits no layer of it."""
    global _report
    names = [*_report.plain.get(EXCLUDED, []), *_find_unasked(model)]
    unfitted = ", ".join(map(repr, _report.settings.find_unfitted(names)))
    _report.settings = Settings()
    if not unfitted:
        return
    if not _report.is_whole:
        logger.warning(
            "transfuse: no layer of this model that this process has fits %s of the option 'exclude'", unfitted
        )
        return
    _report = _Report()
    raise ValueError(
        f"transfuse's option 'exclude': no layer fits {unfitted}; names are those of vLLM's layers, in which q_proj, "
        "k_proj and v_proj are one qkv_proj, and gate_proj and up_proj are one gate_up_proj"
    )


def _write_report() -> None:
    global _report
    for layout, count in _report.layers.items():
        logger.info(
            "transfuse: %d layers are %s, in %.2f GiB (%.2f bits a weight; dense: %.2f GiB)",
            count,
            layout,
            _report.bytes[layout] / 2**30,
            16 * _report.bytes[layout] / _report.dense_bytes[layout],
            _report.dense_bytes[layout] / 2**30,
        )
    for reason, names in _report.encoded.items():
        logger.info(
            "transfuse: %d layers were encoded on the CPU, or parts of them, since %s: %s",
            len(names),
            reason,
            _shorten(names),
        )
    for reason, names in _report.fp8_refusals.items():
        logger.info("transfuse: %d layers of FP8 do not lie in packed8: %s: %s", len(names), reason, _shorten(names))
    for reason, names in _report.plain.items():
        logger.info("transfuse: %d layers stay as vLLM has them, since %s: %s", len(names), reason, _shorten(names))
    _report = _Report()


def _shorten(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
