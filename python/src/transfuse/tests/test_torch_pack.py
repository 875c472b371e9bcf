# SPDX-License-Identifier: Apache-2.0
"""Packed layers of dense weights, without a blob: `pack`, and the modules and models that are made by it."""

from __future__ import annotations

import pytest

import transfuse

try:
    import torch
    from torch import Tensor, nn

    import transfuse.torch as tt
    from transfuse.torch import _encode
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

from transfuse.tests.test_torch_ops import bits_of, make_weight, make_x
from transfuse.tests.torch_cases import DEVICES, UNPACKABLE, make_unpackable

SHAPES = [(1, 1), (16, 48), (271, 273), (300, 520)]
HEAD_BYTES = 256


def make_bf16(rows: int, cols: int, device: str) -> Tensor:
    return make_weight(rows, cols, torch.bfloat16).to(device)


def assert_is_layer_of(buffer: Tensor, weight: Tensor) -> None:
    assert tt.layer_layout(buffer) == "packed" and buffer.device == weight.device
    assert buffer.untyped_storage().nbytes() == buffer.numel()  # no room is left over
    assert torch.equal(bits_of(tt.decode(buffer, weight.shape[0], weight.shape[1], torch.bfloat16)), bits_of(weight))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pack(shape: tuple[int, int], device: str) -> None:
    """The weights come back, and the bytes are those that a plain layer becomes."""
    weight = make_bf16(*shape, device)
    packed = tt.pack(weight)
    assert_is_layer_of(packed, weight)
    due = tt.convert_layer(tt.convert_layer(tt.encode(weight).to(device), "plain"), "packed")
    assert torch.equal(packed[HEAD_BYTES:], due[HEAD_BYTES:])
    assert torch.equal(tt.pack(weight), packed)


@pytest.mark.parametrize("device", DEVICES)
def test_repack(device: str) -> None:
    """Other weights come to lie where the old ones did; what does not fit, or is no such matrix, changes nothing."""
    first = make_bf16(300, 520, device)
    packed = tt.pack(first, stored_room=2)
    assert_is_layer_of(packed, first)
    assert packed.numel() == tt.pack(first).numel() + 2 * 4096
    key, address, x = tt.layer_key(packed), packed.data_ptr(), make_x(5, 520, dtype=torch.bfloat16, device=device)
    # Whole tiles of other exponents have to be stored; two of them fit.
    wild, wilder = first * 1.25, first * 1.25
    wild[:64, :32] *= 2.0**40
    wild[64:128, 64:96] *= 2.0**-40
    wilder[:64, :96] *= 2.0**40
    for weight in (first * 1.25, wild, first):
        tt.repack(packed, weight)
        assert packed.data_ptr() == address
        assert_is_layer_of(packed, weight)
        with torch.no_grad():
            assert torch.equal(tt.linear_by_key(x, key, None, 300), tt.linear(x, packed, None, 300))
            due = tt.linear(x, tt.pack(weight), None, 300)
            assert torch.allclose(tt.linear_by_key(x, key, None, 300).float(), due.float(), rtol=0.02, atol=0.02)
    with pytest.raises(transfuse.UnsupportedError, match="has room for 2"):
        tt.repack(packed, wilder)
    with pytest.raises(transfuse.ArgumentError, match="300x519 weights cannot be packed like 300x520"):
        tt.repack(packed, first[:, 1:])
    with pytest.raises(transfuse.ArgumentError, match="like a packed one"):
        tt.repack(tt.encode(first).to(device), first)
    assert_is_layer_of(packed, first)


