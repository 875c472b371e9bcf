# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with old, double or missing names, other sizes, and models made of several: as the source loads them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transfuse.tests.architectures import (
    ARCHITECTURES,
    DECODER,
    TOWERS,
    WIDTH,
    Architecture,
    count_compressed,
    find_differences,
    load_both,
    run,
)

pytest.importorskip("accelerate", reason="accelerate is not installed")

import torch
import transformers
from safetensors.torch import load_file, save_file

import transfuse

Tensors = dict[str, torch.Tensor]


def make(folder: Path, name: str, change: Callable[[Tensors], Tensors] | None = None, **options: Any) -> Path:
    """Writes a source of an architecture, its tensors changed, and what is made of it; returns where both are."""
    next(each for each in ARCHITECTURES if each.name == name).make().save_pretrained(folder / "source")
    if change is not None:
        file = folder / "source" / "model.safetensors"
        save_file(change(load_file(file)), file, {"format": "pt"})
    shutil.rmtree(folder / "trf", ignore_errors=True)
    transfuse.compress(folder / "source", folder / "trf", **({"embeddings": True} | options))
    return folder


def check(folder: Path, name: str, **options: Any) -> Any:
    load = getattr(transformers, name).from_pretrained
    model, plain, report, expected = load_both(folder / "source", folder / "trf", load, **options)
    assert find_differences(model, plain) == [] and count_compressed(model) > 3
    assert {key: sorted(map(str, each)) for key, each in report.items()} == {
        key: sorted(map(str, each)) for key, each in expected.items()
    }
    return model


def rename(*pairs: tuple[str, str]) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        renamed = {}
        for name, tensor in tensors.items():
            for new, old in pairs:
                name = name.replace(new, old)
            renamed[name] = tensor
        assert renamed.keys() != tensors.keys()
        return renamed

    return change


@pytest.mark.parametrize("embeddings", [False, True])
def test_weights_that_a_model_rescales(tmp_path: Path, embeddings: bool) -> None:
    """RWKV's model divides some of them in place, block by block, before its first product."""
    rwkv = Architecture("RwkvForCausalLM", {**WIDTH, "vocab_size": 99, "num_hidden_layers": 3, "rescale_every": 1})
    rwkv.make().save_pretrained(tmp_path / "source")
    transfuse.compress(tmp_path / "source", tmp_path / "trf", embeddings=embeddings)
    model = check(tmp_path, rwkv.name)
    source = transformers.RwkvForCausalLM.from_pretrained(tmp_path / "source")
    transfuse.set_exact(True)
    try:
        assert torch.equal(run(model.eval()), run(source.eval()))
    finally:
        transfuse.set_exact(False)


IDS = {"vocab_size": 99, "pad_token_id": 0}
CLEARING = [
    Architecture("YoutuForCausalLM", {**DECODER, "kv_lora_rank": 32, "q_lora_rank": 32, "pad_token_id": 1}),
    Architecture("YoutuForCausalLM", {**DECODER, "kv_lora_rank": 32, "q_lora_rank": 32, "tie_word_embeddings": True}),
    Architecture("FunnelForMaskedLM", {"d_model": 64, "d_inner": 96, "n_head": 4, "d_head": 16, **IDS}),
    Architecture("ChineseCLIPModel", TOWERS),
]


@pytest.mark.parametrize("architecture", CLEARING, ids=lambda each: each.name)
def test_rows_that_a_model_clears(tmp_path: Path, architecture: Architecture) -> None:
    """Some models clear the row of the padding token after loading, which may be another one in the file."""

    def padded(model: torch.nn.Module) -> list[torch.nn.Embedding]:
        embeddings = [each for each in model.modules() if isinstance(each, torch.nn.Embedding)]
        return [each for each in embeddings if each.padding_idx is not None]

    source = architecture.make()
    with torch.no_grad():
        for module in padded(source):
            module.weight[module.padding_idx] = 0.5
    source.save_pretrained(tmp_path / "source")
    transfuse.compress(tmp_path / "source", tmp_path / "trf", embeddings=True)
    model = check(tmp_path, architecture.name)
    rows = [module.weight[module.padding_idx] for module in padded(model)]
    assert rows and not any(row.any() for row in rows)


