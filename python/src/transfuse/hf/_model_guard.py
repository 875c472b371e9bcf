# SPDX-License-Identifier: Apache-2.0
"""Changes what the models of transformers and diffusers do, where compressed weights need something else.

* `save_pretrained` writes a compressed checkpoint of a model some of whose weights were compressed in memory: by
  itself it would write buffers of layers under the names of matrices, which nothing could load.
* config.json gets `transformers_weights` (format/FORMAT.md, section 10), which the framework leaves out.
* Methods that take `weight` for a matrix are refused with the names of the layers, before anything is changed.
* Weights are counted, not bytes, and tell a model's dtype; `Trainer` evaluates compressed models, and diffusers casts
  what is not compressed.

The classes are changed when they are imported (transfuse._hook). As long as no model has compressed weights nothing
else happens.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from transfuse._errors import Status, make_error
from transfuse.hf._config_fields import METHOD, NEEDS_TRANSFUSE

if TYPE_CHECKING:
    from transfuse.torch._buffer_module import BufferModule

_MARK = "_transfuse_guards"
_WEIGHTS_KEY = "transformers_weights"
# This is the version of blobs, and the name for a mixture of codecs (format/FORMAT.md, section 10).
_VERSION = 4
_AUTO = "auto"
_LOSSLESS = {"BF16": "bf16", "F16": "fp16", "F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2", "I8": "int"}
# The attention blocks of diffusers have modules of these names.
_PROJECTION = re.compile(r"(^|\.)(to|add)_[qkv](_proj)?$")
_NAMES_SHOWN = 4
_WAY_OUT = (
    "do it with the uncompressed model, before it is compressed, or leave these layers out of the compression "
    "(compress_model(exclude=...), 'transfuse compress --exclude')"
)


def change_transformers_models(modeling_utils: ModuleType) -> None:
    """Changes `PreTrainedModel` of `transformers.modeling_utils` and its configs' class. It may be called again."""
    model, config = modeling_utils.PreTrainedModel, modeling_utils.PreTrainedConfig
    wrap(model, "save_pretrained", _make_save(_transformers_quantizer))
    wrap(model, "tie_weights", _make_tie)
    for base in model.__mro__:  # one of the base classes has it
        wrap(base, "num_parameters", _make_count)
        _wrap_dtype(base)
    wrap(config, "to_json_file", _make_write_config)
    wrap_derived(model, _wrap_overrides)


def _wrap_overrides(model: type[Any]) -> None:
    """Wraps the methods of their own that architectures have, too."""
    wrap(model, "resize_token_embeddings", _make_resize)
    wrap(model, "resize_position_embeddings", _make_refusal("position embeddings cannot be resized"))


def change_diffusers_models(modeling_utils: ModuleType) -> None:
    """Changes `ModelMixin` of `diffusers.models.modeling_utils`. It may be called again."""
    model = modeling_utils.ModelMixin
    wrap(model, "save_pretrained", _make_save(_diffusers_quantizer))
    wrap(model, "to", _make_cast)
    wrap(model, "num_parameters", _make_count)
    wrap_derived(model, _wrap_fusing)


def _wrap_fusing(model: type[Any]) -> None:
    """Wraps a method that most models have from a second base class, or of their own."""
    for base in model.__mro__:
        wrap(base, "fuse_qkv_projections", _make_fuse)


def change_trainer(trainer: ModuleType) -> None:
    """Changes `Trainer` of `transformers.trainer`: it evaluates compressed models, too, and refuses to train them."""
    check = vars(trainer).get("validate_quantization_for_training")
    if check is None or hasattr(check, _MARK):
        return

    def make_train(original: Callable[..., Any]) -> Callable[..., Any]:
        def train(self: Any, *arguments: Any, **options: Any) -> Any:
            check(self.model)
            return original(self, *arguments, **options)

        return train

    def check_others(model: Any) -> None:
        if not _is_ours(getattr(model, "hf_quantizer", None)):
            check(model)

    setattr(check_others, _MARK, True)
    vars(trainer)["validate_quantization_for_training"] = check_others
    wrap(trainer.Trainer, "train", make_train)


