# SPDX-License-Identifier: Apache-2.0
"""transfuse for PyTorch 2.10 and newer: compressed layers as torch tensors, and the ops on them."""

from __future__ import annotations

from transfuse.torch._containers import pack_experts, unpack_experts
from transfuse.torch._ops import (
    decode,
    decode_experts,
    embedding,
    experts,
    is_exact,
    linear,
    linear_group,
    set_exact,
)
from transfuse.torch._registry import (
    Cancel,
    Checkpoint,
    adopt,
    blob_info,
    check_experts,
    encode,
    expert_infos,
    forget,
    load_blob,
    open_checkpoint,
)

__all__ = [
    "Cancel",
    "Checkpoint",
    "adopt",
    "blob_info",
    "check_experts",
    "decode",
    "decode_experts",
    "embedding",
    "encode",
    "expert_infos",
    "experts",
    "forget",
    "is_exact",
    "linear",
    "linear_group",
    "load_blob",
    "open_checkpoint",
    "pack_experts",
    "set_exact",
    "unpack_experts",
]
