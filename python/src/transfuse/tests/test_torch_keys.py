# SPDX-License-Identifier: Apache-2.0
"""Layers by their keys: the same results as by their buffers, one graph for all layers of a shape, and no key of
nothing."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator

import pytest

try:
    import torch
    import torch.nn.functional as F
    from safetensors.torch import save_file
    from torch import Tensor, nn

    import transfuse
    import transfuse.torch as tt
    from transfuse.torch._load import TensorPart, load_assembled
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

from transfuse.tests.test_torch_ops import CODECS, Case, make_x
from transfuse.tests.torch_cases import DEVICES

LAYOUTS = ["coded", "packed", "plain"]
ROWS, COLS = 300, 520


@pytest.fixture(autouse=True)
def not_exact() -> Iterator[None]:
    yield
    tt.set_exact(False)


def make_layer(device: str, layout: str = "packed", seed: int = 0) -> tuple[Case, Tensor]:
    case = Case("bf16", device, (ROWS, COLS), seed)
    return case, tt.convert_layer(case.buffer, layout)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_as_by_buffers(layout: str, device: str) -> None:
    _, buffer = make_layer(device, layout)
    key = tt.layer_key(buffer)
    assert key.shape == (256,) and key.data_ptr() == buffer.data_ptr()
    bias = make_x(ROWS, dtype=torch.bfloat16, device=device, seed=2)
    ids = torch.tensor([[0, ROWS - 1], [7, 7]], device=device)
    for sizes in ((COLS,), (1, COLS), (2, 3, COLS), (0, COLS), (70, COLS)):
        x = make_x(*sizes, dtype=torch.bfloat16, device=device)
        for each in (None, bias):
            assert torch.equal(tt.linear_by_key(x, key, each, ROWS), tt.linear(x, buffer, each, ROWS))
    for dtype in (torch.bfloat16, torch.float32):
        assert torch.equal(tt.decode_by_key(key, ROWS, COLS, dtype), tt.decode(buffer, ROWS, COLS, dtype))
        due = tt.embedding(ids, buffer, ROWS, COLS, dtype)
        assert torch.equal(tt.embedding_by_key(ids, key, ROWS, COLS, dtype), due)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("codec", CODECS)
def test_codecs(codec: str, device: str) -> None:
    case = Case(codec, device)
    key = tt.layer_key(case.buffer)
    for dtype in case.x_dtypes:
        x = make_x(5, case.cols, dtype=dtype, device=device)
        due = tt.linear(x, case.buffer, None, case.rows)
        assert torch.equal(tt.linear_by_key(x, key, None, case.rows), due)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_exact_mode(layout: str, device: str) -> None:
    """It is looked at when the op runs, in a graph that was compiled before as well."""
    case, buffer = make_layer(device, layout)
    key = tt.layer_key(buffer)
    x = make_x(3, COLS, dtype=torch.bfloat16, device=device)
    compiled = torch.compile(lambda x, key: tt.linear_by_key(x, key, None, ROWS), backend="aot_eager", fullgraph=True)
    before = compiled(x, key)
    due = F.linear(x, case.source.to(device))
    tt.set_exact(True)
    assert torch.equal(tt.linear_by_key(x, key, None, ROWS), due)
    assert torch.equal(compiled(x, key), due)
    tt.set_exact(False)
    assert torch.equal(compiled(x, key), before)


@pytest.mark.parametrize("device", DEVICES)
def test_one_graph_for_all_layouts(device: str) -> None:
    """Layers of other sizes and layouts, as parameters of a module, do not have it compiled anew."""
    graphs = []

    def count(graph: torch.fx.GraphModule, _: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    layers = [make_layer(device, layout, seed) for seed, layout in enumerate(LAYOUTS)]
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, key: tt.linear_by_key(x, key, None, ROWS), backend=count, fullgraph=True)
    x = make_x(4, COLS, dtype=torch.bfloat16, device=device)
    with torch.no_grad():
        for _, buffer in layers:
            key = nn.Parameter(tt.layer_key(buffer), requires_grad=False)
            assert torch.equal(compiled(x, key), tt.linear(x, buffer, None, ROWS))
    assert len(graphs) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_compile(device: str) -> None:
    """torch.library.opcheck runs ops on copies of their arguments, and a copied key is of no layer."""
    _, buffer = make_layer(device)
    key = tt.layer_key(buffer)
    x = make_x(4, COLS, dtype=torch.bfloat16, device=device)
    ids = torch.tensor([1, 2], device=device)

    def call(x: Tensor, key: Tensor, ids: Tensor) -> list[Tensor]:
        rows = tt.embedding_by_key(ids, key, ROWS, COLS, torch.bfloat16)
        return [tt.linear_by_key(x, key, None, ROWS), tt.decode_by_key(key, ROWS, COLS, torch.float32), rows]

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for found, due in zip(compiled(x, key, ids), call(x, key, ids), strict=True):
        assert found.dtype == due.dtype and torch.equal(found, due)


@pytest.mark.parametrize("device", DEVICES)
def test_autocast(device: str) -> None:
    _, buffer = make_layer(device)
    key = tt.layer_key(buffer)
    x = make_x(4, COLS, dtype=torch.float32, device=device)
    with torch.autocast(device, torch.bfloat16):
        y = tt.linear_by_key(x, key, None, ROWS)
    assert torch.equal(y, tt.linear(x.to(torch.bfloat16), buffer, None, ROWS))


@pytest.mark.parametrize("device", DEVICES)
def test_keys_of_nothing(device: str) -> None:
    """Copies, keys of forgotten buffers, tensors of another size; each op says so, and nothing is adopted."""
    _, buffer = make_layer(device)
    key = tt.layer_key(buffer)
    x = make_x(4, COLS, dtype=torch.bfloat16, device=device)
    known = tt._registry.count_layers()

    def check(wrong: Tensor, words: str) -> None:
        with pytest.raises(RuntimeError, match=words):
            tt.linear_by_key(x, wrong, None, ROWS)
        with pytest.raises(RuntimeError, match=words):
            tt.decode_by_key(wrong, ROWS, COLS, torch.bfloat16)
        with pytest.raises(RuntimeError, match=words):
            tt.embedding_by_key(torch.tensor([0], device=device), wrong, ROWS, COLS, torch.bfloat16)

    check(key.clone(), "no layer that is known")
    check(buffer, "a key has 256 bytes")
    check(key[:64], "a key has 256 bytes")
    assert tt._registry.count_layers() == known
    tt.forget(buffer)
    check(key, "no layer that is known")
    assert torch.equal(
        tt.decode_by_key(tt.layer_key(buffer), ROWS, COLS, torch.bfloat16).cpu(), make_layer("cpu")[0].source
    )
    with pytest.raises(RuntimeError, match=r"the call is for weights of \[4, 520\]"):
        tt.linear_by_key(x, tt.layer_key(buffer), None, 4)


@pytest.mark.parametrize("device", DEVICES)
def test_a_key_keeps_its_buffer(device: str) -> None:
    case, buffer = make_layer(device)
    key = tt.layer_key(buffer)
    del buffer
    gc.collect()
    assert torch.equal(tt.decode_by_key(key, ROWS, COLS, torch.bfloat16).cpu(), case.source)


@pytest.mark.parametrize("device", DEVICES)
def test_no_gradients(device: str) -> None:
    _, buffer = make_layer(device)
    x = make_x(4, COLS, dtype=torch.bfloat16, device=device).requires_grad_()
    with pytest.raises(RuntimeError, match="linear_by_key has no gradients"):
        tt.linear_by_key(x, tt.layer_key(buffer), None, ROWS)
    with torch.no_grad():
        tt.linear_by_key(x, tt.layer_key(buffer), None, ROWS)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint of a tensor of more than one tile in both directions."""
    folder = tmp_path_factory.mktemp("assembled")
    save_file({"w": Case("bf16", "cpu", (700, COLS)).source}, folder / "source.safetensors")
    transfuse.compress(folder / "source.safetensors", folder / "coded.safetensors")
    return str(folder / "coded.safetensors")


