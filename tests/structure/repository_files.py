# SPDX-License-Identifier: Apache-2.0
"""The repository's own files, for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import c_tokens

ROOT = Path(__file__).resolve().parents[2]
C_SUFFIXES = (".c", ".h", ".cu", ".cuh", ".cpp")
_NOT_OURS = ("build", ".venv", ".git", "__pycache__", ".pytest_cache")


def list_files(root: Path) -> list[str]:
    """Returns the paths of the files that git tracks, relative to `root` and sorted.

    Where git knows nothing of the folder (an unpacked archive, a copy), these are all files but those of builds.
    """
    # git lists a deleted file until that is committed, and one with a merge conflict more than once.
    git = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=False)
    names = sorted(set(filter(None, git.stdout.split("\0")))) if git.returncode == 0 else []
    return [name for name in names if (root / name).is_file()] or _walk(root)


def _walk(root: Path) -> list[str]:
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(_NOT_OURS)]
        found += [(Path(folder) / name).relative_to(root).as_posix() for name in names]
    return sorted(found)


def read_text(path: Path) -> str:
    """Returns the text of a source file, whose line ends become plain newlines."""
    return path.read_text(encoding="utf-8", errors="replace")


def report(lines: list[str], summary: str, has_checked: bool = True) -> int:
    """Prints what a test has found, and a summary.

    Returns the exit status: a test that has checked nothing fails, too.
    """
    print("".join(line + "\n" for line in lines), end="")
    print(summary)
    return 1 if lines or not has_checked else 0


def find_public_functions(root: Path) -> dict[str, tuple[str, int]]:
    """Returns the functions that headers in include/ declare with TRF_API: the header of each, and its parameters."""
    found = {}
    for header in sorted((root / "include").rglob("*.h")):
        for name, parameters in c_tokens.find_declarations(read_text(header), "TRF_API").items():
            found[name] = (header.relative_to(root).as_posix(), parameters)
    return found
