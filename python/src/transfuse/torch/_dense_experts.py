# SPDX-License-Identifier: Apache-2.0
"""Makes compressed experts of the dense ones of a module of transformers, packed or coded.

The results are arguments of `replace_experts`, which gives the module the compressed experts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from transfuse._errors import Status, UnsupportedError, make_error
from transfuse.torch import _layouts, _packed_experts
from transfuse.torch._containers import make_container
from transfuse.torch._encode import encode
from transfuse.torch._experts import get_expert_names


def encode_experts(module: nn.Module, **options: Any) -> dict[str, Tensor]:
    """Encodes the dense experts of a module, gate and up apart where it keeps them one after the other.

    Parameters
    ----------
    module : nn.Module
        A module for which `find_experts_obstacle` returns None.
    **options
        The options of `transfuse.Layer.encode`.

    Returns
    -------
    dict of str to Tensor
        The arguments of `replace_experts`, on the device of the weights.
    """
    weights = {name: module._parameters[name] for name in get_expert_names(module)}
    parts: dict[str, Tensor] = {}
    for name, weight in weights.items():
        assert weight is not None
        if name == "gate_up_proj" and module.is_concatenated:
            parts["gate"], parts["up"] = weight.detach().chunk(2, dim=1)
        else:
            parts[name.removesuffix("_proj")] = weight.detach()
    return {
        key: make_container([encode(expert, **options) for expert in part.cpu()]).to(part.device)
        for key, part in parts.items()
    }


def pack_dense_experts(module: nn.Module, *, packed_bf16: bool = False) -> dict[str, Tensor]:
    """Packs the dense experts of a module, [experts][rows][columns] of BF16, on the device where they lie.

    Parameters
    ----------
    module : nn.Module
        A module for which `find_experts_obstacle` returns None.
    packed_bf16 : bool
        As in `pack_experts`.

    Returns
    -------
    dict of str to Tensor
        The arguments of `replace_experts`.

    Raises
    ------
    UnsupportedError
        These experts cannot run packed, or their weights cannot be packed.
    """
    first, down = (module._parameters[name] for name in get_expert_names(module))
    assert first is not None and down is not None
    reason = _packed_experts.find_packing_obstacle(module, down.device)
    reason = reason or _packed_experts.find_shape_obstacle(first.shape, down.device)
    if reason is None and {first.dtype, down.dtype} != {torch.bfloat16}:
        reason = f"packed layers are of BF16, and not of {first.dtype}"
    if reason:
        raise make_error(Status.TRF_ERR_UNSUPPORTED, reason)
    return {
        "gate_up": _packed_experts.pack_experts_quietly(first, interleave=True, packed_bf16=packed_bf16),
        "down": _packed_experts.pack_experts_quietly(down, interleave=False, packed_bf16=packed_bf16),
    }


def lay_out_experts(module: nn.Module, layout: str, options: dict[str, Any]) -> tuple[dict[str, Tensor], str]:
    """Makes the experts of a dense module, packed or coded.

    With options that leave the form of blobs to the library BF16 experts are packed without the encoder. A layout that
    does not take them gives coded ones.

    Parameters
    ----------
    module : nn.Module
        A module for which `find_experts_obstacle` returns None.
    layout : str
        "coded", "packed" or "plain".
    options : dict
        The options of `transfuse.Layer.encode`.

    Returns
    -------
    dict of str to Tensor
        The arguments of `replace_experts`.
    str
        Why the layout does not take the experts, or "".
    """
    if layout == "coded":
        return encode_experts(module, **options), ""
    refusal = "experts lie coded or packed"
    if layout == "packed":
        refusal = "packed experts are encoded with the default options"
        if _layouts.is_default_form(options):
            try:
                packed = pack_dense_experts(module, packed_bf16=options.get("codec") == "bf16")
            except UnsupportedError as reason:
                refusal = reason.message
            else:
                dense = sum(module.get_parameter(name).nbytes for name in get_expert_names(module))
                if sum(container.numel() for container in packed.values()) < dense:
                    return packed, ""
                refusal = "packing does not make them smaller"
    return encode_experts(module, **options), refusal


__all__ = ["encode_experts", "lay_out_experts", "pack_dense_experts"]
