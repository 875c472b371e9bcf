# SPDX-License-Identifier: Apache-2.0
"""Products of one input become grouped calls in compiled graphs, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch._inductor.config
from torch import nn

try:
    import transfuse.torch as transfuse_torch
    from transfuse.torch import _grouping
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

from transfuse.tests.torch_cases import DEVICES


class Block(nn.Module):
    """Products as attention and MLP have them: three of one input, one of them with a bias; two of another; one."""

    def __init__(self, cols: int) -> None:
        super().__init__()
        self.q = nn.Linear(cols, 320, bias=False)
        self.k = nn.Linear(cols, 272, bias=False)
        self.v = nn.Linear(cols, 272, bias=True)
        self.gate = nn.Linear(320, 512, bias=False)
        self.up = nn.Linear(320, 512, bias=False)
        self.down = nn.Linear(512, cols, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        h = q + torch.nn.functional.pad(k * v, (0, 48))
        y: torch.Tensor = self.down(torch.nn.functional.silu(self.gate(h)) * self.up(h))
        return y


@pytest.fixture(params=DEVICES)
def block(request: pytest.FixtureRequest) -> Iterator[Block]:
    torch.manual_seed(1)
    made = Block(304).to(torch.bfloat16).to(request.param)
    for weights in made.parameters():
        nn.init.normal_(weights, 0.0, 0.05)
    transfuse_torch.compress_model(made, include=["*"])
    torch.compiler.reset()
    yield made.requires_grad_(False)
    _grouping.set_grouping(True)
    torch.compiler.reset()


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which each graph that the pass sees adds its number of grouped calls."""
    counts: list[int] = []
    group = _grouping.group_products

    def counting(graph: torch.fx.Graph) -> int:
        counts.append(group(graph))
        return counts[-1]

    monkeypatch.setattr(_grouping, "group_products", counting)
    return counts


@pytest.mark.parametrize("shape", [(1, 304), (2, 3, 304), (64, 304)])
def test_inductor_graphs_are_grouped(block: Block, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_calls(monkeypatch)
    x = torch.randn(shape, device=block.q.weight.device, dtype=torch.bfloat16)
    with torch.no_grad(), torch._inductor.config.patch(fx_graph_cache=False):
        result = torch.compile(block, fullgraph=True, dynamic=False)(x)
        expected = block(x)
    assert counts == [2]  # q with k, and gate with up
    error = (result.float() - expected.float()).norm() / expected.float().norm()
    assert error < 0.01


@pytest.mark.parametrize("case", ["off", "exact", "many rows"])
def test_inductor_graphs_are_left_alone(block: Block, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_calls(monkeypatch)
    x = torch.randn((65 if case == "many rows" else 2, 304), device=block.q.weight.device, dtype=torch.bfloat16)
    _grouping.set_grouping(case != "off")
    transfuse_torch.set_exact(case == "exact")
    try:
        with torch.no_grad(), torch._inductor.config.patch(fx_graph_cache=False):
            torch.compile(block, fullgraph=True, dynamic=False)(x)
    finally:
        transfuse_torch.set_exact(False)
    assert counts == ([] if case == "off" else [0])  # off: the pass looks at no graph


def test_inductor_graphs_with_gradients(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of the forward pass are grouped; the gradient is that of single products, of a layer decoded anew."""
    counts = count_calls(monkeypatch)
    x = torch.randn((2, 304), device=block.q.weight.device, dtype=torch.bfloat16, requires_grad=True)
    with torch._inductor.config.patch(fx_graph_cache=False):
        torch.compile(block, fullgraph=True, dynamic=False)(x).float().square().sum().backward()
    assert sum(counts) == 2
    found, x.grad = x.grad, None
    block(x).float().square().sum().backward()
    expected = x.grad
    assert found is not None and expected is not None
    assert (found.float() - expected.float()).norm() <= 0.02 * expected.float().norm()


def test_another_pass_is_kept() -> None:
    seen: list[torch.fx.Graph] = []
    present: Callable[[torch.fx.Graph], None] = seen.append
    # Not by monkeypatch, which takes what config had before for a class's own and deletes it.
    with torch._inductor.config.patch(post_grad_custom_pre_pass=present):
        _grouping.install()
        _grouping.install()
        installed = torch._inductor.config.post_grad_custom_pre_pass
    assert isinstance(installed, _grouping._GroupingPass)
    graph = torch.fx.Graph()
    installed(graph)
    assert seen == [graph]
    assert installed.uuid() is None  # a function without a name is not cached
