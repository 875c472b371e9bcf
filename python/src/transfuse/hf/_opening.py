# SPDX-License-Identifier: Apache-2.0
"""Finds out, for `transfuse doctor` and without reading weights, what will happen when a folder is loaded.

The model is made on the meta device, by the class that config.json names, and the loader's own planner says what each
tensor of the files becomes. All this runs in an interpreter of its own (transfuse._probes).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transfuse._checkpoint import TensorInfo, info
from transfuse._json_text import parse_json, read_text
from transfuse.hf._config_fields import COMPRESSED_BY
from transfuse.hf._file_check import find_marker, read_config, source_weights_name

# A framework takes one of these dtypes for the model's where config.json names none.
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class CannotOpen(Exception):
    """The framework would raise; the text says why."""


class NotTried(Exception):
    """The outcome is not known; the text says why."""


@dataclasses.dataclass
class Opening:
    """What becomes of a folder's tensors.

    Attributes
    ----------
    framework, model_class, dtype : str
    variant : str or None
        The argument that the framework needs to find the files.
    compressed : list of str
        The parameters and the experts modules that stay compressed.
    decoded : dict of str to str
        Parameters that are decoded while they are loaded, each with the reason.
    surplus : list of str
        Tensors that the model has no parameter for: the framework reports them, and leaves them out.
    drawn : list of str
        Parameters that no file gives, and that the framework draws at random.
    mismatched : list of str
        Parameters whose tensors have another shape.
    tied : dict of str to str
        Parameters that are the same as others.
    """

    framework: str
    model_class: str
    dtype: str
    variant: str | None = None
    compressed: list[str] = dataclasses.field(default_factory=list)
    decoded: dict[str, str] = dataclasses.field(default_factory=dict)
    surplus: list[str] = dataclasses.field(default_factory=list)
    drawn: list[str] = dataclasses.field(default_factory=list)
    mismatched: list[str] = dataclasses.field(default_factory=list)
    tied: dict[str, str] = dataclasses.field(default_factory=dict)


def describe_folder(folder: str) -> dict[str, Any]:
    """Returns an `Opening` as a dict, or a dict with `error` or `not_tried`, which says why there is none."""
    path = Path(folder)
    try:
        config = read_config(str(path / "config.json"))
        if "_class_name" in config:
            return dataclasses.asdict(_open_diffusers(path, config))
        if "model_type" in config:
            return dataclasses.asdict(_open_transformers(path, config))
        raise CannotOpen("config.json has neither a model_type nor a _class_name: no framework knows it as a model")
    except NotTried as reason:
        return {"not_tried": str(reason)}
    except CannotOpen as reason:
        return {"error": str(reason)}
    except Exception as failure:
        return {"error": f"{type(failure).__name__}: {failure}"}


def find_weight_files(folder: Path, stem: str, name: str | None = None) -> tuple[list[str], str | None]:
    """Returns the files that a framework reads, and the `variant` that it has to be told, if any.

    Parameters
    ----------
    folder : path
    stem : str
        "model" for transformers, "diffusion_pytorch_model" for diffusers.
    name : str, optional
        The name of the file, if config.json has it (`transformers_weights`).

    Raises
    ------
    CannotOpen
    """
    names = [name] if name else [f"{stem}.safetensors", f"{stem}.safetensors.index.json"]
    for candidate in names:
        if (folder / candidate).is_file():
            return _resolve(folder / candidate), None
    for each in sorted(folder.iterdir()):
        match = re.fullmatch(rf"{stem}\.([\w.-]+)\.safetensors|{stem}\.safetensors\.index\.([\w.-]+)\.json", each.name)
        if match and not name and not re.search(r"-\d{5}-of-\d{5}$", match[1] or ""):
            return _resolve(each), match[1] or match[2]
    found = ", ".join(sorted(each.name for each in folder.glob("*.safetensors"))) or "none"
    raise CannotOpen(f"the framework looks for {' or '.join(names)}, and the folder has other weights: {found}")


def _resolve(path: Path) -> list[str]:
    if path.suffix != ".json":
        return [str(path)]
    index = parse_json(read_text(path))
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    names: list[Any] = list(weight_map.values()) if isinstance(weight_map, dict) else [None]
    # A file elsewhere is none of the model's.
    if any(not isinstance(name, str) or not name or "/" in name for name in names):
        raise CannotOpen(f"{path} does not name files beside it")
    if not names:
        raise CannotOpen(f"{path}: weight_map is empty: it names no tensor")
    return sorted({str(path.parent / name) for name in names})


def _read_tensors(files: Iterable[str]) -> list[TensorInfo]:
    return [tensor for path in files for tensor in info(path).tensors]


def _find_dtype(tensors: list[TensorInfo]) -> str:
    """Returns the dtype that transformers finds in files, which is that of their first float tensor."""
    first = tensors[0].file if tensors else ""
    named = sorted((tensor.name, tensor.dtype) for tensor in tensors if tensor.file == first)
    return next((_FLOATS[dtype] for _, dtype in named if dtype in _FLOATS), "float32")


def _read_plan(opening: Opening, plan: Any) -> Opening:
    opening.compressed = [each.target for each in plan.taken] + [each.path for each in plan.experts]
    opening.decoded = {each.target: each.reason for each in plan.decoded}
    opening.drawn = plan.drawn
    opening.mismatched = sorted(each[0] for each in plan.mismatched)
    return opening


# ---- transformers ----


def _find_class(config: Any, fields: dict[str, Any]) -> Any:
    import transformers

    names = getattr(config, "architectures", None) or []
    found = getattr(transformers, names[0], None) if names else None
    if found is not None:
        return found
    if "auto_map" in fields:
        raise NotTried("its model class is code of its own (trust_remote_code)")
    if names:
        raise CannotOpen(f"this transformers has no class {names[0]}")
    try:
        return transformers.AutoModel._model_mapping[type(config)]
    except KeyError:
        raise NotTried(f"config.json names no class, and transformers has none for {type(config).__name__}") from None


def _open_transformers(folder: Path, fields: dict[str, Any]) -> Opening:
    import torch
    from transformers import AutoConfig
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.initialization import meta_device_safe_creation_ops, no_init_weights
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from transfuse.hf._load_plan import Planner
    from transfuse.hf._quantizer import refuse_unmarked

    if fields["model_type"] not in CONFIG_MAPPING and "auto_map" in fields:
        raise NotTried("its config is code of its own (trust_remote_code)")
    marker = fields.get("quantization_config") or {}
    is_ours = isinstance(marker, dict) and marker.get("quant_method") == "transfuse"
    name = source_weights_name(marker.get("source_config")) if is_ours else fields.get("transformers_weights")
    name = None if COMPRESSED_BY in (name or "") else name  # the marker was lost
    files, variant = find_weight_files(folder, "model", name)
    tensors = _read_tensors(files)
    if any(tensor.compressed for tensor in tensors) and find_marker(files[0]).get("version") is None:
        refuse_unmarked(tensors)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    named = getattr(config, "dtype", None)
    dtype = str(named).removeprefix("torch.") if named is not None else _find_dtype(tensors)
    model_class = _find_class(config, fields)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"), no_init_weights(), meta_device_safe_creation_ops():
        model = model_class._from_config(config, dtype=getattr(torch, dtype))
    rules = get_model_conversion_mapping(model)
    opening = Opening("transformers", model_class.__name__, dtype, variant, tied=dict(model.all_tied_weights_keys))
    opening.surplus = _find_surplus(model, rules, tensors)
    return _read_plan(opening, Planner(model, rules, getattr(torch, dtype)).make(tensors))


def _find_surplus(model: Any, rules: list[Any], tensors: list[TensorInfo]) -> list[str]:
    """Returns the tensors that the framework would report, since the model has no parameter for them."""
    import copy

    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    rules = copy.deepcopy(rules)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    expected = model.state_dict()
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    surplus = []
    for tensor in sorted(tensors, key=lambda each: each.name):
        name, _ = rename_source_key(tensor.name, renamings, converters, model.base_model_prefix, expected)
        if name not in expected and tensor.name not in expected and not any(rule.search(name) for rule in ignored):
            surplus.append(tensor.name)
    return surplus


# ---- diffusers ----


def _open_diffusers(folder: Path, fields: dict[str, Any]) -> Opening:
    import diffusers
    import torch

    from transfuse.hf._load_plan import NamesPlanner

    model_class = getattr(diffusers, str(fields["_class_name"]), None)
    if model_class is None:
        if "auto_map" in fields:
            raise NotTried("its model class is code of its own (trust_remote_code)")
        raise CannotOpen(f"this diffusers has no class {fields['_class_name']}")
    files, variant = find_weight_files(folder, "diffusion_pytorch_model")
    tensors = _read_tensors(files)
    config = model_class.load_config(str(folder))
    with torch.device("meta"):
        model = model_class.from_config(config)
    expected = model.state_dict()
    names = {tensor.name: tensor.name for tensor in tensors}
    if len(files) == 1 and hasattr(model, "_fix_state_dict_keys_on_load"):
        model._fix_state_dict_keys_on_load(names)  # files of old attention blocks have other names
    renamed = {old: new for new, old in names.items()}
    opening = Opening("diffusers", model_class.__name__, "that of torch_dtype, or float32", variant)
    opening.surplus = sorted(old for old, new in renamed.items() if new not in expected)
    return _read_plan(opening, NamesPlanner(model, renamed, None).make(tensors))
