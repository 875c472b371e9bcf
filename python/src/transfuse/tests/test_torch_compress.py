# SPDX-License-Identifier: Apache-2.0
"""compress_model: what is taken, what is left and why, shared weights, progress and Ctrl-C."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import Tensor, nn

import transfuse
from transfuse.tests.torch_cases import exact, make_ids, make_model, normal, same_bits
from transfuse.torch import _compress, _encode
from transfuse.torch._compress import compress_model
from transfuse.torch._modules import CompressedModule, TransfuseEmbedding, TransfuseLinear


def linear(rows: int, cols: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> nn.Linear:
    made = nn.Linear(cols, rows, bias=False, dtype=dtype)
    made.weight.data = normal(rows, cols, dtype=dtype, seed=seed)
    return made.requires_grad_(False)


def compressed_names(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, CompressedModule)}


def test_model() -> None:
    dense, model = make_model(), make_model()
    before = dict(model.named_modules())
    report = compress_model(model)
    assert compressed_names(model) == {"up", "down"} == {name.removesuffix(".weight") for name in report.compressed}
    assert dict(model.named_modules()) == before  # the same objects
    assert set(report.left) == {"embed_tokens.weight", "lm_head.weight"}
    assert all("embeddings=True" in why for why in report.left.values())
    assert report.source_bytes == 2 * 2 * 72 * 300
    assert report.compressed_bytes == model.up.weight.numel() + model.down.weight.numel() < report.source_bytes
    assert report.left_bytes == sum(p.nbytes for p in dense.parameters()) - report.source_bytes
    up = report.compressed["up.weight"]
    assert (up.shape, up.dtype, up.codec) == ((300, 72), torch.bfloat16, "bf16")
    assert up.bits == pytest.approx(8 * model.up.weight.numel() / (300 * 72))
    assert "2 weights compressed" in str(report) and "left: lm_head.weight: " in str(report)
    for name, parameter in dense.named_parameters():
        if name not in report.compressed:
            assert same_bits(dict(model.named_parameters())[name], parameter)
    ids = make_ids(model, 2, 7)
    with exact():
        assert same_bits(model(ids), dense(ids))
    assert not compress_model(model).compressed  # once more does nothing
    assert set(compress_model(model, embeddings=True).compressed) == {"embed_tokens.weight", "lm_head.weight"}


def test_model_that_is_a_layer() -> None:
    model = linear(64, 96)
    kept = model.weight.clone()
    report = compress_model(model)
    assert isinstance(model, TransfuseLinear) and list(report.compressed) == ["weight"]
    assert same_bits(model.decode_weight(), kept)


def test_quantizing_a_model() -> None:
    model = make_model(torch.float32)
    dense = copy.deepcopy(model)
    left = compress_model(model).left
    assert not compressed_names(model) and "F32 has no lossless codec" in left["up.weight"]
    report = compress_model(model, bits=5.7, embeddings=True)
    assert {weight.codec for weight in report.compressed.values()} == {"int"}
    decoded = model.up.decode_weight()
    assert decoded.dtype == torch.float32 and model.embed_tokens.output_dtype == torch.float32
    assert (decoded - dense.up.weight).norm() < 0.05 * dense.up.weight.norm()
    ids = make_ids(model, 2, 7)
    assert model(ids).dtype == torch.float32
    assert (model(ids) - dense(ids)).norm() < 0.1 * dense(ids).norm()


def test_rounding_a_model_to_bf16() -> None:
    model = make_model(torch.float32)
    rounded = copy.deepcopy(model)
    for module in (rounded.embed_tokens, rounded.up, rounded.down):
        module.weight.data = module.weight.bfloat16().float()
    compress_model(model, codec="bf16", embeddings=True)
    # The codec is that of BF16, and the weights stay F32 numbers.
    assert "codec=bf16" in repr(model.up) and model.up.weight_dtype == torch.float32
    ids = make_ids(model, 2, 7)
    with exact():
        assert same_bits(model(ids), rounded(ids))
    assert same_bits(model.embed_tokens(ids), rounded.embed_tokens(ids))


def signaling_nan() -> torch.Tensor:
    """Such a one has the bits of a BF16 number, and the encoder would make it quiet."""
    return torch.tensor(0x7F810000, dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize("nearly", ["a finer number", "a signaling NaN"])
def test_f32_that_is_bf16(nearly: str) -> None:
    """It is compressed without loss, down to the bits of what is no number; with one weight more it is left."""
    model = make_model(torch.float32)
    for module in (model.embed_tokens, model.up, model.down):
        module.weight.data = module.weight.bfloat16().float()
    special = torch.tensor([0x7FC00000, -0x00400000, 0x7F800000, -0x80000000, 0x00010000], dtype=torch.int32)
    model.up.weight.data[0, :5] = special.view(torch.float32)
    model.down.weight.data[-1, -1] = 1 + 2**-20 if nearly == "a finer number" else signaling_nan()
    dense = copy.deepcopy(model)
    report = compress_model(model, embeddings=True)
    assert set(report.compressed) == {"embed_tokens.weight", "lm_head.weight", "up.weight"}
    assert set(report.widened) == set(report.compressed) and "nothing is lost" in str(report)
    assert "unless each weight is a BF16 number" in report.left["down.weight"]
    assert report.compressed["up.weight"].codec == "bf16" and model.up.weight_dtype == torch.float32
    for name in ("up", "embed_tokens"):
        assert same_bits(getattr(model, name).decode_weight(), getattr(dense, name).weight)
    with pytest.raises(transfuse.ArgumentError, match=r"down.weight is to be compressed .* F32 has no lossless codec"):
        compress_model(model, include=["down.weight"])


@pytest.mark.parametrize("what", ["include", "exclude"])
def test_patterns_that_match_nothing(what: str) -> None:
    model = make_model()
    with pytest.raises(transfuse.NotFoundError, match=rf"{what} has '\*dowm\*'"):
        compress_model(model, **{what: ["*up*", "*dowm*"]})  # type: ignore[arg-type]
    with pytest.raises(transfuse.NotFoundError, match=r"did you mean 'down\.weight'"):
        compress_model(model, **{what: ["dowm.weight"]})  # type: ignore[arg-type]
    assert not compressed_names(model)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"exclude": ["*up*"]}, {"down"}),
        ({"exclude": ["lm_head.weight"], "embeddings": True}, {"up", "down"}),
        ({"include": ["down.weight"]}, {"down"}),
        ({"include": ["*.weight"]}, {"up", "down", "embed_tokens", "lm_head"}),
        ({"include": ["lm_head*"], "exclude": ["em*"]}, set()),
        ({"include": ["lm_head*"]}, {"embed_tokens", "lm_head"}),
    ],
)
def test_names(options: dict[str, Any], names: set[str]) -> None:
    model = make_model()
    compress_model(model, **options)
    assert compressed_names(model) == names


def test_shared_weights_stay_shared() -> None:
    first, second = linear(64, 96), linear(64, 96)
    second.weight = first.weight
    third = linear(64, 96)
    third.weight = nn.Parameter(first.weight.data, requires_grad=False)  # another parameter, the same memory
    model: Any = nn.ModuleDict(
        {"first": first, "second": second, "again": first, "third": third, "other": linear(64, 96)}
    )
    report = compress_model(model)
    assert first.weight is second.weight is third.weight is not model["other"].weight
    assert model["again"] is first and isinstance(first, TransfuseLinear)
    assert report.source_bytes == 2 * 2 * 64 * 96
    assert report.compressed_bytes == first.weight.numel() + model["other"].weight.numel()


def test_weights_that_are_not_contiguous() -> None:
    weight = normal(96, 128, seed=3)
    model = linear(64, 48)
    model.weight.data = weight[:96:2, ::2].T
    want = model.weight.detach().clone()
    assert not model.weight.is_contiguous()
    compress_model(model)
    assert isinstance(model, TransfuseLinear) and same_bits(model.decode_weight(), want)


@pytest.mark.parametrize("layout", ["coded", "packed"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_weights_whose_signs_are_not_those_in_memory(dtype: torch.dtype, layout: str) -> None:
    weight = normal(64, 64, dtype=torch.bfloat16).to(dtype)
    model = nn.Linear(64, 64, bias=False)
    model.weight = nn.Parameter(torch._neg_view(weight))
    compress_model(model, layout=layout)
    assert isinstance(model, TransfuseLinear) and same_bits(model.decode_weight(), -weight)


class OwnLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + self.weight.sum()


class Holder(nn.Module):
    def __init__(self, module: nn.Module, weight: Tensor) -> None:
        super().__init__()
        self.module, self.copy = module, weight


def with_hook(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda module, x, y: y)
    return module


def with_weight(module: nn.Module, weight: Tensor) -> nn.Module:
    module.weight = nn.Parameter(weight, requires_grad=False)
    return module


def with_forward(module: nn.Linear) -> nn.Linear:
    module.__dict__["forward"] = lambda x: x
    return module


LEFT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "meta": (lambda: linear(64, 64).to("meta"), "meta device"),
    "parametrized": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(64, 64)), "parametrized"),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(64, 64).bfloat16()), "parametrized"),
    "sparse": (lambda: with_weight(linear(64, 64), normal(64, 64).to_sparse()), "layout is torch.sparse_coo"),
    "mkldnn": (lambda: with_weight(linear(64, 64), normal(64, 64).float().to_mkldnn()), "layout is torch._mkldnn"),
    "other shape": (lambda: with_weight(linear(64, 64), normal(64, 32)), "[64, 32], and the module says [64, 64]"),
    "one dimension": (lambda: with_weight(linear(64, 64), normal(64, 32)[0]), "[32], and the module says [64, 64]"),
    "derived": (lambda: OwnLinear(64, 64, dtype=torch.bfloat16), "what a OwnLinear does"),
    "hooks": (lambda: with_hook(linear(64, 64)), "hooks"),
    "forward": (lambda: with_forward(linear(64, 64)), "forward was replaced"),
    "shared with another": (lambda: (lambda m: Holder(m, m.weight))(linear(64, 64)), "other modules have it"),
    "small": (lambda: linear(64, 15), "a side is below 16"),
    "no gain": (lambda: linear(16, 16), "would not become smaller"),
    "float64": (lambda: linear(64, 64, torch.float64), "does not take torch.float64"),
    "embedding": (lambda: nn.Embedding(64, 64, dtype=torch.bfloat16), "embeddings=True"),
    "max_norm": (lambda: nn.Embedding(64, 64, max_norm=1.0, dtype=torch.bfloat16), "max_norm"),
}


@pytest.mark.parametrize("case", list(LEFT))
def test_left(case: str) -> None:
    make, reason = LEFT[case]
    model = nn.ModuleDict({"it": make(), "taken": linear(64, 96)})
    state = {name: value.to_dense().clone() for name, value in model["it"].state_dict().items()}
    report = compress_model(model)
    assert compressed_names(model) == {"taken"}
    (name,) = set(report.left)
    assert name.startswith("it.") and reason in report.left[name]
    for key, value in model["it"].state_dict().items():
        assert value.is_meta or same_bits(value.to_dense(), state[key])


def test_weights_that_are_none_yet_are_left() -> None:
    model = nn.ModuleList([nn.LazyLinear(64), linear(64, 64), with_weight(linear(64, 64), torch.zeros(()))])
    report = compress_model(model)
    assert compressed_names(model) == {"1"} and "what a LazyLinear does" in report.left["0.weight"]
    assert "its shape is []" in report.left["2.weight"]


def test_other_modules_are_left() -> None:
    attention = nn.MultiheadAttention(64, 4, batch_first=True, dtype=torch.bfloat16)
    encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dtype=torch.bfloat16).eval()
    model = nn.ModuleList([attention, encoder, nn.Conv2d(64, 64, 3), nn.Bilinear(16, 16, 16), nn.LayerNorm(64)])
    dense, x = copy.deepcopy(model), normal(2, 5, 64, scale=1.0)
    report = compress_model(model)
    assert not report.compressed and "reads it itself" in report.left["1.linear1.weight"]
    with torch.no_grad():
        assert same_bits(model[1](x), dense[1](x))  # its fast path takes the weights of linear1 and linear2
        assert same_bits(model[0](x, x, x)[0], dense[0](x, x, x)[0])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"codec": "zip"}, transfuse.ArgumentError, "codec is 'zip'"),
        ({"favor": "both"}, transfuse.ArgumentError, "favor is"),
        ({"bits": 9}, transfuse.ArgumentError, "bits is 9"),
        ({"bits": 4, "codec": "bf16"}, transfuse.ArgumentError, "bits go with"),
        ({"layout": "woven"}, transfuse.ArgumentError, "layout is 'woven'"),
        ({"threads": -1}, transfuse.ArgumentError, "threads is -1"),
        ({"include": "up"}, TypeError, "lists of names"),
        ({"include": [5]}, TypeError, "names or patterns, not int"),
        ({"include": ["up.weight"], "embeddings": True}, ValueError, "embeddings goes .* not with include"),
        ({"include": [], "embeddings": True}, ValueError, "embeddings goes .* not with include"),
        ({"embeddings": "no"}, TypeError, "embeddings must be True or False"),
        ({"progress": 5}, TypeError, "progress must be a function"),
        ({"include": ["top.weight"]}, transfuse.NotFoundError, "'top.weight'"),
        ({"include": ["up.weight"], "codec": "fp16"}, transfuse.ArgumentError, "up.weight .* fp16 does not take"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], words: str) -> None:
    model = make_model()
    with pytest.raises(error, match=words):
        compress_model(model, **options)
    assert not compressed_names(model)


def test_asked_by_name_is_compressed_even_if_larger() -> None:
    model = nn.ModuleDict({"a": linear(16, 16), "b": linear(16, 16)})
    assert compress_model(model, include=["a.weight", "b*"]).left == {"b.weight": "it would not become smaller"}
    assert compressed_names(model) == {"a"}


def test_dense_weights_are_released_one_by_one() -> None:
    model = nn.Sequential(*[linear(64, 96, seed=seed) for seed in range(4)])
    alive = [weakref.ref(layer.weight) for layer in model]
    seen: list[int] = []

    def progress(name: str, done: int, total: int) -> None:
        seen.append(sum(weight() is not None for weight in alive))

    compress_model(model, progress=progress)
    assert seen == [4, 3, 2, 1, 0]


def test_progress_and_cancelling() -> None:
    model = nn.Sequential(*[linear(64, 96, seed=seed) for seed in range(3)])
    calls: list[tuple[str, int, int]] = []

    def progress(name: str, done: int, total: int) -> bool:
        calls.append((name, done, total))
        return len(calls) == 3

    with pytest.raises(transfuse.CancelledError, match="2.weight"):
        compress_model(model, progress=progress)
    one = 2 * 64 * 96
    assert calls == [("0.weight", 0, 3 * one), ("1.weight", one, 3 * one), ("2.weight", 2 * one, 3 * one)]
    assert compressed_names(model) == {"0", "1"}

    def fail(name: str, done: int, total: int) -> None:
        raise LookupError(name)

    with pytest.raises(LookupError, match="2.weight"):
        compress_model(model, progress=fail)
    assert compress_model(model).source_bytes == one and compressed_names(model) == {"0", "1", "2"}


def test_ctrl_c_while_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(linear(64, 96), linear(64, 64), linear(96, 64))
    dense, x = copy.deepcopy(model), normal(2, 96, scale=1.0)
    encode, started, go_on = _encode.encode, threading.Event(), threading.Event()

    def encode_slowly(weight: Tensor, **options: Any) -> Tensor:
        if tuple(weight.shape) == (64, 64):
            started.set()
            assert go_on.wait(30)
        return encode(weight, **options)

    def interrupt() -> None:
        started.wait(30)
        times.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(_encode, "encode", encode_slowly)
    before, times = set(threading.enumerate()), list[float]()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        compress_model(model)
    assert time.monotonic() - times[0] < 1
    go_on.set()  # the encoder ends after the call has: its blob must not be put in any more
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
    assert compressed_names(model) == {"0"} and type(model[1]) is nn.Linear
    with exact():
        assert same_bits(model(x), dense(x))
    monkeypatch.undo()
    compress_model(model)
    assert compressed_names(model) == {"0", "1", "2"}


def test_errors_leave_a_model_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.setattr(_compress, "make_embedding", None)
    with pytest.raises(TypeError):
        compress_model(model, embeddings=True)
    assert compressed_names(model) == set() and type(model.lm_head) is nn.Linear
    assert model.lm_head.weight is model.embed_tokens.weight


def test_attributes_stay() -> None:
    model = make_model()
    model.up.note = "kept"
    model.train()
    compress_model(model, embeddings=True)
    assert model.up.note == "kept" and model.up.training
    assert isinstance(model.embed_tokens, TransfuseEmbedding) and model.embed_tokens.padding_idx == 3
