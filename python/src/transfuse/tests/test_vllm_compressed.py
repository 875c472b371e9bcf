# SPDX-License-Identifier: Apache-2.0
"""Compressed folders in vLLM's own loaders, without an engine, on the CPU: each rank gets the weights of the source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from safetensors.torch import save_file
from vllm.config.load import LoadConfig
from vllm.model_executor.layers import linear
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.reload.layerwise import initialize_layerwise_reload

import transfuse
import transfuse.torch
from transfuse._memory_need import packed8_bytes
from transfuse.tests import vllm_layers as layers
from transfuse.tests.fp8_sources import FP8_KINDS, quantize_all, write_fp8
from transfuse.tests.vllm_layers import bits, layers_of_rank, load, make_model, random_weights
from transfuse.vllm import _model_loading
from transfuse.vllm._lazy_weight import LazyWeight, iterate_dense

HIDDEN, HEAD_DIM, HEADS, KV_HEADS, INTERMEDIATE, VOCABULARY = 256, 32, 8, 2, 688, 1000
WIDTH = HEADS * HEAD_DIM
TALL = 2048  # 256 for each of 8 ranks


@pytest.fixture(scope="module")
def source() -> dict[str, torch.Tensor]:
    shapes = {
        "q": (WIDTH, HIDDEN),
        "k": (KV_HEADS * HEAD_DIM, HIDDEN),
        "v": (KV_HEADS * HEAD_DIM, HIDDEN),
        "qkv": (WIDTH + 2 * KV_HEADS * HEAD_DIM, HIDDEN),
        "gate": (INTERMEDIATE, HIDDEN),
        "up": (INTERMEDIATE, HIDDEN),
        "gate_up": (2 * INTERMEDIATE, HIDDEN),
        "down": (HIDDEN, INTERMEDIATE),
        "wide": (HIDDEN, HIDDEN),
        "table": (VOCABULARY, HIDDEN),
        "tall_q": (TALL, HIDDEN),
        "tall_gate": (TALL, HIDDEN),
        "tall_up": (TALL, HIDDEN),
        "long": (HIDDEN, TALL),
        "norm": (HIDDEN,),
        "model.layers.0.mlp.experts.0.up_proj.weight": (HIDDEN, HIDDEN),
        "model.layers.0.mlp.experts.1.up_proj.weight": (HIDDEN, HIDDEN),
    }
    return {name: random_weights(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, source: dict[str, torch.Tensor]) -> Path:
    path = tmp_path_factory.mktemp("vllm")
    (path / "source").mkdir()
    save_file(source, path / "source" / "model.safetensors")
    (path / "source" / "config.json").write_text('{"model_type": "llama", "dtype": "bfloat16"}')
    transfuse.compress(path / "source", path / "compressed", embeddings=True)
    return path


@pytest.fixture
def lazy(folder: Path) -> dict[str, torch.Tensor]:
    found = dict(iterate_dense([str(folder / "compressed" / "model.safetensors")]))
    assert [name for name, tensor in found.items() if not isinstance(tensor, LazyWeight)] == ["norm"]
    return found


def make_layers(config: Any) -> dict[str, Any]:
    options = {"bias": False, "quant_config": config}
    heads = (HIDDEN, HEAD_DIM, HEADS, KV_HEADS)
    merged = (HIDDEN, [INTERMEDIATE] * 2)
    return {
        "qkv": linear.QKVParallelLinear(*heads, prefix="qkv", **options),
        "fused_qkv": linear.QKVParallelLinear(*heads, prefix="fused_qkv", **options),
        "gate_up": linear.MergedColumnParallelLinear(*merged, prefix="gate_up", **options),
        "fused_gate_up": linear.MergedColumnParallelLinear(*merged, prefix="fused_gate_up", **options),
        "row": linear.RowParallelLinear(INTERMEDIATE, HIDDEN, prefix="row", reduce_results=False, **options),
        "column": linear.ColumnParallelLinear(HIDDEN, HIDDEN, prefix="column", **options),
        "same": linear.ReplicatedLinear(HIDDEN, HIDDEN, prefix="same", **options),
        "embedding": VocabParallelEmbedding(VOCABULARY, HIDDEN, quant_config=config, prefix="embedding"),
        "head": ParallelLMHead(VOCABULARY, HIDDEN, quant_config=config, prefix="head"),
    }


def loads_of(weights: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor, Any]]:
    """Yields what a model's `load_weights` would pass on, in an order of no layer."""
    yield from [("gate_up.weight", weights["up"], 1), ("embedding.weight", weights["table"], None)]
    yield from layers.qkv_shards(weights, "qkv.weight")
    yield from [("row.weight", weights["down"], None), ("gate_up.weight", weights["gate"], 0)]
    yield from [("fused_qkv.weight", weights["qkv"], None), ("fused_gate_up.weight", weights["gate_up"], None)]
    yield from [("column.weight", weights["wide"], None), ("same.weight", weights["wide"], None)]
    yield ("head.weight", weights["table"], None)


