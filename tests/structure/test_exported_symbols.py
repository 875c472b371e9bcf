# SPDX-License-Identifier: Apache-2.0
"""The library exports what cmake/exported_symbols.txt lists, which is what the public headers declare.

The list has one name a line, sorted: a change of it shows in a review. A shared library is looked at if one is named,
or if the build folder has one.
Usage: test_exported_symbols.py [--root DIR] [--build DIR | --library FILE] [--nm NM] [--write]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from repository_files import ROOT, find_public_functions, read_text, report

LIST = "cmake/exported_symbols.txt"


def read_exported(nm: str, library: Path) -> set[str]:
    call = [nm, "-D", "-P", "--defined-only", str(library)]
    return parse_exported(subprocess.run(call, stdout=subprocess.PIPE, text=True, check=True).stdout)


def parse_exported(text: str) -> set[str]:
    """Understands `nm -D -P --defined-only`, whose lines are a name, perhaps with a version, a kind and numbers."""
    rows = [line.split() for line in text.splitlines()]
    return {row[0].partition("@")[0] for row in rows if len(row) > 1 and row[1] != "A"}


def compare(listed: list[str], found: set[str], place: str) -> list[str]:
    """Returns a line for each name that is on one side only."""
    lines = [f"{place} has {name}, {LIST} does not" for name in sorted(found - set(listed))]
    return lines + [f"{LIST} has {name}, {place} does not" for name in sorted(set(listed) - found)]


def test_compares() -> None:
    text = "trf_b T 1000 20\ntrf_a@@V1 T 2000\ndata B 10 8\nV1 A 0\n"
    assert parse_exported(text) == {"trf_a", "trf_b", "data"}
    assert compare(["trf_a", "trf_c"], {"trf_a", "data"}, "it") == [
        f"it has data, {LIST} does not",
        f"{LIST} has trf_c, it does not",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--build", type=Path, help="a build folder, whose libtransfuse.so is looked at if it has one")
    parser.add_argument("--library", type=Path, help="a shared library to look at")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--write", action="store_true", help="write the list anew, from the headers")
    options = parser.parse_args()
    test_compares()

    declared = set(find_public_functions(options.root))
    if options.write:
        (options.root / LIST).write_text("".join(name + "\n" for name in sorted(declared)), encoding="utf-8")
    listed = read_text(options.root / LIST).split()
    lines = [] if listed == sorted(set(listed)) else [f"{LIST} is not sorted, or has a name twice"]
    lines += compare(listed, declared, "include/")
    library = options.library
    if not library and options.build and (options.build / "libtransfuse.so").is_file():
        library = options.build / "libtransfuse.so"
    if library:
        lines += compare(listed, read_exported(options.nm, library), library.name)
    with_library = "with" if library else "without"
    return report(lines, f"{len(listed)} names, {with_library} a shared library; {len(lines)} findings")


if __name__ == "__main__":
    sys.exit(main())