@pytest.mark.parametrize("device", DEVICES)
def test_what_was_converted_before(device: str) -> None:
    """Layers that were made of other weights do not stand for the ones that are there now."""
    weight = make_bf16(300, 520, device)
    other = weight * 1.25
    packed = tt.pack(weight)
    coded, plain = tt.convert_layer(packed, "coded"), tt.convert_layer(packed, "plain")
    again = tt.convert_layer(plain, "packed")
    assert tt.convert_layer(packed, "coded").data_ptr() == coded.data_ptr()
    assert tt.convert_layer(plain, "packed").data_ptr() == again.data_ptr()
    tt.repack(packed, other)
    tt.repack(again, other)
    assert torch.equal(tt.convert_layer(packed, "coded").cpu(), tt.encode(other))
    assert_is_layer_of(tt.convert_layer(plain, "packed"), weight)
    assert_is_layer_of(again, other)


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
def test_repack_under_a_graph() -> None:
    """A CUDA graph that has captured a product multiplies by the weights that came later."""
    first = make_bf16(512, 1024, "cuda")
    packed, x = tt.pack(first, stored_room=1), make_x(4, 1024, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        tt.linear(x, packed, None, 512)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = tt.linear(x, packed, None, 512)
        for factor in (1.0, 1.5, 0.75, 1.0):
            weight = first * factor
            weight[:64, :32] *= 2.0**40 if factor == 1.5 else 1
            tt.repack(packed, weight)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(y, tt.linear(x, packed, None, 512))
            assert_is_layer_of(packed, weight)


@pytest.mark.parametrize("device", DEVICES)
def test_wherever_the_weights_lie(device: str) -> None:
    """Parts of a matrix, rows at any address, columns of a transposed one, a row for all."""
    whole = make_bf16(300, 530, device)
    for weight in (whole[:, 3:515], whole[7:, :], whole[::3, 1:], whole.T, whole[:1].expand(40, 530), whole[:, :1]):
        assert_is_layer_of(tt.pack(weight), weight)
    weight = make_bf16(48, 64, device)
    negated = torch._neg_view(weight)  # memory has the other signs
    assert_is_layer_of(tt.pack(negated), -weight)
    packed = tt.pack(weight)
    tt.repack(packed, negated)
    assert_is_layer_of(packed, -weight)
    (expert,) = tt.container_buffers(tt.pack_experts(negated[None], interleave=False))
    assert torch.equal(bits_of(tt.decode(expert, 48, 64, torch.bfloat16)), bits_of(-weight))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_no_matrix(device: str) -> None:
    for weight in (
        torch.zeros(4, 4, device=device),
        torch.zeros(4, dtype=torch.bfloat16, device=device),
        torch.zeros(0, 4, dtype=torch.bfloat16, device=device),
        make_bf16(8, 8, device).to_sparse(),
        make_bf16(8, 8, device).to_sparse_csr(),
        torch.nested.nested_tensor([make_bf16(8, 8, device)]),
    ):
        with pytest.raises(ValueError, match="must be a bfloat16 matrix"):
            tt.pack(weight)
    with pytest.raises(TypeError, match=r"must be a torch\.Tensor"):
        tt.pack([[1.0]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on the CPU or on a CUDA device"):
        tt.pack(torch.zeros(4, 4, dtype=torch.bfloat16, device="meta"))


@pytest.mark.parametrize("kind", UNPACKABLE)
@pytest.mark.parametrize("device", DEVICES)
def test_weights_that_are_not_packed(kind: str, device: str) -> None:
    with pytest.raises(transfuse.UnsupportedError, match=UNPACKABLE[kind]):
        tt.pack(make_unpackable(kind, 300, 520).to(device))


@pytest.mark.parametrize("device", DEVICES)
def test_a_blob_by_the_default_options(device: str) -> None:
    weight = make_bf16(300, 520, device)
    assert torch.equal(tt.convert_layer(tt.pack(weight), "coded").cpu(), tt.encode(weight))


@pytest.mark.parametrize("device", DEVICES)
def test_modules(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module is packed straight from its weights, and saved as one that was encoded; options of the blob's form are
    kept, which takes an encoder."""
    linear = nn.Linear(520, 300, dtype=torch.bfloat16, device=device)
    coded = tt.TransfuseLinear.from_linear(linear)
    small = tt.TransfuseLinear.from_linear(linear, layout="packed", favor="size")
    assert small.info().class_bits == 4
    x = make_x(3, 520, dtype=torch.bfloat16, device=device)
    due = tt.TransfuseLinear.from_linear(linear, layout="plain")(x)

    encode = _encode.encode
    monkeypatch.setattr(_encode, "encode", None)
    packed = tt.TransfuseLinear.from_linear(linear, layout="packed")
    assert packed.layout == "packed"
    torch.testing.assert_close(packed(x), due)
    model = nn.Sequential(nn.Linear(520, 300, dtype=torch.bfloat16, device=device), nn.Embedding(9, 7))
    report = tt.compress_model(model, layout="packed", include=["0.weight"])
    assert report.compressed["0.weight"].layout == "packed"
    monkeypatch.setattr(_encode, "encode", encode)
    assert torch.equal(packed.state_dict()["weight"].cpu(), coded.state_dict()["weight"].cpu())


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_different_size(device: str) -> None:
    """What takes row offsets to pack is packed by way of a coded layer, which has them."""
    linear = nn.Linear(520, 300, bias=False, dtype=torch.bfloat16, device=device)
    with torch.no_grad():
        linear.weight.mul_(2.0 ** (torch.arange(300, device=device) * 5 % 7 * 6).to(torch.bfloat16)[:, None])
    with pytest.raises(transfuse.UnsupportedError):
        tt.pack(linear.weight)
    layer = tt.TransfuseLinear.from_linear(linear, layout="packed")
    assert layer.layout == "packed"
    assert torch.equal(bits_of(layer.decode_weight()), bits_of(linear.weight.detach()))


@pytest.mark.skipif("cuda" not in DEVICES, reason="there is no GPU")
def test_streams() -> None:
    """What the current stream writes is packed; a captured one refuses."""
    weights = [make_bf16(2048, 4096, "cuda") for _ in range(8)]
    large = torch.randn(4096, 4096, device="cuda")
    for _ in range(8):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            weight = torch.empty_like(weights[0])
            for _ in range(4):
                large @ large  # what follows is late
            weight.copy_(weights[1])
            packed = tt.pack(weight)
        assert_is_layer_of(packed, weights[1])
    with (
        pytest.raises(RuntimeError, match="CUDA graph is captured"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        tt.pack(weights[0])
