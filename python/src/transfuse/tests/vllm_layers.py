# SPDX-License-Identifier: Apache-2.0
"""Layers of vLLM without an engine, on the CPU, as one rank of several: what tests of the plugin share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch


@contextmanager
def layers_of_rank(rank: int = 0, ranks: int = 1, **additional_config: Any) -> Iterator[Any]:
    """A block in which layers of vLLM are those of one rank; gives the quantization config for them.

    No process group is there: layers can be made, loaded and called, but nothing is reduced.
    """
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor import parameter
    from vllm.model_executor.layers import linear, vocab_parallel_embedding
    from vllm.model_executor.layers.fused_moe import config as moe_config
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as moe_method
    from vllm.model_executor.layers.quantization import get_quantization_config

    from transfuse.vllm import register

    register()
    config = VllmConfig(device_config=DeviceConfig(device="cpu"), additional_config=additional_config)
    before = torch.get_default_dtype()
    with ExitStack() as stack:
        for module in (linear, vocab_parallel_embedding, parameter):
            patch = mock.patch.multiple(
                module,
                get_tensor_model_parallel_rank=lambda: rank,
                get_tensor_model_parallel_world_size=lambda: ranks,
            )
            stack.enter_context(patch)
        on_cpu = moe_method.UnquantizedMoeBackend.CPU, None  # whatever this machine has
        stack.enter_context(mock.patch.object(moe_method, "select_unquantized_moe_backend", lambda **_: on_cpu))
        stack.enter_context(mock.patch.object(moe_config, "get_tensor_model_parallel_rank", lambda: rank))
        for module in (linear, vocab_parallel_embedding):
            stack.enter_context(mock.patch.object(module, "tensor_model_parallel_all_reduce", lambda x: x))
        stack.enter_context(set_current_vllm_config(config))
        stack.enter_context(torch.no_grad())
        torch.set_default_dtype(torch.bfloat16)
        try:
            yield get_quantization_config("transfuse")()
        finally:
            torch.set_default_dtype(before)


def make_model(**layers: torch.nn.Module) -> torch.nn.Module:
    """Returns a model of these layers, as vLLM's loader gets it."""
    from vllm.model_executor.model_loader import utils

    model = torch.nn.Module()
    for name, layer in layers.items():
        model.add_module(name, layer)
    utils.record_metadata_for_reloading(model)
    return model


def load(model: torch.nn.Module, weights: Iterable[tuple[str, torch.Tensor, Any]]) -> None:
    """Loads tensors, each with the name of the parameter and the shard that it is, or None."""
    parameters: dict[str, Any] = dict(model.named_parameters())
    for name, tensor, shard in weights:
        parameter = parameters[name]
        parameter.weight_loader(*([parameter, tensor] if shard is None else [parameter, tensor, shard]))


def finish(model: torch.nn.Module) -> None:
    """What vLLM does behind the last tensor."""
    from vllm.model_executor.model_loader import base_loader

    base_loader.finalize_layerwise_processing(model, _ModelConfig())  # type: ignore[arg-type]
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(module)


class _ModelConfig:
    quantization, dtype = "transfuse", torch.bfloat16


def random_weights(*shape: int, seed: int = 0) -> torch.Tensor:
    """Returns BF16 weights N(0, 0.02)."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator, dtype=torch.float32) * 0.02).to(torch.bfloat16)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a BF16 tensor as integers, so that NaNs and zeros are compared as bits."""
    return tensor.contiguous().view(torch.int16)


def qkv_shards(weights: Mapping[str, torch.Tensor], name: str) -> list[tuple[str, torch.Tensor, Any]]:
    """Returns q, k and v as `load` takes them."""
    return [(name, weights[shard], shard) for shard in ("k", "q", "v")]
