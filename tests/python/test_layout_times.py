# SPDX-License-Identifier: Apache-2.0
"""The library's times of layouts against the figures that they are made of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "runtime" / "tuning" / "layout_times" / "make_layout_times.py"


def test_committed_times_are_what_the_script_makes() -> None:
    made = subprocess.run([sys.executable, str(TOOL)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert made.stdout == (ROOT / "runtime" / "tuning" / "trf_layout_times.inc").read_text()
