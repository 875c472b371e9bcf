# SPDX-License-Identifier: Apache-2.0
"""Estimates what a served model takes of each GPU's memory in each layout, and how many requests its cache holds."""

from __future__ import annotations

import dataclasses
import math
import re

from transfuse._checkpoint import CheckpointInfo, TensorInfo
from transfuse._memory_need import is_bf16_layer, packed_bytes
from transfuse._serving_config import NoEstimateError, ServedModel

LAYOUTS = ("packed", "coded", "plain")
# vLLM 0.26: CacheConfig.gpu_memory_utilization, and CacheConfig.DEFAULT_BLOCK_SIZE.
MEMORY_SHARE = 0.92
_BLOCK_TOKENS = 16
# Activations, CUDA graphs, communication and the room to decode a layer take this much. We measured 2.0 GiB, in each
# layout, for a model of 8 billion weights on one H200; there vLLM also counted up to 0.7 GiB more weights than exist.
ALLOWANCE_BYTES = 3 << 30
# An H100 of 80 GB has 79.2 GiB, and an H200 of 141 GB 139.7 GiB.
_SHARE_OF_LABEL = 0.99

CODED_BITS = 10.85
PACKED_BITS = 12.016  # what `packed_bytes` gives for large matrices
_PLAIN_BITS = 16
_PLAIN_BYTES = 2
_LEAST_SIDE = 16  # `compress` leaves what is smaller
_BF16_SHARE = 0.99  # of the weights in matrices; the rest is routers and the like

_LAYER = re.compile(r"(?:model\.|language_model\.|text_model\.)*layers\.(\d+)\.")
_EMBEDDINGS = re.compile(r"(?:^|\.)(?:embed_\w+|wte|wpe|emb|embed|\w*embeddings?|\w+_embed)\.weight$")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.weight$")
_EXPERTS = re.compile(r"\.experts\.")
# vLLM keeps all of these on each GPU.
_ROUTERS = re.compile(r"\.(?:gate|router|shared_expert_gate)(?:\.\w+)*$")
_WHOLE = re.compile(r"\.(?:q_a_proj|kv_a_proj_with_mqa)\.weight$")
_KEYS_OR_VALUES = re.compile(r"\.[kv]_proj\.weight$")
_QUERIES_KEYS_VALUES = re.compile(r"\.(?:qkv_proj|query_key_value)\.weight$")
# vLLM makes heads from the latent vector (MLA) with a plain copy of this matrix.
_LATENT_TO_HEADS = re.compile(r"\.kv_b_proj\.weight$")


@dataclasses.dataclass(frozen=True)
class ServedWeights:
    """Bytes of weights on each GPU.

    Attributes
    ----------
    bytes : dict of str to int
        The bytes of all weights, by layout.
    expert_bytes : int
        The bytes of experts, which lie plain in every layout.
    is_coded_estimated : bool
        Whether the checkpoint is not compressed, so that the size of its coded layers is only estimated.
    """

    bytes: dict[str, int]
    expert_bytes: int
    is_coded_estimated: bool


def count_card_bytes(label_gb: float) -> int:
    """Returns the memory of a card that is sold with so many GB."""
    return int(label_gb * _SHARE_OF_LABEL * (1 << 30))


def count_cache_bytes(card_bytes: int, weight_bytes: int) -> int:
    """Returns the bytes that are left for the KV cache; a negative number says how many are missing."""
    return int(card_bytes * MEMORY_SHARE) - ALLOWANCE_BYTES - weight_bytes


def count_requests(cache_bytes: int, token_bytes: int, context: int) -> int:
    """Returns how many requests of so many tokens a cache holds, in whole blocks as vLLM has them."""
    blocks = max(cache_bytes, 0) // (_BLOCK_TOKENS * token_bytes)
    return blocks // math.ceil(context / _BLOCK_TOKENS)


def _is_surplus(name: str, model: ServedModel) -> bool:
    """Returns whether vLLM leaves a tensor out: a head that is tied, or a layer that predicts further tokens."""
    layer = _LAYER.match(name)
    return bool(layer and int(layer[1]) >= model.layers) or (model.is_tied and bool(_HEAD.search(name)))


