# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of FP8 with scales in transformers: they load as the BF16 that codes times scales are, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", minversion="5.17", reason="transformers 5.17 is not installed")

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import transfuse
from transfuse.hf import TransfuseConfig, _loading
from transfuse.tests.fp8_sources import FP8_KINDS, quantize_all, write_fp8
from transfuse.torch import TransfuseLinear
from transfuse.torch._experts import TransfuseExperts

SIZES = {
    "hidden_size": 192,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "vocab_size": 515,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
CONFIGS = {
    "qwen3": lambda: transformers.Qwen3Config(**SIZES),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=160
    ),
}
CASES = [("qwen3", kind) for kind in ("block", "channel", "tensor")]
CASES += [("qwen3_moe", kind) for kind in ("block", "channel")]


@pytest.fixture(autouse=True)
def approximate() -> Iterator[None]:
    """Leaves exact mode off behind a test that turned it on."""
    yield
    transfuse.set_exact(False)


def is_quantized(name: str) -> bool:
    return not any(part in name for part in ("embed", "lm_head", "mlp.gate.", "norm"))


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an FP8 checkpoint, `source`; the same in BF16, `dense`; and what `source` was compressed to."""
    model_name, kind_name = request.param
    path, kind = tmp_path_factory.mktemp("fp8"), FP8_KINDS[kind_name]
    torch.manual_seed(3)
    made = transformers.AutoModelForCausalLM.from_config(CONFIGS[model_name](), dtype=torch.bfloat16)
    made.save_pretrained(path / "dense")
    source, dense = quantize_all(load_file(path / "dense" / "model.safetensors"), kind, is_quantized)
    save_file(dense, path / "dense" / "model.safetensors", metadata={"format": "pt"})
    write_fp8(path / "source", source, kind, json.loads((path / "dense" / "config.json").read_text()))
    report = transfuse.compress(path / "source", path / "compressed")
    quantized = sum(tensor.dtype == torch.float8_e4m3fn for tensor in source.values())
    name = {"block": "scale-block:128"}.get(kind_name, kind_name)
    assert report.source_fp8_tensors == {name: quantized} and not report.scaled_fp8_tensors
    assert report.side_tables == len(source) - len(dense)
    assert report.unused_side_tables == (quantized if kind.input_scales else 0)
    return path


def logits(path: Path, config: TransfuseConfig | None = None) -> torch.Tensor:
    options = {} if config is None else {"quantization_config": config}
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto", **options).eval()
    assert model.dtype == torch.bfloat16
    with torch.inference_mode():
        result: torch.Tensor = model(torch.arange(34).reshape(2, 17)).logits
    return result


@pytest.mark.parametrize("layout", ["coded", "packed", "plain"])
def test_logits(folder: Path, layout: str) -> None:
    """Exact mode gives what the checkpoint gives that was dequantized to BF16."""
    wanted = logits(folder / "dense")
    assert wanted.abs().max() > 0
    assert torch.equal(logits(folder / "compressed", TransfuseConfig(exact=True, layout=layout)), wanted)


def test_what_lies_packed_as_bf16(
    folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report says how many FP8 weights do not lie packed8, and why; the modules say so, too."""
    lines: list[str] = []
    monkeypatch.setattr(_loading.logger, "warning", lines.append)
    config = TransfuseConfig(layout="packed")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "compressed", quantization_config=config)
    modules = [module for module in model.modules() if isinstance(module, (TransfuseLinear, TransfuseExperts))]
    reasons = [module.layout_reason for module in modules if module.layout_reason]
    are_mixtures = "moe" in request.node.callspec.id
    lines = [line for line in lines if "packed as BF16" in line]
    if "channel" not in request.node.callspec.id:
        assert not reasons and not lines
        return
    # The linear layers, and not the head; of experts the two containers of each module.
    assert len(reasons) == 2 * (5 if are_mixtures else 7)
    count = 2 * (4 + 2 if are_mixtures else 7)
    assert len(lines) == 1 and lines[0].startswith(f"{count} weights of FP8 lie packed as BF16, and not packed8")
    assert "its scales are those of rows" in lines[0] and "its scales are those of rows" in reasons[0]


def test_folder(folder: Path, tmp_path: Path) -> None:
    """Every file comes back, and loaders find no tensor of scales."""
    transfuse.verify(folder / "compressed", against=folder / "source")
    transfuse.decompress(folder / "compressed", tmp_path / "back")
    for file in (folder / "source").iterdir():
        assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes(), file.name
    for file in (folder / "compressed").glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            assert not [name for name in opened.keys() if "scale" in name]
    tensors = transfuse.info(folder / "compressed").tensors
    assert {tensor.dtype for tensor in tensors} == {"BF16"}
    assert not [tensor.name for tensor in tensors if "scale" in tensor.name]
    config = transformers.AutoConfig.from_pretrained(folder / "compressed").quantization_config
    assert config["quant_method"] == "transfuse"


def test_saving(folder: Path, tmp_path: Path) -> None:
    """A model that is saved is one of BF16 weights, and decompresses to that."""
    wanted = logits(folder / "dense")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "compressed", dtype="auto")
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(tmp_path / "saved", TransfuseConfig(exact=True)), wanted)
    transfuse.decompress(tmp_path / "saved", tmp_path / "back")
    assert "quantization_config" not in json.loads((tmp_path / "back" / "config.json").read_text())
    transfuse.set_exact(False)
    assert torch.equal(logits(tmp_path / "back"), wanted)


@pytest.mark.parametrize("layout", ["packed", "packed8"])
def test_experts_lie_packed8(folder: Path, layout: str, request: pytest.FixtureRequest) -> None:
    is_channel = "channel" in request.node.callspec.id
    config = TransfuseConfig(layout=layout)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "compressed", dtype="auto", quantization_config=config
    )
    experts = [module for module in model.modules() if isinstance(module, TransfuseExperts)]
    assert len(experts) == (2 if model.config.model_type == "qwen3_moe" else 0)
    lies = "packed8" if not is_channel else "packed" if layout == "packed" else "coded"
    assert all(module.layout == lies for module in experts)
