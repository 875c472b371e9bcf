# SPDX-License-Identifier: Apache-2.0
"""Compressed checkpoints in transformers whose layers lie packed or plain, or as it is chosen for a memory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", minversion="5.17", reason="transformers 5.17 is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

import torch
import transformers

import transfuse
from transfuse.tests.test_transformers import (
    Checkpoints,
    check_logits,
    count_different,
    load,
    run,
)
from transfuse.tests.test_transformers import approximate as approximate
from transfuse.tests.test_transformers import checkpoints as checkpoints
from transfuse.tests.torch_cases import UNPACKABLE, layout_bytes, make_unpackable
from transfuse.torch import TransfuseExperts, TransfuseLinear


def load_with_warnings(path: Path, layout: str, device: str, caplog: pytest.LogCaptureFixture) -> tuple[Any, list[str]]:
    """Returns a llama in a layout, and what is said of weights that the layout does not take."""
    transformers.logging.enable_propagation()
    model = load(path, device=device, quantization_config=transfuse.TransfuseConfig(layout=layout))
    return model, [message for message in caplog.messages if f"do not become {layout}" in message]


@pytest.mark.parametrize("layout", ["plain", "packed"])
@pytest.mark.parametrize("name", ["llama", "llama_tied", "gemma3", "mixtral", "qwen3_moe", "gpt2", "bert", "t5"])
def test_layouts(
    tmp_path: Path, checkpoints: Checkpoints, name: str, layout: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded in another layout, the model is the same, and what is saved of it is a compressed checkpoint."""
    from transfuse.torch import _layouts, _packed_experts
    from transfuse.torch._modules import CompressedModule

    source, compressed = load(checkpoints.source(name), name, device), checkpoints.compressed(name, embeddings=True)
    with monkeypatch.context() as patch:
        patch.setattr(_layouts, "encode_again", None)  # the framework asks for state dicts while it loads
        patch.setattr(_packed_experts, "encode_packed", None)
        with pytest.warns(UserWarning, match="layout"):
            model = load(compressed, name, device, quantization_config=transfuse.TransfuseConfig(layout=layout))
    layers = [module for module in model.modules() if isinstance(module, CompressedModule)]
    assert {layer.layout for layer in layers} == {layout}
    experts = [module.layout for module in model.modules() if isinstance(module, TransfuseExperts)]
    takes_packed = layout == "packed" and (device == "cpu" or torch.cuda.get_device_capability() == (9, 0))
    assert experts == ["packed" if takes_packed else "coded"] * (2 if name in ("mixtral", "qwen3_moe") else 0)
    for layer in layers:
        assert layer.weight.untyped_storage().nbytes() == layout_bytes(layout, *layer.weight_shape)
    assert count_different(model, source) == []
    expected = run(source)
    check_logits(run(model), expected, checkpoints.source(name), name, device)
    transfuse.set_exact(True)
    assert torch.equal(run(model), expected)
    model.save_pretrained(tmp_path / "saved")
    transfuse.verify(tmp_path / "saved", against=checkpoints.source(name))
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["quantization_config"]["layout"] == "coded"
    again, straight = load(tmp_path / "saved", name, device), load(compressed, name, device)
    states = again.state_dict(), straight.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("layout", ["plain", "packed"])
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_layouts_with_an_automatic_device_map(name: str, layout: str, checkpoints: Checkpoints) -> None:
    config = transfuse.TransfuseConfig(layout=layout, exact=True)
    model = load(checkpoints.compressed(name), name, device="auto", quantization_config=config)
    assert torch.equal(run(model), run(load(checkpoints.source(name), name, device=model.device.type)))


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_layouts_that_are_chosen(name: str, checkpoints: Checkpoints, device: str) -> None:
    """Each layer has the layout that is chosen for the memory, and weights are what they were."""
    path = checkpoints.compressed(name, embeddings=True)
    rows = 32 if name == "llama" else 4096  # enough for small experts to be faster packed
    takes_packed = device == "cpu" or torch.cuda.get_device_capability() == (9, 0)
    expert_layouts = ["coded", "packed"] if takes_packed else ["coded"]
    most = transfuse.choose_layouts(path, "2GB", rows, expert_layouts=expert_layouts)
    kinds, expert_kinds = set(), set()
    for memory in (most.least_memory_bytes, most.least_memory_bytes + most.layer_bytes // 16, "2GB"):
        card = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        wanted = transfuse.choose_layouts(path, memory, rows, expert_layouts=expert_layouts, card=card).layouts
        config = transfuse.TransfuseConfig(layout="auto", memory=memory, batches=rows)
        model = load(path, name, device, quantization_config=config)
        for module_name, module in model.named_modules():
            if isinstance(module, TransfuseLinear) and f"{module_name}.weight" in wanted:
                assert module.layout == wanted[f"{module_name}.weight"]
                kinds.add(module.layout)
            if isinstance(module, TransfuseExperts):
                chosen = {layout for tensor, layout in wanted.items() if tensor.startswith(f"{module_name}.")}
                assert chosen == {module.layout}
                expert_kinds |= chosen
        assert count_different(model, load(checkpoints.source(name), name, device)) == []
    assert len(kinds) > 1
    if name == "qwen3_moe":
        assert ("packed" in expert_kinds) == takes_packed
    with pytest.raises(transfuse.OutOfMemoryError, match="are missing"):
        load(path, name, device, quantization_config=transfuse.TransfuseConfig(layout="auto", memory="1GB"))


@pytest.mark.parametrize("layout", ["plain", "packed"])
def test_codecs_that_a_layout_does_not_take(
    tmp_path: Path, checkpoints: Checkpoints, layout: str, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Such weights lie coded, and a warning names them."""
    transfuse.compress(checkpoints.source("llama"), tmp_path / "trf", bits=5)
    model, warnings = load_with_warnings(tmp_path / "trf", layout, device, caplog)
    assert {module.layout for module in model.modules() if isinstance(module, TransfuseLinear)} == {"coded"}
    assert count_different(model, load(tmp_path / "trf", device=device)) == []
    (warning,) = warnings
    assert "lm_head.weight, model.layers.0.mlp.down_proj.weight, " in warning
    assert f"9 more, since the layout '{layout}' does not take the codec int" in warning
    with pytest.raises(transfuse.UnsupportedError, match="'woven' is not known"):
        transfuse.TransfuseConfig(layout="woven")


def test_weights_that_cannot_be_packed(
    tmp_path: Path, checkpoints: Checkpoints, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They lie coded, beside others that lie packed."""
    source = load(checkpoints.source("llama"))
    names = [f"model.layers.0.self_attn.{name}_proj.weight" for name in "qk"]
    for name, kind in zip(names, UNPACKABLE):
        parameter = source.get_parameter(name)
        parameter.data = make_unpackable(kind, *parameter.shape)
    source.save_pretrained(tmp_path / "source")
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    model, warnings = load_with_warnings(tmp_path / "trf", "packed", device, caplog)
    layouts = {f"{path}.weight": m.layout for path, m in model.named_modules() if isinstance(m, TransfuseLinear)}
    assert {name for name, layout in layouts.items() if layout == "coded"} == set(names) and len(layouts) == 15
    (warning,) = warnings
    assert all(name in warning for name in names) and all(reason in warning for reason in UNPACKABLE.values())
    assert "safetensors" not in warning and count_different(model, source.to(device)) == []
    model.save_pretrained(tmp_path / "saved")
    transfuse.verify(tmp_path / "saved", against=tmp_path / "source")


@pytest.mark.parametrize("reason", ["wide", "activation"])
def test_experts_that_cannot_be_packed(
    tmp_path: Path, checkpoints: Checkpoints, reason: str, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Experts of a module lie coded if those of one tensor cannot be packed, or none of them could run."""

    source = load(checkpoints.source("mixtral"), "mixtral")
    if reason == "wide":
        down = source.model.layers[1].mlp.experts.down_proj
        down.data[2] = make_unpackable("wide", *down.shape[1:])
    else:
        source.config.hidden_act = "relu"
    source.save_pretrained(tmp_path / "source")
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    model, warnings = load_with_warnings(tmp_path / "trf", "packed", device, caplog)
    experts = [module for module in model.modules() if isinstance(module, TransfuseExperts)]
    has_kernels = device == "cpu" or torch.cuda.get_device_capability() == (9, 0)
    assert [each.layout for each in experts] == ["packed" if reason == "wide" and has_kernels else "coded", "coded"]
    (warning,) = warnings
    assert "model.layers.1.mlp.experts.gate_proj" in warning
    if has_kernels:
        words = {"wide": "expert 2: .*would have to be stored", "activation": "silu and gelu_tanh, and not ReLU"}
        assert re.search(words[reason], warning)
    assert count_different(model, load(tmp_path / "source", "mixtral", device)) == []
    model.save_pretrained(tmp_path / "saved")
    transfuse.verify(tmp_path / "saved", against=tmp_path / "source")
