# SPDX-License-Identifier: Apache-2.0
"""`torch.nn.init` refuses the buffers of compressed layers, whose bytes it would overwrite behind everybody's back.

Its functions end in a few that are looked up in the module when they are called, so that these are wrapped: who has
imported `normal_` by its name gets the refusal as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import init

from transfuse._errors import Status, TransfuseError, make_error
from transfuse.torch import _registry
from transfuse.torch._buffer_module import has_bytes, is_buffer

_MARK = "_transfuse_guards"
# What the functions end in, and what of torch.nn.init ends there.
_ENDS = {
    "_no_grad_normal_": "normal_",
    "_no_grad_uniform_": "uniform_",
    "_no_grad_trunc_normal_": "trunc_normal_",
    "_no_grad_fill_": "constant_",
    "_no_grad_zero_": "zeros_",
    "_calculate_fan_in_and_fan_out": "xavier_ or kaiming_",
}


def install() -> None:
    """Wraps the functions. May be called again."""
    for name, what in _ENDS.items():
        original = getattr(init, name, None)
        if original is not None and not hasattr(original, _MARK):
            vars(init)[name] = _refuse_buffers(original, what)


def _refuse_buffers(original: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        if is_buffer(tensor) and has_bytes(tensor) and _registry.is_known(tensor):
            raise make_error(
                Status.TRF_ERR_UNSUPPORTED,
                f"{what} is for matrices, and this tensor has the compressed weights of {_describe(tensor)}: draw them "
                "before it is compressed, or leave the layer out of the compression",
            )
        return original(tensor, *arguments, **options)

    setattr(guarded, _MARK, True)
    return guarded


def _describe(buffer: Tensor) -> str:
    try:
        info, count = _registry.layer_info(buffer), ""
    except TransfuseError:
        infos = _registry.expert_infos(buffer)
        info, count = infos[0], f"{len(infos)} experts of "
    return f"{count}{info.rows} x {info.cols}"
