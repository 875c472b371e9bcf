# SPDX-License-Identifier: Apache-2.0
"""Trains a LoRA adapter on a compressed model, with PEFT.

Usage: lora.py COMPRESSED TEXT ADAPTER [--steps N] [--batch N] [--length N] [--rank N] [--rate R] [--device cuda]

COMPRESSED is a model that `transfuse compress` has made, TEXT a file to learn from, and ADAPTER the folder for the
adapter, which PEFT loads again on the compressed model or on the model that it was made from. The compressed weights
stay as they are and take no memory for gradients. The adapter cannot be merged into them. Needs torch, transformers,
accelerate, peft and transfuse.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("compressed", type=Path, help="a model that transfuse has compressed")
    parser.add_argument("text", type=Path, help="the file to learn from")
    parser.add_argument("adapter", type=Path, help="the folder that the adapter is written to")
    parser.add_argument("--steps", type=int, default=100, help="of the optimizer")
    parser.add_argument("--batch", type=int, default=4, help="pieces of the text in each step")
    parser.add_argument("--length", type=int, default=512, help="tokens of each piece of the text")
    parser.add_argument("--rank", type=int, default=16, help="of the adapter's matrices")
    parser.add_argument("--rate", type=float, default=2e-4, help="the learning rate")
    parser.add_argument("--device", help="such as cuda or cpu; a GPU where there is one")
    options = parser.parse_args()

    import torch
    import transfuse  # noqa: F401  (makes transformers know compressed models)
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = AutoTokenizer.from_pretrained(options.compressed)
    tokens = tokenizer(options.text.read_text(), return_tensors="pt")["input_ids"][0].to(device)
    if len(tokens) <= options.length:
        parser.error(f"{options.text} has {len(tokens)} tokens, and --length {options.length} needs more")

    base = AutoModelForCausalLM.from_pretrained(options.compressed, device_map=device)
    config = LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear")
    model = get_peft_model(base, config).train()
    model.print_trainable_parameters()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=options.rate)
    window = torch.arange(options.length, device=device)

    for step in range(options.steps):
        begins = torch.randint(0, len(tokens) - options.length, (options.batch, 1), device=device)
        batch = tokens[begins + window]
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step == options.steps - 1:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    model.save_pretrained(options.adapter)
    print(f"the adapter is in {options.adapter}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
