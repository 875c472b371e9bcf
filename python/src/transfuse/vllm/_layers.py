# SPDX-License-Identifier: Apache-2.0
"""The methods of linear layers, embeddings and heads, which make, load, pack and multiply them.

A layer's parameter "weight" is dense, and on the meta device, until all of its weights have arrived. Then vLLM makes
the dense matrix on the GPU, fills it, and calls `process_weights_after_loading`, which packs it. From then on the
parameter is the key of the packed layer (`transfuse.torch.layer_key`): 256 bytes for every layer, so that the graphs
that vLLM compiles and caches do not depend on what layers look like.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Parameter
from vllm.model_executor.layers.linear import LinearMethodBase, register_weight_loader_v2_supported_method
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.utils import dispatch_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload.layerwise import (
    _get_original_loader,
    get_layerwise_info,
    initialize_online_processing,
)
from vllm.model_executor.parameter import ModelWeightParameter
from vllm.model_executor.utils import set_weight_attrs

import transfuse.torch as tt
from transfuse import UnsupportedError
from transfuse.vllm import _coverage, _model_loading
from transfuse.vllm._lazy_weight import LazyWeight, find_fp8_loads, join_rows
from transfuse.vllm._packer import Packed, Packer
from transfuse.vllm._settings import Settings

_linear = torch.ops.transfuse.linear_by_key.default
_embedding = torch.ops.transfuse.embedding_by_key.default

# The attribute of a layer that holds its packed weights, and that of a dense parameter which refers to its layer.
PACKED = "transfuse_packed"
OWNER = "transfuse_owner"

# The GPUs with kernels for packed FP8.
_PACKED8_CAPABILITY = (9, 0)

# What stands before the reason in the library's message.
_REFUSED_AS_FP8 = "the layer cannot be packed as FP8: "


def prepare(settings: Settings) -> None:
    """Makes this process ready for layers of these settings."""
    tt.set_exact(settings.exact)


class _Method:
    """What linear layers and embeddings have in common."""

    # vLLM makes the dense weights of one layer at a time, once all of them have arrived.
    uses_meta_device = True

    # The parameters of a layer whose weights the method makes.
    transfuse_names = ("weight",)

    # Whether the method can serve several layers whose rows follow each other (`load_assembled`).
    takes_assembled = True

    def __init__(self, prefix: str, settings: Settings, is_dummy: bool) -> None:
        self.prefix, self.settings, self.is_dummy = prefix, settings, is_dummy

    def process_weights_after_loading(self, layer: Any) -> None:
        """Packs the dense weights of a layer, and replaces the old weights of one that was packed before.

        Raises
        ------
        ValueError
            Not all of its elements arrived.
        """
        weight = layer.weight
        if weight.dtype == torch.uint8 or is_plain(layer):
            return
        if find_owner(weight) is not layer:
            follow_owner(layer)
            return
        if weight.is_meta:
            raise ValueError(
                f"{self.prefix}: its weights were not loaded layer by layer; this way of loading is not known"
            )
        packed: Packed | None = getattr(layer, PACKED, None)
        if packed is not None or not self.is_dummy:  # only the first weights are dummy ones
            check_arrived(layer, self.prefix, list(layer._parameters))
        if packed is None:
            self._keep(layer, Packer.of(weight.device).pack(weight.data, self.prefix, self.settings.layout))
        else:
            packed.replace(weight.data, self.prefix)
            _set_key(layer, packed)

    def take_compressed(self, layer: Any) -> bool:
        """Makes a layer of compressed tensors as they are, so that vLLM fills no dense weights.

        A coded layer takes their tiles. Parts of tensors that do not begin and end at tiles are decoded, and encoded
        again on the CPU. If all of them are such parts nothing is done here: vLLM makes the dense weights, and the
        whole layer is encoded. A packed layer is made of FP8 with scales; of other tensors, and where the scales do not
        fit, vLLM makes the dense weights, which are packed.

        Returns
        -------
        bool
            Whether the layer has its weights now.

        Raises
        ------
        ValueError
            Not all of its elements arrived.
        """
        info, weight = get_layerwise_info(layer), layer.weight
        if self.is_dummy or info.kernel_tensors is not None or not weight.is_meta or find_owner(weight) is not layer:
            return False
        loads = [arguments for name, arguments in info.loaded_weights if name == "weight"]
        sources = join_rows(_coverage.find_row_sources(weight, loads, _get_original_loader(weight)))
        if self.settings.layout == "coded":
            packed = self._take_coded(layer, sources)
        else:
            packed = self._take_packed8(layer, sources)
            if packed is None and not getattr(layer, "transfuse_fp8_refusal", "") and find_fp8_loads(loads):
                layer.transfuse_fp8_refusal = (
                    "only some of its parts are FP8 in their files"
                    if sources
                    else "its rows are not those of tensors alone, but padded"
                )
        if packed is not None:
            self._keep(layer, packed)
        return packed is not None

    def _take_coded(self, layer: Any, sources: Sequence[torch.Tensor]) -> Packed | None:
        info, weight = get_layerwise_info(layer), layer.weight
        reasons = [_find_reason_to_encode(source) for source in sources]
        if len(sources) > 1 and not self.takes_assembled:
            reasons = ["rows are looked up in them, for which they have to be one tensor"] * len(sources)
        for reason in set(reasons or ["their rows are not those of tensors alone, but padded"]) - {""}:
            _model_loading.note_encoded(self.prefix, reason)
        if all(reasons):
            return None
        check_arrived(layer, self.prefix, list(layer._parameters))
        parts: list[torch.Tensor] = []
        for reason, group in itertools.groupby(zip(reasons, sources, strict=True), key=lambda pair: pair[0]):
            members = [source for _, source in group]
            if reason:
                members = [tt.encode(torch.cat([each.to(info.restore_device, weight.dtype) for each in members]))]
            parts += members
        return Packer.of(info.restore_device).load(parts, tuple(weight.shape))

    def _take_packed8(self, layer: Any, sources: Sequence[torch.Tensor]) -> Packed | None:
        parts = [source for source in sources if isinstance(source, LazyWeight) and source.is_scaled_fp8()]
        if not parts or len(parts) < len(sources):
            return None
        device = get_layerwise_info(layer).restore_device
        if device.type == "cuda" and torch.cuda.get_device_capability(device) != _PACKED8_CAPABILITY:
            layer.transfuse_fp8_refusal = "its products need compute capability 9.0"
            return None
        check_arrived(layer, self.prefix, list(layer._parameters))
        try:
            return Packer.of(device).load_packed8(parts, tuple(layer.weight.shape))
        except UnsupportedError as refusal:
            layer.transfuse_fp8_refusal = refusal.message.rpartition(_REFUSED_AS_FP8)[2]
            return None

    def _keep(self, layer: Any, packed: Packed) -> None:
        """Makes a layer serve with these weights."""
        setattr(layer, PACKED, packed)
        _model_loading.note_packed(packed)
        refusal = getattr(layer, "transfuse_fp8_refusal", "") or packed.layout_reason.removeprefix(_REFUSED_AS_FP8)
        if refusal and packed.layout != "packed8":
            _model_loading.note_fp8_refusal(self.prefix, refusal)
        _set_key(layer, packed)

    def dequantize_weight(self, layer: Any) -> torch.Tensor:
        """Returns the dense weights, [rows][cols]; newer versions of vLLM ask for them by this name."""
        return tt.decode_by_key(layer.weight, layer.transfuse_rows, layer.transfuse_cols, torch.bfloat16)

    @staticmethod
    def _register(layer: Any, weight: Parameter, attributes: dict[str, Any]) -> None:
        """Gives a layer its dense weight, on the meta device, and has vLLM wait for all of it."""
        set_weight_attrs(weight, {OWNER: weakref.ref(layer), **attributes})
        layer.register_parameter("weight", weight)
        layer.transfuse_rows, layer.transfuse_cols = weight.shape
        initialize_online_processing(layer)


def check_arrived(layer: Any, prefix: str, names: Sequence[str]) -> None:
    """Raises ValueError if some element of these parameters of a layer was in no file."""
    loads: dict[str, list[Any]] = {}
    for name, arguments in get_layerwise_info(layer).loaded_weights:
        loads.setdefault(name, []).append(arguments)
    for name in names:
        param = layer._parameters[name]
        if param is None:
            continue
        missing = _coverage.find_missing(param, loads.get(name, []), _get_original_loader(param))
        if missing:
            where = "all of it" if name not in loads else _coverage.describe(missing, tuple(param.shape))
            raise ValueError(
                f"{prefix}.{name}, {list(param.shape)}: no file of the checkpoint has {where}. If the model "
                f'does not use this layer, exclude it: --additional-config \'{{"transfuse": {{"exclude": '
                f'["{prefix}"]}}}}\''
            )


def dense_weights_of(layer: Any) -> list[torch.Tensor]:
    """Returns the dense weights that were made for a layer with our method, and that have not arrived yet."""
    names = getattr(getattr(layer, "quant_method", None), "transfuse_names", ())
    weights = [layer._parameters.get(name) for name in names]
    return [weight for weight in weights if weight is not None and find_owner(weight) is layer]


def take_compressed(layer: Any) -> bool:
    """Does what `_Method.take_compressed` does, for a layer of any method."""
    method = getattr(layer, "quant_method", None)
    return isinstance(method, _Method) and method.take_compressed(layer)


def find_owner(weight: torch.Tensor) -> Any:
    """Returns the layer that a dense weight was made for, or None if it is not ours."""
    reference = getattr(weight, OWNER, None)
    return reference() if reference is not None else None


def is_plain(layer: Any) -> bool:
    """Returns whether a layer with our method has dense weights that are not ours, such as those of a tied layer."""
    return not layer.weight.is_meta and layer.weight.dtype != torch.uint8 and not hasattr(layer.weight, OWNER)


def _find_reason_to_encode(source: torch.Tensor) -> str:
    """Returns why a matrix cannot be a coded layer, or a part of one, as it is; or ""."""
    if not isinstance(source, LazyWeight):
        return "they are not compressed in their files"
    if not source.is_bf16_layer():
        return "they are not compressed as BF16"
    if source.find_tiles() is None:
        return "they are parts of tensors that do not begin and end at multiples of 256 rows and columns"
    return ""


def _set_key(layer: Any, packed: Packed) -> None:
    """Puts the key of a packed layer in the place of a layer's dense weight."""
    if layer.weight is not packed.key:
        del layer.weight
        layer.register_parameter("weight", packed.key)


