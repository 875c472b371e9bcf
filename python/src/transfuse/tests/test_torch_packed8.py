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
from transfuse.torch import (
    TransfuseLinear,
    _encode,
    _registry,
    compress_model,
    join_rows,
    layout_reason,
    pack,
    repack,
    set_layout,
)
from transfuse.torch._encode import encode
from transfuse.torch._layouts import convert_layer, encode_again
from transfuse.torch._modules import CompressedModule
from transfuse.torch._ops import decode

HEAD_BYTES, LINE_BYTES, TILE_BYTES = 256, 128, 2048


def make_weight(rows: int, cols: int, seed: int = 3) -> Tensor:
    """Returns BF16 weights that are FP8 codes times a scale for each block."""
    bits = was_fp8_bf16(np.random.default_rng(seed), rows, cols)
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def make_normal_fp8(rows: int, cols: int, seed: int = 3) -> Tensor:
    """Returns such weights that are normally distributed, which packed BF16 takes, too."""
    codes = normal(rows, cols, seed=seed, scale=60.0).to(torch.float8_e4m3fn).float()
    scales = torch.rand(-(-rows // 128), -(-cols // 128), generator=torch.Generator().manual_seed(seed)) * 1e-4 + 1e-4
    blocks = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :cols]
    return (codes * blocks).to(torch.bfloat16)


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


def has_kernels(device: str) -> bool:
    """Whether dense weights that were FP8 come to lie packed8."""
    return device == "cpu" or torch.cuda.get_device_capability() == (9, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_dense_weights(device: str) -> None:
    """Dense weights that were FP8 are found, packed as FP8, and encoded as FP8 again."""
    weight = make_normal_fp8(300, 270).to(device)
    bf16, layer = pack(weight, packed_bf16=True), pack(weight)
    assert _registry.layer_layout(bf16) == "packed" and same_bits(decode(bf16, 300, 270, torch.bfloat16), weight)
    assert same_bits(decode(layer, 300, 270, torch.bfloat16), weight)
    plain = convert_layer(layer, "plain")
    assert same_bits(decode(plain, 300, 270, torch.bfloat16), weight)
    if not has_kernels(device):
        assert _registry.layer_layout(layer) == "packed"
        return
    assert _registry.layer_layout(layer) == "packed8"
    assert layer.numel() == layer.untyped_storage().nbytes() == packed8_bytes(300, 270)
    assert torch.equal(convert_layer(layer, "coded").cpu(), encode(weight, codec="fp8_e4m3"))
    assert torch.equal(pack(plain[HEAD_BYTES:].view(torch.bfloat16)[: 300 * 270].view(300, 270)), layer)
    other = normal(300, 270).to(device)
    assert _registry.layer_layout(pack(other)) == "packed"


@pytest.mark.parametrize("device", DEVICES)
def test_new_dense_weights(device: str) -> None:
    """Other FP8 weights come to lie where the old ones did; what was no FP8 changes nothing."""
    if not has_kernels(device):
        pytest.skip("this GPU has no products of packed FP8 layers")
    first, second = make_normal_fp8(300, 270).to(device), make_normal_fp8(300, 270, seed=8).to(device)
    layer = pack(first)
    address, x = layer.data_ptr(), normal(4, 270, seed=5, scale=1.0).to(device)
    linear = TransfuseLinear.from_linear(make_linear(first), layout="packed")
    for weight in (second, first):
        for buffer in (layer, linear.weight):
            repack(buffer, weight)
            assert _registry.layer_layout(buffer) == "packed8"
            assert same_bits(decode(buffer, 300, 270, torch.bfloat16), weight)
        assert layer.data_ptr() == address
        torch.testing.assert_close(linear(x).float(), (x @ weight.T).float(), rtol=2e-2, atol=1e-3)
    with pytest.raises(transfuse.UnsupportedError, match="are no codes times scales"):
        repack(layer, normal(300, 270).to(device))
    assert same_bits(decode(layer, 300, 270, torch.bfloat16), first)


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


@pytest.mark.parametrize("device", DEVICES)
def test_modules_of_dense_weights(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of dense weights are packed without an encoder, as FP8 unless the codec bf16 is asked for."""
    due = "packed8" if has_kernels(device) else "packed"
    linear = make_linear(make_normal_fp8(300, 270).to(device))
    model = nn.Sequential(linear, make_linear(normal(64, 300).to(device)))
    x = normal(4, 270, seed=5, scale=1.0).to(device)
    wanted = model(x)
    codec = "fp8_e4m3" if due == "packed8" else "bf16"
    coded = TransfuseLinear.from_linear(linear, codec=codec).state_dict()["weight"].cpu()
    with monkeypatch.context() as without_encoder:
        without_encoder.setattr(_encode, "encode", None)
        assert TransfuseLinear.from_linear(linear, layout="packed", codec="bf16").layout == "packed"
        report = compress_model(model, layout="packed")
    assert report.compressed["0.weight"].layout == due and report.compressed["1.weight"].layout == "packed"
    assert [layer.layout for layer in model] == [due, "packed"]
    with exact():
        assert same_bits(model(x), wanted)
    assert torch.equal(model.state_dict()["0.weight"].cpu(), coded)


def make_row_scaled(rows: int, cols: int) -> Tensor:
    """Returns BF16 weights that are FP8 codes times a scale for each row, which packed8 does not take."""
    codes = (torch.randn(rows, cols, generator=torch.Generator().manual_seed(8)) * 60).to(torch.float8_e4m3fn).float()
    scales = torch.linspace(1.1e-4, 1.9e-4, rows).to(torch.bfloat16).float()
    return (codes * scales[:, None]).to(torch.bfloat16)


@pytest.mark.parametrize("device", DEVICES)
def test_the_reason_for_packed_bf16(device: str) -> None:
    """What was FP8 and lies packed as BF16 says why; nothing else does."""
    weight = make_row_scaled(400, 512).to(device)
    blob = encode(weight, codec="fp8_e4m3").to(device)
    layer = convert_layer(blob, "packed")
    assert _registry.layer_layout(layer) == "packed" and same_bits(decode(layer, 400, 512, torch.bfloat16), weight)
    assert "its scales are those of rows" in layout_reason(layer)
    assert layout_reason(blob) == layout_reason(convert_layer(blob, "plain")) == ""
    assert layout_reason(convert_layer(encode(make_weight(400, 512), codec="fp8_e4m3").to(device), "packed")) == ""
    assert layout_reason(convert_layer(encode(normal(400, 512)).to(device), "packed")) == ""
    module = TransfuseLinear.from_linear(make_linear(weight), codec="fp8_e4m3")
    assert module.layout_reason == ""
    set_layout(nn.Sequential(module), "packed")
    assert module.layout == "packed" and "its scales are those of rows" in module.layout_reason


def test_joined_rows() -> None:
    """Layers whose rows follow each other become one, which has their weights."""
    weights = [make_weight(rows, 384, seed) for seed, rows in enumerate((128, 64, 100))]
    parts = [convert_layer(encode(weight, codec="fp8_e4m3"), "packed8") for weight in weights]
    joined = join_rows(parts)
    assert _registry.layer_layout(joined) == "packed8" and joined.numel() == packed8_bytes(292, 384)
    assert same_bits(decode(joined, 292, 384, torch.bfloat16), torch.cat(weights))
    with pytest.raises(transfuse.UnsupportedError, match="layer 0 has 100 rows"):
        join_rows(parts[::-1])
    with pytest.raises(transfuse.ArgumentError, match="no layers"):
        join_rows([])
    with pytest.raises(transfuse.NotFoundError):
        join_rows([parts[0], torch.zeros(512, dtype=torch.uint8)])


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
