# SPDX-License-Identifier: Apache-2.0
"""The plugin for vLLM on vLLM's own layers, without an engine, on the CPU: loading, shards, ties, what is missing."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
import torch.nn.functional as F
from vllm.compilation.cuda_graph import CUDAGraphWrapper
from vllm.config import CUDAGraphMode
from vllm.model_executor.layers import linear
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import initialize_layerwise_reload

import transfuse
import transfuse.torch as tt
from transfuse import DataError
from transfuse.tests import vllm_layers as layers
from transfuse.tests.vllm_layers import bits, layers_of_rank, load, make_model, random_weights
from transfuse.vllm import _graphs, _model_loading, _packer

HIDDEN, HEAD_DIM, HEADS, KV_HEADS, INTERMEDIATE, VOCABULARY = 256, 32, 8, 2, 688, 1000
QKV = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}


def make_qkv(config: Any, *, bias: bool = False) -> Any:
    return linear.QKVParallelLinear(
        HIDDEN, HEAD_DIM, HEADS, KV_HEADS, bias=bias, quant_config=config, prefix="layers.0.qkv_proj"
    )


def qkv_weights() -> dict[str, torch.Tensor]:
    return {name: random_weights(rows, HIDDEN, seed=seed) for seed, (name, rows) in enumerate(QKV.items())}


def decode(layer: Any) -> torch.Tensor:
    assert layer.weight.dtype == torch.uint8 and layer.weight.shape == (256,)
    weights: torch.Tensor = layer.quant_method.dequantize_weight(layer)
    return weights


def test_register_twice() -> None:
    from transfuse.vllm import register

    register()
    register()
    assert QUANTIZATION_METHODS.count("transfuse") == 1


def test_folders_that_are_stored_only() -> None:
    from transfuse.vllm._config import TransfuseConfig

    TransfuseConfig.from_config({"quant_method": "transfuse", "version": 1})
    with pytest.raises(transfuse.UnsupportedError, match="stored only.*run 'transfuse decompress' first"):
        TransfuseConfig.from_config({"quant_method": "transfuse", "version": 1, "stored": True})


def test_other_versions_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM whose functions are others than those that the plugin wraps, or that lacks some, is refused."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.model_executor.model_loader.reload import layerwise

    from transfuse.vllm import _model_loading

    with layers_of_rank() as config:
        make_qkv(config)  # this one is known
        with monkeypatch.context() as other:
            other.setattr(layerwise, "_layerwise_process", lambda layer, info, more: None)
            with pytest.raises(
                RuntimeError, match=r"does not know vLLM \S+: .*_layerwise_process\(layer, info, more\)"
            ):
                _model_loading.install()
        with monkeypatch.context() as other:
            other.delattr(DefaultModelLoader, "_prepare_weights")
            with pytest.raises(RuntimeError, match=r"DefaultModelLoader has no _prepare_weights"):
                _model_loading.install()
        with monkeypatch.context() as other:
            other.delitem(sys.modules, "transfuse.vllm._layers")
            other.delattr("transfuse.vllm._layers")
            other.delattr("vllm.model_executor.model_loader.reload.layerwise._get_original_loader")
            with pytest.raises(
                RuntimeError, match=r"does not know vLLM \S+: cannot import name '_get_original_loader'"
            ):
                make_qkv(config.from_config({}))
        make_qkv(config)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_shards(ranks: int, bias: bool) -> None:
    """Each rank has its slice of the source, bit for bit, merged into one matrix; k and v are there several times."""
    weights = qkv_weights()
    biases = {name: random_weights(rows, seed=rows) for name, rows in QKV.items()}
    gate, up = random_weights(INTERMEDIATE, HIDDEN, seed=5), random_weights(INTERMEDIATE, HIDDEN, seed=6)
    down, wide = random_weights(HIDDEN, INTERMEDIATE, seed=7), random_weights(HIDDEN, HIDDEN, seed=8)
    for rank in range(ranks):
        with layers_of_rank(rank, ranks) as config:
            qkv = make_qkv(config, bias=bias)
            options = {"bias": False, "quant_config": config}
            gate_up = linear.MergedColumnParallelLinear(HIDDEN, [INTERMEDIATE] * 2, prefix="gate_up", **options)
            row = linear.RowParallelLinear(INTERMEDIATE, HIDDEN, prefix="down", reduce_results=False, **options)
            column = linear.ColumnParallelLinear(HIDDEN, HIDDEN, prefix="column", **options)
            same = linear.ReplicatedLinear(HIDDEN, HIDDEN, prefix="same", **options)
            model = make_model(qkv=qkv, gate_up=gate_up, row=row, column=column, same=same)
            load(model, [("gate_up.weight", up, 1), ("row.weight", down, None), ("gate_up.weight", gate, 0)])
            load(model, [("column.weight", wide, None), ("same.weight", wide, None)])
            load(model, layers.qkv_shards(weights, "qkv.weight"))
            if bias:
                load(model, layers.qkv_shards(biases, "qkv.bias"))
            layers.finish(model)

            heads, kv_heads = HEADS // ranks, max(1, KV_HEADS // ranks)
            kv_rank = rank * KV_HEADS // ranks
            rows = {
                "q": slice(rank * heads * HEAD_DIM, (rank + 1) * heads * HEAD_DIM),
                "k": slice(kv_rank * HEAD_DIM, (kv_rank + kv_heads) * HEAD_DIM)
                if ranks > KV_HEADS
                else slice(rank * kv_heads * HEAD_DIM, (rank + 1) * kv_heads * HEAD_DIM),
            }
            rows["v"] = rows["k"]
            expected = torch.cat([weights[name][rows[name]] for name in "qkv"])
            assert torch.equal(bits(decode(qkv)), bits(expected))
            part = INTERMEDIATE // ranks
            mine = slice(rank * part, (rank + 1) * part)
            assert torch.equal(bits(decode(gate_up)), bits(torch.cat([gate[mine], up[mine]])))
            assert torch.equal(bits(decode(row)), bits(down[:, mine]))
            quarter = HIDDEN // ranks
            assert torch.equal(bits(decode(column)), bits(wide[rank * quarter : (rank + 1) * quarter]))
            assert torch.equal(bits(decode(same)), bits(wide))
            x = random_weights(5, HIDDEN, seed=9) * 50
            y, _ = qkv(x)
            wanted = F.linear(x.float(), expected.float())
            if bias:
                wanted += torch.cat([biases[name][rows[name]] for name in "qkv"]).float()
            assert torch.allclose(y.float(), wanted, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("way", ["method", "attribute", "module"])
def test_tied_head(ranks: int, way: str) -> None:
    """A head that is tied has the embedding's layer, however the model ties it; padded rows are zeros."""
    table = random_weights(VOCABULARY, HIDDEN)
    for rank in range(ranks):
        with layers_of_rank(rank, ranks) as config:
            embedding = VocabParallelEmbedding(VOCABULARY, HIDDEN, quant_config=config, prefix="embed_tokens")
            if way == "module":
                head: Any = embedding
            else:
                head = ParallelLMHead(VOCABULARY, HIDDEN, quant_config=config, prefix="lm_head")
                if way == "method":
                    head = head.tie_weights(embedding)
                else:
                    head.weight = embedding.weight
            model = make_model(head=head, embedding=embedding)
            weight = embedding.weight
            weight.weight_loader(weight, table)
            layers.finish(model)
            rows = embedding.num_embeddings_per_partition
            padded = torch.zeros(rows * ranks, HIDDEN, dtype=torch.bfloat16)
            padded[:VOCABULARY] = table
            mine = padded[rank * rows : (rank + 1) * rows]
            assert head.weight is embedding.weight
            assert torch.equal(bits(decode(embedding)), bits(mine))
            ids = torch.tensor([[0, 1, rows - 1], [2, 2, 7]])
            assert torch.equal(bits(embedding.quant_method.embedding(embedding, ids)), bits(mine[ids]))
            x = random_weights(3, HIDDEN, seed=4) * 50
            y = head.quant_method.apply(head, x)
            assert torch.allclose(y.float(), F.linear(x.float(), mine.float()), rtol=0.01, atol=0.01)


