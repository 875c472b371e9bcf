# SPDX-License-Identifier: Apache-2.0
"""Makes the tensors that `save_pretrained` writes for a compressed model."""

from __future__ import annotations

import copy
import itertools
import json
import struct
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict
from transformers.utils import logging

from transfuse._errors import Status, make_error
from transfuse._json_text import parse_json
from transfuse._results import LayerInfo
from transfuse.hf._file_check import SUFFIX
from transfuse.hf._file_names import FileNames
from transfuse.hf._loading import compressed_parameters
from transfuse.torch import _ops
from transfuse.torch._buffer_module import BufferModule
from transfuse.torch._containers import container_buffers
from transfuse.torch._dtypes import TORCH_DTYPES
from transfuse.torch._encode import encode_like
from transfuse.torch._experts import TransfuseExperts
from transfuse.torch._modules import CompressedModule
from transfuse.torch._registry import expert_infos, layer_info
from transfuse.torch._selection import LEAST_SIDE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from transfuse.hf._config_fields import ConfigFields

# An expert index begins with this magic (format/FORMAT.md, section 10).
_INDEX_MAGIC = 0x58414E53
_INDEX_BYTES = 16

# Fields of configs that change while a model is loaded.
_NOT_OF_THE_MODEL = frozenset(
    "architectures dtype torch_dtype quantization_config transformers_weights transformers_version _name_or_path "
    "_commit_hash _attn_implementation _experts_implementation".split()
)

logger = logging.get_logger(__name__)


def make_file_tensors(
    model: PreTrainedModel, conversions: list[Any] | None, disk_names: dict[str, list[str]], config: ConfigFields
) -> dict[str, Tensor]:
    """Returns the tensors of a compressed checkpoint of a model, by the names in its files.

    Blobs keep the names that they were loaded by. Dense tensors, and those that were compressed only in memory, get
    their names by undoing the framework's conversions. Tied weights are there once.

    Parameters
    ----------
    model : PreTrainedModel
    conversions : list or None
        The framework's conversions with which the model was loaded; None for a model that was not loaded.
    disk_names : dict of str to list of str
        The tensors that were compressed in the files, by the parameters that they became.
    config : ConfigFields
        If the model is of another class by now, its config's text replaces the source's here.
    """
    compressed = compressed_parameters(model)
    state = model.state_dict()
    dense = {name: tensor for name, tensor in state.items() if name not in compressed}
    made = _Maker(FileNames(model, conversions, _list_parameters(dense, compressed)))
    for name in _leave_out_ties(model, {name: state[name] for name in compressed}, disk_names):
        module = compressed[name]
        if name in disk_names:
            made.blobs |= _name_blobs(disk_names[name], state[name], module)
        elif isinstance(module, TransfuseExperts):
            path = name.rpartition(".")[0]
            made.take_experts(path, module, {own: state[f"{path}.{own}"] for own in module._state_names()})
        else:
            made.take_matrix(name, state[name], module)
    dense = remove_tied_weights_from_state_dict(dense, model)
    kept = getattr(model, "_weight_conversions", None)
    model._weight_conversions = conversions
    try:
        converted = made.convert_decoded(model, dense)
        dense = revert_weight_conversion(model, dense)
    finally:
        model._weight_conversions = kept
    _renew_source_config(model, config)
    return {**dense, **converted, **made.blobs}


def _list_parameters(dense: dict[str, Tensor], compressed: dict[str, BufferModule]) -> set[str]:
    """Returns the names that the model's parameters and buffers would have if it were not compressed."""
    names = set(dense)
    for name, module in compressed.items():
        path, _, own = name.rpartition(".")
        apart = isinstance(module, TransfuseExperts) and "gate_proj" in module._state_names()
        names.add(f"{path}.gate_up_proj" if apart and own in ("gate_proj", "up_proj") else name)
    return names


def _leave_out_ties(
    model: PreTrainedModel, buffers: dict[str, Tensor], disk_names: dict[str, list[str]]
) -> dict[str, None]:
    """Returns the names by which compressed parameters are saved: tied ones have one name, the one in the files."""
    ties: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    groups: dict[tuple[int, str], list[str]] = {}
    for name, buffer in buffers.items():
        # Parameters that share memory, but would not be tied when they are loaded, are saved under each name.
        groups.setdefault((buffer.data_ptr(), ties.get(name, name)), []).append(name)
    return dict.fromkeys(
        min(names, key=lambda name: (name not in disk_names, name in ties)) for names in groups.values()
    )


