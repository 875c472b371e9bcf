# SPDX-License-Identifier: Apache-2.0
"""Watches the ways by which frameworks read files of weights, so that no compressed one is taken for a file without.

transformers asks a quantizer to take part if the config object carries a `quantization_config`. A tower's config does
not, nor does one that the user passes; transformers would then report the compressed tensors as surplus, and draw
weights at random. So we look at every file that is about to be loaded. Where transformers' `from_pretrained` found a
compressed one without us, it begins again, with the `quantization_config` that stands in the folder of the file. All
other ways (programs that read state dicts themselves, adapters, diffusers' single files) raise, and say what to do.

The functions here put wrappers in place of the frameworks' own functions. No function is wrapped twice.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from transfuse._errors import Status, make_error
from transfuse.hf import _model_guard
from transfuse.hf._config_fields import COMPRESSED_BY, METHOD
from transfuse.hf._file_check import (
    WEIGHTS_KEY,
    find_compressed,
    find_marker,
    is_compressed,
    is_marker,
    refuse_blobs,
    refuse_compressed,
    refuse_elsewhere,
    refuse_other_method,
    refuse_state,
)

_MARK = "_transfuse_watches"


@dataclasses.dataclass
class Loading:
    """One call of transformers' `from_pretrained`.

    Attributes
    ----------
    options : dict
        The keyword arguments of the call.
    marker : dict or None
        The `quantization_config` to go by; None as long as the config object is trusted to carry it.
    is_guess : bool
        Whether the config object had none, but the user passed a `TransfuseConfig`.
    is_plain : bool
        Whether the files are not compressed, whatever the config object says: they are one variant of a checkpoint
        whose other variant is compressed, or the source of the folder that the config is from.
    carried
        The `quantization_config` of the config object.
    quantizer : HfQuantizer or None
        The quantizer that the framework chose.
    failure : ValueError or None
        The framework's error for a `quantization_config` that names no method.
    has_files : bool
        Whether the files of the model are known: whatever is looked up later in the call belongs to something else.
    """

    options: dict[str, Any]
    marker: dict[str, Any] | None = None
    is_guess: bool = False
    is_plain: bool = False
    carried: Any = None
    quantizer: Any = None
    failure: ValueError | None = None
    has_files: bool = False


class _BeginAgain(BaseException):
    """Ends a `from_pretrained` that found compressed files without us, or, without a marker, uncompressed ones with us.

    It is no `Exception`, so that no `except Exception` on the way catches it.
    """

    def __init__(self, loading: Loading, marker: dict[str, Any] | None) -> None:
        self.loading, self.marker = loading, marker


_current: contextvars.ContextVar[Loading | None] = contextvars.ContextVar("transfuse_loading", default=None)


def current_options() -> dict[str, Any]:
    """Returns the keyword arguments of the `from_pretrained` of transformers that is running."""
    loading = _current.get()
    return {} if loading is None else loading.options


@contextlib.contextmanager
def _running(loading: Loading | None) -> Iterator[None]:
    token = _current.set(loading)
    try:
        yield
    finally:
        _current.reset(token)


def _wrap(place: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Puts a wrapper in the place of a function of a module or class, unless it is there already.

    A framework of another version may not have the function. A warning says so, since we do not notice compressed files
    that are read by whatever has taken its place.
    """
    original = vars(place).get(name)
    if original is None:
        owner = place.__name__ if isinstance(place, ModuleType) else f"{place.__module__}.{place.__qualname__}"
        warnings.warn(
            f"transfuse knows no {owner} without {name}, which it would watch: with this version of "
            f"{owner.partition('.')[0]} a compressed file may be taken for an uncompressed one",
            stacklevel=2,
        )
    if original is None or hasattr(original, _MARK):
        return
    function = original.__func__ if isinstance(original, classmethod) else original
    wrapper = functools.wraps(function)(make(function))
    setattr(wrapper, _MARK, True)
    setattr(place, name, classmethod(wrapper) if isinstance(original, classmethod) else wrapper)
    if isinstance(place, ModuleType):
        _replace_copies(place.__name__.partition(".")[0], name, original, wrapper)


def _replace_copies(package: str, name: str, original: Any, wrapper: Any) -> None:
    """Puts the wrapper also into modules that were imported before us, which hold the function under their own name."""
    for path, module in list(sys.modules.items()):
        if path.startswith(f"{package}.") and vars(module).get(name) is original:
            setattr(module, name, wrapper)


# ---- transformers ----


