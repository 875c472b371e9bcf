"""What pages say of the repository is true: names and files that they mention exist, links lead somewhere, and lines of
prose are not longer than 120 characters.

A name is `trf_...` or `TRF_...` between backticks; it has to stand in some source. A file is a path between backticks
whose first folder is one of the repository's, or a file name with a suffix of sources. CHANGELOG.md tells of what is
gone, too: its lines are measured alone. Tables, code and addresses may be longer.
Usage: test_pages.py [--root DIR]
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from repository_files import C_SUFFIXES, ROOT, list_files, read_text

MAX_COLUMNS = 120
_FILE = re.compile(r"[\w./*-]+\.(?:c|h|cu|cuh|inc|py|sh|md|cmake|txt)|[\w-]+(?:/[\w.*-]+)+/?")
_NAME = re.compile(r"\b(?:trf|TRF)_\w+\*?")


def is_page(name: str) -> bool:
    return name in ("README.md", "CHANGELOG.md", "format/FORMAT.md") or bool(re.fullmatch(r"docs/[^/]+\.md", name))


def prose_of(text: str) -> list[tuple[int, str]]:
    """Returns the numbered lines that are neither of a code block nor of a table."""
    lines, in_code = [], False
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith(("    ", "|")):
            lines.append((number, line))
    return lines


def find_long_lines(text: str) -> list[int]:
    return [number for number, line in prose_of(text) if len(line) > MAX_COLUMNS and "://" not in line]


def find_names(text: str) -> set[str]:
    """Returns the names in code spans and code blocks; of `trf_job_*` the part before the star."""
    spans = re.findall(r"```.*?```|`[^`\n]+`", text, re.S)
    return {name for span in spans for name in _NAME.findall(span)}


def find_mentioned_files(text: str) -> set[str]:
    without_blocks = re.sub(r"```.*?```", "", text, flags=re.S)
    spans = re.findall(r"`([^`\n]+)`", without_blocks)
    return {span for span in spans if _FILE.fullmatch(span)}


def find_links(text: str) -> set[str]:
    return {target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target} - {""}


def is_known_name(name: str, words: set[str]) -> bool:
    if name.endswith(("_", "*")):
        start = name.rstrip("*")
        return any(word.startswith(start) for word in words)
    return name in words


def is_known_file(name: str, files: set[str], folders: set[str]) -> bool:
    """Whether a path, or the end of one, is in the repository; paths of other things than ours are known, too."""
    top = name.split("/")[0]
    if "/" in name and top not in folders:
        return True
    if "*" in name:
        pattern = re.compile(re.escape(name).replace(r"\*", "[^/]*"))
        return any(pattern.fullmatch(file) for file in files)
    path = name.rstrip("/")
    return path in folders or any(file == path or file.endswith("/" + path) for file in files)


def test_finds_names_and_files() -> None:
    text = "Of `trf_one` and `TRF_TWO`, ``` trf_three(x) ``` not trf_four.\n`a/b.c`, `x y.c`, `trf_five.h`, `make`"
    assert find_names(text) == {"trf_one", "TRF_TWO", "trf_three", "trf_five"}, find_names(text)
    assert find_mentioned_files(text) == {"a/b.c", "trf_five.h"}, find_mentioned_files(text)
    assert find_links("[a](b.md#c) [d](https://e.org) [f](#g)") == {"b.md"}
    assert is_known_name("trf_on*", {"trf_one"}) and not is_known_name("trf_on", {"trf_one"})
    files, folders = {"a/b.c", "a/cmd_x.c"}, {"a"}
    assert all(is_known_file(name, files, folders) for name in ("b.c", "a/b.c", "a/", "a/cmd_*.c", "other/b.h"))
    assert not any(is_known_file(name, files, folders) for name in ("c.c", "a/c.c", "a/dmd_*.c"))


def test_finds_long_lines() -> None:
    long = "é" * (MAX_COLUMNS + 1)
    assert find_long_lines(f"{long}\n| {long}\n```\n{long}\n```\n    {long}\nhttps://{long}\n{long[1:]}") == [1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--build", help="not used: every test of this folder gets it")
    parser.add_argument("--nm", help="likewise")
    options = parser.parse_args()
    test_finds_names_and_files()
    test_finds_long_lines()

    files = set(list_files(options.root))
    folders = {"/".join(file.split("/")[:depth]) for file in files for depth in range(1, file.count("/") + 1)}
    sources = [file for file in files if file.endswith((*C_SUFFIXES, ".inc", ".cmake", ".py", ".sh", "CMakeLists.txt"))]
    # This file's own text has names that there are not.
    sources = [file for file in sources if Path(file).name != Path(__file__).name]
    words = {word for file in sources for word in re.findall(r"\w+", read_text(options.root / file))}
    words |= {word for file in sources for word in re.findall(r"\w+", Path(file).name)}
    lines = []
    for page in sorted(filter(is_page, files)):
        text = read_text(options.root / page)
        lines += [f"{page}:{number}: longer than {MAX_COLUMNS} columns" for number in find_long_lines(text)]
        lines += [f"{page}: leads to {link}, which there is not" for link in sorted(find_links(text))
                  if not (options.root / page).parent.joinpath(link).exists()]
        if page != "CHANGELOG.md":
            lines += [f"{page}: there is no {name}" for name in sorted(find_names(text))
                      if not is_known_name(name, words)]
            lines += [f"{page}: there is no file {name}" for name in sorted(find_mentioned_files(text))
                      if not is_known_file(name, files, folders)]
    print("".join(line + "\n" for line in lines), end="")
    print(f"{len(lines)} findings")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
