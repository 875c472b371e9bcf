# SPDX-License-Identifier: Apache-2.0
"""Small models of many architectures of transformers, and comparing what a checkpoint and its source give."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", minversion="5.17", reason="transformers 5.17 is not installed")

import torch
import transformers
from torch import nn

WIDTH = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**WIDTH, "num_key_value_heads": 2, "vocab_size": 99, "max_position_embeddings": 64, "pad_token_id": 0}
VISION = {**WIDTH, "image_size": 32, "patch_size": 8}
BOTH = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48, "num_experts": 4, "num_local_experts": 4}
SPEECH = {
    **WIDTH,
    "conv_dim": (32, 32),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_conv_pos_embedding_groups": 4,
    "num_conv_pos_embeddings": 16,
    "vocab_size": 31,
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A class of transformers, its config's sizes, and classes that load a part of it, or put another head on it."""

    name: str
    sizes: dict[str, Any]
    parts: tuple[str, ...] = ()

    def make(self) -> Any:
        """Returns a model of BF16 with random weights, no two of its vectors alike."""
        torch.manual_seed(1)
        kind = getattr(transformers, self.name)
        model = kind(kind.config_class(**self.sizes)).to(torch.bfloat16).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
                elif parameter.dim() > 1 and not parameter.any():
                    parameter.normal_(0, 0.02)
        return model


TOWERS = {"text_config": {**WIDTH, "vocab_size": 99, "max_position_embeddings": 32}, "vision_config": VISION}


def _seen(text: str, vision: str, **sizes: Any) -> dict[str, Any]:
    return {
        "text_config": {"model_type": text, **DECODER, "head_dim": 16},
        "vision_config": {"model_type": vision, **VISION},
        **sizes,
    }


