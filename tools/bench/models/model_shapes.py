# SPDX-License-Identifier: Apache-2.0
"""Models by name: their configs, the tensors of their checkpoints, and random weights that a seed gives.

A tensor's values depend only on the seed, its name and the device. So one process can write a checkpoint and another
one can compare with it, without keeping the source.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Callable

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

SIGMA = 0.02
SEED = 22

# Fewer weights of the same architecture, for a CPU. Every matrix has parts that are not whole tiles.
_TINY = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1040,
}
_LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """One model: `model_type` of transformers, its config, and what differs in the tiny one."""

    model_type: str
    config: dict[str, object]
    tiny: dict[str, object] = dataclasses.field(default_factory=dict)


SHAPES = {
    "llama-8b": Shape(
        "llama",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_parameters": _LLAMA_3_ROPE,
        },
    ),
    "llama-70b": Shape(
        "llama",
        {
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 128256,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        },
        {"num_hidden_layers": 4},
    ),
    "qwen3-8b": Shape(
        "qwen3",
        {
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    ),
    "qwen3-30b-a3b": Shape(
        "qwen3_moe",
        {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        {"moe_intermediate_size": 128, "num_experts": 16, "num_experts_per_tok": 4},
    ),
    "phi3-mini": Shape(
        "phi3",
        {
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 32064,
            "max_position_embeddings": 4096,
            "sliding_window": 2047,
            "rms_norm_eps": 1e-5,
            "pad_token_id": None,
        },
        {"num_key_value_heads": 4, "sliding_window": 31, "head_dim": None},
    ),
    "gemma3-4b": Shape(
        "gemma3_text",
        {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 262208,
            "sliding_window": 1024,
            "query_pre_attn_scalar": 256,
            "tie_word_embeddings": True,
            "pad_token_id": None,
        },
        {"num_hidden_layers": 6, "query_pre_attn_scalar": 64, "sliding_window": 32},
    ),
}


@dataclasses.dataclass(frozen=True)
class Source:
    """Where weights come from: the model's config, the seed, and whether all layers are the first one again."""

    config: PreTrainedConfig
    seed: int = SEED
    repeat: bool = False

    def make(self, name: str, shape: tuple[int, ...], device: str) -> torch.Tensor:
        """Returns a tensor of the checkpoint: bf16, N(0, SIGMA), around 1 for the norms that multiply by it."""
        if self.repeat:
            name = re.sub(r"\blayers\.\d+\.", "layers.0.", name)
        generator = torch.Generator(device).manual_seed(self.seed + zlib.crc32(name.encode()))
        values = torch.empty(shape, dtype=torch.bfloat16, device=device)
        values.normal_(0.0, SIGMA, generator=generator)
        if "norm" in name and "gemma" not in self.config.model_type:
            values += 1
        return values


def make_config(name: str, scale: str = "real", layers: int | None = None) -> PreTrainedConfig:
    """Returns the config of a model of `SHAPES`; scale "tiny" is for a CPU, `layers` is their number if not its own."""
    shape = SHAPES[name]
    fields = dict(shape.config)
    if scale == "tiny":
        fields |= _TINY | shape.tiny
    if layers:
        fields["num_hidden_layers"] = layers
    fields = {key: value for key, value in fields.items() if value is not None or key == "pad_token_id"}
    # No token ends a measured text before its length.
    config = AutoConfig.for_model(shape.model_type, **fields, bos_token_id=None, eos_token_id=None)
    config.dtype = torch.bfloat16
    config.architectures = [type(make_empty_model(config)).__name__]
    return config


def make_empty_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Returns the model without memory for its weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def list_parts(name: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...], Callable]]:
    """Returns the tensors on disk of which a parameter of the model is made.

    Each is a name, a shape and the function that takes the part out of the parameter. Experts are one tensor a matrix
    on disk, and in the model gate and up of all of them are one parameter.
    """
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return [(name, shape, lambda parameter: parameter)]
    prefix, _, kind = name.rpartition(".")
    parts = []
    for expert in range(shape[0]):
        if kind == "down_proj":
            parts.append((f"{prefix}.{expert}.down_proj.weight", shape[1:], lambda p, e=expert: p[e]))
            continue
        rows = shape[1] // 2
        half = (rows, shape[2])
        parts.append((f"{prefix}.{expert}.gate_proj.weight", half, lambda p, e=expert, n=rows: p[e, :n]))
        parts.append((f"{prefix}.{expert}.up_proj.weight", half, lambda p, e=expert, n=rows: p[e, n:]))
    return parts


def list_parameters(config: PreTrainedConfig) -> dict[str, tuple[int, ...]]:
    """Returns names and shapes of the model's parameters, of tied ones the first."""
    return {name: tuple(value.shape) for name, value in make_empty_model(config).named_parameters()}


def list_disk_tensors(config: PreTrainedConfig) -> dict[str, tuple[int, ...]]:
    """Returns names and shapes of the tensors of the model's checkpoint."""
    return {
        part: part_shape
        for name, shape in list_parameters(config).items()
        for part, part_shape, _ in list_parts(name, shape)
    }


@torch.no_grad()
def build_reference(source: Source, device: str, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Returns the uncompressed model, its weights made in the device's memory; nothing is read from a file."""
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(source.config, dtype=dtype)
    for name, parameter in model.named_parameters():
        for part, shape, take in list_parts(name, tuple(parameter.shape)):
            take(parameter).copy_(source.make(part, shape, device))
    for module in model.modules():
        # from_pretrained computes these frequencies on the CPU, whose powers are not a GPU's to the last bit.
        if "RotaryEmbedding" in type(module).__name__:
            model._init_weights(module)
    model.eval().requires_grad_(False)
    model.tie_weights()
    return model
