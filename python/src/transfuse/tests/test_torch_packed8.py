# SPDX-License-Identifier: Apache-2.0
"""FP8 weights that lie packed: layers, modules, state dicts, and models of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import Tensor, nn

import transfuse
from transfuse.tests.conftest import was_fp8_bf16
from transfuse.tests.torch_cases import DEVICES, exact, normal, same_bits
from transfuse.torch import TransfuseLinear, _registry, set_layout
from transfuse.torch._encode import encode
from transfuse.torch._layouts import convert_layer, encode_again
from transfuse.torch._modules import CompressedModule
from transfuse.torch._ops import decode

HEAD_BYTES, LINE_BYTES, TILE_BYTES = 256, 128, 2048


def make_weight(rows: int, cols: int, seed: int = 3) -> Tensor:
    """Returns BF16 weights that are FP8 codes times a scale for each block."""
    bits = was_fp8_bf16(np.random.default_rng(seed), rows, cols)
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def packed8_bytes(rows: int, cols: int) -> int:
    bands, tiles = -(-rows // 64), -(-cols // 32)
    lines = HEAD_BYTES + bands * -(-tiles // 32) * LINE_BYTES
    return -(-lines // 256) * 256 + bands * tiles * TILE_BYTES


@pytest.mark.parametrize("device", DEVICES)
def test_layers(device: str) -> None:
    weight = make_weight(300, 270).to(device)
    blob = encode(weight, codec="fp8_e4m3").to(device)
    for asked in ("packed", "packed8"):
        layer = convert_layer(blob, asked)
        assert _registry.layer_layout(layer) == "packed8"
        assert layer.numel() == layer.untyped_storage().nbytes() == packed8_bytes(300, 270)
        assert same_bits(decode(layer, 300, 270, torch.bfloat16), weight)
        assert convert_layer(layer, "packed") is layer
        assert same_bits(decode(convert_layer(layer, "plain"), 300, 270, torch.bfloat16), weight)
        assert torch.equal(encode_again(layer).cpu(), blob.cpu())
    copied = layer.clone()  # adopted by its head
    assert _registry.layer_layout(copied) == "packed8"
    assert same_bits(decode(copied, 300, 270, torch.bfloat16), weight)
    with pytest.raises(transfuse.UnsupportedError, match="takes FP8"):
        convert_layer(encode(normal(300, 270)).to(device), "packed8")


@pytest.mark.parametrize("device", DEVICES)
def test_fp8_without_scales(device: str) -> None:
    codes = (torch.arange(300 * 270) * 37 % 127).to(torch.uint8).view(torch.float8_e4m3fn).reshape(300, 270).to(device)
    blob = encode(codes).to(device)
    layer = convert_layer(blob, "packed")
    assert _registry.layer_layout(layer) == "packed8" and _registry.layer_info(layer).dtype == "F8_E4M3"
    assert torch.equal(decode(layer, 300, 270, torch.float8_e4m3fn).view(torch.uint8), codes.view(torch.uint8))
    assert same_bits(decode(layer, 300, 270, torch.bfloat16), codes.to(torch.bfloat16))
    assert torch.equal(encode_again(layer).cpu(), blob.cpu())


def make_linear(weight: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.bfloat16, device=weight.device)
    linear.weight.data = weight
    return linear.requires_grad_(False)


@pytest.mark.parametrize("device", DEVICES)
def test_modules(device: str) -> None:
    """The module says how its weights lie, and its state dict is that of a coded one."""
    linear = make_linear(make_weight(300, 270).to(device))
    coded, packed = (TransfuseLinear.from_linear(linear, codec="fp8_e4m3") for _ in range(2))
    model = nn.Sequential(packed)
    assert set_layout(model, "packed") == {} and packed.layout == "packed8"
    assert set_layout(model, "packed8") == {} and packed.layout == "packed8"
    assert "layout=packed8" in repr(packed)
    x = normal(4, 270, seed=5, scale=1.0).to(device)
    with exact():
        assert same_bits(packed(x), linear(x))
    torch.testing.assert_close(packed(x).float(), linear(x).float(), rtol=2e-2, atol=1e-3)
    state = packed.state_dict()
    assert torch.equal(state["weight"].cpu(), coded.state_dict()["weight"].cpu())
    fresh = TransfuseLinear.from_linear(make_linear(make_weight(300, 270, seed=4).to(device)), codec="fp8_e4m3")
    set_layout(nn.Sequential(fresh), "packed")
    fresh.load_state_dict(state)
    assert fresh.layout == "packed8" and same_bits(fresh.decode_weight(), linear.weight)
    other = make_linear(normal(300, 270).to(device))  # no FP8
    fresh.load_state_dict(TransfuseLinear.from_linear(other).state_dict())
    assert fresh.layout == "packed" and same_bits(fresh.decode_weight(), other.weight)


def test_a_layout_that_not_all_weights_take() -> None:
    model = nn.Sequential(
        TransfuseLinear.from_linear(make_linear(make_weight(300, 270)), codec="fp8_e4m3"),
        TransfuseLinear.from_linear(make_linear(normal(300, 300))),
    )
    with pytest.warns(UserWarning, match="do not become packed8, but stay as they are: 1.weight, since .* takes FP8"):
        set_layout(model, "packed8")
    assert [layer.layout for layer in model] == ["packed8", "coded"]


def test_a_model_that_was_fp8(tmp_path: Path) -> None:
    """transformers: what "packed" gives is packed8 where weights were FP8, and what is saved is the same checkpoint."""
    transformers = pytest.importorskip("transformers", minversion="5.17", reason="transformers 5.17 is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=256, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(0)
    source = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    for number, (name, parameter) in enumerate(source.named_parameters()):
        if name.endswith("_proj.weight"):
            rows, cols = parameter.shape
            parameter.data = make_weight(rows, cols, number)
    source.save_pretrained(tmp_path / "source")
    report = transfuse.compress(tmp_path / "source", tmp_path / "trf", codec="fp8_e4m3")
    assert report.scaled_fp8_tensors == {"scale-block:128": 14}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "trf", quantization_config=transfuse.TransfuseConfig(layout="packed"), dtype="auto"
    )
    layouts = {name: each.layout for name, each in model.named_modules() if isinstance(each, CompressedModule)}
    assert {layout for name, layout in layouts.items() if name.endswith("_proj")} == {"packed8"}
    assert layouts["lm_head"] == "packed"
    ids = torch.arange(2 * 7).reshape(2, 7)
    source = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "source", dtype="auto")
    with torch.no_grad(), exact():
        assert torch.equal(model(ids).logits, source(ids).logits)
    model.save_pretrained(tmp_path / "saved")
    transfuse.verify(tmp_path / "saved", against=tmp_path / "source")
    saved = {tensor.name: tensor.bytes for tensor in transfuse.info(tmp_path / "saved").tensors}
    assert saved == {tensor.name: tensor.bytes for tensor in transfuse.info(tmp_path / "trf").tensors}
