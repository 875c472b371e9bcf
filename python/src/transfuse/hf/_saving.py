# SPDX-License-Identifier: Apache-2.0
"""What `save_pretrained` writes of a model."""

from __future__ import annotations

import itertools
import json
import struct
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from transfuse.hf._file_check import SUFFIX
from transfuse.hf._loading import compressed_parameters
from transfuse.torch._buffer_module import BufferModule
from transfuse.torch._containers import container_buffers
from transfuse.torch._experts import TransfuseExperts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from transfuse.hf._config_fields import ConfigFields

# Of an expert index (format/FORMAT.md, section 10).
_INDEX_MAGIC = 0x58414E53
_INDEX_BYTES = 16


def make_file_tensors(
    model: PreTrainedModel, conversions: list[Any], disk_names: dict[str, list[str]], config: ConfigFields
) -> dict[str, Tensor]:
    """Returns the tensors of a compressed checkpoint of a model, by the names in its files.

    Blobs go by the names that they were loaded by, and what is dense by those that the framework's conversions, undone,
    give it. Tied weights are there once.

    Parameters
    ----------
    model : PreTrainedModel
    conversions : list
        Those of the framework that the model was loaded with.
    disk_names : dict of str to list of str
        Tensors of the files by the parameters that they became.
    config : ConfigFields
        Gets the text of the model's config in place of the source's, if the model is of another class by now.
    """
    compressed = compressed_parameters(model)
    dense: dict[str, Tensor] = {}
    blobs: dict[int, dict[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        if name not in compressed:
            dense[name] = tensor
        elif name in disk_names:
            blobs[tensor.data_ptr()] = _name_blobs(disk_names[name], tensor, compressed[name])
        else:
            blobs.setdefault(tensor.data_ptr(), _name_blobs([name + SUFFIX], tensor, compressed[name]))
    dense = remove_tied_weights_from_state_dict(dense, model)
    kept = getattr(model, "_weight_conversions", None)
    model._weight_conversions = conversions
    try:
        dense = revert_weight_conversion(model, dense)
    finally:
        model._weight_conversions = kept
    _renew_source_config(model, config)
    return dense | {name: blob for named in blobs.values() for name, blob in named.items()}


def _name_blobs(names: list[str], tensor: Tensor, module: BufferModule) -> dict[str, Tensor]:
    """Returns the tensors of the files that a blob becomes: several, where the files have experts one by one."""
    if not isinstance(module, TransfuseExperts):
        return {names[0]: tensor}
    experts = container_buffers(tensor)
    if len(names) > 1 or len(experts) == 1:
        # Copies, since the framework takes tensors that share memory for tied ones; on the CPU, since they are written
        # from there.
        return {name: expert.to("cpu", copy=True) for name, expert in zip(names, experts)}
    return {names[0]: _make_expert_tensor([expert.cpu() for expert in experts])}


def _make_expert_tensor(blobs: list[Tensor]) -> Tensor:
    """Returns the expert tensor of a file (format/FORMAT.md, section 10): an expert index, and the blobs behind it."""
    start = -(-(_INDEX_BYTES + 8 * len(blobs)) // 16) * 16
    offsets = list(itertools.accumulate((len(blob) for blob in blobs), initial=start))
    head = struct.pack(f"<IIQ{len(blobs)}Q", _INDEX_MAGIC, len(blobs), 0, *offsets[:-1])
    index = torch.frombuffer(bytearray(head.ljust(start, b"\0")), dtype=torch.uint8)
    return torch.cat([index, *blobs])


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
