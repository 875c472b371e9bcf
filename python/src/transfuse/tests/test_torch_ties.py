# SPDX-License-Identifier: Apache-2.0
"""Modules that share a weight: what one of them changes, and what pickles and state dicts have of it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import transfuse.torch as tt
from transfuse.tests.torch_cases import DEVICES, normal, same_bits
from transfuse.torch import TransfuseEmbedding, TransfuseLinear, compress_model
from transfuse.torch._modules import CompressedModule

SIZE = 256
LAYOUTS = pytest.mark.parametrize("layout", ["plain", "packed"])


class Tied(nn.Module):
    """Linear layers, the last of which shares its weight with an embedding."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIZE, SIZE)
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE, bias=False) for _ in range(count))
        self.to(torch.bfloat16).requires_grad_(False)
        for seed, layer in enumerate(self.layers):
            layer.get_parameter("weight").data = normal(SIZE, SIZE, seed=seed)
        self.embed.weight = self.layers[-1].get_parameter("weight")

    def weights(self) -> list[Tensor]:
        return [module.weight for module in (self.embed, *self.layers)]


def make_tied(layout: str = "coded", count: int = 2, device: str = "cpu") -> Tied:
    model = Tied(count).to(device)
    compress_model(model, embeddings=True, layout=layout)
    return model


def check_weights(model: nn.Module, layout: str, count: int) -> None:
    assert isinstance(model, Tied)
    for module, weight in zip((model.embed, *model.layers), Tied(count).weights(), strict=True):
        assert isinstance(module, CompressedModule) and module.layout == tt.layer_layout(module.weight) == layout
        assert same_bits(module.decode_weight().cpu(), weight)
    assert model.embed.weight is model.layers[-1].weight and tt.verify_model(model) == count


# ---- what one of two modules changes ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("one", ["embed", "layers.1"])
@LAYOUTS
def test_the_layout_of_one_is_that_of_all(layout: str, one: str, device: str) -> None:
    model, coded = make_tied(device=device), make_tied(device=device)
    tt.set_layout(model.get_submodule(one), layout)
    tied = (model.embed, model.layers[1])
    assert [module.layout for module in tied] == [layout] * 2
    assert all(f"layout={layout}" in repr(module) for module in tied)
    state, want = model.state_dict(), coded.state_dict()
    assert all(same_bits(state[name].cpu(), want[name].cpu()) for name in want)
    assert state["embed.weight"].data_ptr() == state["layers.1.weight"].data_ptr()
    tt.set_layout(model, "coded")
    check_weights(model, "coded", 2)


@pytest.mark.parametrize("one", ["embed", "layers.1"])
@pytest.mark.parametrize("way", ["pickle", "save", "copy", "deepcopy"])
@LAYOUTS
def test_copies_after_one_was_changed(layout: str, way: str, one: str) -> None:
    model = make_tied()
    tt.set_layout(model.layers[0], layout)
    tt.set_layout(model.get_submodule(one), layout)
    copied = model
    if way == "pickle":
        copied = pickle.loads(pickle.dumps(model))
    elif way == "save":
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        copied = torch.load(file, weights_only=False)
    elif way == "copy":
        assert [copy.copy(module).layout for module in (model.embed, model.layers[1])] == [layout] * 2
    else:
        copied = copy.deepcopy(model)
    check_weights(copied, layout, 2)
    check_weights(model, layout, 2)


@LAYOUTS
def test_other_weights_of_one_are_those_of_all(layout: str) -> None:
    """The dtype changes, too, and so does the layout if it does not take the new weights."""
    model, half = make_tied(layout), normal(SIZE, SIZE, seed=7, dtype=torch.float16)
    head, embed = model.layers[1], model.embed
    if layout == "packed":
        with pytest.warns(UserWarning, match="stays coded"):
            head.load_state_dict({"weight": tt.encode(half)})
    else:
        head.load_state_dict({"weight": tt.encode(half)})
    assert isinstance(embed, TransfuseEmbedding) and embed.weight is head.weight
    assert embed.layout == head.layout == ("coded" if layout == "packed" else layout)
    assert embed.weight_dtype == embed.compute_dtype == torch.float16 and same_bits(embed.decode_weight(), half)
    assert same_bits(embed.state_dict()["weight"], tt.encode(half))


