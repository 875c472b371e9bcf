"""The library's table of crossovers against the tuning on record that it was made of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "bench" / "crossovers.py"
TUNING = ROOT / "docs" / "performance" / "2026-11-23-gpu-tuning.json"


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(TOOL), *arguments], capture_output=True, text=True)


def test_command_makes_the_table() -> None:
    made = run("90", str(TUNING))
    assert made.returncode == 0, made.stderr
    assert made.stdout == (ROOT / "runtime" / "trf_crossovers.inc").read_text()


def test_command_smooths_noise(tmp_path: Path) -> None:
    times = [(1, 10, 30, 20), (2, 10, 30, 20), (3, 20.1, 30, 20), (4, 21, 40, 22), (6, 30, 40, 20), (8, 30, 25, 30)]
    batches = ", ".join(
        f'{{"to": {m}, "microseconds": {{"fused": {f}, "two-step": {t}, "wide": {w}}}}}' for m, f, t, w in times
    )
    tuning = tmp_path / "tuning.json"
    layer = '"codec": "int", "class_bits": 4, "raw_bits": 3, "scale_groups": true, "rows": 64, "cols": 128'
    tuning.write_text(f'{{"layers": [{{{layer}, "batches": [{batches}]}}]}}')
    made = run("80", str(tuning))
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[1:] == ["{80, {TRF_CODEC_INT, 4, 3, 1, 64, 128}, 4, 6},"]


def test_command_says_how_it_is_used() -> None:
    made = run("90")
    assert made.returncode == 1 and "crossovers.py 90" in made.stderr
