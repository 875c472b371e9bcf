# SPDX-License-Identifier: Apache-2.0
"""Modules with compressed weights on a GPU: moving there, products, CUDA graphs, compressing what lies there."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import Tensor, nn

from transfuse.tests.torch_cases import exact, layout_bytes, make_ids, make_model, normal, same_bits
from transfuse.torch import _registry, set_layout
from transfuse.torch._compress import compress_model
from transfuse.torch._modules import TransfuseLinear

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)


LAYOUTS = pytest.mark.parametrize("layout", ["coded", "plain", "packed"])


def relative_error(found: Tensor, want: Tensor) -> float:
    return float((found.double() - want).norm() / want.norm())


def test_a_model_there_and_back() -> None:
    dense, model = make_model(), make_model()
    compress_model(model, embeddings=True)
    ids, blob = make_ids(model, 2, 9), model.up.weight.clone()
    on_cpu = model(ids)
    model.cuda()
    dense.cuda()
    assert model.lm_head.weight is model.embed_tokens.weight and model.lm_head.weight.is_cuda
    assert same_bits(model.up.weight, blob) and same_bits(model.up.decode_weight(), dense.up.weight)
    assert same_bits(model.embed_tokens(ids.cuda()), dense.embed_tokens(ids.cuda()))
    with exact():
        assert same_bits(model(ids.cuda()), dense(ids.cuda()))
    want = copy.deepcopy(dense).double()(ids.cuda())
    assert relative_error(model(ids.cuda()), want) <= 2 * relative_error(dense(ids.cuda()), want)
    again = copy.deepcopy(model)
    assert same_bits(again(ids.cuda()), model(ids.cuda()))
    assert same_bits(model.cpu()(ids), on_cpu)


@LAYOUTS
def test_compressing_a_model_on_the_gpu(layout: str) -> None:
    dense, model = make_model().cuda(), make_model().cuda()
    report = compress_model(model, embeddings=True, layout=layout)
    assert set(report.compressed) == {"up.weight", "down.weight", "embed_tokens.weight", "lm_head.weight"}
    assert model.up.weight.is_cuda and model.lm_head.weight is model.embed_tokens.weight
    with exact():
        ids = make_ids(model, 3, 5).cuda()
        assert same_bits(model(ids), dense(ids))


@LAYOUTS
def test_moving_adopts_and_graphs_are_captured(layout: str) -> None:
    linear = nn.Linear(512, 768, dtype=torch.bfloat16).requires_grad_(False)
    linear.weight.data = normal(768, 512)
    layer = TransfuseLinear.from_linear(linear, layout=layout).cuda()
    assert _registry.is_known(layer.weight)
    x = normal(4, 512, scale=1.0).cuda()
    with torch.no_grad():
        layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        for seed in (5, 6):
            x.copy_(normal(4, 512, seed=seed, scale=1.0))
            graph.replay()
            assert same_bits(y, layer(x))


@LAYOUTS
def test_memory_goes_back(layout: str) -> None:
    def run() -> tuple[int, int]:
        model = make_model().cuda()
        compress_model(model, embeddings=True, layout=layout)
        model(make_ids(model, 2, 9).cuda())
        del model
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), _registry.count_layers()

    before = run()  # torch sets up workspaces at first
    assert run() == before


def test_packing_takes_the_memory_of_one_layer() -> None:
    """That of one with room for stored tiles, and of the one that is kept; what is left is what the layers take."""
    weight = normal(1024, 1024).cuda()
    linear = nn.Linear(1024, 1024, bias=False, device="cuda").requires_grad_(False)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    model: Any = nn.ModuleList(TransfuseLinear.from_linear(linear) for _ in range(8))
    before, coded = torch.cuda.memory_allocated(), sum(layer.weight.numel() for layer in model)
    torch.cuda.reset_peak_memory_stats()
    set_layout(model, "packed")
    assert torch.cuda.max_memory_allocated() <= before + 8 * layout_bytes("packed", 1024, 1024) - coded + (4 << 20)
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + 8 * layout_bytes("packed", 1024, 1024) - coded + (1 << 20)
    assert all(same_bits(layer.decode_weight(), weight) for layer in model)


def test_experts() -> None:
    pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
    from transfuse.tests.test_torch_experts import compress, error_of, make_experts, make_routes
    from transfuse.torch import set_experts_decode_threshold

    # On a GPU experts share launches where their sides are whole slabs.
    hidden, inner = 512, 256
    dense = make_experts("batched_mm", hidden=hidden, inner=inner).cuda()
    module = compress(make_experts("batched_mm", hidden=hidden, inner=inner)).cuda()
    assert module.product_dtypes == (torch.bfloat16,)
    precise = copy.deepcopy(dense).double()
    set_experts_decode_threshold(24)  # 64 tokens
    for tokens in (1, 7, 64):
        x, index, weights = (each.cuda() for each in make_routes(tokens, hidden=hidden))
        want = precise(x.double(), index, weights.double())
        assert error_of(module(x, index, weights), want) <= 2 * error_of(dense(x, index, weights), want)
        with exact():
            assert same_bits(module(x, index, weights), dense(x, index, weights))
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):  # nothing waits for the device
            y = module(x, index, weights)
        graph.replay()
        assert same_bits(y, module(x, index, weights))


@pytest.mark.skipif(torch.cuda.get_device_capability() != (9, 0), reason="packed experts need compute capability 9.0")
@pytest.mark.parametrize("apart", [True, False])
def test_many_tokens_pack_coded_experts(apart: bool) -> None:
    """A call with many tokens gives the bits of packed experts, and decodes none; it can be captured."""
    pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
    from transfuse.tests.test_torch_experts import error_of, make_experts, make_parts, make_routes
    from transfuse.torch._experts import replace_experts

    hidden, inner = 512, 256
    dense = make_experts("batched_mm", hidden=hidden, inner=inner)
    parts = make_parts(dense, apart=apart)
    module = replace_experts(make_experts("batched_mm", hidden=hidden, inner=inner), **parts).cuda()
    packed = replace_experts(make_experts("batched_mm", hidden=hidden, inner=inner), **parts).cuda()
    assert module.layout == "coded" and module.packing_refusal == ""
    assert packed.convert_layout("packed") == ""
    precise = copy.deepcopy(dense).cuda().double()
    precise.config._experts_implementation = "eager"  # batched_mm would take gigabytes
    left: list[int] = []
    for tokens in (65, 300, 2000):
        x, index, weights = (each.cuda() for each in make_routes(tokens, hidden=hidden))
        found = module(x, index, weights)
        assert same_bits(found, packed(x, index, weights))
        want = precise(x.double(), index, weights.double())
        assert error_of(found, want) < 1e-2
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            y = module(x, index, weights)
        graph.replay()
        assert same_bits(y, found)
        index.copy_(index.roll(7, dims=0))  # a replay takes the routes of then
        graph.replay()
        assert same_bits(y, packed(x, index, weights))
        del graph, y, want, found, x, index, weights
        left.append(torch.cuda.memory_allocated())
    assert max(left) <= left[0] + (1 << 20)  # the first call made cuBLAS's workspaces


@pytest.mark.skipif(torch.cuda.get_device_capability() != (9, 0), reason="packed experts need compute capability 9.0")
def test_coded_experts_that_cannot_be_packed() -> None:
    """They are decoded, and the refusal says why."""
    pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
    from transfuse.tests.test_torch_experts import compress, make_experts, make_routes

    dense = make_experts("batched_mm", hidden=512, inner=272).cuda()  # 272 columns are no whole slabs
    module = compress(make_experts("batched_mm", hidden=512, inner=272)).cuda()
    assert "expert 0 cannot be packed for a product" in module.packing_refusal
    routes = tuple(each.cuda() for each in make_routes(65, hidden=512))
    assert same_bits(module(*routes), dense(*routes))


@LAYOUTS
def test_a_stream_that_still_writes_the_weights(layout: str) -> None:
    """Compressing follows the caller's stream, though another thread does it."""
    dense, model = make_model().cuda(), make_model(seed=1).cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(400_000_000)
        for late, given in zip(model.parameters(), dense.parameters()):
            late.data.copy_(given)
        compress_model(model, embeddings=True, layout=layout)
        with exact():
            ids = make_ids(model, 3, 5).cuda()
            assert same_bits(model(ids), dense(ids))
    torch.cuda.synchronize()


def test_bytes_that_are_on_their_way_to_the_cpu() -> None:
    model = make_model().cuda()
    compress_model(model, layout="packed")
    want = model.up.weight.cpu()
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000_000)
    model.to("cpu", non_blocking=True)
    assert _registry.is_known(model.up.weight) and same_bits(model.up.weight, want)
