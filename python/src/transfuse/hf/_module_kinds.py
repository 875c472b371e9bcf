# SPDX-License-Identifier: Apache-2.0
"""The modules with compressed weights that replace those of a model."""

from __future__ import annotations

import torch
from torch import nn

from transfuse._checkpoint import TensorInfo
from transfuse.torch._dtypes import BF16_CODINGS, TORCH_DTYPES
from transfuse.torch._modules import CompressedModule, TransfuseLinear, make_embedding

# These dtypes hold the decoded weights of a codec exactly. Those of int are rounded once, to any of its dtypes.
_ANY = (torch.float32, torch.bfloat16, torch.float16)
_EXACT = {"bf16": (torch.float32, torch.bfloat16), "fp16": (torch.float32, torch.float16)}


def find_taker(module: nn.Module, name: str, tensor: TensorInfo, layout: str) -> tuple[CompressedModule | None, str]:
    """Returns the module that takes a compressed matrix in place of `module.name`, on the meta device.

    Its weight has the length of the blob, so that the framework counts its memory; `layout` is how it will lie there.

    Returns
    -------
    (nn.Module, "") or (None, str)
        The string says why there is none.
    """
    if name != "weight" or len(tensor.shape) != 2 or tensor.layer is None:
        return None, f"{type(module).__name__}.{name} is no weight of a Linear or an Embedding"
    blob = nn.Parameter(torch.empty(tensor.bytes, dtype=torch.uint8, device="meta"), requires_grad=False)
    dtype = TORCH_DTYPES[tensor.layer.dtype]
    # A class derived from nn.Linear may do anything with its weight.
    if type(module) is nn.Linear:
        taker: CompressedModule = TransfuseLinear.from_buffer(
            blob, module.out_features, module.in_features, dtype, module.bias
        )
    elif isinstance(module, nn.Embedding):
        try:
            taker = make_embedding(module, blob)
        except (TypeError, ValueError) as failure:
            return None, str(failure)
        taker.weight_dtype = dtype
    elif type(module).__name__ == "Conv1D":
        return None, "Conv1D has its weights transposed"
    else:
        return None, f"{type(module).__name__} is no Linear and no Embedding"
    taker.expect_layout(layout)
    taker.train(module.training)
    return taker, ""


def _fitting_dtypes(tensor: TensorInfo) -> tuple[torch.dtype, ...]:
    """Returns the dtypes of models that take a blob's weights. BF16 that is coded as FP8 with scales is BF16."""
    is_bf16 = tensor.layer is not None and (tensor.layer.codec, tensor.layer.dtype) in BF16_CODINGS
    return _EXACT.get("bf16" if is_bf16 else str(tensor.codec), _ANY)


def reject_dtype(tensor: TensorInfo, dtype: torch.dtype) -> str:
    """Returns why the weights of a blob do not fit a model of a dtype, or ""."""
    fitting = _fitting_dtypes(tensor)
    if dtype in fitting:
        return ""
    known = " or ".join(f"dtype={fit}" for fit in fitting)
    return f"weights of the codec {tensor.codec} are for {known}, and the model is to be loaded in {dtype}"


def multiplies(tensor: TensorInfo, dtype: torch.dtype) -> bool:
    """Returns whether compressed products take x of a dtype; for others the weights are decoded each time."""
    return dtype in (torch.bfloat16, torch.float16) and dtype in _fitting_dtypes(tensor)
