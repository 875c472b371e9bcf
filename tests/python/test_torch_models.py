# SPDX-License-Identifier: Apache-2.0
"""Whole models, by a wheel with the torch ops, on the CPU: the examples in Python, and the bench of models.

Without torch and transformers (tests/torch_requirements.txt) this skips.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

try:
    import torch
    import transformers  # noqa: F401
except ImportError as failure:
    pytest.skip(f"there is no torch, which 'sh test.sh' installs: {failure}", allow_module_level=True)
from wheel_environment import ROOT, make_environment, run


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel installed."""
    return make_environment(tmp_path_factory.mktemp("wheel"), "wheel-torch-models", "TRF_TORCH=ON")


def make_small_model(folder: Path) -> None:
    """Writes a small causal model of random weights, BF16, with a tokenizer whose tokens are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def test_examples(environment: Path, tmp_path: Path) -> None:
    """Those of examples/ that are in Python, one after the other on one model."""
    python, examples = environment / "python", ROOT / "examples"
    source, coded = tmp_path / "model", tmp_path / "model-trf"
    make_small_model(source)
    few = ("--device", "cpu", "--tokens", 8)
    run(python, examples / "chat.py", source, "--prompt", "Hello", *few)
    again = run(python, examples / "chat.py", coded, "--prompt", "Hello", "--exact", *few)
    assert "compressing" not in again
    rates = run(python, examples / "tokens_per_second.py", coded, source, "--rounds", 2, *few)
    assert "compressed is " in rates, rates
    if importlib.util.find_spec("peft"):
        text, adapter = examples / "lora.py", tmp_path / "adapter"
        some = ("--device", "cpu", "--steps", 31, "--length", 64, "--rate", 0.01)
        losses = re.findall(r"loss ([0-9.]+)", run(python, examples / "lora.py", coded, text, adapter, *some))
        assert float(losses[-1]) < float(losses[0]) - 0.2, losses
        assert (adapter / "adapter_model.safetensors").exists()


OLD_FOLDERS = """
import sys
import transformers
from transfuse.tests.architectures import find_differences

for name in ("llama", "sharded"):
    source, model = (
        transformers.AutoModelForCausalLM.from_pretrained(f"{sys.argv[1]}/{name}/{kind}")
        for kind in ("source", "compressed")
    )
    assert find_differences(model, source) == [], name
    assert any(parameter.dim() == 1 and not parameter.is_floating_point() for parameter in model.parameters()), name
"""


def test_folders_of_version_0_2(environment: Path) -> None:
    """What an older version wrote loads as its source does; tests/cli/test_old_folders.sh verifies and decompresses."""
    run(environment / "python", "-c", OLD_FOLDERS, ROOT / "tests" / "golden" / "checkpoints")


def test_models(environment: Path, tmp_path: Path) -> None:
    """The rows of tools/bench/models that compare values, on small models of the same architectures."""
    rows = "a,b,j,k" if importlib.util.find_spec("peft") else "a,b,k"
    place = ("--device", "cpu", "--scale", "tiny", "--work", tmp_path, "--out", tmp_path / "rows", "--budget", 800)
    models = ("llama-8b", "phi3-mini", "gemma3-4b", "qwen3-30b-a3b")
    cases = ",".join((*models, "llama-8b-4", "cycles"))
    script = ROOT / "tools" / "bench" / "models" / "run_rows.py"
    output = run(environment / "python", script, "--rows", rows, "--models", cases, *place, "--", "--cycles", 300)
    lines = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert all(line.get("pass", True) and "error" not in line for line in lines), output
    judged = [(line["row"], line["model"]) for line in lines if "pass" in line]
    assert {(row, model) for row in "ab" for model in models} <= set(judged), judged
