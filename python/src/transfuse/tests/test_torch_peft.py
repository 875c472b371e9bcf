# SPDX-License-Identifier: Apache-2.0
"""Adapters of PEFT on compressed layers: gradients, and that nothing is merged."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("peft", reason="peft is not installed")

import peft
import torch
from peft.tuners import tuners_utils
from torch import Tensor, nn

import transfuse
from transfuse.tests.torch_cases import TiedModel, exact, make_ids, make_model, normal, same_bits
from transfuse.torch._compress import compress_model
from transfuse.torch._modules import TransfuseLinear


def with_adapter(model: nn.Module, **options: Any) -> Any:
    """Returns a model with an adapter whose matrices are all random, the same ones for each model."""
    config = peft.LoraConfig(**{"r": 4, "target_modules": ["up", "down"], **options})
    adapted = peft.get_peft_model(model, config)
    for index, (name, parameter) in enumerate(sorted(adapted.named_parameters())):
        if "lora_" in name and "magnitude" not in name:
            parameter.data = normal(*parameter.shape, dtype=torch.float32, seed=index, scale=0.1).to(parameter.dtype)
    return adapted


def gradients(model: Any, ids: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    logits = model(ids)
    (logits * normal(*logits.shape, dtype=logits.dtype, seed=9, scale=1.0)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def models() -> tuple[TiedModel, TiedModel]:
    """A model and the same compressed."""
    dense, model = make_model(), make_model()
    compress_model(model, embeddings=True)
    return dense, model


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"use_rslora": True, "lora_bias": True}], ids=str)
def test_gradients_in_exact_mode(models: tuple[TiedModel, TiedModel], options: dict[str, Any]) -> None:
    if options.get("lora_bias"):
        options = {**options, "target_modules": ["up"]}
    dense, model = (with_adapter(each, **options) for each in models)
    ids = make_ids(models[0], 3, 6)
    with exact():
        want, found = gradients(dense, ids), gradients(model, ids)
    assert want.keys() == found.keys() and len(want) >= 3
    assert all(same_bits(want[name], found[name]) for name in want)
    dtypes = [{name: p.dtype for name, p in each.named_parameters() if "lora_" in name} for each in (dense, model)]
    assert dtypes[0] == dtypes[1]


def test_gradients_are_as_good_as_those_of_bf16(models: tuple[TiedModel, TiedModel]) -> None:
    dense, model = (with_adapter(each) for each in models)
    precise = with_adapter(copy.deepcopy(make_model()).double())
    ids = make_ids(models[0], 4, 8)
    want, own, found = gradients(precise, ids), gradients(dense, ids), gradients(model, ids)
    for name in want:
        error, error_of_bf16 = ((each[name].double() - want[name]).norm() for each in (found, own))
        assert error <= 2 * error_of_bf16


def test_a_step_of_training(models: tuple[TiedModel, TiedModel]) -> None:
    dense, model = (with_adapter(each).train() for each in models)
    ids = make_ids(models[0], 3, 6)
    blob = models[1].up.base_layer.weight.clone()
    results = []
    with exact():
        for each in (dense, model):
            optimizer = torch.optim.AdamW([p for p in each.parameters() if p.requires_grad], lr=0.01)
            for _ in range(3):
                optimizer.zero_grad()
                each(ids).float().logsumexp(-1).mean().backward()
                optimizer.step()
            results.append(each(ids))
    assert same_bits(*results)
    assert same_bits(models[1].up.base_layer.weight, blob)


def test_adapters_of_embeddings(models: tuple[TiedModel, TiedModel]) -> None:
    ids = make_ids(models[0], 3, 6)
    dense, model = (with_adapter(each, target_modules=["embed_tokens"]) for each in models)
    with exact():
        want, found = gradients(dense, ids), gradients(model, ids)
    assert len(want) == 2 and all(same_bits(want[name], found[name]) for name in want)


@pytest.mark.parametrize("dora", [False, True])
def test_merging_is_refused(models: tuple[TiedModel, TiedModel], dora: bool) -> None:
    dense, model = (with_adapter(each, use_dora=dora) for each in models)
    ids, layer = make_ids(models[0], 2, 5), models[1].up
    want = model(ids)
    for merge in (
        model.merge_adapter,
        model.merge_and_unload,
        lambda: model.merge_and_unload(safe_merge=True),
        layer.merge,
        lambda: layer.merge(safe_merge=True),
    ):
        with pytest.raises(ValueError, match="cannot be merged into compressed weights"):
            merge()
        assert not layer.merged and same_bits(model(ids), want)
    with pytest.raises(ValueError, match=r"\(up\)"):
        model.merge_adapter()
    unloaded = model.unload()
    assert isinstance(unloaded.up, TransfuseLinear)
    dense.merge_adapter()  # others may
    assert dense.base_model.model.up.merged


@pytest.mark.parametrize("first", ["transfuse", "peft"])
def test_either_may_be_imported_first(first: str) -> None:
    program = f"""
