# SPDX-License-Identifier: Apache-2.0
"""`transfuse doctor DIR`: what it says will happen is what happens when the folder is loaded."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", minversion="5.17", reason="transformers 5.17 is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

import torch
import transformers
from safetensors.torch import load_file, save_file

import transfuse
from transfuse import _doctor, _probes
from transfuse._doctor import _Doctor
from transfuse._doctor_report import Report
from transfuse._probes import ProbeResult
from transfuse.tests.test_transformers import KINDS


def examine(path: Path) -> tuple[Report, dict[str, Any], str]:
    """Returns the report on a folder, what is known of its first model, and all lines."""
    report = Report(quiet=True)
    doctor = _Doctor(report)
    doctor.versions = {package: _doctor._find_version(package) for package in _doctor._PACKAGES}
    doctor.torch_works = True
    doctor.look_at_checkpoint(str(path))
    rows = [f"{row['what']}: {row['says']}" for section in report._sections for row in section["rows"]]
    return report, report.checkpoints[0] if report.checkpoints else {}, "\n".join(rows)


@pytest.fixture(autouse=True)
def in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opens folders here: another interpreter takes many seconds to import a framework."""

    def run(code: str) -> ProbeResult:
        told: dict[str, Any] = {}
        exec(code, {"tell": lambda **values: told.update(json.loads(json.dumps(values))), "sys": sys})
        return ProbeResult(told, "")

    if "in_another_process" not in request.fixturenames:
        monkeypatch.setattr(_probes, "run_probe", run)


@pytest.fixture
def in_another_process() -> None:
    """As users have it."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sources and compressed checkpoints."""
    folder = tmp_path_factory.mktemp("doctor")
    for kind, options in (("llama", {}), ("gpt2", {"embeddings": True}), ("mixtral", {}), ("llama_tied", {})):
        KINDS[kind].make().save_pretrained(folder / kind)
        transfuse.compress(folder / kind, folder / f"{kind}-trf", **options)  # type: ignore[arg-type]
    return folder


def change_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(fields)
    config = {key: value for key, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))


def test_model(made: Path) -> None:
    report, facts, rows = examine(made / "llama-trf")
    assert not report.problems and not report.not_tried
    opening = facts["opening"]
    assert (opening["model_class"], opening["dtype"]) == ("LlamaForCausalLM", "bfloat16")
    assert len(opening["compressed"]) == facts["compressed_tensors"] == 15 and not opening["decoded"]
    assert "opens as: LlamaForCausalLM (transformers), bfloat16" in rows


def test_what_is_decoded_and_tied(made: Path) -> None:
    report, facts, rows = examine(made / "gpt2-trf")
    assert not report.problems
    assert len(facts["opening"]["decoded"]) == 8 and "Conv1D has its weights transposed" in rows
    assert "is tied: lm_head.weight to transformer.wte.weight" in rows


def test_experts(made: Path) -> None:
    report, facts, _ = examine(made / "mixtral-trf")
    assert not report.problems
    assert {f"model.layers.{layer}.mlp.experts" for layer in range(2)} <= set(facts["opening"]["compressed"])


@pytest.mark.parametrize("suffix", ["", "-trf"])
def test_missing_and_surplus(tmp_path: Path, made: Path, suffix: str) -> None:
    """What would be drawn at random is a problem, compressed or not; what is left over is not."""
    folder = Path(shutil.copytree(made / f"llama{suffix}", tmp_path / "copy"))
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["extra.weight"] = torch.ones(4)
    save_file(tensors, file, {"format": "pt"})
    report, facts, rows = examine(folder)
    assert not report.problems, report.problems
    assert facts["opening"]["surplus"] == ["extra.weight"] and "surplus, is left out: extra.weight" in rows
    del tensors["model.norm.weight"]
    save_file(tensors, file, {"format": "pt"})
    report, facts, _ = examine(folder)
    assert len(report.problems) == 1 and "no file gives 'model.norm.weight'" in report.problems[0]


