# SPDX-License-Identifier: Apache-2.0
"""What is left to do when a model has been loaded, and what `save_pretrained` writes of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from transfuse.hf._load_plan import SUFFIX, LoadPlan
from transfuse.hf._loading import get_tensor
from transfuse.torch._modules import CompressedModule, TransfuseLinear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from transfuse.hf._config_fields import ConfigFields


def finish_model(model: PreTrainedModel, plan: LoadPlan) -> None:
    """Sets right what the host does not know of compressed weights.

    Raises
    ------
    RuntimeError
        A parameter was given by nobody.
    """
    compressed = compressed_parameters(model)
    for name, dtype in plan.dtypes.items():
        tensor = get_tensor(model, name)
        # transformers 5.17 keeps the file's dtype for parameters of quantized models that were renamed.
        if name not in compressed and tensor.is_floating_point() and tensor.dtype != dtype:
            tensor.data = tensor.data.to(dtype)
    for module in model.modules():
        # Tying pads the bias of an output to the length of its weights, which it takes a blob's for.
        if isinstance(module, TransfuseLinear) and module.bias is not None and len(module.bias) > module.out_features:
            module.bias.data = module.bias.data[: module.out_features].clone()
    empty = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if empty:
        raise RuntimeError(f"no weights were loaded for {', '.join(empty)}")


def compressed_parameters(model: PreTrainedModel) -> dict[str, CompressedModule]:
    """Returns the modules with blobs by the names of their weights, one that has several names under each."""
    modules = model.named_modules(remove_duplicate=False)
    return {f"{path}.weight": module for path, module in modules if isinstance(module, CompressedModule)}


def make_file_tensors(
    model: PreTrainedModel, conversions: list[Any], disk_names: dict[str, list[str]], config: ConfigFields
) -> dict[str, Tensor]:
    """Returns the tensors of a compressed checkpoint of a model, by the names in its files.

    Blobs go by the names that they were loaded by, and what is dense by those that the host's conversions, undone,
    give it. Tied weights are there once.

    Parameters
    ----------
    model : PreTrainedModel
    conversions : list
        Those of the host that the model was loaded with.
    disk_names : dict of str to list of str
        Tensors of the files by the parameters that they became.
    config : ConfigFields
        Gets the text of the model's config in place of the source's, if the model is of another class by now.
    """
    compressed = compressed_parameters(model)
    dense: dict[str, Tensor] = {}
    blobs: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        if name not in compressed:
            dense[name] = tensor
        elif name in disk_names:
            blobs[tensor.data_ptr()] = (disk_names[name][0], tensor)
        else:
            blobs.setdefault(tensor.data_ptr(), (name + SUFFIX, tensor))
    dense = remove_tied_weights_from_state_dict(dense, model)
    kept = getattr(model, "_weight_conversions", None)
    model._weight_conversions = conversions
    try:
        dense = revert_weight_conversion(model, dense)
    finally:
        model._weight_conversions = kept
    _renew_source_config(model, config)
    return {**dense, **dict(blobs.values())}


def _renew_source_config(model: PreTrainedModel, config: ConfigFields) -> None:
    """`transfuse decompress` restores the source's config.json, which is not that of a model of another class."""
    if config.source_config is None:
        return
    architectures = json.loads(config.source_config).get("architectures") or []
    if type(model).__name__ in architectures:
        return
    fields = model.config.to_diff_dict()
    fields.pop("quantization_config", None)
    fields["architectures"] = [type(model).__name__]
    config.source_config = json.dumps(fields, indent=2, sort_keys=True) + "\n"