def test_head_tied_to_a_layer_without_our_config() -> None:
    """One of the two was made without a quantization config: it, or both, stay right."""
    table = random_weights(VOCABULARY, HIDDEN)
    x = random_weights(3, HIDDEN, seed=4) * 50
    for ours in ("embedding", "head"):
        with layers_of_rank() as config:
            embedding = VocabParallelEmbedding(
                VOCABULARY, HIDDEN, quant_config=config if ours == "embedding" else None, prefix="embed_tokens"
            )
            head = ParallelLMHead(VOCABULARY, HIDDEN, quant_config=config if ours == "head" else None, prefix="lm_head")
            head = head.tie_weights(embedding)
            model = make_model(embedding=embedding, head=head)
            load(model, [("embedding.weight", table, None)])
            layers.finish(model)
            assert torch.equal(bits(embedding(torch.arange(VOCABULARY))), bits(table))
            y = head.quant_method.apply(head, x)[:, :VOCABULARY]
            assert torch.allclose(y.float(), F.linear(x.float(), table.float()), rtol=0.01, atol=0.01)
            assert (head.weight.dtype == torch.uint8) == (ours == "embedding")


@pytest.mark.parametrize("what", ["q", "v", "all", "twice", "bias"])
def test_missing(what: str) -> None:
    """Elements that did not arrive are an error that names the layer and the rows."""
    weights = qkv_weights()
    biases = {name: random_weights(rows) for name, rows in QKV.items()}
    with layers_of_rank() as config:
        qkv = make_qkv(config, bias=True)
        model = make_model(qkv=qkv)
        given = layers.qkv_shards(weights, "qkv.weight")
        given_biases = layers.qkv_shards(biases, "qkv.bias")
        if what in ("q", "v"):
            given = [one for one in given if one[2] != what]
        elif what == "all":
            given, given_biases = [], []
        elif what == "twice":
            given[2] = given[0]  # k two times, v never: as many elements as there should be
        else:
            given_biases = given_biases[:2]
        rows = {"q": "rows 0 to 255", "v": "rows 320 to 383", "all": "all of it", "twice": "rows 320 to 383"}
        with pytest.raises(
            ValueError, match=rf"layers\.0\.qkv_proj\.(weight|bias).*{rows.get(what, 'rows 320 to 383')}"
        ):
            load(model, given + given_biases)
            layers.finish(model)


