# SPDX-License-Identifier: Apache-2.0
"""The torch ops on several layers, and those with epilogues, on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest

import transfuse
from transfuse.tests.conftest import Tensors

try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    import transfuse.torch as tt
    from transfuse.torch import _registry
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

from transfuse.tests.test_torch_ops import (
    Case,
    assert_is_product,
    make_weight,
    make_x,
    not_exact,  # noqa: F401
)
from transfuse.tests.torch_cases import DEVICES, resident_bytes

# ---- epilogues ----

ACTIVATIONS: dict[str, Any] = {
    "none": lambda v: v,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_epilogue(dtype: torch.dtype, activation: str, device: str) -> None:
    case = Case("bf16", device)
    weight = case.dense.to(dtype)
    for sizes in ((1, 520), (2, 3, 520), (70, 520), (0, 520)):
        x = make_x(*sizes, dtype=dtype, device=device)
        y_sizes = (*sizes[:-1], 300)
        bias = make_x(300, dtype=dtype, device=device, seed=2)
        multiplier = make_x(*y_sizes[:-1], 301, dtype=dtype, device=device, seed=3)[..., 1:]
        residual = make_x(*y_sizes, dtype=dtype, device=device, seed=4)
        for b, m, r in (
            (None, None, None),
            (bias, multiplier, residual),
            (None, multiplier, None),
            (bias, None, residual),
        ):
            y = torch.ops.transfuse.linear_epilogue(x, case.buffer, b, m, r, activation, 300)
            expected = F.linear(x.double(), weight.double(), None if b is None else b.double())
            expected = ACTIVATIONS[activation](expected)
            expected = expected if m is None else expected * m.double()
            expected = expected if r is None else expected + r.double()
            assert y.shape == y_sizes and y.dtype == dtype
            # What is rounded once, or, for other dtypes than the codec's, after each step.
            tolerance = 0.01 if dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance / 2)
    with pytest.raises(RuntimeError, match="there is no activation 'relu'"):
        torch.ops.transfuse.linear_epilogue(x, case.buffer, None, None, None, "relu", 300)
    with pytest.raises(RuntimeError, match=r"residual has the shape \[300\]"):
        torch.ops.transfuse.linear_epilogue(x, case.buffer, None, None, bias, "none", 300)


# ---- groups ----


@pytest.mark.parametrize("device", DEVICES)
def test_group(device: str) -> None:
    cases = [Case("bf16", device, shape, seed) for seed, shape in enumerate([(300, 520), (256, 520), (271, 520)])]
    cases.append(cases[0])
    buffers, rows = [case.buffer for case in cases], [case.rows for case in cases]
    for m in (1, 8, 33, 200):
        for x in (
            make_x(m, 520, dtype=torch.bfloat16, device=device),
            make_x(1, m, 521, dtype=torch.bfloat16, device=device)[..., 1:],
        ):
            for case, y in zip(cases, tt.linear_group(x, buffers, rows), strict=True):
                assert y.shape == (*x.shape[:-1], case.rows)
                assert_is_product(y.reshape(-1, case.rows), x.reshape(-1, 520), case.dense)
    x = make_x(3, 520, dtype=torch.bfloat16, device=device)
    for other in (x.float(), x[:0]):
        for case, y in zip(cases, tt.linear_group(other, buffers, rows), strict=True):
            assert torch.equal(y, case.linear(other))
    for case, y in zip(cases, tt.linear_group(x[0], buffers, rows), strict=True):
        assert y.shape == (case.rows,)
        assert_is_product(y[None], x[:1], case.dense)
    (alone,) = tt.linear_group(x, buffers[:1], rows[:1])
    assert torch.equal(alone, cases[0].linear(x))
    with pytest.raises(RuntimeError, match="4 buffers, but 3 numbers of rows"):
        torch.ops.transfuse.linear_group(x, buffers, rows[:3])
    with pytest.raises(RuntimeError, match=r"the call is for weights of \[1, 520\]"):
        tt.linear_group(x, buffers[:2], [300, 1])
    tt.set_exact(True)
    for case, y in zip(cases, tt.linear_group(x, buffers, rows), strict=True):
        assert torch.equal(y, F.linear(x, case.dense))
    x.requires_grad_()
    torch.cat(tt.linear_group(x, buffers, rows), -1).sum().backward()
    other = x.detach().clone().requires_grad_()
    torch.cat([F.linear(other, case.dense) for case in cases], -1).sum().backward()
    assert x.grad is not None and other.grad is not None
    assert torch.equal(x.grad, other.grad)


@pytest.mark.parametrize("device", DEVICES)
def test_group_of_layers_that_come_and_go(device: str) -> None:
    """A group goes with any of its layers, and layers of another one at the same place make a new group."""
    x = make_x(4, 64, dtype=torch.bfloat16, device=device)
    first = Case("bf16", device, (64, 64), 0)
    gc.collect()
    known = _registry.count_layers()
    for seed in range(1, 60):
        second, third = (Case("bf16", device, (64, 64), 2 * seed + i) for i in range(2))
        for cases in ((first, second), (second, first, third), (third, second)):
            y = tt.linear_group(x, [case.buffer for case in cases], [64] * len(cases))
            for case, one in zip(cases, y, strict=True):
                assert_is_product(one, x, case.dense)
        del second, third, cases, case, y, one
        assert _registry.count_layers() == known


# ---- experts ----


def make_experts(device: str, count: int = 5, shape: tuple[int, int] = (96, 160)) -> tuple[Tensor, Tensor]:
    """Returns dense weights and their container."""
    dense = torch.stack([make_weight(*shape, torch.bfloat16, seed) for seed in range(count)])
    return dense.to(device), tt.make_container([tt.encode(one) for one in dense]).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("counts", [[3, 0, 17, 1, 9], [0, 0, 0, 0, 1], [64, 0, 0, 0, 0], [0, 0, 0, 0, 0]], ids=str)
def test_experts(counts: list[int], device: str) -> None:
    dense, container = make_experts(device)
    x = make_x(sum(counts), 160, dtype=torch.bfloat16, device=device)
    offsets = torch.tensor([0, *counts], device=device).cumsum(0).int()
    y = tt.experts(x, offsets, container, 96)
    assert y.shape == (sum(counts), 96) and y.dtype == x.dtype
    begin = 0
    for expert, count in enumerate(counts):
        assert_is_product(y[begin : begin + count], x[begin : begin + count], dense[expert])
        begin += count


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(96, 160), (17, 33)], ids=str)
def test_containers(shape: tuple[int, int], device: str) -> None:
    gc.collect()
    known = _registry.count_layers()
    dense, container = make_experts(device, 3, shape)
    assert torch.equal(tt.decode_experts(container, 3, *shape, torch.bfloat16), dense)
    assert torch.equal(tt.decode_experts(container, 3, *shape, torch.float32), dense.float())
    infos = tt.expert_infos(container)
    assert [(info.rows, info.cols, info.codec) for info in infos] == [(*shape, "bf16")] * 3
    assert _registry.count_layers() == known + 3
    with pytest.raises(ValueError, match="expert_infos tells"):
        tt.layer_info(container)
    views = tt.container_buffers(container)
    assert [view.numel() for view in views] == [info.blob_bytes for info in infos]
    for view, one in zip(views, dense, strict=True):
        assert torch.equal(tt.decode(view, *shape, torch.bfloat16), one)
    assert _registry.count_layers() == known + 3
    tt.check_experts_dtype(container, torch.bfloat16)
    with pytest.raises(transfuse.TransfuseError, match="bf16"):
        tt.check_experts_dtype(container, torch.float16)
    moved = container.clone()
    assert tt.layer_info(tt.container_buffers(moved)[1]).rows == shape[0]  # known by itself, before the container is
    assert _registry.count_layers() == known + 4
    tt.adopt(moved)
    assert torch.equal(tt.decode_experts(moved, 3, *shape, torch.bfloat16), dense)
    assert _registry.count_layers() == known + 6
    tt.forget(moved)
    assert _registry.count_layers() == known + 3
    del container, views, view
    assert _registry.count_layers() == known


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(96, 160), (17, 33)], ids=str)
def test_decoding_into_what_is_there(shape: tuple[int, int], device: str) -> None:
    """Matrices side by side, and at places that are no multiples of 16 bytes; what lies between them is left alone."""
    rows, cols = shape
    dense, container = make_experts(device, 3, shape)
    both = torch.full((3, 2 * rows, cols), 7, dtype=torch.bfloat16, device=device)
    tt.decode_experts_into(container, both[:, rows:])
    assert torch.equal(both[:, rows:], dense)
    assert bool((both[:, :rows] == 7).all())
    memory = torch.full((3 * rows * cols + 3,), 7, dtype=torch.bfloat16, device=device)
    tt.decode_experts_into(container, memory[1:-2].view(3, rows, cols))
    assert torch.equal(memory[1:-2].view(3, rows, cols), dense)
    assert memory[[0, -2, -1]].tolist() == [7, 7, 7]
    with pytest.raises(RuntimeError, match="apart"):
        tt.decode_experts_into(container, both[:1, :rows].expand(3, rows, cols))
    complex_view = torch.zeros(3, rows, cols, dtype=torch.complex64).conj()
    for view in (torch._neg_view(both[:, :rows]), complex_view, complex_view.imag):
        with pytest.raises(RuntimeError, match="negates or conjugates"):
            tt.decode_experts_into(container, view)


def test_containers_that_change_on_the_cpu() -> None:
    """Experts whose bytes have changed are adopted anew."""
    dense, container = make_experts("cpu", 3)
    other = torch.stack([make_weight(96, 160, torch.bfloat16, seed) for seed in (7, 1, 8)])
    changed = tt.make_container([tt.encode(one) for one in other])
    memory = torch.empty(max(container.numel(), changed.numel()), dtype=torch.uint8)
    for given, weights in ((container, dense), (changed, other), (container, dense)):
        view = memory[: given.numel()]
        view.copy_(given)
        assert torch.equal(tt.decode_experts(view, 3, 96, 160, torch.bfloat16), weights)


@pytest.mark.parametrize("device", DEVICES)
def test_containers_in_threads(device: str) -> None:
    """Threads that meet a container for the first time at once."""
    dense, container = make_experts(device, 3)
    known = _registry.count_layers()
    failures: list[BaseException] = []
    for _ in range(20):
        one = container.clone()
        gate = threading.Barrier(4)

        def work(index: int, one: Tensor = one, gate: threading.Barrier = gate) -> None:
            try:
                gate.wait()
                if index == 0:
                    tt.adopt(tt.container_buffers(one)[2])
                assert torch.equal(tt.decode_experts(one, 3, 96, 160, torch.bfloat16), dense)
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        del one, work, threads, thread
    assert _registry.count_layers() == known


@pytest.mark.parametrize("device", DEVICES)
def test_experts_refuse(device: str) -> None:
    _, container = make_experts(device, 2)
    x = make_x(4, 160, dtype=torch.bfloat16, device=device)
    offsets = torch.tensor([0, 1, 4], dtype=torch.int32, device=device)
    for wrong, match in (
        ((x[0], offsets, container, 96), r"x has the shape \[160\]"),
        ((x[:, 1:], offsets, container, 96), r"experts are \[96, 160\]"),
        ((x, offsets, container, 95), "for 95 rows"),
        ((x, offsets[1:], container, 96), r"offsets must be contiguous int32 \[3\]"),
        ((x, offsets.long(), container, 96), r"offsets must be contiguous int32 \[3\]"),
        ((x.float(), offsets, container, 96), "decode_experts"),
        ((x.clone().requires_grad_(), offsets, container, 96), "neither gradients"),
        ((x, offsets, container[:-1].clone(), 96), "expert 1 cannot lie at"),
        ((x, offsets, tt.container_buffers(container)[0].clone(), 96), "buffer of a layer, and no container"),
    ):
        with pytest.raises(RuntimeError, match=match):
            tt.experts(*wrong)
    for place, value in ((4, 2), (8, 0), (8, 200), (16, 1), (12, 2)):
        bad = container.clone()
        bad[place] = value
        with pytest.raises(transfuse.TransfuseError, match="container|expert"):
            tt.adopt(bad)
    bad = container.clone()
    bad[-1000:] ^= 1
    known = _registry.count_layers()
    with pytest.raises(transfuse.DataError):
        tt.adopt(bad)
    assert _registry.count_layers() == known
    with pytest.raises(ValueError, match="one expert at least"):
        tt.make_container([])


def test_container_is_no_buffer() -> None:
    """Also in a thread in which nothing was adopted before."""
    _, container = make_experts("cpu", 2)
    x = make_x(4, 160, dtype=torch.bfloat16, device="cpu")
    found: list[str] = []

    def work() -> None:
        for call in (lambda: tt.linear(x, container, None, 96), lambda: tt.decode(container, 96, 160, torch.float32)):
            try:
                call()
            except RuntimeError as failure:
                found.append(str(failure))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(found) == 2 and all("container of several layers" in text for text in found), found


def test_decode_experts_into_memory_that_overlaps() -> None:
    """No expert overwrites another, whether the library decodes the container together or one by one."""
    dense = make_weight(4 * 64, 96, torch.bfloat16).view(4, 64, 96)
    blobs = [tt.encode(weight) for weight in dense]
    containers = [
        tt.make_container(blobs),
        tt.make_container([tt.convert_layer(blobs[0], "plain"), *blobs[1:]]),
        tt.pack_experts(dense, interleave=True),
    ]
    memory = torch.zeros(4 * 64 * 96, dtype=torch.bfloat16)
    for container in containers:
        for apart in (0, 96, 64 * 96 - 1):
            with pytest.raises(RuntimeError, match=rf"overlap: they have 6144 elements each, and begin {apart} apart"):
                torch.ops.transfuse.decode_experts_into(container, memory.as_strided((4, 64, 96), (apart, 96, 1)))
        assert not memory.any()
        out = torch.zeros(8, 64, 96, dtype=torch.bfloat16)
        torch.ops.transfuse.decode_experts_into(container, out[::2])
        assert torch.equal(out[::2], dense) and not out[1::2].any()


@pytest.mark.parametrize("device", DEVICES)
def test_load_experts(device: str, source: Path, tensors: Tensors, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    transfuse.compress(source, target)
    gc.collect()
    known = _registry.count_layers()
    container = tt.load_layer(target, "layers.0.experts.up_proj", device)
    dense = tensors["layers.0.experts.up_proj"][1]
    decoded = tt.decode_experts(container, dense.shape[0], dense.shape[1], dense.shape[2], torch.bfloat16)
    assert decoded.cpu().view(torch.uint16).numpy().tobytes() == dense.tobytes()
    views = [tt.load_layer(target, f"layers.0.experts.up_proj[{expert}]", device) for expert in range(3)]
    assert torch.equal(tt.make_container(views), container)
    del views, container
    assert _registry.count_layers() == known


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck_and_compile(device: str) -> None:
    case = Case("bf16", device)
    other = Case("bf16", device, (256, 520), 1)
    _, container = make_experts(device, 2)
    x = make_x(4, 520, dtype=torch.bfloat16, device=device)
    y = make_x(4, 300, dtype=torch.bfloat16, device=device, seed=2)
    tokens = make_x(4, 160, dtype=torch.bfloat16, device=device)
    offsets = torch.tensor([0, 1, 4], dtype=torch.int32, device=device)
    check = torch.library.opcheck
    check(torch.ops.transfuse.linear_epilogue.default, (x, case.buffer, y[0], y, y, "silu", 300))
    check(torch.ops.transfuse.linear_group.default, (x, [case.buffer, other.buffer], [300, 256]))
    check(torch.ops.transfuse.experts.default, (tokens, offsets, container, 96))
    check(torch.ops.transfuse.decode_experts.default, (container, 2, 96, 160, torch.float32))

    def model(x: Tensor, tokens: Tensor) -> Tensor:
        a, b = tt.linear_group(x, [case.buffer, other.buffer], [300, 256])
        c = torch.ops.transfuse.linear_epilogue(x, case.buffer, None, a, y, "silu", 300)
        d = tt.experts(tokens, offsets, container, 96)
        return torch.cat([a, b, c, d], -1) @ torch.ones(952, 1, dtype=x.dtype, device=x.device)

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, tokens), model(x, tokens))


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_of_several_layers(device: str) -> None:
    case = Case("bf16", device)
    _, container = make_experts(device, 2)
    x = make_x(4, 520, dtype=torch.bfloat16, device=device)
    tokens = make_x(4, 160, dtype=torch.bfloat16, device=device)
    offsets = torch.tensor([0, 1, 4], dtype=torch.int32, device=device)
    with torch.autocast(device, torch.bfloat16):
        (y,) = tt.linear_group(x.float(), [case.buffer], [300])
        z = tt.experts(tokens.float(), offsets, container, 96)
    assert torch.equal(y, case.linear(x)) and torch.equal(z, tt.experts(tokens, offsets, container, 96))


@pytest.mark.parametrize("device", DEVICES)
def test_memory_of_many_groups(device: str) -> None:
    """Groups and experts come and go, some with a layer that stays; memory does not grow."""
    blobs = [tt.encode(make_weight(64, 64, torch.bfloat16, seed)).to(device) for seed in range(3)]
    container = tt.make_container(blobs)
    x = make_x(4, 64, dtype=torch.bfloat16, device=device)
    offsets = torch.tensor([0, 1, 2, 4], dtype=torch.int32, device=device)

    def cycle(count: int) -> None:
        for _ in range(count):
            tt.experts(x, offsets, container.clone(), 64)
            first, second = blobs[1].clone(), blobs[2].clone()
            tt.linear_group(x, [blobs[0], first, second], [64] * 3)
            tt.linear_group(x[:2], [second, first, blobs[0]], [64] * 3)

    cycle(500)
    gc.collect()
    known, before = _registry.count_layers(), resident_bytes()
    allocated = torch.cuda.memory_allocated() if device == "cuda" else 0
    cycle(5000)
    assert _registry.count_layers() == known
    # 200 bytes that each cycle left behind would come to 1 MB.
    assert resident_bytes() - before < 700_000
    assert device == "cpu" or torch.cuda.memory_allocated() == allocated
