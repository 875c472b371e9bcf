# SPDX-License-Identifier: Apache-2.0
"""Loads compressed checkpoints with transformers and diffusers.

transfuse._hook calls the functions `register_*` and `guard_*`. Users pass a `TransfuseConfig` as `quantization_config`.
Importing this package imports neither torch nor a framework.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from transfuse.hf._guard import guard_accelerate as guard_accelerate
from transfuse.hf._guard import guard_diffusers as guard_diffusers
from transfuse.hf._guard import guard_diffusers_loader as guard_diffusers_loader
from transfuse.hf._guard import guard_diffusers_models as guard_diffusers_models
from transfuse.hf._guard import guard_peft as guard_peft
from transfuse.hf._guard import guard_trainer as guard_trainer
from transfuse.hf._guard import guard_trainer_utils as guard_trainer_utils
from transfuse.hf._guard import guard_transformers as guard_transformers

if TYPE_CHECKING:
    from transfuse.hf._quantization_config import TransfuseConfig as TransfuseConfig

__all__ = [
    "TransfuseConfig",
    "guard_accelerate",
    "guard_diffusers",
    "guard_diffusers_loader",
    "guard_diffusers_models",
    "guard_peft",
    "guard_trainer",
    "guard_trainer_utils",
    "guard_transformers",
    "register_diffusers",
    "register_peft",
    "register_peft_model",
    "register_transformers",
]

METHOD = "transfuse"
# In transformers, an argument of from_pretrained overrides some attributes of these configs.
_OVERRIDABLE = "LOADING_ATTRIBUTES_CONFIG_TYPES"


def __getattr__(name: str) -> Any:
    if name == "TransfuseConfig":
        from transfuse.hf._quantization_config import TransfuseConfig

        return TransfuseConfig
    raise AttributeError(f"module 'transfuse.hf' has no attribute '{name}'")


def register_transformers(auto: ModuleType) -> None:
    """Enters quantizer and config into the tables of `transformers.quantizers.auto`; does nothing the second time."""
    if METHOD in auto.AUTO_QUANTIZER_MAPPING:
        return
    from transfuse.hf._quantization_config import TransfuseConfig
    from transfuse.hf._quantizer import TransfuseHfQuantizer

    auto.register_quantization_config(METHOD)(TransfuseConfig)
    auto.register_quantizer(METHOD)(TransfuseHfQuantizer)
    # transformers has no function for this.
    vars(auto)[_OVERRIDABLE] = (*vars(auto)[_OVERRIDABLE], TransfuseConfig)


def register_diffusers(auto: ModuleType) -> None:
    """Enters quantizer and config into the tables of `diffusers.quantizers.auto`, which has no functions for it."""
    if METHOD in auto.AUTO_QUANTIZER_MAPPING:
        return
    from transfuse.hf._diffusers import DiffusersTransfuseConfig, TransfuseDiffusersQuantizer

    auto.AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = DiffusersTransfuseConfig
    auto.AUTO_QUANTIZER_MAPPING[METHOD] = TransfuseDiffusersQuantizer


def register_peft(tuners_utils: ModuleType) -> None:
    """Makes the adapters of `peft.tuners.tuners_utils` refuse to be merged into compressed weights."""
    from transfuse.hf import _peft

    _peft.register_peft(tuners_utils)


def register_peft_model(peft_model: ModuleType) -> None:
    """Makes the models of `peft.peft_model` find compressed embeddings, for prompts that are trained."""
    from transfuse.hf import _peft

    _peft.register_peft_model(peft_model)
