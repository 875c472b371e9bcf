# SPDX-License-Identifier: Apache-2.0
"""clang-tidy finds nothing in the C files of a build; /.clang-tidy has the checks, and why others are left out.

The tests themselves are left out: they take as long as all of the rest, and sanitizers watch them run.

A file that passed is not looked at again until it, any header, the checks or clang-tidy itself have changed.
Usage: test_clang_tidy.py --build DIR [--root DIR] [--jobs N] [--fresh]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from repository_files import ROOT, list_files

TOOLS = ("clang-tidy-14", "clang-tidy")
VERSION = 14
SKIPPED = 77
# Assertions say what a function may rely on. The compiler's own warnings are its own business (gcc has its -Werror).
_ARGUMENTS = ("--quiet", "--extra-arg=-UNDEBUG", "--extra-arg=-w")


def find_tool() -> tuple[str, str] | None:
    """Returns the path and the version line of the clang-tidy that the checks are written for, or None."""
    for name in TOOLS:
        path = shutil.which(name)
        if path:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            match = re.search(rf"version {VERSION}\.\S+", said)
            if match:
                return path, match.group()
    return None


def read_commands(build: Path, root: Path) -> dict[str, str]:
    """Returns the command for each C file outside of tests/; of a file that is compiled twice, the first one."""
    commands: dict[str, str] = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = (Path(entry["directory"]) / entry["file"]).resolve()
        if path.suffix == ".c" and path.is_relative_to(root) and not path.is_relative_to(root / "tests"):
            commands.setdefault(str(path), entry["command"])
    return commands


def find_keys(commands: dict[str, str], shared: bytes) -> dict[str, str]:
    """Returns for each file a digest of all that its result depends on; `shared` stands for what is common to all."""
    return {
        path: hashlib.sha256(shared + command.encode() + Path(path).read_bytes()).hexdigest()
        for path, command in commands.items()
    }


def digest_shared(root: Path, version: str) -> bytes:
    """Returns a digest of the headers, the checks, the arguments and clang-tidy's version."""
    digest = hashlib.sha256(repr((version, _ARGUMENTS)).encode())
    for name in list_files(root):
        if name.endswith((".h", ".inc", ".clang-tidy")):
            digest.update(name.encode() + b"\0" + (root / name).read_bytes())
    return digest.digest()


def check_file(tool: str, build: Path, path: str) -> tuple[bool, str]:
    """Returns whether clang-tidy finds nothing in a file, and what it says."""
    done = subprocess.run([tool, "-p", str(build), *_ARGUMENTS, path], capture_output=True, text=True, check=False)
    findings = done.stdout.strip()
    return done.returncode == 0 and not findings, findings or done.stderr.strip() or f"{path}: clang-tidy fails"


def check_files(tool: str, build: Path, paths: list[str], jobs: int) -> Iterator[tuple[str, bool, str]]:
    """Yields the files as they are done: the path, whether it is clean, and the findings."""
    # The largest first, so that no long one is left for the end.
    ordered = sorted(paths, key=lambda path: -Path(path).stat().st_size)
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(check_file, tool, build, path): path for path in ordered}
        for done in as_completed(running):
            yield running[done], *done.result()


def test_finds(tool: str, root: Path) -> None:
    """A null pointer that is read is found, behind an assertion it is not."""
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder)
        shutil.copy(root / ".clang-tidy", build)
        read = "int f(int *at);\nint f(int *at) {\n    if (!at)\n        {}\n    %s\n    return *at;\n}\n"
        texts = {"bad.c": read % "", "good.c": "#include <assert.h>\n" + read % "assert(at);"}
        commands = []
        for name, text in texts.items():
            (build / name).write_text(text, encoding="utf-8")
            commands.append({"directory": folder, "file": name, "command": f"cc -DNDEBUG -Werror -c {name}"})
        (build / "compile_commands.json").write_text(json.dumps(commands), encoding="utf-8")
        assert not check_file(tool, build, str(build / "bad.c"))[0]
        assert check_file(tool, build, str(build / "good.c"))[0], check_file(tool, build, str(build / "good.c"))


def read_passed(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--nm", help="not used: every test of this folder gets it")
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("TRF_JOBS") or len(os.sched_getaffinity(0))))
    parser.add_argument("--fresh", action="store_true", help="look at files that passed before, too")
    options = parser.parse_args()
    found = find_tool()
    build, root = options.build.resolve(), options.root.resolve()
    if not found or not (build / "compile_commands.json").is_file():
        print(
            "skipped structure.clang_tidy: there is no "
            + ("compile_commands.json in the build" if found else f"clang-tidy {VERSION}")
        )
        return SKIPPED
    tool, version = found
    test_finds(tool, root)

    start = time.monotonic()
    passed_file = build / "clang_tidy_passed.json"
    keys = find_keys(read_commands(build, root), digest_shared(root, version))
    passed = {} if options.fresh else read_passed(passed_file)
    passed = {path: key for path, key in passed.items() if keys.get(path) == key}
    left = [path for path in keys if path not in passed]
    num_bad = 0
    for path, is_clean, findings in check_files(tool, build, left, options.jobs):
        if is_clean:
            passed[path] = keys[path]
            passed_file.write_text(json.dumps(passed), encoding="utf-8")
        else:
            num_bad += 1
            print(findings.replace(f"{root}/", ""), flush=True)
    print(
        f"{len(keys)} files, {len(left)} of them looked at in {time.monotonic() - start:.0f} s; "
        f"clang-tidy complains of {num_bad}"
    )
    return 1 if num_bad or not keys else 0


if __name__ == "__main__":
    sys.exit(main())
