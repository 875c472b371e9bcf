# SPDX-License-Identifier: Apache-2.0
"""Writes a made-up language model as a Hugging Face folder: config.json, tokenizer.json, model.safetensors.

The weights have the shapes of a small Llama, the spread of trained ones (a standard deviation of its own for each
row, a few outliers, some exact zeros), and mostly BF16, with one F16 and one INT8 tensor. The same arguments always
give the same bytes.

Usage: make_sample_checkpoint.py [--small] FOLDER      65 MB, with --small 2 MB
"""

import argparse
import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np

DTYPE_NAMES = {"bfloat16": "BF16", "float16": "F16", "int8": "I8"}


def make_weights(rng, rows, cols):
    row_sigma = 0.02 * np.exp(0.3 * rng.standard_normal((rows, 1), dtype=np.float32))
    weights = row_sigma * rng.standard_normal((rows, cols), dtype=np.float32)
    places = rng.integers(0, weights.size, weights.size // 10000)
    weights.flat[places[::2]] *= 40
    weights.flat[places[1::2]] = 0
    return weights


def make_tensors(vocab, hidden, kv, mlp, layers):
    rng = np.random.default_rng(20240229)
    bf16 = ml_dtypes.bfloat16

    def norm():
        return (1 + 0.1 * rng.standard_normal(hidden)).astype(bf16)

    yield "model.embed_tokens.weight", make_weights(rng, vocab, hidden).astype(bf16)
    for i in range(layers):
        layer = f"model.layers.{i}"
        for name, rows, cols in [
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", mlp, hidden),
            ("mlp.up_proj", mlp, hidden),
            ("mlp.down_proj", hidden, mlp),
        ]:
            yield f"{layer}.{name}.weight", make_weights(rng, rows, cols).astype(bf16)
        yield f"{layer}.input_layernorm.weight", norm()
        yield f"{layer}.post_attention_layernorm.weight", norm()
    yield "model.norm.weight", norm()
    yield "score.weight", make_weights(rng, hidden, hidden).astype(np.float16)
    codes = np.rint(30 * rng.standard_normal((hidden, hidden), dtype=np.float32))
    yield "adapter.weight", np.clip(codes, -127, 127).astype(np.int8)


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": DTYPE_NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(array.tobytes())


def main():
    parser = argparse.ArgumentParser(description="Writes a made-up language model as a Hugging Face folder.")
    parser.add_argument("--small", action="store_true", help="2 MB instead of 65 MB")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()

    if args.small:
        sizes = {"vocab": 512, "hidden": 256, "kv": 64, "mlp": 704, "layers": 1}
    else:
        sizes = {"vocab": 8192, "hidden": 1024, "kv": 256, "mlp": 2816, "layers": 2}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": sizes["vocab"],
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["mlp"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["hidden"] // 64,
        "num_key_value_heads": sizes["kv"] // 64,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    tokenizer = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}

    config_text = json.dumps(config, indent=2) + "\n"
    old = args.folder / "config.json"
    if args.folder.is_dir() and any(args.folder.iterdir()) and not (old.is_file() and old.read_text() == config_text):
        raise SystemExit(f"{args.folder}: exists already, and is no such sample")

    args.folder.mkdir(parents=True, exist_ok=True)
    old.write_text(config_text)
    (args.folder / "tokenizer.json").write_text(json.dumps(tokenizer) + "\n")
    # Under its final name only when whole: an interrupted run must not leave half a checkpoint to be taken for one.
    unfinished = args.folder / "model.safetensors.part"
    write_safetensors(unfinished, dict(make_tensors(**sizes)))
    unfinished.rename(args.folder / "model.safetensors")


if __name__ == "__main__":
    main()
