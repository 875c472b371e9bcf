# SPDX-License-Identifier: Apache-2.0
"""Compares the speed and memory of a compressed model with those of the model that it was made from.

Usage: tokens_per_second.py COMPRESSED SOURCE [--batch N] [--tokens N] [--rounds N] [--device cuda]

Both are folders. Both models are loaded, so that the device has to have room for them together, and take turns:
greedy text by transformers' generate with a static cache, for which it compiles the model and uses CUDA graphs on a
GPU; the first round, which compiles, is not counted. Needs torch, transformers, accelerate and transfuse.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def time_generate(model: PreTrainedModel, prompt: torch.Tensor, length: int, room: int) -> float:
    """Returns the seconds for `length` tokens after the prompt; the cache has room for `room` tokens."""
    import torch

    start = time.perf_counter()
    model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        min_new_tokens=length,
        max_new_tokens=length,
        do_sample=False,
        pad_token_id=0,
        cache_implementation="static",
        max_cache_len=room,
    )
    if prompt.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def count_bytes(model: PreTrainedModel) -> int:
    """Returns the bytes of a model's parameters; tied ones count once."""
    return sum(parameter.nbytes for parameter in model.parameters())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("compressed", type=Path, help="a model that transfuse has compressed")
    parser.add_argument("source", type=Path, help="the model that it was made from")
    parser.add_argument("--batch", type=int, default=1, help="texts at a time")
    parser.add_argument("--tokens", type=int, default=64, help="that are written in each round")
    parser.add_argument("--rounds", type=int, default=5, help="whose median counts")
    parser.add_argument("--device", help="such as cuda or cpu; a GPU where there is one")
    options = parser.parse_args()
    if options.tokens < 2:
        parser.error("--tokens must be at least 2")

    import torch
    import transfuse  # noqa: F401  (makes transformers know compressed models)
    from transformers import AutoModelForCausalLM

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    folders = {"source": options.source, "compressed": options.compressed}
    models = {
        name: AutoModelForCausalLM.from_pretrained(folder, dtype="auto", device_map=device).eval()
        for name, folder in folders.items()
    }
    vocabulary = models["source"].config.get_text_config().vocab_size
    prompt = torch.randint(0, vocabulary, (options.batch, 64), device=device)
    room = prompt.shape[1] + options.tokens

    # The time of a short text is taken off: that of the prompt, and of what generate does once.
    short = options.tokens // 2
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for round_number in range(options.rounds + 1):
        for name, model in models.items():
            spent = time_generate(model, prompt, options.tokens, room) - time_generate(model, prompt, short, room)
            if round_number > 0:
                seconds[name].append(spent)
    rates = {}
    for name, model in models.items():
        rates[name] = options.batch * (options.tokens - short) / statistics.median(seconds[name])
        print(f"{name:<10} {rates[name]:9.1f} tokens/s  {count_bytes(model) / 1e9:8.3f} GB of parameters")
    print(f"compressed is {rates['compressed'] / rates['source']:.2f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
