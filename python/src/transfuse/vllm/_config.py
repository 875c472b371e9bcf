# SPDX-License-Identifier: Apache-2.0
"""The quantization config decides which method each layer of a model gets."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from vllm import envs
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from transfuse.hf._config_fields import check_loadable
from transfuse.vllm._settings import Settings, read_settings

# The value of vLLM's option --quantization, and of "quant_method" in a compressed folder's config.json.
METHOD = "transfuse"

# Load formats whose loaders write weights to parameters themselves, and would not notice that there are none yet.
_OTHER_LOADERS = (
    "sharded_state",
    "runai_streamer_sharded",
    "tensorizer",
    "bitsandbytes",
    "modelexpress",
    "ipc_cache",
)

# Why the layers stay as vLLM has them that a pattern of the option "exclude" fits.
EXCLUDED = "it is excluded"

# A router decides by small differences, and has few weights.
_ROUTERS = ("gate", "router", "shared_expert_gate", "expert_gate")


class TransfuseConfig(QuantizationConfig):
    """Tells vLLM the method of each layer.

    Parameters
    ----------
    fields : mapping, optional
        The "quantization_config" of a compressed folder's config.json; None for a folder that is not compressed.

    Raises
    ------
    UnsupportedError
        The folder was compressed for storage alone.
    """

    def __init__(self, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.fields = dict(fields) if fields is not None else None
        check_loadable((self.fields or {}).get("stored"))
        self._settings: Settings | None = None

    def __repr__(self) -> str:
        return f"TransfuseConfig({'a compressed folder' if self.fields else 'weights as they are'})"

    @classmethod
    def get_name(cls) -> Any:
        """Returns the name of the method."""
        return METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """Returns the dtypes that x may have: only BF16, the dtype of the weights."""
        return [torch.bfloat16]

    @classmethod
    def get_min_capability(cls) -> int:
        """Returns the least compute capability, times ten."""
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Returns no file name: a folder that is not compressed has no file that mentions us."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TransfuseConfig:
        """Makes the config of a compressed folder."""
        return cls(config)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """Returns the method of a layer: ours for linear layers, embeddings, heads and experts, vLLM's for others.

        Parameters
        ----------
        layer : torch.nn.Module
            A layer under construction.
        prefix : str
            Its name in the model.

        Raises
        ------
        ValueError
            A setting of vLLM would be ignored, or would damage the weights.
        """
        from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
        from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

        if isinstance(layer, LinearBase):
            unquantized: type[QuantizeMethodBase] = UnquantizedLinearMethod
        elif isinstance(layer, VocabParallelEmbedding):
            unquantized = UnquantizedEmbeddingMethod
        elif isinstance(layer, RoutedExperts):
            unquantized = UnquantizedFusedMoEMethod
        else:
            return None  # vLLM's own methods serve attention
        # These are imported only here, since vLLM makes configs before it forks the process that uses the GPU.
        try:
            from transfuse.vllm import _layers, _mixtures, _model_loading
        except ImportError as failure:
            if not (failure.name or "").startswith("vllm"):
                raise
            raise RuntimeError(
                f"transfuse does not know vLLM {version('vllm')}: {failure}; docs/serving.md says which versions it was"
                " tried with"
            ) from failure

        vllm_config = get_current_vllm_config()
        if self._settings is None:
            self._settings = read_settings(vllm_config.additional_config)
            _check(vllm_config)
            _model_loading.install()
            _model_loading.expect_excluded(self._settings, _is_whole(vllm_config))
            _layers.prepare(self._settings)
        setattr(layer, _model_loading.ASKED, True)
        is_mixture = isinstance(layer, RoutedExperts)
        reason = self._find_reason_against(layer, prefix, vllm_config)
        if is_mixture:
            reason = reason or _mixtures.find_reason_against(layer, self._settings)
        if reason:
            _model_loading.note_plain(prefix, reason)
            return unquantized(*([layer.moe_config] if is_mixture else []))
        is_dummy = vllm_config.load_config.load_format == "dummy"
        if is_mixture:
            return _mixtures.TransfuseExpertsMethod(prefix, self._settings, is_dummy, layer.moe_config)
        if unquantized is UnquantizedLinearMethod:
            return _layers.TransfuseLinearMethod(prefix, self._settings, is_dummy)
        return _layers.TransfuseEmbeddingMethod(prefix, self._settings, is_dummy)

    def _find_reason_against(self, layer: torch.nn.Module, prefix: str, vllm_config: VllmConfig) -> str:
        """Returns why a layer stays as vLLM has it, or ""."""
        assert self._settings is not None
        if self._settings.is_excluded(prefix):
            return EXCLUDED
        if isinstance(layer, LinearBase):
            if prefix.rpartition(".")[2] in _ROUTERS:
                return "it is a router"
            if layer.params_dtype != torch.bfloat16:
                return f"its weights are {layer.params_dtype}"
        elif isinstance(layer, ParallelLMHead):
            head_dtype = getattr(vllm_config.model_config, "head_dtype", None)
            if head_dtype not in (None, torch.bfloat16):
                return f"the head multiplies in {head_dtype}"
        return ""


def _is_whole(vllm_config: VllmConfig) -> bool:
    """Returns whether a process has all layers in one model: no stages of a pipeline, and no second one that drafts."""
    return vllm_config.parallel_config.pipeline_parallel_size == 1 and vllm_config.speculative_config is None


def _check(vllm_config: VllmConfig) -> None:
    """Raises ValueError for options of vLLM that would be ignored, or would damage the weights."""
    load_format = vllm_config.load_config.load_format
    if load_format in _OTHER_LOADERS:
        raise ValueError(
            f"--load-format {load_format} writes weights to memory that --quantization transfuse does not have; leave "
            "the option out"
        )
    if envs.VLLM_BATCH_INVARIANT:
        raise ValueError(
            "VLLM_BATCH_INVARIANT=1 wants products whose sums do not depend on the batch, which --quantization "
            "transfuse does not have; leave out one of the two"
        )
    offload = vllm_config.offload_config
    if offload.uva.cpu_offload_gb or offload.prefetch.offload_group_size:
        raise ValueError(
            "weights cannot be offloaded to the CPU under --quantization transfuse; leave out --cpu-offload-gb and "
            "--offload-group-size"
        )
