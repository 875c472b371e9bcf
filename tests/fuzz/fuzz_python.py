#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mutates a small model's files and opens them by the Python package: each reader returns, or raises what it may.

    python3 tests/fuzz/fuzz_python.py --seconds 600 --seed 1 --findings FOLDER

It runs in an environment that has the package; torch and transformers are not needed. A child process does the work, so
that a crash or a hang (60 s) is a finding like any other. Each finding is the folder as it was, with a file why.txt.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

HANG_SECONDS = 60
WORDS = [b"null", b"NaN", b"1e999", b"-1", b"18446744073709551616", b"Infinity", b"[]", b"{}", b'"', b"\\ud800",
         b"\\u0000", b"\xef\xbb\xbf", b"[" * 3000, b'{"a":' * 3000, b'"transfuse_format"', b'"__metadata__"',
         b'"data_offsets"', b'"shape"', b'"U8"', b"_trf", b"../", b"true"]  # fmt: skip


def make_model(folder: pathlib.Path) -> None:
    """Writes a model of two weights, its index and its config.json, and compresses it beside itself."""
    import transfuse

    source = folder / "source"
    source.mkdir()
    header = {
        "a.weight": {"dtype": "BF16", "shape": [64, 96], "data_offsets": [0, 12288]},
        "a.bias": {"dtype": "F16", "shape": [16], "data_offsets": [12288, 12320]},
    }
    text = json.dumps(header).encode()
    weights = b"".join(struct.pack("<H", (i * 40503 & 0x807F) | (115 + i % 7) << 7) for i in range(64 * 96))
    (source / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + weights + bytes(32))
    index = {"metadata": {"total_size": 12320}, "weight_map": dict.fromkeys(header, "model.safetensors")}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 96, "num_hidden_layers": 1,
              "num_attention_heads": 4, "num_key_value_heads": 2, "dtype": "bfloat16"}  # fmt: skip
    (source / "config.json").write_text(json.dumps(config))
    transfuse.compress(source, folder / "compressed", threads=1)


def mutate_text(rng: random.Random, text: bytes) -> bytes:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((0, 1, 1, 4, 16, 64)))
        new = rng.choice((rng.choice(WORDS), rng.randbytes(rng.randint(0, 3)), text[end : end + rng.randint(1, 40)]))
        text = text[:at] + new + text[end:]
    return text


def mutate_safetensors(rng: random.Random, data: bytes) -> bytes:
    """Changes the header's text and mends its length, or bytes anywhere, or cuts the file short."""
    size = int.from_bytes(data[:8], "little")
    kind = rng.randrange(4)
    if kind < 2 and 8 + size <= len(data):
        text = mutate_text(rng, data[8 : 8 + size])
        return struct.pack("<Q", len(text)) + text + data[8 + size :]
    if kind == 2:
        return data[: rng.randrange(len(data) + 1)]
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def mutate_folder(rng: random.Random, folder: pathlib.Path) -> None:
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    path = rng.choice(paths)
    mutate = mutate_safetensors if path.suffix == ".safetensors" else mutate_text
    path.write_bytes(mutate(rng, path.read_bytes()))


def readers(folder: pathlib.Path) -> list[tuple[str, Callable[[], object]]]:
    import transfuse
    from transfuse import _serving_config
    from transfuse.hf import _file_check

    file = folder / "model.safetensors"

    def serve() -> object:
        config = _file_check.read_config(str(folder / "config.json"))
        try:
            return _serving_config.read_served_model(config)
        except _serving_config.NoEstimateError:
            return None

    return [
        ("transfuse.info of the folder", lambda: transfuse.info(folder)),
        ("transfuse.info of the file", lambda: transfuse.info(file)),
        ("transfuse.verify", lambda: transfuse.verify(folder, threads=1)),
        ("transfuse.decompress", lambda: transfuse.decompress(folder, f"{folder}-out", threads=1)),
        ("Layer.load", lambda: transfuse.Layer.load(folder, "a.weight").decode(threads=1)),
        ("is_compressed", lambda: _file_check.is_compressed(str(file))),
        ("holds_state", lambda: _file_check.holds_state(str(file))),
        ("read_config, read_served_model", serve),
    ]


def try_folder(folder: pathlib.Path) -> str:
    """Returns what went wrong, or an empty text."""
    import transfuse

    for name, read in readers(folder):
        try:
            read()
        except transfuse.TransfuseError as error:
            if "\n" in error.message or not error.message:
                return f"{name}: the message {error.message!r} is not one line"
        except Exception:
            return f"{name}:\n{traceback.format_exc()}"
        finally:
            shutil.rmtree(f"{folder}-out", ignore_errors=True)
    return ""


def work(seed: int, end: float, room: str, connection: multiprocessing.connection.Connection) -> None:
    """Sends a number before each folder is tried, and then what went wrong with it."""
    rng = random.Random(seed)
    root = pathlib.Path(room)
    count = 0
    while time.monotonic() < end:
        tried = root / "tried"
        shutil.rmtree(tried, ignore_errors=True)
        shutil.copytree(root / rng.choice(("source", "compressed", "compressed")), tried)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            mutate_folder(rng, tried)
        count += 1
        connection.send(count)
        connection.send(try_folder(tried))
    connection.send(None)


def keep(findings: pathlib.Path, room: pathlib.Path, number: int, why: str) -> None:
    kept = findings / f"finding-{number}"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(room / "tried", kept)
    (kept / "why.txt").write_text(why)
    print(f"{kept}: {why.strip().splitlines()[-1]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--findings", type=pathlib.Path, default=pathlib.Path("build/fuzzing/python"))
    args = parser.parse_args()
    args.findings.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    tried, found, seed, end = 0, 0, args.seed, time.monotonic() + args.seconds
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as room:
        make_model(pathlib.Path(room))
        while time.monotonic() < end:
            receiving, sending = context.Pipe(duplex=False)
            child = context.Process(target=work, args=(seed, end, room, sending))
            child.start()
            sending.close()
            seed += 1_000_003
            try:
                while receiving.poll(HANG_SECONDS):
                    got = receiving.recv()
                    if got is None:
                        break
                    if isinstance(got, int):
                        tried += 1
                    elif got:
                        found += 1
                        keep(args.findings, pathlib.Path(room), found, got)
                        break  # the next child begins with another seed
                else:
                    found += 1
                    keep(args.findings, pathlib.Path(room), found, f"nothing happened for {HANG_SECONDS} s")
            except EOFError:
                child.join()
                found += 1
                keep(args.findings, pathlib.Path(room), found, f"the process ended with exit code {child.exitcode}")
            child.kill()
            child.join()
    print(f"{tried} folders tried, {found} findings")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
