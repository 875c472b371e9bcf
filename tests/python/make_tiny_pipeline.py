# SPDX-License-Identifier: Apache-2.0
"""Writes a pipeline of diffusers with all the parts that Flux has, each as small as it may be, and random weights.

Usage: make_tiny_pipeline.py MODEL FOLDER      MODEL: a model of transformers, whose tokenizer the pipeline gets
"""

from __future__ import annotations

import sys

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import AutoTokenizer, CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel


def main() -> None:
    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], model_max_length=77)
    clip = CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1
    )
    t5 = T5Config(vocab_size=len(tokenizer), d_model=64, d_kv=64, d_ff=64, num_layers=1, num_heads=1)
    transformer = FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=64,
        num_attention_heads=2,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        axes_dims_rope=(16, 24, 24),
    )
    FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=AutoencoderKL(block_out_channels=(32,), latent_channels=4, norm_num_groups=8),
        text_encoder=CLIPTextModel(clip),
        tokenizer=tokenizer,
        text_encoder_2=T5EncoderModel(t5),
        tokenizer_2=tokenizer,
        transformer=transformer.to(torch.bfloat16),
    ).save_pretrained(sys.argv[2])


if __name__ == "__main__":
    main()
