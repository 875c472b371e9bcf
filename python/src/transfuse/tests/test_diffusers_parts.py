# SPDX-License-Identifier: Apache-2.0
"""The parts of pipelines of diffusers, small and with random weights: compressed, they load as their sources do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("diffusers", reason="diffusers is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import diffusers
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import transfuse
from transfuse.tests.architectures import count_compressed, find_differences

HEADS = {"num_attention_heads": 4, "attention_head_dim": 16}
VAE = {
    "block_out_channels": (32, 192),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "latent_channels": 4,
}
UNET = {
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "sample_size": 16,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "cross_attention_dim": 64,
}
# The pipelines, and the classes and sizes of their parts.
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Flux": (
        "FluxTransformer2DModel",
        {"in_channels": 4, "num_layers": 1, "num_single_layers": 1, "joint_attention_dim": 32,
         "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8), "guidance_embeds": True, **HEADS},
    ),
    "StableDiffusion3": (
        "SD3Transformer2DModel",
        {"sample_size": 16, "patch_size": 1, "in_channels": 4, "num_layers": 1, "joint_attention_dim": 32,
         "caption_projection_dim": 64, "pooled_projection_dim": 64, "out_channels": 4, **HEADS},
    ),
    "StableDiffusion": ("UNet2DConditionModel", UNET),
    "StableDiffusionXL": (
        "UNet2DConditionModel",
        {**UNET, "addition_embed_type": "text_time", "addition_time_embed_dim": 8, "use_linear_projection": True,
         "transformer_layers_per_block": (1, 2), "projection_class_embeddings_input_dim": 80},
    ),
    "AutoencoderKL": ("AutoencoderKL", VAE),
    "Wan": (
        "WanTransformer3DModel",
        {"in_channels": 4, "out_channels": 4, "text_dim": 16, "freq_dim": 256, "ffn_dim": 64, "num_layers": 1,
         "rope_max_seq_len": 32, **HEADS},
    ),
    "HunyuanVideo": (
        "HunyuanVideoTransformer3DModel",
        {"in_channels": 4, "out_channels": 4, "num_layers": 1, "num_single_layers": 1, "num_refiner_layers": 1,
         "text_embed_dim": 32, "pooled_projection_dim": 32, "rope_axes_dim": (4, 4, 8), **HEADS},
    ),
    "LTX": (
        "LTXVideoTransformer3DModel",
        {"in_channels": 8, "out_channels": 8, "cross_attention_dim": 64, "num_layers": 1, "caption_channels": 32,
         **HEADS},
    ),
    "CogVideoX": (
        "CogVideoXTransformer3DModel",
        {"in_channels": 4, "out_channels": 4, "time_embed_dim": 32, "text_embed_dim": 32, "num_layers": 1,
         "sample_width": 8, "sample_height": 8, "sample_frames": 8, "max_text_seq_length": 8, **HEADS},
    ),
    "Sana": (
        "SanaTransformer2DModel",
        {"in_channels": 4, "out_channels": 4, "num_layers": 1, "num_cross_attention_heads": 4,
         "cross_attention_head_dim": 16, "cross_attention_dim": 64, "caption_channels": 32, "sample_size": 16,
         **HEADS},
    ),
    "PixArtSigma": (
        "PixArtTransformer2DModel",
        {"sample_size": 8, "num_layers": 1, "in_channels": 4, "cross_attention_dim": 64, "out_channels": 8,
         "caption_channels": 32, "use_additional_conditions": False, **HEADS},
    ),
    "QwenImage": (
        "QwenImageTransformer2DModel",
        {"in_channels": 16, "out_channels": 4, "num_layers": 1, "joint_attention_dim": 32, "axes_dims_rope": (4, 4, 8),
         **HEADS},
    ),
    "AuraFlow": (
        "AuraFlowTransformer2DModel",
        {"sample_size": 8, "in_channels": 4, "num_mmdit_layers": 1, "num_single_dit_layers": 1,
         "joint_attention_dim": 32, "caption_projection_dim": 64, "out_channels": 4, "pos_embed_max_size": 64, **HEADS},
    ),
}  # fmt: skip


def make(name: str) -> Any:
    kind, sizes = PARTS[name]
    torch.manual_seed(2)
    model = getattr(diffusers, kind)(**sizes).to(torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or not parameter.any():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def load_both(source: Path, compressed: Path, **options: Any) -> tuple[Any, Any]:
    """Loads both, and compares parameters, and what the framework says of them."""
    kind = getattr(diffusers, json.loads((source / "config.json").read_text())["_class_name"])
    model, report = kind.from_pretrained(compressed, output_loading_info=True, **options)
    plain, expected = kind.from_pretrained(source, output_loading_info=True, **options)
    assert find_differences(model, plain) == [] and count_compressed(model) > 3
    assert {key: sorted(found) for key, found in report.items()} == {k: sorted(found) for k, found in expected.items()}
    assert model.dtype == plain.dtype
    return model, plain


@pytest.mark.parametrize("name", PARTS)
def test_parts(tmp_path: Path, name: str) -> None:
    make(name).save_pretrained(tmp_path / "source")
    report = transfuse.compress(tmp_path / "source", tmp_path / "trf")
    assert report.compressed_tensors > 3
    for options in ({"torch_dtype": torch.bfloat16}, dict[str, Any]()):
        load_both(tmp_path / "source", tmp_path / "trf", **options)


def test_shards(tmp_path: Path) -> None:
    make("Flux").save_pretrained(tmp_path / "source", max_shard_size="100KB")
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    assert len(list((tmp_path / "trf").glob("*.safetensors"))) > 1
    load_both(tmp_path / "source", tmp_path / "trf", torch_dtype=torch.bfloat16)


def test_time_steps_keep_their_dtype(tmp_path: Path) -> None:
    """Wan makes time steps the dtype of the first parameter of their embedding, which a buffer would make integers."""
    make("Wan").save_pretrained(tmp_path / "source")
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    model, plain = load_both(tmp_path / "source", tmp_path / "trf", torch_dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(1)
    inputs = {
        "hidden_states": torch.randn(1, 4, 2, 8, 8, generator=generator).to(torch.bfloat16),
        "encoder_hidden_states": torch.randn(1, 6, 16, generator=generator).to(torch.bfloat16),
        "timestep": torch.tensor([3.7]),
    }
    transfuse.set_exact(True)
    try:
        with torch.no_grad():
            assert torch.equal(model(**inputs).sample, plain(**inputs).sample)
    finally:
        transfuse.set_exact(False)


def test_old_names_of_attention(tmp_path: Path) -> None:
    """Files of the first diffusers have query, key and value, which the framework renames."""
    model = make("AutoencoderKL")
    model.save_pretrained(tmp_path / "source")
    file = tmp_path / "source" / "diffusion_pytorch_model.safetensors"
    names = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    tensors = {}
    for name, tensor in load_file(file).items():
        for new, old in names.items():
            name = name.replace(f"attentions.0.{new}.", f"attentions.0.{old}.")
        tensors[name] = tensor
    assert sum("query" in name for name in tensors) >= 2
    save_file(tensors, file, {"format": "pt"})
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    loaded, _ = load_both(tmp_path / "source", tmp_path / "trf", torch_dtype=torch.bfloat16)
    assert find_differences(loaded, model) == []


def test_surplus_and_missing_tensors(tmp_path: Path) -> None:
    make("Flux").save_pretrained(tmp_path / "source")
    file = tmp_path / "source" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    extra = {"old.weight": torch.randn(64, 64).to(torch.bfloat16), "old.bias": torch.ones(64)}
    save_file({**tensors, **extra}, file, {"format": "pt"})
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    load_both(tmp_path / "source", tmp_path / "trf", torch_dtype=torch.bfloat16)
    del tensors["proj_out.weight"]
    save_file(tensors, file, {"format": "pt"})
    transfuse.compress(tmp_path / "source", tmp_path / "less")
    with pytest.raises(ValueError, match=r"does not fit FluxTransformer2DModel; no file gives 'proj_out.weight'"):
        diffusers.FluxTransformer2DModel.from_pretrained(tmp_path / "less", torch_dtype=torch.bfloat16)


def test_other_ways_into_a_file(tmp_path: Path) -> None:
    """Without the marker, from a single file, or as an adapter: an exception each time."""
    make("Flux").save_pretrained(tmp_path / "source")
    transfuse.compress(tmp_path / "source", tmp_path / "trf")
    kind, file = diffusers.FluxTransformer2DModel, tmp_path / "trf" / "diffusion_pytorch_model.safetensors"
    words = "is compressed by transfuse, and .*diffusers.* cannot read it"
    with pytest.raises(transfuse.UnsupportedError, match=words):
        kind.from_single_file(str(file), config=str(tmp_path / "source"))
    pipeline = diffusers.FluxPipeline(None, None, None, None, None, None, make("Flux"))
    with pytest.raises(transfuse.UnsupportedError, match=words):
        pipeline.load_lora_weights(str(tmp_path / "trf"), weight_name=file.name)
    config = json.loads((tmp_path / "trf" / "config.json").read_text())
    for marker in (None, "drop", {**config["quantization_config"], "stored": True}):
        changed = {**config, "quantization_config": marker}
        if marker == "drop":
            del changed["quantization_config"]
        (tmp_path / "trf" / "config.json").write_text(json.dumps(changed))
        with pytest.raises(transfuse.UnsupportedError, match="transfuse decompress"):
            kind.from_pretrained(tmp_path / "trf")


def test_pipeline_root(tmp_path: Path) -> None:
    """A whole pipeline, one of whose models is of transformers."""
    torch.manual_seed(4)
    sizes = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 1, "num_attention_heads": 4}
    text = transformers.CLIPTextModel(transformers.CLIPTextConfig(vocab_size=99, projection_dim=32, **sizes))
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    root = tmp_path / "source"
    parts = scheduler, make("AutoencoderKL"), text.to(torch.bfloat16), None, None, None, make("Flux")
    diffusers.FluxPipeline(*parts).save_pretrained(root)
    compressed = tmp_path / "trf"
    folders = [path.parent.name for path in sorted(root.glob("*/*.safetensors"))]
    assert folders == ["text_encoder", "transformer", "vae"]
    assert transfuse.compress(root, compressed).models == len(folders)
    ours, theirs = (
        diffusers.DiffusionPipeline.from_pretrained(
            path, torch_dtype=torch.bfloat16, tokenizer=None, tokenizer_2=None, text_encoder_2=None
        )
        for path in (compressed, root)
    )
    for name in folders:
        model: nn.Module = getattr(ours, name)
        assert find_differences(model, getattr(theirs, name)) == [] and count_compressed(model) > 1
