# SPDX-License-Identifier: Apache-2.0
"""include/transfuse.h stays a core: how many functions it declares, how many lines it has, and that each of its
functions is called by a program in examples/.

Usage: test_core_header.py [--root DIR]; other arguments are those that every test here gets.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from repository_files import ROOT, find_public_functions, read_text, report

CORE = "include/transfuse.h"
MOST_FUNCTIONS = 40
MOST_LINES = 700


def find_uncalled(functions: list[str], text: str) -> list[str]:
    """Returns the functions that a text calls nowhere."""
    return [name for name in functions if not re.search(rf"\b{name}\(", text)]


def test_finds() -> None:
    assert find_uncalled(["trf_a", "trf_b", "trf_c"], "x = trf_a(1); trf_bc(2); trf_c;") == ["trf_b", "trf_c"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    options, _ = parser.parse_known_args()
    test_finds()

    core = [name for name, (header, _) in find_public_functions(options.root).items() if header == CORE]
    examples = "".join(read_text(path) for path in sorted((options.root / "examples").glob("*.c")))
    num_lines = len(read_text(options.root / CORE).splitlines())
    lines = [f"no example calls {name}" for name in find_uncalled(core, examples)]
    if len(core) > MOST_FUNCTIONS:
        lines.append(f"{CORE} declares {len(core)} functions, and {MOST_FUNCTIONS} are the limit")
    if num_lines > MOST_LINES:
        lines.append(f"{CORE} has {num_lines} lines, and {MOST_LINES} are the limit")
    return report(lines, f"{len(core)} functions, {num_lines} lines; {len(lines)} findings")


if __name__ == "__main__":
    sys.exit(main())
