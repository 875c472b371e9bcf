# SPDX-License-Identifier: Apache-2.0
"""The config that transformers' users pass as `quantization_config`."""

from __future__ import annotations

from typing import Any

from transformers.utils.quantization_config import QuantizationConfigMixin

from transfuse.hf import _model_guard
from transfuse.hf._config_fields import ConfigFields


class TransfuseConfig(ConfigFields, QuantizationConfigMixin):  # type: ignore[misc]
    __doc__ = ConfigFields.__doc__

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        # A model that is loaded with it will be saved, resized and so on.
        _model_guard.install()
