# SPDX-License-Identifier: Apache-2.0
"""The torch ops on compressed layers, on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
try:
    import transfuse.torch as tt
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

import torch.nn.functional as F  # noqa: E402

from transfuse.torch import _registry  # noqa: E402

Tensor = torch.Tensor
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]
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
        self.blob = tt.encode(self.source, **options).to(device)
        self.is_lossless = not codec.startswith("int-")
        self.dense = tt.decode(self.blob, *shape, self.source_dtype)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return tt.linear(x, self.blob, bias, self.rows)


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
        from transfuse import Layer

        values = Layer.from_bytes(case.blob.cpu().numpy().tobytes()).decode()
        assert bits_of(case.dense).flatten().numpy().tobytes() == values.tobytes()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("codec", CODECS)
def test_decode_converts(codec: str, dtype: torch.dtype, device: str) -> None:
    case = Case(codec, device)
    assert torch.equal(tt.decode(case.blob, case.rows, case.cols, dtype), case.dense.to(dtype))


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
            rows = tt.embedding(ids, case.blob, case.rows, case.cols, dtype)
            assert rows.shape == (*ids.shape, case.cols) and rows.dtype == dtype
            assert torch.equal(bits_of(rows), bits_of(case.dense[ids.long()].to(dtype)))


def test_embedding_refuses_rows_that_there_are_not() -> None:
    case = Case("bf16", "cpu")
    for wrong in (300, -1):
        with pytest.raises(IndexError, match=f"there is no row {wrong}; there are 300"):
            tt.embedding(torch.tensor([0, wrong]), case.blob, case.rows, case.cols, torch.bfloat16)
    with pytest.raises(RuntimeError, match="ids must be int32 or int64"):
        tt.embedding(torch.tensor([0.0]), case.blob, case.rows, case.cols, torch.bfloat16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_embedding_of_rows_that_there_are_not_is_nan_on_a_gpu() -> None:
    case = Case("bf16", "cuda")
    ids = torch.tensor([0, 300, -1, 299], device="cuda")
    rows = tt.embedding(ids, case.blob, case.rows, case.cols, torch.bfloat16)
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
            weight = tt.decode(case.blob, *shape, torch.float32) if case.is_lossless else None
            if weight is not None:
                assert_is_product(y, x, weight, bias)
            else:
                wide = F.linear(x.double(), case.dense.double(), None if bias is None else bias.double())
                assert (y.double() - wide).norm() <= 0.01 * wide.norm()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_linear_of_other_dtypes_is_torchs_own(dtype: torch.dtype, device: str) -> None:
    case = Case("bf16", device)
    x = make_x(2, 4, case.cols, dtype=dtype, device=device)
    bias = make_x(case.rows, dtype=dtype, device=device, seed=2)
    assert torch.equal(case.linear(x, bias), F.linear(x, case.dense.to(dtype), bias))


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

    def refuse(match: str, x: Tensor = x, blob: Tensor = case.blob, bias: Any = None, rows: int = 300) -> None:
        with pytest.raises(RuntimeError, match=match):
            tt.linear(x, blob, bias, rows)

    refuse(r"the call is for weights of \[301, 520\]; the layer has \[300, 520\]", rows=301)
    refuse(r"the call is for weights of \[300, 519\]", x=x[:, 1:])
    refuse("x has no dimensions", x=x[0, 0])
    refuse(r"bias has the shape \[299\]; it must be \[300\]", bias=x[0, :299])
    refuse("bias must be of x's dtype", bias=x[0, :300].float())
    refuse("contiguous uint8 tensor of one dimension", blob=case.blob[::2])
    refuse("contiguous uint8 tensor of one dimension", blob=case.blob.view(torch.int8))
    refuse("TRF_ERR_TRUNCATED", blob=case.blob[:-1].clone())
    refuse("TRF_ERR_MAGIC", blob=torch.zeros_like(case.blob))
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
    assert tt.blob_info(moved).rows == 64  # adopts it
    assert _registry.count_layers() == before + 2
    tt.forget(moved)
    assert _registry.count_layers() == before + 1
    del parameter
    assert _registry.count_layers() == before


@pytest.mark.parametrize("device", DEVICES)
def test_other_bytes_at_the_same_place(device: str) -> None:
    """Memory is used again by allocators, and by whoever writes into a blob and says so."""
    x = make_x(2, 64, dtype=torch.bfloat16, device=device)
    for seed in range(50):
        case = Case("bf16", device, (64, 64), seed)
        assert torch.equal(case.linear(x), case.linear(x)) and torch.equal(bits_of(case.dense), bits_of(case.source))
    other = Case("bf16", device, (64, 64), 99)
    blob = torch.empty(max(case.blob.numel(), other.blob.numel()), dtype=torch.uint8, device=device)
    for one in (case, other):
        view = blob[: one.blob.numel()]
        tt.forget(view)
        view.copy_(one.blob)
        assert torch.equal(tt.linear(x, view, None, 64), one.linear(x))
