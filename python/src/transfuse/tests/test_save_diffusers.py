# SPDX-License-Identifier: Apache-2.0
"""`save_pretrained` of models of diffusers that were compressed in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("diffusers", reason="diffusers is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import diffusers
import torch
import transformers

import transfuse
from transfuse.tests.test_diffusers import compressed as compressed
from transfuse.tests.test_diffusers import load
from transfuse.tests.test_diffusers import source as source
from transfuse.tests.test_save_compressed import parameters_of


def check_saved(folder: Path, source: Path, tmp_path: Path) -> None:
    transfuse.verify(folder)
    wanted, found = parameters_of(load(source, "cpu")), parameters_of(load(folder, "cpu"))
    assert set(wanted) == set(found)
    assert not [name for name in wanted if not torch.equal(wanted[name], found[name])]
    transfuse.decompress(folder, tmp_path / "back")
    fields = [json.loads((path / "config.json").read_text()) for path in (source, tmp_path / "back")]
    for each in fields:
        each.pop("_name_or_path", None)  # of a model that was loaded
    assert fields[0] == fields[1]


@pytest.mark.parametrize("layout", ["coded", "packed"])
def test_made_in_memory(tmp_path: Path, source: Path, layout: str) -> None:
    model = load(source, "cpu")
    assert transfuse.compress_model(model, layout=layout).compressed
    model.save_pretrained(tmp_path / "saved", max_shard_size="200KB")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 1
    assert "quantization_config" not in model.config and not hasattr(model, "hf_quantizer")
    check_saved(tmp_path / "saved", source, tmp_path)


def test_loaded_compressed_and_changed(tmp_path: Path, source: Path) -> None:
    transfuse.compress(source, tmp_path / "some", exclude=["*single_transformer_blocks*"])
    model = load(tmp_path / "some", "cpu")
    assert transfuse.compress_model(model).compressed
    model.save_pretrained(tmp_path / "saved")
    assert (
        transfuse.verify(tmp_path / "saved").compressed_tensors > transfuse.verify(tmp_path / "some").compressed_tensors
    )
    check_saved(tmp_path / "saved", source, tmp_path)


@pytest.mark.parametrize("options", [{"safe_serialization": False}, {"use_flashpack": True}])
def test_other_files(tmp_path: Path, source: Path, options: dict[str, Any]) -> None:
    model = load(source, "cpu")
    transfuse.compress_model(model)
    with pytest.raises(transfuse.UnsupportedError, match=r"saved as \.safetensors files"):
        model.save_pretrained(tmp_path / "saved", **options)


def test_parts_of_a_pipeline(tmp_path: Path) -> None:
    """Parts of both frameworks, each saved to a folder of its own, as a pipeline does."""
    torch.manual_seed(1)
    text = transformers.CLIPTextModel(
        transformers.CLIPTextConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=100
        )
    )
    unet = diffusers.UNet2DModel(
        sample_size=8, in_channels=4, out_channels=4, block_out_channels=(32, 32), norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    parts = {"unet": unet.bfloat16(), "bert": text.bfloat16()}
    wanted = {name: {key: value.clone() for key, value in part.state_dict().items()} for name, part in parts.items()}
    for part in parts.values():
        assert transfuse.compress_model(part).compressed
    for name, part in parts.items():
        part.save_pretrained(tmp_path / name)
    loaded = {
        "unet": diffusers.UNet2DModel.from_pretrained(tmp_path / "unet", torch_dtype=torch.bfloat16),
        "bert": transformers.CLIPTextModel.from_pretrained(tmp_path / "bert"),
    }
    for name, part in loaded.items():
        found = parameters_of(part)
        assert not [key for key in wanted[name] if not torch.equal(found[key], wanted[name][key])]
