# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/ that are in Python: what --help says without their packages, and the sample's files.

tests/python/test_torch_models.py runs those that need torch, and tests/python/test_page_snippets.py loads the sample.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PACKAGES = ("accelerate", "diffusers", "ml_dtypes", "numpy", "peft", "torch", "transformers", "transfuse")


def run(*arguments: object, **environment: str) -> str:
    command = [sys.executable, "-B", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def without_packages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for PYTHONPATH that has the examples' packages, none of which can be imported."""
    folder = tmp_path_factory.mktemp("missing")
    for name in PACKAGES:
        (folder / f"{name}.py").write_text(f"raise ImportError('no {name} here')\n")
    return str(folder)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_help_needs_no_package_and_the_page_lists_it(example: Path, without_packages: str) -> None:
    text = run(example, "--help", PYTHONPATH=without_packages)
    arguments = re.findall(r"^  (--?\w+|\w+)", text, re.M)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    line = next((line for line in page.splitlines() if line.startswith(f"| `{example.name}`")), "")
    missing = [name for name in arguments if name != "-h" and name not in line and name.upper() not in line]
    assert len(arguments) >= 2 and not missing, (missing, line)


def test_the_sample_has_the_same_bytes_every_time(tmp_path: Path) -> None:
    script = ROOT / "examples" / "make_sample_checkpoint.py"
    for name in ("one", "two"):
        run(script, "--small", tmp_path / name)
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert 1.5e6 < sum(map(len, files.values())) < 2.5e6
    # Every id of the embedding is a token, and every part of a merge is one.
    model = json.loads(files["tokenizer.json"])["model"]
    assert sorted(model["vocab"].values()) == list(range(json.loads(files["config.json"])["vocab_size"]))
    assert all({first, second, first + second} <= model["vocab"].keys() for first, second in model["merges"])
