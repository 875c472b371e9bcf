# SPDX-License-Identifier: Apache-2.0
"""clang-format leaves the C, C++ and CUDA sources as they are; /.clang-format has the settings.

Usage: test_clang_format.py [--root DIR]; other arguments are those that every test here gets. What it complains of is
mended by `git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs clang-format-14 -i`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from repository_files import C_SUFFIXES, ROOT, list_files, report

TOOLS = ("clang-format-14", "clang-format")
VERSION = 14
SKIPPED = 77


def find_tool() -> str | None:
    """Returns the path of a clang-format of the version that the settings are for: each formats in its own way."""
    for name in TOOLS:
        path = shutil.which(name)
        if path:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            if re.search(rf"version {VERSION}\.", said):
                return path
    return None


def find_unformatted(tool: str, root: Path, names: list[str]) -> list[str]:
    """Returns what clang-format says of the places that it would change."""
    done = subprocess.run(
        [tool, "--style=file", "--dry-run", "-Werror", *names], cwd=root, capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stderr.splitlines() if ": error: " in line]
    return lines or ([done.stderr] if done.returncode else [])


def test_finds(tool: str, root: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(root / ".clang-format", folder)
        comment = "/* " + "word " * 30 + "*/\n"
        texts = {"good.c": "int a;\n", "bad.cu": "int  a;\n", "long.h": comment}
        for name, text in texts.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        named = {line.split(":")[0] for line in find_unformatted(tool, Path(folder), list(texts))}
        assert named == {"bad.cu", "long.h"}, named


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    options, _ = parser.parse_known_args()
    tool = find_tool()
    if not tool:
        print(f"skipped structure.clang_format: there is no clang-format {VERSION}")
        return SKIPPED
    test_finds(tool, options.root)

    names = [name for name in list_files(options.root) if name.endswith(C_SUFFIXES)]
    lines = find_unformatted(tool, options.root, names)
    return report(lines, f"{len(names)} files; clang-format would change {len(lines)} places", bool(names))


if __name__ == "__main__":
    sys.exit(main())
