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

# vLLM's model runners, by the variable that says which of them runs.
RUNNERS = pytest.mark.parametrize("runner", ["0", "1"], ids=["first_runner", "second_runner"])


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


def assert_same_runs(found: list[Any], wanted: list[Any]) -> None:
    """The greedy tokens and log-probabilities are the same."""
    for (own_tokens, own_table), (tokens, table) in zip(found, wanted, strict=True):
        assert own_tokens == tokens
        assert torch.equal(own_table, table)


def assert_close_runs(found: Any, wanted: Any, middle: Any) -> None:
    """Log-probabilities differ as far as rounding in another order goes: the reference's own spread is about 1."""
    for (_, table), (_, own_table) in zip(wanted, found, strict=True):
        places = min(len(table), len(own_table)) - 23  # those of the prompt, whose tokens are the same
        assert middle((table[:places] - own_table[:places]).abs().mean(dim=-1)) < 0.05


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
    assert set(layouts.values()) <= {"packed", "packed experts", "tied"}
    is_packing = torch.cuda.get_device_capability() == (9, 0)
    assert ("packed experts" in layouts.values()) == (is_packing and name in ("qwen3_moe", "deepseek_v2"))
    assert len(layouts) >= 3 * (2 if name == "qwen3_moe" else 3)
    # Gemma's embedding is made without a quantization config.
    assert any(layer.endswith("embed_tokens") for layer in layouts) == (name != "gemma2")
    assert_same_runs(exact, logits)
    with engines.serve(folder, **TRANSFUSE) as llm:
        packed = engines.run(llm)
    # Where rounding sends a token to another of Qwen3-MoE's eight experts, that token differs by more, so there it is
    # the tokens' median that counts.
    assert_close_runs(packed, logits, torch.median if name == "qwen3_moe" else torch.mean)


def test_weights_that_were_fp8(checkpoints: Any, tmp_path: Path) -> None:
    """Layers of a BF16 folder that were FP8 are found, and serve as FP8 with the same weights."""
    engines.write_was_fp8(checkpoints("llama"), tmp_path / "was_fp8")
    with engines.serve(tmp_path / "was_fp8") as llm:
        wanted, logits = llm.apply_model(engines.digest)[0], engines.run(llm)
    with engines.serve(tmp_path / "was_fp8", **options_of(exact=True)) as llm:
        layouts = llm.apply_model(engines.describe)[0]
        assert llm.apply_model(engines.digest)[0] == wanted
        exact = engines.run(llm)
    due = "packed8" if torch.cuda.get_device_capability() == (9, 0) else "packed"
    assert {layout for name, layout in layouts.items() if name.endswith("_proj")} == {due}
    assert layouts["lm_head"] == "packed"
    assert_same_runs(exact, logits)
    with engines.serve(tmp_path / "was_fp8", **TRANSFUSE) as llm:
        assert_close_runs(engines.run(llm), logits, torch.mean)


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
    assert_same_runs(found, logits)


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
    assert_same_runs(found, logits)
    with engines.serve(served, **both, **options_of(layout=layout)) as llm:
        engines.run(llm)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("parallel", ["tensor", "expert"])
def test_experts_on_two_gpus(checkpoints: Any, parallel: str) -> None:
    """Each rank packs its slices of all experts, or its own experts, and serves the tokens of vLLM's BF16."""
    folder = checkpoints("qwen3_moe")
    both = {"tensor_parallel_size": 2, "enable_expert_parallel": parallel == "expert"}
    with engines.serve(folder, **both) as llm:
        wanted, logits = llm.apply_model(engines.digest), engines.run(llm)
    with engines.serve(folder, **both, **options_of(exact=True)) as llm:
        assert llm.apply_model(engines.digest) == wanted
        is_packing = torch.cuda.get_device_capability() == (9, 0)
        for layouts in llm.apply_model(engines.describe):
            assert ("packed experts" in layouts.values()) == is_packing
        assert_same_runs(engines.run(llm), logits)
    with engines.serve(folder, **both, **TRANSFUSE) as llm:
        assert llm.apply_model(engines.digest) == wanted
        assert_close_runs(engines.run(llm), logits, torch.median)