def test_missing_columns() -> None:
    with layers_of_rank() as config:
        layer = linear.ReplicatedLinear(HIDDEN, HIDDEN, bias=False, quant_config=config, prefix="odd")

        def load_half(param: torch.nn.Parameter, loaded_weight: torch.Tensor) -> None:
            param.data[:, 16:32].copy_(loaded_weight[:, 16:32])
            param.data[7, 40:50].copy_(loaded_weight[7, 40:50])

        layer.weight.weight_loader = load_half
        model = make_model(odd=layer)
        load(model, [("odd.weight", random_weights(HIDDEN, HIDDEN), None)])
        with pytest.raises(ValueError, match=r"odd\.weight, \[256, 256\].*columns 0 to 15 of rows 0 to 6"):
            layers.finish(model)


def test_what_stays_plain() -> None:
    exclude = {"exclude": ["model.layers.1.*"]}
    with layers_of_rank(transfuse=exclude) as config:
        options = {"bias": False, "quant_config": config}
        for name, dtype in (("model.layers.1.up", None), ("model.layers.0.mlp.gate", None), ("f32", torch.float32)):
            layer = linear.ReplicatedLinear(HIDDEN, 64, prefix=name, params_dtype=dtype, **options)
            assert isinstance(layer.quant_method, linear.UnquantizedLinearMethod)
            assert layer.weight.device.type == "cpu"
        embedding = VocabParallelEmbedding(
            VOCABULARY, HIDDEN, params_dtype=torch.float32, quant_config=config, prefix="embed_tokens"
        )
        table = torch.randn(VOCABULARY, HIDDEN, dtype=torch.float32)
        model = make_model(embedding=embedding)
        load(model, [("embedding.weight", table, None)])
        layers.finish(model)
        assert torch.equal(embedding(torch.arange(VOCABULARY)), table)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The lines that the plugin logs; vLLM's logger passes none on."""
    lines: list[str] = []
    for level in ("info", "warning"):
        monkeypatch.setattr(_model_loading.logger, level, lambda text, *values: lines.append(text % values))
    _model_loading._report = _model_loading._Report()
    yield lines
    _model_loading._report = _model_loading._Report()


def make_two_layers(config: Any) -> torch.nn.Module:
    """Returns a model of a layer "ours" and a layer "theirs.up"; patterns may exclude the second one."""
    options = {"bias": False, "quant_config": config}
    ours, theirs = (linear.ReplicatedLinear(HIDDEN, 64, prefix=name, **options) for name in ("ours", "theirs.up"))
    return make_model(ours=ours, theirs=theirs)


def load_two_layers(model: torch.nn.Module) -> None:
    load(model, [(f"{name}.weight", random_weights(64, HIDDEN), None) for name in ("ours", "theirs")])
    layers.finish(model)


