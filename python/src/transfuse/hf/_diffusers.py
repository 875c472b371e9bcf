# SPDX-License-Identifier: Apache-2.0
"""The quantizer that diffusers calls while it loads and saves a compressed model, such as a pipeline's transformer.

It does what the one for transformers does (_quantizer.py), with the hooks that diffusers has. Models of diffusers have
the names of their files, so that there are no conversions.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.quantizers.base import DiffusersQuantizer
from diffusers.quantizers.quantization_config import QuantizationConfigMixin
from torch import nn

from transfuse._checkpoint import TensorInfo
from transfuse._errors import Status, make_error
from transfuse.hf._config_fields import ConfigFields
from transfuse.hf._device_map import check_device_map


class DiffusersTransfuseConfig(ConfigFields, QuantizationConfigMixin):  # type: ignore[misc]
    __doc__ = ConfigFields.__doc__


class TransfuseDiffusersQuantizer(DiffusersQuantizer):  # type: ignore[misc]
    """Loads what `transfuse compress` made of a model's folder, and saves it."""

    def __init__(self, quantization_config: ConfigFields, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        if not self.pre_quantized:
            raise make_error(
                Status.TRF_ERR_ARGUMENT,
                "this model is not compressed: its config.json has no quantization_config of transfuse. Run "
                "'transfuse compress' on its folder first",
            )
        self._tensors: list[TensorInfo] = []
        self._model: nn.Module | None = None
        self._plan: Any = None
        self._hook: Any = None
        self._blobs: set[str] = set()

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        """Refuses device maps; the second call brings the one that holds, and everything is loaded then."""
        check_device_map(device_map)
        if self._plan is not None:
            self._load(device_map)

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: list[str]) -> list[str]:
        """Reads the headers, and has the framework expect what is not compressed alone."""
        from transfuse.hf._load_plan import SUFFIX, read_headers

        self._tensors = read_headers(checkpoint_files)
        ours = {tensor.name + SUFFIX for tensor in self._tensors if tensor.compressed}
        return [key for key in loaded_keys if key not in ours]

    def _process_model_before_weight_loading(self, model: nn.Module, **kwargs: Any) -> None:
        from transfuse.hf._load_plan import NamesPlanner
        from transfuse.hf._loading import put_modules, warn_of_decoded

        self._model = model
        self._plan = NamesPlanner(model).make(self._tensors)
        put_modules(model, self._plan)
        warn_of_decoded(self._plan)

    def _load(self, device_map: dict[str, Any] | None) -> None:
        from transfuse.hf._device_map import make_device_finder
        from transfuse.hf._loading import Loader, hide_from_framework

        assert self._model is not None
        Loader(self._model, self._plan, make_device_finder(device_map)).run()
        self._hook = hide_from_framework(self._model, self._plan.targets)
        self._blobs = {taken.target for taken in self._plan.taken}
        self._model = self._plan = None

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        self._hook.remove()
        self._hook = None
        if self.quantization_config.exact:
            from transfuse.torch import set_exact

            set_exact(True)
        return model

    def get_state_dict_and_metadata(
        self, state_dict: dict[str, Any], safe_serialization: bool = False
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns blobs by their names in files."""
        from transfuse.hf._load_plan import SUFFIX

        return {name + SUFFIX if name in self._blobs else name: value for name, value in state_dict.items()}, {}

    def update_torch_dtype(self, torch_dtype: torch.dtype | None) -> torch.dtype | None:
        return torch_dtype

    def get_cuda_warm_up_factor(self) -> int:
        """The framework allocates memory for what it loads itself: as for a model that is not quantized."""
        return 2

    @property
    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        """Adapters are; the compressed weights are not."""
        return True

    @property
    def is_compileable(self) -> bool:
        return True
