# SPDX-License-Identifier: Apache-2.0
"""Trains a small causal model of bytes on the text of this repository, for tests that need a model's greedy text.

Usage: train_byte_model.py FOLDER [--seconds 120] [--device cuda]

FOLDER becomes a BF16 checkpoint of about 10 million weights, with prompts.json: 64 prompts of 64 bytes of that text.
Needs torch and transformers. It stops by the clock, so the model differs each time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "base",
    "decoder_cpu",
    "decoder_gpu",
    "docs",
    "encoder",
    "format",
    "fused",
    "include",
    "loader",
    "packing",
    "runtime",
)
SUFFIXES = (".c", ".cu", ".cuh", ".h", ".md")
LENGTH, PROMPTS, PROMPT_BYTES = 512, 64, 64


def read_text() -> bytes:
    """Returns the repository's sources and pages, one after the other."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    return b"\n".join(path.read_bytes() for path in paths if path.is_file())


def make_model() -> LlamaForCausalLM:
    """Returns the model before training, its weights F32."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def train(model: LlamaForCausalLM, text: torch.Tensor, seconds: float, batch: int) -> tuple[int, float]:
    """Trains for so many seconds; returns the steps, and the last steps' loss in bits a byte."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.05)
    autocast = torch.autocast("cuda", torch.bfloat16) if text.is_cuda else contextlib.nullcontext()
    window = torch.arange(LENGTH, device=text.device)
    start, steps, bits = time.monotonic(), 0, 8.0
    while (spent := (time.monotonic() - start) / seconds) < 1:
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1, (steps + 1) / 100, 0.02 + 0.98 * math.cos(spent * math.pi / 2))
        places = torch.randint(0, len(text) - LENGTH, (batch, 1), device=text.device)
        tokens = text[places + window].long()
        with autocast:
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if steps % 50 == 0 or spent > 0.98:
            bits += 0.2 * (float(loss.detach()) / math.log(2) - bits) if steps else 0.0
        steps += 1
    return steps, bits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    torch.manual_seed(22)
    data = bytearray(read_text())
    text = torch.frombuffer(data, dtype=torch.uint8).to(options.device)
    model = make_model().to(options.device)
    steps, bits = train(model, text, options.seconds, options.batch)
    model.to(torch.bfloat16).save_pretrained(options.folder)
    stride = len(data) // PROMPTS
    prompts = [list(data[at * stride : at * stride + PROMPT_BYTES]) for at in range(PROMPTS)]
    (options.folder / "prompts.json").write_text(json.dumps(prompts))
    weights = sum(parameter.numel() for parameter in model.parameters())
    print(f"{weights} weights, {len(data)} bytes of text, {steps} steps, {bits:.2f} bits a byte", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