@pytest.mark.parametrize("is_dummy", [False, True])
def test_exclude_that_fits_no_layer(is_dummy: bool, log: list[str]) -> None:
    """It is an error that names the patterns: before files are read, and for dummy weights when they are made."""
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    error = r"no layer fits '\*\.q_proj', 'ours\.\*'; .* are one qkv_proj"
    with layers_of_rank(transfuse={"exclude": ["*.q_proj", "theirs.*", "ours.*"]}) as config:
        load_config = get_current_vllm_config().load_config
        load_config.load_format = "dummy" if is_dummy else "auto"
        model = make_two_layers(config)
        if is_dummy:
            DummyModelLoader(load_config).load_weights(model, None)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match=error):
                layers.finish(model)
        else:
            loader = DefaultModelLoader(load_config)
            model.load_weights = lambda weights: set()  # type: ignore[assignment]
            model_config: Any = SimpleNamespace(quantization="transfuse", is_moe=False)
            with mock.patch.object(loader, "get_all_weights") as read, pytest.raises(ValueError, match=error):
                loader.load_weights(model, model_config)
            read.assert_not_called()
    log.clear()
    with layers_of_rank(transfuse={"exclude": ["theirs.*", "th*"]}) as config:  # the next model of this process
        model = make_two_layers(config)
        load_two_layers(model)
        initialize_layerwise_reload(model)
        load_two_layers(model)  # nothing is made, so that no pattern fits anything
    assert [line for line in log if "stay" in line] == [
        "transfuse: 1 layers stay as vLLM has them, since it is excluded: theirs.up"
    ]


@pytest.mark.parametrize("how", ["pipeline", "draft"])
def test_exclude_where_layers_are_elsewhere(how: str, log: list[str]) -> None:
    """A pattern may fit layers of another stage, or of another model: it is a line of the log."""
    from vllm.config import get_current_vllm_config

    with layers_of_rank(transfuse={"exclude": ["theirs.*", "lm_head"]}) as config:
        vllm_config: Any = get_current_vllm_config()
        if how == "pipeline":
            vllm_config.parallel_config.pipeline_parallel_size = 2
        else:
            vllm_config.speculative_config = SimpleNamespace()
        load_two_layers(make_two_layers(config))
    assert [line for line in log if "fits" in line] == [
        "transfuse: no layer of this model that this process has fits 'lm_head' of the option 'exclude'"
    ]


def test_layers_without_our_config(log: list[str]) -> None:
    """The log names them as what stays dense; a pattern may fit them; tied ones that are packed are not among them."""
    with layers_of_rank(transfuse={"exclude": ["router"]}) as config:
        table = VocabParallelEmbedding(VOCABULARY, HIDDEN, quant_config=config, prefix="table")
        model = make_model(
            embedding=VocabParallelEmbedding(VOCABULARY, HIDDEN, quant_config=None, prefix="embed_tokens"),
            router=linear.ReplicatedLinear(HIDDEN, 64, bias=False, quant_config=None, prefix="router"),
            ours=linear.ReplicatedLinear(HIDDEN, 64, bias=False, quant_config=config, prefix="ours"),
            table=table,
            head=ParallelLMHead(VOCABULARY, HIDDEN, quant_config=None, prefix="lm_head").tie_weights(table),
            norm=torch.nn.LayerNorm(HIDDEN),
        )
        rows = {"embedding": VOCABULARY, "router": 64, "ours": 64, "table": VOCABULARY}
        load(model, [(f"{name}.weight", random_weights(rows[name], HIDDEN), None) for name in rows])
        layers.finish(model)
    assert [line for line in log if "stay" in line] == [
        "transfuse: 2 layers stay as vLLM has them, since the model makes it without a quantization config: "
        "embedding, router"
    ]


