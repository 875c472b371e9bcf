# SPDX-License-Identifier: Apache-2.0
"""Writes a made-up language model as a Hugging Face folder, which transformers loads: a small Llama with a tokenizer.

The weights are random, so what the model writes is nonsense. They have the spread of trained ones (a standard deviation
of its own for each row, a few outliers, some exact zeros), in BF16, and the output layer is tied to the embedding. The
same arguments always give the same bytes. Needs NumPy and ml_dtypes, and neither PyTorch nor transformers.

Usage: make_sample_checkpoint.py [--small] FOLDER      65 MB, with --small 2 MB
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

SMALL = {"vocab": 512, "hidden": 256, "kv": 64, "mlp": 768, "layers": 1}
LARGE = {"vocab": 8192, "hidden": 1024, "kv": 256, "mlp": 3072, "layers": 2}
HEAD = 64
POSITIONS = 2048
BEGIN, END = "<s>", "</s>"
# The most frequent letters of English first.
LETTERS = "etaoinshrdlucmfwypvbgkqjxz"


# ---- weights ----


def make_weights(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    import ml_dtypes
    import numpy as np

    row_sigma = 0.02 * np.exp(0.3 * rng.standard_normal((rows, 1), dtype=np.float32))
    weights = row_sigma * rng.standard_normal((rows, cols), dtype=np.float32)
    places = rng.integers(0, weights.size, weights.size // 10000)
    weights.flat[places[::2]] *= 40
    weights.flat[places[1::2]] = 0
    return weights.astype(ml_dtypes.bfloat16)


def make_tensors(vocab: int, hidden: int, kv: int, mlp: int, layers: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors that transformers' LlamaForCausalLM has, by the names that it gives them."""
    import ml_dtypes
    import numpy as np

    rng = np.random.default_rng(20240229)

    def norm() -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(hidden)).astype(ml_dtypes.bfloat16)

    yield "model.embed_tokens.weight", make_weights(rng, vocab, hidden)
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
            yield f"{layer}.{name}.weight", make_weights(rng, rows, cols)
        yield f"{layer}.input_layernorm.weight", norm()
        yield f"{layer}.post_attention_layernorm.weight", norm()
    yield "model.norm.weight", norm()


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": "BF16",
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


# ---- what stands beside them ----


def make_config(vocab: int, hidden: int, kv: int, mlp: int, layers: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // HEAD,
        "num_key_value_heads": kv // HEAD,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "bfloat16",
    }


def byte_letters() -> list[str]:
    """Returns the letter that stands for each byte in byte-level BPE: itself if it can be printed, else one from U+0100
    on."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printed else chr(next(others)) for byte in range(256)]


def make_tokenizer(vocab: int) -> dict[str, object]:
    """Returns tokenizer.json: byte-level BPE whose tokens are two special ones, the bytes, and two and three letters.

    Every text is made of such tokens, and every id is one.
    """
    letters = byte_letters()
    pairs = [(first, second) for first, second in product([letters[ord(" ")], *LETTERS], LETTERS)]
    triples = ((first + second, third) for (first, second), third in product(pairs, LETTERS))
    single = [BEGIN, END, *letters]
    merges = [*pairs, *islice(triples, vocab)][: vocab - len(single)]
    tokens = [*single, *(first + second for first, second in merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": at, "content": token, **special} for at, token in enumerate((BEGIN, END))],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: at for at, token in enumerate(tokens)},
            "merges": [list(merge) for merge in merges],
        },
    }


def make_texts(sizes: dict[str, int]) -> dict[str, str]:
    """Returns the files beside the weights, and what is in them."""
    files = {
        "config.json": make_config(**sizes),
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": END,
            "pad_token": END,
            "model_max_length": POSITIONS,
            "clean_up_tokenization_spaces": False,
        },
    }
    texts = {name: json.dumps(value, indent=2) + "\n" for name, value in files.items()}
    texts["tokenizer.json"] = json.dumps(make_tokenizer(sizes["vocab"]), ensure_ascii=False) + "\n"
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="2 MB instead of 65 MB")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()

    sizes = SMALL if args.small else LARGE
    texts = make_texts(sizes)
    old = args.folder / "config.json"
    if args.folder.is_dir() and any(args.folder.iterdir()):
        if not (old.is_file() and old.read_text(encoding="utf-8") == texts["config.json"]):
            raise SystemExit(f"{args.folder}: exists already, and is no such sample")

    args.folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (args.folder / name).write_text(text, encoding="utf-8")
    # Under its final name only when whole: an interrupted run must not leave half a checkpoint to be taken for one.
    unfinished = args.folder / "model.safetensors.part"
    write_safetensors(unfinished, dict(make_tensors(**sizes)))
    unfinished.rename(args.folder / "model.safetensors")


if __name__ == "__main__":
    main()
