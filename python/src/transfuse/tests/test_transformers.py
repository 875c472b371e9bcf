# SPDX-License-Identifier: Apache-2.0
"""Compressed checkpoints in transformers: real architectures, small, with random weights; on the CPU and on a GPU."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", minversion="5.17", reason="transformers 5.17 is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

import torch
import transformers
from torch import nn

import transfuse
from transfuse.tests.architectures import dense_parameters
from transfuse.torch import TransfuseLinear

SIZES = {
    "hidden_size": 192,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 515,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 96, "num_experts": 16, "num_local_experts": 16}


@dataclasses.dataclass(frozen=True)
class Kind:
    """An architecture: the name of its config, its sizes, and parameters that are decoded at load, and why."""

    config: str
    sizes: dict[str, Any]
    auto: str = "AutoModelForCausalLM"
    decoded: str = ""

    def make(self) -> Any:
        config = getattr(transformers, self.config)(**self.sizes)
        torch.manual_seed(3)
        model = getattr(transformers, self.auto).from_config(config, dtype=torch.bfloat16)
        with torch.no_grad():
            # Norms and biases, too, have to be told apart from those that are drawn anew.
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        return model


KINDS = {
    "llama": Kind("LlamaConfig", SIZES),
    "llama_tied": Kind("LlamaConfig", {**SIZES, "tie_word_embeddings": True}),
    "qwen3": Kind("Qwen3Config", {**SIZES, "head_dim": 48}),
    "qwen2_biases": Kind("Qwen2Config", SIZES),
    "phi3": Kind("Phi3Config", SIZES),
    "gemma": Kind("GemmaConfig", {**SIZES, "head_dim": 48}),
    "gemma3": Kind("Gemma3TextConfig", {**SIZES, "head_dim": 48, "sliding_window": 32}),
    "mixtral": Kind("MixtralConfig", {**SIZES, "num_local_experts": 3}),
    "qwen3_moe": Kind("Qwen3MoeConfig", {**SIZES, **EXPERTS, "head_dim": 48}, decoded="TopKRouter"),
    "gpt2": Kind("GPT2Config", {"n_embd": 192, "n_layer": 2, "n_head": 4, "vocab_size": 515}, decoded="Conv1D"),
    "bert": Kind("BertConfig", SIZES, "AutoModelForMaskedLM"),
    "t5": Kind(
        "T5Config",
        {
            "d_model": 192,
            "d_kv": 48,
            "d_ff": 352,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 515,
            "dropout_rate": 0.0,
        },
        "AutoModelForSeq2SeqLM",
        decoded="T5DenseActDense reads its weight",
    ),
}


@pytest.fixture(autouse=True)
def approximate() -> Iterator[None]:
    """Leaves exact mode off behind a test that turned it on."""
    yield
    transfuse.set_exact(False)


class Checkpoints:
    """Sources and compressed ones, made once for each kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def source(self, name: str, file_size: str = "50GB") -> Path:
        path = self.folder / f"{name}-{file_size}"
        if not path.exists():
            KINDS[name].make().save_pretrained(path, max_shard_size=file_size)
        return path

    def compressed(self, name: str, *, embeddings: bool = False, file_size: str = "50GB") -> Path:
        path = self.folder / f"{name}-{file_size}-{embeddings}-trf"
        if not path.exists():
            transfuse.compress(self.source(name, file_size), path, embeddings=embeddings)
        return path

    def copy(self, tmp_path: Path, name: str, **options: Any) -> Path:
        """One that a test may break."""
        return Path(shutil.copytree(self.compressed(name, **options), tmp_path / name))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


def load(path: Path, name: str = "llama", device: str = "cpu", **options: Any) -> Any:
    return getattr(transformers, KINDS[name].auto).from_pretrained(path, device_map=device, **options)


def count_different(model: nn.Module, source: nn.Module) -> list[str]:
    ours, theirs = dense_parameters(model), dense_parameters(source)
    assert ours.keys() == theirs.keys()
    return [n for n in theirs if ours[n].dtype != theirs[n].dtype or not torch.equal(ours[n].cpu(), theirs[n].cpu())]


def count_compressed(model: nn.Module) -> int:
    return sum(parameter.dtype == torch.uint8 for _, parameter in model.named_parameters(remove_duplicate=False))