ARCHITECTURES = [
    # Decoders, untied and tied.
    Architecture("LlamaForCausalLM", DECODER, parts=("LlamaModel", "LlamaForSequenceClassification")),
    Architecture("MistralForCausalLM", {**DECODER, "sliding_window": 16}, parts=("MistralModel",)),
    Architecture("Qwen2ForCausalLM", {**DECODER, "tie_word_embeddings": True}, parts=("Qwen2Model",)),
    Architecture("Qwen3ForCausalLM", {**DECODER, "head_dim": 16}, parts=("Qwen3ForTokenClassification",)),
    Architecture("Gemma2ForCausalLM", {**DECODER, "head_dim": 16}, parts=("Gemma2Model",)),
    Architecture("Gemma3ForCausalLM", {**DECODER, "head_dim": 16}, parts=("Gemma3TextModel",)),
    Architecture("Phi3ForCausalLM", DECODER, parts=("Phi3Model",)),
    Architecture("GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99}, parts=("GPT2Model",)),
    Architecture("GPTNeoXForCausalLM", DECODER, parts=("GPTNeoXModel",)),
    Architecture("OPTForCausalLM", {**DECODER, "ffn_dim": 96, "word_embed_proj_dim": 64}, parts=("OPTModel",)),
    Architecture("BloomForCausalLM", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99}),
    Architecture("FalconForCausalLM", DECODER, parts=("FalconModel",)),
    Architecture("GPTJForCausalLM", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99, "rotary_dim": 8}),
    Architecture("Olmo2ForCausalLM", DECODER),
    # Mixtures of experts.
    Architecture("MixtralForCausalLM", {**DECODER, **EXPERTS}, parts=("MixtralModel",)),
    Architecture("Qwen3MoeForCausalLM", {**DECODER, **EXPERTS, "head_dim": 16}, parts=("Qwen3MoeModel",)),
    Architecture("GptOssForCausalLM", {**DECODER, **EXPERTS, "head_dim": 16}),
    Architecture("GraniteMoeForCausalLM", {**DECODER, **EXPERTS}),
    Architecture(
        "DeepseekV3ForCausalLM",
        {
            **DECODER,
            **EXPERTS,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
            "num_key_value_heads": 4,
        },
    ),
    # State spaces, alone and among attention.
    Architecture("MambaForCausalLM", {**WIDTH, "vocab_size": 99, "state_size": 8}, parts=("MambaModel",)),
    Architecture("Mamba2ForCausalLM", {**WIDTH, "vocab_size": 99, "state_size": 8, "num_heads": 8, "head_dim": 16}),
    Architecture(
        "JambaForCausalLM",
        {**DECODER, **EXPERTS, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
    ),
    # Encoders.
    Architecture(
        "BertForPreTraining",
        {**WIDTH, "vocab_size": 99},
        parts=("BertForMaskedLM", "BertModel", "BertForSequenceClassification", "BertForQuestionAnswering"),
    ),
    Architecture("BertForMaskedLM", {**WIDTH, "vocab_size": 99}, parts=("BertModel", "BertForTokenClassification")),
    Architecture("RobertaForMaskedLM", {**WIDTH, "vocab_size": 99}, parts=("RobertaModel", "RobertaForCausalLM")),
    Architecture("DistilBertForMaskedLM", {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4, "vocab_size": 99}),
    Architecture("ElectraForPreTraining", {**WIDTH, "embedding_size": 32, "vocab_size": 99}, parts=("ElectraModel",)),
    Architecture("AlbertForMaskedLM", {**WIDTH, "embedding_size": 32, "vocab_size": 99}, parts=("AlbertModel",)),
    Architecture("DebertaV2ForMaskedLM", {**WIDTH, "vocab_size": 99}, parts=("DebertaV2Model",)),
    Architecture("ModernBertForMaskedLM", {**WIDTH, "vocab_size": 99, "pad_token_id": 0}, parts=("ModernBertModel",)),
    # Encoders with decoders.
    Architecture(
        "T5ForConditionalGeneration",
        {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 99},
        parts=("T5Model", "T5EncoderModel"),
    ),
    Architecture("BartForConditionalGeneration", BOTH, parts=("BartModel", "BartForSequenceClassification")),
    Architecture("MarianMTModel", BOTH, parts=("MarianModel",)),
    Architecture("PegasusForConditionalGeneration", BOTH),
    # Vision.
    Architecture("ViTForImageClassification", VISION, parts=("ViTModel",)),
    Architecture("Dinov2ForImageClassification", VISION, parts=("Dinov2Model",)),
    Architecture("BeitForImageClassification", VISION, parts=("BeitModel",)),
    Architecture(
        "Swinv2ForImageClassification",
        {"image_size": 32, "patch_size": 4, "embed_dim": 32, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
        parts=("Swinv2Model",),
    ),
    Architecture(
        "SegformerForSemanticSegmentation",
        {
            "hidden_sizes": [32, 64],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "decoder_hidden_size": 64,
            "num_attention_heads": [2, 4],
            "sr_ratios": [2, 1],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
        },
        parts=("SegformerModel",),
    ),
    # Audio.
    Architecture("Wav2Vec2ForCTC", SPEECH, parts=("Wav2Vec2Model", "Wav2Vec2ForSequenceClassification")),
    Architecture("HubertForCTC", SPEECH, parts=("HubertModel",)),
    Architecture(
        "WhisperForConditionalGeneration",
        {**BOTH, "num_mel_bins": 8, "max_source_positions": 300, "max_target_positions": 20},
        parts=("WhisperModel", "WhisperForAudioClassification"),
    ),
    Architecture("ASTForAudioClassification", {**WIDTH, "max_length": 32, "num_mel_bins": 16}, parts=("ASTModel",)),
    Architecture("Wav2Vec2ForPreTraining", {**SPEECH, "codevector_dim": 64, "proj_codevector_dim": 64}),
    # Several kinds of input, with towers.
    Architecture("CLIPModel", TOWERS, parts=("CLIPTextModel", "CLIPVisionModel", "CLIPVisionModelWithProjection")),
    Architecture("SiglipModel", TOWERS, parts=("SiglipTextModel", "SiglipVisionModel")),
    Architecture("LlavaForConditionalGeneration", _seen("llama", "clip_vision_model", image_token_id=98)),
    Architecture(
        "PaliGemmaForConditionalGeneration", _seen("gemma", "siglip_vision_model", image_token_id=98, projection_dim=64)
    ),
    Architecture("Gemma3ForConditionalGeneration", _seen("gemma3_text", "siglip_vision_model", mm_tokens_per_image=4)),
]


def dense_parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns parameters and buffers by their names, blobs decoded."""
    from transfuse.torch._experts import TransfuseExperts
    from transfuse.torch._modules import CompressedModule

    tensors = dict(model.state_dict())
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, CompressedModule):
            tensors[f"{path}.weight"] = module.decode_weight()
        elif isinstance(module, TransfuseExperts):
            for name in module._state_names():
                del tensors[f"{path}.{name}"]
            tensors.update((f"{path}.{name}", weight) for name, weight in module.decode_weights().items())
    return tensors


def find_differences(model: nn.Module, source: nn.Module) -> list[str]:
    """Returns names that one of two models lacks, or whose values differ, and ties that one of them has alone."""
    ours, theirs = dense_parameters(model), dense_parameters(source)
    found = sorted(ours.keys() ^ theirs.keys())
    for name in ours.keys() & theirs.keys():
        one, other = ours[name].cpu(), theirs[name].cpu()
        # Weights that stay compressed are BF16, also where a model is kept in F32: the values are the same.
        if one.shape != other.shape or not torch.equal(one.to(other.dtype), other):
            found.append(name)
    return found + [f"tie of {name}" for name in sorted(find_ties(model) ^ find_ties(source))]


def find_ties(model: nn.Module) -> set[str]:
    """Returns, for parameters that have several names, all of these in one string."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {" = ".join(sorted(group)) for group in names.values() if len(group) > 1}


def load_both(
    source: Path, compressed: Path, load: Callable[..., Any], **options: Any
) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """Returns the models that a class gives of a source and of what was made of it, and the framework's reports."""
    loaded = []
    for path in (compressed, source):
        torch.manual_seed(7)  # for heads that are drawn
        loaded.append(load(path, output_loading_info=True, **options))
    (model, report), (plain, expected) = loaded
    return model, plain, report, expected


def make_inputs(model: Any) -> dict[str, torch.Tensor]:
    """Returns inputs of the kind that a model takes first."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 31, (2, 9), generator=generator)
    kind = model.main_input_name
    if kind == "pixel_values":
        return {kind: torch.randn(2, 3, 32, 32, generator=generator).to(model.dtype)}
    if kind == "input_values":
        shape = (2, 32, 16) if type(model).__name__.startswith("AST") else (2, 400)
        return {kind: torch.randn(*shape, generator=generator).to(model.dtype)}
    if kind == "input_features":
        return {kind: torch.randn(2, 8, 600, generator=generator).to(model.dtype), "decoder_input_ids": ids}
    inputs = {kind: ids}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    if type(model).__name__ in ("CLIPModel", "SiglipModel"):
        inputs["pixel_values"] = torch.randn(2, 3, 32, 32, generator=generator).to(model.dtype)
    return inputs


def run(model: Any) -> torch.Tensor:
    """Returns what a model makes of such inputs first: logits, or the last hidden states."""
    with torch.no_grad():
        output: torch.Tensor = model(**make_inputs(model))[0]
    return output


def count_compressed(model: nn.Module) -> int:
    """Returns how many parameters are buffers of layers."""
    return sum(parameter.dtype == torch.uint8 for parameter in model.parameters())