def wrap(owner: type[Any] | None, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts a wrapper in the place of a method that a class has of its own, unless it is there already."""
    original = None if owner is None else owner.__dict__.get(name)
    if original is None or hasattr(original, _MARK):
        return
    wrapper = functools.update_wrapper(make(original), original)
    setattr(wrapper, _MARK, True)
    setattr(owner, name, wrapper)


def wrap_derived(base: type[Any], wrap_class: Callable[[type[Any]], None]) -> None:
    """Calls a function for a class and all that derive from it, now and for those that come later."""
    original = base.__dict__.get("__init_subclass__")
    if hasattr(original, _MARK):
        return

    def init_subclass(cls: type[Any], /, **options: Any) -> None:
        if original is None:
            super(base, cls).__init_subclass__(**options)
        else:
            original.__func__(cls, **options)
        wrap_class(cls)

    def visit(cls: type[Any]) -> None:
        wrap_class(cls)
        for derived in cls.__subclasses__():
            visit(derived)

    visit(base)
    method = classmethod(init_subclass)
    setattr(method, _MARK, True)
    base.__init_subclass__ = method  # type: ignore[assignment]


# ---- which weights are compressed ----


def find_compressed(model: Any) -> dict[str, BufferModule]:
    """Returns the modules of a model that have compressed weights by their paths, each module under one path."""
    buffers = sys.modules.get("transfuse.torch._buffer_module")
    if buffers is None:
        return {}
    return {path: module for path, module in model.named_modules() if isinstance(module, buffers.BufferModule)}


def is_compressed(module: Any) -> bool:
    """Returns whether a module has compressed weights."""
    buffers = sys.modules.get("transfuse.torch._buffer_module")
    return buffers is not None and isinstance(module, buffers.BufferModule)


def _is_buffer(model: Any, name: str) -> bool:
    """Returns whether a parameter is compressed."""
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    return is_compressed(module) and own in module._buffer_names()


def refuse(what: str, paths: list[str]) -> NoReturn:
    """Raises the error for an operation that the layers at these paths do not support."""
    more = f" and {len(paths) - _NAMES_SHOWN} more" if len(paths) > _NAMES_SHOWN else ""
    raise make_error(
        Status.TRF_ERR_UNSUPPORTED,
        f"{what}: the weights of {', '.join(paths[:_NAMES_SHOWN])}{more} are compressed, and 'weight' is no matrix "
        f"there; {_WAY_OUT}",
    )


# ---- saving ----


def _make_save(attach: Callable[[Any, dict[str, BufferModule]], contextlib.AbstractContextManager[None]]) -> Any:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def save_pretrained(self: Any, save_directory: Any, *arguments: Any, **options: Any) -> Any:
            compressed = find_compressed(self)
            if not compressed:
                return original(self, save_directory, *arguments, **options)
            if not options.get("safe_serialization", True) or options.get("use_flashpack"):
                raise make_error(
                    Status.TRF_ERR_UNSUPPORTED, "compressed weights are saved as .safetensors files, and as no others"
                )
            given = options.get("state_dict", next((each for each in arguments if isinstance(each, Mapping)), None))
            if given and not getattr(self, "_hf_peft_config_loaded", False):
                _refuse_other_tensors(self, given)
            with attach(self, compressed):
                return original(self, save_directory, *arguments, **options)

        return save_pretrained

    return make


def _refuse_other_tensors(model: Any, given: Mapping[str, Any]) -> None:
    """Refuses a state dict to be saved that is not the model's own: the frameworks ask our quantizer for the tensors,
    and pass over the ones that are given."""
    own: dict[str, Any] = model.state_dict()
    ties = getattr(model, "all_tied_weights_keys", None) or {}
    tied = {*ties, *ties.values()}
    different = [name for name in given if name not in own or not _is_same(given[name], own[name])]
    different += [name for name in own if name not in given and name not in tied]
    if different:
        more = f" and {len(different) - _NAMES_SHOWN} more" if len(different) > _NAMES_SHOWN else ""
        raise make_error(
            Status.TRF_ERR_UNSUPPORTED,
            f"of a compressed model its own tensors are saved, and the state_dict that was passed differs in "
            f"{', '.join(different[:_NAMES_SHOWN])}{more}: change the model, and leave state_dict out",
        )


def _is_same(one: Any, other: Any) -> bool:
    """Returns whether two tensors have the same bits."""
    import torch

    if not isinstance(one, torch.Tensor) or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.device == other.device and one.data_ptr() == other.data_ptr() and one.stride() == other.stride():
        return True
    bits = [each.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    return bool(torch.equal(bits[0], bits[1]))


def _is_ours(quantizer: Any) -> bool:
    return getattr(getattr(quantizer, "quantization_config", None), "quant_method", None) == METHOD


def _check_quantizer(model: Any) -> Any:
    """Returns the quantizer of a model, which is ours or None."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and not _is_ours(quantizer):
        method = getattr(quantizer.quantization_config, "quant_method", "another method")
        raise make_error(
            Status.TRF_ERR_UNSUPPORTED,
            f"a model that is quantized by {getattr(method, 'value', method)}, and has compressed weights, too, cannot "
            "be saved",
        )
    return quantizer


def _find_codec(compressed: dict[str, BufferModule]) -> str:
    """Returns the codec that could have been asked for to get these weights: one for all, or each tensor's own."""
    from transfuse.torch._dtypes import BF16_CODINGS
    from transfuse.torch._registry import expert_infos, layer_info

    infos = []
    for module in compressed.values():
        for name in module._buffer_names():
            buffer = getattr(module, name)
            infos.append(layer_info(buffer) if name == "weight" else expert_infos(buffer)[0])
    # FP8 counts as the own codec of BF16 that was FP8.
    if all(_LOSSLESS.get(info.dtype) == info.codec or (info.codec, info.dtype) in BF16_CODINGS for info in infos):
        return _AUTO
    codecs = {info.codec for info in infos}
    return codecs.pop() if len(codecs) == 1 else _AUTO


@contextlib.contextmanager
def _transformers_quantizer(model: Any, compressed: dict[str, BufferModule]) -> Iterator[None]:
    """Gives a model what the framework needs to save compressed weights while a call lasts."""
    from transfuse.hf._quantization_config import TransfuseConfig
    from transfuse.hf._quantizer import TransfuseHfQuantizer
    from transfuse.hf._saving import find_model_dtype, make_source_config

    quantizer, config = _check_quantizer(model), model.config
    with contextlib.ExitStack() as undo:
        if quantizer is None:
            fields = TransfuseConfig(
                version=_VERSION, codec=_find_codec(compressed), source_config=make_source_config(model)
            )
            made = TransfuseHfQuantizer(fields, pre_quantized=True)
            made._conversions = getattr(model, "_weight_conversions", None)  # type: ignore[assignment]
            undo.enter_context(_with_attribute(model, "hf_quantizer", made))
            # The quantizer undoes the conversions, and the framework must not undo them again.
            undo.enter_context(_with_attribute(model, "_weight_conversions", []))
        else:
            fields = quantizer.quantization_config
        undo.enter_context(_with_attribute(config, "quantization_config", fields))
        # The framework takes the dtype of the first float parameter, which in a compressed model may be a norm's.
        undo.enter_context(_with_attribute(config, "dtype", config.__dict__.get("dtype")))
        dtype = str(find_model_dtype(model)).removeprefix("torch.")
        undo.enter_context(_with_attribute(fields, "_model_dtype", dtype))
        yield


@contextlib.contextmanager
def _with_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute while a block runs; it is restored, whatever sets it meanwhile."""
    there = name in owner.__dict__
    before = owner.__dict__.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        owner.__dict__.pop(name, None)
        if there:
            setattr(owner, name, before)


@contextlib.contextmanager
def _diffusers_quantizer(model: Any, compressed: dict[str, BufferModule]) -> Iterator[None]:
    """Does the same for a model of diffusers, whose files have the names of its parameters."""
    from transfuse.hf._diffusers import DiffusersTransfuseConfig, TransfuseDiffusersQuantizer

    names = {f"{path}.{name}" for path, module in compressed.items() for name in module._state_names()}
    quantizer = _check_quantizer(model)
    if quantizer is not None:
        quantizer._blobs = names
        yield
        return
    text = model.to_json_string()
    fields = DiffusersTransfuseConfig(version=_VERSION, codec=_find_codec(compressed), source_config=text)
    made = TransfuseDiffusersQuantizer(fields, pre_quantized=True)
    made._blobs = names
    before = model._internal_dict
    model.hf_quantizer = made
    model.register_to_config(quantization_config=fields)
    try:
        yield
    finally:
        model._internal_dict = before
        del model.hf_quantizer


def _make_write_config(original: Callable[..., Any]) -> Callable[..., Any]:
    def to_json_file(self: Any, json_file_path: Any, use_diff: bool = True) -> Any:
        marker = getattr(self, "quantization_config", None)
        method = marker.get("quant_method") if isinstance(marker, dict) else getattr(marker, "quant_method", None)
        if method != METHOD:
            return original(self, json_file_path, use_diff)
        fields = json.loads(self.to_json_string(use_diff=use_diff))
        # A part may be loaded with only its own config.
        parts = [part for part in fields.values() if isinstance(part, dict) and isinstance(part.get("model_type"), str)]
        for each in (fields, *parts):
            each[_WEIGHTS_KEY] = NEEDS_TRANSFUSE
        dtype = getattr(marker, "_model_dtype", None)
        if dtype is not None:
            fields["dtype"] = dtype
        with open(json_file_path, "w", encoding="utf-8") as file:
            file.write(json.dumps(fields, indent=2, sort_keys=True) + "\n")
        return None

    return to_json_file


# ---- methods that take a weight for a matrix ----


def _make_resize(original: Callable[..., Any]) -> Callable[..., Any]:
    def resize_token_embeddings(
        self: Any, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        ends = [self.get_input_embeddings(), self.get_output_embeddings()]
        paths = [path for path, module in find_compressed(self).items() if any(module is end for end in ends)]
        if not paths or (new_num_tokens is None and pad_to_multiple_of is None):
            return original(self, new_num_tokens, pad_to_multiple_of, *args, **kwargs)
        size = ends[0].num_embeddings if hasattr(ends[0], "num_embeddings") else self.config.vocab_size
        wanted = size if new_num_tokens is None else new_num_tokens
        if pad_to_multiple_of:
            wanted = -(-wanted // pad_to_multiple_of) * pad_to_multiple_of
        if wanted != size:
            refuse(f"token embeddings cannot be resized from {size} to {wanted}", paths)
        return ends[0]

    return resize_token_embeddings


def _make_fuse(original: Callable[..., Any]) -> Callable[..., Any]:
    def fuse_qkv_projections(self: Any, *arguments: Any, **options: Any) -> Any:
        paths = [path for path in find_compressed(self) if _PROJECTION.search(path)]
        if paths:
            refuse("projections cannot be fused", paths)
        return original(self, *arguments, **options)

    return fuse_qkv_projections


def _make_count(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a wrapper that counts weights, not the bytes of buffers."""

    def num_parameters(self: Any, *arguments: Any, **options: Any) -> Any:
        if not find_compressed(self):
            return original(self, *arguments, **options)
        from transfuse.hf._loading import stand_ins

        with stand_ins(self):
            return original(self, *arguments, **options)

    return num_parameters


def _wrap_dtype(base: type[Any]) -> None:
    """Makes a model's dtype, which is that of its first floats, the dtype of a compressed embedding's rows."""
    original = base.__dict__.get("dtype")
    if not isinstance(original, property) or original.fget is None or hasattr(original.fget, _MARK):
        return
    get = original.fget

    def dtype(self: Any) -> Any:
        if "transfuse.torch._buffer_module" in sys.modules:
            for module in self.modules():
                if is_compressed(module) and hasattr(module, "output_dtype"):
                    return module.output_dtype
                if any(each is not None and each.is_floating_point() for each in module._parameters.values()):
                    break
        return get(self)

    wrapper = functools.update_wrapper(dtype, get)
    setattr(wrapper, _MARK, True)
    base.dtype = property(wrapper)


def _make_cast(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes diffusers cast as transformers does: only what is not compressed; the rest is cast when it is decoded."""

    def to(self: Any, *arguments: Any, **options: Any) -> Any:
        if not _is_ours(getattr(self, "hf_quantizer", None)):
            return original(self, *arguments, **options)
        with _with_attribute(self, "is_quantized", False):
            return original(self, *arguments, **options)

    return to


def _make_refusal(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes wrappers for methods that models with compressed weights do not support."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(self: Any, *arguments: Any, **options: Any) -> Any:
            paths = list(find_compressed(self))
            if paths:
                refuse(what, paths)
            return original(self, *arguments, **options)

        return guarded

    return make


def _make_tie(original: Callable[..., Any]) -> Callable[..., Any]:
    def tie_weights(self: Any, missing_keys: Any = None, recompute_mapping: bool = True, *args: Any, **kw: Any) -> Any:
        # The framework itself passes one of these while a model is made or loaded.
        if missing_keys is None and recompute_mapping and find_compressed(self):
            for pair in self.get_expanded_tied_weights_keys(all_submodels=True).items():
                compressed = [name for name in pair if _is_buffer(self, name)]
                if len(compressed) == 1:
                    dense = next(name for name in pair if name not in compressed)
                    refuse(f"{dense} cannot be tied to {compressed[0]}", compressed)
        return original(self, missing_keys, recompute_mapping, *args, **kw)

    return tie_weights
