# SPDX-License-Identifier: Apache-2.0
"""Packed experts in vLLM's own layers, without an engine, on the CPU: loading, shards, products, what stays plain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
import torch.nn.functional as F
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe import layer as fused_moe
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.model_executor.model_loader.reload.layerwise import initialize_layerwise_reload

import transfuse
import transfuse.torch as tt
from transfuse.tests import vllm_layers as layers
from transfuse.tests.fp8_sources import FP8_KINDS, quantize_all, write_fp8
from transfuse.tests.vllm_layers import bits, layers_of_rank, make_model, random_weights
from transfuse.vllm import _graphs, _mixtures, _model_loading
from transfuse.vllm._lazy_weight import iterate_dense

EXPERTS, HIDDEN, INNER, ROUTES, TOKENS = 8, 256, 256, 3, 5
PREFIX = "layers.0.mlp.experts"


def make_experts(config: Any, *, ranks: int = 1, inner: int = INNER, **options: Any) -> Any:
    """Returns a runner of experts, whose weights have not arrived."""
    get_current_vllm_config().parallel_config.enable_expert_parallel = options.pop("is_expert_parallel", False)
    sizes = {"num_experts": EXPERTS, "top_k": ROUTES, "hidden_size": HIDDEN, "intermediate_size": inner}
    return fused_moe.FusedMoE(
        **{**sizes, "quant_config": config, "tp_size": ranks, "dp_size": 1, "pcp_size": 1, "prefix": PREFIX, **options}
    )


def make_weights(inner: int = INNER, seed: int = 0) -> dict[str, torch.Tensor]:
    """Returns gate, up and down of all experts, by vLLM's names of them."""
    return {
        "w1": random_weights(EXPERTS, inner, HIDDEN, seed=seed + 1),
        "w3": random_weights(EXPERTS, inner, HIDDEN, seed=seed + 2),
        "w2": random_weights(EXPERTS, HIDDEN, inner, seed=seed + 3),
    }


def load_experts(experts: Any, weights: Mapping[str, Any], without: tuple[str, int] | None = None) -> None:
    """Loads the weights expert by expert, as models do: into parameters that packing replaces meanwhile."""
    for shard, tensor in weights.items():
        name = "w2_weight" if shard == "w2" else "w13_weight"
        for expert in range(EXPERTS):
            if (shard, expert) != without:
                parameter = getattr(experts.routed_experts, name)
                parameter.weight_loader(parameter, tensor[expert], f"{PREFIX}.{name}", shard, expert)


def make_tokens() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns x, the experts of each token, and their weights."""
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float32).to(torch.bfloat16)
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:ROUTES] for _ in range(TOKENS)]).to(torch.int32)
    weights = torch.rand(TOKENS, ROUTES, generator=generator, dtype=torch.float32)
    return x, ids, weights


def apply(experts: Any) -> torch.Tensor:
    x, ids, weights = make_tokens()
    routed = experts.routed_experts
    result: torch.Tensor = routed.quant_method.apply(routed, x, weights, ids, None, None)
    return result


def reference(weights: dict[str, torch.Tensor], here: range = range(EXPERTS), activation: Any = F.silu) -> torch.Tensor:
    """Returns the same in F32, of the experts that are here."""
    x, ids, route_weights = make_tokens()
    dense = {name: tensor.float() for name, tensor in weights.items()}
    result = torch.zeros(TOKENS, HIDDEN, dtype=torch.float32)
    for token in range(TOKENS):
        for expert, weight in zip(ids[token].tolist(), route_weights[token], strict=True):
            if expert in here:
                gate, up = (dense[name][expert] @ x[token].float() for name in ("w1", "w3"))
                result[token] += weight * (dense["w2"][expert] @ (activation(gate) * up))
    return result


def check(result: torch.Tensor, wanted: torch.Tensor) -> None:
    assert result.dtype == torch.bfloat16 and wanted.abs().max() > 0
    assert (result.float() - wanted).abs().max() <= 0.02 * wanted.abs().max()


def decode(experts: Any, name: str) -> torch.Tensor:
    routed = experts.routed_experts
    weight = getattr(routed, name)
    assert weight.dtype == torch.uint8 and weight.shape == (256,)
    dense: torch.Tensor = routed.quant_method.dequantize_weight(routed, name)
    return dense


def test_packed() -> None:
    """Weights are the checkpoint's bit for bit, and the mixture is that of torch."""
    weights = make_weights()
    with layers_of_rank() as config:
        experts = make_experts(config)
        assert experts.routed_experts.w13_weight.is_meta
        model = make_model(experts=experts)
        load_experts(experts, weights)
        layers.finish(model)
        assert torch.equal(bits(decode(experts, "w13_weight")), bits(torch.cat([weights["w1"], weights["w3"]], dim=1)))
        assert torch.equal(bits(decode(experts, "w2_weight")), bits(weights["w2"]))
        check(apply(experts), reference(weights))
        assert tt.verify_model(model) == 2 * EXPERTS