def follow_owner(layer: Any) -> None:
    """Gives a layer that shares the weight of another one the key of that layer, if it has one yet."""
    owner = find_owner(layer.weight)
    if owner is None:
        raise ValueError("a layer shares the weights of one that is gone")
    packed = getattr(owner, PACKED, None)
    if packed is not None:
        _set_key(layer, packed)


@register_weight_loader_v2_supported_method
class TransfuseLinearMethod(_Method, LinearMethodBase):
    """The method of linear layers, also of merged ones, whose pieces are rows of one matrix."""

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Registers the dense weight on the meta device; parameters as vLLM documents them."""
        weight = ModelWeightParameter(
            data=torch.empty(sum(output_partition_sizes), input_size_per_partition, device="meta", dtype=params_dtype),
            input_dim=1,
            output_dim=0,
            weight_loader=extra_weight_attrs.pop("weight_loader"),
        )
        self._register(layer, weight, extra_weight_attrs)

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Returns x . W^T + bias, [..., rows]."""
        result: torch.Tensor = _linear(x, layer.weight, bias, layer.transfuse_rows)
        return result


class TransfuseEmbeddingMethod(_Method, QuantizeMethodBase):
    """The method of token embeddings and of heads, which may be tied to them."""

    takes_assembled = False

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Registers the dense weight on the meta device; parameters as vLLM documents them."""
        if params_dtype != torch.bfloat16:
            _model_loading.note_plain(self.prefix, f"its weights are {params_dtype}")
            UnquantizedEmbeddingMethod().create_weights(
                layer,
                input_size_per_partition,
                output_partition_sizes,
                input_size,
                output_size,
                params_dtype,
                **extra_weight_attrs,
            )
            return
        weight = Parameter(
            torch.empty(sum(output_partition_sizes), input_size_per_partition, device="meta", dtype=params_dtype),
            requires_grad=False,
        )
        self._register(layer, weight, {"input_dim": 1, "output_dim": 0, **extra_weight_attrs})

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Returns x . W^T + bias, [..., rows], as the head of a model."""
        if layer.weight.dtype != torch.uint8:
            plain: torch.Tensor = dispatch_unquantized_gemm()(layer, x, layer.weight, bias)
            return plain
        result: torch.Tensor = _linear(x, layer.weight, bias, layer.transfuse_rows)
        return result

    def embedding(self, layer: Any, input_: torch.Tensor) -> torch.Tensor:
        """Returns the rows of these ids, [*input_.shape, cols]."""
        if layer.weight.dtype != torch.uint8:
            return torch.nn.functional.embedding(input_, layer.weight)
        result: torch.Tensor = _embedding(
            input_, layer.weight, layer.transfuse_rows, layer.transfuse_cols, torch.bfloat16
        )
        return result

    def tie_weights(self, layer: Any, embed_tokens: Any) -> Any:
        """Gives a head the weights of an embedding."""
        layer.weight = embed_tokens.weight
        return layer
