# SPDX-License-Identifier: Apache-2.0
"""Reads from config.json what the KV cache keeps of a token, and over how many GPUs a served model can be cut.

Only the kinds of models that are listed here are understood. Another kind may keep something else of a token, and a
wrong number would be worse than none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_VALUE_BYTES = 2  # BF16

# None means the number of query heads.
_AS_MANY_AS_QUERIES: dict[str, int | None] = {"num_key_value_heads": None}
_GEMMA: dict[str, int | None] = {"head_dim": 256}
# The decoders each of whose layers has attention of the usual kind, with the values that transformers takes for fields
# that config.json leaves out. Other fields have to be given, except head_dim, which is hidden_size divided by
# num_attention_heads, and has to be given for the kinds in _OWN_HEAD_DIM.
_DEFAULTS: dict[str, dict[str, int | None]] = {
    **dict.fromkeys(
        ("llama", "arcee", "apertus", "cohere", "cohere2", "gpt_neox", "granite", "granitemoe", "hunyuan_v1_dense")
        + ("nemotron", "olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3"),
        _AS_MANY_AS_QUERIES,
    ),
    **dict.fromkeys(
        ("mistral", "ministral", "ministral3", "mixtral", "phimoe", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text")
        + ("qwen2_5_vl", "qwen2_5_vl_text", "qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "starcoder2")
        + ("stablelm", "smollm3", "glm", "glm4", "glm4_moe", "ernie4_5", "ernie4_5_moe", "exaone4", "seed_oss")
        + ("dots1", "gpt_oss", "helium"),
        {},
    ),
    "gemma": dict(_GEMMA),
    "gemma2": dict(_GEMMA),
    "gemma3_text": {**_GEMMA, "num_attention_heads": 8, "num_key_value_heads": 4},
}
_OWN_HEAD_DIM = {"qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "glm", "glm4", "glm4_moe", "ernie4_5"}
_OWN_HEAD_DIM |= {"ministral3", "seed_oss", "gpt_oss", "helium"}
# Kinds with attention over a latent vector (MLA), of which vLLM keeps one for all heads.
_LATENT = {"deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"}
# Models with these fields keep more, or less, or keep it in another way.
_NOT_UNDERSTOOD = (
    "attention_chunk_size",
    "block_configs",
    "compress_ratios",
    "cross_attention_layers",
    "index_head_dim",
    "is_encoder_decoder",
    "num_kv_shared_layers",
)
# Kinds whose window is off unless config.json turns it on.
_WINDOW_IS_OFF = ("qwen2", "qwen3", "smollm3")
# Windows of kinds that have one where config.json does not say.
_WINDOWS = dict.fromkeys(("mistral", "ministral", "gemma2", "gemma3_text", "olmo3", "cohere2", "exaone4"), 4096)
_WINDOWS["gpt_oss"] = 128


class NoEstimateError(Exception):
    """Says why there is no estimate."""


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """What serving a model depends on.

    Attributes
    ----------
    layers, heads : int
        `heads` are the query heads.
    kv_heads : int
        It is 1 if one latent vector is kept, which every GPU has.
    head_values : int
        Numbers that are kept of a token for a head of keys and values, in each layer.
    is_latent : bool
    window : int
        How many tokens some layers, or all, look back on, or 0. These layers keep less than `count_token_bytes` says.
    max_tokens : int or None
        How long a context the model is made for.
    is_tied : bool
        Whether lm_head is the embedding, whatever the files hold.
    cut_sizes : dict of str to int
        The sizes that have to be divisible by the number of GPUs.
    """

    layers: int
    heads: int
    kv_heads: int
    head_values: int
    is_latent: bool
    window: int
    max_tokens: int | None
    is_tied: bool
    cut_sizes: dict[str, int]

    def count_kv_heads(self, gpus: int) -> int:
        """Returns the heads of keys and values on each GPU: at least one, so that several may have the same."""
        return max(1, self.kv_heads // gpus)

    def count_token_bytes(self, gpus: int) -> int:
        """Returns the bytes of the KV cache for a token, on each GPU, where every layer keeps every token."""
        return self.layers * self.count_kv_heads(gpus) * self.head_values * _VALUE_BYTES

    def find_obstacle(self, gpus: int) -> str:
        """Returns why vLLM cannot cut the model for so many GPUs, or ""."""
        for name, size in self.cut_sizes.items():
            if size % gpus:
                return f"{name} is {size:,}, which {gpus} GPUs cannot share evenly"
        if not self.is_latent and self.kv_heads % gpus and gpus % self.kv_heads:
            return f"num_key_value_heads is {self.kv_heads:,}, which {gpus} GPUs cannot share evenly"
        return ""


class _Fields:
    """The part of config.json that describes the decoder; a field that is missing or no number raises an error."""

    def __init__(self, config: Mapping[str, Any], kind: str) -> None:
        self.config, self.kind = config, kind

    def count(self, name: str) -> int:
        value = self.config.get(name)
        if value is None:
            value = _DEFAULTS.get(self.kind, {}).get(name)
        if value is None:
            raise NoEstimateError(f"config.json does not say {name}")
        if type(value) is not int or value < 1:
            raise NoEstimateError(f"config.json has {name}={value!r}")
        return value

    def count_if_any(self, name: str) -> int | None:
        return None if self.config.get(name) in (None, 0) else self.count(name)

    def count_kv_heads(self, heads: int) -> int:
        defaults = _DEFAULTS[self.kind]
        is_default = self.config.get("num_key_value_heads") is None
        if is_default and "num_key_value_heads" in defaults and defaults["num_key_value_heads"] is None:
            return heads
        return self.count("num_key_value_heads")

    def count_head_dim(self, heads: int) -> int:
        if self.config.get("head_dim") is not None or "head_dim" in _DEFAULTS[self.kind] or self.kind in _OWN_HEAD_DIM:
            return self.count("head_dim")
        hidden = self.count("hidden_size")
        if hidden % heads:
            raise NoEstimateError(f"config.json has hidden_size={hidden} for {heads} heads, and no head_dim")
        return hidden // heads

    def find_window(self) -> int:
        """Returns how many tokens the layers with a window look back on, or 0."""
        types = self.config.get("layer_types") or []
        other = sorted({str(each) for each in types} - {"full_attention", "sliding_attention"})
        if other:
            raise NoEstimateError(f"config.json has layers of the type {other[0]!r}")
        is_on = self.config.get("use_sliding_window", not self.kind.startswith(_WINDOW_IS_OFF))
        if (types and "sliding_attention" not in types) or not is_on:
            return 0
        if "sliding_window" not in self.config:
            return _WINDOWS.get(self.kind, 0)
        return self.count_if_any("sliding_window") or 0


def _check_quantization(config: Mapping[str, Any]) -> None:
    marker = config.get("quantization_config")
    if not marker:
        return
    method = marker.get("quant_method") if isinstance(marker, dict) else None
    if method != "transfuse":
        raise NoEstimateError(f"it is quantized ({method or 'in an unknown way'}), and the estimate is for BF16")
    if marker.get("stored"):
        raise NoEstimateError("it is stored only, and nothing loads it before it is decompressed")


def read_served_model(config: Mapping[str, Any]) -> ServedModel:
    """Reads a config.json.

    Raises
    ------
    NoEstimateError
        It describes a model that is not understood.
    """
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    _check_quantization(config)
    _check_quantization(text)
    kind = text.get("model_type")
    if not isinstance(kind, str) or kind not in _DEFAULTS.keys() | _LATENT:
        raise NoEstimateError(f"the model_type {kind!r} is not known" if kind else "config.json has no model_type")
    for name in _NOT_UNDERSTOOD:
        if text.get(name) or config.get(name):
            raise NoEstimateError(f"config.json has {name}, which is not understood")
    fields = _Fields(text, kind)
    heads = fields.count("num_attention_heads")
    sizes = {"num_attention_heads": heads}
    for name in ("intermediate_size", "moe_intermediate_size"):
        size = fields.count_if_any(name)
        if size is not None:
            sizes[name] = size
    is_latent = kind in _LATENT
    if is_latent:
        kv_heads, values, window = 1, fields.count("kv_lora_rank") + fields.count("qk_rope_head_dim"), 0
    else:
        for name in ("kv_lora_rank", "v_head_dim"):
            if text.get(name):
                raise NoEstimateError(f"config.json has {name}, which is not understood of the model_type {kind!r}")
        kv_heads, values = fields.count_kv_heads(heads), 2 * fields.count_head_dim(heads)
        window = fields.find_window()
    return ServedModel(
        layers=fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_values=values,
        is_latent=is_latent,
        window=window,
        max_tokens=fields.count_if_any("max_position_embeddings"),
        is_tied=bool(config.get("tie_word_embeddings") or text.get("tie_word_embeddings")),
        cut_sizes=sizes,
    )