def test_names_of_old_norms(tmp_path: Path) -> None:
    change = rename(("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    check(make(tmp_path, "BertForMaskedLM", change), "BertForMaskedLM")


@pytest.mark.parametrize("include", [None, ["*"]])
def test_names_of_old_weight_norms(tmp_path: Path, include: list[str] | None) -> None:
    weight = "parametrizations.weight.original"
    change = rename((f"{weight}0", "weight_g"), (f"{weight}1", "weight_v"))
    options: dict[str, Any] = {"include": include, "embeddings": False} if include else {}
    check(make(tmp_path, "Wav2Vec2ForCTC", change, **options), "Wav2Vec2ForCTC")


def test_names_without_the_prefix(tmp_path: Path) -> None:
    folder = make(tmp_path, "LlamaForCausalLM", rename(("model.", "")))
    check(folder, "LlamaForCausalLM")
    check(folder, "LlamaModel")


@pytest.mark.parametrize("exclude", [[], ["layers.0.*"], ["model.layers.0.*"]])
def test_two_tensors_for_one_parameter(tmp_path: Path, exclude: list[str]) -> None:
    """The framework takes the first by name, whichever of them is compressed."""

    def change(tensors: Tensors) -> Tensors:
        name = "model.layers.0.mlp.up_proj.weight"
        return {**tensors, name.removeprefix("model."): torch.randn_like(tensors[name])}

    model = check(make(tmp_path, "LlamaForCausalLM", change, exclude=exclude or None), "LlamaForCausalLM")
    assert (model.model.layers[0].mlp.up_proj.weight.dtype == torch.uint8) == (exclude != ["layers.0.*"])


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("ViTForImageClassification", {"num_labels": 7}),
        ("LlamaForCausalLM", {"vocab_size": 120}),
        ("Qwen2ForCausalLM", {"vocab_size": 120}),
        ("BertForMaskedLM", {"vocab_size": 120}),
    ],
)
def test_mismatched_sizes(tmp_path: Path, name: str, sizes: dict[str, int]) -> None:
    folder = make(tmp_path, name)
    check(folder, name, ignore_mismatched_sizes=True, **sizes)
    with pytest.raises((ValueError, RuntimeError), match="shape|ignore_mismatched_sizes"):
        getattr(transformers, name).from_pretrained(folder / "trf", **sizes)


def test_other_numbers_of_layers(tmp_path: Path) -> None:
    folder = make(tmp_path, "BertForMaskedLM")
    check(folder, "BertForMaskedLM", num_hidden_layers=1)
    for name in ("BertForMaskedLM", "BertForSequenceClassification"):
        with pytest.raises(ValueError, match=r"no file gives 'bert.encoder.layer.2.attention.self.query.weight'"):
            getattr(transformers, name).from_pretrained(folder / "trf", num_hidden_layers=3)


@pytest.mark.parametrize("lost", ["self_attn.k_proj", "mlp.", "model.norm"])
def test_part_that_no_layer_has(tmp_path: Path, lost: str) -> None:
    """A class that the checkpoint was not made of may draw its head, but nothing of what it shares with that one."""
    folder = make(tmp_path, "LlamaForCausalLM")
    file = folder / "trf" / "model.safetensors"
    save_file({name: each for name, each in load_file(file).items() if lost not in name}, file, {"format": "pt"})
    for name in ("AutoModel", "LlamaForSequenceClassification"):
        with pytest.raises(ValueError, match=rf"no file gives .*{re.escape(lost.removeprefix('model.'))}"):
            getattr(transformers, name).from_pretrained(folder / "trf")


def test_models_made_of_two(tmp_path: Path) -> None:
    """A decoder gets attention to the encoder, drawn at random; the bias of its head keeps its length when tied."""
    folder = make(tmp_path, "BertForMaskedLM")
    models = []
    for path in (folder / "trf", folder / "source"):
        torch.manual_seed(3)
        models.append(transformers.EncoderDecoderModel.from_encoder_decoder_pretrained(str(path), str(path)))
    assert find_differences(*models) == [] and count_compressed(models[0]) > 20
    models[1].save_pretrained(tmp_path / "whole" / "source")
    transfuse.compress(tmp_path / "whole" / "source", tmp_path / "whole" / "trf", embeddings=True)
    check(tmp_path / "whole", "EncoderDecoderModel")
    model = transformers.BertForMaskedLM.from_pretrained(folder / "trf")
    model.tie_weights()
    assert model.cls.predictions.decoder.bias.shape == (model.config.vocab_size,)
    # A decoder of the very class that the checkpoint was made of.
    make(tmp_path / "decoder", "GPT2LMHeadModel")
    models = []
    for name in ("trf", "source"):
        torch.manual_seed(3)
        paths = str(folder / name), str(tmp_path / "decoder" / name)
        models.append(transformers.EncoderDecoderModel.from_encoder_decoder_pretrained(*paths))
    assert find_differences(*models) == [] and "crossattention" in str([*models[0].state_dict()])


