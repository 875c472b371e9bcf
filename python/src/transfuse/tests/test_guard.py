# SPDX-License-Identifier: Apache-2.0
"""Ways by which programs come to read compressed files: each gives the right weights, or raises and says what to do."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
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
from transfuse.hf._config_fields import NEEDS_TRANSFUSE
from transfuse.hf._file_check import holds_state, is_compressed, read_config, source_weights_name
from transfuse.tests.architectures import (
    ARCHITECTURES,
    count_compressed,
    find_differences,
    load_both,
)

LLAMA = transformers.LlamaForCausalLM
STATE = "is the state dict of a model whose layers transfuse compressed.*by model.save_pretrained"
WAY_OUT = "is compressed by transfuse, and .* cannot read it: load its folder .* or run 'transfuse decompress'"


def make(folder: Path, name: str, **options: Any) -> tuple[Path, Path]:
    """Returns a source of an architecture, and what was made of it."""
    (architecture,) = [each for each in ARCHITECTURES if each.name == name][:1]
    architecture.make().save_pretrained(folder / "source", **options)
    transfuse.compress(folder / "source", folder / "trf", embeddings=True)
    return folder / "source", folder / "trf"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make(tmp_path_factory.mktemp("llama"), "LlamaForCausalLM")


@pytest.fixture
def folder(tmp_path: Path, pair: tuple[Path, Path]) -> Path:
    """A compressed folder that a test may change."""
    return Path(shutil.copytree(pair[1], tmp_path / "changed"))


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value != "drop"}))


def check_same(source: Path, compressed: Path, load: Callable[..., Any] = LLAMA.from_pretrained, **options: Any) -> Any:
    model, plain, _, _ = load_both(source, compressed, load, **options)
    assert find_differences(model, plain) == [] and count_compressed(model) > 3
    return model


# ---- transformers takes part, whatever config there is ----


def test_config_of_the_source(pair: tuple[Path, Path]) -> None:
    source, compressed = pair
    config = transformers.AutoConfig.from_pretrained(source)
    kept = copy.deepcopy(config.to_dict())
    for load in (LLAMA.from_pretrained, transformers.AutoModelForCausalLM.from_pretrained):
        model = check_same(source, compressed, load, config=config)
        # What a save needs is the folder's own.
        assert model.config.quantization_config.source_config == (source / "config.json").read_text()
    assert config.to_dict() == kept
    check_same(source, compressed, config=str(source / "config.json"))


@pytest.mark.parametrize("layout", ["coded", "plain", "packed"])
def test_layout_with_config_of_the_source(pair: tuple[Path, Path], layout: str) -> None:
    source, compressed = pair
    options: dict[str, Any] = {"quantization_config": transfuse.TransfuseConfig(layout=layout)}
    model = LLAMA.from_pretrained(compressed, config=transformers.AutoConfig.from_pretrained(source), **options)
    assert find_differences(model, LLAMA.from_pretrained(source)) == []
    assert model.get_input_embeddings().layout == layout
    assert model.config.quantization_config.source_config is not None
    with pytest.raises(transfuse.ArgumentError, match="this checkpoint is not compressed"):
        LLAMA.from_pretrained(source, **options)


def test_config_of_a_loaded_model(pair: tuple[Path, Path]) -> None:
    source, compressed = pair
    model = LLAMA.from_pretrained(compressed)
    assert find_differences(LLAMA.from_pretrained(compressed, config=model.config), model) == []


@pytest.mark.parametrize("marker", [None, "drop"])
def test_marker_lost(pair: tuple[Path, Path], folder: Path, marker: Any) -> None:
    change_config(folder, quantization_config=marker)
    check_same(pair[0], folder)


def test_folder_without_config(pair: tuple[Path, Path], folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises((OSError, ValueError)):
        LLAMA.from_pretrained(folder)
    check_same(pair[0], folder, config=transformers.AutoConfig.from_pretrained(pair[0]))


def test_subfolder(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    for name, path in zip(("source", "trf"), pair):
        shutil.copytree(path, tmp_path / name / "inner")
    check_same(
        tmp_path / "source", tmp_path / "trf", transformers.AutoModelForCausalLM.from_pretrained, subfolder="inner"
    )


def test_towers_of_a_whole(tmp_path: Path) -> None:
    source, compressed = make(tmp_path, "SiglipModel")
    check_same(source, compressed, transformers.SiglipVisionModel.from_pretrained)
    whole = transformers.AutoConfig.from_pretrained(compressed)
    check_same(source, compressed, transformers.SiglipTextModel.from_pretrained, config=whole.text_config)
    # A config within a config carries the marker, too: of whichever the framework finds it.
    change_config(compressed, quantization_config="drop")
    config = json.loads((compressed / "config.json").read_text())
    config["text_config"]["quantization_config"] = {"quant_method": "transfuse", "layout": "coded"}
    (compressed / "config.json").write_text(json.dumps(config))
    for name in ("SiglipModel", "SiglipVisionModel", "SiglipTextModel"):
        check_same(source, compressed, getattr(transformers, name).from_pretrained)


def test_text_model_out_of_a_whole(tmp_path: Path) -> None:
    """The names of the whole lie under another prefix: the framework finds nothing, and neither do we."""
    source, compressed = make(tmp_path, "LlavaForConditionalGeneration")
    whole = transformers.AutoConfig.from_pretrained(source)
    report = LLAMA.from_pretrained(source, config=whole.text_config, output_loading_info=True)[1]
    assert len(report["missing_keys"]) > 10
    with pytest.raises(ValueError, match="does not fit LlamaForCausalLM.*'transfuse decompress'"):
        LLAMA.from_pretrained(compressed, config=whole.text_config)


def test_another_method(pair: tuple[Path, Path], folder: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(pair[0])
    config.quantization_config = {"quant_method": "fp8"}
    with pytest.raises(transfuse.UnsupportedError, match="to be quantized by fp8, which cannot read it: leave out"):
        LLAMA.from_pretrained(folder, config=config)
    # One that transformers knows, and one that it passes over; with a config object that does not name it, too.
    for method in ("fp8", "unheard-of"):
        change_config(folder, quantization_config={"quant_method": method})
        for options in ({}, {"config": transformers.AutoConfig.from_pretrained(pair[0])}):
            with pytest.raises(transfuse.UnsupportedError, match=f"to be quantized by {method}"):
                LLAMA.from_pretrained(folder, **options)
    change_config(folder, quantization_config="drop", text_config={"compression_config": {"quant_method": "inner"}})
    with pytest.raises(transfuse.UnsupportedError, match="to be quantized by inner"):
        LLAMA.from_pretrained(folder, config=transformers.AutoConfig.from_pretrained(pair[0]))


@pytest.mark.parametrize("marker", [{}, {"version": 4, "layout": "coded"}, {"quant_method": "Transfuse"}])
def test_damaged_marker(pair: tuple[Path, Path], folder: Path, marker: dict[str, Any]) -> None:
    change_config(folder, quantization_config=marker)
    for options in ({}, {"config": transformers.AutoConfig.from_pretrained(pair[0])}):
        with pytest.raises(transfuse.UnsupportedError, match='put back the one .* with "quant_method": "transfuse"'):
            LLAMA.from_pretrained(folder, **options)
    # transformers' own words for a folder that is none of ours.
    if not marker.get("quant_method"):
        shutil.copy(pair[0] / "model.safetensors", folder)
        with pytest.raises(ValueError, match="has no `quant_method` attribute"):
            LLAMA.from_pretrained(folder)


def test_stored_only(pair: tuple[Path, Path], folder: Path) -> None:
    marker = json.loads((folder / "config.json").read_text())["quantization_config"]
    change_config(folder, quantization_config={**marker, "stored": True})
    for options in ({}, {"config": transformers.AutoConfig.from_pretrained(pair[0])}):
        with pytest.raises(transfuse.UnsupportedError, match="stored only.*run 'transfuse decompress' first"):
            LLAMA.from_pretrained(folder, **options)


def test_marker_of_stored_weights_lost(tmp_path: Path) -> None:
    """FP8 with scales, and a config.json that knows of neither: nobody may take the weights for the model's."""
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, vocab_size=99
    )
    LLAMA(config).bfloat16().save_pretrained(tmp_path / "bf16")
    tensors = {}
    for name, tensor in load_file(tmp_path / "bf16" / "model.safetensors").items():
        scaled = name.endswith("_proj.weight")
        tensors[name] = (tensor.float() * 2000).to(torch.float8_e4m3fn) if scaled else tensor
        if scaled:
            tensors[f"{name}_scale_inv"] = torch.tensor([[0.0005]])
    (tmp_path / "fp8").mkdir()
    save_file(tensors, tmp_path / "fp8" / "model.safetensors", {"format": "pt"})
    shutil.copy(tmp_path / "bf16" / "config.json", tmp_path / "fp8")
    transfuse.compress(tmp_path / "fp8", tmp_path / "trf", store_only=True)
    for marker in ("drop", {"quant_method": "transfuse"}):
        change_config(tmp_path / "trf", quantization_config=marker)
        with pytest.raises(transfuse.UnsupportedError, match="weights of F8_E4M3, and config.json has lost"):
            LLAMA.from_pretrained(tmp_path / "trf")