def test_weights_that_cannot_be_packed() -> None:
    """Random bits, NaN among them, stay plain behind the same op."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randint(-32768, 32767, (HIDDEN, HIDDEN), generator=generator, dtype=torch.int16).view(torch.bfloat16)
    with layers_of_rank() as config:
        layer = linear.ReplicatedLinear(HIDDEN, HIDDEN, bias=False, quant_config=config, prefix="noise")
        model = make_model(noise=layer)
        load(model, [("noise.weight", weight, None)])
        layers.finish(model)
        packed = layer.transfuse_packed
        assert packed.layout == "plain"
        assert torch.equal(bits(decode(layer)), bits(weight))
        address, other = packed.buffer.data_ptr(), weight.flip(0)
        initialize_layerwise_reload(model)
        load(model, [("noise.weight", other, None)])
        layers.finish(model)
        assert packed.layout == "plain" and packed.buffer.data_ptr() == address
        assert torch.equal(bits(decode(layer)), bits(other))
        assert tt.verify_model(model) == 1  # the checksum is that of the new weights
        packed.buffer[-1] ^= 1
        with pytest.raises(DataError, match="changed in memory"):
            tt.verify_model(model)


@pytest.mark.parametrize("settings", [{"layout": "plain"}, {"layuot": "packed"}, {"exact": 1}, {"exclude": "x"}, 3])
def test_bad_settings(settings: Any) -> None:
    with layers_of_rank(transfuse=settings) as config, pytest.raises(ValueError, match="transfuse"):
        make_qkv(config)


def test_exact_mode_and_coded() -> None:
    weights = qkv_weights()
    x = random_weights(4, HIDDEN, seed=9) * 50
    expected = torch.cat([weights[name] for name in "qkv"])
    try:
        with layers_of_rank(transfuse={"exact": True, "layout": "coded"}) as config:
            qkv = make_qkv(config)
            model = make_model(qkv=qkv)
            load(model, layers.qkv_shards(weights, "qkv.weight"))
            layers.finish(model)
            assert qkv.transfuse_packed.layout == "coded"
            assert torch.equal(qkv(x)[0], F.linear(x, expected))
    finally:
        tt.set_exact(False)


def test_new_weights_in_place() -> None:
    """Weights that vLLM loads again come to lie where the old ones did; ones that are incomplete change nothing."""
    first, second = qkv_weights(), {name: weight * 1.25 for name, weight in qkv_weights().items()}
    table = random_weights(VOCABULARY, HIDDEN)
    with layers_of_rank() as config:
        qkv = make_qkv(config)
        embedding = VocabParallelEmbedding(VOCABULARY, HIDDEN, quant_config=config, prefix="embed_tokens")
        head = ParallelLMHead(VOCABULARY, HIDDEN, quant_config=config, prefix="lm_head").tie_weights(embedding)
        model = make_model(embedding=embedding, qkv=qkv, head=head)
        load(model, [*layers.qkv_shards(first, "qkv.weight"), ("embedding.weight", table, None)])
        layers.finish(model)
        address, parameter = qkv.weight.data_ptr(), qkv.weight
        for turn in range(4):
            weights = (second, first)[turn % 2]
            initialize_layerwise_reload(model)
            load(model, [*layers.qkv_shards(weights, "qkv.weight"), ("embedding.weight", table * (1 + turn / 8), None)])
            layers.finish(model)
            assert qkv.weight is parameter and qkv.weight.data_ptr() == address
            assert torch.equal(bits(decode(qkv)), bits(torch.cat([weights[name] for name in "qkv"])))
            assert head.weight is embedding.weight
            assert torch.equal(bits(decode(head)[:VOCABULARY]), bits(table * (1 + turn / 8)))
        dense, decoded_shape = torch.cat([first[name] for name in "qkv"]), (sum(QKV.values()), HIDDEN)
        initialize_layerwise_reload(model)
        with pytest.raises(ValueError, match="rows 0 to 255"):
            load(model, layers.qkv_shards(second, "qkv.weight")[::2])
            layers.finish(model)
        assert torch.equal(bits(tt.decode(qkv.transfuse_packed.buffer, *decoded_shape, torch.bfloat16)), bits(dense))


def test_new_weights_of_another_form() -> None:
    """Weights of quite another scale, or with more tiles that do not fit, are packed anew, which is noted."""
    rows, cols = 1024, 1024
    weight, x = random_weights(rows, cols), random_weights(3, cols, seed=4) * 50
    wild, wilder = weight * 1024, weight.clone()
    wild[:64, : 10 * 32] *= 2.0**40  # tiles that have to be stored: 10, for which there is room
    wilder[:64, : 20 * 32] *= 2.0**40  # 20, for which there is none
    noise = torch.randint(-32768, 32767, (rows, cols), dtype=torch.int16).view(torch.bfloat16)
    with layers_of_rank() as config:
        layer = linear.ReplicatedLinear(cols, rows, bias=False, quant_config=config, prefix="wide")
        model = make_model(wide=layer)
        load(model, [("wide.weight", weight, None)])
        layers.finish(model)
        parameter, packed = layer.weight, layer.transfuse_packed
        address, size = packed.buffer.data_ptr(), packed.place.numel()
        for new, is_changed, is_moved in (
            (weight * 1.25, False, False),
            (weight * 1024, True, False),
            (weight * 1024, False, False),
            (wild, False, False),
            (weight, True, False),
            (wild, True, False),
            (wilder, True, True),
            (weight, False, True),
        ):
            _graphs.forget_changes()
            initialize_layerwise_reload(model)
            load(model, [("wide.weight", new, None)])
            layers.finish(model)
            assert _graphs._changed == (["wide"] if is_changed else [])
            assert layer.weight is parameter and packed.layout == "packed"
            assert (packed.buffer.data_ptr() != address) == is_moved
            assert (packed.place.numel() != size) == is_moved
            assert torch.equal(bits(decode(layer)), bits(new))
            wanted = F.linear(x.float(), new.float())
            assert torch.allclose(layer(x)[0].float(), wanted, rtol=0.01, atol=0.01 * float(wanted.abs().max()))
        initialize_layerwise_reload(model)
        load(model, [("wide.weight", noise, None)])
        layers.finish(model)
        assert packed.layout == "plain" and _graphs._changed == ["wide"]
        assert torch.equal(bits(decode(layer)), bits(noise))
    _graphs.forget_changes()


def make_fp8(rows: int, cols: int, seed: int) -> torch.Tensor:
    """Returns BF16 weights that are FP8 codes times one scale."""
    return ((random_weights(rows, cols, seed=seed) * 3000).to(torch.float8_e4m3fn).float() * 1.357e-4).bfloat16()


def test_weights_that_were_fp8() -> None:
    """They are found, and lie as FP8; other such weights take their place, and what was no FP8 is packed anew."""
    rows, cols = 1024, 1024
    x, first = random_weights(3, cols, seed=4) * 50, make_fp8(rows, cols, 1)
    with layers_of_rank() as config:
        layer = linear.ReplicatedLinear(cols, rows, bias=False, quant_config=config, prefix="wide")
        model = make_model(wide=layer)
        load(model, [("wide.weight", first, None)])
        layers.finish(model)
        packed = layer.transfuse_packed
        assert packed.layout == "packed8" and packed.held_bytes < 0.51 * packed.dense_bytes
        address = packed.buffer.data_ptr()
        for new, layout, is_changed, is_moved in (
            (make_fp8(rows, cols, 2), "packed8", False, False),
            (random_weights(rows, cols), "packed", True, True),
            (first, "packed", False, True),  # the form stays while the weights fit it
        ):
            _graphs.forget_changes()
            initialize_layerwise_reload(model)
            load(model, [("wide.weight", new, None)])
            layers.finish(model)
            assert _graphs._changed == (["wide"] if is_changed else [])
            assert packed.layout == layout and (packed.buffer.data_ptr() != address) == is_moved
            assert torch.equal(bits(decode(layer)), bits(new))
            wanted = F.linear(x.float(), new.float())
            assert torch.allclose(layer(x)[0].float(), wanted, rtol=0.01, atol=0.01 * float(wanted.abs().max()))
    _graphs.forget_changes()


@pytest.mark.parametrize("kinds", ["bf16", "fp8", "mixed"])
def test_memory_blocks(kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few blocks hold all layers, with hardly any room left over, whichever of them were FP8."""
    monkeypatch.setattr(_packer, "_ROUNDING", 256)
    shapes = [(1024, 1024), (512, 1024), (1024, 2048)] * 6
    packer = _packer.Packer(torch.device("cpu"))
    packer.expect(shapes)
    head = packer.pack(random_weights(4096, 256), "head", "packed")
    assert head.layout == "packed" and len(packer._blocks) == 1
    made = [head]
    for number, (rows, cols) in enumerate(shapes):
        was_fp8 = kinds == "fp8" or (kinds == "mixed" and number >= 2)
        weight = make_fp8(rows, cols, number) if was_fp8 else random_weights(rows, cols, seed=number)
        made.append(packer.pack(weight, str(number), "packed"))
        assert made[-1].layout == ("packed8" if was_fp8 else "packed")
        assert torch.equal(bits(tt.decode(made[-1].buffer, rows, cols, torch.bfloat16)), bits(weight))
    held = sum(layer.held_bytes for layer in made)
    assert len(packer._blocks) <= 5
    assert held <= sum(block.memory.numel() for block in packer._blocks) <= 1.05 * held