import {first}, transfuse, peft, sys
assert "transfuse.torch" not in sys.modules
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 96).bfloat16())
transfuse.compress_model(model)
adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["0"]))
try:
    adapted.merge_adapter()
except ValueError as refusal:
    print(refusal)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "cannot be merged into compressed weights" in done.stdout, done.stderr


def test_merging_into_the_dense_layers_of_a_compressed_model() -> None:
    model = make_model()
    compress_model(model, exclude=["up*"])
    adapted = with_adapter(model, target_modules=["up"])
    ids = make_ids(model, 2, 5)
    want = adapted(ids)
    merged = adapted.merge_and_unload()
    assert type(merged.up) is nn.Linear and isinstance(merged.down, TransfuseLinear)
    torch.testing.assert_close(merged(ids), want, rtol=0.1, atol=0.1)


def test_tuners_that_come_later_refuse_too(models: tuple[TiedModel, TiedModel]) -> None:
    class Tuner(tuners_utils.BaseTunerLayer):
        def __init__(self, base_layer: nn.Module) -> None:
            self.base_layer = base_layer

        def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
            self.merged_adapters = ["it"]

    tuner = Tuner(models[0].up)
    tuner.merge()
    assert tuner.merged
    with pytest.raises(ValueError, match="compressed"):
        Tuner(models[1].up).merge()


@pytest.mark.parametrize("init", ["olora", "pissa", "pissa_niter_4", "corda"])
def test_first_weights_that_change_the_layer(models: tuple[TiedModel, TiedModel], init: str) -> None:
    before = models[1].up.weight.clone()
    with pytest.raises(
        transfuse.UnsupportedError, match=f"'{init}' changes .* the weights of up are compressed.*exclude"
    ):
        with_adapter(models[1], target_modules=["up"], init_lora_weights=init)
    assert same_bits(models[1].up.weight, before)


@pytest.mark.parametrize("init", ["orthogonal", "mica"])
def test_first_weights_that_read_the_layer(models: tuple[TiedModel, TiedModel], init: str) -> None:
    ids, found = make_ids(models[0], 3, 6), []
    options: dict[str, Any] = {"target_modules": ["up"], "init_lora_weights": init}
    for each in models:
        torch.manual_seed(1)
        found.append(peft.get_peft_model(each, peft.LoraConfig(**options)))
    with exact():
        assert same_bits(*(each(ids) for each in found))
    assert isinstance(models[1].up.base_layer, TransfuseLinear) and models[1].up.base_layer.weight.dtype == torch.uint8


@pytest.mark.parametrize("kind", ["LoHaConfig", "LoKrConfig", "HRAConfig", "ShiraConfig", "TinyLoraConfig"])
def test_adapters_that_calculate_with_the_weights(models: tuple[TiedModel, TiedModel], kind: str) -> None:
    """Some of them would fail in the first product only, and others be smaller than for the uncompressed model."""
    config = getattr(peft, kind)(target_modules=["up"])
    with pytest.raises(transfuse.UnsupportedError, match="calculate with .* the weights of up are compressed"):
        peft.get_peft_model(models[1], config)


