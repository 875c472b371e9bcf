# SPDX-License-Identifier: Apache-2.0
"""Layers that lie plain or packed: the ops on them, and the ways to and from the coded layout."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import transfuse
from transfuse import _structs as s
from transfuse.tests.conftest import Tensors

try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    import transfuse.torch as tt
    from transfuse.torch import _layouts, _registry
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

from transfuse.tests.test_torch_ops import Case, assert_is_product, bits_of, make_weight, make_x
from transfuse.tests.torch_cases import DEVICES, UNPACKABLE, layout_bytes, make_unpackable

# Layouts beside the coded one, and the codecs of each.
LAID_OUT = [
    ("plain", "bf16"), ("plain", "bf16-size"), ("plain", "fp16"), ("packed", "bf16"), ("packed", "bf16-size"),
]  # fmt: skip
LAYOUTS = ["plain", "packed"]
SHAPES = [(300, 520), (256, 512), (271, 273), (16, 48)]
HEAD_BYTES = 256


@pytest.fixture(autouse=True)
def not_exact() -> Iterator[None]:
    yield
    tt.set_exact(False)


class LaidOutCase(Case):
    """A layer that lies in another layout; `coded` is its blob."""

    def __init__(self, layout: str, codec: str, device: str, shape: tuple[int, int] = SHAPES[0], seed: int = 0) -> None:
        super().__init__(codec, device, shape, seed)
        self.coded = self.buffer
        self.buffer = tt.convert_layer(self.coded, layout)


def every_pattern(dtype: torch.dtype) -> Tensor:
    return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(256, 256).view(dtype)


def patterns_among_others() -> Tensor:
    """All exponents, of either sign and with two mantissas, among weights of one window: no more than packing takes."""
    count = 3500 * 1024
    weight = 112 + torch.arange(count).remainder(16) << 7 | torch.arange(count).remainder(127)
    patterns = torch.arange(256) << 7
    weight[::3500] = torch.cat([pattern + sign for pattern in (patterns, patterns + 77) for sign in (0, -(1 << 15))])
    return weight.to(torch.int16).view(torch.bfloat16).view(3500, 1024)


# ---- the ops ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("layout", "codec"), LAID_OUT)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ops(layout: str, codec: str, device: str, shape: tuple[int, int]) -> None:
    case = LaidOutCase(layout, codec, device, shape)
    rows, cols = shape
    assert case.buffer.numel() == layout_bytes(layout, *shape) and case.buffer.device.type == device
    assert case.buffer.untyped_storage().nbytes() == case.buffer.numel()  # no room is left over
    assert (tt.layer_layout(case.coded), tt.layer_layout(case.buffer)) == ("coded", layout)
    assert tt.layer_info(case.buffer) == tt.layer_info(case.coded)
    dtype = case.source_dtype
    assert torch.equal(bits_of(tt.decode(case.buffer, rows, cols, dtype)), bits_of(case.source))
    assert torch.equal(tt.decode(case.buffer, rows, cols, torch.float32), case.dense.float())
    ids = torch.tensor([[0, rows - 1, 3], [3, 1, rows - 1]], device=device)
    assert torch.equal(tt.embedding(ids, case.buffer, rows, cols, dtype), F.embedding(ids, case.dense))
    bias = make_x(rows, dtype=dtype, device=device, seed=2)
    for sizes in [(1,), (3, 5), (70,)]:
        x = make_x(*sizes, cols, dtype=dtype, device=device)
        assert_is_product(case.linear(x, bias), x, case.dense, bias)
    assert case.linear(x[:0]).shape == (0, rows)
    wide = make_x(4, cols, dtype=torch.float32, device=device)
    assert torch.equal(case.linear(wide), F.linear(wide, case.dense.float()))  # by torch


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", DEVICES)
def test_epilogues(device: str, layout: str) -> None:
    case = LaidOutCase(layout, "bf16", device)
    x = make_x(5, case.cols, dtype=torch.bfloat16, device=device)
    y = make_x(5, case.rows, dtype=torch.bfloat16, device=device, seed=4)
    found = torch.ops.transfuse.linear_epilogue(x, case.buffer, None, y, y, "silu", case.rows)
    want = F.silu(F.linear(x.float(), case.dense.float())) * y + y
    assert torch.allclose(found.float(), want, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", DEVICES)
def test_groups_may_mix_layouts(device: str, layout: str) -> None:
    first, second = LaidOutCase(layout, "bf16", device), Case("bf16", device, (64, 520), 1)
    x = make_x(7, 520, dtype=torch.bfloat16, device=device)
    y = tt.linear_group(x, [first.buffer, second.buffer, first.coded], [300, 64, 300])
    for result, case in zip(y, [first, second, first]):
        assert_is_product(result, x, case.dense)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", DEVICES)
def test_gradients_and_exact_mode(device: str, layout: str) -> None:
    case = LaidOutCase(layout, "bf16", device)
    x, bias = (make_x(*sizes, dtype=torch.bfloat16, device=device) for sizes in [(6, case.cols), (case.rows,)])
    results = []
    tt.set_exact(True)
    for product in (lambda x, bias: case.linear(x, bias), lambda x, bias: F.linear(x, case.dense, bias)):
        leaves = [x.clone().requires_grad_(), bias.clone().requires_grad_()]
        y = product(*leaves)
        y.float().square().sum().backward()
        results.append([y, *(leaf.grad for leaf in leaves)])
        with torch.no_grad():
            results[-1].append(product(x, bias))
    assert all(torch.equal(found, want) for found, want in zip(*results))
    tt.set_exact(False)
    with torch.autocast(device, torch.bfloat16):
        assert case.linear(x.float()).dtype == torch.bfloat16


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", DEVICES)
def test_opcheck_and_compile(device: str, layout: str) -> None:
    case = LaidOutCase(layout, "bf16", device)
    x = make_x(3, case.cols, dtype=torch.bfloat16, device=device)
    torch.library.opcheck(torch.ops.transfuse.linear.default, (x, case.buffer, None, case.rows))
    torch.library.opcheck(torch.ops.transfuse.decode.default, (case.buffer, case.rows, case.cols, torch.bfloat16))

    def model(x: Tensor) -> Tensor:
        return F.relu(case.linear(x)) @ tt.decode(case.buffer, case.rows, case.cols, x.dtype)

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", DEVICES)
def test_experts(device: str, layout: str) -> None:
    """Packed experts multiply; the library does not multiply by plain ones, and says so. Both are decoded."""
    cases = [LaidOutCase(layout, "bf16", device, (32, 48), seed) for seed in range(3)]
    container = tt.make_container([case.buffer for case in cases])
    dense = torch.stack([case.dense for case in cases])
    assert torch.equal(tt.decode_experts(container, 3, 32, 48, torch.bfloat16), dense)
    x = make_x(4, 48, dtype=torch.bfloat16, device=device)
    offsets = torch.tensor([0, 1, 2, 4], dtype=torch.int32, device=device)
    if layout == "packed":
        tt.check_experts_dtype(container, torch.bfloat16)
        wanted = torch.cat([x[0:1] @ dense[0].T, x[1:2] @ dense[1].T, x[2:4] @ dense[2].T])
        torch.testing.assert_close(tt.experts(x, offsets, container, 32), wanted)
        return
    with pytest.raises(transfuse.UnsupportedError, match=f"layout '{layout}'"):
        tt.check_experts_dtype(container, torch.bfloat16)
    with pytest.raises(RuntimeError, match=f"layout '{layout}'"):
        tt.experts(x, offsets, container, 32)


# ---- how layers are known ----


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", DEVICES)
def test_buffers_are_adopted_wherever_they_are_copied(device: str, layout: str) -> None:
    case = LaidOutCase(layout, "bf16-size", device)
    for copied in (case.buffer.clone(), case.buffer.cpu().to(device)):
        assert tt.layer_layout(copied) == layout
        assert torch.equal(tt.decode(copied, case.rows, case.cols, torch.bfloat16), case.dense)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", DEVICES)
def test_layers_are_forgotten_with_their_storage(device: str, layout: str) -> None:
    gc.collect()
    before = _registry.count_layers()
    case = LaidOutCase(layout, "bf16", device)
    case.linear(make_x(1, case.cols, dtype=torch.bfloat16, device=device))
    assert _registry.count_layers() == before + 2
    del case
    gc.collect()
    assert _registry.count_layers() == before
    assert len(_layouts._made._of) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("place", "value", "error", "words"),
    [
        (4, 77, transfuse.UnsupportedError, "layout that is not known, 77"),
        (40, 9, transfuse.DataError, "checksum"),
        (6, 9, transfuse.DataError, "checksum"),
        (0, 1, transfuse.DataError, "magic"),
    ],
)
def test_bad_heads(place: int, value: int, error: type[Exception], words: str, device: str, layout: str) -> None:
    case = LaidOutCase(layout, "bf16", device)
    bad = case.buffer.clone()
    bad[place] = value
    with pytest.raises(error, match=words):
        tt.adopt(bad)
    with pytest.raises(RuntimeError, match=words):
        tt.decode(bad, case.rows, case.cols, torch.bfloat16)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", DEVICES)
def test_cut_buffers(device: str, layout: str) -> None:
    buffer = LaidOutCase(layout, "bf16", device).buffer
    for size in (5, 100, HEAD_BYTES, buffer.numel() - 2):
        with pytest.raises(transfuse.DataError):
            tt.adopt(buffer[:size].clone())


# ---- from one layout to the other ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"favor": "size"}, {"codec": "bf16"}], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_there_and_back(options: dict[str, str], shape: tuple[int, int], layout: str, device: str) -> None:
    """The blob comes again byte for byte, as one of this version's encoder; F32 that was rounded, too."""
    dtypes = [torch.float32] if "codec" in options else [torch.bfloat16, torch.float16]
    for dtype in dtypes[:1] if layout == "packed" else dtypes:
        blob = tt.encode(make_weight(*shape, dtype), **options).to(device)
        laid_out = tt.convert_layer(blob, layout)
        assert tt.convert_layer(laid_out, layout) is laid_out and tt.convert_layer(blob, "coded") is blob
        info = tt.layer_info(laid_out)
        assert info.dtype == {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]
        again = tt.convert_layer(laid_out, "coded")
        assert _registry.is_known(again)
        assert again.device.type == device and torch.equal(again, blob)
        assert torch.equal(tt.decode(laid_out, *shape, dtype), tt.decode(blob, *shape, dtype))
        other = tt.convert_layer(laid_out, "plain")
        assert tt.layer_layout(other) == "plain" and torch.equal(
            tt.decode(other, *shape, dtype), tt.decode(blob, *shape, dtype)
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("favor", ["speed", "size"])
@pytest.mark.parametrize(
    ("layout", "dtype"),
    [("plain", torch.bfloat16), ("plain", torch.float16), ("packed", torch.bfloat16)],
    ids=str,
)
def test_every_pattern(layout: str, dtype: torch.dtype, favor: str, device: str) -> None:
    """NaNs with their payloads, infinities, both zeros and denormals."""
    weight = every_pattern(dtype) if layout == "plain" else patterns_among_others()
    blob = tt.encode(weight, favor=favor).to(device)
    laid_out = tt.convert_layer(blob, layout)
    rows, cols = weight.shape
    assert torch.equal(bits_of(tt.decode(laid_out, rows, cols, dtype)), bits_of(weight))
    assert torch.equal(tt.convert_layer(laid_out, "coded"), blob)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_options_that_the_command_does_not_have(layout: str) -> None:
    """A blob of other probability bits and narrow slabs; all of it stands in the head."""
    from transfuse._arrays import take_weights
    from transfuse._layer import Layer
    from transfuse._options import fill_encode_options

    options = s.EncodeOptionsStruct()
    fill_encode_options(options, codec="auto", favor="speed", bits=None, granularity=None, threads=0, verify=True)
    options.probability_bits, options.slab_cols = 11, 256
    array = make_weight(300, 520, torch.bfloat16).view(torch.uint16).numpy()
    data = Layer._encode(*take_weights(array, "bf16"), options).to_bytes()
    blob = torch.frombuffer(bytearray(data), dtype=torch.uint8).clone()
    info = tt.layer_info(blob)
    assert (info.probability_bits, info.slab_cols) == (11, 256)
    assert torch.equal(tt.convert_layer(tt.convert_layer(blob, layout), "coded"), blob)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", DEVICES)
def test_what_is_made_again_is_shared(device: str, layout: str) -> None:
    case = LaidOutCase(layout, "bf16", device)
    assert tt.convert_layer(case.coded, layout).data_ptr() == case.buffer.data_ptr()
    again = tt.convert_layer(case.buffer, "coded")
    assert tt.convert_layer(case.buffer, "coded").data_ptr() == again.data_ptr()
    # Other weights at the same place are another layer.
    other = LaidOutCase(layout, "bf16", device, seed=5)
    tt.forget(case.buffer)
    assert case.buffer.numel() == other.buffer.numel()
    case.buffer.copy_(other.buffer)
    assert torch.equal(tt.convert_layer(case.buffer, "coded"), other.coded)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("layout", "codec"),
    [(layout, codec) for layout in LAYOUTS for codec in ("int8", "int-bf16")]
    + [("packed", "fp16"), ("plain", "fp8_e4m3")],
)
def test_codecs_that_a_layout_does_not_take(layout: str, codec: str, device: str) -> None:
    case = Case(codec, device)
    with pytest.raises(transfuse.UnsupportedError, match=f"'{layout}' does not take the codec"):
        tt.convert_layer(case.buffer, layout)
    with pytest.raises(transfuse.ArgumentError, match="layout is 'woven'; it must be one of coded, packed, plain"):
        tt.convert_layer(case.buffer, "woven")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", UNPACKABLE)
