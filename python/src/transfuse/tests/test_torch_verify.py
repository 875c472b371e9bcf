# SPDX-License-Identifier: Apache-2.0
"""Layers and models whose memory has changed since they were made: what verifying finds."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import Tensor, nn

import transfuse
import transfuse.torch as tt
from transfuse.tests.torch_cases import DEVICES, normal
from transfuse.torch._compress import compress_model
from transfuse.torch._modules import CompressedModule

LAYOUTS = ["coded", "plain", "packed"]


def flip(buffer: Tensor, at: int) -> None:
    """Changes a bit without torch's knowledge of the parameter."""
    buffer.detach()[at : at + 1] ^= 1 << at % 8


def expect_changed(buffer: Tensor, places: int = 20) -> None:
    """Expects that a bit that flips is found wherever it is, and that nothing is once it is back."""
    tt.verify_layer(buffer)
    draw = random.Random(buffer.numel())
    for at in [*range(0, 256, 17), *(draw.randrange(buffer.numel()) for _ in range(places))]:
        flip(buffer, at)
        # On the CPU a layer whose first bytes have changed is unknown, and validated again.
        words = None if buffer.device.type == "cpu" and at < 256 else "changed in memory"
        with pytest.raises(transfuse.DataError, match=words):
            tt.verify_layer(buffer)
        flip(buffer, at)
    tt.verify_layer(buffer)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers(layout: str, device: str) -> None:
    coded = tt.encode(normal(300, 520)).to(device)
    tt.adopt(coded)
    expect_changed(coded if layout == "coded" else tt.convert_layer(coded, layout))


@pytest.mark.parametrize("device", DEVICES)
def test_packing_and_repacking(device: str) -> None:
    packed = tt.pack(normal(300, 520).to(device), stored_room=2)
    expect_changed(packed)
    tt.repack(packed, normal(300, 520, seed=1).to(device))
    expect_changed(packed)
    copied = packed.clone()
    tt.adopt(copied)
    expect_changed(copied)


@pytest.mark.parametrize("device", DEVICES)
def test_containers(device: str) -> None:
    container = tt.make_container([tt.encode(normal(64, 128, seed=e)) for e in range(3)]).to(device)
    tt.verify_layer(container)
    second = tt.container_buffers(container)[1]
    flip(second, second.numel() // 2)
    with pytest.raises(transfuse.DataError, match="^expert 1: .*changed in memory"):
        tt.verify_layer(container)
    flip(second, second.numel() // 2)
    tt.verify_layer(container)


def make_model(device: str, **options: Any) -> nn.Sequential:
    model = nn.Sequential()
    for i in range(3):
        linear = nn.Linear(256, 256, bias=False, dtype=torch.bfloat16)
        linear.weight.data = normal(256, 256, seed=i)
        model.append(linear.requires_grad_(False))
    model.append(model[0])
    model.to(device)
    compress_model(model, **options)
    return model


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_models(layout: str, device: str) -> None:
    model = make_model(device, layout=layout)
    assert tt.verify_model(model) == 3  # a shared one once
    module = model[1]
    assert isinstance(module, CompressedModule)
    flip(module.weight, 1000)
    with pytest.raises(transfuse.DataError, match=r"^1\.weight: .*changed in memory"):
        tt.verify_model(model)
    flip(module.weight, 1000)
    flip(module.weight, 3)
    with pytest.raises(transfuse.DataError):
        tt.verify_model(model)
    flip(module.weight, 3)
    assert tt.verify_model(model) == 3
    assert tt.verify_model(nn.Linear(3, 4)) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_keys(device: str) -> None:
    """Modules may have keys in place of buffers, as vLLM's layers do."""
    layer = tt.encode(normal(256, 256)).to(device)
    container = tt.make_container([tt.encode(normal(64, 128, seed=e)) for e in range(3)]).to(device)
    model = nn.Module()
    model.register_parameter("one", nn.Parameter(tt.layer_key(layer), requires_grad=False))
    model.register_buffer("again", tt.layer_key(layer))
    model.register_buffer("many", tt.layer_key(container))
    model.register_buffer("copied", tt.layer_key(layer).clone())  # which is no key
    model.register_buffer("other", torch.zeros(512, dtype=torch.uint8, device=device)[::2])
    assert tt.verify_model(model) == 4
    flip(layer, layer.numel() - 1)
    with pytest.raises(transfuse.DataError, match="^one: .*changed in memory"):
        tt.verify_model(model)
    flip(layer, layer.numel() - 1)
    last = tt.container_buffers(container)[2]
    flip(last, last.numel() // 2)
    with pytest.raises(transfuse.DataError, match="^many: expert 2: .*changed in memory"):
        tt.verify_model(model)
    flip(last, last.numel() // 2)
    for name, buffer, places in (("one", layer, range(0, 64, 3)), ("many", container, (*range(32), 3 * 16 + 15))):
        for place in places:  # on the CPU the ops do not know such a layer any more
            flip(buffer, place)
            with pytest.raises(transfuse.DataError, match=f"^{name}: "):
                tt.verify_model(model)
            flip(buffer, place)
    flip(last, 9)
    with pytest.raises(transfuse.DataError, match="^many: "):
        tt.verify_model(model)
    flip(last, 9)
    assert tt.verify_model(model) == 4


@pytest.mark.parametrize("device", DEVICES)
def test_order_of_rows(device: str) -> None:
    """No checksum of a layer holds the order of a container's rows."""
    weights = torch.stack([normal(64, 128, seed=e) for e in range(3)]).to(device)
    model = nn.Module()
    container = tt.pack_experts(weights, interleave=True)
    model.register_buffer("experts", container)
    assert tt.verify_model(model) == 3
    flip(container, 12)
    with pytest.raises(transfuse.DataError, match="^experts: the head of a container has changed"):
        tt.verify_model(model)


def test_buffers_that_are_none() -> None:
    with pytest.raises(transfuse.TransfuseError):
        tt.verify_layer(torch.zeros(4096, dtype=torch.uint8))