def test_names_of_an_old_composite(tmp_path: Path) -> None:
    """LLaVA was saved as a vision tower and a language model that was whole by itself."""
    folder = make(tmp_path, "LlavaForConditionalGeneration")
    assert any(name.startswith("language_model.model.") for name in load_file(folder / "source" / "model.safetensors"))
    check(folder, "LlavaForConditionalGeneration")
    check(folder, "AutoModel")


def test_pooler_that_a_class_may_lack(tmp_path: Path) -> None:
    """Some classes are saved with a pooler or without, and named the same in config.json."""
    whole = next(each for each in ARCHITECTURES if each.name == "BertForMaskedLM").make()
    whole.bert.save_pretrained(tmp_path / "source")
    transfuse.compress(tmp_path / "source", tmp_path / "trf", embeddings=True)
    assert transformers.AutoConfig.from_pretrained(tmp_path / "trf").architectures == ["BertModel"]
    model = check(tmp_path, "BertModel")
    assert check(tmp_path, "AutoModel", add_pooling_layer=False).pooler is None and model.pooler is not None
    # One of which something is there has to be whole, and so have other parts.
    file = tmp_path / "trf" / "model.safetensors"
    tensors = load_file(file)
    for changed in (
        tensors | {"pooler.dense.bias": torch.zeros(64)},
        {name: each for name, each in tensors.items() if not name.startswith("embeddings.LayerNorm")},
    ):
        save_file(changed, file, {"format": "pt"})
        with pytest.raises(ValueError, match="does not fit BertModel; no file gives"):
            transformers.BertModel.from_pretrained(tmp_path / "trf")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_adapter_on_a_compressed_base(tmp_path: Path, dtype: torch.dtype) -> None:
    """Its weights, which are F32 in the file, get the dtype that they have on top of the source."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    folder = make(tmp_path, "LlamaForCausalLM")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "embed_tokens"], init_lora_weights=False)
    lora = peft.LoraConfig(r=4, target_modules=["q_proj"])
    adapted = peft.get_peft_model(transformers.LlamaForCausalLM.from_pretrained(folder / "source"), config)
    loaded = []
    for name in ("trf", "source"):
        adapter = tmp_path / f"lora-{name}"
        adapted.peft_config["default"].base_model_name_or_path = str(folder / name)
        adapted.save_pretrained(adapter, save_embedding_layers=False)
        by_folder = transformers.AutoModelForCausalLM.from_pretrained(adapter, dtype=dtype)
        by_call = transformers.LlamaForCausalLM.from_pretrained(folder / name, dtype=dtype)
        by_call.load_adapter(str(adapter))
        loaded.append((by_folder, by_call))
        # Adapters are F32: a model's dtype is that of its first floats, which are an embedding's.
        on_top = peft.get_peft_model(transformers.LlamaForCausalLM.from_pretrained(folder / name, dtype=dtype), lora)
        assert on_top.dtype == by_call.dtype == dtype and by_call.model.dtype == dtype
    for ours, theirs in zip(*loaded):
        assert find_differences(ours, theirs) == [] and count_compressed(ours) > 3
        found = {each.dtype for name, each in ours.named_parameters() if "lora_" in name}
        expected = {each.dtype for name, each in theirs.named_parameters() if "lora_" in name}
        assert found == expected == {dtype}


def test_experts_of_which_some_were_fp8(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> Tensors:
        for name in tensors:
            if re.search(r"experts\.[02]\.w[12]\.weight$", name):
                numbers = (100 * tensors[name].float()).to(torch.float8_e4m3fn)
                tensors[name] = numbers.to(torch.bfloat16) * 0.01
        return tensors

    folder = make(tmp_path, "MixtralForCausalLM", change)
    codecs = {tensor.codec for tensor in transfuse.info(folder / "trf").tensors if ".w1." in tensor.name}
    assert codecs == {"bf16", "fp8_e4m3"}
    check(folder, "MixtralForCausalLM")