@pytest.mark.parametrize("device", DEVICES)
def test_assembled_layers(device: str, file: str) -> None:
    """Parts of a tensor and a blob serve as one matrix under one key: products, decoding, exact mode, graphs."""
    checkpoint = tt.open_checkpoint(file)
    rows = TensorPart(checkpoint, "w", (256, 256), (0, COLS)), TensorPart(checkpoint, "w", (512, 188), (0, COLS))
    other = Case("bf16", "cpu", (ROWS, COLS), 5)
    known = tt._registry.count_layers()
    assembled = load_assembled([rows[1], other.buffer, rows[0]], device)
    assert tt._registry.count_layers() == known + 3
    key = tt.layer_key(assembled)
    source = tt.load_layer(checkpoint, "w", "cpu")
    dense = tt.decode(source, 700, COLS, torch.bfloat16)
    wanted = torch.cat([dense[512:], other.source, dense[256:512]]).to(device)
    total = 188 + ROWS + 256
    assert torch.equal(tt.decode_by_key(key, total, COLS, torch.bfloat16), wanted)
    assert torch.equal(tt.decode_by_key(key, total, COLS, torch.float32), wanted.float())
    bias = make_x(total, dtype=torch.bfloat16, device=device, seed=2)
    parts = list(zip(tt.container_buffers(assembled), (188, ROWS, 256), bias.split([188, ROWS, 256]), strict=True))
    for sizes in ((COLS,), (1, COLS), (2, 3, COLS), (0, COLS), (70, COLS), (300, COLS)):
        x = make_x(*sizes, dtype=torch.bfloat16, device=device)
        for each in (None, bias):
            own = [tt.linear(x, buffer, None if each is None else piece, count) for buffer, count, piece in parts]
            found, due = tt.linear_by_key(x, key, each, total), torch.cat(own, dim=-1)
            # On a GPU groups and other alignments of y add sums in another order.
            assert found.shape == due.shape
            if device == "cpu":
                assert torch.equal(found, due)
            elif due.numel() > 0:
                assert (found - due).abs().max() <= due.abs().max() / 64
    x = make_x(4, COLS, dtype=torch.bfloat16, device=device)
    y = tt.linear_by_key(x, key, bias, total)
    tt.set_exact(True)
    assert torch.equal(tt.linear_by_key(x, key, bias, total), F.linear(x, wanted, bias))
    tt.set_exact(False)
    compiled = torch.compile(lambda x, key: tt.linear_by_key(x, key, bias, total), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, key), y)
    with pytest.raises(RuntimeError, match=re.escape(f"[{total}, {COLS}]")):
        tt.linear_by_key(x, key, None, total - 1)
    with pytest.raises(RuntimeError, match="not looked up in assembled layers"):
        tt.embedding_by_key(torch.tensor([0], device=device), key, total, COLS, torch.bfloat16)
    with pytest.raises(RuntimeError, match="rows of one matrix, and no experts"):
        tt.decode_experts(assembled, 3, ROWS, COLS, torch.bfloat16)
    with pytest.raises(RuntimeError, match="no layer that is known"):
        tt.linear_by_key(x, key.clone(), None, total)
    del parts
    tt.forget(assembled)
    assert tt._registry.count_layers() == known + 1
    with pytest.raises(RuntimeError, match="no layer that is known"):
        tt.linear_by_key(x, key, None, total)