def test_nothing_more_is_traced() -> None:
    model = make_tied()
    tt.set_layout(model.layers[1], "plain")
    embed, graphs = model.embed, []
    assert isinstance(embed, TransfuseEmbedding) and embed.weight_dtype == torch.bfloat16

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    decoded = torch.compile(lambda x: embed.decode_weight() + x, backend=keep, fullgraph=True)(torch.zeros(1))
    assert torch.equal(decoded, normal(SIZE, SIZE, seed=1).float())
    (targets,) = graphs
    assert [each for each in targets if isinstance(each, torch._ops.OpOverload)] == [torch.ops.transfuse.decode.default]


def test_pickles_that_have_the_dtype_under_its_earlier_name() -> None:
    layer = TransfuseLinear.from_linear(nn.Linear(SIZE, SIZE, dtype=torch.bfloat16))
    state = layer.__getstate__()
    state["weight_dtype"] = state.pop("_weight_dtype")
    restored = TransfuseLinear.__new__(TransfuseLinear)
    restored.__setstate__(state)
    assert restored.weight_dtype == torch.bfloat16 and "weight_dtype" not in restored.__dict__


# ---- pickles that share memory ----


@LAYOUTS
def test_pickles_of_multiprocessing(layout: str) -> None:
    """They move blobs to shared memory one by one, so that the next blob may lie where the last one was."""
    for _ in range(4):
        model = make_tied(layout, 8)
        check_weights(pickle.loads(ForkingPickler.dumps(model)), layout, 8)
        check_weights(model, layout, 8)


def _check_in_child(_: int, models: dict[str, nn.Module], done: str) -> None:
    torch.set_num_threads(1)
    for layout, model in models.items():
        check_weights(model, layout, 3)
    Path(done).touch()


def test_processes_that_are_started_with_models(tmp_path: Path) -> None:
    models = {layout: make_tied(layout, 3) for layout in ("coded", "plain", "packed")}
    spawn(_check_in_child, (models, str(tmp_path / "done")))
    assert (tmp_path / "done").exists()
    for layout, model in models.items():
        check_weights(model, layout, 3)


# ---- what was made of a layer, and changed since ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", ["tensor", "data", "inference"])
@LAYOUTS
def test_state_dicts_that_are_changed_in_place(layout: str, way: str, device: str) -> None:
    model, want = make_tied(layout, device=device), make_tied().state_dict()
    with torch.inference_mode(way == "inference"):
        state = model.state_dict()
        for blob in state.values():
            (blob.data if way == "data" else blob)[blob.numel() // 2 :].zero_()
        again = model.state_dict()
    assert all(same_bits(again[name], want[name]) for name in want)
    assert again["embed.weight"].data_ptr() == again["layers.1.weight"].data_ptr()
    with torch.inference_mode(way == "inference"):
        for blob in again.values():
            blob.zero_()
    check_weights(pickle.loads(pickle.dumps(model)), layout, 2)


@pytest.mark.parametrize("device", DEVICES)
@LAYOUTS
def test_results_that_were_forgotten_are_made_again(layout: str, device: str) -> None:
    weight = normal(SIZE, SIZE)
    source, other = (tt.encode(each).to(device) for each in (weight, normal(SIZE, SIZE, seed=5)))
    made, others = tt.convert_layer(source, layout), tt.convert_layer(other, layout)
    assert tt.convert_layer(source, layout).data_ptr() == made.data_ptr() and made.numel() == others.numel()
    tt.forget(made)
    made.copy_(others)
    tt.adopt(made)
    again = tt.convert_layer(source, layout)
    assert same_bits(tt.decode(again, SIZE, SIZE, torch.bfloat16).cpu(), weight)
    assert tt.convert_layer(source, layout).data_ptr() == again.data_ptr()