def test_what_fails_in_peft_names_the_layer(models: tuple[TiedModel, TiedModel]) -> None:
    with pytest.raises(
        transfuse.UnsupportedError, match=r"LORA fails \(RuntimeError.* the weights of embed_tokens are"
    ):
        with_adapter(models[1], target_modules=["embed_tokens"], use_dora=True)
    with pytest.raises(ValueError, match="rank"):  # a mistake of the user's stays what it is
        peft.get_peft_model(models[1], peft.LoraConfig(r=3, target_modules=["up"], init_lora_weights="orthogonal"))


@pytest.mark.parametrize("target", ["up.weight", "weight"])
def test_target_parameters(models: tuple[TiedModel, TiedModel], target: str) -> None:
    with pytest.raises(transfuse.UnsupportedError, match=r"to be matrices: the weights of .*\bup\b"):
        peft.get_peft_model(models[1], peft.LoraConfig(target_modules=[], target_parameters=[target]))


def test_trainable_tokens(models: tuple[TiedModel, TiedModel]) -> None:
    with pytest.raises(transfuse.UnsupportedError, match="trainable_token_indices.*embed_tokens"):
        with_adapter(models[1], trainable_token_indices={"embed_tokens": [1, 2]})


def test_modules_to_save(models: tuple[TiedModel, TiedModel], tmp_path: Path) -> None:
    """Copies are uncompressed: they are trained and saved, and loaded again, as those of the uncompressed model."""
    ids, outputs = make_ids(models[0], 3, 6), []
    for number, each in enumerate(models):
        adapted = with_adapter(each, target_modules=["up"], modules_to_save=["down", "embed_tokens"])
        assert type(each.down.modules_to_save["default"]) is nn.Linear
        with exact():
            gradients_of = gradients(adapted, ids)
            optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.1)
            optimizer.step()
            outputs.append((gradients_of, adapted(ids)))
        adapted.save_pretrained(tmp_path / str(number))
    (want, want_output), (found, output) = outputs
    assert want.keys() == found.keys() and len(want) == 4
    assert all(same_bits(want[name], found[name]) for name in want)
    assert same_bits(output, want_output)
    fresh = make_model()
    compress_model(fresh, embeddings=True)
    with exact():
        again = peft.PeftModel.from_pretrained(fresh, str(tmp_path / "0"))
        assert same_bits(again(ids), want_output)
    assert isinstance(fresh.down.original_module, TransfuseLinear)


PROMPTS: list[tuple[str, dict[str, Any]]] = [
    ("PromptTuningConfig", {"num_virtual_tokens": 4, "prompt_tuning_init": "SAMPLE_VOCAB"}),
    ("PromptEncoderConfig", {"num_virtual_tokens": 4, "encoder_hidden_size": 16}),
    ("CPTConfig", {"cpt_token_ids": [1, 2, 3], "cpt_mask": [1, 1, 1], "cpt_tokens_type_mask": [1, 2, 3]}),
]


@pytest.mark.parametrize(("kind", "options"), PROMPTS, ids=lambda each: each if isinstance(each, str) else "")
@pytest.mark.parametrize("tied", [False, True])
def test_prompts_on_compressed_embeddings(kind: str, options: dict[str, Any], tied: bool) -> None:
    """PEFT looks for an embedding by the rows of its weight."""
    architectures = pytest.importorskip("transfuse.tests.architectures", reason="transformers is not installed")
    sizes = {**architectures.DECODER, "tie_word_embeddings": tied}
    ids, found = torch.tensor([[5, 6, 7]]), []
    for embeddings in (None, True):
        model = architectures.Architecture("LlamaForCausalLM", sizes).make()
        if embeddings:
            compress_model(model, embeddings=embeddings)
        torch.manual_seed(1)
        adapted = peft.get_peft_model(model, getattr(peft, kind)(task_type="CAUSAL_LM", **options))
        assert adapted.word_embeddings is model.get_input_embeddings() and "get_submodule" not in vars(model)
        with exact():
            output = adapted(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
            output.loss.backward()
        gradients_of = [each.grad for each in adapted.parameters() if each.grad is not None]
        found.append([output.logits, *gradients_of])
    assert model.get_input_embeddings().weight.dtype == torch.uint8 and len(found[0]) > 1
    assert all(same_bits(one, other) for one, other in zip(*found, strict=True))
