# SPDX-License-Identifier: Apache-2.0
"""No comment of C, C++ or CUDA opens with a preposition, in place of a sentence: "Of a layer, ...", "As fill_buffer.".

Usage: test_comments.py [--root DIR]
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from repository_files import C_SUFFIXES, ROOT, list_files, read_text, report

_OPENING = re.compile(r"/\*+\s*(?:Of|By|As|Behind)\b[^\n]*|//+\s*(?:Of|By|As|Behind)\b[^\n]*")


def find_openings(text: str) -> list[tuple[int, str]]:
    """Returns the line and the beginning of each comment that opens so."""
    return [(text.count("\n", 0, match.start()) + 1, match[0][:60]) for match in _OPENING.finditer(text)]


def test_finds_openings() -> None:
    text = (
        "/* Of a layer. */\nint a; /* of its own */\n/** Behind\n */ // By hand\n/* A kernel. Of others */ // Offset\n"
    )
    assert find_openings(text) == [(1, "/* Of a layer. */"), (3, "/** Behind"), (4, "// By hand")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    options, _ = parser.parse_known_args()
    test_finds_openings()
    names = [name for name in list_files(options.root) if name.endswith(C_SUFFIXES)]
    lines = [
        f"{name}:{line}: {opening}" for name in names for line, opening in find_openings(read_text(options.root / name))
    ]
    return report(lines, f"{len(names)} files, {len(lines)} comments that open with Of, By, As or Behind")


if __name__ == "__main__":
    sys.exit(main())
