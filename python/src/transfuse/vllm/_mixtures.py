# SPDX-License-Identifier: Apache-2.0
"""The method of mixtures of experts, whose weights are packed as they arrive and multiplied packed.

A layer's parameters "w13_weight" (gate and up) and "w2_weight" (down) are dense, and on the meta device, until the
weights of all experts have arrived. Then vLLM makes the dense tensors of this one layer on the GPU, fills them, and
calls `process_weights_after_loading`, which packs one expert after the other into two containers. From then on the
parameters are the containers' keys. vLLM routes tokens itself, and sums up over ranks.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEQuantConfig
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.oracle.unquantized import (
    convert_to_unquantized_kernel_format,
    make_unquantized_moe_kernel,
)
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info, initialize_online_processing
from vllm.model_executor.utils import set_weight_attrs
from vllm.platforms import current_platform

import transfuse.torch as tt
from transfuse import UnsupportedError
from transfuse.torch._packed_experts import pack_experts_quietly
from transfuse.vllm import _graphs, _layers, _model_loading
from transfuse.vllm._lazy_weight import find_fp8_loads
from transfuse.vllm._settings import Settings

logger = init_logger("vllm.transfuse")

_moe = torch.ops.transfuse.moe_by_key.default

_ACTIVATIONS = {MoEActivation.SILU: "silu", MoEActivation.GELU_TANH: "gelu_tanh"}

# What the library takes: sizes are multiples of this, and a GPU has this capability.
_SIDE = 8
_FOUND_BLOCK = 128  # FP8 is found by these scale blocks
_MOST_EXPERTS = 512
_MOST_ROUTES = 32
_CAPABILITY = (9, 0)


@dataclasses.dataclass
class _Container:
    """A container of packed experts, [experts][rows][cols], that serves.

    `key` is a view of its first 256 bytes, a parameter; `place` is the memory that it may take, at whose beginning it
    lies.
    """

    buffer: torch.Tensor
    key: Parameter
    place: torch.Tensor
    shape: tuple[int, int, int]

    @classmethod
    def of(cls, buffer: torch.Tensor, shape: torch.Size) -> _Container:
        experts, rows, cols = shape
        return cls(buffer, Parameter(tt.layer_key(buffer), requires_grad=False), buffer, (experts, rows, cols))

    @property
    def layout(self) -> str:
        """How the experts lie, "packed" or "packed8"."""
        return tt.layer_layout(tt.container_buffers(self.buffer)[0])

    def decode(self) -> torch.Tensor:
        """Returns the dense experts, rows of gate before those of up."""
        return tt.decode_experts(self.buffer, *self.shape, torch.bfloat16)

    def replace(self, made: torch.Tensor) -> None:
        """Puts another container where this one lies, or, if it is larger, takes it as it is."""
        tt.forget(self.buffer)
        if made.numel() > self.place.numel():
            self.place = self.buffer = made
            self.key.data = tt.layer_key(made)
            return
        self.buffer = self.place[: made.numel()]
        self.buffer.copy_(made)
        tt.forget(made)
        tt.adopt(self.buffer)


@dataclasses.dataclass
class PackedMixture:
    """The experts of a layer that serves: gate and up, and down."""

    gate_up: _Container
    down: _Container

    @property
    def layout(self) -> str:
        """What reports call them: "packed experts", or "packed8 experts" if both containers are packed FP8."""
        are_fp8 = all(each.layout == "packed8" for each in (self.gate_up, self.down))
        return "packed8 experts" if are_fp8 else "packed experts"

    @property
    def held_bytes(self) -> int:
        """The number of bytes that the experts take."""
        return self.gate_up.buffer.numel() + self.down.buffer.numel()

    @property
    def dense_bytes(self) -> int:
        """The number of bytes that the weights take in BF16."""
        return sum(2 * experts * rows * cols for experts, rows, cols in (self.gate_up.shape, self.down.shape))


def find_reason_against(layer: Any, settings: Settings) -> str:
    """Returns why the experts of a layer under construction stay as vLLM has them, or ""."""
    moe: FusedMoEConfig = layer.moe_config
    parallel = moe.moe_parallel_config
    swiglu = (layer.swiglu_limit, layer.swiglu_alpha, layer.swiglu_beta)
    inner, hidden = moe.intermediate_size_per_partition, moe.hidden_dim
    is_on_cpu = torch.device(moe.device).type == "cpu"
    reasons = {
        "experts lie packed or not at all, and the layout is coded": settings.layout == "coded",
        f"their weights are {layer.params_dtype}": layer.params_dtype != torch.bfloat16,
        f"their activation is {moe.activation.value}": moe.activation not in _ACTIVATIONS,
        "their activation has limits": any(each is not None for each in swiglu),
        "their tokens are weighted before the experts": layer.apply_router_weight_on_input,
        "their tokens travel between ranks of data, sequence or context parallelism": (
            parallel.dp_size > 1
            or parallel.pcp_size > 1
            or parallel.is_sequence_parallel
            or parallel.use_all2all_kernels
        ),
        "they are moved between ranks to balance load": parallel.enable_eplb,
        "LoRA changes them": moe.is_lora_enabled,
        "they have biases, which models load past the parameters' loaders": moe.has_bias,
        f"their sizes, {inner} and {hidden}, are not multiples of {_SIDE}": bool(inner % _SIDE or hidden % _SIDE),
        f"there are more than {_MOST_EXPERTS} of them": moe.num_local_experts > _MOST_EXPERTS,
        f"a token has more than {_MOST_ROUTES} of them": moe.experts_per_token > _MOST_ROUTES,
        "packed experts need a GPU of compute capability 9.0": (
            not is_on_cpu and current_platform.get_device_capability() != _CAPABILITY
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _make_late_loader(layer: Any, prefix: str) -> Callable[..., bool | None]:
    """Returns what loads weights that arrive when a layer's own have been packed.

    With expert parallelism these are other ranks' experts, which vLLM's loaders are given, too, and pass over.
    """
    reference = weakref.ref(layer)

    def load_late(
        param: Parameter,
        loaded_weight: torch.Tensor,
        weight_name: str,
        shard_id: str,
        expert_id: int,
        return_success: bool = False,
    ) -> bool | None:
        owner = reference()
        assert owner is not None
        if owner._map_global_expert_id_to_local_expert_id(expert_id) != -1:
            raise ValueError(f"{prefix}: {weight_name} of expert {expert_id} ({shard_id}) arrived a second time")
        return False if return_success else None

    return load_late


class TransfuseExpertsMethod(FusedMoEMethodBase):
    """The method of the experts of one layer. Where they cannot be packed they are served by vLLM's own method."""

    # vLLM makes the dense weights of one layer at a time, once all of them have arrived.
    uses_meta_device = True

    # The parameters of a layer whose weights the method makes.
    transfuse_names = ("w13_weight", "w2_weight")

    def __init__(self, prefix: str, settings: Settings, is_dummy: bool, moe: FusedMoEConfig) -> None:
        super().__init__(moe)
        self.prefix, self.settings, self.is_dummy = prefix, settings, is_dummy
        self._plain = UnquantizedFusedMoEMethod(moe)
        self._is_plain = False

    @property
    def is_monolithic(self) -> bool:
        """Whether the method routes tokens itself; ours does not."""
        return self._is_plain and bool(self._plain.is_monolithic)

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Registers the dense weights on the meta device; parameters as vLLM documents them."""
        rows = 2 * intermediate_size_per_partition
        shapes = {
            "w13_weight": (num_experts, rows, hidden_size),
            "w2_weight": (num_experts, hidden_size, intermediate_size_per_partition),
        }
        for name, shape in shapes.items():
            weight = Parameter(torch.empty(shape, device="meta", dtype=params_dtype), requires_grad=False)
            set_weight_attrs(weight, {_layers.OWNER: weakref.ref(layer), **extra_weight_attrs})
            layer.register_parameter(name, weight)
        initialize_online_processing(layer)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Packs the dense weights of a layer, and replaces the old weights of one that was packed before.

        Raises
        ------
        ValueError
            Not all of its elements arrived.
        UnsupportedError
            The weights that are to replace packed ones cannot be packed.
        """
        gate_up, down = layer.w13_weight, layer.w2_weight
        if gate_up.dtype == torch.uint8 or _layers.find_owner(gate_up) is not layer:
            return
        if gate_up.is_meta or down.is_meta:
            raise ValueError(
                f"{self.prefix}: its weights were not loaded layer by layer; this way of loading is not known"
            )
        packed: PackedMixture | None = getattr(layer, _layers.PACKED, None)
        is_first = packed is None and not self._is_plain
        if not (is_first and self.is_dummy):  # only the first weights are dummy ones
            _layers.check_arrived(layer, self.prefix, self.transfuse_names)
        if packed is not None:
            self._replace(layer, packed)
        elif self._is_plain or not self._pack(layer):
            self._serve_plain(layer)

    def _pack(self, layer: Any) -> bool:
        """Packs the experts, and returns whether that makes them smaller; if not, nothing has changed."""
        gate_up, down = layer.w13_weight, layer.w2_weight
        if gate_up.is_cuda:
            torch.cuda.empty_cache()  # so that containers do not come to lie in parts of what was freed
        try:
            made = PackedMixture(
                _Container.of(pack_experts_quietly(gate_up.data, interleave=True), gate_up.shape),
                _Container.of(pack_experts_quietly(down.data, interleave=False), down.shape),
            )
        except UnsupportedError as refusal:
            _model_loading.note_plain(self.prefix, f"they cannot be packed ({refusal.message})")
            return False
        if made.held_bytes >= made.dense_bytes:
            _model_loading.note_plain(self.prefix, "packing does not make them smaller")
            return False
        setattr(layer, _layers.PACKED, made)
        for container in (made.gate_up, made.down):
            set_weight_attrs(container.key, {"weight_loader": _make_late_loader(layer, self.prefix)})
        _model_loading.note_packed(made)
        for reason in self._find_fp8_refusals(layer, made):
            _model_loading.note_fp8_refusal(self.prefix, reason)
        self._set_keys(layer, made)
        if self.settings.exact:
            self._make_exact(layer)
        return True

    def _find_fp8_refusals(self, layer: Any, made: PackedMixture) -> set[str]:
        """Returns why containers of FP8 lie packed as BF16.

        vLLM fills dense weights, so FP8 has to be found in them again.
        """
        reasons = set()
        for name, container in zip(self.transfuse_names, (made.gate_up, made.down), strict=True):
            loads = [load for of, load in get_layerwise_info(layer).loaded_weights if of == name]
            in_files = find_fp8_loads(loads)
            reason = tt.layout_reason(container.buffer)
            if container.layout == "packed" and in_files and not reason:
                kinds = sorted({each.info.layer.granularity for each in in_files if each.info.layer is not None})
                found = f"{_FOUND_BLOCK}x{_FOUND_BLOCK} of a rank's weights"
                reason = f"experts are searched for scales of {found}, and their files have {' and '.join(kinds)}"
            reasons.add(reason)
        return reasons - {""}

    def _replace(self, layer: Any, packed: PackedMixture) -> None:
        """Packs new weights, puts them where the old ones lie, and has graphs captured again."""
        gate_up = pack_experts_quietly(layer.w13_weight.data, interleave=True)
        down = pack_experts_quietly(layer.w2_weight.data, interleave=False)
        _graphs.note_changed(self.prefix)
        packed.gate_up.replace(gate_up)
        packed.down.replace(down)
        self._set_keys(layer, packed)

    @staticmethod
    def _set_keys(layer: Any, packed: PackedMixture) -> None:
        """Puts the keys of the containers in the place of the dense weights."""
        for name, container in (("w13_weight", packed.gate_up), ("w2_weight", packed.down)):
            if getattr(layer, name) is not container.key:
                delattr(layer, name)
                layer.register_parameter(name, container.key)

    def _serve_plain(self, layer: Any) -> None:
        """Has vLLM's own method serve the dense weights."""
        self._plain.process_weights_after_loading(layer)
        self._is_plain, self.moe_kernel = True, self._plain.moe_kernel
        for name in self.transfuse_names:
            vars(layer._parameters[name]).pop(_layers.OWNER, None)

    def _make_exact(self, layer: Any) -> None:
        """Makes vLLM's kernel, which exact mode gives decoded experts."""
        plain = self._plain
        if plain.is_monolithic or plain.experts_cls is None:
            raise ValueError(
                f"{self.prefix}: exact mode needs vLLM's products of experts that are routed before, which this device "
                f'does not have; exclude it: --additional-config \'{{"transfuse": {{"exclude": ["{self.prefix}"]}}}}\''
            )
        plain.moe_quant_config = plain.get_fused_moe_quant_config(layer)
        plain.moe_kernel = make_unquantized_moe_kernel(
            quant_config=plain.moe_quant_config,
            moe_config=self.moe,
            backend=plain.unquantized_backend,
            experts_cls=plain.experts_cls,
            routing_tables=layer._expert_routing_tables(),
        )

    def get_fused_moe_quant_config(self, layer: Any) -> FusedMoEQuantConfig | None:
        """Returns what vLLM's own method returns: that nothing is quantized."""
        return self._plain.get_fused_moe_quant_config(layer)

    def maybe_make_prepare_finalize(self, routing_tables: Any = None) -> None:
        """Returns None: no tokens travel between ranks."""
        return

    def dequantize_weight(self, layer: Any, name: str) -> torch.Tensor:
        """Returns the dense experts of a packed layer's parameter "w13_weight" or "w2_weight"."""
        packed: PackedMixture = getattr(layer, _layers.PACKED)
        return (packed.gate_up if name == "w13_weight" else packed.down).decode()

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        """Returns the sum of each token's experts of this rank, [tokens][hidden]; shared experts are vLLM's."""
        if self._is_plain:
            plain: torch.Tensor = self._plain.apply(
                layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input
            )
            return plain
        if self.settings.exact:
            return self._apply_exact(layer, x, topk_weights, topk_ids)
        result: torch.Tensor = _moe(
            x,
            topk_ids,
            topk_weights.float(),
            layer.w13_weight,
            layer.w2_weight,
            layer.expert_map,
            None,
            None,
            _ACTIVATIONS[layer.activation],
            layer.global_num_experts if layer.expert_map is not None else 0,
        )
        return result

    def _apply_exact(
        self, layer: Any, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor
    ) -> torch.Tensor:
        """Returns what vLLM's own kernel makes of the decoded experts."""
        packed: PackedMixture = getattr(layer, _layers.PACKED)
        gate_up, down = convert_to_unquantized_kernel_format(
            self._plain.unquantized_backend,
            moe_config=layer.moe_config,
            w13_weight=packed.gate_up.decode(),
            w2_weight=packed.down.decode(),
        )
        assert self._plain.moe_kernel is not None
        result: torch.Tensor = self._plain.moe_kernel.apply(
            hidden_states=x,
            w1=gate_up,
            w2=down,
            topk_weights=topk_weights,
            topk_ids=topk_ids,
            activation=layer.activation,
            apply_router_weight_on_input=False,
            global_num_experts=layer.global_num_experts,
            expert_map=layer.expert_map,
            shared_experts=None,
            shared_experts_input=None,
        )
        return result

    def apply_monolithic(
        self, layer: Any, x: torch.Tensor, router_logits: torch.Tensor, input_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns the result of vLLM's own method, which routes tokens itself; only experts that are not packed."""
        result: torch.Tensor = self._plain.apply_monolithic(layer, x, router_logits, input_ids)
        return result