def decoded_layers(weights: dict[str, torch.Tensor], config: Any) -> dict[str, torch.Tensor]:
    made = make_layers(config)
    model = make_model(**made)
    load(model, loads_of(weights))
    layers.finish(model)
    return {name: layer.quant_method.dequantize_weight(layer) for name, layer in made.items()}


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_shards(source: dict[str, torch.Tensor], lazy: dict[str, torch.Tensor], ranks: int) -> None:
    """Layers made of compressed tensors have the bits of those made of dense ones, on every rank."""
    for rank in range(ranks):
        with layers_of_rank(rank, ranks) as config:
            wanted, found = decoded_layers(source, config), decoded_layers(lazy, config)
        assert wanted.keys() == found.keys()
        for name, weight in wanted.items():
            assert torch.equal(bits(found[name]), bits(weight)), (rank, name)
    if ranks == 1:
        assert torch.equal(bits(wanted["fused_qkv"]), bits(source["qkv"]))


@pytest.mark.parametrize("kind", FP8_KINDS)
def test_fp8_with_scales(source: dict[str, torch.Tensor], tmp_path: Path, kind: str) -> None:
    """Layers made of FP8 weights with scales have the bits of those made of codes times scales, on every rank."""
    fp8, dense = quantize_all(source, FP8_KINDS[kind], lambda name: "table" not in name)
    write_fp8(tmp_path / "source", fp8, FP8_KINDS[kind], {"model_type": "llama", "dtype": "bfloat16"})
    transfuse.compress(tmp_path / "source", tmp_path / "compressed", embeddings=True)
    found = dict(iterate_dense([str(path) for path in sorted((tmp_path / "compressed").glob("*.safetensors"))]))
    assert found.keys() == source.keys()
    for ranks in (1, 2):
        with layers_of_rank(ranks - 1, ranks) as config:
            wanted, made = decoded_layers(dense, config), decoded_layers(found, config)
        for name, weight in wanted.items():
            assert torch.equal(bits(made[name]), bits(weight)), (ranks, name)


def load_fp8(source: dict[str, torch.Tensor], folder: Path, kind: str) -> tuple[dict[str, torch.Tensor], Any]:
    """Returns what vLLM reads from a compressed folder of FP8 weights with scales, and what they are as BF16."""
    fp8, dense = quantize_all(source, FP8_KINDS[kind], lambda name: "table" not in name)
    write_fp8(folder / "source", fp8, FP8_KINDS[kind], {"model_type": "llama", "dtype": "bfloat16"})
    transfuse.compress(folder / "source", folder / "compressed")
    return dict(iterate_dense([str(path) for path in sorted((folder / "compressed").glob("*.safetensors"))])), dense


