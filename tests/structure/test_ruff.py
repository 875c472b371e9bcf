# SPDX-License-Identifier: Apache-2.0
"""ruff finds nothing in the Python files and leaves their format as it is; /ruff.toml has the settings.

ruff is the one that sh test.sh puts into .venv. Usage: test_ruff.py [--root DIR]; other arguments are those that every
test here gets. What it complains of is mended by `ruff check --fix` and `ruff format`, given those files.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from repository_files import ROOT, list_files, read_text, report

SKIPPED = 77


def find_tool(root: Path) -> str | None:
    """Returns the ruff of the version that tests/requirements.txt pins: each has its own rules and its own format."""
    pin = re.search(r"^ruff==(\S+)", read_text(root / "tests" / "requirements.txt"), re.M)
    for path in (root / ".venv" / "bin" / "ruff", shutil.which("ruff")):
        if path and Path(path).exists():
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            if said.split() == ["ruff", pin[1]]:
                return str(path)
    return None


def find_faults(tool: str, root: Path, names: list[str]) -> list[str]:
    """Returns what ruff says of the files, a line each."""
    lines = []
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [tool, *command, "--output-format=concise", "--no-cache", "--quiet", "--config=ruff.toml", *names],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        said = (done.stdout + done.stderr).splitlines()
        lines += (said or [f"ruff {command[0]} fails"]) if done.returncode else []
    return lines


def test_finds(tool: str, root: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(root / "ruff.toml", folder)
        texts = {"good.py": "a = 1\n", "fault.py": "import os\n", "format.py": "a  =  1\n"}
        for name, text in texts.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        lines = find_faults(tool, Path(folder), list(texts))
        named = {name for name in texts if any(name in line for line in lines)}
        assert named == {"fault.py", "format.py"}, lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    options, _ = parser.parse_known_args()
    tool = find_tool(options.root)
    if not tool:
        print("skipped structure.ruff: there is no ruff of the version in tests/requirements.txt")
        return SKIPPED
    test_finds(tool, options.root)

    names = [name for name in list_files(options.root) if name.endswith(".py")]
    lines = find_faults(tool, options.root, names)
    return report(lines, f"{len(names)} files; {len(lines)} findings", bool(names))


if __name__ == "__main__":
    sys.exit(main())