def test_fused_tensors() -> None:
    """A checkpoint may have the experts of a layer in one tensor."""
    weights = make_weights()
    with layers_of_rank() as config:
        experts = make_experts(config)
        model = make_model(experts=experts)
        for shard, tensor in weights.items():
            name = "w2_weight" if shard == "w2" else "w13_weight"
            parameter = getattr(experts.routed_experts, name)
            parameter.weight_loader(parameter, tensor, f"{PREFIX}.{name}", shard, 0)
        layers.finish(model)
        check(apply(experts), reference(weights))


@pytest.mark.parametrize("kind", ["block", "tensor", "channel"])
def test_fp8_with_scales(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts of a compressed folder of FP8 have the bits of codes times scales, and the log says which stay BF16."""
    refused: dict[str, str] = {}
    monkeypatch.setattr(_model_loading, "note_fp8_refusal", lambda name, why: refused.setdefault(name, why))
    split = {f"{shard}.{expert}": each for shard, all in make_weights().items() for expert, each in enumerate(all)}
    fp8, dense = quantize_all(split, FP8_KINDS[kind], lambda name: True)
    write_fp8(tmp_path / "source", fp8, FP8_KINDS[kind], {"model_type": "llama", "dtype": "bfloat16"})
    transfuse.compress(tmp_path / "source", tmp_path / "compressed")
    files = sorted((tmp_path / "compressed").glob("*.safetensors"))
    found, decoded = dict(iterate_dense([str(path) for path in files])), []
    assert found.keys() == split.keys()
    for weights in (dense, found):
        with layers_of_rank() as config:
            experts = make_experts(config)
            model = make_model(experts=experts)
            stacked = {shard: [weights[f"{shard}.{expert}"] for expert in range(EXPERTS)] for shard in make_weights()}
            load_experts(experts, stacked)
            layers.finish(model)
            decoded.append([decode(experts, name) for name in ("w13_weight", "w2_weight")])
            packed = experts.routed_experts.transfuse_packed
            assert packed.layout == ("packed experts" if kind == "channel" else "packed8 experts")
    assert not refused if kind != "channel" else "experts are searched for" in refused[PREFIX]
    assert kind != "channel" or "their files have channel" in refused[PREFIX]
    for wanted, made in zip(*decoded, strict=True):
        assert torch.equal(bits(made), bits(wanted))


@pytest.mark.parametrize("ranks", [2, 4])
def test_tensor_parallel(ranks: int) -> None:
    """Each rank has its part of every expert; the ranks' results add up."""
    weights, total = make_weights(), torch.zeros(TOKENS, HIDDEN, dtype=torch.float32)
    part = INNER // ranks
    for rank in range(ranks):
        with layers_of_rank(rank, ranks) as config:
            experts = make_experts(config, ranks=ranks)
            model = make_model(experts=experts)
            load_experts(experts, weights)
            layers.finish(model)
            mine = slice(rank * part, (rank + 1) * part)
            gate_up = torch.cat([weights["w1"][:, mine], weights["w3"][:, mine]], dim=1)
            assert torch.equal(bits(decode(experts, "w13_weight")), bits(gate_up))
            assert torch.equal(bits(decode(experts, "w2_weight")), bits(weights["w2"][:, :, mine]))
            total += apply(experts).float()
    check(total.to(torch.bfloat16), reference(weights))


def test_expert_parallel() -> None:
    """Each rank has whole experts; those that are elsewhere add nothing."""
    weights = make_weights()
    for rank in range(2):
        with layers_of_rank(rank, 2) as config:
            experts = make_experts(config, ranks=2, is_expert_parallel=True)
            model = make_model(experts=experts)
            load_experts(experts, weights)
            layers.finish(model)
            here = range(rank * EXPERTS // 2, (rank + 1) * EXPERTS // 2)
            assert torch.equal(bits(decode(experts, "w2_weight")), bits(weights["w2"][here.start : here.stop]))
            check(apply(experts), reference(weights, here))
            initialize_layerwise_reload(model)
            load_experts(experts, make_weights(seed=10))
            layers.finish(model)
            check(apply(experts), reference(make_weights(seed=10), here))
            with pytest.raises(ValueError, match=rf"w13_weight of expert {here.start} \(w1\) arrived a second time"):
                load_experts(experts, weights)


def test_gelu() -> None:
    weights = make_weights()
    with layers_of_rank() as config:
        experts = make_experts(config, activation="gelu_tanh")
        model = make_model(experts=experts)
        load_experts(experts, weights)
        layers.finish(model)
        check(apply(experts), reference(weights, activation=lambda x: F.gelu(x, approximate="tanh")))


def test_dummy_weights() -> None:
    """Weights that vLLM makes up are packed, too."""
    with layers_of_rank() as config:
        get_current_vllm_config().load_config.load_format = "dummy"
        experts = make_experts(config)
        model = make_model(experts=experts)
        loader = DummyModelLoader(get_current_vllm_config().load_config)
        loader.load_weights(model, layers._ModelConfig())  # type: ignore[arg-type]
        layers.finish(model)
        weights = dict(zip(("w1", "w3"), decode(experts, "w13_weight").chunk(2, dim=1), strict=True))
        check(apply(experts), reference({**weights, "w2": decode(experts, "w2_weight")}))


@pytest.mark.parametrize("factor", [1, 2**-20])
def test_reload(factor: float) -> None:
    """New weights replace packed ones, and graphs are captured again; missing ones are an error."""
    old, new = make_weights(), {name: tensor * factor for name, tensor in make_weights(seed=10).items()}
    with layers_of_rank() as config:
        experts = make_experts(config)
        model = make_model(experts=experts)
        load_experts(experts, old)
        layers.finish(model)
        _graphs.forget_changes()
        initialize_layerwise_reload(model)
        load_experts(experts, new)
        layers.finish(model)
        assert _graphs._changed == [PREFIX]
        _graphs.forget_changes()
        assert torch.equal(bits(decode(experts, "w2_weight")), bits(new["w2"]))
        check(apply(experts), reference(new))
        assert tt.verify_model(model) == 2 * EXPERTS


def test_missing_weights() -> None:
    with layers_of_rank() as config:
        experts = make_experts(config)
        model = make_model(experts=experts)
        load_experts(experts, make_weights(), without=("w3", 5))
        with pytest.raises(ValueError, match=rf"{PREFIX}.w13_weight.*parts of experts 5 to 5\. If the model"):
            layers.finish(model)


def test_exact() -> None:
    """Exact mode gives vLLM's own kernel the decoded weights; where vLLM has none it says so."""
    weights = make_weights()
    with layers_of_rank(transfuse={"exact": True}) as config:
        experts = make_experts(config)
        model = make_model(experts=experts)
        method = experts.routed_experts.quant_method
        kernel = mock.Mock()
        kernel.apply.return_value = torch.zeros(1)
        method._plain.experts_cls = SimpleNamespace(is_monolithic=lambda: False)
        method._plain.unquantized_backend = _mixtures_backend()
        with mock.patch.object(_mixtures, "make_unquantized_moe_kernel", return_value=kernel):
            load_experts(experts, weights)
            layers.finish(model)
        apply(experts)
        given = kernel.apply.call_args.kwargs
        assert torch.equal(bits(given["w1"]), bits(torch.cat([weights["w1"], weights["w3"]], dim=1)))
        assert torch.equal(bits(given["w2"]), bits(weights["w2"]))
    tt.set_exact(False)


def _mixtures_backend() -> Any:
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend

    return UnquantizedMoeBackend.TRITON


@pytest.mark.parametrize(
    ("reason", "options", "settings"),
    [
        ("it is excluded", {}, {"exclude": ["*.experts"]}),
        ("the layout is coded", {}, {"layout": "coded"}),
        ("their activation is gelu", {"activation": "gelu"}, {}),
        ("their activation has limits", {"swiglu_limit": 7.0}, {}),
        ("weighted before the experts", {"apply_router_weight_on_input": True, "top_k": 1}, {}),
        ("their sizes, 36 and 256,", {"inner": 36}, {}),
        ("more than 32", {"num_experts": 64, "top_k": 33}, {}),
        ("they have biases", {"has_bias": True}, {}),
        ("their weights are torch.float32", {"params_dtype": torch.float32}, {}),
    ],
)
def test_plain(reason: str, options: dict[str, Any], settings: dict[str, Any]) -> None:
    """What is not packed is vLLM's, and the report says why."""
    with layers_of_rank(transfuse=settings) as config:
        _model_loading._report = _model_loading._Report()
        experts = make_experts(config, **options)
        assert type(experts.routed_experts.quant_method) is UnquantizedFusedMoEMethod
        assert [names for why, names in _model_loading._report.plain.items() if reason in why] == [[PREFIX]]
    _model_loading._report = _model_loading._Report()


def test_experts_without_our_config() -> None:
    """The report names experts that a model makes without a quantization config, and no packed ones."""
    with layers_of_rank() as config:
        ours = make_experts(config, prefix="layers.1.mlp.experts")
        model = make_model(theirs=make_experts(None), ours=ours)
        load_experts(ours, make_weights())
        with mock.patch.object(_model_loading.logger, "info") as info:
            layers.finish(model)
    lines = [call.args[0] % call.args[1:] for call in info.call_args_list]
    assert [line.rpartition(" ")[2] for line in lines if "without a quantization config" in line] == [
        "theirs.routed_experts"
    ]


def test_refused_weights() -> None:
    """Weights whose exponents lie too far apart are served by vLLM's own method."""
    weights = make_weights()
    generator = torch.Generator().manual_seed(3)
    noise = torch.randint(-30000, 30000, weights["w2"].shape, generator=generator, dtype=torch.int32)
    weights["w2"] = torch.nan_to_num(noise.to(torch.int16).view(torch.bfloat16), nan=1.0)
    with layers_of_rank() as config:
        _model_loading._report = _model_loading._Report()
        experts = make_experts(config)
        model = make_model(experts=experts)
        method = experts.routed_experts.quant_method
        with mock.patch.object(method._plain, "process_weights_after_loading") as process:
            load_experts(experts, weights)
            assert any("pack" in why for why in _model_loading._report.plain)
            layers.finish(model)
        process.assert_called_once()
        assert torch.equal(bits(experts.routed_experts.w2_weight), bits(weights["w2"]))
