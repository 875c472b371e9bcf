# SPDX-License-Identifier: Apache-2.0
"""What the torch ops do on GPUs alone: CUDA graphs, streams, several devices."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    import transfuse.torch as tt
    from transfuse.torch import _registry
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from transfuse.tests.test_torch_group_ops import make_experts
from transfuse.tests.test_torch_ops import CODECS, Case, make_x
from transfuse.tests.torch_cases import normal


def capture(function: Callable[..., Any], *inputs: Tensor) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Runs a function once on a side stream, then captures it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function(*inputs)
    return graph, outputs


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("m", [1, 8, 40, 300])
def test_graph(m: int, codec: str) -> None:
    """A replay computes what a call does, from what x holds then."""
    case = Case(codec, "cuda", (512, 768))
    x = make_x(m, 768, dtype=case.x_dtypes[0], device="cuda")
    bias = make_x(512, dtype=case.x_dtypes[0], device="cuda", seed=2)
    graph, y = capture(lambda x: case.linear(x, bias), x)
    for seed in range(3, 6):
        x.copy_(make_x(m, 768, dtype=x.dtype, device="cuda", seed=seed))
        graph.replay()
        assert torch.equal(y, case.linear(x, bias))


@pytest.mark.parametrize(("layout", "codec"), [("plain", "bf16"), ("plain", "fp16"), ("packed", "bf16")])
@pytest.mark.parametrize("m", [1, 40, 300])
def test_graph_of_a_layer_in_another_layout(m: int, layout: str, codec: str) -> None:
    case = Case(codec, "cuda", (512, 768))
    case.buffer = tt.convert_layer(case.buffer, layout)
    x = make_x(m, 768, dtype=case.x_dtypes[0], device="cuda")
    ids = torch.tensor([0, 5, 511, 5], device="cuda")
    graph, outputs = capture(lambda x, ids: (case.linear(x), tt.embedding(ids, case.buffer, 512, 768, x.dtype)), x, ids)
    x.copy_(make_x(m, 768, dtype=x.dtype, device="cuda", seed=3))
    ids.copy_(torch.tensor([9, 8, 7, 6]))
    graph.replay()
    assert torch.equal(outputs[0], case.linear(x)) and torch.equal(outputs[1], case.dense[ids])


def test_graph_of_all_ops() -> None:
    case, other = Case("bf16", "cuda", (512, 768)), Case("bf16", "cuda", (256, 768), 1)
    dense, container = make_experts("cuda", 4, (96, 160))
    x = make_x(4, 768, dtype=torch.bfloat16, device="cuda")
    ids = torch.tensor([0, 5, 511, 5], device="cuda")
    tokens = make_x(9, 160, dtype=torch.bfloat16, device="cuda")
    offsets = torch.tensor([0, 2, 2, 8, 9], dtype=torch.int32, device="cuda")

    def model(x: Tensor, ids: Tensor, tokens: Tensor, offsets: Tensor) -> list[Tensor]:
        a, b = tt.linear_group(x, [case.buffer, other.buffer], [512, 256])
        return [
            a,
            b,
            torch.ops.transfuse.linear_epilogue(x, case.buffer, None, a, a, "silu", 512),
            tt.decode(case.buffer, 512, 768, torch.bfloat16),
            tt.embedding(ids, case.buffer, 512, 768, torch.float32),
            tt.experts(tokens, offsets, container, 96),
            tt.decode_experts(container, 4, 96, 160, torch.bfloat16),
        ]

    graph, outputs = capture(model, x, ids, tokens, offsets)
    x.copy_(make_x(4, 768, dtype=torch.bfloat16, device="cuda", seed=7))
    ids.copy_(torch.tensor([9, 8, 7, 6]))
    offsets.copy_(torch.tensor([0, 0, 5, 5, 9]))
    graph.replay()
    for got, expected in zip(outputs, model(x, ids, tokens, offsets), strict=True):
        assert torch.equal(got, expected)
    begin = 0
    for expert, end in enumerate((0, 5, 5, 9)):
        torch.testing.assert_close(
            outputs[5][begin:end],
            F.linear(tokens[begin:end], dense[expert]),
            rtol=0.02,
            atol=0.01,
        )
        begin = end


def test_a_new_blob_is_refused_while_a_graph_is_captured() -> None:
    case = Case("bf16", "cuda", (512, 768))
    blob = case.buffer.clone()
    _, container = make_experts("cuda", 2)
    x = make_x(4, 768, dtype=torch.bfloat16, device="cuda")
    tokens = make_x(4, 160, dtype=torch.bfloat16, device="cuda")
    offsets = torch.tensor([0, 1, 4], dtype=torch.int32, device="cuda")
    known = _registry.count_layers()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = case.linear(x)
        for call in (
            lambda: tt.linear(x, blob, None, 512),
            lambda: tt.linear_group(x, [case.buffer, blob], [512, 512]),
            lambda: tt.decode(blob, 512, 768, torch.bfloat16),
            lambda: tt.experts(tokens, offsets, container, 96),
        ):
            with pytest.raises(RuntimeError, match="while a CUDA graph is being captured"):
                call()
    assert _registry.count_layers() == known
    graph.replay()
    assert torch.equal(y, case.linear(x)) and torch.equal(tt.linear(x, blob, None, 512), y)


def test_layers_may_go_while_a_graph_is_captured() -> None:
    case = Case("bf16", "cuda", (512, 768))
    x = make_x(4, 768, dtype=torch.bfloat16, device="cuda")
    blob = case.buffer.clone()
    tt.adopt(blob)
    known = _registry.count_layers()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = case.linear(x)
        del blob
        gc.collect()
        assert _registry.count_layers() == known - 1
    graph.replay()
    assert torch.equal(y, case.linear(x))


def test_streams() -> None:
    """Work goes to the stream that is current: behind what makes x, ahead of what reads y."""
    case = Case("bf16", "cuda", (4096, 4096))
    x = make_x(16, 4096, dtype=torch.bfloat16, device="cuda")
    expected = case.linear(x)
    other = torch.zeros_like(x)
    for _ in range(5):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            late = other + x
            y = case.linear(late)
            same = y == expected
        assert not stream.query()  # the host did not wait
        torch.cuda.current_stream().wait_stream(stream)
        assert same.all()


def test_a_layer_that_is_dropped_while_its_product_waits() -> None:
    """What says where its slabs lie is as safe as its buffer, though another stream was current when it was adopted."""
    blob = tt.encode(normal(512, 512)).cuda()
    x = make_x(4, 512, dtype=torch.bfloat16, device="cuda")
    directory_bytes = int(_registry.get_size(blob, 0).directory_bytes)
    torch.cuda.synchronize()
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        expected = tt.linear(x, blob, None, 512)
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000_000)
    y = tt.linear(x, blob, None, 512)
    del blob
    gc.collect()
    with torch.cuda.stream(other):
        over = [torch.full((directory_bytes,), 255, dtype=torch.uint8, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    assert torch.equal(y, expected) and len(over) == 8


def test_threads_with_streams() -> None:
    case = Case("bf16", "cuda", (2048, 2048))
    x = make_x(64, 2048, dtype=torch.bfloat16, device="cuda")
    expected = {m: case.linear(x[:m]) for m in (1, 8, 33, 64)}
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    for m, y in expected.items():
                        assert torch.equal(case.linear(x[:m]), y)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_second_device() -> None:
    """The tensors' device counts, not the current one, which stays."""
    first, second = Case("bf16", "cuda:0"), Case("bf16", "cuda:1")
    x = make_x(3, 520, dtype=torch.bfloat16, device="cuda:1")
    assert torch.cuda.current_device() == 0
    y = second.linear(x)
    assert y.device == x.device and torch.cuda.current_device() == 0
    assert torch.equal(y.cpu(), first.linear(x.to("cuda:0")).cpu())
    with pytest.raises(RuntimeError, match="x is on cuda:1, buffer is on cuda:0"):
        first.linear(x)


