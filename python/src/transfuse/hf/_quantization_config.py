# SPDX-License-Identifier: Apache-2.0
"""The config that transformers' users pass as `quantization_config`."""

from __future__ import annotations

from transformers.utils.quantization_config import QuantizationConfigMixin

from transfuse.hf._config_fields import ConfigFields


class TransfuseConfig(ConfigFields, QuantizationConfigMixin):  # type: ignore[misc]
    __doc__ = ConfigFields.__doc__
