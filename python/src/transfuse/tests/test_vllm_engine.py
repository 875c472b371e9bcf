# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine with the plugin, on a GPU: the weights that serve, logits, tokens, adapters, new weights, sleep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

import torch

if not torch.cuda.is_available():
    pytest.skip("no GPU: vLLM's engine does not start", allow_module_level=True)

import transfuse
from transfuse.tests import vllm_engines as engines

TRANSFUSE = {"quantization": "transfuse"}


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that makes the checkpoint of a name once, and returns its folder."""
    folders: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name)
            engines.make_checkpoint(name, folders[name])
        return folders[name]

    return make


def options_of(**settings: Any) -> dict[str, Any]:
    return {**TRANSFUSE, "additional_config": {"transfuse": settings}}


@pytest.mark.parametrize("name", engines.CONFIGS)
def test_weights_and_logits(checkpoints: Any, name: str) -> None:
    """Weights are those of vLLM's BF16, and so are logits in exact mode, bit for bit, batches included."""
    folder = checkpoints(name)
    with engines.serve(folder) as llm:
        wanted, logits = llm.apply_model(engines.digest)[0], engines.run(llm)
    with engines.serve(folder, **options_of(exact=True)) as llm:
        layouts = llm.apply_model(engines.describe)[0]
        assert llm.apply_model(engines.digest)[0] == wanted
        exact = engines.run(llm)
    assert set(layouts.values()) <= {"packed", "tied"}
    assert len(layouts) >= 3 * 3
    # Gemma's embedding is made without a quantization config.
    assert any(layer.endswith("embed_tokens") for layer in layouts) == (name != "gemma2")
    for (tokens, table), (own_tokens, own_table) in zip(logits, exact, strict=True):
        assert own_tokens == tokens
        assert torch.equal(own_table, table)
    with engines.serve(folder, **TRANSFUSE) as llm:
        packed = engines.run(llm)
    # As far as rounding in another order goes: the reference's own spread is about 1.
    for (_, table), (_, own_table) in zip(logits, packed, strict=True):
        places = min(len(table), len(own_table)) - 23  # those of the prompt, whose tokens are the same
        assert (table[:places] - own_table[:places]).abs().mean() < 0.05


@pytest.mark.parametrize("name", ["llama", "qwen3_tied", "phi3", "deepseek_v2"])
def test_compressed_folder(checkpoints: Any, tmp_path: Path, name: str) -> None:
    """A folder that `transfuse compress` wrote says by itself what it is, and serves the same weights."""
    folder = checkpoints(name)
    transfuse.compress(folder, tmp_path / "compressed", embeddings=True)
    with engines.serve(folder) as llm:
        wanted, logits = llm.apply_model(engines.digest)[0], engines.run(llm)
    with engines.serve(tmp_path / "compressed", additional_config={"transfuse": {"exact": True}}) as llm:
        assert "packed" in llm.apply_model(engines.describe)[0].values()
        assert llm.apply_model(engines.digest)[0] == wanted
        found = engines.run(llm)
    for (tokens, table), (own_tokens, own_table) in zip(logits, found, strict=True):
        assert own_tokens == tokens
        assert torch.equal(own_table, table)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("parallel", ["tensor", "pipeline"])
@pytest.mark.parametrize("kind", ["plain", "compressed", "coded"])
def test_two_gpus(checkpoints: Any, tmp_path: Path, parallel: str, kind: str) -> None:
    """Each rank has its slices, bit for bit, and the tokens are those of vLLM's BF16 on two GPUs."""
    folder = served = checkpoints("qwen2" if parallel == "tensor" else "qwen3_tied")
    both = {f"{parallel}_parallel_size": 2}
    with engines.serve(folder, **both) as llm:
        wanted, logits = llm.apply_model(engines.digest), engines.run(llm)
    if kind != "plain":
        served = tmp_path / "compressed"
        transfuse.compress(folder, served, embeddings=True)
    layout = "coded" if kind == "coded" else "packed"
    with engines.serve(served, **both, **options_of(exact=True, layout=layout)) as llm:
        assert llm.apply_model(engines.digest) == wanted
        assert all(layout in layouts.values() for layouts in llm.apply_model(engines.describe))
        found = engines.run(llm)
    for (tokens, table), (own_tokens, own_table) in zip(logits, found, strict=True):
        assert own_tokens == tokens
        assert torch.equal(own_table, table)
    with engines.serve(served, **both, **options_of(layout=layout)) as llm:
        engines.run(llm)