@RUNNERS
def test_compiled(checkpoints: Any, monkeypatch: pytest.MonkeyPatch, runner: str) -> None:
    """Compiled and captured, exact mode gives the tokens of vLLM's BF16 for requests alone."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
    folder = checkpoints("llama")
    with engines.serve(folder, **engines.COMPILED) as llm:
        wanted = engines.run(llm, alone=True)
    with engines.serve(folder, **engines.COMPILED, **options_of(exact=True)) as llm:
        found = engines.run(llm, alone=True)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
    with engines.serve(folder, **engines.COMPILED, **TRANSFUSE) as llm:
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
    for bad in (
        {"layout": "plain"},
        {"layouts": "packed"},
        {"exact": 1},
        {"exclude": "model.*"},
        {"exclude": ["*.q_proj"]},
    ):
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
    with engines.serve(tmp_path / "compressed", **engines.COMPILED, **options_of(**coded)) as llm:
        assert llm.apply_model(engines.digest)[0] == wanted
        fused, again = engines.run(llm), engines.run(llm, alone=True)
        with pytest.raises(Exception, match=r"."):  # the engine says that coded layers cannot be changed
            llm.collective_rpc("reload_weights", kwargs={"weights_path": str(tmp_path / "compressed")})
    assert_same_runs(exact, logits)
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


def test_sleep(checkpoints: Any, tmp_path: Path) -> None:
    """Weights are there again after sleep; where they are loaded anew, graphs wait until the cache is awake."""
    folder = checkpoints("llama")
    engines.scale_checkpoint(folder, tmp_path, 2.0**12)
    with engines.serve(folder, **engines.FEW_GRAPHS, enable_sleep_mode=True, **TRANSFUSE) as llm:
        wanted = llm.apply_model(engines.digest)[0]
        first = engines.run(llm, alone=True)
        llm.sleep(level=1)
        llm.wake_up()
        assert llm.apply_model(engines.digest)[0] == wanted
        assert_same_runs(engines.run(llm, alone=True), first)
        captures = llm.apply_model(engines.count_captures)[0]
        for turn, path in enumerate((folder, tmp_path, folder)):
            llm.sleep(level=2)
            llm.wake_up(tags=["weights"])
            llm.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})
            assert llm.apply_model(engines.count_captures)[0] == captures + max(0, turn - 1)
            llm.wake_up(tags=["kv_cache"])
            assert llm.apply_model(engines.count_captures)[0] == captures + turn
        assert llm.apply_model(engines.digest)[0] == wanted
        assert_same_runs(engines.run(llm, alone=True), first)


@RUNNERS
def test_new_weights(checkpoints: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: str) -> None:
    """Real weights after dummy ones, under graphs; then 20 times others, in place; then some that do not fit those."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
    folder, other, large = checkpoints("llama"), tmp_path / "other", tmp_path / "large"
    engines.scale_checkpoint(folder, other, 1.25)
    engines.scale_checkpoint(folder, large, 2.0**12)

    def load(path: Path) -> None:
        llm.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})

    def look() -> tuple[int, int, int]:
        return llm.apply_model(engines.count_captures)[0], *llm.apply_model(engines.memory)[0]

    with engines.serve(other, **engines.FEW_GRAPHS, **TRANSFUSE) as llm:
        assert llm.llm_engine.vllm_config.use_v2_model_runner == (runner == "1")
        wanted, logits = llm.apply_model(engines.digest)[0], engines.run(llm, alone=True)
    with engines.serve(folder, **engines.FEW_GRAPHS, load_format="dummy", **TRANSFUSE) as llm:
        assert llm.apply_model(engines.digest)[0] != wanted
        engines.run(llm, alone=True)
        at_first = look()
        llm.collective_rpc("update_config", args=({"load_config": {"load_format": "auto"}},))
        load(other)
        assert look()[0] == at_first[0] + 1
        assert llm.apply_model(engines.digest)[0] == wanted
        assert_same_runs(engines.run(llm, alone=True), logits)
        load(folder)
        first, first_logits = llm.apply_model(engines.digest)[0], engines.run(llm, alone=True)
        assert first != wanted
        before = look()
        for turn in range(20):
            path, digest, due = (folder, first, first_logits) if turn % 2 else (other, wanted, logits)
            if turn in (2, 3):
                llm.collective_rpc(engines.send_weights, args=(str(path),))
            else:
                load(path)
            assert llm.apply_model(engines.digest)[0] == digest
            if turn in (0, 2, 3, 18, 19):
                assert_same_runs(engines.run(llm, alone=True), due)
        after = look()
        assert before[0] == after[0] == at_first[0] + 1  # nothing was captured again
        assert after[1] <= before[1] + (1 << 20)  # less than a layer's 20 times
        assert after[2] >= before[2] - (1 << 21)
        seen = []
        for _ in range(4):
            load(large)
            load(other)
            seen.append(look())
        assert seen[-1][0] == after[0] + 8
        assert seen[-1][1] <= seen[0][1] + (1 << 20)
        assert seen[-1][2] >= seen[0][2] - (1 << 24)
        assert llm.apply_model(engines.digest)[0] == wanted
        assert_same_runs(engines.run(llm, alone=True), logits)


