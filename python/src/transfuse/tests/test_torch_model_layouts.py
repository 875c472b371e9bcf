# SPDX-License-Identifier: Apache-2.0
"""Modules and models whose layers lie plain or packed: copies, state dicts, and changing the layout in place."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import nn

import transfuse
from transfuse.tests.torch_cases import (
    DEVICES,
    UNPACKABLE,
    TiedModel,
    exact,
    layout_bytes,
    make_ids,
    make_model,
    make_unpackable,
    normal,
    same_bits,
)
from transfuse.torch import TransfuseEmbedding, TransfuseLinear, _registry, make_container, set_layout
from transfuse.torch._compress import compress_model
from transfuse.torch._modules import CompressedModule, TransfuseScaledEmbedding, make_embedding
from transfuse.torch._selection import count_bytes

# Of a plain or packed layer; what follows is its weights.
HEAD_BYTES = 256
LAYOUTS = pytest.mark.parametrize("layout", ["plain", "packed"])


def make_linear(dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    linear = nn.Linear(200, 300, dtype=dtype)
    linear.weight.data = normal(300, 200, dtype=dtype)
    linear.bias.data = normal(300, dtype=dtype, seed=1, scale=1.0)
    return linear.requires_grad_(False)


def make_models(layout: str, device: str = "cpu") -> tuple[TiedModel, TiedModel, TiedModel]:
    """Returns a model, and the same coded and in another layout."""
    dense = make_model().to(device)
    coded, laid_out = copy.deepcopy(dense), copy.deepcopy(dense)
    compress_model(coded, embeddings=True)
    compress_model(laid_out, embeddings=True, layout=layout)
    return dense, coded, laid_out


def layouts_of(model: nn.Module) -> list[str]:
    return [module.layout for module in model.modules() if isinstance(module, CompressedModule)]


def same_state(a: nn.Module, b: nn.Module) -> bool:
    states = a.state_dict(), b.state_dict()
    return list(states[0]) == list(states[1]) and all(same_bits(states[0][name], states[1][name]) for name in states[0])


# ---- single modules ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("layout", "dtype"), [("plain", torch.bfloat16), ("plain", torch.float16), ("packed", torch.bfloat16)], ids=str
)
def test_linear(layout: str, dtype: torch.dtype, device: str) -> None:
    linear = make_linear(dtype).to(device)
    laid_out = TransfuseLinear.from_linear(linear, layout=layout)
    coded = TransfuseLinear.from_linear(linear)
    assert (laid_out.layout, coded.layout) == (layout, "coded")
    assert laid_out.weight.numel() == layout_bytes(layout, 300, 200)
    info, coded_info = laid_out.info(), coded.info()
    assert laid_out.weight_dtype == dtype
    if layout == "packed":  # straight from the weights: there was no blob
        assert info.blob_bytes == 0 and (info.rows, info.cols, info.codec) == (300, 200, coded_info.codec)
    else:
        assert info == coded_info
    assert same_bits(laid_out.decode_weight(), linear.weight)
    assert f"layout={layout}, bits={8 * laid_out.weight.numel() / 60000:.2f}" in repr(
        laid_out
    ) and "layout" not in repr(coded)
    x = normal(3, 5, 200, dtype=dtype, seed=2, scale=1.0).to(device)
    want = F.linear(x.double(), linear.weight.double(), linear.bias.double())
    assert (laid_out(x).double() - want).abs().max() <= 2 * (linear(x).double() - want).abs().max()
    with exact():
        assert same_bits(laid_out(x), linear(x))


@LAYOUTS
@pytest.mark.parametrize("device", DEVICES)
def test_embedding(device: str, layout: str) -> None:
    dense = nn.Embedding(130, 72, padding_idx=3, dtype=torch.bfloat16, device=device).requires_grad_(False)
    laid_out = TransfuseEmbedding.from_embedding(dense, layout=layout)
    ids = torch.tensor([[0, 129, 3], [7, 7, 1]], device=device)
    assert laid_out.layout == layout and laid_out.padding_idx == 3 and same_bits(laid_out(ids), dense(ids))
    assert same_bits(laid_out.float()(ids), dense(ids).float())
    scaled = TransfuseScaledEmbedding.with_scale(laid_out, 3.0, True)
    assert scaled.layout == layout and scaled.weight is laid_out.weight
    assert make_embedding(dense, laid_out.weight).layout == layout


@LAYOUTS
def test_what_is_refused(layout: str) -> None:
    linear = make_linear()
    with pytest.raises(transfuse.ArgumentError, match="layout is 'woven'"):
        TransfuseLinear.from_linear(linear, layout="woven")
    with pytest.raises(transfuse.ArgumentError, match="layout is 'woven'"):
        TransfuseLinear(64, 64, layout="woven")
    with pytest.raises(transfuse.UnsupportedError, match="codec int"):
        TransfuseLinear.from_linear(linear, layout=layout, bits=4)
    with pytest.raises(transfuse.UnsupportedError, match="fp8_e5m2"):
        TransfuseLinear.from_linear(make_linear().to(torch.float8_e5m2), layout=layout)
    quantized = TransfuseLinear.from_linear(linear, bits=4)
    with pytest.raises(transfuse.UnsupportedError, match="codec int"):
        set_layout(quantized, layout)
    assert quantized.layout == "coded"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize(
    ("layout", "kind"),
    [("plain", "codec int"), ("packed", "codec int"), *(("packed", kind) for kind in UNPACKABLE)],
)
def test_blobs_that_the_layout_does_not_take(layout: str, kind: str, assign: bool, device: str) -> None:
    """They are loaded, and stay coded; a pickle that becomes so on another device would be, too."""
    refused = make_linear()
    if kind in UNPACKABLE:
        refused.weight.data = make_unpackable(kind, 300, 200)
        loaded = TransfuseLinear.from_linear(refused)
    else:
        loaded = TransfuseLinear.from_linear(refused, bits=4)
    laid_out = TransfuseLinear.from_linear(make_linear().to(device), layout=layout)
    with pytest.warns(UserWarning, match=f"a TransfuseLinear of 300 x 200 stays coded, .*{UNPACKABLE.get(kind, kind)}"):
        laid_out.load_state_dict(loaded.to(device).state_dict(), assign=assign)
    assert laid_out.layout == "coded" and same_bits(laid_out.decode_weight(), loaded.decode_weight())
    state = {**loaded.__getstate__(), "_layout": layout}
    restored = TransfuseLinear.__new__(TransfuseLinear)
    with pytest.warns(UserWarning, match="stays coded"):
        restored.__setstate__(state)
    assert restored.layout == "coded" and same_bits(restored.weight, loaded.weight)


@LAYOUTS
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
def test_copies(way: str, layout: str) -> None:
    dense, coded, laid_out = make_models(layout)
    if way == "deepcopy":
        copied = copy.deepcopy(laid_out)
    elif way == "pickle":
        data = pickle.dumps(laid_out)
        assert b"TRFL" not in data and len(data) < len(pickle.dumps(dense))
        copied = pickle.loads(data)
    else:
        file = io.BytesIO()
        torch.save(laid_out, file)
        assert b"TRFL" not in file.getvalue()
        file.seek(0)
        copied = torch.load(file, weights_only=False)
    assert set(layouts_of(copied)) == {layout} and copied.lm_head.weight is copied.embed_tokens.weight
    assert copied.up.weight is not laid_out.up.weight and same_bits(copied.up.weight, laid_out.up.weight)
    ids = make_ids(dense, 2, 5)
    assert same_bits(copied(ids), laid_out(ids)) and same_state(copied, coded)


@LAYOUTS
def test_shallow_copies_share_the_layer(layout: str) -> None:
    laid_out = TransfuseLinear.from_linear(make_linear(), layout=layout)
    copied = copy.copy(laid_out)
    assert copied.weight is laid_out.weight and copied.layout == layout


@LAYOUTS
def test_shared_memory(layout: str) -> None:
    laid_out = TransfuseLinear.from_linear(make_linear(), layout=layout)
    x = normal(3, 200, scale=1.0)
    y = laid_out(x)
    laid_out.share_memory()
    assert laid_out.layout == layout and same_bits(laid_out(x), y) and laid_out.weight.is_shared()


@LAYOUTS
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_pickles_of_a_gpu_come_back_to_it(layout: str) -> None:
    laid_out = TransfuseLinear.from_linear(make_linear().cuda(), layout=layout)
    copied = pickle.loads(pickle.dumps(laid_out))
    assert copied.weight.is_cuda and copied.layout == layout
    assert same_bits(copied.weight[HEAD_BYTES:], laid_out.weight[HEAD_BYTES:])  # a head says what blob there was
    laid_out.load_state_dict(laid_out.state_dict(), assign=True)
    assert laid_out.weight.is_cuda and same_bits(copied.weight, laid_out.weight)
    moved = laid_out.cpu()
    assert moved.layout == layout and same_bits(moved.decode_weight().cuda(), copied.decode_weight())


@LAYOUTS
def test_casts_and_devices(layout: str) -> None:
    laid_out = TransfuseLinear.from_linear(make_linear(), layout=layout)
    buffer = laid_out.weight.data.clone()
    assert same_bits(laid_out.half().weight, buffer) and laid_out.bias.dtype == torch.float16
    x = normal(3, 200, dtype=torch.float16, scale=1.0)
    assert same_bits(laid_out(x), F.linear(x, laid_out.decode_weight().half(), laid_out.bias))
    with pytest.raises(RuntimeError, match="cannot be trained"):
        laid_out.requires_grad_()
    meta = laid_out.to("meta")
    assert meta.layout == layout and meta.state_dict()["weight"].is_meta


# ---- state dicts ----


@LAYOUTS
@pytest.mark.parametrize("device", DEVICES)
def test_state_dicts_have_blobs(device: str, layout: str) -> None:
    dense, coded, laid_out = make_models(layout, device)
    assert same_state(coded, laid_out)
    state = laid_out.state_dict()
    assert state["lm_head.weight"].data_ptr() == state["embed_tokens.weight"].data_ptr()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded["lm_head.weight"].data_ptr() == loaded["embed_tokens.weight"].data_ptr()
    ids = make_ids(dense, 2, 5).to(device)
    for other, assign in [(layout, False), (layout, True), ("coded", False), ("coded", True)]:
        fresh = make_model(seed=1).to(device)
        compress_model(fresh, embeddings=True, layout=other)
        fresh.load_state_dict({name: tensor.to(device) for name, tensor in loaded.items()}, assign=assign)
        assert set(layouts_of(fresh)) == {other} and same_state(fresh, coded)
        assert same_bits(fresh(ids), (coded if other == "coded" else laid_out)(ids))


@LAYOUTS
def test_assigning_keeps_shared_memory(layout: str) -> None:
    _, _, laid_out = make_models(layout)
    laid_out.load_state_dict(laid_out.state_dict(), assign=True)
    assert laid_out.lm_head.weight.data_ptr() == laid_out.embed_tokens.weight.data_ptr()


@LAYOUTS
def test_state_dict_for_a_module_that_waits(layout: str) -> None:
    linear = make_linear()
    state = TransfuseLinear.from_linear(linear).state_dict()
    for device, assign in (("meta", True), ("cpu", False)):
        waiting = TransfuseLinear(200, 300, device=device, dtype=torch.bfloat16, layout=layout)
        assert waiting.layout == layout and "to be loaded" in repr(waiting)
        waiting.load_state_dict(state, assign=assign)
        assert waiting.layout == layout and same_bits(waiting.decode_weight(), linear.weight)


@LAYOUTS
def test_a_parameter_that_is_set_brings_its_layout(layout: str) -> None:
    linear = make_linear()
    coded, laid_out = (TransfuseLinear.from_linear(linear, layout=each) for each in ("coded", layout))
    coded.weight = laid_out.weight
    assert coded.layout == layout and same_bits(coded.decode_weight(), linear.weight)
    made = TransfuseLinear.from_buffer(laid_out.weight.data.clone(), 300, 200, torch.bfloat16, linear.bias)
    assert made.layout == layout


# ---- models ----


@LAYOUTS
def test_compress_model(layout: str) -> None:
    dense, coded, laid_out = make_models(layout)
    model = make_model()
    report = compress_model(model, embeddings=True, layout=layout)
    assert {weight.layout for weight in report.compressed.values()} == {layout}
    for weight in report.compressed.values():
        assert weight.compressed_bytes == layout_bytes(layout, *weight.shape)
    assert report.compressed_bytes + report.left_bytes == count_bytes(model) == count_bytes(laid_out)
    ids = make_ids(dense, 3, 6)
    with exact():
        assert same_bits(model(ids), dense(ids)) and same_bits(coded(ids), dense(ids))


def make_mixed(device: str) -> tuple[Any, set[str]]:
    """Returns a model of layers of all sorts, on a device, and which of them cannot lie packed."""
    layers = {"bf16": make_linear(), "f16": make_linear(torch.float16), "fp8": make_linear().to(torch.float8_e5m2)}
    for kind in UNPACKABLE:
        layers[kind] = make_linear()
        layers[kind].weight.data = make_unpackable(kind, 300, 200)
    return nn.ModuleDict(layers).to(device), {f"{name}.weight" for name in layers if name != "bf16"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", ["compress_model", "set_layout"])
def test_what_cannot_lie_packed_stays_coded(way: str, device: str) -> None:
    """One warning names all of it, by reasons; what is plain by then stays plain."""
    model, refused = make_mixed(device)
    dense = {name: layer.weight.detach().clone() for name, layer in model.items()}
    if way == "set_layout":
        compress_model(model)
    with pytest.warns(UserWarning, match="weights that do not become packed") as caught:
        if way == "set_layout":
            assert set_layout(model, "packed").keys() == refused
        else:
            report = compress_model(model, layout="packed")
            assert {name for name, weight in report.compressed.items() if weight.layout == "coded"} == refused
    (message,) = [str(warning.message) for warning in caught if warning.category is UserWarning]
    for words in ("f16.weight, since the layout 'packed' does not take the codec fp16", *UNPACKABLE.values()):
        assert words in message
    assert all(name in message for name in refused) and "bf16.weight" not in message
    assert {f"{name}.weight" for name, layer in model.items() if layer.layout == "coded"} == refused
    assert all(same_bits(layer.decode_weight(), dense[name]) for name, layer in model.items())
    with pytest.warns(UserWarning, match="do not become plain.*: fp8.weight, since .* fp8_e5m2"):
        assert set_layout(model, "plain").keys() == {"fp8.weight"}
    with pytest.warns(UserWarning, match="do not become packed"):
        assert set_layout(model, "packed").keys() == refused
    assert {name: layer.layout for name, layer in model.items()} == {
        "bf16": "packed", "f16": "plain", "fp8": "coded", "wide": "plain", "inexact": "plain",
    }  # fmt: skip
    assert all(same_bits(layer.decode_weight(), dense[name]) for name, layer in model.items())


def test_warnings_do_not_grow_without_end() -> None:
    model = nn.ModuleList(make_linear() for _ in range(9))
    with pytest.warns(UserWarning, match=r"0\.weight, 1\.weight, .* 5\.weight, 3 more, since .*codec int"):
        compress_model(model, bits=5, layout="packed")


@pytest.mark.parametrize("device", DEVICES)
def test_memory_while_models_are_packed(device: str) -> None:
    """What a layer takes is what its storage has, without the room that it had while it was packed."""
    model: Any = nn.ModuleList(make_linear() for _ in range(3)).to(device)
    report = compress_model(model, layout="packed")
    stored = [layer.weight.untyped_storage().nbytes() for layer in model]
    assert stored == [layout_bytes("packed", 300, 200)] * 3 and report.compressed_bytes == sum(stored)


@LAYOUTS
@pytest.mark.parametrize("device", DEVICES)
def test_set_layout(device: str, layout: str) -> None:
    dense, coded, laid_out = make_models(layout, device)
    model = copy.deepcopy(coded)
    parameter, ids = model.lm_head.weight, make_ids(dense, 2, 5).to(device)
    seen: list[tuple[str, int, int]] = []
    assert set_layout(model, layout, progress=lambda *about: seen.append(about)) == {}
    assert model.lm_head.weight is parameter and model.embed_tokens.weight is parameter
    assert set(layouts_of(model)) == {layout} and count_bytes(model) == count_bytes(laid_out)
    assert same_bits(model(ids), laid_out(ids)) and same_state(model, coded)
    sizes = [coded.embed_tokens.weight.numel(), coded.up.weight.numel(), coded.down.weight.numel()]
    total = sum(sizes)
    assert seen == [
        ("embed_tokens.weight", 0, total),
        ("up.weight", sizes[0], total),
        ("down.weight", sizes[0] + sizes[1], total),
        ("down.weight", total, total),
    ]
    assert set_layout(model.up, "coded") == {} and model.up.layout == "coded" and model.down.layout == layout
    set_layout(model, "coded")
    assert same_state(model, coded) and same_bits(model(ids), coded(ids))
    assert model.lm_head.weight is parameter
    waiting = TransfuseLinear(200, 300, dtype=torch.bfloat16)
    set_layout(waiting, layout)
    assert waiting.layout == layout
    with pytest.raises(transfuse.ArgumentError, match="layout is 'woven'"):
        set_layout(model, "woven")


@LAYOUTS
def test_compiled_models_are_compiled_anew(layout: str) -> None:
    """A graph of inductor's asserts the sizes of its parameters."""
    from torch._dynamo.testing import CompileCounter

    linear = TransfuseLinear.from_linear(make_linear())
    x, counter = normal(3, 200, scale=1.0), CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(linear, backend=counter, fullgraph=True)
    for calls, each in enumerate(("coded", layout), start=1):
        set_layout(linear, each)
        assert same_bits(compiled(x), linear(x)) and counter.frame_count == calls