def test_weights_that_cannot_be_packed(kind: str, device: str) -> None:
    """Nothing is left of such a layer, and its blob goes on being one."""
    weight = make_unpackable(kind, 128, 256)
    blob = tt.encode(weight).to(device)
    tt.adopt(blob)
    gc.collect()
    known = _registry.count_layers()
    with pytest.raises(transfuse.UnsupportedError, match=f"cannot be packed: .*{UNPACKABLE[kind]}"):
        tt.convert_layer(blob, "packed")
    gc.collect()
    assert _registry.count_layers() == known
    assert torch.equal(bits_of(tt.decode(blob, 128, 256, torch.bfloat16)), bits_of(weight))


@pytest.mark.parametrize("device", DEVICES)
def test_no_way_by_the_host(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that are there are converted on their device, whatever they are: nobody decodes and encodes."""
    weight = make_weight(320, 1024, torch.bfloat16)
    blob = tt.encode(weight).to(device)
    tt.adopt(blob)

    def fail(*_: object) -> None:
        raise AssertionError("no layer is to go this way")

    monkeypatch.setattr("transfuse.torch._ops.decode", fail)
    monkeypatch.setattr("transfuse.torch._encode.encode_like", fail)
    packed = tt.convert_layer(blob, "packed")
    unpacked = tt.convert_layer(packed, "plain")
    again = tt.convert_layer(unpacked, "packed")
    plain = tt.convert_layer(blob, "plain")
    monkeypatch.undo()
    assert [tt.layer_layout(made) for made in (packed, unpacked, again, plain)] == ["packed", "plain"] * 2
    assert torch.equal(unpacked, plain)
    for made in (packed, plain, again):
        assert torch.equal(tt.decode(made, 320, 1024, torch.bfloat16).cpu(), weight)
        assert made.untyped_storage().nbytes() == made.numel()


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_different_size(device: str) -> None:
    """A plain layer has lost its blob's row offsets, without which it cannot be packed: they are found again."""
    weight = make_weight(300, 512, torch.bfloat16).float()
    weight = (weight * torch.tensor([2.0 ** (row * 5 % 7 * 6) for row in range(300)])[:, None]).to(torch.bfloat16)
    blob = tt.encode(weight).to(device)
    plain = tt.convert_layer(blob, "plain")
    with pytest.raises(transfuse.UnsupportedError, match="cannot be packed"):
        _registry.convert(plain, s.Layout.PACKED)
    packed = tt.convert_layer(plain, "packed")
    assert tt.layer_layout(packed) == "packed"
    assert torch.equal(bits_of(tt.decode(packed, 300, 512, torch.bfloat16)), bits_of(weight))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_not_there(device: str) -> None:
    """Only layers that are known are converted, and not to what they are; the old one stays."""
    blob = tt.encode(make_weight(64, 64, torch.bfloat16)).to(device)
    with pytest.raises(transfuse.TransfuseError, match="no layer at this place"):
        _registry.convert(blob, s.Layout.PACKED)
    tt.adopt(blob)
    with pytest.raises(transfuse.ArgumentError, match="coded already"):
        _registry.convert(blob, s.Layout.CODED)
    assert tt.layer_layout(blob) == "coded" and tt.decode(blob, 64, 64, torch.bfloat16).shape == (64, 64)


@pytest.mark.parametrize("device", DEVICES)
def test_stored_tiles(device: str) -> None:
    """A layer that needs some of the room that there is while it is packed."""
    weight = make_weight(256, 1024, torch.bfloat16)
    weight[64:96, 32:48] = 1e30  # 512 weights of one packed tile
    laid_out = tt.convert_layer(tt.encode(weight).to(device), "packed")
    assert laid_out.numel() == layout_bytes("packed", 256, 1024) + 64 * 32 * 2
    assert laid_out.untyped_storage().nbytes() == laid_out.numel()
    assert torch.equal(tt.decode(laid_out, 256, 1024, torch.bfloat16).cpu(), weight)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_load_layer(layout: str, device: str, source: Path, tensors: Tensors, tmp_path: Path) -> None:
    transfuse.compress(source, tmp_path / "trf.safetensors")
    with tt.open_checkpoint(tmp_path / "trf.safetensors") as checkpoint:
        for name, dtype in (("q_proj", torch.bfloat16), ("k_proj", torch.float16))[: 1 if layout == "packed" else 2]:
            name = f"layers.0.{name}.weight"
            buffer = tt.load_layer(checkpoint, name, device, layout=layout)
            values = tensors[name][1]
            rows, cols = values.shape
            assert tt.layer_layout(buffer) == layout and _registry.is_known(buffer)
            assert buffer.untyped_storage().nbytes() == buffer.numel() == layout_bytes(layout, rows, cols)
            assert bits_of(tt.decode(buffer, rows, cols, dtype)).numpy().tobytes() == values.tobytes()
        with pytest.raises(transfuse.UnsupportedError, match=r"codes\.weight.*codec int"):
            tt.load_layer(checkpoint, "layers.0.codes.weight", device, layout=layout)
        with pytest.raises(transfuse.UnsupportedError, match="experts are loaded coded"):
            tt.load_layer(checkpoint, "layers.0.experts.up_proj", device, layout=layout)
        one = tt.load_layer(checkpoint, "layers.0.experts.up_proj[1]", device, layout=layout)
        assert tt.layer_info(one).rows == 96
        with pytest.raises(transfuse.ArgumentError, match="layout is 'woven'"):
            tt.load_layer(checkpoint, "layers.0.q_proj.weight", device, layout="woven")
