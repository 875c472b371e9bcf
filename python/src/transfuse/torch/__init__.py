# SPDX-License-Identifier: Apache-2.0
"""transfuse for PyTorch 2.10 and newer: compressed layers as torch tensors, ops on them, and modules made of them."""

from __future__ import annotations

from transfuse.torch._compress import CompressedWeight, ModelReport, compress_model
from transfuse.torch._experts import TransfuseExperts, get_dense_tokens, set_dense_tokens
from transfuse.torch._modules import TransfuseEmbedding, TransfuseLinear
from transfuse.torch._ops import decode, embedding, is_exact, linear, set_exact
from transfuse.torch._registry import Checkpoint, adopt, blob_info, encode, forget, load_blob, open_checkpoint

__all__ = [
    "Checkpoint",
    "CompressedWeight",
    "ModelReport",
    "TransfuseEmbedding",
    "TransfuseExperts",
    "TransfuseLinear",
    "adopt",
    "blob_info",
    "compress_model",
    "decode",
    "embedding",
    "encode",
    "forget",
    "get_dense_tokens",
    "is_exact",
    "linear",
    "load_blob",
    "open_checkpoint",
    "set_dense_tokens",
    "set_exact",
]
