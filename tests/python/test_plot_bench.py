"""tools/bench/plot_bench.py on files of docs/performance."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "performance"


def run(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "tools" / "bench" / "plot_bench.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("mode", ["overlap", "moe", "offload"])
def test_command_refuses_other_modes(tmp_path: Path, mode: str) -> None:
    record = sorted(RECORDS.glob(f"*-gpu-{mode}*.json"))[0]
    plotted = run(record, "-o", tmp_path / "plot.png")
    assert plotted.returncode == 1
    assert plotted.stderr.count("\n") == 1
    assert all(word in plotted.stderr for word in (str(record), mode, "layers", "batch-sweep"))
    assert not list(tmp_path.iterdir())


def test_command_refuses_what_is_no_bench(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no JSON")
    for path in (text, tmp_path / "absent", RECORDS / "2026-11-23-gpu-tuning.json"):
        plotted = run(path)
        assert plotted.returncode == 1
        assert plotted.stderr.startswith(f"{path}: ") and plotted.stderr.count("\n") == 1


def test_command_plots_every_path(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="skipped python.plot_bench's plot: there is no matplotlib")
    plot = tmp_path / "plot.svg"
    plotted = run(RECORDS / "2026-11-23-gpu-sweep-layers.json", "-o", plot)
    assert plotted.returncode == 0, plotted.stderr
    # A text stands as a comment beside its outlines.
    labels = re.findall(r"<!-- 4096x4096, ([a-z-]+), speed, NVIDIA H200 -->", plot.read_text())
    assert {"fused", "wide", "two-step", "auto"} <= set(labels)
