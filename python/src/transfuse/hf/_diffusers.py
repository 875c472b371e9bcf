# SPDX-License-Identifier: Apache-2.0
"""The quantizer that diffusers calls while it loads and saves a compressed model, such as a pipeline's transformer.

It does what the one for transformers does (_quantizer.py), with the hooks that diffusers has. Models of diffusers have
the same names as their files, so that there are no conversions, except for attention blocks of old files.
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
from transfuse.hf._file_check import SUFFIX
from transfuse.hf._guard import note_diffusers_quantizer


class DiffusersTransfuseConfig(ConfigFields, QuantizationConfigMixin):  # type: ignore[misc]
    __doc__ = ConfigFields.__doc__


class TransfuseDiffusersQuantizer(DiffusersQuantizer):  # type: ignore[misc]
    """Loads a folder of a model that `transfuse compress` made, and saves the model."""

    # The framework reads this, and keeps the same modules in F32 as in an uncompressed model.
    use_keep_in_fp32_modules = True

    def __init__(self, quantization_config: ConfigFields, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        quantization_config.check_loadable()
        if not self.pre_quantized:
            raise make_error(
                Status.TRF_ERR_ARGUMENT,
                "this model is not compressed: its config.json has no quantization_config of transfuse. Run "
                "'transfuse compress' on its folder first",
            )
        note_diffusers_quantizer(self)
        self._tensors: list[TensorInfo] = []
        self._is_one_file = False
        self._keys: list[str] = []
        self._dtype: torch.dtype | None = None
        self._model: nn.Module | None = None
        self._plan: Any = None
        self._hook: Any = None
        self._blobs: set[str] = set()

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        """Refuses device maps that we do not support; the second call brings the final one, and loads everything."""
        check_device_map(device_map)
        if self._plan is not None:
            self._load(device_map)

    def update_torch_dtype(self, torch_dtype: torch.dtype | None) -> torch.dtype | None:
        self._dtype = torch_dtype
        return torch_dtype

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: list[str]) -> list[str]:
        """Reads the headers, and makes the framework expect only what is not compressed."""
        from transfuse.hf._load_plan import read_headers

        self._tensors = read_headers(checkpoint_files)
        self._is_one_file = len(checkpoint_files) == 1
        ours = {tensor.name + SUFFIX for tensor in self._tensors if tensor.compressed}
        # The framework keeps this list; once there is a plan, tensors that nobody takes are added to it.
        self._keys = [key for key in loaded_keys if key not in ours]
        return self._keys

    def _process_model_before_weight_loading(
        self, model: nn.Module, keep_in_fp32_modules: list[str] | None = None, **kwargs: Any
    ) -> None:
        from transfuse.hf._load_plan import NamesPlanner
        from transfuse.hf._loading import put_modules, warn_of_decoded

        self._model = model
        planner = NamesPlanner(model, self._new_names(model), self._dtype, keep_in_fp32_modules or ())
        self._plan = planner.make(self._tensors)
        self._keys += sorted(self._plan.unexpected)
        put_modules(model, self._plan)
        warn_of_decoded(self._plan)

    def _new_names(self, model: nn.Module) -> dict[str, str]:
        """Returns the parameters that tensors of old attention blocks become, as the framework renames them."""
        names = {tensor.name: tensor.name for tensor in self._tensors}
        rename: Any = getattr(model, "_fix_state_dict_keys_on_load", None)
        if self._is_one_file and rename is not None:
            rename(names)
        return {old: new for new, old in names.items()}

    def _load(self, device_map: dict[str, Any] | None) -> None:
        from transfuse.hf._device_map import make_device_finder
        from transfuse.hf._loading import Loader, hide_from_framework

        assert self._model is not None
        Loader(self._model, self._plan, make_device_finder(device_map)).run()
        self._hook = hide_from_framework(self._model, self._plan.targets)
        self._blobs = {taken.target for taken in self._plan.taken}
        self._model = self._plan = None

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        from transfuse.hf._loading import end_loading

        self._hook.remove()
        end_loading(model)
        self._hook = None
        if self.quantization_config.exact:
            from transfuse.torch import set_exact

            set_exact(True)
        return model

    def get_state_dict_and_metadata(
        self, state_dict: dict[str, Any], safe_serialization: bool = False
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns blobs by their names in files."""
        return {name + SUFFIX if name in self._blobs else name: value for name, value in state_dict.items()}, {}

    def get_cuda_warm_up_factor(self) -> int:
        """Returns the factor of an unquantized model, since the framework allocates memory for what it loads itself."""
        return 2

    @property
    def supports_parallel_loading(self) -> bool:
        """No: the framework's threads would not know that we take part (_guard.py). We read blobs in parallel."""
        return False

    @property
    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        """Adapters can be trained; the compressed weights cannot."""
        return True

    @property
    def is_compileable(self) -> bool:
        return True
