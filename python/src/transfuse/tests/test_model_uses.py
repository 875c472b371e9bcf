# SPDX-License-Identifier: Apache-2.0
"""What programs do with compressed models of transformers and diffusers beyond running them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", minversion="5.17", reason="transformers 5.17 is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
pytest.importorskip("diffusers", reason="diffusers is not installed")
pytest.importorskip("peft", reason="peft is not installed")

import diffusers
import peft
import torch
import transformers

import transfuse
from transfuse.tests.test_save_compressed import parameters_of
from transfuse.tests.test_transformers import KINDS

IDS = torch.arange(3, 15).reshape(2, 6)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A llama, and the same compressed."""
    source = tmp_path_factory.mktemp("uses") / "source"
    KINDS["llama"].make().save_pretrained(source)
    compressed = source.with_name("trf")
    transfuse.compress(source, compressed)
    return source, compressed


def load(folder: Path, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def make_trainer(model: Any, folder: Path) -> Any:
    arguments = transformers.TrainingArguments(output_dir=str(folder), report_to=[], use_cpu=True, max_steps=1)
    data = [{"input_ids": row, "labels": row} for row in IDS]
    return transformers.Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)


def test_trainer(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """It evaluates a compressed model, and refuses to train one without an adapter, as it does any quantized one."""
    losses = [make_trainer(load(folder), tmp_path).evaluate()["eval_loss"] for folder in folders]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    model = load(folders[1])
    assert make_trainer(model, tmp_path).predict([{"input_ids": IDS[0]}]).predictions.shape == (1, 6, 515)
    with pytest.raises(ValueError, match="Please attach trainable adapters"):
        make_trainer(model, tmp_path).train()
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    assert make_trainer(adapted, tmp_path).train().training_loss > 0


@pytest.mark.parametrize("options", [{}, {"device_map": "cpu"}])
def test_empty_weights(folders: tuple[Path, Path], options: dict[str, Any]) -> None:
    """accelerate leaves a model on the meta device then, which for the source nobody is told."""
    accelerate: Any = importlib.import_module("accelerate")
    with (
        accelerate.init_empty_weights(),
        pytest.raises(RuntimeError, match=r"q_proj.*\d more.*outside of .*init_empty"),
    ):
        load(folders[1], **options)
    with accelerate.init_on_device(torch.device("cpu"), include_buffers=True):
        model = load(folders[1], **options)
    found, wanted = parameters_of(model), load(folders[0]).state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("kind", ["llama_tied", "qwen3_moe"])
def test_numbers_of_parameters(kind: str) -> None:
    """Those of the uncompressed model, not bytes; shared ones count once."""
    dense, model = KINDS[kind].make(), KINDS[kind].make()
    transfuse.compress_model(model, embeddings=True)
    assert model.num_parameters() == dense.num_parameters()
    assert model.num_parameters(exclude_embeddings=True) == dense.num_parameters(exclude_embeddings=True)
    trainable = sum(each.numel() for each in model.parameters() if each.requires_grad)
    assert model.num_parameters(only_trainable=True) == trainable > 0
    assert any(each.dtype == torch.uint8 for each in model.parameters())


def test_dequantizing_names_the_way_out(folders: tuple[Path, Path]) -> None:
    with pytest.raises(transfuse.UnsupportedError, match="'transfuse decompress'"):
        load(folders[1]).dequantize()


def test_parameters_of_experts() -> None:
    """PEFT looks for them among the parameters that there are, and would only warn."""
    model = KINDS["mixtral"].make()
    transfuse.compress_model(model)
    config = peft.LoraConfig(target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj"])
    with pytest.raises(transfuse.UnsupportedError, match=r"the weights of model\.layers\.0\.mlp\.experts"):
        peft.get_peft_model(model, config)


# ---- diffusers ----


@pytest.fixture(scope="module")
def unets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    torch.manual_seed(1)
    model = diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, block_out_channels=(32, 64), layers_per_block=1,
        norm_num_groups=8, cross_attention_dim=32, attention_head_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    source = tmp_path_factory.mktemp("unets") / "unet"
    model.bfloat16().save_pretrained(source)
    compressed = source.with_name("trf")
    transfuse.compress(source, compressed)
    return source, compressed


def load_unet(folder: Path) -> Any:
    return diffusers.UNet2DConditionModel.from_pretrained(folder, torch_dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "make",
    [diffusers.ControlNetModel.from_unet, diffusers.UNetMotionModel.from_unet2d],
    ids=["controlnet", "motion"],
)
def test_models_made_of_others(unets: tuple[Path, Path], make: Any) -> None:
    """They are not compressed, and take the decoded weights."""
    states = []
    for folder in unets:
        torch.manual_seed(2)
        states.append(make(load_unet(folder)).state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_numbers_of_parameters_in_diffusers(unets: tuple[Path, Path]) -> None:
    assert load_unet(unets[0]).num_parameters() == load_unet(unets[1]).num_parameters()


def test_fusing_projections(unets: tuple[Path, Path]) -> None:
    model = load_unet(unets[1])
    with pytest.raises(transfuse.UnsupportedError, match=r"fused: the weights of .*attn1\.to_q, .* are compressed"):
        model.fuse_qkv_projections()
    load_unet(unets[0]).fuse_qkv_projections()


def test_fusing_adapters(unets: tuple[Path, Path]) -> None:
    model = load_unet(unets[1])
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q"]))
    with pytest.raises(ValueError, match=r"\(down_blocks\.1\.attentions\.0\.transformer_blocks\.0\.attn1\.to_q "):
        model.fuse_lora()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_casting(unets: tuple[Path, Path], dtype: torch.dtype) -> None:
    """As for models that were compressed in memory, and those of transformers: pipelines cast their parts."""
    sample, time, text = torch.randn(1, 4, 8, 8, dtype=dtype), torch.tensor([3]), torch.randn(1, 5, 32, dtype=dtype)
    outputs = [load_unet(folder).to(dtype)(sample, time, text).sample for folder in unets]
    assert outputs[1].dtype == dtype
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0.01, atol=0.01)