@pytest.mark.parametrize("suffix", ["", "-trf"])
def test_pooler_that_is_drawn(tmp_path: Path, suffix: str) -> None:
    """It loads as the source does, in part at random."""
    config = transformers.BertConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, vocab_size=99
    )
    transformers.BertModel(config, add_pooling_layer=False).bfloat16().save_pretrained(tmp_path / "bert")
    transfuse.compress(tmp_path / "bert", tmp_path / "bert-trf")
    report, facts, _ = examine(tmp_path / f"bert{suffix}")
    assert facts["opening"]["drawn"] == ["pooler.dense.weight", "pooler.dense.bias"]
    assert len(report.problems) == 1 and "which transformers draws at random" in report.problems[0]


def test_dtype_that_does_not_fit(tmp_path: Path, made: Path) -> None:
    folder = Path(shutil.copytree(made / "llama-trf", tmp_path / "copy"))
    change_config(folder, dtype="float16")
    report, facts, _ = examine(folder)
    assert len(report.problems) == 1 and "torch.float16" in report.problems[0] and "opening" not in facts
    with pytest.raises(transfuse.ArgumentError):
        transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_shape_that_does_not_fit(tmp_path: Path, made: Path) -> None:
    folder = Path(shutil.copytree(made / "llama-trf", tmp_path / "copy"))
    change_config(folder, vocab_size=600)
    report, _, _ = examine(folder)
    assert len(report.problems) == 1 and "[515, 192]" in report.problems[0]


def test_no_config(tmp_path: Path, made: Path) -> None:
    """A file by itself is none of a model's folder, and no problem; a folder is one, compressed or not."""
    for name in ("llama", "llama-trf"):
        folder = Path(shutil.copytree(made / name, tmp_path / name))
        (folder / "config.json").unlink()
        assert len(examine(folder)[0].problems) == 1
        assert not examine(folder / "model.safetensors")[0].problems


@pytest.mark.parametrize("fields", [{"model_type": ...}, {"model_type": "nobody_knows"}, {"architectures": ["Nobody"]}])
@pytest.mark.parametrize("name", ["llama", "llama-trf"])
def test_what_no_framework_knows(tmp_path: Path, made: Path, name: str, fields: dict[str, Any]) -> None:
    folder = Path(shutil.copytree(made / name, tmp_path / "copy"))
    change_config(folder, **fields)
    report, facts, _ = examine(folder)
    assert len(report.problems) == 1, report.problems
    assert "opening" not in facts


def test_code_of_its_own(tmp_path: Path, made: Path) -> None:
    """It is not run, and the report does not say that there is no problem."""
    folder = Path(shutil.copytree(made / "llama-trf", tmp_path / "copy"))
    change_config(folder, model_type="mine", auto_map={"AutoConfig": "mine.Mine"}, architectures=["Mine"])
    report, _, rows = examine(folder)
    assert not report.problems and len(report.not_tried) == 1
    assert "opens as: not tried: its config is code of its own (trust_remote_code)" in rows