def test_new_experts(checkpoints: Any, tmp_path: Path) -> None:
    """Experts are there again after sleep, and others take their place under graphs; then some that do not fit."""
    folder, other, large = checkpoints("qwen3_moe"), tmp_path / "other", tmp_path / "large"
    engines.scale_checkpoint(folder, other, 1.25)
    engines.scale_checkpoint(folder, large, 2.0**12)

    def load(path: Path) -> None:
        llm.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})

    with engines.serve(other, **engines.FEW_GRAPHS, **TRANSFUSE) as llm:
        wanted, logits = llm.apply_model(engines.digest)[0], engines.run(llm, alone=True)
    with engines.serve(folder, **engines.FEW_GRAPHS, enable_sleep_mode=True, **TRANSFUSE) as llm:
        first, first_logits = llm.apply_model(engines.digest)[0], engines.run(llm, alone=True)
        assert first != wanted
        llm.sleep(level=1)
        llm.wake_up()
        assert llm.apply_model(engines.digest)[0] == first
        assert_same_runs(engines.run(llm, alone=True), first_logits)
        for path, digest, due in 2 * ((other, wanted, logits), (folder, first, first_logits)):
            load(path)
            assert llm.apply_model(engines.digest)[0] == digest
            assert_same_runs(engines.run(llm, alone=True), due)
        llm.sleep(level=2)
        llm.wake_up(tags=["weights"])
        load(large)
        load(other)
        llm.wake_up(tags=["kv_cache"])
        assert llm.apply_model(engines.digest)[0] == wanted
        assert_same_runs(engines.run(llm, alone=True), logits)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("parallel", ["tensor", "pipeline"])
def test_new_weights_on_two_gpus(checkpoints: Any, parallel: str) -> None:
    """Ranks capture graphs together, where real weights come after dummy ones."""
    folder = checkpoints("qwen2")
    options = {f"{parallel}_parallel_size": 2, **engines.FEW_GRAPHS, **TRANSFUSE}
    with engines.serve(folder, **options) as llm:
        wanted, logits = llm.apply_model(engines.digest), engines.run(llm, alone=True)
    with engines.serve(folder, load_format="dummy", **options) as llm:
        captures = llm.apply_model(engines.count_captures)
        llm.collective_rpc("update_config", args=({"load_config": {"load_format": "auto"}},))
        for _ in range(3):
            llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        assert llm.apply_model(engines.count_captures) == [count + 1 for count in captures]
        assert llm.apply_model(engines.digest) == wanted
        assert_same_runs(engines.run(llm, alone=True), logits)
