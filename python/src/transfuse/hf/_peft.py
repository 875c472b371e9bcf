# SPDX-License-Identifier: Apache-2.0
"""Adapters of PEFT on compressed layers: we refuse what reads or changes the weights under an adapter, and say why.

Merging would add the adapter's matrix to the bytes of a buffer, and so would some ways of drawing an adapter's first
weights; some adapters multiply by the weights themselves. PEFT would fail in words about shapes and dtypes, if at all.
Copies that are trained as a whole (`modules_to_save`) are made uncompressed.

PEFT has a method that can forbid merging in a model, `BaseTuner._check_merge_allowed`, but none for a single layer,
which diffusers calls directly; so we wrap `merge` of its layers, too. None of this imports transfuse.torch when PEFT is
imported: as long as nobody else has imported it, there are no compressed weights.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from transfuse.hf._model_guard import find_compressed, is_compressed, refuse, wrap, wrap_derived

# The types of adapters (PEFT 0.21) whose layers take the shape or the values of the weights below.
_READERS = frozenset(
    "DEFT DELORA GLORA HIRA HRA LILY LOHA LOKR OSF PEANUT PSOFT SHIRA SUPERTUNING TINYLORA TRAINABLE_TOKENS "
    "UNILORA".split()
)
# `init_lora_weights` of these values, or that begin with them, takes something away from the weights below.
_CHANGERS = ("corda", "loftq", "olora", "pissa")


def register_peft(tuners_utils: ModuleType) -> None:
    """Makes adapters do only what compressed layers can do. It may be called again.

    Parameters
    ----------
    tuners_utils : module
        `peft.tuners.tuners_utils`, right after its import or any time later.
    """
    tuner, layer = tuners_utils.BaseTuner, tuners_utils.BaseTunerLayer

    def make_check(check: Callable[..., Any]) -> Callable[..., Any]:
        def check_merge_allowed(self: Any) -> Any:
            for name, module in self.model.named_modules():
                if isinstance(module, layer):
                    _refuse_merge(module, name)
            return check(self)

        return check_merge_allowed

    wrap(tuner, "_check_merge_allowed", make_check)
    wrap(tuner, "_inject_parameters", _make_inject_parameters)
    wrap_derived(tuner, lambda cls: wrap(cls, "_create_and_replace", _make_create))
    wrap_derived(layer, _wrap_layer)
    wrappers = sys.modules["peft.utils.other"]  # tuners_utils imports it
    wrap(vars(wrappers).get("ModulesToSaveWrapper"), "update", _make_update)
    wrap(vars(wrappers).get("TrainableTokensWrapper"), "__init__", _make_trainable_tokens)


def register_peft_model(peft_model: ModuleType) -> None:
    """Makes models with prompts that are trained find compressed embeddings. It may be called again.

    Parameters
    ----------
    peft_model : module
        `peft.peft_model`, right after its import or any time later.
    """
    wrap(peft_model.PeftModel, "_setup_prompt_encoder", _make_setup)


def _wrap_layer(cls: type[Any]) -> None:
    wrap(cls, "merge", _make_merge)
    wrap(cls, "mica_init", _make_shown)
    wrap(cls, "orthogonal_init", _make_shown)


# ---- merging ----


def _refuse_merge(layer: Any, name: str = "") -> None:
    base = layer.get_base_layer()
    if is_compressed(base):
        raise ValueError(
            f"an adapter cannot be merged into compressed weights ({name or base.describe()}): use it unmerged, or "
            "merge it into the uncompressed model and compress that"
        )


def _make_merge(original: Callable[..., Any]) -> Callable[..., Any]:
    def merge(self: Any, *arguments: Any, **options: Any) -> Any:
        _refuse_merge(self)
        return original(self, *arguments, **options)

    return merge


# ---- making adapters ----


def _make_create(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a wrapper for the method of a tuner that makes the adapter of one layer."""

    def create_and_replace(
        self: Any, peft_config: Any, adapter_name: str, target: Any, target_name: str, *arguments: Any, **options: Any
    ) -> Any:
        def create() -> Any:
            return original(self, peft_config, adapter_name, target, target_name, *arguments, **options)

        if not is_compressed(target.get_base_layer() if hasattr(target, "get_base_layer") else target):
            return create()
        path = options.get("current_key", target_name)
        kind = str(getattr(peft_config.peft_type, "value", peft_config.peft_type))
        init = getattr(peft_config, "init_lora_weights", None)
        if kind in _READERS:
            refuse(f"adapters of the type {kind} calculate with the weights that they are put on", [path])
        if isinstance(init, str) and init.lower().startswith(_CHANGERS):
            refuse(f"init_lora_weights={init!r} changes the weights that adapters are put on", [path])
        try:
            return create()
        except (AttributeError, IndexError, RuntimeError, TypeError) as failure:
            refuse(f"PEFT's {kind} fails ({type(failure).__name__}: {failure})", [path])

    return create_and_replace


