# SPDX-License-Identifier: Apache-2.0
"""Tied weights, whatever a file has of them: embedding, head or both, alike or not, one of them compressed or both.

What loads is what the source gives: the same values, the same parameters that are one, the same report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from transfuse.tests.architectures import (
    ARCHITECTURES,
    BOTH,
    DECODER,
    WIDTH,
    Architecture,
    find_differences,
    load_both,
    run,
)

pytest.importorskip("accelerate", reason="accelerate is not installed")

import torch
import transformers
from safetensors.torch import load_file, save_file

import transfuse

# Classes, their embedding and their head in files; config.json does not say that they are tied: the class does.
TIED = {
    "GPT2LMHeadModel": ("transformer.wte.weight", "lm_head.weight"),
    "GemmaForCausalLM": ("model.embed_tokens.weight", "lm_head.weight"),
    "BartForConditionalGeneration": ("model.shared.weight", "lm_head.weight"),
    "MarianMTModel": ("model.shared.weight", "lm_head.weight"),
    "T5ForConditionalGeneration": ("shared.weight", "lm_head.weight"),
    "WhisperForConditionalGeneration": ("model.decoder.embed_tokens.weight", "proj_out.weight"),
    "BertForMaskedLM": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
}
OTHERS = {
    "GemmaForCausalLM": Architecture("GemmaForCausalLM", {**DECODER, "head_dim": 16}),
    "BertForMaskedLM": Architecture("BertForMaskedLM", {**WIDTH, "vocab_size": 99}),
    "MarianMTModel": Architecture("MarianMTModel", {**BOTH, "share_encoder_decoder_embeddings": True}),
}


@pytest.fixture(autouse=True)
def approximate() -> Iterator[None]:
    """Leaves exact mode off behind a test that turned it on."""
    yield
    transfuse.set_exact(False)


def write_source(folder: Path, name: str, has: str) -> None:
    """Writes a checkpoint whose file has the embedding, the head, or both, and whose config.json names no tie."""
    architecture = OTHERS.get(name) or next(each for each in ARCHITECTURES if each.name == name)
    architecture.make().save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    embedding, head = TIED[name]
    if has != "embedding":
        tensors[head] = tensors[embedding].clone()
    if has == "head":
        del tensors[embedding]
    if has == "both, different":
        tensors[head] = tensors[head].flip(0).contiguous()
    if has == "another member":
        tensors[embedding.replace("shared", "decoder.embed_tokens")] = tensors.pop(embedding)
        del tensors[head]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("has", ["embedding", "head", "both", "both, different", "another member"])
@pytest.mark.parametrize("name", TIED)
def test_ties(tmp_path: Path, name: str, has: str) -> None:
    embedding, head = TIED[name]
    if has == "another member" and "shared" not in embedding:
        pytest.skip("there are two members")
    write_source(tmp_path / "source", name, has)
    choices: dict[str, dict[str, Any]] = {
        "usual": {},
        "embeddings": {"embeddings": True},
        "head alone": {"embeddings": True, "exclude": [embedding]},
        "embedding alone": {"embeddings": True, "exclude": [head]},
    }
    for choice, options in choices.items():
        excluded = options.get("exclude", [])
        if not load_keys(tmp_path).issuperset(excluded):
            continue
        transfuse.compress(tmp_path / "source", tmp_path / choice, **options)
        load = getattr(transformers, name).from_pretrained
        model, plain, report, expected = load_both(tmp_path / "source", tmp_path / choice, load)
        assert find_differences(model, plain) == [], choice
        assert {key: sorted(map(str, each)) for key, each in report.items()} == {
            key: sorted(map(str, each)) for key, each in expected.items()
        }
        assert model.all_tied_weights_keys == plain.all_tied_weights_keys
        if choice == "embeddings":
            if hasattr(model, "hf_quantizer"):
                transfuse.set_exact(True)
            assert torch.equal(run(model), run(plain))
            transfuse.set_exact(False)


def load_keys(folder: Path) -> set[str]:
    return set(load_file(folder / "source" / "model.safetensors"))


@pytest.mark.parametrize("has", ["embedding", "head", "both"])
def test_one_blob_for_both(tmp_path: Path, has: str) -> None:
    """What a module can take stays compressed, once, whichever name the file has for it; and it is saved once."""
    write_source(tmp_path / "source", "GemmaForCausalLM", has)
    transfuse.compress(tmp_path / "source", tmp_path / "trf", embeddings=True)
    model = transformers.GemmaForCausalLM.from_pretrained(tmp_path / "trf")
    blob = model.get_input_embeddings().weight
    assert blob.dtype == torch.uint8 and model.get_output_embeddings().weight is blob
    model.save_pretrained(tmp_path / "saved")
    again = transformers.GemmaForCausalLM.from_pretrained(tmp_path / "saved")
    assert find_differences(again, model) == []
    if has != "both":
        transfuse.verify(tmp_path / "saved", against=tmp_path / "source")


def test_ties_of_which_no_file_has_one(tmp_path: Path) -> None:
    write_source(tmp_path / "source", "GemmaForCausalLM", "embedding")
    tensors = load_file(tmp_path / "source" / "model.safetensors")
    del tensors["model.embed_tokens.weight"]
    save_file(tensors, tmp_path / "source" / "model.safetensors", {"format": "pt"})
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    with pytest.raises(ValueError, match="no file gives 'model.embed_tokens.weight', 'lm_head.weight'"):
        transformers.GemmaForCausalLM.from_pretrained(tmp_path / "trf")
    with pytest.raises(ValueError, match="no file gives 'embed_tokens.weight'"):
        transformers.GemmaModel.from_pretrained(tmp_path / "trf")
