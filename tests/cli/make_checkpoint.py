# SPDX-License-Identifier: Apache-2.0
"""Makes the checkpoints of the command line tests, with numpy alone. The same arguments give the same bytes.

Usage: make_checkpoint.py NAME PATH
  mixed     a file with a tensor of every type that has a codec, an embedding, experts, biases, odd shapes and names
  several_files   a folder with an index, two files, a config and a subfolder
  large     a file with one BF16 matrix of 128 MiB
  float     a file with F32 matrices
  was_fp8   a folder with two files of BF16 that was FP8, with scales of every granularity, and others
  fp8_block, fp8_channel, fp8_tensor, fp8_row   folders of FP8 with scales, as those of DeepSeek and Qwen, of
            compressed-tensors, modelopt and fbgemm are: two files, with weights and their scales in different ones
  hostile   a file whose tensor name holds terminal escape sequences
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np


def bf16(values):
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def fp8(values, mantissa_bits):
    """F16 cut to eight bits: E5M2 exactly, and a plausible spread of E4M3 codes (never its NaN)."""
    high = np.asarray(values, np.float16).view(np.uint16)
    if mantissa_bits == 2:
        return (high >> 8).astype(np.uint8)
    magnitude = np.minimum((high & 0x7FFF) >> 7, 0x7E)
    return (high >> 8 & 0x80 | magnitude).astype(np.uint8)


def normal(rng, *shape):
    return 0.02 * rng.standard_normal(shape, dtype=np.float32)


def mixed():
    rng = np.random.default_rng(1)
    special = bf16(normal(rng, 300, 500))
    special.flat[::997] = [0x7F80, 0xFF80, 0x7FC1, 0x0000, 0x8000, 0x0001, 0x8001] * 21 + [0xFFFF] * 4
    return {
        "model.embed_tokens.weight": ("BF16", bf16(normal(rng, 128, 64))),
        "layers.0.q_proj.weight": ("BF16", special),
        "layers.0.k_proj.weight": ("F16", normal(rng, 257, 96).astype(np.float16)),
        "layers.0.v_proj.weight": ("F8_E4M3", fp8(normal(rng, 256, 272), 3)),
        "layers.0.o_proj.weight": ("F8_E5M2", fp8(normal(rng, 100, 300), 2)),
        "layers.0.codes.weight": (
            "I8",
            np.clip(np.rint(30 * rng.standard_normal((192, 320))), -127, 127).astype(np.int8),
        ),
        "layers.0.experts.up_proj": ("BF16", bf16(normal(rng, 3, 96, 160))),
        "layers.0.norm.weight": ("BF16", bf16(1 + normal(rng, 64))),
        "layers.0.float.weight": ("F32", normal(rng, 64, 96)),
        "layers.0.thin.weight": ("BF16", bf16(normal(rng, 1, 7))),
        'odd "name" \\ é.weight': ("BF16", bf16(normal(rng, 65, 99))),
        "empty": ("BF16", np.empty((0, 16), np.uint16)),
        "scalar": ("I64", np.array(7, np.int64)),
        "mask": ("BOOL", np.array([True, False, True])),
    }


def floats():
    rng = np.random.default_rng(2)
    row_sigma = np.exp(0.5 * rng.standard_normal((512, 1), dtype=np.float32))
    return {
        "a.weight": ("F32", row_sigma * normal(rng, 512, 1024)),
        "b.weight": ("F32", normal(rng, 640, 768)),
        "a.bias": ("F32", normal(rng, 512)),
    }


def dequantized(rng, rows, cols, region_rows, region_cols):
    """BF16 that was FP8 E4M3 with an F32 scale for each region of so many rows and columns."""
    weights = normal(rng, rows, cols)
    codes = np.arange(0x7F)
    exponent, mantissa = codes >> 3, codes & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10)).astype(np.float32)
    middles = (values[1:] + values[:-1]) / 2
    for row in range(0, rows, region_rows):
        for col in range(0, cols, region_cols):
            region = weights[row : row + region_rows, col : col + region_cols]
            scale = np.abs(region).max() / np.float32(448)
            products = values[np.searchsorted(middles, np.abs(region) / scale)] * scale
            region[:] = np.copysign(products, region)
    bits = weights.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def was_fp8():
    rng = np.random.default_rng(5)
    spoilt = dequantized(rng, 256, 384, 128, 128)
    spoilt.flat[::1999] = 0x7FC1
    spoilt.flat[7::1999] ^= 1
    return {
        "model.embed_tokens.weight": ("BF16", dequantized(rng, 128, 64, 128, 64)),
        "layers.0.block.weight": ("BF16", dequantized(rng, 300, 515, 128, 128)),
        "layers.0.spoilt.weight": ("BF16", spoilt),
        "layers.0.row.weight": ("BF16", dequantized(rng, 129, 700, 1, 700)),
        "layers.0.tensor.weight": ("BF16", dequantized(rng, 96, 200, 96, 200)),
        "layers.0.true.weight": ("BF16", bf16(normal(rng, 200, 300))),
        "layers.0.experts.up_proj": (
            "BF16",
            np.stack([dequantized(rng, 256, 256, 128, 128), bf16(normal(rng, 256, 256))]),
        ),
        "layers.0.experts.down_proj": (
            "BF16",
            np.stack([dequantized(rng, 256, 256, 128, 128), dequantized(rng, 256, 256, 1, 256)]),
        ),
        "layers.0.half.weight": ("F16", normal(rng, 64, 96).astype(np.float16)),
    }


def codes(rng, *shape):
    """E4M3 as it is in FP8 checkpoints, with all 256 codes in the first row, NaNs among them."""
    drawn = fp8(100 * rng.standard_normal(shape, dtype=np.float32), 3)
    drawn.reshape(-1, shape[-1])[0, :256] = np.arange(256)
    return drawn


def scales(rng, dtype, *shape):
    drawn = (1e-3 * np.exp(rng.standard_normal(shape))).astype(np.float32)
    return dtype, {"BF16": bf16, "F16": lambda values: values.astype(np.float16), "F32": np.asarray}[dtype](drawn)


_COMPRESSED_TENSORS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
        }
    },
}
_FP8_CONFIGS = {
    "fp8_block": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    "fp8_channel": _COMPRESSED_TENSORS,
    "fp8_tensor": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
    "fp8_row": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
}


def fp8_model(name):
    """The tensors of a model of FP8 with scales: small and ragged ones, experts apart and in one tensor."""
    rng = np.random.default_rng(6)
    shapes = {"q_proj": (256, 384), "k_proj": (16, 272), "v_proj": (300, 515), "small": (8, 256)}
    shapes |= {f"mlp.experts.{expert}.up_proj": (160, 256) for expert in range(3)}
    tensors = {
        "model.embed_tokens.weight": ("BF16", bf16(normal(rng, 128, 64))),
        "model.norm.weight": ("BF16", bf16(1 + normal(rng, 64))),
        "model.true.weight": ("BF16", bf16(normal(rng, 200, 300))),
    }
    weights = {f"model.layers.0.{module}.weight": shape for module, shape in shapes.items()}
    weights["model.layers.0.experts.down_proj"] = (3, 96, 256)
    for weight, shape in weights.items():
        *experts, rows, cols = shape
        tensors[weight] = "F8_E4M3", codes(rng, *shape)
        if name == "fp8_block":
            blocks = -(-rows // 128), -(-cols // 128)
            dtype = "BF16" if "q_proj" in weight else "F32"
            tensors[f"{weight}_scale_inv"] = scales(rng, dtype, *experts, *blocks)
        elif name == "fp8_tensor":
            tensors[f"{weight}_scale"] = scales(rng, "F32", *experts)
            tensors[f"{weight.removesuffix('.weight')}.input_scale"] = scales(rng, "F32")
        else:
            dtype = "F16" if "q_proj" in weight else "BF16" if name == "fp8_channel" else "F32"
            shape = (*experts, rows) if "v_proj" in weight else (*experts, rows, 1)
            tensors[f"{weight}_scale"] = scales(rng, dtype, *shape)
    if name == "fp8_tensor":
        tensors["model.layers.0.self_attn.k_scale"] = scales(rng, "F32", 1)
    return tensors


def write_fp8(folder, name):
    write_several_files(folder, fp8_model(name))
    config = {"model_type": "test", "torch_dtype": "bfloat16", "quantization_config": _FP8_CONFIGS[name]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if name == "fp8_tensor":
        told = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
        (folder / "hf_quant_config.json").write_text(json.dumps(told) + "\n")


def large():
    rng = np.random.default_rng(3)
    words = bf16(normal(rng, 1024, 8192))
    return {"big.weight": ("BF16", np.tile(words, (8, 1)))}


def many():
    """Equal matrices, each of which takes a moment to encode."""
    words = bf16(normal(np.random.default_rng(5), 512, 4096))
    return {f"layer.{number}.weight": ("BF16", words) for number in range(16)}


def hostile():
    return {"a\x1b[2Jb\rc.weight": ("BF16", bf16(normal(np.random.default_rng(4), 32, 32)))}


_METADATA = {"format": "pt"}


def write(path, tensors, metadata=_METADATA):
    # The canonical layout: by falling alignment, then by name; no gaps; a header padded with spaces.
    sizes = {"I64": 8, "F32": 4, "BF16": 2, "F16": 2}
    names = sorted(tensors, key=lambda name: (-sizes.get(tensors[name][0], 1), name))
    header, offset = {"__metadata__": metadata} if metadata else {}, 0
    for name in names:
        dtype, array = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            file.write(tensors[name][1].tobytes())


def write_several_files(folder, tensors):
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    folder.mkdir(parents=True)
    for file_name, members in files.items():
        write(folder / file_name, {name: tensors[name] for name in members})
    index = {
        "metadata": {"total_size": sum(array.nbytes for _, array in tensors.values())},
        "weight_map": {name: file_name for file_name, members in files.items() for name in members},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    (folder / "config.json").write_text('{"model_type": "test"}\n')
    (folder / "extra").mkdir()
    (folder / "extra" / "notes.txt").write_text("kept as it is\n")


def main():
    name, path = sys.argv[1], Path(sys.argv[2])
    if name == "several_files":
        write_several_files(path, mixed())
    elif name == "was_fp8":
        write_several_files(path, was_fp8())
    elif name in _FP8_CONFIGS:
        write_fp8(path, name)
    else:
        write(path, {"mixed": mixed, "large": large, "many": many, "float": floats, "hostile": hostile}[name]())


if __name__ == "__main__":
    main()