@pytest.mark.parametrize("kind", ["block", "tensor", "channel"])
def test_fp8_is_taken_as_it_is(
    source: dict[str, torch.Tensor], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed layers are made of the files' codes and scales, and merged ones are one layer; others say why not."""
    lazy, dense = load_fp8(source, tmp_path, kind)
    refused: dict[str, str] = {}
    monkeypatch.setattr(_model_loading, "note_fp8_refusal", lambda name, why: refused.setdefault(name, why))
    pack, packed = transfuse.torch.pack, []

    def pack_noted(weight: torch.Tensor, **options: Any) -> torch.Tensor:
        packed.append(tuple(weight.shape))
        return pack(weight, **options)

    monkeypatch.setattr(transfuse.torch, "pack", pack_noted)
    for ranks in (1, 2):
        refused.clear()
        packed.clear()
        with layers_of_rank(ranks - 1, ranks) as config:
            made, plain = make_tall_layers(config), make_tall_layers(None)
            for layers_of in (made, plain):
                del layers_of["embedding"], layers_of["head"]
            loads = [each for each in tall_loads_of(lazy) if each[0].partition(".")[0] in made]
            load(model := make_model(**made), loads)
            layers.finish(model)
            loads = [each for each in tall_loads_of(dense) if each[0].partition(".")[0] in made]
            load(make_model(**plain), loads)
        for name, layer in made.items():
            wanted = plain[name].weight.data
            assert torch.equal(bits(layer.quant_method.dequantize_weight(layer)), bits(wanted)), (ranks, name)
            x = random_weights(3, wanted.shape[1], seed=7) * 50
            product = layer.quant_method.apply(layer, x)
            assert (product - torch.nn.functional.linear(x.float(), wanted.float())).abs().max() < 0.05
        if kind == "channel":
            assert set(refused) == set(made) and len(packed) == len(made)
            reasons = ("its scales are those of rows", "it is a part that is not cut at multiples of 16")
            assert all(why.startswith(reasons[: 1 if ranks == 1 else 2]) for why in refused.values()), refused
            continue
        # 688 and 688 / 2 rows of gate and up, and 64 / 2 of k and v, end within bands of 64 rows.
        taken = {"tall", "long"} | ({"tall_qkv"} if ranks == 1 else set())
        assert len(packed) == len(made) - len(taken)
        assert all(made[name].transfuse_packed.layout == "packed8" for name in taken)
        held = made["tall"].transfuse_packed
        assert held.held_bytes == packed8_bytes(*held.shape)
        assert all("multiple of 64" in why or "multiples of 16" in why for why in refused.values()), refused


def test_reasons_of_merged_layers(
    source: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merged layer that is FP8 in part, and one whose FP8 is found in dense weights and does not fit, say why."""
    lazy, dense = load_fp8(source, tmp_path, "block")
    unfit = dense["tall_gate"].clone()
    unfit[0, :40] = 3.0  # no codes times scales
    refused: dict[str, str] = {}
    monkeypatch.setattr(_model_loading, "note_fp8_refusal", lambda name, why: refused.setdefault(name, why))
    for gate, up, reason in (
        (lazy["tall_gate"], source["tall_up"], "only some of its parts are FP8 in their files"),
        (unfit, dense["tall_up"], "40 of the weights"),
        (dense["tall_gate"], dense["tall_up"], ""),
        (source["tall_gate"], source["tall_up"], ""),
    ):
        refused.clear()
        with layers_of_rank() as config:
            layer = make_tall_layers(config)["tall"]
            load(model := make_model(tall=layer), [("tall.weight", gate, 0), ("tall.weight", up, 1)])
            layers.finish(model)
        is_fp8 = not reason and up is not source["tall_up"]
        assert layer.transfuse_packed.layout == ("packed8" if is_fp8 else "packed")
        assert list(refused) == (["tall"] if reason else []) and refused.get("tall", "").startswith(reason)


def test_fp8_layers_get_new_weights(source: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """Layers that were taken as FP8 are loaded again, with other weights and with their own."""
    lazy, dense = load_fp8(source, tmp_path, "block")
    with layers_of_rank() as config:
        layer = make_tall_layers(config)["tall"]
        model = make_model(tall=layer)
        weights = ("tall_gate", "tall_up")
        load(model, [("tall.weight", lazy[name], index) for index, name in enumerate(weights)])
        layers.finish(model)
        assert layer.transfuse_packed.layout == "packed8"
        for given in (source, lazy, {name: lazy[name] for name in weights}):
            initialize_layerwise_reload(model)
            load(model, [("tall.weight", given[name], index) for index, name in enumerate(weights)])
            layers.finish(model)
            due = torch.cat([(source if given is source else dense)[name] for name in weights])
            assert torch.equal(bits(layer.quant_method.dequantize_weight(layer)), bits(due))


def make_tall_layers(config: Any) -> dict[str, Any]:
    options = {"bias": False, "quant_config": config}
    return {
        "tall_qkv": linear.QKVParallelLinear(
            HIDDEN, HEAD_DIM, TALL // HEAD_DIM, KV_HEADS, prefix="tall_qkv", **options
        ),
        "tall": linear.MergedColumnParallelLinear(HIDDEN, [TALL] * 2, prefix="tall", **options),
        "long": linear.RowParallelLinear(TALL, HIDDEN, prefix="long", reduce_results=False, **options),
        "gate_up": linear.MergedColumnParallelLinear(HIDDEN, [INTERMEDIATE] * 2, prefix="gate_up", **options),
        "embedding": VocabParallelEmbedding(VOCABULARY + 24, HIDDEN, quant_config=config, prefix="embedding"),
        "head": ParallelLMHead(VOCABULARY, HIDDEN, quant_config=config, prefix="head"),
    }


def tall_loads_of(weights: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor, Any]]:
    yield from [("tall_qkv.weight", weights["v"], "v"), ("tall_qkv.weight", weights["tall_q"], "q")]
    yield from [("tall.weight", weights["tall_up"], 1), ("long.weight", weights["long"], None)]
    yield from [("tall.weight", weights["tall_gate"], 0), ("tall_qkv.weight", weights["k"], "k")]
    yield from [("gate_up.weight", weights["up"], 1), ("gate_up.weight", weights["gate"], 0)]
    yield from [
        ("embedding.weight", weights["tall_q"][: VOCABULARY + 24], None),
        ("head.weight", weights["table"], None),
    ]


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_coded_shards(
    source: dict[str, torch.Tensor], lazy: dict[str, torch.Tensor], ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coded layers are made of tiles as they are in the file, and encoded where shards cut tiles, with a note."""
    encoded: dict[str, set[str]] = {}
    monkeypatch.setattr(_model_loading, "note_encoded", lambda name, why: encoded.setdefault(name, set()).add(why))
    encode, shapes = transfuse.torch.encode, []

    def encode_noted(weight: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(weight.shape))
        return encode(weight)

    monkeypatch.setattr(transfuse.torch, "encode", encode_noted)
    for rank in range(ranks):
        encoded.clear()
        shapes.clear()
        with layers_of_rank(rank, ranks, transfuse={"layout": "coded"}) as config:
            made, plain = make_tall_layers(config), make_tall_layers(None)
            model = make_model(**made)
            load(model, tall_loads_of(lazy))
            layers.finish(model)
            load(make_model(**plain), tall_loads_of(source))
            assert transfuse.torch.verify_model(model) >= len(made)  # layers may be assembled of several
            for name, layer in made.items():
                assert layer.transfuse_packed.layout == "coded"
                weight, wanted = layer.quant_method.dequantize_weight(layer), plain[name].weight.data
                assert torch.equal(bits(weight[: len(wanted)]), bits(wanted)), (rank, name)
                if name == "embedding":
                    ids = torch.tensor([0, 5, len(wanted) - 1])
                    assert torch.equal(bits(layer.quant_method.embedding(layer, ids)), bits(wanted[ids]))
                    continue
                x = random_weights(3, wanted.shape[1], seed=7) * 50
                product = layer.quant_method.apply(layer, x)
                assert (product - torch.nn.functional.linear(x.float(), wanted.float())).abs().max() < 0.05
        # The last rows of the head are padding; 1024 / 8 rows, 688 / 2 and k and v of 64 / 2 cut tiles.
        partly = {"head"} if rank == ranks - 1 else set()
        partly |= ({"gate_up", "tall_qkv"} if ranks > 1 else set()) | ({"embedding", "head"} if ranks > 4 else set())
        assert set(encoded) == partly
        assert all("multiples of 256" in next(iter(encoded[name])) for name in partly - {"head"})
        kv_rows = 2 * max(1, KV_HEADS // ranks) * HEAD_DIM
        wanted_shapes = {"head": made["head"], "gate_up": made["gate_up"], "embedding": made["embedding"]}
        due = [(layer.transfuse_rows, HIDDEN) for name, layer in wanted_shapes.items() if name in partly]
        assert sorted(shapes) == sorted(due + [(kv_rows, HIDDEN)] * (ranks > 1))


def test_coded_fused_tensors(
    source: dict[str, torch.Tensor], lazy: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors that are fused in the file, and that loaders cut within tiles, are taken whole."""
    encoded: list[str] = []
    monkeypatch.setattr(_model_loading, "note_encoded", lambda name, why: encoded.append(name))
    with layers_of_rank(transfuse={"layout": "coded"}) as config:
        made = {name: layer for name, layer in make_layers(config).items() if name.startswith("fused")}
        load(model := make_model(**made), (each for each in loads_of(lazy) if each[0].startswith("fused")))
        layers.finish(model)
    assert not encoded
    for layer, weight in ((made["fused_qkv"], source["qkv"]), (made["fused_gate_up"], source["gate_up"])):
        assert torch.equal(bits(layer.quant_method.dequantize_weight(layer)), bits(weight))
        assert bytes(layer.transfuse_packed.key[:4].tolist()) != b"TRFX"  # one layer


def test_coded_layers_do_not_change(lazy: dict[str, torch.Tensor]) -> None:
    with layers_of_rank(transfuse={"layout": "coded"}) as config:
        made = make_tall_layers(config)
        model = make_model(**made)
        load(model, tall_loads_of(lazy))
        layers.finish(model)
        initialize_layerwise_reload(model)
        with pytest.raises(ValueError, match=r'long: .*coded cannot be changed while they serve.*"layout": "packed"'):
            load(model, tall_loads_of(lazy))
            layers.finish(model)


def test_coded_layers_miss_nothing(lazy: dict[str, torch.Tensor]) -> None:
    with layers_of_rank(transfuse={"layout": "coded"}) as config:
        model = make_model(tall=make_tall_layers(config)["tall"])
        with pytest.raises(ValueError, match=r"tall\.weight.*rows 0 to 2047"):
            load(model, [("tall.weight", lazy["tall_up"], 1)] * 2)
            layers.finish(model)


@pytest.mark.skipif(not hasattr(transfuse.torch, "repack"), reason="packed layers are not changed in place yet")
def test_new_weights(source: dict[str, torch.Tensor], lazy: dict[str, torch.Tensor]) -> None:
    """Layers can be loaded again from a compressed folder."""
    with layers_of_rank(1, 2) as config:
        made = make_layers(config)
        model = make_model(**made)
        load(model, loads_of({name: weight * 2 for name, weight in source.items()}))
        layers.finish(model)
        initialize_layerwise_reload(model)
        load(model, loads_of(lazy))
        layers.finish(model)
        wanted = decoded_layers(source, config)
        for name, layer in made.items():
            assert torch.equal(bits(layer.quant_method.dequantize_weight(layer)), bits(wanted[name])), name


@pytest.mark.parametrize("excluded", [False, True])
def test_missing(lazy: dict[str, torch.Tensor], excluded: bool) -> None:
    """What did not arrive is an error for lazy tensors, too; layers that are excluded are filled as dense ones."""
    settings = {"transfuse": {"exclude": ["qkv"]}} if excluded else {}
    with layers_of_rank(0, 2, **settings) as config:
        qkv = make_layers(config)["qkv"]
        model = make_model(qkv=qkv)
        if excluded:
            load(model, layers.qkv_shards(lazy, "qkv.weight"))
            assert torch.equal(bits(qkv.weight.data[: WIDTH // 2]), bits(lazy["q"][: WIDTH // 2].clone()))
            return
        with pytest.raises(ValueError, match=r"qkv\.weight.*rows 160 to 191"):
            given = layers.qkv_shards(lazy, "qkv.weight")
            load(model, [*given[:2], given[0]])  # k two times, v never: as many elements as there should be
            layers.finish(model)


def test_reading_a_folder(folder: Path, source: dict[str, torch.Tensor]) -> None:
    """vLLM's iterator gives lazy tensors of a compressed folder, and those of another one as before."""
    with layers_of_rank():
        _model_loading.install()
        for name in ("source", "compressed"):
            loader = DefaultModelLoader(LoadConfig(use_tqdm_on_load=False))
            wanted = DefaultModelLoader.Source(str(folder / name), revision=None, prefix="model.")
            found = dict(loader._get_weights_iterator(wanted))
            assert found.keys() == {f"model.{one}" for one in source}
            assert loader.counter_before_loading_weights > 0
            assert isinstance(found["model.qkv"], LazyWeight) == (name == "compressed")
            for one, tensor in found.items():
                assert torch.equal(bits(tensor.clone()), bits(source[one.removeprefix("model.")]))


def test_experts_of_other_ranks(folder: Path, source: dict[str, torch.Tensor]) -> None:
    with layers_of_rank():
        _model_loading.install()
        loader = DefaultModelLoader(LoadConfig(use_tqdm_on_load=False))
        loader.local_expert_ids = {1}
        wanted = DefaultModelLoader.Source(str(folder / "compressed"), revision=None)
        names = [name for name, _ in loader._get_weights_iterator(wanted)]
    assert sorted(names) == sorted(set(source) - {"model.layers.0.mlp.experts.0.up_proj.weight"})


def test_pickled_weights_are_left_to_vllm() -> None:
    """A folder without safetensors is read as vLLM reads it."""
    calls = []

    class Loader:
        def _prepare_weights(self, *arguments: Any) -> Any:
            calls.append(arguments)
            return "folder", ["folder/model.bin"], False

    wanted = DefaultModelLoader.Source("folder", revision=None)
    weights = iter([("name", torch.zeros(1))])

    def read(loader: Any, source: Any) -> Any:
        assert loader._prepare_weights("folder")[1] == ["folder/model.bin"]
        return weights

    loader = Loader()
    assert _model_loading._read_weights(read, loader, wanted) is weights
    assert len(calls) == 1  # what the plugin has found vLLM does not look for again
    loader._prepare_weights("another")
    assert len(calls) == 2
