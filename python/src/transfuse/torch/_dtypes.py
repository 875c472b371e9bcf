# SPDX-License-Identifier: Apache-2.0
"""torch's dtypes by the names that safetensors has for them, which are those of LayerInfo.dtype."""

from __future__ import annotations

import torch

TORCH_DTYPES: dict[str, torch.dtype] = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
}

# By codec and dtype: how BF16 weights are coded without loss, as they are and as the FP8 that they were.
BF16_CODINGS = {("bf16", "BF16"), ("fp8_e4m3", "BF16")}
