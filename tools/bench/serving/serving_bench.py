#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures one vLLM engine: its start, the time to the first token, decode steps, and saturated throughput.

    python3 serving_bench.py --shape 8b [--transfuse] [--parts memory,ttft,steps,saturated] [--json FILE]

A shape is a configuration whose weights are made on the GPU, N(0, 0.02), different in every layer; --model FOLDER loads
a checkpoint instead, and --write FOLDER writes one of the shape and ends. Prompts are random token ids, answers have a
fixed length, and nothing is shared between prompts. Run it once for vLLM's own BF16 and once with --transfuse, in one
session of one machine, and compare the ratios. With --born-fp8 the weights are BF16 that was FP8 E4M3 with a scale for
each 128x128, but for embeddings and heads. It needs a GPU and vLLM.

Prints a line for each figure, and the same as JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions go to the engine's process as pickles
os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
SHAPES: dict[str, dict[str, Any]] = {
    "8b": dict(LLAMA, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32),
    "70b": dict(LLAMA, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64),
    "qwen3-30b-a3b": QWEN3_30B_A3B,
    "qwen3-235b-a22b": dict(
        QWEN3_30B_A3B,
        hidden_size=4096,
        intermediate_size=12288,
        moe_intermediate_size=1536,
        num_hidden_layers=94,
        num_attention_heads=64,
    ),
    "1b": dict(
        LLAMA, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, head_dim=64
    ),
    "tiny": dict(
        LLAMA,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=8,
        head_dim=64,
        vocab_size=32000,
    ),
}
SPREAD = 0.02
REPEATS = 3


def config_of(shape: str) -> dict[str, Any]:
    """Returns what the config.json of a shape holds."""
    return {**SHAPES[shape], "dtype": "bfloat16", "max_position_embeddings": 32768}


def round_to_fp8(weight: torch.Tensor) -> torch.Tensor:
    """Returns the codes of E4M3, multiplied again, whose scale takes the largest magnitude of each 128x128 to 448.

    Parameters
    ----------
    weight : torch.Tensor, [rows][columns]

    Returns
    -------
    torch.Tensor
        Of the same shape, F32.
    """
    import torch

    rows, cols = weight.shape
    blocks = torch.nn.functional.pad(weight.float(), (0, -cols % 128, 0, -rows % 128)).unflatten(0, (-1, 128))
    blocks = blocks.unflatten(2, (-1, 128))
    scales = blocks.abs().amax((1, 3), keepdim=True).clamp_min(1e-12) / 448
    codes = (blocks / scales).to(torch.float8_e4m3fn).float()
    return (codes * scales).flatten(2, 3).flatten(0, 1)[:rows, :cols]


def write_checkpoint(shape: str, folder: Path, born_fp8: bool) -> None:
    """Writes a Llama of a shape with weights N(0, 0.02), in files of about 4 GB."""
    import torch
    from safetensors.torch import save_file

    config = config_of(shape)
    hidden, inner, kv = config["hidden_size"], config["intermediate_size"], config["num_key_value_heads"]
    width, kv_width = config["num_attention_heads"] * config["head_dim"], kv * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        matrices = {
            "self_attn.q_proj": (width, hidden),
            "self_attn.k_proj": (kv_width, hidden),
            "self_attn.v_proj": (kv_width, hidden),
            "self_attn.o_proj": (hidden, width),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape_of for name, shape_of in matrices.items()}
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (config["vocab_size"], hidden)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator(device="cuda")
    generator.manual_seed(1)
    places: dict[str, str] = {}
    part: dict[str, torch.Tensor] = {}
    number = 0
    for name, shape_of in shapes.items():
        tensor = torch.randn(shape_of, generator=generator, device="cuda", dtype=torch.float32) * SPREAD
        if born_fp8 and len(shape_of) == 2 and shape_of[0] != config["vocab_size"]:
            tensor = round_to_fp8(tensor)
        part[name] = (tensor + (1 if len(shape_of) == 1 else 0)).to(torch.bfloat16).cpu()
        places[name] = f"model-{number:05}.safetensors"
        if sum(tensor.nbytes for tensor in part.values()) > 4e9 or name == "lm_head.weight":
            save_file(part, folder / places[name])
            part, number = {}, number + 1
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def make_dummy_weights_gaussian(vocabulary: int, born_fp8: bool) -> None:
    """Has vLLM's loader of dummy weights, in processes that are forked from this one, fill in N(0, 0.02).

    `vocabulary` is how many rows embeddings and heads have, which `born_fp8` leaves as they are.
    """
    import torch
    from vllm.model_executor.model_loader import dummy_loader, weight_utils

    filled = [0]

    def fill(param: torch.Tensor, *_: Any, **__: Any) -> None:
        filled[0] += 1
        if param.is_meta or param.dim() == 0 or not torch.is_floating_point(param):
            return
        if param.dim() == 1:
            param.data.fill_(1)
            return
        generator = torch.Generator(device=param.device)
        generator.manual_seed(filled[0])
        for part in param.data.view(-1, param.shape[-1]).split(8192):
            drawn = torch.randn(part.shape, generator=generator, device=part.device) * SPREAD
            part.copy_(round_to_fp8(drawn) if born_fp8 and param.shape[0] != vocabulary else drawn)

    weight_utils.initialize_single_dummy_weight = fill
    dummy_loader.initialize_single_dummy_weight = fill


