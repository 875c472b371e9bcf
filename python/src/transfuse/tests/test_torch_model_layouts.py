# SPDX-License-Identifier: Apache-2.0
"""Modules and models whose layers lie plain: copies, state dicts, and changing the layout in place."""

from __future__ import annotations

import copy
import gc
import io
import math
import pickle
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import nn

import transfuse
from transfuse.tests.torch_cases import DEVICES, TiedModel, exact, make_ids, make_model, normal, same_bits
from transfuse.torch import TransfuseEmbedding, TransfuseLinear, _registry, pack_experts, set_layout
from transfuse.torch._compress import compress_model
from transfuse.torch._modules import CompressedModule, TransfuseScaledEmbedding, make_embedding
from transfuse.torch._selection import count_bytes

HEAD_BYTES = 256


def make_linear(dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    linear = nn.Linear(200, 300, dtype=dtype)
    linear.weight.data = normal(300, 200, dtype=dtype)
    linear.bias.data = normal(300, dtype=dtype, seed=1, scale=1.0)
    return linear.requires_grad_(False)


def make_models(device: str = "cpu") -> tuple[TiedModel, TiedModel, TiedModel]:
    """Returns a model, and the same coded and plain."""
    dense = make_model().to(device)
    coded, plain = copy.deepcopy(dense), copy.deepcopy(dense)
    compress_model(coded, embeddings=True)
    compress_model(plain, embeddings=True, layout="plain")
    return dense, coded, plain


def layouts_of(model: nn.Module) -> list[str]:
    return [module.layout for module in model.modules() if isinstance(module, CompressedModule)]


def same_state(a: nn.Module, b: nn.Module) -> bool:
    states = a.state_dict(), b.state_dict()
    return list(states[0]) == list(states[1]) and all(same_bits(states[0][name], states[1][name]) for name in states[0])


# ---- single modules ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_linear(dtype: torch.dtype, device: str) -> None:
    linear = make_linear(dtype).to(device)
    plain = TransfuseLinear.from_linear(linear, layout="plain")
    coded = TransfuseLinear.from_linear(linear)
    assert (plain.layout, coded.layout) == ("plain", "coded")
    assert plain.weight.numel() == HEAD_BYTES + linear.weight.numel() * 2
    assert plain.info() == coded.info() and plain.weight_dtype == dtype
    assert same_bits(plain.decode_weight(), linear.weight)
    assert "layout=plain, bits=16.03" in repr(plain) and "layout" not in repr(coded)
    x = normal(3, 5, 200, dtype=dtype, seed=2, scale=1.0).to(device)
    want = F.linear(x.double(), linear.weight.double(), linear.bias.double())
    assert (plain(x).double() - want).abs().max() <= 2 * (linear(x).double() - want).abs().max()
    with exact():
        assert same_bits(plain(x), linear(x))


@pytest.mark.parametrize("device", DEVICES)
def test_embedding(device: str) -> None:
    dense = nn.Embedding(130, 72, padding_idx=3, dtype=torch.bfloat16, device=device).requires_grad_(False)
    plain = TransfuseEmbedding.from_embedding(dense, layout="plain")
    ids = torch.tensor([[0, 129, 3], [7, 7, 1]], device=device)
    assert plain.layout == "plain" and plain.padding_idx == 3 and same_bits(plain(ids), dense(ids))
    assert same_bits(plain.float()(ids), dense(ids).float())
    scaled = TransfuseScaledEmbedding.with_scale(plain, 3.0, True)
    assert scaled.layout == "plain" and scaled.weight is plain.weight
    assert make_embedding(dense, plain.weight).layout == "plain"


def test_what_is_refused() -> None:
    linear = make_linear()
    with pytest.raises(transfuse.ArgumentError, match="layout is 'woven'"):
        TransfuseLinear.from_linear(linear, layout="woven")
    with pytest.raises(transfuse.ArgumentError, match="layout is 'woven'"):
        TransfuseLinear(64, 64, layout="woven")
    with pytest.raises(transfuse.UnsupportedError, match="codec int"):
        TransfuseLinear.from_linear(linear, layout="plain", bits=4)
    with pytest.raises(transfuse.UnsupportedError, match="fp8_e4m3"):
        TransfuseLinear.from_linear(make_linear().to(torch.float8_e4m3fn), layout="plain")
    # A blob of a codec that it does not take, for a module that waits for weights.
    waiting = TransfuseLinear(200, 300, dtype=torch.bfloat16, layout="plain")
    quantized = TransfuseLinear.from_linear(linear, bits=4)
    with pytest.raises(RuntimeError, match="codec int"):
        waiting.load_state_dict(quantized.state_dict())


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
def test_copies(way: str) -> None:
    dense, coded, plain = make_models()
    if way == "deepcopy":
        copied = copy.deepcopy(plain)
    elif way == "pickle":
        data = pickle.dumps(plain)
        assert b"TRFL" not in data and len(data) < len(pickle.dumps(dense))
        copied = pickle.loads(data)
    else:
        file = io.BytesIO()
        torch.save(plain, file)
        assert b"TRFL" not in file.getvalue()
        file.seek(0)
        copied = torch.load(file, weights_only=False)
    assert set(layouts_of(copied)) == {"plain"} and copied.lm_head.weight is copied.embed_tokens.weight
    assert copied.up.weight is not plain.up.weight and same_bits(copied.up.weight, plain.up.weight)
    ids = make_ids(dense, 2, 5)
    assert same_bits(copied(ids), plain(ids)) and same_state(copied, coded)


def test_shallow_copies_share_the_layer() -> None:
    plain = TransfuseLinear.from_linear(make_linear(), layout="plain")
    copied = copy.copy(plain)
    assert copied.weight is plain.weight and copied.layout == "plain"


def test_shared_memory() -> None:
    plain = TransfuseLinear.from_linear(make_linear(), layout="plain")
    x = normal(3, 200, scale=1.0)
    y = plain(x)
    plain.share_memory()
    assert plain.layout == "plain" and same_bits(plain(x), y) and plain.weight.is_shared()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_pickles_of_a_gpu_come_back_to_it() -> None:
    plain = TransfuseLinear.from_linear(make_linear().cuda(), layout="plain")
    copied = pickle.loads(pickle.dumps(plain))
    assert copied.weight.is_cuda and copied.layout == "plain" and same_bits(copied.weight, plain.weight)
    plain.load_state_dict(plain.state_dict(), assign=True)
    assert plain.weight.is_cuda and same_bits(copied.weight, plain.weight)
    moved = plain.cpu()
    assert moved.layout == "plain" and same_bits(moved.decode_weight().cuda(), copied.decode_weight())


def test_casts_and_devices() -> None:
    plain = TransfuseLinear.from_linear(make_linear(), layout="plain")
    buffer = plain.weight.data.clone()
    assert same_bits(plain.half().weight, buffer) and plain.bias.dtype == torch.float16
    x = normal(3, 200, dtype=torch.float16, scale=1.0)
    assert same_bits(plain(x), F.linear(x, plain.decode_weight().half(), plain.bias))
    with pytest.raises(RuntimeError, match="cannot be trained"):
        plain.requires_grad_()
    meta = plain.to("meta")
    assert meta.layout == "plain" and meta.state_dict()["weight"].is_meta


# ---- state dicts ----


@pytest.mark.parametrize("device", DEVICES)
def test_state_dicts_have_blobs(device: str) -> None:
    dense, coded, plain = make_models(device)
    assert same_state(coded, plain)
    state = plain.state_dict()
    assert state["lm_head.weight"].data_ptr() == state["embed_tokens.weight"].data_ptr()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded["lm_head.weight"].data_ptr() == loaded["embed_tokens.weight"].data_ptr()
    ids = make_ids(dense, 2, 5).to(device)
    for layout, assign in [("plain", False), ("plain", True), ("coded", False), ("coded", True)]:
        fresh = make_model(seed=1).to(device)
        compress_model(fresh, embeddings=True, layout=layout)
        fresh.load_state_dict({name: tensor.to(device) for name, tensor in loaded.items()}, assign=assign)
        assert set(layouts_of(fresh)) == {layout} and same_state(fresh, coded)
        assert same_bits(fresh(ids), (plain if layout == "plain" else coded)(ids))


def test_assigning_keeps_shared_memory() -> None:
    _, _, plain = make_models()
    plain.load_state_dict(plain.state_dict(), assign=True)
    assert plain.lm_head.weight.data_ptr() == plain.embed_tokens.weight.data_ptr()


def test_state_dict_for_a_module_that_waits() -> None:
    linear = make_linear()
    state = TransfuseLinear.from_linear(linear).state_dict()
    for device, assign in (("meta", True), ("cpu", False)):
        waiting = TransfuseLinear(200, 300, device=device, dtype=torch.bfloat16, layout="plain")
        assert waiting.layout == "plain" and "to be loaded" in repr(waiting)
        waiting.load_state_dict(state, assign=assign)
        assert waiting.layout == "plain" and same_bits(waiting.decode_weight(), linear.weight)


def test_a_parameter_that_is_set_brings_its_layout() -> None:
    linear = make_linear()
    coded, plain = (TransfuseLinear.from_linear(linear, layout=layout) for layout in ("coded", "plain"))
    coded.weight = plain.weight
    assert coded.layout == "plain" and same_bits(coded.decode_weight(), linear.weight)
    made = TransfuseLinear.from_blob(plain.weight.data.clone(), 300, 200, torch.bfloat16, linear.bias)
    assert made.layout == "plain"


# ---- models ----


def test_compress_model() -> None:
    dense, coded, plain = make_models()
    model = make_model()
    report = compress_model(model, embeddings=True, layout="plain")
    assert {weight.layout for weight in report.compressed.values()} == {"plain"}
    for weight in report.compressed.values():
        assert weight.compressed_bytes == HEAD_BYTES + 2 * math.prod(weight.shape)
    assert report.compressed_bytes + report.left_bytes == count_bytes(model) == count_bytes(plain)
    ids = make_ids(dense, 3, 6)
    with exact():
        assert same_bits(model(ids), dense(ids)) and same_bits(coded(ids), dense(ids))


def test_codecs_are_looked_at_first() -> None:
    model = make_model()
    with pytest.raises(transfuse.UnsupportedError, match=r"\.weight: the layout 'plain' does not take the codec int"):
        compress_model(model, bits=5, layout="plain")
    assert not layouts_of(model)
    mixed = nn.ModuleList([make_linear(), make_linear().to(torch.float8_e4m3fn)])
    compress_model(mixed)
    with pytest.raises(transfuse.UnsupportedError, match=r"1\.weight: .* fp8_e4m3"):
        set_layout(mixed, "plain")
    assert layouts_of(mixed) == ["coded", "coded"]


@pytest.mark.parametrize("device", DEVICES)
def test_set_layout(device: str) -> None:
    dense, coded, plain = make_models(device)
    model = copy.deepcopy(coded)
    parameter, ids = model.lm_head.weight, make_ids(dense, 2, 5).to(device)
    seen: list[tuple[str, int, int]] = []
    assert set_layout(model, "plain", progress=lambda *about: seen.append(about)) == {}
    assert model.lm_head.weight is parameter and model.embed_tokens.weight is parameter
    assert set(layouts_of(model)) == {"plain"} and count_bytes(model) == count_bytes(plain)
    assert same_bits(model(ids), plain(ids)) and same_state(model, coded)
    sizes = [coded.embed_tokens.weight.numel(), coded.up.weight.numel(), coded.down.weight.numel()]
    total = sum(sizes)
    assert seen == [
        ("embed_tokens.weight", 0, total),
        ("up.weight", sizes[0], total),
        ("down.weight", sizes[0] + sizes[1], total),
        ("down.weight", total, total),
    ]
    assert set_layout(model.up, "coded") == {} and model.up.layout == "coded" and model.down.layout == "plain"
    set_layout(model, "coded")
    assert same_state(model, coded) and same_bits(model(ids), coded(ids))
    assert model.lm_head.weight is parameter
    waiting = TransfuseLinear(200, 300, dtype=torch.bfloat16)
    set_layout(waiting, "plain")
    assert waiting.layout == "plain"
    with pytest.raises(transfuse.ArgumentError, match="layout is 'woven'"):
        set_layout(model, "woven")


def test_compiled_models_are_compiled_anew() -> None:
    """A graph of inductor's asserts the sizes of its parameters."""
    from torch._dynamo.testing import CompileCounter

    linear = TransfuseLinear.from_linear(make_linear())
    x, counter = normal(3, 200, scale=1.0), CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(linear, backend=counter, fullgraph=True)
    for calls, layout in enumerate(("coded", "plain"), start=1):
        set_layout(linear, layout)
        assert same_bits(compiled(x), linear(x)) and counter.frame_count == calls


def test_old_layers_go() -> None:
    _, coded, _ = make_models()
    gc.collect()
    before = _registry.count_layers()
    for layout in ("plain", "coded"):
        set_layout(coded, layout)
        gc.collect()
        assert _registry.count_layers() == before


def test_cancelling() -> None:
    dense, coded, plain = make_models()
    with pytest.raises(transfuse.CancelledError, match=r"cancelled before down\.weight"):
        set_layout(coded, "plain", progress=lambda name, done, total: name == "down.weight")
    assert (coded.up.layout, coded.lm_head.layout, coded.down.layout) == ("plain", "plain", "coded")
    ids = make_ids(dense, 2, 5)
    with exact():
        assert same_bits(coded(ids), dense(ids))


def test_plain_experts_are_refused() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.mixtral import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    from transfuse.torch import TransfuseExperts, unpack_experts
    from transfuse.torch._layouts import convert_blob

    config = MixtralConfig(hidden_size=64, intermediate_size=96, num_local_experts=3)
    config._experts_implementation = "eager"
    experts: Any = MixtralExperts(config).bfloat16()
    for weight in experts.parameters():
        weight.data = normal(*weight.shape)
    model = nn.ModuleDict({"experts": experts, "linear": make_linear()})
    report = compress_model(model, layout="plain")
    assert isinstance(experts, TransfuseExperts) and layouts_of(model) == ["plain"]
    assert {name: weight.layout for name, weight in report.compressed.items()} == {
        "experts.gate_up_proj": "coded",
        "experts.down_proj": "coded",
        "linear.weight": "plain",
    }
    assert set_layout(model, "plain").keys() == {"experts.gate_proj", "experts.up_proj", "experts.down_proj"}
    with pytest.raises(transfuse.UnsupportedError, match="experts lie coded"):
        set_layout(experts, "plain")
    blobs = [convert_blob(blob.clone(), "plain") for blob in unpack_experts(experts.down_proj)]
    with pytest.raises(transfuse.UnsupportedError, match="experts lie coded"):
        experts.down_proj = nn.Parameter(pack_experts(blobs), requires_grad=False)


def test_adapters() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    dense, _, plain = make_models()
    ids = make_ids(dense, 2, 5)
    outputs, gradients = [], []
    for model in (dense, plain):
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["up", "down"]))
        for index, (name, parameter) in enumerate(sorted(adapted.named_parameters())):
            if "lora_" in name:
                parameter.data = normal(*parameter.shape, dtype=torch.float32, seed=index).to(parameter.dtype)
        with exact():
            outputs.append(adapted(ids))
            outputs[-1].float().square().sum().backward()
        gradients.append({name: p.grad for name, p in adapted.named_parameters() if p.grad is not None})
    assert same_bits(*outputs) and gradients[0].keys() == gradients[1].keys()
    assert all(same_bits(gradients[0][name], gradients[1][name]) for name in gradients[0])
    with pytest.raises(ValueError, match="cannot be merged"):
        adapted.merge_and_unload()
