# SPDX-License-Identifier: Apache-2.0
"""Modules with compressed weights: products, ties, and what moves, copies, saves and loads them."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transfuse
from transfuse.tests.torch_cases import TiedModel, exact, make_ids, make_model, normal, same_bits
from transfuse.torch import _encode, _registry
from transfuse.torch._compress import compress_model
from transfuse.torch._modules import (
    TransfuseEmbedding,
    TransfuseLinear,
    TransfuseScaledEmbedding,
    make_embedding,
)

# Rows and columns: whole tiles, slivers at both borders, fewer than a tile, long and flat.
SHAPES = [(256, 512), (271, 273), (16, 48), (33, 1000), (1000, 17)]


def make_linear(rows: int = 300, cols: int = 200, bias: bool = True, dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    linear = nn.Linear(cols, rows, bias, dtype=dtype)
    linear.weight.data = normal(rows, cols, dtype=dtype)
    if bias:
        linear.bias.data = normal(rows, dtype=dtype, seed=1, scale=1.0)
    return linear.requires_grad_(False)


def round_trip(module: Any, way: str) -> Any:
    if way == "deepcopy":
        return copy.deepcopy(module)
    if way == "pickle":
        return pickle.loads(pickle.dumps(module))
    data = io.BytesIO()
    torch.save(module, data, _use_new_zipfile_serialization=way == "save")
    data.seek(0)
    return torch.load(data, weights_only=False)


# ---- products ----


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_linear(shape: tuple[int, int], dtype: torch.dtype) -> None:
    linear = make_linear(*shape, dtype=dtype)
    compressed = TransfuseLinear.from_linear(linear)
    assert isinstance(compressed, nn.Linear) and compressed.bias is linear.bias
    assert compressed.weight_dtype == dtype and same_bits(compressed.decode_weight(), linear.weight)
    x = normal(3, 5, shape[1], dtype=dtype, seed=2, scale=1.0)
    want = F.linear(x.double(), linear.weight.double(), linear.bias.double())
    own, theirs = (F.linear(x, linear.weight, linear.bias), compressed(x))
    assert theirs.dtype == dtype and theirs.shape == own.shape
    # Both sum up in F32 and round once; the order of the sums differs.
    assert (theirs.double() - want).abs().max() <= 2 * (own.double() - want).abs().max()
    with exact():
        assert same_bits(compressed(x), own)


def test_linear_without_bias_in_other_shapes() -> None:
    linear = make_linear(bias=False)
    compressed = TransfuseLinear.from_linear(linear, favor="size")
    assert compressed.bias is None and list(dict(compressed.named_parameters())) == ["weight"]
    with exact():
        for x in (normal(200), normal(0, 200), normal(4, 0, 200), normal(200, 7).T, normal(2, 3, 4, 200)):
            assert same_bits(compressed(x), linear(x))
    assert compressed(normal(0, 200)).shape == (0, 300)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_embedding(dtype: torch.dtype) -> None:
    weight = normal(500, 72, dtype=torch.float32, scale=1.0).to(dtype)
    blob = _encode.encode(weight)
    embedding = TransfuseEmbedding.from_buffer(blob, 500, 72, dtype, padding_idx=-1)
    assert isinstance(embedding, nn.Embedding) and embedding.padding_idx == 499
    for ids in (torch.tensor(7), torch.tensor([[0, 499], [3, 3]], dtype=torch.int32), torch.arange(500).flip(0)):
        assert same_bits(embedding(ids), weight.view(torch.uint8).view(500, -1)[ids.long()].view(dtype))
    with pytest.raises(IndexError):
        embedding(torch.tensor([500]))


class LikeGemmaScaledWordEmbedding(nn.Embedding):
    embed_scale: Tensor

    def __init__(self, rows: int, cols: int, padding_idx: int, embed_scale: float) -> None:
        super().__init__(rows, cols, padding_idx)
        self.scalar_embed_scale = embed_scale
        self.register_buffer("embed_scale", torch.tensor(embed_scale), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * self.embed_scale.to(self.weight.dtype)


class LikeBartScaledWordEmbedding(nn.Embedding):
    def __init__(self, rows: int, cols: int, padding_idx: int, embed_scale: float) -> None:
        super().__init__(rows, cols, padding_idx)
        self.embed_scale = embed_scale

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * self.embed_scale


@pytest.mark.parametrize("kind", [LikeGemmaScaledWordEmbedding, LikeBartScaledWordEmbedding])
def test_scaled_embedding(kind: type[Any]) -> None:
    dense = kind(100, 48, 0, 48**0.5 + 0.01)
    dense.weight.data = normal(100, 48, dtype=torch.float32, scale=1.0)
    dense = dense.bfloat16()
    ids = torch.arange(100)
    made = TransfuseEmbedding.from_embedding(dense)
    assert isinstance(made, TransfuseScaledEmbedding) and same_bits(made(ids), dense(ids))
    assert float(made.embed_scale) == pytest.approx(48**0.5 + 0.01, rel=0.004)
    # The other way of rounding the scale gives other bits, so that the test can tell them apart.
    other = TransfuseScaledEmbedding.with_scale(made, made.scale, not made.rounds_scale)
    assert not same_bits(other(ids), dense(ids))
    assert same_bits(copy.deepcopy(made).half()(ids), dense.half()(ids))
    assert "embed_scale" not in made.state_dict()


def test_unknown_embeddings_are_refused() -> None:
    class Positional(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids + 2)

    blob = _encode.encode(normal(64, 32))
    with pytest.raises(TypeError, match="what a Positional does"):
        make_embedding(Positional(64, 32), blob)
    with pytest.raises(ValueError, match="max_norm"):
        TransfuseEmbedding.from_embedding(nn.Embedding(64, 32, max_norm=1.0, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="from_embedding takes"):
        TransfuseEmbedding.from_embedding(nn.Linear(4, 4))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="from_linear takes"):
        TransfuseLinear.from_linear(TransfuseLinear.from_linear(make_linear()))
    with pytest.raises(ValueError, match="padding_idx is 70"):
        TransfuseEmbedding(64, 32, padding_idx=70)


# ---- blobs that do not fit ----


def test_wrong_blobs_are_refused() -> None:
    blob = _encode.encode(normal(64, 32))
    with pytest.raises(ValueError, match="64 x 32 weights, and the module's are 32 x 64"):
        TransfuseLinear.from_buffer(blob, 32, 64)
    with pytest.raises(ValueError, match="torch.bfloat16, not torch.float16"):
        TransfuseLinear.from_buffer(blob, 64, 32, torch.float16)
    with pytest.raises(TypeError, match=r"not torch.bfloat16 \[64, 32\]; TransfuseLinear.from_linear"):
        TransfuseLinear.from_buffer(normal(64, 32), 64, 32)
    with pytest.raises(transfuse.DataError):
        TransfuseLinear.from_buffer(blob[:-16].clone(), 64, 32)
    layer = TransfuseLinear.from_buffer(blob, 64, 32)
    with pytest.raises(TypeError, match="not torch.bfloat16"):
        layer.weight = nn.Parameter(normal(64, 32))
    with pytest.raises(TypeError, match="not None"):
        layer.register_parameter("weight", None)
    assert same_bits(layer.decode_weight(), normal(64, 32))
    with pytest.raises(transfuse.ArgumentError):
        TransfuseLinear.from_linear(make_linear(dtype=torch.float32))


def test_repr_says_what_is_inside() -> None:
    layer = TransfuseLinear.from_linear(make_linear())
    bits = 8 * layer.weight.numel() / (300 * 200)
    said = f"in_features=200, out_features=300, bias=True, codec=bf16, bits={bits:.2f}, dtype=torch.bfloat16"
    assert repr(layer) == f"TransfuseLinear({said})"
    quantized = TransfuseLinear.from_linear(make_linear(512, 512), bits=4.25)
    assert "codec=int, bits=4.2" in repr(quantized) and "dtype=torch.bfloat16" in repr(quantized)
    assert "weights to be loaded" in repr(TransfuseLinear(8, 8))


# ---- ties ----


def test_tied_weights_are_one_parameter() -> None:
    dense, model = make_model(), make_model()
    compress_model(model, embeddings=True)
    assert model.lm_head.weight is model.embed_tokens.weight
    assert len(list(model.parameters())) == len(list(dense.parameters()))
    ids = make_ids(model, 2, 9)
    with exact():
        assert same_bits(model(ids), dense(ids))
    for way in ("deepcopy", "pickle", "save"):
        again = round_trip(model, way)
        assert again.lm_head.weight is again.embed_tokens.weight
        assert again.lm_head.weight.data_ptr() != model.lm_head.weight.data_ptr()
        assert same_bits(again(ids), model(ids))
    model.to(torch.float16)
    assert model.lm_head.weight is model.embed_tokens.weight
    # A new blob for one is a new blob for the other.
    other = make_model(seed=3)
    compress_model(other, embeddings=True)
    model.load_state_dict({k: v for k, v in other.state_dict().items() if k != "lm_head.weight"}, strict=False)
    assert model.lm_head.weight is model.embed_tokens.weight
    assert same_bits(model.lm_head.decode_weight(), other.embed_tokens.decode_weight())


def test_transformers_can_tie_compressed_weights() -> None:
    embedding = TransfuseEmbedding.from_buffer(_encode.encode(normal(128, 48)), 128, 48)
    head = TransfuseLinear(48, 128, bias=False, device="meta", dtype=torch.bfloat16)
    head.weight = embedding.weight  # what PreTrainedModel.tie_weights does
    assert head.weight is embedding.weight
    x = normal(2, 48, scale=1.0)
    with exact():
        assert same_bits(head(x), F.linear(x, normal(128, 48)))


# ---- moving, copying, saving ----


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save", "legacy save"])
def test_copies_work_and_are_adopted(way: str) -> None:
    layer = TransfuseLinear.from_linear(make_linear())
    x = normal(4, 200, seed=2, scale=1.0)
    want, count = layer(x), _registry.count_layers()
    again = round_trip(layer, way)
    assert type(again) is TransfuseLinear and again.weight is not layer.weight
    assert again.weight_dtype == torch.bfloat16 and again.training == layer.training
    # Only of the legacy format the bytes come after the module: it is adopted by its first product.
    assert _registry.count_layers() == count + (way != "legacy save")
    assert same_bits(again(x), want)
    del layer
    gc.collect()
    assert same_bits(again(x), want)
    del again
    gc.collect()
    assert _registry.count_layers() == count - 1


def test_casts_leave_the_blob() -> None:
    linear = make_linear()
    layer = TransfuseLinear.from_linear(copy.deepcopy(linear))
    blob = layer.weight.clone()
    for dtype in (torch.float16, torch.float32, torch.float64, torch.bfloat16):
        layer.to(dtype)
        assert layer.weight_dtype == torch.bfloat16 and same_bits(layer.weight, blob)
        assert layer.bias is not None and layer.bias.dtype == dtype
        x = normal(3, 200, dtype=dtype, seed=4, scale=1.0)
        # BF16 multiplied as it is; any other dtype by decoded weights, as torch does.
        want = F.linear(x, linear.weight.to(dtype), layer.bias)
        with exact():
            assert same_bits(layer(x), want)
        assert layer(x).dtype == dtype
        torch.testing.assert_close(layer(x), want, rtol=0.02, atol=0.02)
    with pytest.raises(TypeError, match="cannot be made torch.float16"):
        layer.type(torch.float16)
    assert same_bits(layer.weight, blob)
    assert same_bits(layer.decode_weight(), linear.weight)


def test_embedding_follows_the_models_dtype() -> None:
    dense, model = make_model(), make_model()
    compress_model(model, embeddings=True)
    ids = make_ids(model, 3, 4)
    for dtype in (torch.float16, torch.float32, torch.bfloat16):
        assert same_bits(model.to(dtype).embed_tokens(ids), dense.embed_tokens(ids).to(dtype))
        assert model(ids).dtype == dtype


def test_moving_adopts_the_blob() -> None:
    layer = TransfuseLinear.from_linear(make_linear())
    x = normal(2, 200, scale=1.0)
    want, before = layer(x), layer.weight
    layer.share_memory()
    assert layer.weight is before and layer.weight.untyped_storage().is_shared()
    count = _registry.count_layers()
    assert same_bits(layer(x), want) and _registry.count_layers() == count
    meta = copy.deepcopy(layer).to("meta")
    assert meta.weight.is_meta and meta.weight.dtype == torch.uint8 and meta.weight_dtype == torch.bfloat16
    with pytest.raises(ValueError, match="no weights yet"):
        meta.decode_weight()
    # What to_empty makes is no layer: it waits for one, and a product with it does not go unnoticed.
    empty = meta.to_empty(device="cpu")
    empty.weight.data.zero_()
    with pytest.raises(Exception, match="buffer of"):
        empty(x)
    empty.load_state_dict(layer.state_dict())
    assert same_bits(empty(x), want)


def test_no_gradient_for_weights() -> None:
    model = make_model()
    compress_model(model)
    model.requires_grad_(False)
    with pytest.raises(RuntimeError, match="cannot be trained"):
        model.up.requires_grad_()
    with pytest.raises(RuntimeError, match="cannot be drawn"):
        model.up.reset_parameters()


# ---- state dicts ----


def test_state_dict_round_trip(tmp_path: Path) -> None:
    model, other = make_model(), make_model(seed=1)
    compress_model(model, embeddings=True)
    compress_model(other, embeddings=True, favor="size")
    assert set(model.state_dict()) == set(make_model().state_dict())
    lengths = [model.up.weight.numel(), other.up.weight.numel()]
    assert lengths[0] != lengths[1], "blobs of the same length would test less"
    torch.save(model.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    parameter = other.up.weight
    count = _registry.count_layers()
    other.load_state_dict(state)
    assert other.up.weight is parameter and _registry.count_layers() == count
    ids = make_ids(model, 2, 5)
    assert same_bits(other(ids), model(ids))
    # The state dict's memory is its own.
    state["up.weight"].zero_()
    assert same_bits(other(ids), model(ids))


def test_state_dict_assigned_to_a_model_on_the_meta_device() -> None:
    model = make_model()
    compress_model(model, embeddings=True)
    with torch.device("meta"):
        empty = TiedModel().bfloat16().eval()
        empty.embed_tokens = TransfuseEmbedding(130, 72, 3)
        empty.up, empty.down = TransfuseLinear(72, 300), TransfuseLinear(300, 72, bias=False)
        empty.lm_head = TransfuseLinear(72, 130, bias=False)
    assert empty.up.weight.is_meta and empty.up.weight.numel() == 0
    with pytest.warns(UserWarning, match="meta parameter"):
        empty.load_state_dict(model.state_dict())
    assert empty.up.weight.is_meta
    empty.load_state_dict(model.state_dict(), assign=True)
    empty.embed_tokens._set_output_dtype(torch.bfloat16)
    assert empty.up.weight_dtype == torch.bfloat16 and empty.up.weight.data_ptr() == model.up.weight.data_ptr()
    ids = make_ids(model, 2, 5)
    assert same_bits(empty(ids), model(ids))


def test_state_dict_of_memory_that_is_not_aligned() -> None:
    layer = TransfuseLinear.from_linear(make_linear())
    room = torch.empty(layer.weight.numel() + 3, dtype=torch.uint8)
    odd = room[3:]
    odd.copy_(layer.weight)
    fresh = TransfuseLinear(200, 300, dtype=torch.bfloat16)
    fresh.load_state_dict({"weight": odd, "bias": layer.bias}, assign=True)
    assert same_bits(fresh.decode_weight(), layer.decode_weight())


def test_wrong_state_dicts_are_refused() -> None:
    linear = make_linear()
    layer = TransfuseLinear.from_linear(linear)
    blob = layer.weight.clone()
    other = TransfuseLinear.from_linear(make_linear(200, 300))
    for assign in (False, True):
        for weight, words in (
            (linear.weight, "a layer's buffer .* not torch.bfloat16"),
            (other.weight, "200 x 300 weights"),
            (blob[:-1].clone(), "buffer of"),
        ):
            with pytest.raises(RuntimeError, match=f'"weight": .*{words}'):
                layer.load_state_dict({"weight": weight, "bias": linear.bias}, assign=assign)
            assert same_bits(layer.weight, blob) and same_bits(layer.decode_weight(), linear.weight)
    with pytest.raises(RuntimeError, match='"weight": .*on the meta device in the state dict'):
        layer.load_state_dict({"weight": blob.to("meta"), "bias": linear.bias})
    assert same_bits(layer.weight, blob) and same_bits(layer.decode_weight(), linear.weight)
    with pytest.raises(RuntimeError, match='Missing key.*"weight"'):
        layer.load_state_dict({"bias": linear.bias})
    with pytest.raises(RuntimeError, match='Unexpected key.*"scale"'):
        layer.load_state_dict({**layer.state_dict(), "scale": blob})


def test_bias_of_a_bad_state_dict_is_loaded_like_torch_does() -> None:
    layer, bias = TransfuseLinear.from_linear(make_linear()), normal(300, seed=9)
    with pytest.raises(RuntimeError):
        layer.load_state_dict({"weight": normal(300, 200), "bias": bias})
    assert layer.bias is not None and same_bits(layer.bias, bias)


# ---- graphs ----


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_as_one_graph(backend: str) -> None:
    model = make_model()
    compress_model(model, embeddings=True)
    ids = make_ids(model, 2, 9)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with torch.no_grad():
        assert same_bits(compiled(ids), model(ids))
        with exact():
            want = make_model()(ids)
            assert same_bits(compiled(ids), want)
        assert same_bits(compiled(ids), model(ids))


def test_compiles_with_inductor() -> None:
    layers = nn.Sequential(make_linear(64, 48), nn.GELU(), make_linear(33, 64))
    x = normal(5, 48, scale=1.0)
    compress_model(layers)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            result = torch.compile(layers, fullgraph=True)(x)
        except torch._inductor.exc.InductorError as failure:  # no compiler for C++
            pytest.skip(f"torch.compile has no back end here: {str(failure).splitlines()[0]}")
    # GELU in F32, rounded once or twice.
    torch.testing.assert_close(result, layers(x), rtol=0.02, atol=0.02)


def test_gradients_through_a_layer() -> None:
    linear = make_linear()
    layer = TransfuseLinear.from_linear(linear)
    x = normal(6, 200, seed=5, scale=1.0)
    weight = normal(6, 300, seed=6, scale=1.0)

    def gradient(module: nn.Module, value: Tensor, times: Tensor) -> Tensor:
        value = value.clone().requires_grad_()
        (module(value) * times).sum().backward()
        assert value.grad is not None
        return value.grad

    with exact():
        assert same_bits(gradient(layer, x, weight), gradient(linear, x, weight))
    want = gradient(copy.deepcopy(linear).double(), x.double(), weight.double())
    error = (gradient(layer, x, weight).double() - want).abs().max()
    assert error <= 2 * (gradient(linear, x, weight).double() - want).abs().max()
