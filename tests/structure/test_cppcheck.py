# SPDX-License-Identifier: Apache-2.0
"""cppcheck finds nothing in the C files of a build; tests/structure/cppcheck.txt says what is left out, and why.

Usage: test_cppcheck.py --build DIR [--root DIR] [--jobs N] [--fresh]
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import c_checker

VERSION = "2.10"  # Debian 12's
SUPPRESSIONS = Path(__file__).with_name("cppcheck.txt")
_ARGUMENTS = (
    "--quiet",
    "--enable=warning,performance,portability",
    "--std=c11",
    "--library=posix",
    "--inline-suppr",
    "--error-exitcode=1",
    "--template={file}:{line}: {severity}: {message} [{id}]",
)


def find_tool() -> tuple[str, str] | None:
    """Returns the path and the version line of the cppcheck that the suppressions are written for, or None."""
    path = shutil.which("cppcheck")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout if path else ""
    return (path, said.strip()) if path and re.search(rf"\b{re.escape(VERSION)}\b", said) else None


def check_file(tool: str, root: Path, path: str, command: str) -> tuple[bool, str]:
    """Returns whether cppcheck finds nothing in a file, by the macros and folders of its command, and what it says."""
    words = [word for word in shlex.split(command) if re.match(r"-[DI]", word) and "FORTIFY" not in word]
    done = subprocess.run(
        [tool, *_ARGUMENTS, f"--suppressions-list={SUPPRESSIONS}", *words, path],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    findings = done.stderr.strip()
    return done.returncode == 0 and not findings, findings or done.stdout.strip() or f"{path}: cppcheck fails"


def test_finds(tool: str) -> None:
    """An element behind an array's end is found, and its last one is left alone."""
    text = "int f(void);\nint f(void) {\n    int a[4] = {0};\n    return a[%d];\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        for index, wanted in ((4, False), (3, True)):
            path = Path(folder) / "f.c"
            path.write_text(text % index, encoding="utf-8")
            clean, findings = check_file(tool, Path(folder), str(path), "cc -DNDEBUG -c f.c")
            assert clean == wanted, findings


def main() -> int:
    options = c_checker.parse_options(__doc__.splitlines()[0])
    found = find_tool()
    if not found or not (options.build / "compile_commands.json").is_file():
        print(
            "skipped structure.cppcheck: there is no "
            + ("compile_commands.json in the build" if found else f"cppcheck {VERSION}")
        )
        return c_checker.SKIPPED
    tool, version = found
    test_finds(tool)
    checker = (version, _ARGUMENTS, SUPPRESSIONS.read_text(encoding="utf-8"))
    return c_checker.run(
        "cppcheck", options, checker, lambda path, command: check_file(tool, options.root, path, command)
    )


if __name__ == "__main__":
    sys.exit(main())