def _make_shown(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a wrapper that gives decoded weights to methods that read those below an adapter once, unchanged."""

    def read(self: Any, *arguments: Any, **options: Any) -> Any:
        base = self.get_base_layer()
        if not is_compressed(base):
            return original(self, *arguments, **options)
        buffer = base._parameters["weight"]
        base._parameters["weight"] = base.to_dense().weight
        try:
            return original(self, *arguments, **options)
        finally:
            base._parameters["weight"] = buffer

    return read


def _make_inject_parameters(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a wrapper that refuses `target_parameters` of compressed experts, which are no parameters any more."""

    def inject_parameters(self: Any, peft_config: Any, model: Any, *arguments: Any, **options: Any) -> Any:
        targets = tuple(peft_config.target_parameters)
        paths = []
        for path, module in find_compressed(model).items():
            names = {f".{path}.{name}" for name in module.dense_names()}
            if any(name.endswith(tuple(f".{target}" for target in targets)) for name in names):
                paths.append(path)
        if paths:
            refuse(f"target_parameters={list(targets)} are to be matrices", paths)
        return original(self, peft_config, model, *arguments, **options)

    return inject_parameters


# ---- modules that are trained as a whole ----


def _make_update(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a wrapper for `modules_to_save`, copies that are trained and saved: they are made uncompressed."""

    def update(self: Any, adapter_name: str, tied_module: Any = None, **options: Any) -> Any:
        if adapter_name not in self.modules_to_save and not tied_module:
            dense = {id(each): each.to_dense() for each in self.original_module.modules() if is_compressed(each)}
            if dense:
                self.modules_to_save[adapter_name] = copy.deepcopy(self.original_module, dense)
        return original(self, adapter_name, tied_module=tied_module, **options)

    return update


def _make_trainable_tokens(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, module_to_save: Any, *arguments: Any, **options: Any) -> None:
        if is_compressed(module_to_save):
            refuse("rows of embeddings cannot be trained (trainable_token_indices)", [module_to_save.describe()])
        original(self, module_to_save, *arguments, **options)

    return init


# ---- prompts ----

# This is the first place where PEFT looks for the embedding of the words.
_WORDS = "embeddings.word_embeddings"


def _make_setup(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a wrapper for the method that finds the embedding by its weight's shape, which compressed ones lack."""

    def setup_prompt_encoder(self: Any, adapter_name: str, *arguments: Any, **options: Any) -> Any:
        model = self.base_model
        words = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
        if not is_compressed(words):
            return original(self, adapter_name, *arguments, **options)

        def get_submodule(target: str) -> Any:
            return words if target == _WORDS else type(model).get_submodule(model, target)

        model.get_submodule = get_submodule
        try:
            return original(self, adapter_name, *arguments, **options)
        finally:
            del model.get_submodule

    return setup_prompt_encoder