def test_compiled(checkpoints: Any) -> None:
    """Compiled and captured, exact mode gives the tokens of vLLM's BF16 for requests alone."""
    folder = checkpoints("llama")
    with engines.serve(folder, enforce_eager=False) as llm:
        wanted = engines.run(llm, alone=True)
    with engines.serve(folder, enforce_eager=False, **options_of(exact=True)) as llm:
        found = engines.run(llm, alone=True)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
    with engines.serve(folder, enforce_eager=False, **TRANSFUSE) as llm:
        first, second = engines.run(llm, alone=True), engines.run(llm, alone=True)
    for (tokens, table), (again, again_table) in zip(first, second, strict=True):
        assert tokens == again
        assert torch.equal(table, again_table)


def test_missing_weights(checkpoints: Any, tmp_path: Path) -> None:
    """A tensor that no file has is an error, not a layer of whatever was in memory."""
    from safetensors.torch import load_file, save_file

    folder = checkpoints("llama")
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    for gone in (
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.2.self_attn.o_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.embed_tokens.weight",
    ):
        save_file({name: tensor for name, tensor in tensors.items() if name != gone}, tmp_path / "model.safetensors")
        with pytest.raises(Exception), engines.serve(tmp_path, **TRANSFUSE):  # noqa: B017 the engine says which
            pass


def test_exclude_and_bad_options(checkpoints: Any) -> None:
    folder = checkpoints("llama")
    with engines.serve(folder, **options_of(exclude=["model.layers.0.*", "lm_head"])) as llm:
        layouts = llm.apply_model(engines.describe)[0]
    assert not any(name.startswith("model.layers.0.") or name == "lm_head" for name in layouts)
    assert any(name.startswith("model.layers.1.") for name in layouts)
    for bad in ({"layout": "plain"}, {"layouts": "packed"}, {"exact": 1}, {"exclude": "model.*"}):
        with pytest.raises(Exception), engines.serve(folder, **options_of(**bad)):  # noqa: B017 the engine says which
            pass


def test_coded(checkpoints: Any) -> None:
    folder = checkpoints("llama")
    with engines.serve(folder) as llm:
        wanted = llm.apply_model(engines.digest)[0]
    with engines.serve(folder, **options_of(layout="coded")) as llm:
        assert set(llm.apply_model(engines.describe)[0].values()) == {"coded"}
        assert llm.apply_model(engines.digest)[0] == wanted
        engines.run(llm)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3_tied", "phi3"])
def test_coded_from_a_compressed_folder(checkpoints: Any, tmp_path: Path, name: str) -> None:
    """Blobs serve as they are, those of merged layers assembled: the same weights, exact logits, and graphs."""
    folder = checkpoints(name)
    transfuse.compress(folder, tmp_path / "compressed", embeddings=True)
    with engines.serve(folder) as llm:
        wanted, logits = llm.apply_model(engines.digest)[0], engines.run(llm)
    coded = {"layout": "coded"}
    with engines.serve(tmp_path / "compressed", **options_of(exact=True, **coded)) as llm:
        assert set(llm.apply_model(engines.describe)[0].values()) <= {"coded", "tied"}
        assembled = llm.apply_model(engines.count_assembled)[0]
        # gate and up, and q, k and v, where files have them apart; their whole tensors fit.
        assert assembled == (0 if name == "phi3" else 3 * 2)
        assert llm.apply_model(engines.digest)[0] == wanted
        exact = engines.run(llm)
    with engines.serve(tmp_path / "compressed", enforce_eager=False, **options_of(**coded)) as llm:
        assert llm.apply_model(engines.digest)[0] == wanted
        fused, again = engines.run(llm), engines.run(llm, alone=True)
        with pytest.raises(Exception, match=r"."):  # the engine says that coded layers cannot be changed
            llm.collective_rpc("reload_weights", kwargs={"weights_path": str(tmp_path / "compressed")})
    for (tokens, table), (own_tokens, own_table) in zip(logits, exact, strict=True):
        assert own_tokens == tokens
        assert torch.equal(own_table, table)
    for found in (fused, again):
        for (_, table), (_, own_table) in zip(logits, found, strict=True):
            places = min(len(table), len(own_table)) - 23  # those of the prompt, whose tokens are the same
            assert (table[:places] - own_table[:places]).abs().mean() < 0.05


