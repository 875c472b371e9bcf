# SPDX-License-Identifier: Apache-2.0
"""clang-tidy finds nothing in the C files of a build; /.clang-tidy has the checks, and why others are left out.

Usage: test_clang_tidy.py --build DIR [--root DIR] [--jobs N] [--fresh]
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import c_checker

TOOLS = ("clang-tidy-14", "clang-tidy")
VERSION = 14
# Assertions say what a function may rely on. The compiler's own warnings are its own business (gcc has its -Werror).
_ARGUMENTS = ("--quiet", "--extra-arg=-UNDEBUG", "--extra-arg=-w")
# The analyzer's graph of a function has at most so many nodes, for 225,000 by default: a third of the time.
_ARGUMENTS += tuple(f"--extra-arg={word}" for word in ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=60000"))


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


def check_file(tool: str, build: Path, path: str) -> tuple[bool, str]:
    """Returns whether clang-tidy finds nothing in a file, and what it says."""
    done = subprocess.run([tool, "-p", str(build), *_ARGUMENTS, path], capture_output=True, text=True, check=False)
    findings = done.stdout.strip()
    return done.returncode == 0 and not findings, findings or done.stderr.strip() or f"{path}: clang-tidy fails"


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


def main() -> int:
    options = c_checker.parse_options(__doc__.splitlines()[0])
    found = find_tool()
    if not found or not (options.build / "compile_commands.json").is_file():
        print(
            "skipped structure.clang_tidy: there is no "
            + ("compile_commands.json in the build" if found else f"clang-tidy {VERSION}")
        )
        return c_checker.SKIPPED
    tool, version = found
    test_finds(tool, options.root)
    return c_checker.run(
        "clang_tidy",
        options,
        (version, _ARGUMENTS),
        lambda path, command: check_file(tool, options.build, path),
    )


if __name__ == "__main__":
    sys.exit(main())
