# SPDX-License-Identifier: Apache-2.0
"""What compress writes into config.json for transformers: its own functions say what they find in the source."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", minversion="5.17", reason="transformers 5.17 is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

import torch
import transformers
from safetensors.torch import save_file
from transformers import modeling_utils

import transfuse
from transfuse import _structs
from transfuse._library import call, library

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
Files = dict[str, dict[str, torch.dtype]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A folder: config.json, the dtypes of the tensors of its files, and the index of those named shard-*."""

    config: dict[str, Any]
    files: Files
    metadata: dict[str, Any] | None = None


LLAMA = {"model_type": "llama"}
CLIP = {"model_type": "clip", "text_config": {"dtype": "float16"}, "vision_config": {"torch_dtype": "float16"}}
SHARDS: Files = {"shard-2.safetensors": {"b": F16}, "shard-1.safetensors": {"a": F32, "c": BF16}}
CASES = {
    "matrices and norms": Case(LLAMA, {"model.safetensors": {"lm_head": BF16, "norm": F32}}),
    "a norm first": Case(LLAMA, {"model.safetensors": {"lm_head": BF16, "a_norm": F32}}),
    "by name, not by place": Case(LLAMA, {"model.safetensors": {"b": F16, "B": BF16, "a.1": F32, "a0": F16}}),
    "one dtype": Case(LLAMA, {"model.safetensors": {"b": F16}}),
    "wide floats": Case(LLAMA, {"model.safetensors": {"a": F64, "b": BF16}}),
    "no floats first": Case(
        LLAMA,
        {"model.safetensors": {"a": torch.int64, "b": torch.float8_e4m3fn, "c": torch.bool, "d": F16, "e": BF16}},
    ),
    "shards": Case(LLAMA, SHARDS, {"total_size": 1}),
    "shards of a file that is named in the index": Case(LLAMA, SHARDS, {"dtype": "bfloat16"}),
    "a file beside shards": Case(LLAMA, {**SHARDS, "model.safetensors": {"z": BF16}}, {}),
    "a dtype": Case({**LLAMA, "dtype": "float16"}, {"model.safetensors": {"b": BF16}}),
    "an old dtype": Case({**LLAMA, "torch_dtype": "float32"}, {"model.safetensors": {"b": BF16}}),
    "both": Case({**LLAMA, "torch_dtype": "float32", "dtype": "float16"}, {"model.safetensors": {"b": BF16}}),
    "nothing in either": Case({**LLAMA, "torch_dtype": None, "dtype": None}, {"model.safetensors": {"b": BF16}}),
    "parts that have one": Case(CLIP, {"model.safetensors": {"b": BF16, "a": F32}}),
    "parts in a model that has one": Case({**CLIP, "dtype": "bfloat16"}, {"model.safetensors": {"b": F16}}),
    "a file by name": Case(
        {**LLAMA, "transformers_weights": "other.safetensors"},
        {"model.safetensors": {"b": BF16}, "other.safetensors": {"c": F16}},
    ),
    "shards by name": Case(
        {**LLAMA, "transformers_weights": "model.safetensors.index.json"},
        {**SHARDS, "model.safetensors": {"z": BF16}},
        {},
    ),
    "a type of nobody's": Case({"model_type": "nobody_s"}, {"model.safetensors": {"b": BF16, "a": F32}}),
}


def write(folder: Path, case: Case) -> Path:
    """Writes the folder of a case."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    weight_map = {}
    for file, dtypes in case.files.items():
        tensors = {n: (0.02 * torch.randn(160, 256, generator=generator)).to(dtype) for n, dtype in dtypes.items()}
        save_file(tensors, folder / file, {"format": "pt"})
        weight_map.update(dict.fromkeys(dtypes, file) if file.startswith("shard") else {})
    if case.metadata is not None:
        index = {"metadata": case.metadata, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(case.config, indent=2))
    return folder


def config_of(folder: Path) -> transformers.PreTrainedConfig:
    """Returns the config object that transformers makes of the folder's config.json."""
    if json.loads((folder / "config.json").read_text())["model_type"] == "nobody_s":
        return transformers.PreTrainedConfig.from_pretrained(folder)
    return transformers.AutoConfig.from_pretrained(folder)