def test_dummy_weights_first() -> None:
    """Real weights take the place of dummy ones; then no element may be missing any more."""
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    weights = qkv_weights()
    with layers_of_rank() as config:
        load_config = get_current_vllm_config().load_config
        load_config.load_format = "dummy"
        qkv = make_qkv(config)
        model = make_model(qkv=qkv)
        DummyModelLoader(load_config).load_weights(model, None)  # type: ignore[arg-type]
        layers.finish(model)
        assert 0 < float(decode(qkv).abs().max()) <= 1e-3
        initialize_layerwise_reload(model)
        load(model, layers.qkv_shards(weights, "qkv.weight"))
        layers.finish(model)
        assert _graphs._changed == ["layers.0.qkv_proj"]
        assert torch.equal(bits(decode(qkv)), bits(torch.cat([weights[name] for name in "qkv"])))
        initialize_layerwise_reload(model)
        with pytest.raises(ValueError, match="rows 0 to 255"):
            load(model, layers.qkv_shards(weights, "qkv.weight")[::2])
            layers.finish(model)
    _graphs.forget_changes()


class Graphs:
    """What the second model runner keeps graphs in."""

    def __init__(self) -> None:
        self.graphs, self.pool = {"decode": "captured"}, "first pool"

    def run_fullgraph(self) -> None: ...


