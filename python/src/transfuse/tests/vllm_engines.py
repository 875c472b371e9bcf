# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints, and the engines of vLLM that serve them: what the tests of the plugin on a GPU share."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Functions that are called in the engine's process travel as pickles.
os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

VOCABULARY = 1000  # not a multiple of 64, to which vLLM pads it

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.08,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

# The architectures, each with what is special about it.
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaConfig(intermediate_size=688, head_dim=64, tie_word_embeddings=False, **_COMMON),
    "qwen2": lambda: hf.Qwen2Config(intermediate_size=704, tie_word_embeddings=False, **_COMMON),  # biases
    "qwen3_tied": lambda: hf.Qwen3Config(intermediate_size=704, head_dim=64, tie_word_embeddings=True, **_COMMON),
    "gemma2": lambda: hf.Gemma2Config(
        intermediate_size=704, head_dim=64, sliding_window=64, query_pre_attn_scalar=64, **_COMMON
    ),
    "phi3": lambda: hf.Phi3Config(intermediate_size=704, tie_word_embeddings=False, **_COMMON),  # fused in the files
    "deepseek_v2": lambda: hf.DeepseekV2Config(
        intermediate_size=704,
        moe_intermediate_size=128,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        topk_method="greedy",
        n_group=1,
        topk_group=1,
        routed_scaling_factor=1.0,
        tie_word_embeddings=False,
        **_COMMON,
    ),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(
        intermediate_size=704,
        moe_intermediate_size=128,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        head_dim=64,
        tie_word_embeddings=False,
        **_COMMON,
    ),
}


def make_checkpoint(name: str, folder: Path) -> None:
    """Writes a BF16 checkpoint with random weights, in several files."""
    torch.manual_seed(1)
    config = CONFIGS[name]()
    model = hf.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "norm" not in parameter_name:
                parameter.normal_(0, 0.05)
    model.save_pretrained(folder, max_shard_size="2MB")


def scale_checkpoint(folder: Path, scaled: Path, factor: float) -> None:
    """Writes a checkpoint whose matrices are those of another one times a factor."""
    shutil.copytree(folder, scaled, dirs_exist_ok=True)
    for file in scaled.glob("*.safetensors"):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if tensor.dim() == 2:
                tensors[name] = (tensor.float() * factor).to(tensor.dtype)
        save_file(tensors, file)


def write_was_fp8(folder: Path, to: Path) -> None:
    """Writes a checkpoint whose projections are those of another one as FP8 codes times a scale, dequantized.

    The scale is that of all of them, so that it is that of each block of merged ones, too.
    """
    shutil.copytree(folder, to)
    files = {file: load_file(file) for file in to.glob("*.safetensors")}
    projections = [(file, name) for file, tensors in files.items() for name in tensors if name.endswith("_proj.weight")]
    scale = max(files[file][name].float().abs().max().item() for file, name in projections) / 440  # 449 would be a NaN
    for file, name in projections:
        dense = files[file][name]
        files[file][name] = ((dense.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(dense.dtype)
    for file, tensors in files.items():
        save_file(tensors, file)


def make_prompts() -> list[dict[str, list[int]]]:
    """Returns prompts of several lengths."""
    generator = torch.Generator().manual_seed(2)
    return [
        {"prompt_token_ids": torch.randint(VOCABULARY, (count,), generator=generator).tolist()}
        for count in (3, 17, 64, 200)
    ]


# Inductor chooses kernels by the times that it measures, and sums of another kernel are in another order. So that each
# engine has the same ones, whatever else is on the GPU, it chooses without measuring.
_COMPILATION = {
    "inductor_compile_config": {"deterministic": True, "combo_kernels": False, "benchmark_combo_kernel": False}
}

# Options of an engine that is compiled; and of one that has graphs for all of the prompts, and for decoding, but not
# many.
COMPILED: dict[str, Any] = {"enforce_eager": False, "compilation_config": _COMPILATION}
FEW_GRAPHS: dict[str, Any] = {
    **COMPILED,
    "compilation_config": {**_COMPILATION, "cudagraph_capture_sizes": [1, 4, 32, 256]},
}


@contextmanager
def serve(folder: Path | str, **options: Any) -> Iterator[Any]:
    """Starts an engine, which is gone, its memory included, after the block."""
    from vllm import LLM

    given: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": 16,
        # No profiling, which other engines on the card would disturb.
        "kv_cache_memory_bytes": 1 << 28,
        "gpu_memory_utilization": 0.3,
        "max_logprobs": -1,
        "enable_prefix_caching": False,
        "seed": 0,
        **options,
    }
    # vLLM forks the engine from this process. If OpenMP has threads here they are not there, and the engine would wait
    # for them forever where it fills a large tensor on the CPU, as the first model runner does.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        llm = LLM(str(folder), **given)
    finally:
        torch.set_num_threads(threads)
    try:
        yield llm
    finally:
        core = llm.llm_engine.engine_core
        del llm
        core.shutdown()
        gc.collect()


def run(llm: Any, *, alone: bool = False, tokens: int = 24, **options: Any) -> list[tuple[list[int], torch.Tensor]]:
    """Returns, for each prompt, the greedy tokens and the log-probabilities, [positions][vocabulary].

    alone: one request after the other, so that products have the same shapes in every engine.
    """
    from vllm import SamplingParams

    greedy = SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=-1, prompt_logprobs=-1
    )
    prompts = make_prompts()
    if alone:
        outputs = [llm.generate([prompt], greedy, use_tqdm=False, **options)[0] for prompt in prompts]
    else:
        outputs = llm.generate(prompts, greedy, use_tqdm=False, **options)
    made = []
    for output in outputs:
        positions = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
        table = torch.full((len(positions), VOCABULARY), float("nan"))
        for row, position in zip(table, positions, strict=True):
            for token, value in position.items():
                row[token] = value.logprob
        made.append((list(output.outputs[0].token_ids), table))
    return made