def _is_expert(tensor: TensorInfo) -> bool:
    """Returns whether a tensor has experts, one in a tensor of its own or all in one."""
    return bool(_EXPERTS.search(tensor.name)) or len(tensor.shape) == 3


def _cut(size: int, tensor: TensorInfo, model: ServedModel, gpus: int) -> int:
    """Returns the part of a tensor's bytes that each of the GPUs has."""
    name, kv_heads = tensor.name, model.count_kv_heads(gpus)
    if _is_expert(tensor):
        return math.ceil(size / gpus)
    if len(tensor.shape) != 2 or _ROUTERS.search(name) or _WHOLE.search(name):
        return size
    if _KEYS_OR_VALUES.search(name) and not model.is_latent:
        return math.ceil(size * kv_heads / model.kv_heads)
    if _QUERIES_KEYS_VALUES.search(name):
        return math.ceil(size * (model.heads // gpus + 2 * kv_heads) / (model.heads + 2 * model.kv_heads))
    return math.ceil(size / gpus)


def _is_bf16(tensor: TensorInfo) -> bool:
    return tensor.dtype == "BF16" if tensor.layer is None else is_bf16_layer(tensor.layer)


def _is_matrix(tensor: TensorInfo) -> bool:
    return len(tensor.shape) == 2 and min(tensor.shape) >= _LEAST_SIDE


def _count_tensor(tensor: TensorInfo, is_compressed: bool) -> dict[str, int]:
    """Returns a tensor's bytes by layout, on a GPU that has all of it; vLLM keeps F32, too, in the model's BF16."""
    plain = _PLAIN_BYTES * math.prod(tensor.shape)
    sizes = dict.fromkeys(LAYOUTS, plain)
    if _is_expert(tensor) or _ROUTERS.search(tensor.name) or not _is_matrix(tensor):
        return sizes
    if _is_bf16(tensor):
        sizes["packed"] = packed_bytes(*tensor.shape)
    if tensor.compressed:
        sizes["coded"] = tensor.bytes
    elif not is_compressed and _is_bf16(tensor) and not _EMBEDDINGS.search(tensor.name):
        sizes["coded"] = math.ceil(plain * CODED_BITS / _PLAIN_BITS)
    if _LATENT_TO_HEADS.search(tensor.name):
        sizes["packed"] += plain
        sizes["coded"] += plain * (sizes["coded"] != plain)
    return sizes


def count_served_weights(checkpoint: CheckpointInfo, model: ServedModel, gpus: int) -> ServedWeights:
    """Counts what each of the GPUs has of a checkpoint.

    Raises
    ------
    NoEstimateError
        The weights of the checkpoint are not BF16.
    """
    tensors = [tensor for tensor in checkpoint.tensors if not _is_surplus(tensor.name, model)]
    matrices = [tensor for tensor in tensors if len(tensor.shape) >= 2]
    others = [tensor for tensor in matrices if not _is_bf16(tensor)]
    weights = sum(math.prod(tensor.shape) for tensor in matrices)
    if sum(math.prod(tensor.shape) for tensor in others) > (1 - _BF16_SHARE) * weights:
        largest = max(others, key=lambda tensor: math.prod(tensor.shape))
        raise NoEstimateError(f"its weights are not BF16 ({largest.name} is {largest.codec or largest.dtype})")
    if not weights:
        raise NoEstimateError("it has no weights")
    is_compressed = any(tensor.compressed for tensor in checkpoint.tensors)
    total, experts = dict.fromkeys(LAYOUTS, 0), 0
    for tensor in tensors:
        sizes = _count_tensor(tensor, is_compressed)
        for layout in LAYOUTS:
            total[layout] += _cut(sizes[layout], tensor, model, gpus)
        if _is_expert(tensor):
            experts += _cut(sizes["plain"], tensor, model, gpus)
    return ServedWeights(total, experts, not is_compressed)