def test_sentence_instead_of_a_file(tmp_path: Path, pair: tuple[Path, Path], folder: Path) -> None:
    """What config.json says to those who have no transfuse is passed over, and a name that the source gave is used."""
    assert json.loads((folder / "config.json").read_text())["transformers_weights"] == NEEDS_TRANSFUSE
    model = check_same(pair[0], folder)
    model.save_pretrained(tmp_path / "saved")
    check_same(pair[0], tmp_path / "saved")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    marker = json.loads((folder / "config.json").read_text())["quantization_config"]
    named = {**json.loads(marker["source_config"]), "transformers_weights": "other.safetensors"}
    change_config(folder, quantization_config={**marker, "source_config": json.dumps(named)})
    assert find_differences(LLAMA.from_pretrained(folder), LLAMA.from_pretrained(pair[0])) == []


def test_models_that_load_models(pair: tuple[Path, Path]) -> None:
    """Within a from_pretrained others begin and end, in its thread and in another one, each by itself.

    One at a time: transformers patches itself while it makes a model, and is not for several threads at once.
    """
    source, compressed = pair
    config = transformers.AutoConfig.from_pretrained(source)
    found: list[Any] = []

    def load_inner() -> None:
        with torch.device("cpu"):
            found.extend(LLAMA.from_pretrained(path, config=config) for path in (compressed, source))

    class Outer(LLAMA):  # type: ignore[misc, valid-type]
        def __init__(self, config: Any) -> None:
            load_inner()
            thread = threading.Thread(target=load_inner)
            thread.start()
            thread.join()
            super().__init__(config)

    outer = Outer.from_pretrained(compressed, config=config)
    plain = LLAMA.from_pretrained(source)
    assert [count_compressed(model) > 3 for model in (*found, outer)] == [True, False, True, False, True]
    assert all(find_differences(model, plain) == [] for model in (outer, *found))