def digest(model: torch.nn.Module) -> dict[str, int]:
    """Returns a hash of the weights of each layer as they serve; runs in the engine's process."""

    def hash_of(tensor: torch.Tensor) -> int:
        flat = tensor.detach().contiguous().flatten()
        bits = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
        total = 0
        for start in range(0, bits.numel(), 1 << 26):
            part = bits[start : start + (1 << 26)].to(torch.int64)
            places = torch.arange(start, start + part.numel(), device=part.device) % 1000003 + 1
            total += int((part * places).sum())
        return total

    found = {}
    for name, module in model.named_modules():
        for parameter_name, parameter in module.named_parameters(recurse=False):
            tensor = parameter
            if parameter.dtype == torch.uint8 and parameter.shape == (256,):
                names = [parameter_name] if parameter_name.startswith("w") and parameter_name != "weight" else []
                tensor = module.quant_method.dequantize_weight(module, *names)
            found[f"{name}.{parameter_name}"] = hash_of(tensor)
    return found


def count_captures(_: torch.nn.Module) -> int:
    """Returns how many times graphs have been captured; runs in the engine's process."""
    from vllm.compilation.counter import compilation_counter

    return int(compilation_counter.num_gpu_runner_capture_triggers)


def memory(_: torch.nn.Module) -> tuple[int, int]:
    """Returns the bytes that torch has allocated, and those that are free on the GPU; runs in the engine's process."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]


def send_weights(worker: Any, folder: str) -> None:
    """Gives a worker the weights of a folder as a trainer does that sends them over NCCL, without the sending."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    class Engine(NCCLWeightTransferEngine):
        def update_weights(self, update_info: dict[str, Any]) -> None:
            for file in sorted(Path(update_info["folder"]).glob("*.safetensors")):
                self.model.load_weights(load_file(file, device="cuda").items())

    worker = getattr(worker, "worker", worker)  # vLLM hands out what wraps it
    worker.weight_transfer_engine = Engine(None, worker.vllm_config, worker.device, worker.get_model())
    try:
        worker.start_weight_update()
        worker.update_weights({"folder": folder})
        worker.finish_weight_update()
    finally:
        worker.weight_transfer_engine = None


def count_assembled(model: torch.nn.Module) -> int:
    """Returns how many layers of ours are several coded ones; runs in the engine's process."""
    packed: list[Any] = [module.transfuse_packed for module in model.modules() if hasattr(module, "transfuse_packed")]
    return sum(hasattr(each, "key") and bytes(each.key[:4].tolist()) == b"TRFX" for each in packed)


def describe(model: torch.nn.Module) -> dict[str, str]:
    """Returns the layout of each layer of ours; runs in the engine's process."""
    return {
        name: module.transfuse_packed.layout if hasattr(module, "transfuse_packed") else "tied"
        for name, module in model.named_modules()
        if any(parameter.dtype == torch.uint8 for parameter in module.parameters(recurse=False))
    }
