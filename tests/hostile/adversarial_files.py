# SPDX-License-Identifier: Apache-2.0
"""The sound files that adversarial_cases.py spoils, and how such files are put together."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROWS, COLS = 64, 96
NAME = "model.safetensors"
INDEX = NAME + ".index.json"


@dataclass
class Case:
    """Files that are made in a folder "in" of an empty room, and what calls make of them.

    calls: lines for adversarial_driver.c with spaces between the words, and the status of each. made: what is in the
    folder "out" afterwards. same: pairs of files that are equal then. words: texts that stand in each message.
    also_command: whether the command is run as well. python: functions of the package, and the exception of each.
    """

    name: str
    make: Callable[[Path], None]
    calls: dict[str, str]
    made: list[str] = field(default_factory=list)
    same: list[tuple[str, str]] = field(default_factory=list)
    words: tuple[str, ...] = ()


def weights(rows: int = ROWS, cols: int = COLS) -> bytes:
    """Returns BF16 weights with few exponents."""
    k = np.arange(rows * cols, dtype=np.uint32) * np.uint32(0x9E3779B1)
    return (k >> 16 & 0x807F | (112 + (k >> 12) % 9) << 7).astype("<u2").tobytes()


def codes(rows: int = ROWS, cols: int = COLS) -> bytes:
    """Returns FP8 E4M3 weights with few exponents."""
    k = np.arange(rows * cols, dtype=np.uint32) * np.uint32(0x9E3779B1)
    return (k >> 16 & 0x87 | (3 + (k >> 11) % 5) << 3).astype("u1").tobytes()


def text_of(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()


def safetensors(header: Any, data: bytes = b"", size: int | None = None) -> bytes:
    """Returns a file with a header (JSON, or its text), and the size that the first eight bytes promise."""
    text = text_of(header)
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def tensor(dtype: Any = "U8", shape: Any = (4,), begin: Any = 0, end: Any = 4) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def source_header(**more: Any) -> dict[str, Any]:
    return {"a.weight": tensor("BF16", [ROWS, COLS], 0, 12288), "a.bias": tensor("F16", [16], 12288, 12320), **more}


def source_file(name: str = "a.weight") -> bytes:
    header = source_header()
    return safetensors({name: header["a.weight"], "a.bias": header["a.bias"]}, weights() + bytes(32))


def fp8_file(rows: int = ROWS, cols: int = COLS, scale: Any = None) -> bytes:
    size = rows * cols
    header = {"b.weight": tensor("F8_E4M3", [rows, cols], 0, size),
              "b.weight_scale": scale or tensor("F32", [1], size, size + 4)}  # fmt: skip
    return safetensors(header, codes(rows, cols) + struct.pack("<f", 2**-9))


def experts_file() -> bytes:
    header = {"e.weight": tensor("BF16", [3, ROWS, COLS], 0, 36864)}
    return safetensors(header, weights(3 * ROWS))


def split(file: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns a file's header and its data."""
    size = int.from_bytes(file[:8], "little")
    return json.loads(file[8 : 8 + size]), file[8 + size :]


CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 96, "num_hidden_layers": 1,
          "num_attention_heads": 4, "num_key_value_heads": 2, "dtype": "bfloat16"}  # fmt: skip
FP8_CONFIG = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def index_of(names: dict[str, Any]) -> bytes:
    return text_of({"metadata": {"total_size": 12320}, "weight_map": names})


@dataclass
class Bases:
    """Sound files that the library has made."""

    compressed: bytes  # of source_file()
    experts: bytes  # of experts_file()
    fp8: dict[str, bytes]  # a folder, of fp8_file()
    folder: dict[str, bytes]  # a folder with an index and a config.json
    layer: bytes  # a .trf file
    buffers: dict[str, bytes]  # of layers, by layout


def write_folder(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def read_folder(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def source_folder(**more: bytes) -> dict[str, bytes]:
    names = dict.fromkeys(source_header(), NAME)
    return {NAME: source_file(), INDEX: index_of(names), "config.json": text_of(CONFIG), **more}


def make_bases(room: Path, call: Callable[..., str]) -> Bases:
    """Makes the bases in a room. call: makes a call of the library, and returns its status."""

    def make(*words: str) -> None:
        status = call(*words)
        assert status == "TRF_OK", (words, status)

    folder = room / "in"
    write_folder(folder / "folder", source_folder())
    fp8_config = {**CONFIG, "quantization_config": FP8_CONFIG}
    write_folder(folder / "fp8", {NAME: fp8_file(), "config.json": text_of(fp8_config)})
    (folder / "experts.safetensors").write_bytes(experts_file())
    (folder / "e4m3.safetensors").write_bytes(
        safetensors({"w.weight": tensor("F8_E4M3", [128, 256], 0, 32768)}, codes(128, 256))
    )
    for name in ("folder", "fp8", "experts.safetensors", "e4m3.safetensors"):
        make("compress", f"in/{name}", f"out/{name}")
    make("extract", "out/folder", "a.weight", "out/a.trf")
    make("extract", "out/e4m3.safetensors", "w.weight", "out/e4m3.trf")
    buffers = {}
    for layout, source in (("plain", "a"), ("packed", "a"), ("packed8", "e4m3")):
        make("save_buffer", f"out/{source}.trf", layout, f"out/{layout}")
        buffers[layout] = (room / "out" / layout).read_bytes()
    compressed = read_folder(room / "out/folder")
    return Bases(
        compressed[NAME], (room / "out/experts.safetensors").read_bytes(), read_folder(room / "out/fp8"), compressed,
        (room / "out/a.trf").read_bytes(), buffers,
    )  # fmt: skip
