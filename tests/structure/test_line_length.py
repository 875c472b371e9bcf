# SPDX-License-Identifier: Apache-2.0
"""No line of the sources is longer than 120 characters.

Generated tables (*.inc) are left out, as they are what a script writes, and so are pages, whose tables have long rows.
Usage: test_line_length.py [--root DIR] [--count]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from repository_files import C_SUFFIXES, ROOT, list_files, read_text, report

MAX_COLUMNS = 120


def is_checked(name: str) -> bool:
    return name.endswith((*C_SUFFIXES, ".py", ".sh", ".cmake", ".toml")) or Path(name).name == "CMakeLists.txt"


def find_long_lines(root: Path) -> list[tuple[str, int, int]]:
    """Returns the file, the number and the length of each line that is too long."""
    found = []
    for name in filter(is_checked, list_files(root)):
        for number, line in enumerate(read_text(root / name).split("\n"), 1):
            if len(line) > MAX_COLUMNS:
                found.append((name, number, len(line)))
    return found


def test_finds_long_lines() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        text = "é" * MAX_COLUMNS + "\n" + "e" * (MAX_COLUMNS + 1)
        (root / "CMakeLists.txt").write_text(text, encoding="utf-8")
        (root / "table.inc").write_text(text, encoding="utf-8")
        (root / "part").mkdir()
        (root / "part" / "a.cuh").write_text(text + "\n", encoding="utf-8")
        assert find_long_lines(root) == [("CMakeLists.txt", 2, 121), ("part/a.cuh", 2, 121)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--build", type=Path, help="not used: every test of this folder gets it")
    parser.add_argument("--nm", help="likewise")
    parser.add_argument("--count", action="store_true", help="print a count for each file in place of its lines")
    options = parser.parse_args()
    test_finds_long_lines()

    long_lines = find_long_lines(options.root)
    if options.count:
        lines = [f"{count:5}  {name}" for name, count in Counter(name for name, _, _ in long_lines).most_common()]
    else:
        lines = [f"{name}:{number}: {columns} columns" for name, number, columns in long_lines]
    return report(lines, f"{len(long_lines)} lines are longer than {MAX_COLUMNS} columns")


if __name__ == "__main__":
    sys.exit(main())
