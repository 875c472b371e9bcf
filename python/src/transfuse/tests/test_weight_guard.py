# SPDX-License-Identifier: Apache-2.0
"""What torch would do with the weights of compressed modules: it is refused, with names, or gets matrices."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import transfuse
from transfuse.tests.torch_cases import TiedModel, make_model, normal, same_bits
from transfuse.torch import set_layout
from transfuse.torch._compress import compress_model
from transfuse.torch._modules import TransfuseEmbedding, TransfuseLinear


@pytest.fixture
def model() -> TiedModel:
    model = make_model()
    compress_model(model, embeddings=True)
    return model


def test_training_names_the_layers(model: TiedModel) -> None:
    whole = nn.Sequential(model)
    with pytest.raises(
        RuntimeError, match=r"the weights of .*\bup\b.* are compressed, and cannot be trained.*exclude="
    ):
        whole.requires_grad_()
    assert not any(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(RuntimeError, match="the weights of up are"):
        model.up.requires_grad_(True)
    assert whole.requires_grad_(False) is whole
    dense = nn.Sequential(nn.Linear(3, 4))
    assert dense.requires_grad_(False).requires_grad_() is dense and dense[0].weight.requires_grad


CHANGES: list[Callable[[Any, str], Any]] = [
    lambda module, name: parametrize.register_parametrization(module, name, nn.Identity()),
    lambda module, name: parametrizations.weight_norm(module, name),
    lambda module, name: nn.utils.weight_norm(module, name=name),
    lambda module, name: nn.utils.spectral_norm(module, name),
    lambda module, name: prune.l1_unstructured(module, name, 0.5),
    lambda module, name: prune.random_unstructured(module, name=name, amount=0.5),
]


@pytest.mark.parametrize("change", CHANGES)
def test_parametrizations(model: TiedModel, change: Callable[[Any, str], Any]) -> None:
    before = model.up.weight
    with pytest.raises(transfuse.UnsupportedError, match="is for matrices, and the weight of up"):
        change(model.up, "weight")
    assert model.up.weight is before and type(model.up) is TransfuseLinear
    change(nn.Linear(4, 4), "weight")


@pytest.mark.parametrize("change", [parametrizations.spectral_norm, parametrizations.orthogonal])
def test_parametrizations_of_the_weight(model: TiedModel, change: Callable[[Any], Any]) -> None:
    with pytest.raises(transfuse.UnsupportedError, match="is for matrices, and the weight of up"):
        change(model.up)


def test_biases_may_be_pruned() -> None:
    linear = TransfuseLinear.from_linear(nn.Linear(64, 96, dtype=torch.bfloat16))
    prune.random_unstructured(linear, "bias", 0.5)
    assert int((linear.bias == 0).sum()) >= 48


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("layout", ["coded", "packed"])
def test_uncompressed_models_take_state_dicts(model: TiedModel, layout: str, assign: bool) -> None:
    """Blobs are decoded, those of a file of torch's as well."""
    set_layout(model, layout)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    want = make_model()
    for state in (model.state_dict(), torch.load(file)):
        dense = make_model()
        for parameter in dense.parameters():
            parameter.data.zero_()
        dense.load_state_dict(state, assign=assign)
        found = dense.state_dict()
        assert all(same_bits(found[name], value) for name, value in want.state_dict().items())


def test_state_dicts_that_do_not_fit() -> None:
    layer = TransfuseLinear.from_linear(nn.Linear(64, 96, bias=False, dtype=torch.bfloat16))
    with pytest.raises(
        RuntimeError, match=r"shape torch.Size\(\[96, 64\]\) from checkpoint.* is torch.Size\(\[64, 64\]\)"
    ):
        nn.Linear(64, 64, bias=False).load_state_dict(layer.state_dict())
    bytes_alone = {"weight": torch.zeros(100, dtype=torch.uint8)}
    with pytest.raises(RuntimeError, match=r"size mismatch for weight.*\[100\]"):
        nn.Linear(64, 64, bias=False).load_state_dict(bytes_alone)
    broken = layer.weight.detach().clone()
    broken[64:] = 0
    with pytest.raises(transfuse.DataError):
        nn.Linear(64, 96, bias=False).load_state_dict({"weight": broken})


def test_uncompressed_modules_again() -> None:
    linear = nn.Linear(64, 96, dtype=torch.bfloat16).eval()
    dense = TransfuseLinear.from_linear(linear).to_dense()
    assert type(dense) is nn.Linear and same_bits(dense.weight, linear.weight) and same_bits(dense.bias, linear.bias)
    assert dense.weight.requires_grad and not dense.training and dense.bias is not linear.bias
    embedding = nn.Embedding(130, 72, padding_idx=-1, dtype=torch.bfloat16)
    embedding.weight.data = normal(130, 72, dtype=torch.bfloat16, seed=1)
    again = TransfuseEmbedding.from_embedding(embedding).to_dense()
    assert type(again) is nn.Embedding and again.padding_idx == 129 and same_bits(again.weight, embedding.weight)
