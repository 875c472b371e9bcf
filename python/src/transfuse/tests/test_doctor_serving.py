# SPDX-License-Identifier: Apache-2.0
"""`transfuse doctor DIR --gpus N --context TOKENS`: what it reckons, against numbers that were found by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import transfuse
from transfuse import _doctor
from transfuse._doctor_report import Report
from transfuse._doctor_serving import ServingDoctor, ServingOptions
from transfuse._memory_need import packed_bytes
from transfuse._nvidia import Gpu
from transfuse._serving_config import _DEFAULTS, _LATENT, NoEstimateError, read_served_model
from transfuse._serving_need import ALLOWANCE_BYTES, count_card_bytes, count_requests, count_served_weights
from transfuse.tests.conftest import Tensors, write_safetensors

GIB = 1 << 30
Shapes = dict[str, tuple[int, ...]]

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_70B = {
    **LLAMA_8B, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "use_sliding_window": False, "sliding_window": None,
    "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "n_routed_experts": 64, "n_shared_experts": 2, "first_k_dense_replace": 1, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": None,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400,
    "max_position_embeddings": 163840, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA3_1B = {
    "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "sliding_window": 512,
    "sliding_window_pattern": 6, "max_position_embeddings": 32768,
}  # fmt: skip
# As published: heads and their size are left to the class.
GEMMA3_4B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
    "vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 27},
}  # fmt: skip
GEMMA3_27B = {
    **GEMMA3_4B,
    "text_config": {
        "model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
        "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "sliding_window": 1024,
    },
}  # fmt: skip
PHI3_MINI = {
    "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064, "max_position_embeddings": 4096,
    "sliding_window": 2047, "tie_word_embeddings": False,
}  # fmt: skip


# ---- files of the right size, without weights ----


def _make_attention(config: dict[str, Any], start: str) -> Shapes:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if config["model_type"] == "deepseek_v2":
        nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
        latent = config["kv_lora_rank"]
        return {
            f"{start}.q_proj.weight": (heads * (nope + rope), hidden),
            f"{start}.kv_a_proj_with_mqa.weight": (latent + rope, hidden),
            f"{start}.kv_a_layernorm.weight": (latent,),
            f"{start}.kv_b_proj.weight": (heads * (nope + value), latent),
            f"{start}.o_proj.weight": (hidden, heads * value),
        }
    size = config.get("head_dim", hidden // heads)
    queries, keys = heads * size, config["num_key_value_heads"] * size
    shapes: Shapes = {f"{start}.o_proj.weight": (hidden, queries)}
    if config["model_type"] == "phi3":
        return {**shapes, f"{start}.qkv_proj.weight": (queries + 2 * keys, hidden)}
    shapes[f"{start}.q_proj.weight"] = (queries, hidden)
    shapes |= {f"{start}.{name}_proj.weight": (keys, hidden) for name in "kv"}
    if config["model_type"] != "llama":
        shapes |= {f"{start}.{name}_norm.weight": (size,) for name in "qk"}
    return shapes


def _make_mlp(start: str, hidden: int, size: int, fused: bool = False) -> Shapes:
    down = {f"{start}.down_proj.weight": (hidden, size)}
    if fused:
        return {**down, f"{start}.gate_up_proj.weight": (2 * size, hidden)}
    return {**down, **{f"{start}.{name}_proj.weight": (size, hidden) for name in ("gate", "up")}}


def make_shapes(config: dict[str, Any]) -> Shapes:
    """Returns the tensors of the published checkpoint of a config.json."""
    hidden, kind = config["hidden_size"], config["model_type"]
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if "tie_word_embeddings" in config:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    experts = config.get("num_experts") or config.get("n_routed_experts", 0)
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] * (kind == "gemma3_text")
    for layer in range(config["num_hidden_layers"]):
        start = f"model.layers.{layer}"
        shapes |= {f"{start}.{norm}.weight": (hidden,) for norm in norms}
        shapes |= _make_attention(config, f"{start}.self_attn")
        if not experts or layer < config.get("first_k_dense_replace", 0):
            shapes |= _make_mlp(f"{start}.mlp", hidden, config["intermediate_size"], kind == "phi3")
            continue
        size = config["moe_intermediate_size"]
        shapes[f"{start}.mlp.gate.weight"] = (experts, hidden)
        for expert in range(experts):
            shapes |= _make_mlp(f"{start}.mlp.experts.{expert}", hidden, size)
        if "n_shared_experts" in config:
            shapes |= _make_mlp(f"{start}.mlp.shared_experts", hidden, size * config["n_shared_experts"])
    return shapes


def make_folder(folder: Path, config: dict[str, Any], shapes: Shapes | None = None, dtype: str = "BF16") -> Path:
    """Writes config.json and a sparse file of 2 bytes a weight."""
    folder.mkdir(exist_ok=True)
    header: dict[str, object] = {}
    offset = 0
    for name, shape in (make_shapes(config) if shapes is None else shapes).items():
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def estimate(folder: Path, *gpus: Gpu, **options: Any) -> tuple[dict[str, Any], Report, str]:
    """Returns what programs get, the report and its rows."""
    report, facts = Report(quiet=True), dict[str, Any]()
    ServingDoctor(report, gpus, ServingOptions(**options)).look(str(folder), transfuse.info(folder), facts)
    rows = "\n".join(f"{row['what']}: {row['says']}" for row in report._sections[0]["rows"])
    return facts["serving"], report, rows


# ---- what real models take ----


@pytest.mark.parametrize(
    ("config", "token_bytes"),
    [
        (LLAMA_8B, 131_072),  # 32 layers, keys and values of 8 heads of 128, 2 bytes
        (LLAMA_70B, 327_680),
        (QWEN3_30B_A3B, 98_304),  # 48 layers, 4 heads of 128: head_dim is not hidden_size / heads
        (DEEPSEEK_V2_LITE, 31_104),  # 27 layers, one vector of 512 + 64
        (GEMMA3_1B, 26_624),  # 26 layers, 1 head of 256
        (GEMMA3_4B, 139_264),  # 34 layers, 4 heads of 256
        (GEMMA3_27B, 507_904),  # 62 layers, 16 heads of 128
        (PHI3_MINI, 393_216),  # 32 layers, 32 heads of 96
    ],
)
def test_cache_of_a_token(config: dict[str, Any], token_bytes: int) -> None:
    assert read_served_model(config).count_token_bytes(1) == token_bytes


@pytest.mark.parametrize(
    ("config", "weights", "packed"),
    # How many weights each has, as published, and how many of them are in matrices that are packed.
    [
        (LLAMA_8B, 8_030_261_248, 8_029_995_008),
        (LLAMA_70B, 70_553_706_496, 70_552_387_584),
        (QWEN3_30B_A3B, 30_532_122_624, 30_532_122_624 - 28_991_029_248 - 12_582_912 - 210_944),
        (DEEPSEEK_V2_LITE, 15_706_484_224, None),
        (GEMMA3_1B, 999_885_952, None),
        (PHI3_MINI, 3_821_079_552, 3_820_879_872),
    ],
)
def test_weights(tmp_path: Path, config: dict[str, Any], weights: int, packed: int | None) -> None:
    said, report, rows = estimate(make_folder(tmp_path, config), context=1024)
    sizes = {layout: known["weight_bytes"] for layout, known in said["layouts"].items()}
    assert sizes["plain"] == 2 * weights and not report.problems
    assert max(sizes["coded"], sizes["packed"]) < sizes["plain"]
    # Embeddings are coded only on request, and this model is half embedding.
    assert (sizes["coded"] < sizes["packed"]) == (config is not GEMMA3_1B)
    assert [known["is_estimate"] for known in said["layouts"].values()] == [False, True, False]
    if packed is not None:
        assert sizes["packed"] == pytest.approx(packed * 12.016 / 8 + 2 * (weights - packed), rel=2e-4)
        embedding = config["vocab_size"] * config["hidden_size"]
        coded = (packed - embedding) * 10.85 / 8 + 2 * (weights - packed + embedding)
        assert sizes["coded"] == pytest.approx(coded, rel=1e-6)
    assert ("experts: plain in every layout so far" in rows) == (config["model_type"] in ("qwen3_moe", "deepseek_v2"))


def test_experts_stay_plain(tmp_path: Path) -> None:
    said, _, rows = estimate(make_folder(tmp_path, QWEN3_30B_A3B), gpus=2)
    assert said["expert_bytes"] == 28_991_029_248
    assert "so far: 27.00 GiB" in rows


def test_latent_attention(tmp_path: Path) -> None:
    """Every GPU has the latent vector of a token and the matrix that makes it, and a plain copy of kv_b_proj's part."""
    folder = make_folder(tmp_path, DEEPSEEK_V2_LITE)
    model, checkpoint = read_served_model(DEEPSEEK_V2_LITE), transfuse.info(folder)
    assert model.count_token_bytes(8) == model.count_token_bytes(1) == 31_104
    one, two = (count_served_weights(checkpoint, model, gpus).bytes for gpus in (1, 2))
    norms, routers, down = 27 * (2 * 2048 + 512) + 2048, 26 * 64 * 2048, 27 * 576 * 2048
    assert 2 * two["plain"] - one["plain"] == 2 * (norms + routers + down)
    assert one["packed"] > 2 * model.layers * 4096 * 512 + (one["plain"] - one["plain"] // 4) * 0.99
    assert "the latent vector is on several GPUs" in estimate(folder, gpus=2)[2]


def test_heads_on_several_gpus(tmp_path: Path) -> None:
    """8 heads of keys and values over 16 GPUs: each GPU has one, and its part of k_proj and v_proj."""
    folder, model = make_folder(tmp_path, LLAMA_70B), read_served_model(LLAMA_70B)
    assert [model.count_token_bytes(gpus) for gpus in (2, 8, 16)] == [163_840, 40_960, 40_960]
    checkpoint = transfuse.info(folder)
    eight, sixteen = (count_served_weights(checkpoint, model, gpus).bytes["plain"] for gpus in (8, 16))
    norms, keys_and_values = 161 * 8192, 80 * 2 * 1024 * 8192
    assert 2 * sixteen - eight == 2 * norms + 2 * keys_and_values // 8
    assert "heads of keys and values, 8, are on several GPUs" in estimate(folder, gpus=16)[2]


def test_joint_projection(tmp_path: Path) -> None:
    """What has queries, keys and values is cut as each of them is."""
    config = {**PHI3_MINI, "num_key_value_heads": 2, "num_hidden_layers": 1}
    checkpoint, model = transfuse.info(make_folder(tmp_path, config)), read_served_model(config)
    one, four = (count_served_weights(checkpoint, model, gpus).bytes["plain"] for gpus in (1, 4))
    assert 4 * four - one == 2 * 3 * 3 * 3072 + 2 * 2 * 2 * 96 * 3072  # norms three times more, both heads twice


def test_compressed_folder(tmp_path: Path, tensors: Tensors) -> None:
    """The bytes that are there, but for experts, which lie plain; a tied head is not there twice."""
    query = tensors["layers.0.q_proj.weight"]
    parts = {
        "model.layers.0.self_attn.q_proj.weight": query,
        "model.layers.0.mlp.experts.up_proj": tensors["layers.0.experts.up_proj"],
        "model.layers.0.input_layernorm.weight": tensors["layers.0.norm.weight"],
        "model.layers.1.self_attn.q_proj.weight": query,  # beyond the last: predicts further tokens
        "model.embed_tokens.weight": query,
        "lm_head.weight": query,
    }
    (tmp_path / "source").mkdir()
    write_safetensors(tmp_path / "source" / "model.safetensors", parts)
    config = {**LLAMA_8B, "num_hidden_layers": 1, "tie_word_embeddings": True}
    (tmp_path / "source" / "config.json").write_text(json.dumps(config))
    transfuse.compress(tmp_path / "source", tmp_path / "compressed")
    said, _, rows = estimate(tmp_path / "compressed", context=1024)
    stored = {tensor.name: tensor.bytes for tensor in transfuse.info(tmp_path / "compressed").tensors}
    plain, rest = 2 * 300 * 520, 2 * (3 * 96 * 160 + 64)
    sizes = {layout: known["weight_bytes"] for layout, known in said["layouts"].items()}
    assert sizes == {
        "packed": 2 * packed_bytes(300, 520) + rest,
        "coded": stored["model.layers.0.self_attn.q_proj.weight"] + plain + rest,
        "plain": 2 * plain + rest,
    }
    assert not said["layouts"]["coded"]["is_estimate"] and "as stored" in rows


# ---- what a cache holds ----


def test_requests_in_a_cache() -> None:
    # 20.3 GiB held 130 requests of 1,280 tokens, as vLLM 0.26 counted for the 8B on an H200.
    assert count_requests(int(20.32 * GIB), 131_072, 1280) == 130
    assert count_requests(16 * 1000, 1000, 1) == count_requests(16 * 1000, 1000, 16) == 1
    assert count_requests(31 * 1000, 1000, 17) == 0 and count_requests(32 * 1000, 1000, 17) == 1
    assert count_requests(-1, 1000, 1) == 0


def test_8b_on_usual_cards(tmp_path: Path) -> None:
    """A request of 8,192 tokens is 1 GiB. 0.92 · 79.2 − 3 − 14.96 = 54.9, and 11.25 of packed weights leave 58.6."""
    said, report, rows = estimate(make_folder(tmp_path, LLAMA_8B))
    assert said["context"] == 8192 and "a request: 8,192 tokens, unless --context says another" in rows
    assert "packed, on 80 GB: 58.63 GiB left: 58 requests" in rows
    assert "plain, on 80 GB: 54.91 GiB left: 54 requests" in rows
    assert "plain, on 141 GB: 110.47 GiB left: 110 requests" in rows
    assert said["layouts"]["plain"]["cards"][0] == {
        "name": "80 GB", "memory_bytes": count_card_bytes(80), "requests": 54, "fits": True,
        "kv_cache_bytes": int(count_card_bytes(80) * 0.92) - ALLOWANCE_BYTES - 16_060_522_496,
    }  # fmt: skip
    assert not report.problems and not report.not_tried


def test_70b_on_two_gpus(tmp_path: Path) -> None:
    """Plain it does not leave 5 GiB, which a request of 32,768 tokens takes of each GPU; packed it does."""
    said, report, rows = estimate(make_folder(tmp_path, LLAMA_70B), gpus=2, context=32768, memory_gb=80)
    assert {layout: known["cards"][0]["requests"] for layout, known in said["layouts"].items()} == {
        "packed": 4, "coded": 4, "plain": 0,
    }  # fmt: skip
    assert "KV cache of a request: 5.00 GiB on each GPU" in rows
    assert "plain, on 80 GB: does not fit: 4.15 GiB left, no request" in rows and not report.problems


def test_fits_in_no_layout(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, LLAMA_70B)
    _, report, rows = estimate(folder, memory_gb=40)
    assert report.problems == [f"{folder}: on 1 GPU no layout leaves room for one request of 8,192 tokens"]
    assert "packed, on 40 GB: does not fit: 65.2" in rows and rows.count("short") == 3


def test_windows_are_an_upper_bound(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, GEMMA3_1B)
    said, _, rows = estimate(folder, context=8192, memory_gb=24)
    assert said["kv_is_upper_bound"] and "at least" in rows
    assert "an upper bound: some layers keep a window of" in rows and "0.20 GiB at most" in rows
    said, _, rows = estimate(folder, context=512, memory_gb=24)
    assert not said["kv_is_upper_bound"] and "at least" not in rows


def test_what_only_a_bound_says_is_no_problem(tmp_path: Path) -> None:
    """A request that fits unless every layer keeps every token."""
    config = {**GEMMA3_1B, "max_position_embeddings": 1 << 20}
    said, report, rows = estimate(make_folder(tmp_path, config), context=1 << 20, memory_gb=24)
    assert "packed, on 24 GB: 17.46 GiB left: one request perhaps" in rows
    assert said["layouts"]["packed"]["cards"][0]["fits"] is None and not report.problems


# ---- GPUs that are here ----

H200 = Gpu(0, "NVIDIA H200", (9, 0), 140 * GIB, 139 * GIB)


def test_gpus_here(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, LLAMA_8B)
    said, _, rows = estimate(folder, H200)
    assert [card["name"] for card in said["layouts"]["plain"]["cards"]] == ["GPU 0"]
    assert "memory of GPU 0: 140.00 GiB, and vLLM takes 128.80 GiB" in rows and "free now" not in rows
    busy = Gpu(1, "NVIDIA H200", (9, 0), 140 * GIB, 5 * GIB)
    _, _, rows = estimate(folder, H200, busy, gpus=4)
    assert "2 GPUs here: the others are taken to be alike" in rows
    assert "memory of each GPU: 140.00 GiB" in rows and "5.00 GiB are free now: vLLM would not start" in rows
    _, _, rows = estimate(folder, H200, Gpu(1, "NVIDIA L4", (8, 9), 22 * GIB, None))
    assert "packed, on GPU 0: 11" in rows and "packed, on GPU 1: 6.01 GiB left: 6 requests" in rows
    assert "packed, on 24 GB" in estimate(folder, H200, memory_gb=24)[2]


# ---- what is not served, and what is not known ----


@pytest.mark.parametrize(
    ("config", "gpus", "why"),
    [
        (LLAMA_8B, 3, "num_attention_heads is 32, which 3 GPUs cannot share evenly"),
        ({**LLAMA_8B, "intermediate_size": 14337}, 2, "intermediate_size is 14,337"),
        ({**LLAMA_8B, "num_attention_heads": 32, "num_key_value_heads": 6}, 4, "num_key_value_heads is 6"),
    ],
)
def test_model_that_cannot_be_shared(tmp_path: Path, config: dict[str, Any], gpus: int, why: str) -> None:
    said, report, _ = estimate(make_folder(tmp_path, config, {"a.weight": (32, 32)}), gpus=gpus)
    assert len(report.problems) == 1 and f"vLLM does not serve it on {gpus} GPUs: {why}" in report.problems[0]
    assert why in said["obstacle"] and "layouts" not in said


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model_type": "mamba"}, "the model_type 'mamba' is not known"),
        ({"model_type": None}, "config.json has no model_type"),
        ({"num_hidden_layers": None}, "config.json does not say num_hidden_layers"),
        ({"num_hidden_layers": True}, "config.json has num_hidden_layers=True"),
        ({"num_key_value_heads": "8"}, "config.json has num_key_value_heads='8'"),
        ({"hidden_size": 4097}, "no head_dim"),
        ({"model_type": "qwen3"}, "config.json does not say head_dim"),
        ({"model_type": "qwen2", "num_key_value_heads": None}, "config.json does not say num_key_value_heads"),
        ({"kv_lora_rank": 512}, "kv_lora_rank, which is not understood"),
        ({"model_type": "deepseek_v3"}, "config.json does not say kv_lora_rank"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layers of the type 'linear_attention'"),
        ({"num_kv_shared_layers": 10}, "num_kv_shared_layers, which is not understood"),
        ({"quantization_config": {"quant_method": "fp8"}}, "it is quantized (fp8)"),
        ({"quantization_config": {"quant_method": "transfuse", "stored": True}}, "it is stored only"),
        ({"text_config": {}}, "config.json has no model_type"),
    ],
)
def test_config_that_is_not_understood(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    """One line, no number, and no claim that there was no problem in what was asked."""
    said, report, rows = estimate(make_folder(tmp_path, {**LLAMA_8B, **change}, {"a.weight": (32, 32)}))
    assert why in said["no_estimate"] and said.keys() == {"gpus", "no_estimate"}
    assert rows.startswith("estimate: none: ") and "\n" not in rows
    assert not report.problems and len(report.not_tried) == 1 and why in report.not_tried[0]


def test_weights_that_are_not_bf16(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, LLAMA_8B, {"a.weight": (32, 32)}, "F16")
    assert "its weights are not BF16 (a.weight is F16)" in estimate(folder)[0]["no_estimate"]
    folder = make_folder(tmp_path, LLAMA_8B, {})
    assert "it has no weights" in estimate(folder)[0]["no_estimate"]


def test_what_is_no_folder_of_a_model(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, LLAMA_8B, {"a.weight": (32, 32)})
    assert "not the folder of a model" in estimate(folder / "model.safetensors")[0]["no_estimate"]
    (folder / "config.json").write_text("[]")
    assert "not of a JSON object" in estimate(folder)[0]["no_estimate"]
    (folder / "config.json").write_text("{")
    assert "cannot be read" in estimate(folder)[0]["no_estimate"]
    (folder / "config.json").unlink()
    assert "there is no config.json" in estimate(folder)[0]["no_estimate"]


def test_pipeline(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    report = Report(quiet=True)
    _doctor._Doctor(report).look_at_checkpoint(str(tmp_path), ServingOptions())
    assert report.not_tried == [f"estimating how {tmp_path} is served: vLLM serves no pipelines of diffusers"]


# ---- options and lines ----


def test_context(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, PHI3_MINI, {"a.weight": (32, 32)})
    assert "a request: 4,096 tokens, what the model is made for" in estimate(folder)[2]
    assert "above config.json's 4,096: vLLM may refuse" in estimate(folder, context=5000)[2]
    folder = make_folder(tmp_path, {**PHI3_MINI, "max_position_embeddings": None}, {"a.weight": (32, 32)})
    assert "a request: 8,192 tokens, unless --context says another" in estimate(folder)[2]


@pytest.mark.parametrize("columns", [None, 40])
@pytest.mark.parametrize("config", [DEEPSEEK_V2_LITE, GEMMA3_1B])
def test_lines_fit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    config: dict[str, Any],
    columns: int | None,
) -> None:
    """Not above 80 columns where nothing is folded, and 40 will do."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", str(columns))
    make_folder(tmp_path / "model", config)
    monkeypatch.chdir(tmp_path)
    report = Report()
    ServingDoctor(report, (), ServingOptions(4, 1 << 20)).look("model", transfuse.info("model"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 15 and max(map(len, lines)) <= (columns or 80)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--context", "4096", "--memory-gb", "24"], 0), (["--memory-gb=1"], 1), (["--gpus", "3"], 1)],
)
def test_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
) -> None:
    for look in ("look_at_gpus", "try_cpu", "try_gpus", "try_torch"):
        monkeypatch.setattr(_doctor._Doctor, look, lambda doctor: False)
    monkeypatch.setattr(_doctor._Doctor, "try_frameworks", lambda doctor, works: None)
    folder = make_folder(tmp_path, LLAMA_8B, {"model.layers.0.mlp.up_proj.weight": (512, 512)})
    assert _doctor.main([*arguments, str(folder), "--json"]) == status
    said = json.loads(capsys.readouterr().out)
    assert said["checkpoints"][0]["serving"]["gpus"] in (1, 3) and bool(said["problems"]) == bool(status)


def test_defaults_are_those_of_transformers() -> None:
    """A field that config.json leaves out is what the class takes for it, or it has to be given."""
    pytest.importorskip("transformers", minversion="5.17", reason="transformers 5.17 is not installed")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    given = {"hidden_size": 1920, "num_attention_heads": 24, "num_hidden_layers": 6}
    for kind in _DEFAULTS:
        config = CONFIG_MAPPING[kind](**given)
        config = getattr(config, "text_config", config)
        kv_heads, size = getattr(config, "num_key_value_heads", None) or 24, getattr(config, "head_dim", None) or 80
        for fields, expected in (
            ({}, (kv_heads, 2 * size)),
            ({"num_key_value_heads": 4}, (4, 2 * size)),
            ({"head_dim": 64}, (kv_heads, 128)),
        ):
            try:
                model = read_served_model({"model_type": kind, **given, **fields})
            except NoEstimateError as why:
                assert "does not say" in str(why), kind
            else:
                assert (model.kv_heads, model.head_values) == expected, kind
        model = read_served_model({"model_type": kind, **given, "num_key_value_heads": 4, "head_dim": 64})
        has_window = "sliding_attention" in getattr(config, "layer_types", ["sliding_attention"])
        assert model.window or not (has_window and getattr(config, "sliding_window", None)), kind
    assert not _LATENT & _DEFAULTS.keys()
