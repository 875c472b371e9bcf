# SPDX-License-Identifier: Apache-2.0
"""Registers transfuse with transformers, diffusers, PEFT and accelerate once a program imports their modules.

None of them looks for plug-ins, so a finder on ``sys.meta_path`` waits for the import of their tables.
`import transfuse` puts it there, and so does the file transfuse_hook.pth of the wheel, for programs that do not import
transfuse. It imports nothing of torch, transformers or diffusers. ``TRANSFUSE_NO_HOOK=1`` turns that file off.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

# The modules whose tables we enter, or whose functions we watch, and the function of transfuse.hf that does it. The
# file transfuse_hook.pth (cmake/TransfuseWheel.cmake) lists the same modules: each may be the first one of a program.
FRAMEWORKS = {
    "transformers.quantizers.auto": "register_transformers",
    "transformers.modeling_utils": "guard_transformers",
    "transformers.trainer": "guard_trainer",
    "transformers.trainer_utils": "guard_trainer_utils",
    "diffusers.quantizers.auto": "register_diffusers",
    "diffusers.models.model_loading_utils": "guard_diffusers",
    "diffusers.models.modeling_utils": "guard_diffusers_models",
    "diffusers.loaders.ip_adapter": "guard_diffusers_loader",
    "diffusers.loaders.lora_base": "guard_diffusers_loader",
    "diffusers.loaders.textual_inversion": "guard_diffusers_loader",
    "diffusers.loaders.unet": "guard_diffusers_loader",
    "accelerate.utils.modeling": "guard_accelerate",
    "peft.peft_model": "register_peft_model",
    "peft.tuners.tuners_utils": "register_peft",
    "peft.utils.save_and_load": "guard_peft",
}


def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
    """Finds a framework's module as Python would, and has us registered after it has run; None for any other module."""
    if name not in FRAMEWORKS:
        return None
    spec = PathFinder.find_spec(name, path, target)
    if spec is None or spec.loader is None:
        return spec
    loader = spec.loader
    run = loader.exec_module

    def run_and_register(module: ModuleType) -> None:
        # Each module has a loader of its own, so that a wrapper on it changes no other module.
        loader.__dict__.pop("exec_module", None)
        run(module)
        register(module)

    loader.exec_module = run_and_register  # type: ignore[method-assign]
    return spec


def register(module: ModuleType) -> None:
    """Enters us into a framework's module. A failure is a warning: it must not break the import of the framework."""
    try:
        getattr(importlib.import_module("transfuse.hf"), FRAMEWORKS[module.__name__])(module)
    except Exception as failure:
        warnings.warn(
            f"transfuse could not register with {module.__name__}: {type(failure).__name__}: {failure}", stacklevel=2
        )


def install() -> None:
    """Registers with the frameworks that are imported already, and waits for the others. It may be called again."""
    this = sys.modules[__name__]
    if this not in sys.meta_path:
        sys.meta_path.insert(0, this)
    for name in FRAMEWORKS:
        module = sys.modules.get(name)
        # A module that is still being imported is registered when it has run.
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            register(module)