def add_utilities() -> None:
    """Adds a method to the engine's core that takes blocks of the cache out of use, as if there were less memory."""
    from vllm.v1.engine.core import EngineCore

    def take_blocks(self: Any, count: int) -> int:
        pool = self.scheduler.kv_cache_manager.block_pool
        self.bench_blocks = pool.get_new_blocks(count) if count else []
        return int(pool.get_num_free_blocks())

    EngineCore.bench_take_blocks = take_blocks


def memory_of(model: Any) -> dict[str, Any]:
    """Returns how much GPU memory this process has, and the tensors that are not parameters; runs in the engine."""
    import torch

    stats = torch.cuda.memory_stats()
    own = {parameter.untyped_storage().data_ptr() for parameter in [*model.parameters(), *model.buffers()]}
    others = {}
    for one in gc.get_objects():
        if isinstance(one, torch.Tensor) and one.is_cuda and one.untyped_storage().nbytes() > 1 << 20:
            storage = one.untyped_storage()
            if storage.data_ptr() not in own:
                others[storage.data_ptr()] = (list(one.shape), storage.nbytes())
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    return {
        "parameters": sum(storages.values()),
        **{name: stats[f"{name}_bytes.all.current"] for name in ("requested", "allocated", "reserved", "active")},
        "free": torch.cuda.mem_get_info()[0],
        "others": sorted(others.values(), key=lambda other: -other[1])[:8],
    }


def device_facts() -> tuple[str, int]:
    """Asks another process for the card's name and memory: if this one used the card, it could not fork the engine."""
    program = "import torch; print(torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1], sep='\\n')"
    name, memory = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.split("\n")[:2]
    return name, int(memory)


