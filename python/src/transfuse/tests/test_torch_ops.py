# SPDX-License-Identifier: Apache-2.0
"""The torch ops on compressed layers, on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import transfuse
from transfuse.tests.conftest import Tensors

try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
    from torch.autograd import forward_ad

    import transfuse.torch as tt
    from transfuse.torch import _load, _ops_library, _registry
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

from transfuse.tests.torch_cases import DEVICES, resident_bytes

# name: source dtype, options of encode, dtypes of x that the codec multiplies
CODECS: dict[str, tuple[torch.dtype, dict[str, Any], list[torch.dtype]]] = {
    "bf16": (torch.bfloat16, {}, [torch.bfloat16]),
    "bf16-size": (torch.bfloat16, {"favor": "size"}, [torch.bfloat16]),
    "fp16": (torch.float16, {}, [torch.float16]),
    "fp8_e4m3": (torch.float8_e4m3fn, {}, [torch.bfloat16, torch.float16]),
    "fp8_e5m2": (torch.float8_e5m2, {}, [torch.bfloat16, torch.float16]),
    "int8": (torch.int8, {}, [torch.bfloat16, torch.float16]),
    "int-bf16": (torch.bfloat16, {"bits": 5.7}, [torch.bfloat16, torch.float16]),
    "int-f32": (torch.float32, {"bits": 4.25, "granularity": "scale-group:32"}, [torch.bfloat16, torch.float16]),
}
# A cut tile, whole tiles, slivers at both borders, less than a tile.
SHAPES = [(300, 520), (256, 512), (271, 273), (16, 48)]


def make_weight(rows: int, cols: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, cols, generator=generator)
    return (30 * values).round().clamp(-127, 127).to(dtype) if dtype == torch.int8 else (0.02 * values).to(dtype)


def make_x(*sizes: int, dtype: torch.dtype, device: str, seed: int = 1) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def bits_of(tensor: Tensor) -> Tensor:
    return tensor.cpu().contiguous().view(torch.uint8)


class Case:
    """A layer with its dense weights, as decoding gives them."""

    def __init__(self, codec: str, device: str, shape: tuple[int, int] = SHAPES[0], seed: int = 0) -> None:
        self.source_dtype, options, self.x_dtypes = CODECS[codec]
        self.rows, self.cols = shape
        self.source = make_weight(*shape, self.source_dtype, seed)
        self.buffer = tt.encode(self.source, **options).to(device)
        self.is_lossless = not codec.startswith("int-")
        self.dense = tt.decode(self.buffer, *shape, self.source_dtype)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return tt.linear(x, self.buffer, bias, self.rows)


@pytest.fixture(autouse=True)
def not_exact() -> Iterator[None]:
    yield
    tt.set_exact(False)


def assert_is_product(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Holds y to the product in F64: F32 sums of up to 520 terms, then one rounding to y's dtype."""
    wide = x.double() @ weight.double().T
    magnitude = x.double().abs() @ weight.double().abs().T
    if bias is not None:
        wide, magnitude = wide + bias.double(), magnitude + bias.double().abs()
    # 2^-24 an addition; a half unit of the last place.
    bound = magnitude * weight.shape[1] * 2.0**-24 + wide.abs() * torch.finfo(y.dtype).eps / 2 + 1e-7
    worst = ((y.double() - wide).abs() / bound).max().item() if y.numel() else 0.0
    assert worst <= 1, f"the error is {worst} of the bound"


# ---- decoding ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decode_gives_the_source(codec: str, device: str, shape: tuple[int, int]) -> None:
    case = Case(codec, device, shape)
    assert case.dense.dtype == case.source_dtype and case.dense.device.type == device
    if case.is_lossless:
        assert torch.equal(bits_of(case.dense), bits_of(case.source))
    else:
        values = transfuse.Layer.from_bytes(case.buffer.cpu().numpy().tobytes()).decode()
        assert bits_of(case.dense).flatten().numpy().tobytes() == values.tobytes()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("codec", CODECS)