def test_pipeline(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    tokenizer = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = {f"w{index}": index for index in range(99)}
    inner = tokenizer.Tokenizer(tokenizer.models.WordLevel(words, unk_token="w0"))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=inner)
    pipe = transformers.pipeline("text-generation", model=str(pair[1]), tokenizer=wrapped)
    assert count_compressed(pipe.model) > 3
    assert find_differences(pipe.model, LLAMA.from_pretrained(pair[0])) == []


# ---- what raises ----


def test_state_dicts(pair: tuple[Path, Path]) -> None:
    config = transformers.AutoConfig.from_pretrained(pair[0])
    blobs = load_file(pair[1] / "model.safetensors")
    with pytest.raises(transfuse.UnsupportedError, match="the state dict has the compressed tensor '.*_trf'"):
        LLAMA.from_pretrained(None, config=config, state_dict=blobs)
    with pytest.raises(RuntimeError, match="Missing key"):
        transformers.AutoModelForCausalLM.from_config(config).load_state_dict(blobs)
    plain = LLAMA.from_pretrained(None, config=config, state_dict=load_file(pair[0] / "model.safetensors"))
    assert find_differences(plain, LLAMA.from_pretrained(pair[0])) == []


def test_readers_of_transformers(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    from transformers.modeling_utils import load_state_dict
    from transformers.trainer_utils import load_sharded_checkpoint

    file = str(pair[1] / "model.safetensors")
    with pytest.raises(transfuse.UnsupportedError, match=WAY_OUT):
        load_state_dict(file)
    dense, meta = load_state_dict(str(pair[0] / "model.safetensors")), load_state_dict(file, map_location="meta")
    assert {name: (each.shape, each.dtype) for name, each in meta.items()} == {
        name: (each.shape, each.dtype) for name, each in dense.items()
    }
    source, compressed = make(tmp_path, "LlamaForCausalLM", max_shard_size="60KB")
    model = LLAMA.from_pretrained(source)
    load_sharded_checkpoint(model, source)
    with pytest.raises(transfuse.UnsupportedError, match=WAY_OUT):
        load_sharded_checkpoint(model, compressed, strict=False)


def test_trainer(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    model = LLAMA.from_pretrained(pair[0])
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    trainer = transformers.Trainer(model=model, args=arguments)
    trainer._load_from_checkpoint(str(pair[0]))
    with pytest.raises(transfuse.UnsupportedError, match=WAY_OUT):
        trainer._load_from_checkpoint(str(pair[1]))
    trainer.state.best_model_checkpoint = str(pair[1])
    with pytest.raises(transfuse.UnsupportedError, match=WAY_OUT):
        trainer._load_best_model()


def test_accelerate(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    accelerate = pytest.importorskip("accelerate")

    config = transformers.AutoConfig.from_pretrained(pair[0])
    with accelerate.init_empty_weights():
        model = LLAMA(config)
    for options in ({}, {"device_map": {"": "cpu"}}):
        for path in (pair[1], pair[1] / "model.safetensors"):
            with pytest.raises(transfuse.UnsupportedError, match=WAY_OUT):
                accelerate.load_checkpoint_and_dispatch(model, str(path), **options)
    model = accelerate.load_checkpoint_and_dispatch(LLAMA(config).to(torch.bfloat16), str(pair[0]))
    assert find_differences(model, LLAMA.from_pretrained(pair[0])) == []


def test_adapters(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    """A LoRA that was compressed by hand, in PEFT and in transformers, on a compressed model and on its source."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = peft.get_peft_model(LLAMA.from_pretrained(pair[0]), peft.LoraConfig(r=32, target_modules=["q_proj"]))
    model.save_pretrained(tmp_path / "lora")
    shutil.copytree(tmp_path / "lora", tmp_path / "small")
    file = "adapter_model.safetensors"
    save_file(
        {name: each.to(torch.bfloat16) for name, each in load_file(tmp_path / "lora" / file).items()},
        tmp_path / "lora" / file,
        {"format": "pt"},
    )
    (tmp_path / "small" / file).unlink()
    transfuse.compress(tmp_path / "lora" / file, tmp_path / "small" / file, include=["*"], store_only=True)
    for base in pair:
        with pytest.raises(transfuse.UnsupportedError, match=WAY_OUT):
            peft.PeftModel.from_pretrained(LLAMA.from_pretrained(base), tmp_path / "small")
        with pytest.raises(transfuse.UnsupportedError, match=WAY_OUT):
            LLAMA.from_pretrained(base).load_adapter(str(tmp_path / "small"))
        loaded = LLAMA.from_pretrained(base)
        loaded.load_adapter(str(tmp_path / "lora"))
        weights = [each for name, each in loaded.named_parameters() if "lora_A" in name]
        assert len(weights) == 2 and {each.dtype for each in weights} <= {torch.bfloat16, torch.float32}


# ---- state dicts of compressed modules ----


def write_states(folder: Path, config: Path) -> dict[str, Path]:
    """Returns folders with what programs write of a model that was compressed in memory, but for save_pretrained."""
    accelerate = pytest.importorskip("accelerate")
    model = LLAMA.from_pretrained(config.parent)
    transfuse.torch.compress_model(model)
    folders = {name: folder / name for name in ("file", "shards", "pickle", "old_pickle")}
    for each in folders.values():
        each.mkdir()
        shutil.copy(config, each)
    accelerate.Accelerator().save_model(model, folders["file"])
    accelerate.Accelerator().save_model(model, folders["shards"], max_shard_size="40KB")
    torch.save(model.state_dict(), folders["pickle"] / "pytorch_model.bin")
    torch.save(model.state_dict(), folders["old_pickle"] / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    return folders


def test_state_dicts_of_compressed_modules(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    """With these names and shapes transformers would draw what does not fit at random."""
    accelerate = pytest.importorskip("accelerate")
    from transformers.trainer_utils import load_sharded_checkpoint

    config = transformers.AutoConfig.from_pretrained(pair[0])
    folders = write_states(tmp_path, pair[0] / "config.json")
    for folder in folders.values():
        with pytest.raises(transfuse.UnsupportedError, match=STATE):
            LLAMA.from_pretrained(folder, ignore_mismatched_sizes=True)
    shutil.copy(pair[1] / "config.json", folders["file"])
    with pytest.raises(transfuse.UnsupportedError, match=STATE):
        LLAMA.from_pretrained(folders["file"], ignore_mismatched_sizes=True)
    state = load_file(folders["file"] / "model.safetensors")
    with pytest.raises(transfuse.UnsupportedError, match=STATE):
        LLAMA.from_pretrained(None, config=config, state_dict=state, ignore_mismatched_sizes=True)
    # A model that has compressed layers takes them; one that has none does not.
    model, plain = LLAMA.from_pretrained(pair[0]), LLAMA(config).to(torch.bfloat16)
    transfuse.torch.compress_model(model)
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    readers: list[Callable[[Any], Any]] = [
        lambda each: accelerate.load_checkpoint_in_model(each, folders["file"]),
        lambda each: accelerate.load_checkpoint_in_model(each, str(folders["pickle"] / "pytorch_model.bin")),
        lambda each: load_sharded_checkpoint(each, folders["shards"]),
        lambda each: transformers.Trainer(each, arguments)._load_from_checkpoint(str(folders["file"])),
    ]
    for read in readers:
        with pytest.raises(transfuse.UnsupportedError, match=STATE):
            read(plain)
    for read in readers[:3]:
        read(model)
    assert find_differences(model, LLAMA.from_pretrained(pair[0])) == []


# ---- telling files apart ----


def test_telling_files_apart(tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source, compressed = (path / "model.safetensors" for path in pair)
    assert is_compressed(compressed) and is_compressed(str(compressed)) and not is_compressed(source)
    for path in (tmp_path / "none.safetensors", tmp_path, None, 5, {"a": 1}, pair[0] / "config.json"):
        assert not is_compressed(path)
    (tmp_path / "cut.safetensors").write_bytes(compressed.read_bytes()[:20])
    assert not is_compressed(tmp_path / "cut.safetensors")
    # Neither metadata nor a kept header: the tensors tell, or a suffix does not.
    save_file(load_file(compressed), tmp_path / "bare.safetensors")
    assert is_compressed(tmp_path / "bare.safetensors")
    save_file({"x_trf": torch.zeros(64, dtype=torch.uint8)}, tmp_path / "name.safetensors")
    assert not is_compressed(tmp_path / "name.safetensors")
    # A state dict has other names; bytes of another kind under any name are none.
    blob = next(each for name, each in load_file(compressed).items() if name.endswith("_trf"))
    for values, told in ((blob, True), (blob.view(1, -1), False), (torch.zeros(64, dtype=torch.uint8), False)):
        save_file({"x.weight": values}, tmp_path / "state.safetensors")
        torch.save({"x.weight": values}, tmp_path / "state.bin")
        assert holds_state(tmp_path / "state.safetensors") == told and not is_compressed(tmp_path / "state.safetensors")
        assert holds_state(tmp_path / "state.bin") == bool(values.any())
    for path in (
        source,
        compressed,
        tmp_path / "cut.safetensors",
        tmp_path / "none.bin",
        pair[0] / "config.json",
        None,
    ):
        assert not holds_state(path)
    # Nor does a header that is none, with words that only a compressed file has.
    for text in (
        b'{"x_trf":' + b"[" * 100_000,
        b'{"x_trf":{"dtype":"U8","shape":[Infinity],"data_offsets":[0,64]}}',
        b'{"x_trf":{"dtype":"U8","shape":[64],"data_offsets":[]}}',
        b'{"x_trf":{"dtype":"U8","shape":[64],"data_offsets":[-99,64]}}',
        b'{"x":{"dtype":"U8","shape":[64],"data_offsets":[]}}',
        b'["x_trf"]',
    ):
        (tmp_path / "odd.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
        assert not is_compressed(tmp_path / "odd.safetensors") and not holds_state(tmp_path / "odd.safetensors")
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert read_config(str(tmp_path / "config.json")) == {} and source_weights_name("[" * 100_000) is None
    # A header without the words is not even parsed.
    monkeypatch.setattr(json, "loads", None)
    assert not is_compressed(source) and not holds_state(source)


def test_nothing_unfilled_is_taken(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that the framework allocates for what it misses never becomes a layer, even if the plan forgets a tie."""
    from transfuse.hf._load_plan import Planner
    from transfuse.torch import _registry

    folder = pair[1]
    monkeypatch.setattr(Planner, "_check_missing", lambda *arguments: [])
    monkeypatch.setattr(Planner, "_settle_ties", lambda *arguments: {})
    original = Planner._place

    def forget(self: Any, target: str, parts: Any, tie: str) -> None:
        original(self, target, parts, tie)
        if target == "lm_head.weight":
            self.plan.targets.discard(target)
            self.plan.taken = [each for each in self.plan.taken if each.target != target]

    monkeypatch.setattr(Planner, "_place", forget)
    adopted: list[int] = []
    real = _registry.adopt

    def adopt(buffer: torch.Tensor) -> Any:
        adopted.append(buffer.data_ptr())
        return real(buffer)

    monkeypatch.setattr(_registry, "adopt", adopt)
    made: list[torch.Tensor] = []
    empty_like = torch.empty_like

    def note(*arguments: Any, **options: Any) -> torch.Tensor:
        made.append(empty_like(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(torch, "empty_like", note)
    with pytest.raises(RuntimeError, match="the weight of a TransfuseLinear was to be set .* does not give it"):
        LLAMA.from_pretrained(folder)
    assert adopted and made and not {each.data_ptr() for each in made} & set(adopted)


def test_without_transfuse(tmp_path: Path, folder: Path) -> None:
    """The sentence in config.json stops transformers where nobody watches, also for a part, and after saving."""
    whole = make(tmp_path, "SiglipModel")[1]
    transformers.SiglipModel.from_pretrained(whole).save_pretrained(tmp_path / "saved")
    kinds = ("SiglipModel", "SiglipVisionModel", "SiglipTextModel")
    calls = [("AutoModelForCausalLM", folder)] + [
        (kind, path) for kind in kinds for path in (whole, tmp_path / "saved")
    ]
    program = f"""
import transformers
assert "transfuse" not in transformers.quantizers.auto.AUTO_QUANTIZER_MAPPING
for kind, folder in {[(kind, str(path)) for kind, path in calls]!r}:
    try:
        getattr(transformers, kind).from_pretrained(folder)
    except Exception as failure:
        print("stopped:", failure)
"""
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "TRANSFUSE_NO_HOOK": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.count("stopped:") == done.stdout.count(NEEDS_TRANSFUSE) == len(calls)


# ---- indexes ----


def test_index_that_leads_elsewhere(tmp_path: Path) -> None:
    _, compressed = make(tmp_path, "LlamaForCausalLM", max_shard_size="100KB")
    index = compressed / "model.safetensors.index.json"
    text = index.read_text()
    shard = sorted(json.loads(text)["weight_map"].values())[0]
    (tmp_path / shard).write_bytes((compressed / shard).read_bytes())
    assert count_compressed(LLAMA.from_pretrained(compressed)) > 3
    for elsewhere in (f"../{shard}", str(tmp_path / shard)):
        index.write_text(text.replace(f'"{shard}"', json.dumps(elsewhere)))
        with pytest.raises(transfuse.DataError, match=f"{re.escape(elsewhere)}.*no name of a file beside it"):
            LLAMA.from_pretrained(compressed)


@pytest.mark.parametrize("is_dense", [False, True])
def test_tensor_in_two_files(tmp_path: Path, is_dense: bool) -> None:
    """The framework would take the last one."""
    source, compressed = make(tmp_path, "LlamaForCausalLM", max_shard_size="100KB")
    first, last, *_ = sorted(path.name for path in compressed.glob("*.safetensors"))
    tensors = load_file((source if is_dense else compressed) / first)
    name = next(name for name in tensors if "layers" in name and name.endswith("weight" if is_dense else "weight_trf"))
    others = load_file(compressed / last)
    save_file({**others, name: tensors[name]}, compressed / last, {"format": "pt"})
    with pytest.raises(transfuse.DataError, match=f"{last}: tensor '{name.removesuffix('_trf')}': .*{first} has one"):
        LLAMA.from_pretrained(compressed)