def test_old_folder(tmp_path: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the marker it is a problem; with it, but without what makes transformers raise, it says what happens."""
    folder = Path(shutil.copytree(made / "llama-trf", tmp_path / "copy"))
    change_config(folder, transformers_weights=...)
    report, _, rows = examine(folder)
    assert not report.problems and "without transfuse: transformers draws weights at random" in rows
    assert len(report.warnings) == 1 and "where transfuse is not installed" in report.warnings[0]
    report.quiet = False
    report.close()
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "no problem found; 1 warning:" and report.warnings[0] in said[2] and len(said) == 3
    change_config(folder, transformers_weights="a sentence")
    report, _, rows = examine(folder)
    assert (
        not report.problems and not report.warnings and "without transfuse: loading the model raises an error" in rows
    )
    shutil.copy(made / "llama" / "config.json", folder)
    report, _, _ = examine(folder)
    assert len(report.problems) == 1 and "transformers would give random weights" in report.problems[0]


@pytest.mark.parametrize("marker", [None, ...])
def test_lost_marker(tmp_path: Path, made: Path, marker: Any) -> None:
    """What the files hold is enough to load them, and the sentence that stops others is no name of a file."""
    folder = Path(shutil.copytree(made / "llama-trf", tmp_path / "copy"))
    change_config(folder, quantization_config=marker)
    report, facts, rows = examine(folder)
    assert not report.problems and "without transfuse: loading the model raises an error" in rows
    assert facts["opening"]["compressed"]
    transformers.AutoModelForCausalLM.from_pretrained(folder)
    # Of weights of 8 bits the marker alone says whether they have scales.
    config = json.loads((folder / "config.json").read_text())
    weights = {"lm_head.weight": torch.randn(515, 192).to(torch.float8_e4m3fn)}
    (tmp_path / "fp8").mkdir()
    save_file(weights, tmp_path / "fp8" / "model.safetensors", {"format": "pt"})
    transfuse.compress(tmp_path / "fp8", tmp_path / "fp8-trf", embeddings=True)
    (tmp_path / "fp8-trf" / "config.json").write_text(json.dumps(config))
    report, _, _ = examine(tmp_path / "fp8-trf")
    assert len(report.problems) == 1 and "has lost the quantization_config" in report.problems[0]


def test_uncompressed_weights_and_a_marker(tmp_path: Path, made: Path) -> None:
    folder = Path(shutil.copytree(made / "llama", tmp_path / "copy"))
    shutil.copy(made / "llama-trf" / "config.json", folder)
    report, facts, _ = examine(folder)
    assert not report.problems and len(report.warnings) == 1 and "put back the config.json" in report.warnings[0]
    assert facts["opening"]["model_class"] == "LlamaForCausalLM"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(model.lm_head.weight, load_file(folder / "model.safetensors")["lm_head.weight"])


@pytest.mark.parametrize("marker", [{}, {"version": 4}, {"quant_method": "Transfuse"}])
def test_damaged_marker(tmp_path: Path, made: Path, marker: dict[str, Any]) -> None:
    folder = Path(shutil.copytree(made / "llama-trf", tmp_path / "copy"))
    change_config(folder, quantization_config=marker)
    report, facts, _ = examine(folder)
    assert len(report.problems) == 1 and "quant" in report.problems[0] and "opening" not in facts


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("suffix", ["", "-trf"])
def test_state_dict_of_compressed_modules(tmp_path: Path, made: Path, name: str, suffix: str) -> None:
    """What was saved by other means than `save_pretrained`, beside the source's config.json or that of a checkpoint."""
    model = transformers.AutoModelForCausalLM.from_pretrained(made / "llama-trf")
    save = torch.save if name.endswith(".bin") else save_file
    save(dict(model.state_dict()), tmp_path / name)
    shutil.copy(made / f"llama{suffix}" / "config.json", tmp_path)
    for path in (tmp_path, tmp_path / name):
        report, facts, _ = examine(path)
        assert len(report.problems) == 1 and "by model.save_pretrained()" in report.problems[0]
        assert "opening" not in facts


def test_stored_only(tmp_path: Path, made: Path) -> None:
    folder = Path(shutil.copytree(made / "llama-trf", tmp_path / "copy"))
    config = json.loads((folder / "config.json").read_text())
    change_config(folder, quantization_config={**config["quantization_config"], "stored": True})
    report, facts, _ = examine(folder)
    assert len(report.problems) == 1 and "transfuse decompress" in report.problems[0] and "opening" not in facts


def test_variant(tmp_path: Path, made: Path) -> None:
    folder = Path(shutil.copytree(made / "llama-trf", tmp_path / "copy"))
    (folder / "model.safetensors").rename(folder / "model.fp16.safetensors")
    report, _, rows = examine(folder)
    assert not report.problems and "bfloat16, with variant='fp16'" in rows
    (folder / "model.fp16.safetensors").rename(folder / "weights.safetensors")
    report, _, _ = examine(folder)
    assert len(report.problems) == 1 and "looks for model.safetensors" in report.problems[0]


def test_other_weights(tmp_path: Path, made: Path) -> None:
    folder = Path(shutil.copytree(made / "llama-trf", tmp_path / "copy"))
    for place in ("original", ".git/lfs"):
        (folder / place).mkdir(parents=True)
        (folder / place / "consolidated.00.pth").write_bytes(b"0" * 1000)
    (folder / "tokenizer.json").write_text("{}")
    report, facts, rows = examine(folder)
    assert not report.problems
    assert facts["extra"] == {os.path.join("original", "consolidated.00.pth"): 1000}
    assert "carried over as they are: 0.0 MiB in original/consolidated.00.pth" in rows


def test_adapter(tmp_path: Path) -> None:
    save_file(
        {"base_model.model.q.lora_A.weight": torch.randn(16, 64).bfloat16()}, tmp_path / "adapter_model.safetensors"
    )
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    report, _, rows = examine(tmp_path)
    assert "kind: an adapter" in rows and not report.not_tried


def test_pipeline(tmp_path: Path, made: Path) -> None:
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    torch.manual_seed(1)
    unet = diffusers.UNet2DModel(
        sample_size=8, in_channels=4, out_channels=4, block_out_channels=(32, 32), norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    unet.bfloat16().save_pretrained(tmp_path / "source")
    (tmp_path / "root").mkdir()
    transfuse.compress(tmp_path / "source", tmp_path / "root" / "unet")
    shutil.copytree(made / "llama-trf", tmp_path / "root" / "text_encoder")
    (tmp_path / "root" / "big.safetensors").write_bytes(b"0" * 100)
    index = {
        "_class_name": "SomePipeline",
        "text_encoder": ["transformers", "LlamaForCausalLM"],
        "unet": ["diffusers", "UNet2DModel"],
        "safety_checker": [None, None],
    }
    (tmp_path / "root" / "model_index.json").write_text(json.dumps(index))
    report, _, rows = examine(tmp_path / "root")
    assert not report.problems, report.problems
    assert [facts["opening"]["model_class"] for facts in report.checkpoints] == ["LlamaForCausalLM", "UNet2DModel"]
    assert "carried over as they are: 0.0 MiB in big.safetensors" in rows and "models: text_encoder, unet" in rows
    (tmp_path / "root" / "model_index.json").write_text(json.dumps({**index, "vae": ["diffusers", "AutoencoderKL"]}))
    assert "names the part 'vae'" in examine(tmp_path / "root")[0].problems[0]


def test_another_process(made: Path, in_another_process: None) -> None:
    report, facts, _ = examine(made / "llama-trf")
    assert not report.problems and len(facts["opening"]["compressed"]) == 15


def test_json(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object, and nothing else; the status is that of the lines."""
    assert _doctor.main([str(made / "llama-trf"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["problems"] == [] and said["checkpoints"][0]["opening"]["model_class"] == "LlamaForCausalLM"
    assert any(row["what"] == "torch" for section in said["sections"] for row in section["rows"])
    assert _doctor.main([str(made / "nothing"), "--json"]) == 1
    assert "nothing" in json.loads(capsys.readouterr().out)["problems"][0]


def test_no_problem_is_not_said_of_what_was_not_tried(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    doctor = _Doctor(report)
    doctor.versions = dict.fromkeys(_doctor._PACKAGES)
    doctor.look_at_checkpoint(str(made / "llama-trf"))
    report.close()
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last[0] == "no problem found in what was tried, but this was not:"
    assert "torch and transformers are not installed" in last[1]


def test_weights_are_not_read(tmp_path: Path, made: Path) -> None:
    """Of a file whose data is damaged, but whose heads are not, it says what would happen otherwise."""
    folder = Path(shutil.copytree(made / "llama-trf", tmp_path / "copy"))
    tensor = next(each for each in transfuse.info(folder).tensors if each.compressed)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[tensor.file_offset + tensor.bytes // 2] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert not examine(folder)[0].problems
    with pytest.raises(transfuse.DataError):
        transfuse.verify(folder)