@pytest.mark.parametrize("device", DEVICES)
def test_layers_that_do_not_fit_together(device: str, file: str) -> None:
    wrong = Case("bf16", "cpu", (16, 48)).buffer
    known = tt._registry.count_layers()
    with pytest.raises(transfuse.ArgumentError, match="differ in shape or source dtype"):
        load_assembled([TensorPart(tt.open_checkpoint(file), "w", (0, 700), (0, COLS)), wrong], device)
    assert tt._registry.count_layers() == known


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_assembled_layers_in_a_graph(file: str) -> None:
    part = TensorPart(tt.open_checkpoint(file), "w", (0, 512), (0, COLS))
    key = tt.layer_key(load_assembled([part, part], "cuda"))
    for m in (1, 8):
        x = make_x(m, COLS, dtype=torch.bfloat16, device="cuda")
        due = tt.linear_by_key(x, key, None, 1024)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = tt.linear_by_key(x, key, None, 1024)
        y.zero_()
        graph.replay()
        assert torch.equal(y, due)


def test_the_key_of_experts_is_no_layers() -> None:
    container = tt.make_container([Case("bf16", "cpu", (16, 48)).buffer])
    with pytest.raises(RuntimeError, match="key is of a container of experts, which transfuse::moe_by_key takes"):
        tt.decode_by_key(tt.layer_key(container), 16, 48, torch.bfloat16)