def guard_transformers(modeling_utils: ModuleType) -> None:
    """Watches `transformers.modeling_utils`, and changes what its models do where compressed weights need it."""
    _model_guard.change_transformers_models(modeling_utils)
    _wrap(modeling_utils.PreTrainedModel, "from_pretrained", _make_from_pretrained)
    _wrap(modeling_utils.PreTrainedModel, "initialize_weights", _make_initialize)
    _wrap(modeling_utils.PreTrainedModel, "_adjust_bias", _make_adjust_bias)
    _wrap(modeling_utils, "get_hf_quantizer", _make_get_quantizer)
    _wrap(modeling_utils, "_get_resolved_checkpoint_files", _make_resolve)
    _wrap(modeling_utils, "load_state_dict", _make_load_state_dict)
    _wrap(modeling_utils, "convert_and_load_state_dict_in_model", _make_convert)


def _make_from_pretrained(original: Callable[..., Any]) -> Callable[..., Any]:
    def from_pretrained(cls: type[Any], /, *arguments: Any, **options: Any) -> Any:
        refuse_blobs(options.get("state_dict"), "from_pretrained")
        loading = Loading(options)
        while True:
            try:
                with _running(loading):
                    return original(cls, *arguments, **options)
            except _BeginAgain as signal:
                if signal.loading is not loading or loading.marker is not None or loading.is_plain:
                    raise
                loading = Loading(options, marker=signal.marker, is_plain=signal.marker is None)

    return from_pretrained