class Runner:
    """A model runner that counts how many times it captures graphs, and with which pools."""

    def __init__(self) -> None:
        self.model, self.cudagraph_manager = torch.nn.Module(), Graphs()
        self.pools: list[str] = []
        self.blocks = SimpleNamespace(gpu=torch.ones(2, dtype=torch.int32), cpu=torch.ones(2, dtype=torch.int32))
        self.input_batch = SimpleNamespace(block_table=self)  # tables of cache blocks, which the first runner has
        self.block_tables = [SimpleNamespace(block_table=self.blocks)]

    def clear(self) -> None:
        self.blocks.gpu.zero_()
        self.blocks.cpu.zero_()

    def capture_model(self) -> None:
        assert not self.cudagraph_manager.graphs
        assert not self.blocks.gpu.any() and not self.blocks.cpu.any()
        self.cudagraph_manager.graphs["decode"] = "captured"
        self.pools.append(self.cudagraph_manager.pool)


class Worker:
    """A worker of vLLM, as far as weights and graphs go."""

    def __init__(self, *, enforce_eager: bool = False) -> None:
        mode = CUDAGraphMode.NONE if enforce_eager else CUDAGraphMode.FULL_AND_PIECEWISE
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(enforce_eager=enforce_eager),
            compilation_config=SimpleNamespace(cudagraph_mode=mode),
        )
        self.model_runner = Runner()

    def reload_weights(self, changed: list[str], *, fails: bool = False) -> str:
        for name in changed:
            _graphs.note_changed(name)
        if fails:
            raise KeyError("weights")
        return "done"

    def finish_weight_update(self) -> None: ...

    def sleep(self, level: int = 1) -> None: ...

    def wake_up(self, tags: list[str] | None = None) -> None: ...

    def execute_model(self) -> str:
        return "output"

    def execute_dummy_batch(self) -> str:
        return "output"


@pytest.fixture
def worker_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Worker]]:
    """A class of workers that the plugin has wrapped, on a platform whose pools have numbers."""
    pools = (f"pool {number}" for number in count(1))

    class Platform:
        graph_pool_handle = staticmethod(lambda: next(pools))

    wrapped = type("Worker", (Worker,), dict(vars(Worker)))
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu_worker", SimpleNamespace(Worker=wrapped))
    monkeypatch.setattr(_graphs, "current_platform", Platform())
    monkeypatch.setattr(_graphs, "freeze_gc_heap", lambda: None)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    _graphs.forget_changes()
    _model_loading.install()
    yield wrapped
    _graphs.forget_changes()


def test_graphs_are_captured_again(worker_class: type[Worker]) -> None:
    """Once, after an update that changed kernel arguments, with a new pool, and not after others."""
    worker = worker_class()
    runner = worker.model_runner
    pieces = CUDAGraphWrapper.__new__(CUDAGraphWrapper)  # of either model runner
    pieces.graph_pool = "first pool"
    pieces.concrete_cudagraph_entries = {"prefill": "captured"}  # type: ignore[dict-item]
    CUDAGraphWrapper._all_instances.add(pieces)
    assert worker.reload_weights([]) == "done" and runner.pools == [] and pieces.concrete_cudagraph_entries
    assert worker.reload_weights(["a", "b"]) == "done" and runner.pools == ["pool 1"]
    worker.reload_weights([])
    assert runner.pools == ["pool 1"] and worker.execute_model() == "output"
    _graphs.note_changed("c")
    for step in (worker.execute_model, worker.execute_dummy_batch):
        with pytest.raises(RuntimeError, match="c: its new weights need other kernel arguments"):
            step()
    worker.finish_weight_update()
    assert runner.pools == ["pool 1", "pool 2"]
    assert worker.execute_model() == worker.execute_dummy_batch() == "output"
    assert runner.blocks.gpu.all() and runner.blocks.cpu.all()
    assert not pieces.concrete_cudagraph_entries and pieces.graph_pool == "pool 2"