class _Maker:
    """Makes tensors of files from parameters that were compressed in memory.

    Attributes
    ----------
    blobs : dict of str to Tensor
        The blobs by their names in files.
    """

    def __init__(self, names: FileNames) -> None:
        self.names = names
        self.blobs: dict[str, Tensor] = {}
        # The paths of experts that were taken; decoded tensors by their names in the model, and how they were encoded.
        self._experts: set[str] = set()
        self._decoded: dict[str, Tensor] = {}
        self._infos: list[LayerInfo] = []

    def take_matrix(self, name: str, blob: Tensor, module: BufferModule) -> None:
        """Takes a matrix under its name in files, decoded if it goes into a conversion."""
        disk_name, is_all = self.names.get_name(name)
        if is_all:
            # It is copied if another name has the same memory, which the framework would take for tied weights.
            taken = {each.data_ptr() for each in self.blobs.values()}
            self.blobs[disk_name + SUFFIX] = blob.clone() if blob.data_ptr() in taken else blob
            return
        assert isinstance(module, CompressedModule)
        self._decoded[name] = module.decode_weight()
        self._infos.append(module.info())

    def take_experts(self, path: str, module: TransfuseExperts, coded: dict[str, Tensor]) -> None:
        """Takes all experts of a module, as coded containers, when the first of its parameters comes."""
        if path in self._experts:
            return
        self._experts.add(path)
        containers = {name: container_buffers(container) for name, container in coded.items()}
        sorted_parts = {}
        for name, parts in _parts_of(containers).items():
            experts = self.names.sort_experts(f"{path}.{name}", len(parts[0]), len(parts))
            if experts is None:
                self._take_decoded_experts(path, module, coded)
                return
            for disk_name, matrices in experts.items():
                chosen = [[parts[n % len(parts)][n // len(parts)] for n in numbers] for numbers in matrices]
                sorted_parts[disk_name] = [_join_blobs(blobs) for blobs in chosen]
        for disk_name, blobs in sorted_parts.items():
            self.blobs[disk_name + SUFFIX] = blobs[0] if len(blobs) == 1 else _make_expert_tensor(blobs)

    def _take_decoded_experts(self, path: str, module: TransfuseExperts, coded: dict[str, Tensor]) -> None:
        for name, weights in module.decode_weights().items():
            self._decoded[f"{path}.{name}"] = weights
        self._infos += [expert_infos(container)[0] for container in coded.values()]

    def convert_decoded(self, model: PreTrainedModel, dense: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns decoded tensors as the framework would save them, encoded again where that loses nothing.

        Dense tensors that go into the same conversions are taken out of `dense`.
        """
        if not self._decoded:
            return {}
        keys = {self.names.get_name(name)[0] for name in self._decoded}
        apart = {name: dense.pop(name) for name in list(dense) if self.names.get_name(name)[0] in keys}
        reverted = revert_weight_conversion(model, apart | self._decoded)
        like = self._infos[0]
        if {(info.codec, info.dtype) for info in self._infos} in ({("bf16", "BF16")}, {("fp16", "F16")}):
            return dict(_encode_converted(name, tensor, like) for name, tensor in reverted.items())
        logger.warning(f"saved uncompressed, since the framework converts it: {', '.join(self._decoded)}")
        return reverted  # type: ignore[no-any-return]


def _encode_converted(name: str, tensor: Tensor, like: LayerInfo) -> tuple[str, Tensor]:
    """Returns the name and the tensor that a file gets for one that the framework has converted."""
    if tensor.dim() not in (2, 3) or min(tensor.shape[-2:]) < LEAST_SIDE or tensor.dtype != TORCH_DTYPES[like.dtype]:
        return name, tensor
    matrices = tensor if tensor.dim() == 3 else [tensor]
    blobs = [encode_like(matrix, like) for matrix in matrices]
    if sum(len(blob) for blob in blobs) >= tensor.numel() * tensor.element_size():
        return name, tensor
    return name + SUFFIX, _make_expert_tensor(blobs) if tensor.dim() == 3 else blobs[0]


def _parts_of(containers: dict[str, list[Tensor]]) -> dict[str, list[list[Tensor]]]:
    """Returns the experts by the dense module's parameters, in which gate and up are one even if they lie apart."""
    parts = {name: [blobs] for name, blobs in containers.items() if name not in ("gate_proj", "up_proj")}
    if "gate_proj" in containers:
        parts["gate_up_proj"] = [containers["gate_proj"], containers["up_proj"]]
    elif "up_proj" in containers:
        parts["up_proj"] = [containers["up_proj"]]
    return parts


def _join_blobs(blobs: list[Tensor]) -> Tensor:
    """Returns one blob, on the CPU, that has the rows of several blobs, bit for bit."""
    if len(blobs) == 1:
        # It is copied, since the framework takes tensors that share memory for tied ones.
        return blobs[0].to("cpu", copy=True)
    infos = [layer_info(blob) for blob in blobs]
    dense = [_ops.decode(b, info.rows, info.cols, TORCH_DTYPES[info.dtype]) for b, info in zip(blobs, infos)]
    if infos[0].codec == "int":
        raise make_error(
            Status.TRF_ERR_UNSUPPORTED,
            "experts that were quantized in memory cannot be saved: the files of this architecture have gate and up in "
            "one tensor. Save the dense model, and compress that by the command or transfuse.compress",
        )
    return encode_like(torch.cat(dense), infos[0])


def _name_blobs(names: list[str], tensor: Tensor, module: BufferModule) -> dict[str, Tensor]:
    """Returns the tensors of the files that a blob becomes; there are several if files have experts one by one."""
    if not isinstance(module, TransfuseExperts):
        return {names[0]: tensor}
    experts = container_buffers(tensor)
    if len(names) > 1 or len(experts) == 1:
        # They are copied, since the framework takes tensors that share memory for tied ones; and to the CPU, since they
        # are written from there.
        return {name: expert.to("cpu", copy=True) for name, expert in zip(names, experts)}
    return {names[0]: _make_expert_tensor([expert.cpu() for expert in experts])}


def _make_expert_tensor(blobs: list[Tensor]) -> Tensor:
    """Returns the expert tensor of a file (format/FORMAT.md, section 10): an expert index, then the blobs."""
    start = -(-(_INDEX_BYTES + 8 * len(blobs)) // 16) * 16
    offsets = list(itertools.accumulate((len(blob) for blob in blobs), initial=start))
    head = struct.pack(f"<IIQ{len(blobs)}Q", _INDEX_MAGIC, len(blobs), 0, *offsets[:-1])
    index = torch.frombuffer(bytearray(head.ljust(start, b"\0")), dtype=torch.uint8)
    return torch.cat([index, *blobs])


def _renew_source_config(model: PreTrainedModel, config: ConfigFields) -> None:
    """Replaces the source's config.json, which `transfuse decompress` restores, if it does not fit what is saved.

    It does not if the model is of another class, or its config has changed, as where layers were taken out; or if the
    source was quantized, as FP8 with scales is: what is saved decompresses to BF16.
    """
    if config.source_config is None:
        return
    fields = parse_json(config.source_config.removeprefix("\ufeff"))
    is_other = type(model).__name__ not in (fields.get("architectures") or []) or fields.get("quantization_config")
    if is_other or _has_changed(model.config, fields):
        config.source_config = make_source_config(model)


def _has_changed(config: Any, fields: dict[str, Any]) -> bool:
    """Returns whether a model's config says anything else of the model than these fields of a config.json."""
    if fields.get("model_type") != config.model_type:
        return False  # a config of another class was given, which does not tell
    try:
        source = type(config).from_dict(copy.deepcopy(fields))
    except Exception:
        return False
    return bool(_about_model(config.to_dict()) != _about_model(source.to_dict()))


def _about_model(value: Any) -> Any:
    """Returns a config's fields, or a part of them, without those of how and by what the model was loaded."""
    if isinstance(value, dict):
        return {key: _about_model(part) for key, part in value.items() if key not in _NOT_OF_THE_MODEL}
    return [_about_model(part) for part in value] if isinstance(value, (list, tuple)) else value


def make_source_config(model: PreTrainedModel) -> str:
    """Returns the text of the config.json that a model would have if it were not compressed."""
    fields = json.loads(model.config.to_json_string())
    for name in ("quantization_config", "transformers_weights"):
        fields.pop(name, None)
    fields["architectures"] = [type(model).__name__]
    fields["dtype"] = str(find_model_dtype(model)).removeprefix("torch.")
    return json.dumps(fields, indent=2, sort_keys=True) + "\n"


def find_model_dtype(model: nn.Module) -> torch.dtype:
    """Returns the dtype of the first floats, which the framework would find for a model if it were not compressed."""
    compressed = compressed_parameters(model)
    for name, parameter in model.named_parameters():
        module = compressed.get(name)
        if isinstance(module, (CompressedModule, TransfuseExperts)):
            return module.dense_dtype if isinstance(module, TransfuseExperts) else module.weight_dtype
        if parameter.is_floating_point():
            return parameter.dtype
    return torch.get_default_dtype()
