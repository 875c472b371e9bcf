# SPDX-License-Identifier: Apache-2.0
"""Every file names its licence: its first line, or the second behind `#!`, is SPDX's one in a comment of its language.

A file is of a language that is listed here, or stands among those that hold data, pages or settings.
Usage: test_spdx.py [--root DIR]; other arguments are those that every test here gets.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

from repository_files import C_SUFFIXES, ROOT, list_files, read_text, report

# In two parts, so that this very line is not taken for a licence.
TAG = "SPDX-License-" + "Identifier: Apache-2.0"
_C_COMMENT = (*C_SUFFIXES, ".inc")
_HASH_COMMENT = (
    ".pth",
    ".py",
    ".pth",
    ".sh",
    ".cmake",
    ".in",
    ".toml",
    "CMakeLists.txt",
    ".ci/run",
    ".yml",
    "Containerfile",
    "Dockerfile",
    "cppcheck.txt",
    ".dict",
    ".options",
    ".yaml",
)
# What has no such line: the licence and pages, data (some without comments, some held to its bytes), lists, settings.
EXCEPTIONS = (
    "LICENSE",
    "*.md",
    "*.json",
    "*.csv",
    "*.svg",
    "*.trf",
    "*.safetensors",
    "docs/performance/*.txt",
    "tests/fuzz/corpus/*",
    "cmake/exported_symbols.txt",
    "*requirements.txt",  # made by a program of the .in file beside it
    ".clang-format",
    ".clang-tidy",
    ".gitignore",
    "*/.gitignore",
    ".containerignore",
    "*/py.typed",
)


def find_line(name: str) -> str | None:
    """Returns the line that a file has to have, or None where its language is not known."""
    if name.endswith(_C_COMMENT):
        return f"/* {TAG} */"
    return f"# {TAG}" if name.endswith(_HASH_COMMENT) else None


def find_faults(root: Path) -> tuple[int, list[str]]:
    """Returns how many files were looked at, and what is wrong with some."""
    lines, checked = [], 0
    for name in list_files(root):
        if any(fnmatchcase(name, pattern) for pattern in EXCEPTIONS):
            continue
        wanted = find_line(name)
        checked += 1
        head = read_text(root / name).split("\n", 2)[:2]
        at = 1 if head[0].startswith("#!") else 0
        if wanted is None:
            lines.append(f"{name}: neither of a known language nor among the exceptions of {Path(__file__).name}")
        elif head[at : at + 1] != [wanted]:
            lines.append(f"{name}:{at + 1}: must be {wanted}")
    return checked, lines


def test_finds() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        texts = {
            "good.c": f"/* {TAG} */\n",
            "good.sh": f"#!/bin/sh\n# {TAG}\n",
            "page.md": "",
            "CMakeLists.txt": "",
            "late.py": f'"""."""\n# {TAG}\n',
            "other.h": f"// {TAG}\n",
            "odd.rs": f"/* {TAG} */\n",
        }
        for name, text in texts.items():
            (root / name).write_text(text, encoding="utf-8")
        checked, lines = find_faults(root)
        named = sorted(line.split(":")[0] for line in lines)
        assert checked == 6 and named == ["CMakeLists.txt", "late.py", "odd.rs", "other.h"], (checked, lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    options, _ = parser.parse_known_args()
    test_finds()

    checked, lines = find_faults(options.root)
    return report(lines, f"{checked} files; {len(lines)} findings", checked > 0)


if __name__ == "__main__":
    sys.exit(main())
