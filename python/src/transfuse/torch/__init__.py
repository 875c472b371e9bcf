# SPDX-License-Identifier: Apache-2.0
"""transfuse for PyTorch 2.10 and newer: compressed layers as torch tensors, and the ops on them."""

from __future__ import annotations

from transfuse.torch._ops import decode, embedding, is_exact, linear, set_exact
from transfuse.torch._registry import Checkpoint, adopt, blob_info, encode, forget, load_blob, open_checkpoint

__all__ = [
    "Checkpoint",
    "adopt",
    "blob_info",
    "decode",
    "embedding",
    "encode",
    "forget",
    "is_exact",
    "linear",
    "load_blob",
    "open_checkpoint",
    "set_exact",
]