def test_decode_converts(codec: str, dtype: torch.dtype, device: str) -> None:
    case = Case(codec, device)
    assert torch.equal(tt.decode(case.buffer, case.rows, case.cols, dtype), case.dense.to(dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("codec", CODECS)
def test_embedding(codec: str, device: str) -> None:
    case = Case(codec, device)
    for ids in (
        torch.tensor([[3, 299, 0], [3, 3, 17]], device=device),
        torch.tensor(7, dtype=torch.int32, device=device),
        torch.arange(12, device=device).view(3, 4).T,
        torch.empty(0, 5, dtype=torch.int64, device=device),
    ):
        for dtype in (case.source_dtype, torch.bfloat16):
            rows = tt.embedding(ids, case.buffer, case.rows, case.cols, dtype)
            assert rows.shape == (*ids.shape, case.cols) and rows.dtype == dtype
            assert torch.equal(bits_of(rows), bits_of(case.dense[ids.long()].to(dtype)))


def test_embedding_refuses_rows_that_there_are_not() -> None:
    case = Case("bf16", "cpu")
    for wrong in (300, -1):
        with pytest.raises(IndexError, match=f"there is no row {wrong}; there are 300"):
            tt.embedding(torch.tensor([0, wrong]), case.buffer, case.rows, case.cols, torch.bfloat16)
    with pytest.raises(RuntimeError, match="ids must be int32 or int64"):
        tt.embedding(torch.tensor([0.0]), case.buffer, case.rows, case.cols, torch.bfloat16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_embedding_of_rows_that_there_are_not_is_nan_on_a_gpu() -> None:
    case = Case("bf16", "cuda")
    ids = torch.tensor([0, 300, -1, 299], device="cuda")
    rows = tt.embedding(ids, case.buffer, case.rows, case.cols, torch.bfloat16)
    assert rows[1:3].isnan().all() and torch.equal(rows[0], case.dense[0]) and torch.equal(rows[3], case.dense[299])


# ---- products ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear(codec: str, device: str, shape: tuple[int, int]) -> None:
    case = Case(codec, device, shape)
    for dtype in case.x_dtypes:
        for m in (1, 3, 17, 65):
            x = make_x(m, case.cols, dtype=dtype, device=device)
            bias = make_x(case.rows, dtype=dtype, device=device, seed=2) if m == 3 else None
            y = case.linear(x, bias)
            assert y.dtype == dtype and y.shape == (m, case.rows)
            # What is multiplied are the layer's values, which decoding rounds once more where a scale is involved.
            weight = tt.decode(case.buffer, *shape, torch.float32) if case.is_lossless else None
            if weight is not None:
                assert_is_product(y, x, weight, bias)
            else:
                wide = F.linear(x.double(), case.dense.double(), None if bias is None else bias.double())
                assert (y.double() - wide).norm() <= 0.01 * wide.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_bf16_that_was_fp8_multiplies_as_bf16(device: str) -> None:
    numbers = (100 * make_weight(300, 520, torch.bfloat16, 0).float()).to(torch.float8_e4m3fn)
    source = numbers.to(torch.bfloat16) * 0.01
    buffer = tt.encode(source, codec="fp8_e4m3").to(device)
    dense = source.to(device)
    for tokens in (1, 8, 70):
        x = make_x(tokens, 520, dtype=torch.bfloat16, device=device)
        assert_is_product(tt.linear(x, buffer, None, 300), x, dense)
    x = make_x(5, 520, dtype=torch.float16, device=device)
    assert torch.equal(tt.linear(x, buffer, None, 300), F.linear(x, dense.to(torch.float16)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_linear_of_other_dtypes_is_torchs_own(dtype: torch.dtype, device: str) -> None:
    case = Case("bf16", device)
    x = make_x(2, 4, case.cols, dtype=dtype, device=device)
    bias = make_x(case.rows, dtype=dtype, device=device, seed=2)
    assert torch.equal(case.linear(x, bias), F.linear(x, case.dense.to(dtype), bias))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool], ids=str)
def test_linear_takes_no_integers(dtype: torch.dtype, exact: bool) -> None:
    """Weights as integers would be zero, and so would y."""
    case = Case("bf16", "cpu")
    x = torch.ones(2, case.cols, dtype=dtype)
    key = tt.layer_key(case.buffer)
    tt.set_exact(exact)
    try:
        for call in (
            lambda: case.linear(x),
            lambda: tt.linear_by_key(x, key, None, case.rows),
            lambda: tt.linear_group(x, [case.buffer] * 2, [case.rows] * 2),
        ):
            with pytest.raises(RuntimeError, match="its dtype must be a float one"):
                call()
    finally:
        tt.set_exact(False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_forward_mode(dtype: torch.dtype) -> None:
    """Tangents are those of the dense product, not zero; ops without gradients refuse."""
    case = Case("bf16", "cpu")
    x, tangent = (make_x(3, case.cols, dtype=dtype, device="cpu", seed=seed) for seed in (1, 2))
    weight = case.dense.to(dtype)
    for product in (case.linear, lambda x: tt.linear_group(x, [case.buffer] * 2, [case.rows] * 2)[1]):
        y, found = torch.func.jvp(product, (x,), (tangent,))[:2]
        assert torch.equal(found, F.linear(tangent, weight)) and torch.equal(y, F.linear(x, weight))
        hessian = torch.func.hessian(lambda x, product=product: product(x).square().sum())(x[0, :])
        assert torch.equal(hessian, torch.func.hessian(lambda x: F.linear(x, weight).square().sum())(x[0, :]))
        with forward_ad.dual_level():
            dual = product(forward_ad.make_dual(x, tangent))
            assert torch.equal(forward_ad.unpack_dual(dual).tangent, F.linear(tangent, weight))
    key = tt.layer_key(case.buffer)
    with pytest.raises(RuntimeError, match="linear_by_key has no gradients"):
        torch.func.jvp(lambda x: tt.linear_by_key(x, key, None, case.rows), (x,), (tangent,))


@pytest.mark.parametrize("device", DEVICES)
def test_linear_takes_any_layout_of_x(device: str) -> None:
    case = Case("bf16", device)
    base = make_x(6, case.cols, dtype=torch.bfloat16, device=device)
    wider = make_x(6, case.cols + 8, dtype=torch.bfloat16, device=device)
    for x in (
        base[0],
        base.view(1, 2, 3, 1, case.cols),
        base[::2],
        wider[:, 3 : 3 + case.cols],
        base.T.contiguous().T,
        base[:1].expand(4, case.cols),
        base[0].expand(2, 3, case.cols),
    ):
        y = case.linear(x)
        assert y.shape == (*x.shape[:-1], case.rows) and y.is_contiguous()
        assert torch.equal(y, case.linear(x.clone(memory_format=torch.contiguous_format)))
        assert_is_product(y.reshape(-1, case.rows), x.reshape(-1, case.cols), case.dense)
    for sizes in ((0, case.cols), (2, 0, case.cols)):
        y = case.linear(torch.empty(sizes, dtype=torch.bfloat16, device=device))
        assert y.shape == (*sizes[:-1], case.rows)


@pytest.mark.parametrize("device", DEVICES)
def test_linear_refuses(device: str) -> None:
    case = Case("bf16", device)
    x = make_x(2, case.cols, dtype=torch.bfloat16, device=device)

    def refuse(match: str, x: Tensor = x, buffer: Tensor = case.buffer, bias: Any = None, rows: int = 300) -> None:
        with pytest.raises(RuntimeError, match=match):
            tt.linear(x, buffer, bias, rows)

    refuse(r"the call is for weights of \[301, 520\]; the layer has \[300, 520\]", rows=301)
    refuse(r"the call is for weights of \[300, 519\]", x=x[:, 1:])
    refuse("x has no dimensions", x=x[0, 0])
    refuse(r"bias has the shape \[299\]; it must be \[300\]", bias=x[0, :299])
    refuse("bias must be of x's dtype", bias=x[0, :300].float())
    refuse("contiguous uint8 tensor of one dimension", buffer=case.buffer[::2])
    refuse("contiguous uint8 tensor of one dimension", buffer=case.buffer.view(torch.int8))
    off = torch.empty(case.buffer.numel() + 1, dtype=torch.uint8, device=device)[1:].copy_(case.buffer)
    refuse(r"lies at 1 beyond a multiple of \d+ bytes; what clone\(\) gives does not", buffer=off)
    refuse("TRF_ERR_TRUNCATED", buffer=case.buffer[:-1].clone())
    refuse("TRF_ERR_MAGIC", buffer=torch.zeros_like(case.buffer))
    assert case.linear(x).shape == (2, 300)


# ---- the registry ----


@pytest.mark.parametrize("device", DEVICES)
def test_layers_are_forgotten_with_their_storage(device: str) -> None:
    gc.collect()
    before = _registry.count_layers()
    blob = tt.encode(make_weight(64, 64, torch.bfloat16)).to(device)
    tt.adopt(blob)
    tt.adopt(blob)
    parameter = torch.nn.Parameter(blob, requires_grad=False)
    assert _registry.count_layers() == before + 1
    del blob
    gc.collect()
    assert _registry.count_layers() == before + 1
    moved = parameter.detach().clone()
    assert tt.layer_info(moved).rows == 64  # adopts it
    assert _registry.count_layers() == before + 2
    tt.forget(moved)
    assert _registry.count_layers() == before + 1
    del parameter
    assert _registry.count_layers() == before


@pytest.mark.parametrize("device", DEVICES)
def test_other_bytes_at_the_same_place(device: str) -> None:
    """Memory is used again by allocators, and by whoever writes into a buffer and says so."""
    x = make_x(2, 64, dtype=torch.bfloat16, device=device)
    for seed in range(50):
        case = Case("bf16", device, (64, 64), seed)
        assert torch.equal(case.linear(x), case.linear(x)) and torch.equal(bits_of(case.dense), bits_of(case.source))
    other = Case("bf16", device, (64, 64), 99)
    memory = torch.empty(max(case.buffer.numel(), other.buffer.numel()), dtype=torch.uint8, device=device)
    for one in (case, other, case):
        view = memory[: one.buffer.numel()]
        if device != "cpu":  # there it is seen
            tt.forget(view)
        view.copy_(one.buffer)
        assert torch.equal(tt.linear(x, view, None, 64), one.linear(x))


@pytest.mark.parametrize("device", DEVICES)
def test_load_layer(device: str, source: Path, tensors: Tensors, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    transfuse.compress(source, target)
    gc.collect()
    before = _registry.count_layers()
    with tt.open_checkpoint(target) as checkpoint:
        blob = tt.load_layer(checkpoint, "layers.0.q_proj.weight", device)
        expert = tt.load_layer(checkpoint, "layers.0.experts.up_proj[1]", device)
    assert blob.device.type == device and _registry.count_layers() == before + 2
    for one, dense in (
        (blob, tensors["layers.0.q_proj.weight"][1]),
        (expert, tensors["layers.0.experts.up_proj"][1][1]),
    ):
        assert (
            tt.decode(one, dense.shape[0], dense.shape[1], torch.bfloat16).cpu().view(torch.uint16).numpy().tobytes()
            == dense.tobytes()
        )
    same = tt.load_layer(target, "layers.0.q_proj.weight", device)
    assert torch.equal(same, blob)
    del blob, expert, one, same
    assert _registry.count_layers() == before


def test_loads_end_before_a_checkpoint_is_closed(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a checkpoint, or a copy of it, while a thread loads from it frees nothing that the thread reads."""
    target = tmp_path / "model.safetensors"
    transfuse.compress(source, target)
    wanted = tt.load_layer(target, "layers.0.q_proj.weight", "cpu")
    checkpoint = tt.open_checkpoint(target)
    handle, copied = weakref.ref(checkpoint.handle), copy.copy(checkpoint)
    real_call = _ops_library.call

    def close_and_call(name: str, *arguments: object) -> None:
        if name == "trf_torch_load":
            checkpoint.close()
            copied.close()
        real_call(name, *arguments)

    monkeypatch.setattr(_load, "call", close_and_call)
    assert torch.equal(tt.load_layer(checkpoint, "layers.0.q_proj.weight", "cpu"), wanted)
    assert handle() is None
    for closed in (checkpoint, copied):
        with pytest.raises(ValueError, match="is closed"):
            tt.load_layer(closed, "layers.0.q_proj.weight", "cpu")


def test_load_layer_refuses(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    transfuse.compress(source, target)
    with tt.open_checkpoint(target) as checkpoint:
        with pytest.raises(transfuse.NotFoundError, match="layers.9"):
            tt.load_layer(checkpoint, "layers.9.weight", "cpu")
        with pytest.raises(transfuse.ArgumentError, match="norm"):
            tt.load_layer(checkpoint, "layers.0.norm.weight", "cpu")
        stop = tt.Cancel()
        stop.set()
        with pytest.raises(transfuse.CancelledError):
            tt.load_layer(checkpoint, "layers.0.q_proj.weight", "cpu", cancel=stop)
        with pytest.raises(ValueError, match="not on meta"):
            tt.load_layer(checkpoint, "layers.0.q_proj.weight", "meta")
        wrong: list[Any] = [(0.0, 16), (0,), "ab", 5, (0, True), (None, 16)]
        for rows in wrong:
            with pytest.raises(TypeError, match="rows must be two ints"):
                tt.load_layer(checkpoint, "layers.0.q_proj.weight", "cpu", rows=rows)
    with pytest.raises(ValueError, match="is closed"):
        tt.load_layer(checkpoint, "layers.0.q_proj.weight", "cpu")
    with pytest.raises(transfuse.NotFoundError):
        tt.open_checkpoint(tmp_path / "nothing")
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 1
    target.write_bytes(data)
    before = _registry.count_layers()
    with tt.open_checkpoint(target) as checkpoint:
        with pytest.raises(transfuse.DataError, match="model.safetensors"):
            for name in ("q_proj.weight", "k_proj.weight", "v_proj.weight", "codes.weight", "experts.up_proj[0]"):
                tt.load_layer(checkpoint, f"layers.0.{name}", "cpu")
            for expert in (1, 2):
                tt.load_layer(checkpoint, f"layers.0.experts.up_proj[{expert}]", "cpu")
    assert _registry.count_layers() == before


# ---- gradients, exact mode, autocast ----

X_SHAPES = [(7, 520), (2, 3, 520), (1, 1, 520), (520,), (1, 520), (0, 520)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("x_shape", X_SHAPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_exact_mode_is_the_uncompressed_model(
    with_bias: bool, x_shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> None:
    """Values and gradients bit for bit; what the layer multiplies in exact mode is the source itself."""
    case = Case("bf16", device)
    weight = case.source.to(device, dtype)
    tt.set_exact(True)
    results = []
    for compressed in (True, False):
        x = make_x(*x_shape, dtype=dtype, device=device).requires_grad_()
        bias = make_x(300, dtype=dtype, device=device, seed=2).requires_grad_() if with_bias else None
        with torch.no_grad():
            plain = case.linear(x, bias) if compressed else F.linear(x, weight, bias)
        y = case.linear(x, bias) if compressed else F.linear(x, weight, bias)
        y.backward(make_x(*y.shape, dtype=dtype, device=device, seed=3))
        results.append([plain, y, x.grad, *([] if bias is None else [bias.grad])])
    for one, other in zip(*results, strict=True):
        assert one.shape == other.shape and torch.equal(bits_of(one), bits_of(other))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients(device: str) -> None:
    """Without exact mode: an error against F64 of at most twice that of the uncompressed layer."""
    case = Case("bf16", device)
    weight = case.source.to(device)
    grad = make_x(7, 300, dtype=torch.bfloat16, device=device, seed=3)
    x, other = (make_x(7, 520, dtype=torch.bfloat16, device=device).requires_grad_() for _ in range(2))
    case.linear(x).backward(grad)
    F.linear(other, weight).backward(grad)
    true = grad.double() @ weight.double()
    assert x.grad is not None and other.grad is not None
    assert (x.grad.double() - true).norm() <= 2 * (other.grad.double() - true).norm()
    # The layer's buffer is what autograd keeps, not its weights.
    kept = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        case.linear(x)
    assert kept == case.buffer.numel()
    with torch.no_grad():
        assert not case.linear(x).requires_grad
    assert not case.linear(x.detach()).requires_grad


@pytest.mark.parametrize("device", DEVICES)
def test_second_derivatives(device: str) -> None:
    case = Case("bf16", device, (16, 48))
    x = make_x(3, 48, dtype=torch.float64, device=device).requires_grad_()
    assert torch.autograd.gradcheck(case.linear, (x,))
    assert torch.autograd.gradgradcheck(lambda x: case.linear(x).square(), (x,))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_autocast(requires_grad: bool, dtype: torch.dtype, exact: bool, device: str) -> None:
    """x and bias become what they become for F.linear."""
    case = Case("bf16", device)
    tt.set_exact(exact)
    x = make_x(4, 520, dtype=dtype, device=device)
    bias = make_x(300, dtype=dtype, device=device, seed=2)
    weight = case.source.to(device, torch.float64 if dtype == torch.float64 else None)
    grads = []
    for compressed in (True, False):
        leaf = x.clone().requires_grad_(requires_grad)
        with torch.autocast(device, torch.bfloat16):
            y = case.linear(leaf, bias) if compressed else F.linear(leaf, weight, bias)
        assert y.dtype == (torch.float64 if dtype == torch.float64 else torch.bfloat16)
        if exact:
            grads.append(y)
        if requires_grad:
            y.sum().backward()
            assert leaf.grad is not None and leaf.grad.dtype == dtype
            grads.append(leaf.grad)
    assert not grads or all(torch.equal(a, b) for a, b in zip(grads[::2], grads[1::2], strict=True)) or len(grads) == 4
    if len(grads) == 4:
        assert torch.equal(grads[0], grads[2]) and torch.equal(grads[1], grads[3])


# ---- torch.compile, and what torch checks of ops ----


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device: str) -> None:
    case = Case("bf16", device)
    bias = make_x(300, dtype=torch.bfloat16, device=device, seed=2)
    ids = torch.tensor([[0, 299], [5, 5]], device=device)
    for sizes in ((3, 520), (2, 3, 520), (520,), (0, 520)):
        x = make_x(*sizes, dtype=torch.bfloat16, device=device)
        for b in (None, bias):
            torch.library.opcheck(torch.ops.transfuse.linear.default, (x, case.buffer, b, 300))
    torch.library.opcheck(torch.ops.transfuse.linear.default, (x.float(), case.buffer, None, 300))
    torch.library.opcheck(torch.ops.transfuse.decode.default, (case.buffer, 300, 520, torch.float32))
    torch.library.opcheck(torch.ops.transfuse.embedding.default, (ids, case.buffer, 300, 520, torch.bfloat16))


@pytest.mark.parametrize("device", DEVICES)
def test_compile(device: str) -> None:
    case = Case("bf16", device)
    compiles = 0

    def counting(graph: Any, _inputs: Any) -> Any:
        nonlocal compiles
        compiles += 1
        return graph.forward

    def model(x: Tensor, ids: Tensor) -> Tensor:
        y = F.silu(case.linear(x)) @ tt.decode(case.buffer, 300, 520, x.dtype)
        return y + tt.embedding(ids, case.buffer, 300, 520, x.dtype)

    compiled = torch.compile(model, backend=counting, fullgraph=True, dynamic=True)
    x = make_x(5, 520, dtype=torch.bfloat16, device=device)
    ids = torch.arange(5, device=device)
    assert torch.equal(compiled(x, ids), model(x, ids))
    assert torch.equal(compiled(x[:3], ids[:3]), model(x[:3], ids[:3]))
    assert compiles == 1
    tt.set_exact(True)
    assert torch.equal(compiled(x, ids), model(x, ids))
    assert compiles == 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("exact", [False, True])
def test_compile_with_gradients_and_autocast(exact: bool, device: str) -> None:
    case = Case("bf16", device)
    tt.set_exact(exact)

    def model(x: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return case.linear(x).float().square().sum()

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for requires_grad in (False, True):
        grads: list[Any] = []
        for function in (model, compiled):
            x = make_x(5, 520, dtype=torch.float32, device=device).requires_grad_(requires_grad)
            y = function(x)
            if requires_grad:
                y.backward()
            grads.append((y.detach(), x.grad))
        assert torch.equal(grads[0][0], grads[1][0])
        assert not requires_grad or torch.equal(grads[0][1], grads[1][1])


@pytest.mark.parametrize("device", DEVICES)
def test_inductor(device: str) -> None:
    case = Case("bf16", device)

    def model(x: Tensor) -> Tensor:
        return F.silu(case.linear(x * 2)) + 1

    x = make_x(5, 520, dtype=torch.bfloat16, device=device)
    try:
        y = torch.compile(model, fullgraph=True)(x)
    except Exception as failure:
        if "compiler" in str(failure).lower():
            pytest.skip("inductor finds no compiler here")
        raise
    torch.testing.assert_close(y, model(x))


# ---- threads and processes ----


@pytest.mark.parametrize("device", DEVICES)
def test_threads(device: str) -> None:
    """Threads that adopt, multiply and forget at once, each with more batches than a layer keeps plans of."""
    shared = Case("bf16", device)
    x = make_x(100, 520, dtype=torch.bfloat16, device=device)
    expected = {m: shared.linear(x[:m]) for m in range(1, 101, 3)}
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for turn in range(3):
                own = shared.buffer.clone()
                for m, y in expected.items():
                    assert torch.equal(tt.linear(x[:m], shared.buffer, None, 300), y)
                    if (m + seed + turn) % 5 == 0:
                        assert torch.equal(tt.linear(x[:m], own, None, 300), y)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_fork() -> None:
    """What is on the CPU goes on in a child, which adopts layers, too."""
    case = Case("bf16", "cpu")
    x = make_x(2, 520, dtype=torch.bfloat16, device="cpu")
    y = case.linear(x)
    other = case.buffer.clone()  # here: torch's own threads do not outlive a fork
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            code = 0 if torch.equal(case.linear(x), y) and torch.equal(tt.linear(x, other, None, 300), y) else 1
        except BaseException:
            code = 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_fork_refuses_a_gpu() -> None:
    case = Case("bf16", "cuda")
    x = make_x(2, 520, dtype=torch.bfloat16, device="cuda")
    case.linear(x)
    child = os.fork()
    if child == 0:
        try:
            case.linear(x)
            code = 1
        except RuntimeError as failure:
            code = 0 if "fork" in str(failure) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert case.linear(x).shape == (2, 300)


@pytest.mark.parametrize("device", DEVICES)
def test_memory_of_many_layers(device: str) -> None:
    """10,000 layers come and go; memory does not grow."""
    blob = tt.encode(make_weight(64, 64, torch.bfloat16)).to(device)
    x = make_x(2, 64, dtype=torch.bfloat16, device=device)

    def cycle(count: int) -> None:
        for _ in range(count):
            tt.linear(x, blob.clone(), None, 64)

    gc.collect()
    known = _registry.count_layers()
    cycle(1000)
    before, allocated = resident_bytes(), torch.cuda.memory_allocated() if device == "cuda" else 0
    cycle(9000)
    assert _registry.count_layers() == known
    # A leak of a layer's smallest part, 100 bytes, would come to 900 kB.
    assert resident_bytes() - before < 800_000
    assert device == "cpu" or torch.cuda.memory_allocated() == allocated
