# SPDX-License-Identifier: Apache-2.0
"""`save_pretrained` of models that were compressed in memory: what it writes loads, verifies and decompresses."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", minversion="5.17", reason="transformers 5.17 is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

import torch
import transformers
from safetensors import safe_open
from torch import nn
from transformers.core_model_loading import Chunk, WeightConverter

import transfuse
from transfuse.tests.test_transformers import KINDS, count_different
from transfuse.torch import TransfuseEmbedding, TransfuseLinear


def names_in(folder: Path) -> set[str]:
    """The source's names of all tensors of a folder."""
    return {tensor.name for tensor in transfuse.info(folder).tensors}


def load(folder: Path, kind: str = "llama", **options: Any) -> Any:
    return getattr(transformers, KINDS[kind].auto).from_pretrained(folder, **options)


def parameters_of(model: Any) -> dict[str, torch.Tensor]:
    """All parameters and buffers, decoded."""
    found = dict(model.state_dict())
    for path, module in model.named_modules():
        if isinstance(module, (TransfuseLinear, TransfuseEmbedding)):
            found[f"{path}.weight"] = module.decode_weight()
        elif hasattr(module, "decode_weights"):
            for name in module.container_shapes:
                del found[f"{path}.{name}"]
            found |= {f"{path}.{name}": value for name, value in module.decode_weights().items()}
    return found


def check_saved(folder: Path, dense: Any, kind: str, dense_folder: Path, **options: Any) -> Any:
    """Checks that a folder holds the tensors of a dense model by the names that it has in files; returns the model."""
    dense.save_pretrained(dense_folder)
    assert names_in(folder) == names_in(dense_folder)
    report = transfuse.verify(folder)
    assert report.compressed_tensors > 0
    model = load(folder, kind, **options)
    wanted, found = parameters_of(dense), parameters_of(model)
    assert set(wanted) == set(found)
    different = [
        name for name in wanted if not torch.equal(wanted[name].view(torch.uint8), found[name].view(torch.uint8))
    ]
    assert not different, different
    back = dense_folder.with_name("back")
    transfuse.decompress(folder, back)
    fields, original = (json.loads((path / "config.json").read_text()) for path in (back, dense_folder))
    assert fields == original
    assert not count_different(load(back, kind), dense)
    return model


CASES = [(kind, embeddings) for kind in KINDS for embeddings in (False, True)]
CASES.remove(("gpt2", False))  # Conv1D and embeddings alone: nothing is compressed


@pytest.mark.parametrize(("kind", "embeddings"), CASES)
def test_made_in_memory(tmp_path: Path, kind: str, embeddings: bool) -> None:
    dense, model = KINDS[kind].make(), KINDS[kind].make()
    report = transfuse.compress_model(model, embeddings=embeddings)
    assert report.compressed
    model.save_pretrained(tmp_path / "saved")
    assert not hasattr(model, "hf_quantizer") and not hasattr(model.config, "quantization_config")
    fields = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert fields["quantization_config"]["quant_method"] == "transfuse" and fields["dtype"] == "bfloat16"
    assert (
        "transfuse" in fields["transformers_weights"]
        and not (tmp_path / "saved" / fields["transformers_weights"]).exists()
    )
    again = check_saved(tmp_path / "saved", dense, kind, tmp_path / "dense")
    assert again.hf_quantizer is not None