def found_dtype(folder: Path) -> torch.dtype:
    """Returns the dtype that transformers finds for a folder that is not compressed."""
    config = config_of(folder)
    files, metadata = modeling_utils._get_resolved_checkpoint_files(
        folder, None, None, None, None, False, getattr(config, "transformers_weights", None)
    )
    dtype: torch.dtype = modeling_utils._get_dtype("auto", files, config, metadata, None, True)[1]
    return dtype


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_dtype_that_transformers_finds(name: str, tmp_path: Path) -> None:
    source = write(tmp_path / "source", CASES[name])
    transfuse.compress(source, tmp_path / "compressed")
    compressed = json.loads((tmp_path / "compressed" / "config.json").read_text())
    assert compressed["quantization_config"]["quant_method"] == "transfuse"
    assert config_of(tmp_path / "compressed").dtype == found_dtype(source)
    kept = {key: value for key, value in CASES[name].config.items() if value is not None}
    assert {key: compressed[key] for key in kept if key != "transformers_weights"} == {
        key: value for key, value in kept.items() if key != "transformers_weights"
    }
    transfuse.decompress(tmp_path / "compressed", tmp_path / "back")
    for path in source.iterdir():
        assert path.read_bytes() == (tmp_path / "back" / path.name).read_bytes()


def test_a_dtype_that_depends_on_the_variant_is_left_out(tmp_path: Path) -> None:
    files: Files = {"model.safetensors": {"a": BF16}, "model.fp16.safetensors": {"a": F16}}
    transfuse.compress(write(tmp_path / "source", Case(LLAMA, files)), tmp_path / "compressed")
    assert "dtype" not in json.loads((tmp_path / "compressed" / "config.json").read_text())


def compress(source: Path, target: Path, *, store_only: bool) -> None:
    """Compresses a folder by the library's own call."""
    options = _structs.CheckpointOptionsStruct()
    library().trf_checkpoint_options_init(ctypes.byref(options))
    options.store_only = store_only
    call("trf_compress_checkpoint", os.fsencode(source), os.fsencode(target), ctypes.byref(options), None)


# Loads folders where transfuse cannot be imported, and prints the exceptions.
LOAD_WITHOUT = """
import sys
sys.modules["transfuse"] = None
import transformers
for folder in sys.argv[1:]:
    try:
        transformers.AutoModelForCausalLM.from_pretrained(folder)
    except Exception as error:
        print(type(error).__name__, str(error).replace("\\n", " "))
    else:
        print("loaded")
"""


def test_without_transfuse_transformers_raises(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, vocab_size=2000
    )
    model = transformers.LlamaForCausalLM(config).bfloat16()
    folders = []
    for shard_size in ("1GB", "100KB"):
        source = tmp_path / shard_size
        model.save_pretrained(source, max_shard_size=shard_size)
        assert (source / "model.safetensors.index.json").exists() == (shard_size == "100KB")
        folders.append(tmp_path / f"{shard_size}-compressed")
        compress(source, folders[-1], store_only=False)
        text = json.loads((source / "config.json").read_text())
        text["quantization_config"] = {"quant_method": "fp8"}
        (source / "config.json").write_text(json.dumps(text))
        folders.append(tmp_path / f"{shard_size}-stored")
        compress(source, folders[-1], store_only=True)
    done = subprocess.run(
        [sys.executable, "-c", LOAD_WITHOUT, *folders],
        env={**os.environ, "TRANSFUSE_NO_HOOK": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for folder, line in zip(folders, done.stdout.splitlines(), strict=True):
        assert line.startswith("ValueError") and "run 'transfuse decompress'" in line, line
        assert ("install transfuse" in line) == ("stored" not in folder.name), line
