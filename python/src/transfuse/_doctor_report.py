# SPDX-License-Identifier: Apache-2.0
"""What `transfuse doctor` says: lines as it goes, or one JSON object at its end."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from typing import Any

_GIB, _MIB = 1 << 30, 1 << 20
_TEXT_COLUMN = 31  # texts begin in this column; in a narrow terminal right after the label


def write_size(size: int) -> str:
    """Writes a number of bytes for readers."""
    return f"{size / _GIB:.2f} GiB" if size >= _GIB // 10 else f"{size / _MIB:.1f} MiB"


def _count(lines: list[str], what: str) -> str:
    return f"{len(lines)} {what}{'s' if len(lines) > 1 else ''}"


def _find_columns() -> int | None:
    """Returns the columns to fold lines to, or None."""
    if not (sys.stdout.isatty() or os.environ.get("COLUMNS")):
        return None
    return max(shutil.get_terminal_size().columns, 20)


class Report:
    """Prints as it goes, unless it is quiet, and collects the problems.

    Attributes
    ----------
    problems, not_tried : list of str
    warnings : list of str
        Texts on what works here, but not everywhere.
    checkpoints : list of dict
        The facts about each folder of a model, for programs.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.problems: list[str] = []
        self.not_tried: list[str] = []
        self.warnings: list[str] = []
        self.checkpoints: list[dict[str, Any]] = []
        self._sections: list[dict[str, Any]] = []

    def section(self, title: str) -> None:
        self._sections.append({"title": title, "rows": []})
        self._print("")
        self._print(title)

    def row(self, label: str, text: str) -> None:
        if self._sections:
            self._sections[-1]["rows"].append({"what": label, "says": text})
        columns = _find_columns()
        if columns is None or 2 * _TEXT_COLUMN <= columns:
            self._print(f"  {label:<{_TEXT_COLUMN - 3}} {text}", _TEXT_COLUMN)
        else:
            self._print(f"  {label}: {text}" if label else f"    {text}", 4)

    def add_problem(self, text: str) -> None:
        self.problems.append(text)

    def conclude(self, what: str, problem: str, reason: str = "") -> bool:
        """Says whether something works: `problem` is what is wrong and what to do, `reason` why there is no problem."""
        self.row(what, f"no: {problem or reason}" if problem or reason else "yes")
        if problem:
            self.add_problem(f"{what}: {problem}")
        return not problem and not reason

    def close(self) -> None:
        """Prints the end: problems and warnings, or the JSON object."""
        if self.quiet:
            known = {"problems": self.problems, "not_tried": self.not_tried, "warnings": self.warnings}
            print(json.dumps({**known, "checkpoints": self.checkpoints, "sections": self._sections}, indent=2))
            return
        if self.problems:
            print(f"\n{_count(self.problems, 'problem')} found:")
        elif self.not_tried:
            print("\nno problem found in what was tried, but this was not:")
        elif self.warnings:
            print(f"\nno problem found; {_count(self.warnings, 'warning')}:")
        else:
            print("\nno problem found")
        for line in [*(self.problems or self.not_tried), *(f"warning: {line}" for line in self.warnings)]:
            self._print(f"  * {line}", 4)

    def _print(self, line: str, indent: int = 0) -> None:
        """Prints a line, folded to the terminal or $COLUMNS; words such as paths stay whole, in a pipe also lines."""
        if self.quiet:
            return
        columns = _find_columns()
        if columns is not None:
            folder = textwrap.TextWrapper(columns, subsequent_indent=" " * indent, break_long_words=False)
            folder.break_on_hyphens = False
            line = folder.fill(line)
        print(line, flush=True)