def test_graphs_after_a_failure(worker_class: type[Worker]) -> None:
    """An update that fails, or a capture, leaves an error until one succeeds."""
    worker = worker_class()
    runner = worker.model_runner
    with pytest.raises(KeyError):
        worker.reload_weights(["a"], fails=True)
    with pytest.raises(RuntimeError, match="a: its new weights"):
        worker.execute_model()
    assert runner.pools == []
    with mock.patch.object(runner, "capture_model", side_effect=MemoryError), pytest.raises(MemoryError):
        worker.reload_weights([])
    with pytest.raises(RuntimeError, match="a: its new weights"):
        worker.execute_model()
    worker.reload_weights([])
    assert worker.execute_model() == "output" and len(runner.pools) == 1


def test_graphs_while_the_cache_sleeps(worker_class: type[Worker]) -> None:
    """They are captured when everything is awake."""
    worker = worker_class()
    worker.sleep(2)
    worker.wake_up(["weights"])
    worker.reload_weights(["a"])
    assert worker.model_runner.pools == []
    with pytest.raises(RuntimeError, match="other kernel arguments"):
        worker.execute_model()
    worker.wake_up(tags=["kv_cache"])
    assert worker.model_runner.pools == ["pool 1"] and worker.execute_model() == "output"
    worker.sleep()
    worker.wake_up()
    worker.reload_weights(["a"])
    assert len(worker.model_runner.pools) == 2


def test_no_graphs(worker_class: type[Worker]) -> None:
    """Without graphs nothing is captured, and nothing is an error."""
    worker = worker_class(enforce_eager=True)
    _graphs.note_changed("a")
    assert worker.execute_model() == "output"
    worker.reload_weights(["a"])
    assert worker.model_runner.pools == []


@pytest.mark.parametrize("others", [_graphs._SAME, _graphs._CHANGED, _graphs._FAILED])
def test_graphs_of_several_ranks(worker_class: type[Worker], monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    """Ranks capture together, since one cannot do so alone: if they changed on any, and none failed."""
    group = SimpleNamespace(world_size=2, cpu_group=None)

    def all_reduce(state: torch.Tensor, **_: Any) -> None:
        state.clamp_(min=others)

    monkeypatch.setattr(_graphs, "model_parallel_is_initialized", lambda: True)
    monkeypatch.setattr(_graphs, "get_tp_group", lambda: group)
    monkeypatch.setattr(_graphs, "get_pp_group", lambda: SimpleNamespace(world_size=1))
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    worker = worker_class()
    worker.reload_weights([])
    assert len(worker.model_runner.pools) == (others == _graphs._CHANGED)
    worker.reload_weights(["a"])
    assert len(worker.model_runner.pools) == {_graphs._SAME: 1, _graphs._CHANGED: 2, _graphs._FAILED: 0}[others]
    if others == _graphs._FAILED:
        with pytest.raises(RuntimeError, match="other kernel arguments"):
            worker.execute_model()


def test_nothing_dense_stays() -> None:
    """Neither the dense matrix nor the model is kept by what the plugin notes of them."""
    rows, cols = 144, 208  # of no other test
    with layers_of_rank() as config:
        layer = linear.ReplicatedLinear(cols, rows, bias=False, quant_config=config, prefix="gone")
        model = make_model(gone=layer)
        load(model, [("gone.weight", random_weights(rows, cols)[:], None)])
        layers.finish(model)
        gc.collect()
        dense = [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.shape == (rows, cols)]
        assert all(one.is_meta for one in dense)
        reference = weakref.ref(layer)
        buffer = weakref.ref(layer.transfuse_packed.buffer.untyped_storage())
        del model, layer, dense
        gc.collect()
        assert reference() is None and buffer() is None


def test_other_ways_of_loading_are_refused() -> None:
    with layers_of_rank() as config:
        from vllm.config import get_current_vllm_config

        get_current_vllm_config().load_config.load_format = "sharded_state"
        with pytest.raises(ValueError, match="sharded_state"):
            make_qkv(config)
