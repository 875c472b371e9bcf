# SPDX-License-Identifier: Apache-2.0
"""transfuse for PyTorch 2.10 and newer: compressed layers as torch tensors, ops on them, and modules made of them."""

from __future__ import annotations

from transfuse._threads import Cancel
from transfuse.torch import _weight_guard
from transfuse.torch._compress import CompressedWeight, ModelReport, compress_model
from transfuse.torch._containers import container_buffers, make_container
from transfuse.torch._encode import encode
from transfuse.torch._experts import TransfuseExperts, get_experts_decode_threshold, set_experts_decode_threshold
from transfuse.torch._grouping import install, is_grouping, set_grouping
from transfuse.torch._layouts import convert_layer
from transfuse.torch._load import Checkpoint, load_layer, open_checkpoint
from transfuse.torch._model_layout import set_layout
from transfuse.torch._modules import TransfuseEmbedding, TransfuseLinear
from transfuse.torch._ops import (
    decode,
    decode_by_key,
    decode_experts,
    decode_experts_into,
    embedding,
    embedding_by_key,
    experts,
    is_exact,
    linear,
    linear_by_key,
    linear_group,
    moe,
    moe_by_key,
    set_exact,
)
from transfuse.torch._packed_experts import pack_experts
from transfuse.torch._registry import (
    adopt,
    check_experts_dtype,
    expert_infos,
    forget,
    join_rows,
    layer_info,
    layer_key,
    layer_layout,
    layout_reason,
    pack,
    repack,
)
from transfuse.torch._verify import verify_layer, verify_model

__all__ = [
    "Cancel",
    "Checkpoint",
    "CompressedWeight",
    "ModelReport",
    "TransfuseEmbedding",
    "TransfuseExperts",
    "TransfuseLinear",
    "adopt",
    "check_experts_dtype",
    "compress_model",
    "container_buffers",
    "convert_layer",
    "decode",
    "decode_by_key",
    "decode_experts",
    "decode_experts_into",
    "embedding",
    "embedding_by_key",
    "encode",
    "expert_infos",
    "experts",
    "forget",
    "get_experts_decode_threshold",
    "is_exact",
    "is_grouping",
    "join_rows",
    "layer_info",
    "layer_key",
    "layer_layout",
    "layout_reason",
    "linear",
    "linear_by_key",
    "linear_group",
    "load_layer",
    "make_container",
    "moe",
    "moe_by_key",
    "open_checkpoint",
    "pack",
    "pack_experts",
    "repack",
    "set_exact",
    "set_experts_decode_threshold",
    "set_grouping",
    "set_layout",
    "verify_layer",
    "verify_model",
]

install()
_weight_guard.install()