def some_ids(model: Any, rows: int = 2, length: int = 13) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(3, model.config.vocab_size, (rows, length), generator=generator).to(model.device)


def run(model: Any) -> torch.Tensor:
    ids = some_ids(model)
    inputs = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        logits: torch.Tensor = model(ids, **inputs).logits
    return logits


def check_logits(logits: torch.Tensor, expected: torch.Tensor, source: Path, name: str, device: str) -> None:
    """Products add up in another order than the source's: logits are alike, or no farther from those in F32."""
    if torch.allclose(logits.float(), expected.float(), atol=0.02, rtol=0.02):
        return
    exact = run(load(source, name, device, dtype=torch.float32))
    errors = [(each.float() - exact).abs() for each in (logits, expected)]
    ours, theirs = (error.square().mean().sqrt().item() for error in errors)
    assert ours <= 1.1 * theirs and errors[0].max() <= 1.5 * errors[1].max()


@pytest.mark.parametrize("embeddings", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_parameters_and_logits(
    checkpoints: Checkpoints, name: str, embeddings: bool, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = load(checkpoints.source(name), name, device)
    transformers.logging.enable_propagation()
    model = load(checkpoints.compressed(name, embeddings=embeddings), name, device)
    assert count_different(model, source) == []
    # Without embeddings nothing but what has to be decoded is compressed of GPT-2.
    assert (count_compressed(model) > 0) == (name != "gpt2" or embeddings)
    assert ("decoded at load" in caplog.text) == bool(KINDS[name].decoded)
    assert KINDS[name].decoded in caplog.text
    assert "LOAD REPORT" not in caplog.text
    assert all(parameter.device.type == device for parameter in model.parameters())
    expected = run(source)
    check_logits(run(model), expected, checkpoints.source(name), name, device)
    transfuse.set_exact(True)
    assert torch.equal(run(model), expected)


@pytest.mark.parametrize("embeddings", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_saving(tmp_path: Path, checkpoints: Checkpoints, name: str, embeddings: bool, device: str) -> None:
    if name == "gpt2" and not embeddings:
        pytest.skip("nothing of it stays compressed")
    compressed = checkpoints.compressed(name, embeddings=embeddings)
    load(compressed, name, device).save_pretrained(tmp_path / "saved")
    report = transfuse.verify(tmp_path / "saved", against=checkpoints.source(name))
    again = load(tmp_path / "saved", name, device)
    assert count_different(again, load(checkpoints.source(name), name, device)) == []
    wanted = {tensor.name for tensor in transfuse.info(compressed).tensors if tensor.compressed}
    decoded = {tensor.name for tensor in transfuse.info(tmp_path / "saved").tensors if not tensor.compressed} & wanted
    assert bool(decoded) == bool(KINDS[name].decoded)
    assert report.compressed_tensors == len(wanted) - len(decoded)
    transfuse.decompress(tmp_path / "saved", tmp_path / "source")
    original = checkpoints.source(name) / "config.json"
    assert (tmp_path / "source" / "config.json").read_bytes() == original.read_bytes()


def test_nothing_left_compressed(tmp_path: Path, checkpoints: Checkpoints) -> None:
    """GPT-2's weights are transposed, so that a dense model comes of it, and is saved as one."""
    model = load(checkpoints.compressed("gpt2"), "gpt2")
    assert count_compressed(model) == 0 and not hasattr(model, "hf_quantizer")
    model.save_pretrained(tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    again, source = load(tmp_path / "saved", "gpt2"), load(checkpoints.source("gpt2"), "gpt2")
    assert count_different(again, source) == []


@pytest.mark.parametrize("name", ["llama", "llama_tied", "mixtral"])
def test_files(tmp_path: Path, checkpoints: Checkpoints, name: str, device: str) -> None:
    """A checkpoint in several files, and saving one in several."""
    compressed = checkpoints.compressed(name, file_size="400KB", embeddings=True)
    assert len(list(compressed.glob("*.safetensors"))) > 2
    source = load(checkpoints.source(name), name, device)
    model = load(compressed, name, device)
    assert count_different(model, source) == []
    model.save_pretrained(tmp_path / "saved", max_shard_size="300KB")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 2
    transfuse.verify(tmp_path / "saved", against=checkpoints.source(name))
    assert count_different(load(tmp_path / "saved", name, device), source) == []


@pytest.mark.parametrize("name", ["llama_tied", "gemma", "gemma3", "bert"])
def test_tied_weights_are_one(checkpoints: Checkpoints, name: str, device: str) -> None:
    model = load(checkpoints.compressed(name, embeddings=True), name, device)
    blob = model.get_input_embeddings().weight
    assert blob.dtype == torch.uint8 and model.get_output_embeddings().weight is blob
    assert isinstance(model.get_output_embeddings(), nn.Linear)
    plain = load(checkpoints.compressed(name), name, device)
    assert plain.get_output_embeddings().weight is plain.get_input_embeddings().weight
    assert plain.get_input_embeddings().weight.dtype == torch.bfloat16


def test_experts_in_one_tensor(tmp_path: Path, checkpoints: Checkpoints, device: str) -> None:
    """Files that have the experts as the model has them, gate and up together."""
    source = load(checkpoints.source("mixtral"), "mixtral", device)
    source.save_pretrained(tmp_path / "source", save_original_format=False)
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    shapes = {len(tensor.shape) for tensor in transfuse.info(tmp_path / "trf").tensors if tensor.compressed}
    assert shapes == {2, 3}
    model = load(tmp_path / "trf", "mixtral", device)
    assert model.model.layers[0].mlp.experts.gate_up_proj.dtype == torch.uint8
    assert count_different(model, source) == []
    transfuse.set_exact(True)
    assert torch.equal(run(model), run(source))
    model.save_pretrained(tmp_path / "saved")
    transfuse.verify(tmp_path / "saved", against=tmp_path / "source")
    assert count_different(load(tmp_path / "saved", "mixtral", device), source) == []


def test_some_experts_uncompressed(
    tmp_path: Path, checkpoints: Checkpoints, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one projection one expert is left out: the others are decoded, and the framework merges them all."""
    transfuse.compress(
        checkpoints.source("mixtral"), tmp_path / "trf", exclude=["*.experts.1.w1.weight", "*.w2.weight"]
    )
    transformers.logging.enable_propagation()
    model = load(tmp_path / "trf", "mixtral", device)
    source = load(checkpoints.source("mixtral"), "mixtral", device)
    assert count_different(model, source) == []
    assert "not all of its experts are compressed: model.layers.0.mlp.experts.gate_up_proj" in caplog.text
    assert "LOAD REPORT" not in caplog.text
    model.save_pretrained(tmp_path / "saved")
    transfuse.verify(tmp_path / "saved", against=checkpoints.source("mixtral"))


def test_key_mapping(tmp_path: Path, checkpoints: Checkpoints, device: str) -> None:
    """Names that the user maps; they are undone when the model is saved."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoints.source("llama"), tmp_path / "source")
    file = tmp_path / "source" / "model.safetensors"
    save_file({f"old.{name}": tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    mapping: dict[str, Any] = {"key_mapping": {r"^old\.": ""}}
    source = load(checkpoints.source("llama"), device=device)
    model = load(tmp_path / "trf", device=device, **mapping)
    assert count_different(model, source) == [] and count_compressed(model) == 15
    model.save_pretrained(tmp_path / "saved")
    transfuse.verify(tmp_path / "saved", against=tmp_path / "source")
    assert count_different(load(tmp_path / "saved", device=device, **mapping), source) == []


def test_fused_in_the_files(
    tmp_path: Path, checkpoints: Checkpoints, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One tensor of the files for three layers of the model, which the framework cuts: it is decoded."""
    from safetensors.torch import load_file, save_file
    from transformers import conversion_mapping
    from transformers.core_model_loading import Chunk, WeightConverter

    shutil.copytree(checkpoints.source("gemma"), tmp_path / "source")
    file = tmp_path / "source" / "model.safetensors"
    tensors = load_file(file)
    for index in range(2):
        prefix = f"model.layers.{index}.mlp."
        parts = [tensors.pop(f"{prefix}{name}_proj.weight") for name in ("gate", "up")]
        tensors[f"{prefix}both.weight"] = torch.cat(parts)
    save_file(tensors, file, {"format": "pt"})
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    targets = ["mlp.gate_proj.weight", "mlp.up_proj.weight"]
    cut = WeightConverter("mlp.both.weight", targets, [Chunk(dim=0)])
    conversion_mapping.register_checkpoint_conversion_mapping("GemmaForCausalLM", [cut])
    try:
        transformers.logging.enable_propagation()
        model = load(tmp_path / "trf", device=device)
        assert count_different(model, load(checkpoints.source("gemma"), device=device)) == []
        assert "converted (Chunk): model.layers.0.mlp.gate_proj.weight" in caplog.text
        assert count_compressed(model) == 10
        model.save_pretrained(tmp_path / "saved")
        transfuse.verify(tmp_path / "saved", against=tmp_path / "source")
    finally:
        del conversion_mapping._checkpoint_conversion_mapping_cache["GemmaForCausalLM"]


def test_exact_as_an_argument(checkpoints: Checkpoints, device: str) -> None:
    source = load(checkpoints.source("llama"), device=device)
    config = transfuse.TransfuseConfig(exact=True)
    with pytest.warns(UserWarning, match="exact"):
        model = load(checkpoints.compressed("llama"), device=device, quantization_config=config)
    assert transfuse.is_exact() and torch.equal(run(model), run(source))
    assert model.config.quantization_config.codec == "auto"
    assert "exact" not in model.config.to_dict()["quantization_config"]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate(checkpoints: Checkpoints, cache: str, device: str) -> None:
    source = load(checkpoints.source("llama"), device=device)
    model = load(checkpoints.compressed("llama"), device=device)
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": cache}
    ids = some_ids(model)
    mask = torch.ones_like(ids)
    transfuse.set_exact(True)
    assert model.generate(ids, attention_mask=mask, **options).equal(
        source.generate(ids, attention_mask=mask, **options)
    )
    transfuse.set_exact(False)
    assert model.generate(ids, attention_mask=mask, **options).shape == (2, 25)


def test_compiled_forward(checkpoints: Checkpoints, device: str) -> None:
    model = load(checkpoints.compressed("llama"), device=device)
    assert model.hf_quantizer.is_compileable
    expected = run(model)
    # Without a compiler for C++, which the tests do not ask for, inductor has nothing to do on the CPU.
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager" if device == "cpu" else "inductor")
    with torch.no_grad():
        logits = compiled(some_ids(model)).logits
    assert torch.allclose(logits.float(), expected.float(), atol=0.02, rtol=0.02)
    transfuse.set_exact(True)
    expected = run(load(checkpoints.source("llama"), device=device))
    with torch.no_grad():
        logits = compiled(some_ids(model)).logits
    assert torch.equal(logits, expected) or device == "cuda"


def test_continuous_batching(checkpoints: Checkpoints, device: str) -> None:
    source = load(checkpoints.source("llama"), device=device)
    model = load(checkpoints.compressed("llama"), device=device)
    # By themselves the caches take most of the memory that there is.
    options = {
        "generation_config": transformers.GenerationConfig(
            max_new_tokens=5, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        "continuous_batching_config": transformers.ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64),
    }
    prompts = some_ids(model, 3).tolist()
    transfuse.set_exact(True)
    ours, theirs = (base.generate_batch(inputs=prompts, **options).values() for base in (model, source))
    assert [each.error for each in ours] == [None] * 3
    assert [each.generated_tokens for each in ours] == [each.generated_tokens for each in theirs]
    transfuse.set_exact(False)
    results = model.generate_batch(inputs=prompts, **options)
    assert [len(each.generated_tokens) for each in results.values()] == [5, 5, 5]


def test_adapters(tmp_path: Path, checkpoints: Checkpoints, device: str) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = load(checkpoints.compressed("llama"), device=device)
    source = load(checkpoints.source("llama"), device=device)
    transfuse.set_exact(True)
    gradients = []
    for base in (model, source):
        torch.manual_seed(0)
        adapted = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
        ids = some_ids(base)
        adapted(ids, labels=ids).loss.backward()
        gradients.append({n: p.grad for n, p in adapted.named_parameters() if p.grad is not None})
    assert len(gradients[0]) == 8 and gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name
    adapted.save_pretrained(tmp_path / "adapter")


def test_adapter_of_transformers(tmp_path: Path, checkpoints: Checkpoints) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = load(checkpoints.compressed("llama"))
    model.add_adapter(peft.LoraConfig(r=4, target_modules=["q_proj"]))
    model.save_pretrained(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()
    assert not (tmp_path / "adapter" / "model.safetensors").exists()


def test_base_model_and_other_heads(checkpoints: Checkpoints, device: str) -> None:
    compressed = checkpoints.compressed("llama")
    source = transformers.AutoModel.from_pretrained(checkpoints.source("llama"), device_map=device)
    model = transformers.AutoModel.from_pretrained(compressed, device_map=device)
    assert count_different(model, source) == []
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(compressed, num_labels=3)
    assert classifier.score.weight.dtype == torch.bfloat16 and count_compressed(classifier) == 14


def test_saving_a_base_model(tmp_path: Path, checkpoints: Checkpoints) -> None:
    model = transformers.AutoModel.from_pretrained(checkpoints.compressed("llama"))
    model.save_pretrained(tmp_path / "saved")
    transfuse.verify(tmp_path / "saved")
    again = transformers.AutoModel.from_pretrained(tmp_path / "saved")
    assert count_different(again, model) == []
    transfuse.decompress(tmp_path / "saved", tmp_path / "source")
    source = json.loads((tmp_path / "source" / "config.json").read_text())
    assert source["architectures"] == ["LlamaModel"] and "quantization_config" not in source
    assert count_different(transformers.AutoModel.from_pretrained(tmp_path / "source"), model) == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
def test_dtypes_that_fit(checkpoints: Checkpoints, dtype: str, device: str) -> None:
    source = load(checkpoints.source("llama"), device=device, dtype=dtype)
    model = load(checkpoints.compressed("llama"), device=device, dtype=dtype)
    assert model.dtype == source.dtype and model.model.norm.weight.dtype == source.dtype
    transfuse.set_exact(True)
    assert torch.equal(run(model), run(source))


@pytest.mark.parametrize("bits", [None, 5.0])
def test_f32_models(tmp_path: Path, bits: float | None, device: str) -> None:
    """Rounded to BF16, or quantized: the model stays one of F32, or becomes one of BF16 when asked for."""
    source = KINDS["bert"].make().float().eval()
    source.save_pretrained(tmp_path / "source")
    transfuse.compress(tmp_path / "source", tmp_path / "trf", codec="int" if bits else "bf16", bits=bits)
    for dtype in (torch.float32, torch.bfloat16):
        model = load(tmp_path / "trf", "bert", device, dtype=dtype)
        assert model.dtype == dtype and count_compressed(model) > 10
        logits = run(model)
        assert logits.dtype == dtype
        expected = run(source.to(device))
        similarity = torch.nn.functional.cosine_similarity(logits.float().flatten(), expected.flatten(), 0)
        assert similarity > (0.98 if bits else 0.999)


def test_device_maps(checkpoints: Checkpoints) -> None:
    compressed = checkpoints.compressed("llama")
    for device_map in ("auto", {"": "cpu"}, {"model": "cpu", "lm_head": "cpu"}, None):
        if device_map == "auto" and torch.cuda.is_available():
            continue
        model = transformers.AutoModelForCausalLM.from_pretrained(compressed, device_map=device_map)
        assert model.device.type == "cpu" and count_compressed(model) == 15
    for mixed, words in (
        ({"model": 0, "lm_head": "cpu"}, "on a GPU and another one on the CPU"),
        ({"model": "cpu", "lm_head": "disk"}, "on the disk"),
        ({"": "meta"}, "not for"),
    ):
        with pytest.raises(transfuse.UnsupportedError, match=words):
            transformers.AutoModelForCausalLM.from_pretrained(compressed, device_map=mixed)


def test_automatic_device_map(checkpoints: Checkpoints) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    compressed = checkpoints.compressed("llama", embeddings=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(compressed, device_map="auto")
    assert model.device.type == "cuda"
    assert count_different(model, load(checkpoints.source("llama"))) == []
    with pytest.raises(transfuse.UnsupportedError, match="GPUs have too little memory|on the disk"):
        transformers.AutoModelForCausalLM.from_pretrained(
            compressed, device_map="auto", max_memory={0: "1MB", "cpu": "1GB"}
        )


def over_two_gpus(name: str) -> dict[str, int]:
    """Returns a device map: the second layer and what is behind it on the second GPU."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there are no two CUDA devices")
    head = 0 if KINDS[name].sizes.get("tie_word_embeddings") else 1
    return {
        "model.embed_tokens": 0,
        "model.layers.0": 0,
        "model.layers.1": 1,
        "model.norm": 1,
        "model.rotary_emb": 0,
        "lm_head": head,
    }


@pytest.mark.parametrize("layout", ["coded", "plain", "packed"])
@pytest.mark.parametrize("name", ["llama", "llama_tied", "qwen3_moe"])
def test_over_several_gpus(tmp_path: Path, name: str, layout: str, checkpoints: Checkpoints) -> None:
    """A context each: by a map, and by one that accelerate makes."""
    compressed, source_path = checkpoints.compressed(name, embeddings=True), checkpoints.source(name)
    for device_map in (over_two_gpus(name), "balanced"):
        options: dict[str, Any] = {"device_map": device_map, "dtype": torch.bfloat16}
        source = transformers.AutoModelForCausalLM.from_pretrained(source_path, **options)
        config = transfuse.TransfuseConfig(layout=layout)
        model = transformers.AutoModelForCausalLM.from_pretrained(compressed, quantization_config=config, **options)
        devices = [{tensor.device.index for tensor in m.parameters()} for m in (model, source)]
        assert devices[0] == devices[1] and (device_map == "balanced" or devices[0] == {0, 1})
        assert count_different(model, source) == []
        ids = some_ids(model)
        with torch.no_grad():
            ours, theirs = model(ids).logits.float(), source(ids).logits.float()
        assert torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), 0) > 0.999
        transfuse.set_exact(True)
        assert torch.equal(run(model), run(source))
        generated = [m.generate(ids, max_new_tokens=12, do_sample=False) for m in (model, source)]
        assert torch.equal(*generated)
        transfuse.set_exact(False)
        assert torch.cuda.current_device() == 0
    model.save_pretrained(tmp_path / "saved")
    transfuse.verify(tmp_path / "saved", against=source_path)


def test_from_one_gpu_to_another() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there are no two CUDA devices")
    dense = nn.Linear(512, 768, bias=False, dtype=torch.bfloat16, device="cuda:0")
    for layout in ("coded", "plain", "packed"):
        layer = TransfuseLinear.from_linear(dense, layout=layout)
        x = torch.randn(5, 512, dtype=torch.bfloat16, device="cuda:0")
        expected = layer(x)
        moved = layer.to("cuda:1")
        assert moved.weight.device.index == 1 and torch.equal(moved.decode_weight().cpu(), dense.weight.cpu())
        assert torch.equal(moved(x.to("cuda:1")).cpu(), expected.cpu())
        with torch.cuda.device(1):
            assert torch.equal(moved(x.to("cuda:1")).cpu(), expected.cpu())
        with pytest.raises(RuntimeError, match="x is on cuda:0, buffer is on cuda:1"):
            moved(x)


def test_memory_while_loading(checkpoints: Checkpoints) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    load(checkpoints.compressed("llama", embeddings=True), device="cuda")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = load(checkpoints.compressed("llama", embeddings=True), device="cuda")
    taken = sum(parameter.nbytes for parameter in model.parameters())
    # Directories, and what the allocator rounds, weigh much in so small a model.
    assert torch.cuda.max_memory_allocated() - before < 1.15 * taken + 200_000


# ---- what has to fail ----


def test_not_compressed(tmp_path: Path, checkpoints: Checkpoints) -> None:
    with pytest.raises(transfuse.ArgumentError, match="not compressed"):
        load(checkpoints.source("llama"), quantization_config=transfuse.TransfuseConfig())
    folder = checkpoints.copy(tmp_path, "llama")
    shutil.copy(checkpoints.source("llama") / "model.safetensors", folder)
    # What counts is what the files hold: they are the source's, and so is the model.
    with pytest.warns(UserWarning, match="is not compressed, and is loaded as it is"):
        plain = load(folder, quantization_config=transfuse.TransfuseConfig(layout="packed"))
    source = load(checkpoints.source("llama"))
    for model in (plain, load(folder), load(checkpoints.source("llama"), config=load(folder).config)):
        assert count_different(model, source) == [] and not hasattr(model.config, "quantization_config")


def test_one_variant_compressed(tmp_path: Path) -> None:
    """The main file is F32, which has no lossless codec, and the variant F16: each loads as from the source."""
    model = KINDS["llama"].make().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.rand_like(parameter) * 1e-4)
    model.save_pretrained(tmp_path / "source")
    model.half().save_pretrained(tmp_path / "source", variant="fp16")
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    variants: list[dict[str, Any]] = [{}, {"variant": "fp16", "dtype": torch.float16}]
    for options in variants:
        loaded, source = load(tmp_path / "trf", **options), load(tmp_path / "source", **options)
        assert count_different(loaded, source) == [] and (count_compressed(loaded) > 0) == bool(options)


def test_unknown_layout(tmp_path: Path, checkpoints: Checkpoints) -> None:
    folder = checkpoints.copy(tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["layout"] = "woven"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(transfuse.UnsupportedError, match="'woven' is not known"):
        load(folder)


def blob_of(folder: Path, name: str) -> transfuse.TensorInfo:
    return next(tensor for tensor in transfuse.info(folder).tensors if tensor.name == name)


def overwrite(path: str, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def test_another_version(tmp_path: Path, checkpoints: Checkpoints) -> None:
    folder = checkpoints.copy(tmp_path, "llama")
    tensor = blob_of(folder, "model.layers.1.mlp.up_proj.weight")
    overwrite(tensor.file, tensor.file_offset + 4, b"\x63")
    with pytest.raises(transfuse.UnsupportedError, match="version"):
        load(folder)


def test_corrupt_tile(tmp_path: Path, checkpoints: Checkpoints) -> None:
    folder = checkpoints.copy(tmp_path, "llama")
    tensor = blob_of(folder, "model.layers.1.mlp.up_proj.weight")
    overwrite(tensor.file, tensor.file_offset + tensor.bytes // 2, b"\xff\x00\xff\x00\xff\x00")
    with pytest.raises(transfuse.DataError, match=r"up_proj|blob"):
        load(folder)


def test_missing_and_cut_files(tmp_path: Path, checkpoints: Checkpoints) -> None:
    folder = checkpoints.copy(tmp_path, "llama", file_size="400KB", embeddings=True)
    last = sorted(folder.glob("*.safetensors"))[-1]
    data = last.read_bytes()
    last.write_bytes(data[: len(data) // 2])
    with pytest.raises(transfuse.DataError, match=last.name):
        load(folder)
    last.unlink()
    with pytest.raises(transfuse.NotFoundError, match=last.name):
        load(folder)


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.self_attn.k_proj.weight", "model.norm.weight"])
def test_missing_tensors(tmp_path: Path, checkpoints: Checkpoints, name: str) -> None:
    from safetensors.torch import load_file, save_file

    folder = checkpoints.copy(tmp_path, "llama")
    tensors = load_file(folder / "model.safetensors")
    kept = {key: tensor for key, tensor in tensors.items() if key.removesuffix("_trf") != name}
    assert len(kept) == len(tensors) - 1
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=rf"does not fit LlamaForCausalLM; no file gives '{name}'"):
        load(folder)
    renamed = {key.replace(name, "model.odd.weight"): tensor for key, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=rf"no module takes 'model.odd.weight'; no file gives '{name}'"):
        load(folder)


def test_other_shapes(tmp_path: Path, checkpoints: Checkpoints) -> None:
    folder = checkpoints.copy(tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] = 384
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(transfuse.ShapeError, match=r"mlp.down_proj.weight' has shape \[192, 352\].* has \[192, 384\]"):
        load(folder)


def test_dtype_that_does_not_fit(checkpoints: Checkpoints) -> None:
    with pytest.raises(transfuse.ArgumentError, match=r"tensor '.*': weights of the codec bf16 .* in torch.float16"):
        load(checkpoints.compressed("llama"), dtype=torch.float16)


def test_interrupt(tmp_path: Path, checkpoints: Checkpoints) -> None:
    """Ctrl-C while blobs are being read: the process goes on at once, with a KeyboardInterrupt."""
    compressed = checkpoints.compressed("llama")
    program = f"""
import sys, threading, time
import transfuse.torch._load as loading
import transformers
real, started = loading.load_layer, threading.Event()
def slow(*arguments, **options):
    started.set()
    time.sleep(0.2)
    return real(*arguments, **options)
loading.load_layer = slow
def tell():
    started.wait()
    print("reading", flush=True)
threading.Thread(target=tell, daemon=True).start()
try:
    transformers.AutoModelForCausalLM.from_pretrained({str(compressed)!r})
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "reading\n"
    start = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert time.monotonic() - start < 1
    assert process.wait(100) == 0