class Bench:
    """An engine that is measured, and the report of it."""

    def __init__(self, llm: Any, args: argparse.Namespace, report: dict[str, Any]) -> None:
        self.llm, self.args, self.report = llm, args, report
        self.vocabulary = llm.llm_engine.model_config.get_vocab_size()

    def prompts(self, count: int, tokens: int, seed: int) -> list[dict[str, list[int]]]:
        generator = random.Random(seed)
        return [
            {"prompt_token_ids": [generator.randrange(self.vocabulary) for _ in range(tokens)]} for _ in range(count)
        ]

    def generate(self, prompts: list[dict[str, list[int]]], tokens: int) -> float:
        """Returns the seconds in which every request makes exactly so many tokens."""
        from vllm import SamplingParams

        greedy = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        outputs = self.llm.generate(prompts, greedy, use_tqdm=False)
        seconds = time.perf_counter() - start
        made = {len(output.outputs[0].token_ids) for output in outputs}
        if made != {tokens}:
            sys.exit(f"requests made {made} tokens instead of {tokens}")
        return seconds

    def memory(self) -> None:
        self.report["memory"] = self.llm.apply_model(memory_of)

    def ttft(self) -> None:
        """Milliseconds to the first token of a request alone, by the length of its prompt."""
        found = {}
        for tokens in map(int, self.args.prompts.split(",")):
            times = [self.generate(self.prompts(1, tokens, 1000 * tokens + repeat), 1) for repeat in range(7)]
            found[tokens] = 1e3 * statistics.median(times[2:])
        self.report["ms to the first token"] = found

    def steps(self) -> None:
        """A step's time is the difference of a run of 128 tokens and one of 32, so it holds no prefill."""
        found = {}
        for batch in map(int, self.args.batches.split(",")):
            prompts = self.prompts(batch, 128, 1)
            self.generate(prompts, 32)  # the first run of a size compiles
            full = statistics.median(self.generate(prompts, 128) for _ in range(REPEATS))
            part = statistics.median(self.generate(prompts, 32) for _ in range(REPEATS))
            found[batch] = {"ms a step": 1e3 * (full - part) / 96, "output tokens/s": batch * 128 / full}
        self.report["steps"] = found

    def saturated(self) -> None:
        """Requests of 1,024 tokens in and 256 out arrive at once, more than the cache holds."""
        cache = self.llm.llm_engine.vllm_config.cache_config
        core = self.llm.llm_engine.engine_core
        prompts = self.prompts(self.args.requests, 1024, 1)
        self.generate(prompts[:32], 8)
        found = {}
        for memory in [self.args.memory_gb, *([self.args.second_gb] if self.args.second_gb else [])]:
            free = cache.num_gpu_blocks
            if memory != self.args.memory_gb:
                taken = (self.args.memory_gb - memory) * 1e9 / self.bytes_of_a_block()
                free = core.call_utility("bench_take_blocks", int(taken))
            seconds = self.generate(prompts, 256)
            found[memory or "vLLM's share"] = {
                "requests/s": self.args.requests / seconds,
                "cache holds": free * cache.block_size / 1280,
            }
        self.report["saturated"] = found

    def bytes_of_a_block(self) -> float:
        shape = SHAPES[self.args.shape]
        token = 4 * shape["num_key_value_heads"] * shape["head_dim"] * shape["num_hidden_layers"]
        return token * self.llm.llm_engine.vllm_config.cache_config.block_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--model", help="a checkpoint of this shape, whose weights are loaded")
    parser.add_argument("--write", help="write a checkpoint of the shape to this folder, and end")
    parser.add_argument("--born-fp8", action="store_true", help="weights are BF16 that was FP8")
    parser.add_argument("--transfuse", action="store_true", help="--quantization transfuse")
    parser.add_argument("--settings", default="{}", help="transfuse's options as JSON")
    parser.add_argument("--parts", default="memory,ttft,steps,saturated")
    parser.add_argument("--memory-gb", type=float, help="the engine's share of the GPU's memory (default: vLLM's)")
    parser.add_argument("--second-gb", type=float, help="measure saturated once more, with less memory for the cache")
    parser.add_argument("--requests", type=int, default=512, help="of saturated")
    parser.add_argument("--batches", default="1,8,32,128", help="of steps")
    parser.add_argument("--prompts", default="512,2048,8192", help="lengths of prompts of ttft")
    parser.add_argument("--max-model-len", type=int, default=8448)
    parser.add_argument("--engine-args", default="{}", help="further arguments of vllm.LLM as JSON")
    parser.add_argument("--json", help="also write the JSON to this file")
    args = parser.parse_args()
    if args.second_gb and not args.memory_gb:
        parser.error("--second-gb needs --memory-gb")
    if args.born_fp8 and args.model:
        parser.error("--born-fp8 is for weights that are made, and --model loads others")
    if args.write:
        write_checkpoint(args.shape, Path(args.write), args.born_fp8)
        return

    device, device_bytes = device_facts()
    report: dict[str, Any] = {"device": device, "settings": vars(args)}
    from vllm import LLM

    make_dummy_weights_gaussian(SHAPES[args.shape]["vocab_size"], args.born_fp8)
    add_utilities()
    options: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": args.max_model_len,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "seed": 0,
        **json.loads(args.engine_args),
    }
    if args.memory_gb:
        options["gpu_memory_utilization"] = args.memory_gb * 1e9 / device_bytes
    if args.transfuse:
        options |= {"quantization": "transfuse", "additional_config": {"transfuse": json.loads(args.settings)}}
    with tempfile.TemporaryDirectory() as folder:
        if not args.model:
            options["load_format"] = "dummy"
            (Path(folder) / "config.json").write_text(json.dumps(config_of(args.shape)))
        start = time.perf_counter()
        llm = LLM(args.model or folder, **options)
        report["start s"] = time.perf_counter() - start
    cache = llm.llm_engine.vllm_config.cache_config
    report["cache tokens"] = cache.num_gpu_blocks * cache.block_size
    bench = Bench(llm, args, report)
    for part in args.parts.split(","):
        getattr(bench, part)()
        print(f"{'transfuse' if args.transfuse else 'BF16'} {part}: {json.dumps(report)[-1500:]}", flush=True)
        if args.json:
            Path(args.json).write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
