# SPDX-License-Identifier: Apache-2.0
"""Runs a program that looks for faults over the C files of a build, several at a time.

The tests themselves are left out: they take as long as all of the rest, and sanitizers watch them run. A file that
passed is not looked at again until it, its command, any header or the checker itself have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from repository_files import ROOT, list_files

SKIPPED = 77
# Looks at a file, given its path and its command: whether there is nothing to find, and what was said.
Check = Callable[[str, str], tuple[bool, str]]


def parse_options(about: str) -> argparse.Namespace:
    """Returns root, build, jobs and fresh; the folders are absolute."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("TRF_JOBS") or len(os.sched_getaffinity(0))))
    parser.add_argument("--fresh", action="store_true", help="look at files that passed before, too")
    options = parser.parse_args()
    options.build, options.root = options.build.resolve(), options.root.resolve()
    return options


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


def digest_shared(root: Path, checker: object) -> bytes:
    """Returns a digest of the headers, the checks, and what says which checker it is, with its arguments."""
    digest = hashlib.sha256(repr(checker).encode())
    for name in list_files(root):
        if name.endswith((".h", ".inc", ".clang-tidy")):
            digest.update(name.encode() + b"\0" + (root / name).read_bytes())
    return digest.digest()


def check_files(check: Check, commands: dict[str, str], jobs: int) -> Iterator[tuple[str, bool, str]]:
    """Yields the files as they are done: the path, whether it is clean, and the findings."""
    # The largest first, so that no long one is left for the end.
    ordered = sorted(commands, key=lambda path: -Path(path).stat().st_size)
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(check, path, commands[path]): path for path in ordered}
        for done in as_completed(running):
            yield running[done], *done.result()


def read_passed(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def run(name: str, options: argparse.Namespace, checker: object, check: Check, left_out: str = "") -> int:
    """Looks at the files that have not passed, and prints what is found. Returns the exit status.

    name: of the checker, for its file of those that passed. checker: see digest_shared. left_out: what no file's name
    that is looked at has in it.
    """
    start = time.monotonic()
    passed_file = options.build / f"{name}_passed.json"
    commands = read_commands(options.build, options.root)
    if left_out:
        commands = {path: command for path, command in commands.items() if left_out not in Path(path).name}
    keys = find_keys(commands, digest_shared(options.root, checker))
    passed = {} if options.fresh else read_passed(passed_file)
    passed = {path: key for path, key in passed.items() if keys.get(path) == key}
    left = {path: command for path, command in commands.items() if path not in passed}
    num_bad = 0
    for path, is_clean, findings in check_files(check, left, options.jobs):
        if is_clean:
            passed[path] = keys[path]
            passed_file.write_text(json.dumps(passed), encoding="utf-8")
        else:
            num_bad += 1
            print(findings.replace(f"{options.root}/", ""), flush=True)
    print(
        f"{len(keys)} files, {len(left)} of them looked at in {time.monotonic() - start:.0f} s; "
        f"{name} complains of {num_bad}"
    )
    return 1 if num_bad or not keys else 0
