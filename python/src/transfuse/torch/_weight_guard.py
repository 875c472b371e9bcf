# SPDX-License-Identifier: Apache-2.0
"""Refuses the buffers of compressed layers where torch would take them for matrices.

`torch.nn.init` would overwrite their bytes behind everybody's back. Its functions end in a few that are looked up in
the module when they are called, so that these are wrapped: who has imported `normal_` by its name gets the refusal as
well. A dense layer that is given such a buffer as its weight, to tie it, would fail at its next product, in words about
dtypes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import init
from torch.nn.modules.module import register_module_parameter_registration_hook

from transfuse._errors import Status, TransfuseError, make_error
from transfuse.torch import _registry
from transfuse.torch._buffer_module import BufferModule, has_bytes, is_buffer

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


_WAY_OUT = "before it is compressed, or leave the layer out of the compression"
_installed = False


def install() -> None:
    """Wraps the functions, and watches what layers get as parameters. May be called again."""
    global _installed
    if not _installed:
        register_module_parameter_registration_hook(_refuse_parameter)  # type: ignore[no-untyped-call]
    _installed = True
    for name, what in _ENDS.items():
        original = getattr(init, name, None)
        if original is not None and not hasattr(original, _MARK):
            vars(init)[name] = _refuse_buffers(original, what)


def _refuse_buffers(original: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        if _is_layer(tensor):
            raise make_error(
                Status.TRF_ERR_UNSUPPORTED,
                f"{what} is for matrices, and this tensor has the compressed weights of {_describe(tensor)}: draw them "
                f"{_WAY_OUT}",
            )
        return original(tensor, *arguments, **options)

    setattr(guarded, _MARK, True)
    return guarded


def _refuse_parameter(module: nn.Module, name: str, parameter: Tensor | None) -> None:
    if isinstance(module, BufferModule) or not isinstance(module, (nn.Linear, nn.Embedding)) or parameter is None:
        return
    if _is_layer(parameter):
        raise make_error(
            Status.TRF_ERR_UNSUPPORTED,
            f"the {name} of {type(module).__name__}({module.extra_repr()}) is a matrix, and this parameter has the "
            f"compressed weights of {_describe(parameter)}: tie them {_WAY_OUT}",
        )


def _is_layer(tensor: Tensor) -> bool:
    return is_buffer(tensor) and has_bytes(tensor) and _registry.is_known(tensor)


def _describe(buffer: Tensor) -> str:
    try:
        info, count = _registry.layer_info(buffer), ""
    except TransfuseError:
        infos = _registry.expert_infos(buffer)
        info, count = infos[0], f"{len(infos)} experts of "
    return f"{count}{info.rows} x {info.cols}"