def test_adapters(checkpoints: Any, tmp_path: Path) -> None:
    """Two LoRA adapters give the tokens that they give on vLLM's BF16, in exact mode."""
    from safetensors.torch import save_file
    from vllm.lora.request import LoRARequest

    folder = checkpoints("llama")
    for number in (1, 2):
        adapter = tmp_path / f"adapter{number}"
        adapter.mkdir()
        config = {
            "peft_type": "LORA",
            "r": 8,
            "lora_alpha": 16,
            "target_modules": ["q_proj", "v_proj", "down_proj", "gate_proj"],
            "bias": "none",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": str(folder),
        }
        (adapter / "adapter_config.json").write_text(json.dumps(config))
        generator = torch.Generator().manual_seed(number)
        shapes = {"self_attn.q_proj": (256, 256), "self_attn.v_proj": (128, 256), "mlp.down_proj": (256, 688)}
        shapes["mlp.gate_proj"] = (688, 256)
        tensors = {}
        for layer in range(3):
            for name, (rows, cols) in shapes.items():
                base = f"base_model.model.model.layers.{layer}.{name}"
                a, b = torch.randn(8, cols, generator=generator), torch.randn(rows, 8, generator=generator)
                tensors[f"{base}.lora_A.weight"] = (a * 0.05).to(torch.bfloat16)
                tensors[f"{base}.lora_B.weight"] = (b * 0.05).to(torch.bfloat16)
        save_file(tensors, adapter / "adapter_model.safetensors")
    requests = [LoRARequest(f"adapter{number}", number, str(tmp_path / f"adapter{number}")) for number in (1, 2)]
    lora = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    found = {}
    for label, options in (("bf16", {}), ("exact", options_of(exact=True)), ("packed", TRANSFUSE)):
        with engines.serve(folder, **lora, **options) as llm:
            found[label] = [engines.run(llm, alone=True, lora_request=request) for request in (None, *requests)]
    for wanted, exact, packed in zip(found["bf16"], found["exact"], found["packed"], strict=True):
        assert [tokens for tokens, _ in exact] == [tokens for tokens, _ in wanted]
        for (_, table), (_, own_table) in zip(wanted, packed, strict=True):
            assert (table - own_table)[: len(table) - 23].abs().mean() < 0.05
    assert found["bf16"][0][3][0] != found["bf16"][1][3][0]  # the adapters make a difference


def test_sleep(checkpoints: Any) -> None:
    folder = checkpoints("llama")
    with engines.serve(folder, enforce_eager=False, enable_sleep_mode=True, **TRANSFUSE) as llm:
        wanted = llm.apply_model(engines.digest)[0]
        first = engines.run(llm, alone=True)
        llm.sleep(level=1)
        llm.wake_up()
        assert llm.apply_model(engines.digest)[0] == wanted
        again = engines.run(llm, alone=True)
    for (tokens, table), (own_tokens, own_table) in zip(first, again, strict=True):
        assert own_tokens == tokens
        assert torch.equal(own_table, table)


def test_new_weights(checkpoints: Any, tmp_path: Path) -> None:
    """Weights that are loaded again while graphs are captured: 20 times, in place, without memory that stays."""
    folder, other = checkpoints("llama"), tmp_path
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, other, dirs_exist_ok=True)
    for file in other.glob("*.safetensors"):
        tensors = load_file(file)
        save_file({name: (tensor.float() * 1.25).to(tensor.dtype) for name, tensor in tensors.items()}, file)

    def memory(_: torch.nn.Module) -> tuple[int, int]:
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]

    with engines.serve(other, enforce_eager=False, **TRANSFUSE) as llm:
        wanted, tokens = llm.apply_model(engines.digest)[0], engines.run(llm, alone=True)
    with engines.serve(folder, enforce_eager=False, **TRANSFUSE) as llm:
        first, first_tokens = llm.apply_model(engines.digest)[0], engines.run(llm, alone=True)
        assert first != wanted
        for turn in range(20):
            path, digest, logits = (other, wanted, tokens) if turn % 2 == 0 else (folder, first, first_tokens)
            llm.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})
            assert llm.apply_model(engines.digest)[0] == digest
            found = engines.run(llm, alone=True) if turn < 4 or turn > 17 else []
            for (own_tokens, own_table), (wanted_tokens, table) in zip(found, logits):
                assert own_tokens == wanted_tokens
                assert torch.equal(own_table, table)
            if turn == 1:
                before = llm.apply_model(memory)[0]
        after = llm.apply_model(memory)[0]
    assert after[0] == before[0]
    assert after[1] >= before[1] - (1 << 21)