def test_names_that_the_framework_changes(tmp_path: Path) -> None:
    """Once, and not once more by the framework itself: in files of Llava the language model has other names."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**sizes, vocab_size=200),
        vision_config=transformers.CLIPVisionConfig(**sizes, image_size=32, patch_size=16),
        image_token_index=5,
    )

    def make() -> Any:
        torch.manual_seed(1)
        return transformers.LlavaForConditionalGeneration(config).bfloat16()

    dense, model = make(), make()
    dense.save_pretrained(tmp_path / "dense")
    transfuse.compress_model(model, embeddings=True)
    for number in range(2):
        model.save_pretrained(tmp_path / f"saved{number}")
        assert names_in(tmp_path / f"saved{number}") == names_in(tmp_path / "dense") != set(dense.state_dict())
    found = parameters_of(transformers.LlavaForConditionalGeneration.from_pretrained(tmp_path / "saved1"))
    assert all(torch.equal(found[name], value) for name, value in dense.state_dict().items())
    assert "_weight_conversions" not in model.__dict__


@pytest.mark.parametrize("kind", ["llama_tied", "mixtral", "qwen2_biases"])
def test_loaded_from_files_and_compressed(tmp_path: Path, kind: str) -> None:
    """The framework notes conversions while it loads, and undoes these."""
    KINDS[kind].make().save_pretrained(tmp_path / "source")
    dense, model = load(tmp_path / "source", kind), load(tmp_path / "source", kind)
    transfuse.compress_model(model)
    model.save_pretrained(tmp_path / "saved", max_shard_size="200KB")
    assert len(list((tmp_path / "saved").glob("model-*.safetensors"))) > 1
    check_saved(tmp_path / "saved", dense, kind, tmp_path / "dense")


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_loaded_compressed_and_changed(tmp_path: Path, kind: str) -> None:
    """What was left by the command is compressed in memory; something dense is trained; one layer is dense again."""
    KINDS[kind].make().save_pretrained(tmp_path / "source")
    transfuse.compress(tmp_path / "source", tmp_path / "trf", exclude=["*down_proj*"])
    dense, model = load(tmp_path / "source", kind), load(tmp_path / "trf", kind)
    transfuse.compress_model(model, embeddings=True)
    for each in (dense, model):
        each.model.norm.weight.data[:3] = 7
    before = model.model.layers[0].self_attn.q_proj
    again = nn.Linear(before.in_features, before.out_features, bias=False, dtype=torch.bfloat16)
    again.weight.data = before.decode_weight()
    model.model.layers[0].self_attn.q_proj = again
    model.save_pretrained(tmp_path / "saved")
    loaded = check_saved(tmp_path / "saved", dense, kind, tmp_path / "dense")
    assert isinstance(loaded.model.embed_tokens, TransfuseEmbedding)
    assert not isinstance(loaded.model.layers[0].self_attn.q_proj, TransfuseLinear)


@pytest.mark.parametrize("layout", ["packed", "plain"])
def test_other_layouts(tmp_path: Path, layout: str) -> None:
    dense, model = KINDS["llama_tied"].make(), KINDS["llama_tied"].make()
    transfuse.compress_model(model, layout=layout, embeddings=True)
    model.save_pretrained(tmp_path / "saved")
    check_saved(tmp_path / "saved", dense, "llama_tied", tmp_path / "dense")


def test_f32_that_is_bf16(tmp_path: Path) -> None:
    dense, model = KINDS["llama"].make().float(), KINDS["llama"].make().float()
    assert transfuse.compress_model(model).widened
    model.save_pretrained(tmp_path / "saved")
    check_saved(tmp_path / "saved", dense, "llama", tmp_path / "dense", dtype="auto")


def test_quantized(tmp_path: Path) -> None:
    model = KINDS["mixtral"].make()
    transfuse.compress_model(model, bits=5)
    model.save_pretrained(tmp_path / "saved")
    fields = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert fields["quantization_config"]["codec"] == "int"
    transfuse.verify(tmp_path / "saved")
    found, wanted = parameters_of(load(tmp_path / "saved", "mixtral")), parameters_of(model)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_norms_in_f32(tmp_path: Path) -> None:
    """Where all weights are compressed the first floats of a model are those of a norm: its dtype is another one."""
    dense, model = KINDS["llama"].make(), KINDS["llama"].make()
    for each in (dense, model):
        for module in each.modules():
            if type(module).__name__ == "LlamaRMSNorm":
                module.weight.data = module.weight.data.float()
    transfuse.compress_model(model, embeddings=True)
    model.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["dtype"] == "bfloat16"
    assert load(tmp_path / "saved").model.layers[0].mlp.up_proj.weight_dtype == torch.bfloat16


def test_part_of_a_model(tmp_path: Path) -> None:
    """The whole is saved, of which a part was compressed; and the part by itself."""
    dense, model = KINDS["llama"].make(), KINDS["llama"].make()
    transfuse.compress_model(model.model)
    model.save_pretrained(tmp_path / "saved")
    check_saved(tmp_path / "saved", dense, "llama", tmp_path / "dense")
    model.model.save_pretrained(tmp_path / "part")
    transfuse.verify(tmp_path / "part")
    part = transformers.AutoModel.from_pretrained(tmp_path / "part")
    wanted, found = parameters_of(dense.model), parameters_of(part)
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


def test_one_layer_by_hand(tmp_path: Path) -> None:
    dense, model = KINDS["llama"].make(), KINDS["llama"].make()
    transfuse.compress_model(KINDS["llama"].make())  # of another model: the classes are changed at the first
    model.lm_head = TransfuseLinear.from_linear(model.lm_head)
    model.save_pretrained(tmp_path / "saved")
    check_saved(tmp_path / "saved", dense, "llama", tmp_path / "dense")


def test_state_dict_stays(tmp_path: Path) -> None:
    """What torch saves has the names of the model, and blobs."""
    model = KINDS["llama"].make()
    names = set(model.state_dict())
    transfuse.compress_model(model)
    assert set(model.state_dict()) == names
    assert model.state_dict()["lm_head.weight"].dtype == torch.uint8


def test_config_is_kept_after_a_failure(tmp_path: Path) -> None:
    model = KINDS["llama"].make()
    transfuse.compress_model(model)
    with pytest.raises(transfuse.UnsupportedError, match=r"saved as \.safetensors files"):
        model.save_pretrained(tmp_path / "saved", safe_serialization=False)
    with pytest.raises(TypeError):
        model.save_pretrained(tmp_path / "saved", max_shard_size=object())
    assert not hasattr(model, "hf_quantizer") and "quantization_config" not in model.config.to_dict()


@pytest.mark.parametrize("layout", ["coded", "packed"])
def test_a_state_dict_that_is_passed(tmp_path: Path, layout: str) -> None:
    """The framework passes it over, so it must have what is saved anyway."""
    model = KINDS["llama_tied"].make()
    transfuse.compress_model(model, layout=layout, embeddings=True)
    own = model.state_dict()
    norm = next(name for name in own if name.endswith("norm.weight"))
    up = next(name for name in own if name.endswith("up_proj.weight"))
    for other in ({norm: own[norm] + 1}, {up: own[up][:-16]}, {"extra": own[norm]}, {norm: 5}):
        with pytest.raises(transfuse.UnsupportedError, match=f"differs in {next(iter(other))}: change the model"):
            model.save_pretrained(tmp_path / "saved", state_dict={**own, **other})
    with pytest.raises(transfuse.UnsupportedError, match=f"differs in {norm}: change the model"):
        model.save_pretrained(tmp_path / "saved", True, {name: own[name] for name in own if name != norm})
    assert not (tmp_path / "saved").exists()
    copies = {name: tensor.clone() for name, tensor in own.items() if name != "lm_head.weight"}
    model.save_pretrained(tmp_path / "saved", state_dict=copies)
    transfuse.verify(tmp_path / "saved")


def test_decompressed_config_of_a_model_that_was_changed(tmp_path: Path) -> None:
    """A model some of whose layers were taken out decompresses to one that has as many."""
    KINDS["llama"].make().save_pretrained(tmp_path / "source")
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    model = load(tmp_path / "trf", dtype=torch.float32)
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    model.save_pretrained(tmp_path / "saved")
    transfuse.decompress(tmp_path / "saved", tmp_path / "again")
    assert json.loads((tmp_path / "again/config.json").read_text())["num_hidden_layers"] == 1
    model, info = load(tmp_path / "again", output_loading_info=True)
    assert len(model.model.layers) == 1 and not info["missing_keys"] and not info["unexpected_keys"]


def test_dense_models_save_as_before(tmp_path: Path) -> None:
    transfuse.compress_model(KINDS["llama"].make())
    KINDS["llama"].make().save_pretrained(tmp_path / "dense")
    fields = json.loads((tmp_path / "dense" / "config.json").read_text())
    assert not {"quantization_config", "transformers_weights"} & set(fields)


def test_loaded_and_saved_again(tmp_path: Path) -> None:
    """The folder is one that raises where transfuse is not installed, though the framework drops the member for it."""
    KINDS["llama"].make().save_pretrained(tmp_path / "source")
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    load(tmp_path / "trf").save_pretrained(tmp_path / "again")
    fields = json.loads((tmp_path / "again" / "config.json").read_text())
    assert "transfuse" in fields["transformers_weights"]
    transfuse.verify(tmp_path / "again", against=tmp_path / "source")
    with safe_open(tmp_path / "again" / "model.safetensors", "pt") as file:
        assert any(name.endswith("_trf") for name in file.keys())


def test_experts_in_one_tensor(tmp_path: Path) -> None:
    """Where files have gate and up in one tensor, which lie apart in memory, they are encoded again."""
    dense, model = KINDS["mixtral"].make(), KINDS["mixtral"].make()
    transfuse.compress_model(model)
    dense._weight_conversions = model._weight_conversions = []
    model.save_pretrained(tmp_path / "saved")
    assert "model.layers.0.mlp.experts.gate_up_proj" in names_in(tmp_path / "saved")
    check_saved(tmp_path / "saved", dense, "mixtral", tmp_path / "dense")


def test_converted_by_the_framework(tmp_path: Path) -> None:
    """Two projections that files have in one are decoded, put together by the framework, and encoded again."""
    rules = [
        WeightConverter(
            [r"self_attn.both.weight"],
            ["self_attn.k_proj.weight", "self_attn.v_proj.weight"],
            operations=[Chunk(dim=0)],
        )
    ]
    dense, model = KINDS["llama"].make(), KINDS["llama"].make()
    transfuse.compress_model(model, exclude=["model.layers.1.self_attn.v_proj.weight"])
    dense._weight_conversions, model._weight_conversions = copy.deepcopy(rules), copy.deepcopy(rules)
    dense.save_pretrained(tmp_path / "dense")
    model.save_pretrained(tmp_path / "saved")
    transfuse.verify(tmp_path / "saved", against=tmp_path / "dense")
    tensors = {tensor.name: tensor for tensor in transfuse.info(tmp_path / "saved").tensors}
    assert all(tensors[f"model.layers.{layer}.self_attn.both.weight"].compressed for layer in range(2))


RESIZED = [
    (lambda model: model.resize_token_embeddings(600), r"from 515 to 600: the weights of lm_head are compressed"),
    (lambda model: model.resize_token_embeddings(515, pad_to_multiple_of=64), "from 515 to 576"),
    (lambda model: model.resize_token_embeddings(pad_to_multiple_of=64), "from 515 to 576"),
    (lambda model: nn.init.normal_(model.lm_head.weight), "normal_ .* compressed weights of 515 x 192"),
    (lambda model: nn.init.zeros_(model.lm_head.weight), "zeros_ .* compressed weights of 515 x 192"),
    (lambda model: model._init_weights(model.lm_head), "normal_ .* compressed weights"),
]


@pytest.mark.parametrize(("change", "message"), RESIZED)
def test_what_takes_a_weight_for_a_matrix(change: Any, message: str) -> None:
    """It is refused, with the names of layers and the way out, and nothing has changed."""
    model = KINDS["llama"].make()
    transfuse.compress_model(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(transfuse.UnsupportedError, match=message) as caught:
        change(model)
    assert "before it is compressed" in caught.value.message
    after = model.state_dict()
    assert model.config.vocab_size == 515 and before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_sizes_that_stay() -> None:
    """As for dense models, the size that there is already is no change."""
    model = KINDS["llama_tied"].make()
    transfuse.compress_model(model, embeddings=True)
    assert model.resize_token_embeddings(515) is model.model.embed_tokens is model.resize_token_embeddings()
    with pytest.raises(transfuse.UnsupportedError, match=r"the weights of model\.embed_tokens, lm_head are compressed"):
        model.resize_token_embeddings(514)
    dense = KINDS["llama"].make()
    assert dense.resize_token_embeddings(600).num_embeddings == 600


def test_embeddings_that_are_dense_are_resized() -> None:
    """Neither they nor the output layer are compressed: it works, though others are."""
    model = KINDS["llama"].make()
    transfuse.compress_model(model, exclude=["lm_head.weight"])
    assert model.resize_token_embeddings(600).num_embeddings == 600 == model.lm_head.out_features


def test_loaded_models_refuse_as_well(tmp_path: Path) -> None:
    KINDS["llama"].make().save_pretrained(tmp_path / "source")
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    with pytest.raises(transfuse.UnsupportedError, match="lm_head are compressed"):
        load(tmp_path / "trf").resize_token_embeddings(600)


def test_tying() -> None:
    """A bias is not padded to the length of a buffer, and what is compressed is not tied to what is not."""
    model = KINDS["bert"].make()
    transfuse.compress_model(model, embeddings=True)
    bias = model.cls.predictions.decoder.bias.clone()
    model.tie_weights()
    assert torch.equal(model.cls.predictions.decoder.bias, bias)
    model = KINDS["llama"].make()
    transfuse.compress_model(model)
    model.config.tie_word_embeddings = True
    with pytest.raises(transfuse.UnsupportedError, match=r"model\.embed_tokens\.weight cannot be tied to lm_head"):
        model.tie_weights()


def test_tying_by_hand() -> None:
    """In either direction: a dense layer does not take a buffer, nor a compressed one a matrix."""
    model = KINDS["llama"].make()
    transfuse.compress_model(model)
    matrix = model.model.embed_tokens.weight
    with pytest.raises(
        transfuse.UnsupportedError, match=r"Embedding\(515, 192, padding_idx=0\) is a matrix, .* 515 x 192"
    ):
        model.model.embed_tokens.weight = model.lm_head.weight
    assert model.model.embed_tokens.weight is matrix
    with pytest.raises(TypeError, match=r"lm_head \(TransfuseLinear\), of 515 x 192, is a layer's buffer"):
        model.lm_head.weight = matrix


def test_position_embeddings() -> None:
    """Architectures have functions of their own for them."""
    config = transformers.PegasusConfig(
        vocab_size=200, d_model=64, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=96, decoder_ffn_dim=96,
        encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.PegasusForConditionalGeneration(config).bfloat16()
    model.resize_position_embeddings(32)
    transfuse.compress_model(model)
    with pytest.raises(transfuse.UnsupportedError, match="position embeddings cannot be resized"):
        model.resize_position_embeddings(48)


def test_torch_draws_other_weights() -> None:
    for tensor in (torch.empty(3, 4), torch.empty(5, dtype=torch.uint8)):
        assert nn.init.zeros_(tensor) is tensor and not tensor.any()
