# SPDX-License-Identifier: Apache-2.0
"""Compresses a model of transformers and talks with it.

Usage: chat.py MODEL [--compressed FOLDER] [--prompt TEXT] [--device cuda] [--exact] [--tokens N]

MODEL is a local folder as the Hub has them: config.json, *.safetensors, a tokenizer. It is compressed to MODEL-trf (or
FOLDER) the first time, bit for bit; a folder that is compressed already is taken as it is. With --prompt one answer is
printed; without, each line of the standard input gets one. --exact computes what the uncompressed model would, bit for
bit, and is slow. Needs torch, transformers, accelerate and transfuse.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def is_compressed(folder: Path) -> bool:
    """Returns whether a model is one that transfuse has compressed."""
    config = json.loads((folder / "config.json").read_text())
    return config.get("quantization_config", {}).get("quant_method") == "transfuse"


def compress(source: Path, target: Path) -> None:
    """Compresses a model, embeddings included, and shows how far it is."""
    import transfuse

    def show(tensor: str, done: int, total: int) -> None:
        print(f"\rcompressing: {100 * done // max(total, 1):3} %", end="", file=sys.stderr)

    report = transfuse.compress(source, target, embeddings=True, progress=show)
    print(f"\r{source}: {report.source_bytes / 1e9:.2f} GB -> {report.output_bytes / 1e9:.2f} GB", file=sys.stderr)
    if report.warning:
        print(report.warning, file=sys.stderr)


def answer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, talk: list[dict[str, str]], max_new_tokens: int
) -> str:
    """Prints the model's answer to a talk while it comes, and returns it."""
    from transformers import TextStreamer

    if tokenizer.chat_template:
        inputs = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    else:  # a base model, which goes on with the text
        inputs = tokenizer("\n".join(turn["content"] for turn in talk), return_tensors="pt")
    inputs = {name: value.to(model.device) for name, value in inputs.items() if name != "token_type_ids"}
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    tokens = model.generate(**inputs, max_new_tokens=max_new_tokens, streamer=streamer)
    return tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a folder with config.json, *.safetensors and a tokenizer")
    parser.add_argument("--compressed", type=Path, help="where the compressed model is, or is to be")
    parser.add_argument("--prompt", help="what to answer; without it each line of the standard input")
    parser.add_argument("--device", help="such as cuda or cpu; a GPU where there is one")
    parser.add_argument("--exact", action="store_true", help="what the uncompressed model computes, bit for bit; slow")
    parser.add_argument("--tokens", type=int, default=512, help="the longest answer")
    options = parser.parse_args()

    import torch
    import transfuse.torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = options.model
    if not is_compressed(folder):
        folder = options.compressed or folder.with_name(folder.name + "-trf")
        if not folder.exists():
            compress(options.model, folder)
    transfuse.torch.set_exact(options.exact)
    # As with any other model: `import transfuse` is what makes transformers know compressed ones.
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = AutoModelForCausalLM.from_pretrained(folder, device_map=device)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    talk: list[dict[str, str]] = []
    for line in [options.prompt] if options.prompt else sys.stdin:
        talk.append({"role": "user", "content": line.rstrip("\n")})
        talk.append({"role": "assistant", "content": answer(model, tokenizer, talk, options.tokens)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