def _make_get_quantizer(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_hf_quantizer(config: Any, quantization_config: Any, *arguments: Any, **options: Any) -> Any:
        loading = _current.get()
        # Models that load other models look for quantizers before they look for files, as the outer one does.
        if loading is None or loading.has_files:
            return original(config, quantization_config, *arguments, **options)
        carried: Any = getattr(config, "quantization_config", None)
        if getattr(carried, "quant_method", None) == METHOD:  # a model that was loaded before has this config
            config.quantization_config = carried = carried.to_dict()
        if loading.is_plain:
            _take_marker_away(config)
            quantization_config = None
        elif loading.marker is not None and not is_marker(carried):
            config.quantization_config = dict(loading.marker)
        elif carried is None and getattr(quantization_config, "quant_method", None) == METHOD:
            config.quantization_config = {"quant_method": METHOD.value}
            loading.is_guess = True
        _forget_sentences(config)
        loading.carried = carried
        try:
            found = original(config, quantization_config, *arguments, **options)
        except ValueError as failure:
            if not isinstance(carried, dict) or carried.get("quant_method") is not None:
                raise
            # The files will tell whether that is ours.
            loading.failure = failure
            return None, config, arguments[0] if arguments else options.get("device_map")
        loading.quantizer = found[0]
        return found

    return get_hf_quantizer


def _make_resolve(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_resolved_checkpoint_files(*arguments: Any, **options: Any) -> Any:
        loading = _current.get()
        if loading is None or loading.has_files:
            files = original(*arguments, **options)
            _refuse_files(files[0], "what loads tensors apart from the model")
            return files
        loading.has_files = True
        is_ours = _is_ours(loading.quantizer)
        if is_ours and options.get("transformers_explicit_filename") is not None:
            options["transformers_explicit_filename"] = loading.quantizer.source_weights_name()
        elif COMPRESSED_BY in (options.get("transformers_explicit_filename") or ""):
            options["transformers_explicit_filename"] = None  # the files are looked at below
        files = original(*arguments, **options)
        _refuse_states(files[0])
        compressed = find_compressed(files[0])
        if loading.failure is not None:
            raise loading.failure if compressed is None else refuse_other_method(compressed, loading.carried)
        if compressed is None:
            if loading.is_guess:
                raise make_error(
                    Status.TRF_ERR_ARGUMENT,
                    "this checkpoint is not compressed: its config.json has no quantization_config of transfuse. Run "
                    "'transfuse compress' on it first, or load it as it is and call transfuse.compress_model",
                )
            if is_ours:
                if loading.options.get("quantization_config") is not None:
                    warnings.warn(f"{files[0][0]} is not compressed, and is loaded as it is", stacklevel=2)
                raise _BeginAgain(loading, None)
        elif loading.quantizer is None and loading.carried is not None:
            raise refuse_other_method(compressed, loading.carried)  # transformers does not know that method
        elif loading.quantizer is None or loading.is_guess:
            raise _BeginAgain(loading, find_marker(compressed))
        elif not is_ours:
            raise refuse_other_method(compressed, loading.quantizer.quantization_config)
        if compressed is not None:
            refuse_elsewhere(compressed, files[1])
        return files

    return get_resolved_checkpoint_files


def _forget_sentences(config: Any) -> None:
    """Removes what stops a framework without us from the configs of a model's parts, which are saved with the model."""
    for name in getattr(config, "sub_configs", None) or ():
        part = getattr(config, name, None)
        if part is not None and COMPRESSED_BY in str(vars(part).get(WEIGHTS_KEY)):
            delattr(part, WEIGHTS_KEY)


def _take_marker_away(config: Any) -> None:
    """Removes what a config object, which belongs to this loading alone, says of us."""
    for part in (config, config.get_text_config(decoder=True)):
        carried = getattr(part, "quantization_config", None)
        if is_marker(carried) or getattr(carried, "quant_method", None) == METHOD:
            del part.quantization_config


def _is_ours(quantizer: Any) -> bool:
    return getattr(getattr(quantizer, "quantization_config", None), "quant_method", None) == METHOD


def _refuse_files(files: Any, loader: str) -> None:
    for path in files or ():
        refuse_compressed(path, loader)


def _refuse_states(files: Any) -> None:
    for path in files or ():
        refuse_state(path)


def _refuse_state_for(model: Any, path: Any) -> None:
    """Refuses a file for an existing model, unless that has compressed weights itself and may be meant to take it."""
    if not _model_guard.find_compressed(model):
        refuse_state(path)


def _make_load_state_dict(original: Callable[..., Any]) -> Callable[..., Any]:
    def load_state_dict(checkpoint_file: Any, map_location: Any = "cpu", *arguments: Any, **options: Any) -> Any:
        if not is_compressed(checkpoint_file):
            read = original(checkpoint_file, map_location, *arguments, **options)
            if _current.get() is not None:
                refuse_blobs(read, "from_pretrained")  # the file of an old pickle does not tell
            return read
        if str(map_location) == "meta":
            # The caller wants dtypes and shapes, which are the source's. The file has other names for some tensors.
            from transfuse.hf._load_plan import make_meta_tensors

            return make_meta_tensors(os.fspath(checkpoint_file))
        return refuse_compressed(checkpoint_file, "transformers' load_state_dict")

    return load_state_dict


def _make_convert(original: Callable[..., Any]) -> Callable[..., Any]:
    def convert_and_load(model: Any, state_dict: Any, load_config: Any, *arguments: Any, **options: Any) -> Any:
        quantizer = load_config.hf_quantizer
        if not _is_ours(quantizer):
            return original(model, state_dict, load_config, *arguments, **options)
        # Uncompressed tensors go into dense modules, as if no quantizer took part, and so does an adapter on top.
        plain = dataclasses.replace(load_config, hf_quantizer=None)
        if not quantizer.is_loading(model):
            return original(model, state_dict, plain, *arguments, **options)
        rest = quantizer.leave_rest(state_dict)
        result = original(model, rest, plain, *arguments, **options)
        quantizer.complete_report(result[0])
        return result

    return convert_and_load


def _make_initialize(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a wrapper that shows stand-ins for compressed weights to the code that draws missing ones.

    That code sees all modules, and also runs for models that are made of loaded ones.
    """

    def initialize_weights(self: Any, *arguments: Any, **options: Any) -> Any:
        if "transfuse.torch._buffer_module" not in sys.modules:  # no weights are compressed
            return original(self, *arguments, **options)
        from transfuse.hf._loading import stand_ins

        with stand_ins(self):
            return original(self, *arguments, **options)

    return initialize_weights


def _make_adjust_bias(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a wrapper that leaves biases alone: tying pads an output's bias to the length of its weights.

    It would take the length of the buffer for that of the weights.
    """

    def adjust_bias(self: Any, output_embeddings: Any, input_embeddings: Any) -> Any:
        modules = sys.modules.get("transfuse.torch._buffer_module")
        if modules is not None and isinstance(output_embeddings, modules.BufferModule):
            return None
        return original(self, output_embeddings, input_embeddings)

    return adjust_bias


# ---- transformers' trainer ----


def guard_trainer(trainer: ModuleType) -> None:
    """Watches `transformers.trainer`, which loads checkpoints with `load_state_dict(strict=False)`."""
    _model_guard.change_trainer(trainer)
    loader = "Trainer, which resumes from state dicts,"

    def make_load(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_from_checkpoint(self: Any, resume_from_checkpoint: str, *arguments: Any, **options: Any) -> Any:
            refuse_compressed(resume_from_checkpoint, loader)
            _refuse_state_for(self.model, resume_from_checkpoint)
            return original(self, resume_from_checkpoint, *arguments, **options)

        return load_from_checkpoint

    def make_load_best(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_best_model(self: Any, *arguments: Any, **options: Any) -> Any:
            refuse_compressed(self.state.best_model_checkpoint, loader)
            _refuse_state_for(self.model, self.state.best_model_checkpoint)
            return original(self, *arguments, **options)

        return load_best_model

    _wrap(trainer.Trainer, "_load_from_checkpoint", make_load)
    _wrap(trainer.Trainer, "_load_best_model", make_load_best)


def guard_trainer_utils(trainer_utils: ModuleType) -> None:
    """Watches `load_sharded_checkpoint` of `transformers.trainer_utils`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_sharded_checkpoint(model: Any, folder: Any, *arguments: Any, **options: Any) -> Any:
            refuse_compressed(folder, "load_sharded_checkpoint")
            _refuse_state_for(model, folder)
            return original(model, folder, *arguments, **options)

        return load_sharded_checkpoint

    _wrap(trainer_utils, "load_sharded_checkpoint", make)


# ---- others ----


def _make_reader(loader: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes wrappers of functions whose first argument is the file that they read."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(file: Any, *arguments: Any, **options: Any) -> Any:
            refuse_compressed(file, loader)
            return original(file, *arguments, **options)

        return read

    return make


def guard_accelerate(modeling: ModuleType) -> None:
    """Watches `accelerate.utils.modeling`: `load_checkpoint_in_model` and `load_checkpoint_and_dispatch` read by it."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_checkpoint_in_model(model: Any, checkpoint: Any, *arguments: Any, **options: Any) -> Any:
            _refuse_state_for(model, checkpoint)
            return original(model, checkpoint, *arguments, **options)

        return load_checkpoint_in_model

    _wrap(modeling, "load_state_dict", _make_reader("accelerate"))
    _wrap(modeling, "load_checkpoint_in_model", make)


def guard_peft(save_and_load: ModuleType) -> None:
    """Watches `peft.utils.save_and_load`, which reads files of adapters."""
    _wrap(save_and_load, "safe_load_file", _make_reader("PEFT"))


_diffusers_quantizers: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar(
    "transfuse_diffusers_quantizers", default=None
)


def note_diffusers_quantizer(quantizer: Any) -> None:
    """Notes that a quantizer of ours takes part in the `from_pretrained` of diffusers that is running."""
    quantizers = _diffusers_quantizers.get()
    if quantizers is not None:
        quantizers.append(quantizer)


def guard_diffusers_models(modeling_utils: ModuleType) -> None:
    """Watches `from_pretrained` of `diffusers.models.modeling_utils`, and changes `save_pretrained`."""
    _model_guard.change_diffusers_models(modeling_utils)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def from_pretrained(cls: type[Any], /, *arguments: Any, **options: Any) -> Any:
            token = _diffusers_quantizers.set([])
            try:
                return original(cls, *arguments, **options)
            finally:
                _diffusers_quantizers.reset(token)

        return from_pretrained

    _wrap(modeling_utils.ModelMixin, "from_pretrained", make)


def guard_diffusers(model_loading_utils: ModuleType) -> None:
    """Watches `load_state_dict` of `diffusers.models.model_loading_utils`, which reads all of diffusers' models."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_state_dict(checkpoint_file: Any, *arguments: Any, **options: Any) -> Any:
            if not _diffusers_quantizers.get():
                reader = "diffusers without a quantization_config of transfuse in config.json"
                refuse_compressed(checkpoint_file, reader)
            refuse_state(checkpoint_file)
            return original(checkpoint_file, *arguments, **options)

        return load_state_dict

    _wrap(model_loading_utils, "load_state_dict", make)


def guard_diffusers_loader(loader: ModuleType) -> None:
    """Watches a module below `diffusers.loaders`, which reads adapters with safetensors itself."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_model_file(*arguments: Any, **options: Any) -> Any:
            path = original(*arguments, **options)
            refuse_compressed(path, "diffusers, which loads an adapter,")
            return path

        return get_model_file

    original = vars(loader).get("_get_model_file")
    if original is not None and not hasattr(original, _MARK):
        # Only this module is changed, since models are looked up by the function of the same name.
        wrapper = functools.wraps(original)(make(original))
        setattr(wrapper, _MARK, True)
        vars(loader)["_get_model_file"] = wrapper
