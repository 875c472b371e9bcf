# SPDX-License-Identifier: Apache-2.0
"""Guards the buffers of compressed layers against functions of torch that would take them for matrices.

`torch.nn.init` would overwrite their bytes without a word. Its functions call a few others, which they look up in the
module at each call, and those are wrapped: a program that has imported `normal_` by its name gets the refusal as well.
A dense layer that is given such a buffer as its weight, to tie it, would fail at its next product, with an error about
dtypes; so would `requires_grad_` and `torch.nn.utils` (parametrizations, norms, pruning). All of these are refused, and
the message names the layers.

An uncompressed model can load the state dict of a compressed one: its blobs are decoded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import init
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.utils import parametrizations, parametrize, prune

from transfuse._errors import Status, TransfuseError, make_error
from transfuse.torch import _ops, _registry
from transfuse.torch._buffer_module import BufferModule, align_buffer, has_bytes, is_buffer, is_layer
from transfuse.torch._dtypes import TORCH_DTYPES

_MARK = "_transfuse_guards"
# Each of these functions of torch.nn.init is called by the public ones beside it.
_ENDS = {
    "_no_grad_normal_": "normal_",
    "_no_grad_uniform_": "uniform_",
    "_no_grad_trunc_normal_": "trunc_normal_",
    "_no_grad_fill_": "constant_",
    "_no_grad_zero_": "zeros_",
    "_calculate_fan_in_and_fan_out": "xavier_ or kaiming_",
}

# These take a module and the name of its weight, and put something that they calculate in the weight's place.
_PARAMETRIZERS = [
    (parametrize, "register_parametrization"),
    (parametrizations, "orthogonal"),
    (parametrizations, "spectral_norm"),
    (parametrizations, "weight_norm"),
    (nn.utils, "spectral_norm"),
    (nn.utils, "weight_norm"),
    (prune.BasePruningMethod, "apply"),
]
_NAMES_SHOWN = 4
_WAY_OUT = "before it is compressed, or leave the layer out of the compression"
_installed = False


def install() -> None:
    """Wraps the functions, and watches which parameters layers are given. It may be called again."""
    global _installed
    if not _installed:
        register_module_parameter_registration_hook(_refuse_parameter)  # type: ignore[no-untyped-call]
    _installed = True
    _wrap(nn.Module, "requires_grad_", _refuse_training)
    _wrap(nn.Module, "_load_from_state_dict", _decode_for_dense)
    for place, name in _PARAMETRIZERS:
        _wrap(place, name, _refuse_modules)
    for name, what in _ENDS.items():
        _wrap(init, name, functools.partial(_refuse_buffers, what=what))


def _wrap(place: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts a wrapper in the place of a function of a module or class, if there is one that is not wrapped yet."""
    original = vars(place).get(name)
    function = original.__func__ if isinstance(original, classmethod) else original
    if function is None or hasattr(function, _MARK):
        return
    wrapper = functools.wraps(function)(make(function))
    setattr(wrapper, _MARK, True)
    setattr(place, name, classmethod(wrapper) if isinstance(original, classmethod) else wrapper)


def _refuse_training(original: Callable[..., Any]) -> Callable[..., Any]:
    def requires_grad_(self: nn.Module, requires_grad: bool = True) -> nn.Module:
        compressed = {path: each for path, each in self.named_modules() if isinstance(each, BufferModule)}
        if requires_grad and compressed:
            names = [module._path or path or module.describe() for path, module in compressed.items()]
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            raise RuntimeError(
                f"the weights of {', '.join(names[:_NAMES_SHOWN])}{more} are compressed, and cannot be trained: train "
                "an adapter such as LoRA on top of them, or leave the layers out of the compression "
                "(compress_model(exclude=...), 'transfuse compress --exclude')"
            )
        original(self, requires_grad)
        return self

    return requires_grad_


def _refuse_modules(original: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*arguments: Any, **options: Any) -> Any:
        module = next((each for each in (*arguments, *options.values()) if isinstance(each, BufferModule)), None)
        names = [options.get("name"), options.get("tensor_name"), *arguments, "weight"]
        name = next(each for each in names if isinstance(each, str))
        if module is not None and name in module._buffer_names():
            raise make_error(
                Status.TRF_ERR_UNSUPPORTED,
                f"{original.__qualname__} is for matrices, and the {name} of {module.describe()} is compressed: do it "
                f"{_WAY_OUT}",
            )
        return original(*arguments, **options)

    return guarded


def _decode_for_dense(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(self: nn.Module, state_dict: dict[str, Any], prefix: str, *arguments: Any, **options: Any) -> Any:
        if not isinstance(self, BufferModule):
            state_dict = _with_matrices(self, state_dict, prefix)
        return original(self, state_dict, prefix, *arguments, **options)

    return load


def _with_matrices(module: nn.Module, state_dict: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Returns an uncompressed module's state dict with its blobs decoded to matrices, which the module can take."""
    found = {}
    for name, parameter in module._parameters.items():
        blob = state_dict.get(prefix + name)
        if parameter is None or parameter.dim() != 2 or not isinstance(blob, Tensor):
            continue
        if not is_buffer(blob) or not has_bytes(blob):
            continue
        try:
            found[prefix + name] = _decode(blob)
        except TransfuseError as failure:
            # A tensor that is no blob at all is left to torch, which says that the shapes do not match.
            if failure.status not in (Status.TRF_ERR_MAGIC, Status.TRF_ERR_TRUNCATED):
                raise
    return {**state_dict, **found} if found else state_dict


def _decode(blob: Tensor) -> Tensor:
    buffer = align_buffer(blob.detach())
    _registry.adopt(buffer)
    info = _registry.layer_info(buffer)
    return _ops.decode(buffer, info.rows, info.cols, TORCH_DTYPES[info.dtype])


def _refuse_buffers(original: Callable[..., Any], what: str) -> Callable[..., Any]:
    def guarded(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        if is_layer(tensor):
            raise make_error(
                Status.TRF_ERR_UNSUPPORTED,
                f"{what} is for matrices, and this tensor has the compressed weights of {_describe(tensor)}: draw them "
                f"{_WAY_OUT}",
            )
        return original(tensor, *arguments, **options)

    return guarded


def _refuse_parameter(module: nn.Module, name: str, parameter: Tensor | None) -> None:
    if isinstance(module, BufferModule) or not isinstance(module, (nn.Linear, nn.Embedding)) or parameter is None:
        return
    if is_layer(parameter):
        raise make_error(
            Status.TRF_ERR_UNSUPPORTED,
            f"the {name} of {type(module).__name__}({module.extra_repr()}) is a matrix, and this parameter has the "
            f"compressed weights of {_describe(parameter)}: tie them {_WAY_OUT}",
        )


def _describe(buffer: Tensor) -> str:
    try:
        info, count = _registry.layer_info(buffer), ""
    except TransfuseError:
        infos = _registry.expert_infos(buffer)
        info, count = infos[0], f"{len(infos)} experts of "
    return f"{count}{info.rows} x {info.cols}"
