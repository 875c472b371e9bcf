# SPDX-License-Identifier: Apache-2.0
"""Products of one input become grouped calls in compiled graphs, and nothing else does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transfuse_torch = pytest.importorskip("transfuse.torch", exc_type=ImportError)

from torch import nn  # noqa: E402

from transfuse.torch import _fusion  # noqa: E402

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]


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
        return self.down(torch.nn.functional.silu(self.gate(h)) * self.up(h))


@pytest.fixture(params=DEVICES)
def block(request: pytest.FixtureRequest):
    torch.manual_seed(1)
    made = Block(304).to(torch.bfloat16).to(request.param)
    for weights in made.parameters():
        nn.init.normal_(weights, 0.0, 0.05)
    transfuse_torch.compress_model(made, include=["*"])
    torch.compiler.reset()
    yield made.requires_grad_(False)
    _fusion.set_grouping(True)
    torch.compiler.reset()


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which each graph that the pass sees adds its number of grouped calls."""
    counts: list[int] = []
    group = _fusion.group_products

    def counting(graph: torch.fx.Graph) -> int:
        counts.append(group(graph))
        return counts[-1]

    monkeypatch.setattr(_fusion, "group_products", counting)
    return counts


def reference(block: Block, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return block(x)


@pytest.mark.parametrize("shape", [(1, 304), (2, 3, 304), (64, 304)])
def test_inductor_graphs_are_grouped(block: Block, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_calls(monkeypatch)
    x = torch.randn(shape, device=block.q.weight.device, dtype=torch.bfloat16)
    with torch.no_grad(), torch._inductor.config.patch(fx_graph_cache=False):
        result = torch.compile(block, fullgraph=True, dynamic=False)(x)
    assert counts == [2]  # q with k, and gate with up
    expected = reference(block, x)
    error = (result.float() - expected.float()).norm() / expected.float().norm()
    assert error < 0.01


@pytest.mark.parametrize("case", ["off", "exact", "many rows"])
def test_inductor_graphs_are_left_alone(block: Block, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_calls(monkeypatch)
    x = torch.randn((65 if case == "many rows" else 2, 304), device=block.q.weight.device, dtype=torch.bfloat16)
    _fusion.set_grouping(case != "off")
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
    assert (found.float() - x.grad.float()).norm() <= 0.02 * x.grad.float().norm()


def test_another_pass_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.fx.Graph] = []
    monkeypatch.setattr(torch._inductor.config, "post_grad_custom_pre_pass", seen.append)
    _fusion.install()
    _fusion.install()
    installed = torch._inductor.config.post_grad_custom_pre_pass
    graph = torch.fx.Graph()
    installed(graph)
    assert seen == [graph]
    assert installed.uuid() is None  # a function without a name is not cached