def test_devices_must_agree() -> None:
    case = Case("bf16", "cuda")
    with pytest.raises(RuntimeError, match="x is on cpu, buffer is on cuda:0"):
        case.linear(make_x(3, 520, dtype=torch.bfloat16, device="cpu"))


def test_memory_of_calls() -> None:
    """What a call allocates it gives back."""
    case = Case("bf16", "cuda", (2048, 2048))
    x = make_x(256, 2048, dtype=torch.bfloat16, device="cuda")
    case.linear(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for m in range(1, 257, 5):
        case.linear(x[:m])
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor(mode: str) -> None:
    class Model(torch.nn.Module):
        """Blobs are parameters, which stay where they are: CUDA graphs of inductor's copy other tensors."""

        up: Tensor
        down: Tensor

        def __init__(self) -> None:
            super().__init__()
            for name, case in (("up", Case("bf16", "cuda", (512, 768))), ("down", Case("bf16", "cuda", (768, 512), 1))):
                setattr(self, name, torch.nn.Parameter(case.buffer, requires_grad=False))

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = x + tt.linear(F.silu(tt.linear(x, self.up, None, 512)), self.down, None, 768)
            return x

    model = Model()
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for seed in range(4):
        x = make_x(2, 768, dtype=torch.bfloat16, device="cuda", seed=seed)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x).clone(), model(x), rtol=0.02, atol=0.02)
