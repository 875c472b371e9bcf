# SPDX-License-Identifier: Apache-2.0
"""Files that ask for more than they have, tried on the command, each run's peak memory measured. Run by hand.

usage: bombs.py TRANSFUSE [--folder FOLDER] [--gigabytes N] [--threads N]

FOLDER's file system has to take sparse files of N GB (64 by default); where it takes none of 2^60 bytes, those are left
out.
The whole sparse checkpoint is compressed, verified, listed and decompressed: about 40 core-minutes for 64 GB, and
FOLDER gets half of the size, and a sparse copy. Prints a line for each run, and fails if a run takes more than 1 GiB or
ends otherwise than it should.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

MOST_BYTES = 1 << 30
ROWS, COLS = 65536, 65536  # 8 GiB of BF16


class Trials:
    """Runs the command, and remembers what failed."""

    def __init__(self, program: str, threads: int) -> None:
        self.program, self.threads, self.failures = program, threads, 0

    def run(self, what: str, status: str, *arguments: object) -> None:
        """Expects a status' name in the message, or "" for success."""
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(writes, 2)
            os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
            os.execv(self.program, [self.program, *map(str, arguments)])
        os.close(writes)
        with os.fdopen(reads, errors="replace") as errors:
            message = errors.read()
        _, code, used = os.wait4(child, 0)
        peak = used.ru_maxrss * 1024
        expected = 0 if not status else 1
        good = os.waitstatus_to_exitcode(code) == expected and status in message and peak <= MOST_BYTES
        self.failures += not good
        print(
            f"{'ok  ' if good else 'FAIL'} {what}: {peak / 2**20:.0f} MiB, {used.ru_utime + used.ru_stime:.1f} core-s"
            f"{', ' + status if status else ''}",
            flush=True,
        )
        if not good:
            print(message)


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], int]], content: bytes = b"") -> bool:
    """Writes a file with a hole for data. Returns whether the file system takes it."""
    end, header = 0, {}
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + content)
        try:
            os.truncate(file.fileno(), 8 + len(text) + end)
        except OSError:
            return False
    return True


def try_sparse(trials: Trials, folder: Path, gigabytes: int) -> None:
    """Takes a sparse checkpoint there and back."""
    source, out, back = folder / "sparse.safetensors", folder / "out.safetensors", folder / "back.safetensors"
    count = max(gigabytes // 8, 1)
    write_safetensors(source, {f"layers.{i}.weight": ("BF16", [ROWS, COLS], ROWS * COLS * 2) for i in range(count)})
    threads = "-T", trials.threads
    trials.run(f"info, {8 * count} GiB", "", "info", source)
    trials.run("compress --dry-run", "", "compress", source, "--dry-run", *threads)
    trials.run("compress --max-memory 1G", "", "compress", source, "-o", out, "--max-memory", "1G", *threads)
    trials.run("info of it", "", "info", out)
    trials.run("verify", "", "verify", out, "--max-memory", "1G", *threads)
    trials.run("decompress, 1 GB short", "TRF_ERR_LIMIT", "decompress", out, "-o", back, "--max-output",
               f"{(8 * count << 30) - 10**9}", *threads)  # fmt: skip
    trials.run("decompress", "", "decompress", out, "-o", back, "--max-memory", "1G", *threads)
    for path in (source, out, back):
        path.unlink(missing_ok=True)


def try_headers(trials: Trials, folder: Path) -> None:
    """Tries headers that promise 2^60 weights, nested ones, and an index of a million files."""
    path, out = folder / "header.safetensors", folder / "header-out"
    huge = {"w": ("I8", [1 << 30, 1 << 30], 1 << 60)}
    if write_safetensors(path, huge):
        trials.run("2^60 weights, sparse: info", "", "info", path)
        trials.run("2^60 weights, sparse: compress", "TRF_ERR_LIMIT", "compress", path, "-o", out, "--max-memory", "1G")
    text = json.dumps({"w": {"dtype": "I8", "shape": [1 << 30, 1 << 30], "data_offsets": [0, 1 << 60]}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))
    trials.run("2^60 weights, promised", "TRF_ERR_TRUNCATED", "compress", path, "-o", out)
    for what, begin, part, end in (
        ("nested arrays", b'{"w":', b"[", b""),
        ("a shape of 50 million sides", b'{"w":{"dtype":"U8","data_offsets":[0,0],"shape":[', b"0,", b"0]}}"),
        ("10 million members", b"{", b'"":0,', b'"":0}'),
    ):
        count = (100_000_000 - 200) // len(part)
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(begin) + count * len(part) + len(end)) + begin)
            for _ in range(100):
                file.write(part * (count // 100))
            file.write(part * (count % 100) + end)
        trials.run(f"a header of 100 MB: {what}", "TRF_ERR_LIMIT", "info", path, "--max-memory", "500M")
    path.unlink()


def try_index(trials: Trials, folder: Path) -> None:
    """Tries an index that names a million files."""
    model = folder / "model"
    model.mkdir()
    write_safetensors(model / "a.safetensors", {"w": ("U8", [16], 16)})
    with (model / "model.safetensors.index.json").open("w") as file:  # in parts: a child's peak begins with ours
        file.write('{"weight_map":{"w":"a.safetensors"')
        for i in range(1_000_000):
            file.write(f',"t{i}":"model-{i:07}-of-1000000.safetensors"')
        file.write("}}")
    trials.run("an index of a million files", "TRF_ERR_NOT_FOUND", "info", model)
    trials.run("the same, --max-memory 100M", "TRF_ERR_LIMIT", "info", model, "--max-memory", "100M")


def try_bomb(trials: Trials, folder: Path) -> None:
    """Tries zeros, which the codec int stores in the fewest bytes that a tile can have."""
    source, bomb, out = folder / "zeros.safetensors", folder / "bomb.safetensors", folder / "bomb-out"
    write_safetensors(source, {"w": ("F32", [ROWS // 4, COLS // 4], ROWS * COLS // 4)})
    trials.run("making a bomb of 1 GiB", "", "compress", source, "-o", bomb, "--int8")
    ratio = (ROWS * COLS / 4) / bomb.stat().st_size
    print(f"     {bomb.stat().st_size} bytes, 1 : {ratio:.1f}")
    trials.run("decompress it, --max-output 1G", "TRF_ERR_LIMIT", "decompress", bomb, "-o", out, "--max-output", "1G")
    trials.run("decompress it", "", "decompress", bomb, "-o", out)
    trials.run("load it for verify --device cpu, --max-memory 1G", "", "verify", bomb, "--device", "cpu",
               "--max-memory", "1G")  # fmt: skip


def main() -> int:
    """Runs all trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--folder")
    parser.add_argument("--gigabytes", type=int, default=64)
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args()
    trials = Trials(os.path.realpath(options.program), options.threads)
    print(subprocess.run([trials.program, "--version"], capture_output=True, text=True, check=True).stdout.strip())
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        try_headers(trials, folder)
        try_index(trials, folder)
        try_bomb(trials, folder)
        if options.gigabytes:
            try_sparse(trials, folder, options.gigabytes)
    print(f"{trials.failures} failures")
    return trials.failures != 0


if __name__ == "__main__":
    sys.exit(main())
