# SPDX-License-Identifier: Apache-2.0
"""Device code compiles for compute capability 8.0 as well, where a build has code for 9.0 alone.

To PTX, which is what can fail. Of the folder with instantiations one file a codec family stands for the others, which
differ by their template arguments. Skips in a build without device code, and in one that has code below 9.0 anyway.
Usage: test_older_gpus.py --build DIR [--jobs N]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SKIPPED = 77
_GENERATE = re.compile(r"--generate-code=arch=compute_(\d+)")
_INSTANCES = ("trf_fused_bf16.cu", "trf_wide_fp16.cu", "trf_group_bf16.cu")


def read_commands(build: Path) -> list[tuple[Path, str, str]]:
    """Returns path, command and folder of each CUDA file of the library that is to be compiled."""
    commands = []
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = (Path(entry["directory"]) / entry["file"]).resolve()
        if path.suffix != ".cu" or "bench" in path.parts:
            continue
        if path.parent.name != "instances" or path.name in _INSTANCES:
            commands.append((path, entry["command"], entry["directory"]))
    return commands


def for_8_0(command: str, output: str) -> list[str]:
    """Returns the command with PTX of 8.0 as all that it makes, in another file."""
    words = [word for word in shlex.split(command) if not word.startswith("--generate-code=")]
    words[words.index("-o") + 1] = output
    return [*words, "--generate-code=arch=compute_80,code=[compute_80]"]


def compile_file(path: Path, command: str, folder: str) -> str:
    """Returns what the compiler says of a file, or "" where it compiles."""
    with tempfile.TemporaryDirectory() as made:
        words = for_8_0(command, str(Path(made) / "object.o"))
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return f"{path.name}:\n{done.stdout}{done.stderr}" if done.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("TRF_JOBS") or os.cpu_count() or 1))
    args = parser.parse_args()
    commands = read_commands(args.build)
    if not commands:
        print("skipped: the build has no device code")
        return SKIPPED
    if any(int(capability) < 90 for _, command, _ in commands for capability in _GENERATE.findall(command)):
        print("skipped: the build has code for GPUs before 9.0 anyway")
        return SKIPPED
    with ThreadPoolExecutor(args.jobs) as pool:
        failures = [said for said in pool.map(lambda one: compile_file(*one), commands) if said]
    print("\n".join(failures) or f"{len(commands)} files compile for 8.0")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
