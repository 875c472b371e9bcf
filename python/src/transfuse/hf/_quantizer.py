# SPDX-License-Identifier: Apache-2.0
"""The quantizer that transformers calls while it loads and saves a compressed model.

transformers' `from_pretrained` calls us in this order. `_process_model_before_weight_loading` reads the headers, and
`update_weight_conversions` plans and puts our modules in place. The blobs are loaded as soon as the device map is
known: there or, where transformers works the map out, in `validate_environment`. Then we hide the parameters that we
have set from the framework, and the tensors that we have read (`leave_rest`). It loads the rest as it would from the
source, and reports it; `complete_report` adds what is compressed. `_guard.py` calls these two.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.quantizers.base import HfQuantizer
from transformers.utils import logging

from transfuse._errors import Status, make_error
from transfuse._layout_choice import choose_layouts
from transfuse.hf._config_fields import AUTO_LAYOUT
from transfuse.hf._device_map import check_device_map
from transfuse.hf._file_check import WEIGHTS_KEY, source_weights_name
from transfuse.hf._guard import current_options

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from transfuse._checkpoint import TensorInfo
    from transfuse.hf._load_plan import LoadPlan
    from transfuse.hf._quantization_config import TransfuseConfig

logger = logging.get_logger(__name__)

# A device needs this much besides the buffers of layers, for directories and workspaces of products.
_USABLE_MEMORY = 0.97
# Other methods of quantization have separate scales for weights of these dtypes.
_MAYBE_SCALED = ("F8_E4M3", "F8_E5M2", "I8")


def refuse_unmarked(tensors: Iterable[TensorInfo]) -> None:
    """Refuses weights of 8 bits if the marker is lost, since it may have said that they are only stored."""
    for tensor in tensors:
        if tensor.compressed and tensor.dtype in _MAYBE_SCALED:
            raise make_error(
                Status.TRF_ERR_UNSUPPORTED,
                f"{tensor.file}: {tensor.name!r} holds weights of {tensor.dtype}, and config.json has lost the "
                "quantization_config that says whether they may be loaded as they are: put it back",
            )


class TransfuseHfQuantizer(HfQuantizer):  # type: ignore[misc]
    """Loads checkpoints that `transfuse compress` made, and saves models that were loaded from them."""

    requires_calibration = False
    quantization_config: TransfuseConfig

    def __init__(self, quantization_config: TransfuseConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        quantization_config.check_loadable()
        if not self.pre_quantized:
            raise make_error(
                Status.TRF_ERR_ARGUMENT,
                "this checkpoint is not compressed: its config.json has no quantization_config of transfuse. Run "
                "'transfuse compress' on it first, or load it as it is and call transfuse.compress_model",
            )
        self._model: PreTrainedModel | None = None
        self._tensors: list[TensorInfo] = []
        self._dtype: torch.dtype | None = None
        self._device_map: Any = None
        self._plan: LoadPlan | None = None
        self._hook: Any = None
        # Saving needs the framework's conversions, and the tensors of the files by the parameters that they became.
        self._conversions: list[Any] = []
        self._disk_names: dict[str, list[str]] = {}

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        """Refuses device maps that we do not support; a loading's second call brings the one that was worked out."""
        # If this raises an ImportError, it says that torch is too old, or that this transfuse was built without torch.
        importlib.import_module("transfuse.torch")
        check_device_map(device_map)
        if self._plan is not None and isinstance(self._device_map, str) and device_map is not None:
            self._device_map = device_map
            self._load()

    def source_weights_name(self) -> str | None:
        """Returns what the source's config.json calls its file of weights; ours holds a sentence there."""
        return source_weights_name(self.quantization_config.source_config)

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        self._dtype = dtype
        return dtype

    def adjust_max_memory(self, max_memory: dict[int | str, Any]) -> dict[int | str, Any]:
        return {key: _USABLE_MEMORY * size if isinstance(key, int) else size for key, size in max_memory.items()}

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: list[str] | None = None, device_map: Any = None, **kwargs: Any
    ) -> None:
        from transfuse.hf._load_plan import read_headers

        if getattr(model.config, "distributed_config", None) is not None:
            raise make_error(
                Status.TRF_ERR_UNSUPPORTED, "compressed weights are not cut for tensor parallelism by transformers"
            )
        if not checkpoint_files:
            raise make_error(Status.TRF_ERR_ARGUMENT, "compressed weights are loaded from files, not from a state dict")
        self._model, self._device_map = model, device_map
        self._tensors = read_headers(checkpoint_files)
        if self.quantization_config.version is None:
            refuse_unmarked(self._tensors)

    def update_weight_conversions(self, weight_conversions: list[Any], *args: Any) -> list[Any]:
        """Plans, now that all conversions are known, also those of the user's `key_mapping`.

        It changes none of them: what we load is not in the state dict that the framework compares names with.
        """
        if self._model is not None and self._plan is None:
            self._prepare(self._model, weight_conversions)
            if not isinstance(self._device_map, str):
                self._load()
        return weight_conversions

    def _prepare(self, model: PreTrainedModel, conversions: list[Any]) -> None:
        from transfuse.hf._load_plan import Planner
        from transfuse.hf._loading import put_modules, warn_of_decoded

        assert self._dtype is not None
        ignore = bool(current_options().get("ignore_mismatched_sizes", False))
        layout, layouts = self.quantization_config.layout, {}
        if layout == AUTO_LAYOUT:
            layout, layouts = "coded", self._choose_layouts()
        planner = Planner(model, conversions, self._dtype, layout, ignore, layouts)
        plan = self._plan = planner.make(self._tensors)
        put_modules(model, plan)
        warn_of_decoded(plan)
        self._conversions = plan.conversions
        self._disk_names = {taken.target: [taken.part.disk_name] for taken in plan.taken}
        for experts in plan.experts:
            for name, parts in experts.blobs.items():
                self._disk_names[f"{experts.path}.{name}"] = [part.disk_name for part in parts]

    def _choose_layouts(self) -> dict[str, str]:
        """Returns the layouts of single tensors, by their names, for the memory and batches of the config."""
        import torch

        card: str | None = None
        expert_layouts: tuple[str, ...] = ("coded", "packed")
        if torch.cuda.is_available():
            card = torch.cuda.get_device_name()
            if torch.cuda.get_device_capability() != (9, 0):  # it has no kernels for packed experts
                expert_layouts = ("coded",)
        files = sorted({tensor.file for tensor in self._tensors})
        place = Path(files[0]) if len(files) == 1 else Path(files[0]).parent
        config = self.quantization_config
        assert config.memory is not None
        batches = 1 if config.batches is None else config.batches
        choice = choose_layouts(place, config.memory, batches, card=card, expert_layouts=expert_layouts)
        counts = ", ".join(f"{count} {name}" for name, count in choice.count_layouts().items())
        logger.info(f"layouts chosen for {config.memory}: {counts}; {choice.layer_bytes:,} bytes")
        return choice.layouts

    def is_loading(self, model: Any) -> bool:
        """Returns whether this quantizer is about to load a model; the framework alone loads adapters on top of it."""
        return self._plan is not None and self._model is model

    def leave_rest(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns the tensors of the files that the framework has to load."""
        assert self._plan is not None
        return {name: tensor for name, tensor in state_dict.items() if name not in self._plan.left}

    def complete_report(self, report: Any) -> None:
        """Adds the compressed tensors that no module took to what the framework found in the rest."""
        assert self._plan is not None
        report.unexpected_keys |= self._plan.unexpected
        report.mismatched_keys |= self._plan.mismatched
        report.missing_keys -= {name for name, _, _ in self._plan.mismatched}

    def _load(self) -> None:
        from transfuse.hf._device_map import make_device_finder
        from transfuse.hf._loading import Loader, hide_from_framework

        model, plan = self._model, self._plan
        assert model is not None and plan is not None
        Loader(model, plan, make_device_finder(self._device_map)).run()
        self._hook = hide_from_framework(model, plan.targets)

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> PreTrainedModel:
        from transfuse.hf._loading import compressed_parameters, end_loading

        assert self._plan is not None
        self._hook.remove()
        end_loading(model)
        self._model = self._plan = self._hook = None
        self._tensors = []
        if not compressed_parameters(model):
            # Everything was decoded, so this is a dense model, which the framework saves by itself.
            model._weight_conversions = self._conversions
            self.remove_quantization_config(model)
            if hasattr(model.config, WEIGHTS_KEY):
                delattr(model.config, WEIGHTS_KEY)
            return model
        # The framework would undo conversions on all that is saved; we give it names of files, to which none applies.
        model._weight_conversions = []
        if self.quantization_config.exact:
            from transfuse.torch import set_exact

            set_exact(True)
        return model

    def _dequantize(self, model: PreTrainedModel, **kwargs: Any) -> PreTrainedModel:
        """Raises an error: it is no longer known what modules were before they were compressed."""
        raise make_error(
            Status.TRF_ERR_UNSUPPORTED,
            "a loaded model is not decompressed: run 'transfuse decompress' on its folder, and load the result",
        )

    def get_state_dict_and_metadata(self, model: PreTrainedModel) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """Returns tensors by their names in files, so that what is saved is a compressed checkpoint again."""
        from transfuse.hf._saving import make_file_tensors

        # If there are adapters, only they are saved; the framework finds them by their names in the model.
        if getattr(model, "_hf_peft_config_loaded", False):
            return None, {}
        return make_file_tensors(model, self._conversions, self._disk_names, self.quantization_config), {}

    def is_serializable(self, safe_serialization: bool | None = None) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        """Adapters can be trained; the compressed weights cannot."""
        return True

    @property
    def is_compileable(self) -> bool:
        return True