@LAYOUTS
def test_old_layers_go(layout: str) -> None:
    _, coded, _ = make_models(layout)
    gc.collect()
    before = _registry.count_layers()
    for each in (layout, "coded"):
        set_layout(coded, each)
        gc.collect()
        assert _registry.count_layers() == before


@LAYOUTS
def test_cancelling(layout: str) -> None:
    dense, coded, laid_out = make_models(layout)
    with pytest.raises(transfuse.CancelledError, match=r"cancelled before down\.weight"):
        set_layout(coded, layout, progress=lambda name, done, total: name == "down.weight")
    assert (coded.up.layout, coded.lm_head.layout, coded.down.layout) == (layout, layout, "coded")
    ids = make_ids(dense, 2, 5)
    with exact():
        assert same_bits(coded(ids), dense(ids))


def test_experts_do_not_lie_plain() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.mixtral import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    from transfuse.torch import TransfuseExperts, container_buffers
    from transfuse.torch._layouts import convert_layer

    config = MixtralConfig(hidden_size=64, intermediate_size=96, num_local_experts=3)
    config._experts_implementation = "eager"
    experts: Any = MixtralExperts(config).bfloat16()
    for weight in experts.parameters():
        weight.data = normal(*weight.shape)
    model = nn.ModuleDict({"experts": experts, "linear": make_linear()})
    with pytest.warns(UserWarning, match="experts.gate_up_proj, experts.down_proj, since experts lie coded or packed"):
        report = compress_model(model, layout="plain")
    assert isinstance(experts, TransfuseExperts) and layouts_of(model) == ["plain"]
    assert {name: weight.layout for name, weight in report.compressed.items()} == {
        "experts.gate_up_proj": "coded",
        "experts.down_proj": "coded",
        "linear.weight": "plain",
    }
    names = {"experts.gate_proj", "experts.up_proj", "experts.down_proj"}
    with pytest.warns(UserWarning, match="experts lie coded, packed or packed8"):
        assert set_layout(model, "plain").keys() == names
    with pytest.raises(transfuse.UnsupportedError, match="experts lie coded, packed or packed8"):
        set_layout(experts, "plain")
    for layout in ("plain", "packed"):  # the other containers are coded
        buffers = [convert_layer(blob.clone(), layout) for blob in container_buffers(experts.down_proj)]
        with pytest.raises(transfuse.UnsupportedError, match=f"experts lie {layout}, and not coded"):
            experts.down_proj = nn.Parameter(make_container(buffers), requires_grad=False)


@LAYOUTS
def test_adapters(layout: str) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    dense, _, laid_out = make_models(layout)
    ids = make_ids(dense, 2, 5)
    outputs, gradients = [], []
    for model in (dense, laid_out):
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
