# SPDX-License-Identifier: Apache-2.0
"""tools/bench/plot_bench.py on small files as `transfuse bench --device cuda` writes them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATHS = ("fused", "wide", "two-step", "auto")


def run(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "tools" / "bench" / "plot_bench.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def write_bench(path: Path, **fields: object) -> Path:
    path.write_text(json.dumps({"device": "cuda", "gpu": "A GPU", **fields}))
    return path


@pytest.mark.parametrize("mode", ["overlap", "moe", "offload", "load"])
def test_command_refuses_other_modes(tmp_path: Path, mode: str) -> None:
    bench = write_bench(tmp_path / "bench.json", mode=mode, figures=[])
    plotted = run(bench, "-o", tmp_path / "plot.png")
    assert plotted.returncode == 1
    assert plotted.stderr.count("\n") == 1
    assert all(word in plotted.stderr for word in (str(bench), mode, "layers", "batch-sweep"))
    assert list(tmp_path.iterdir()) == [bench]


def test_command_refuses_what_is_no_bench(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no JSON")
    tuning = tmp_path / "tuning.json"
    tuning.write_text('{"format": "transfuse tuning", "version": 1, "layers": []}')
    for path in (text, tmp_path / "absent", tuning):
        plotted = run(path)
        assert plotted.returncode == 1
        assert plotted.stderr.startswith(f"{path}: ") and plotted.stderr.count("\n") == 1


def test_command_plots_every_path(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="skipped python.plot_bench's plot: there is no matplotlib")
    measurements = [{"what": "decode", "favor": "speed", "batch": 0, "median_seconds": 2e-5, "bytes_written": 33554432}]
    for batch in (1, 8):
        measurements.append({"what": "cublaslt", "favor": None, "batch": batch, "median_seconds": 1.3e-5})
        measurements += [{"what": path, "favor": "speed", "batch": batch, "median_seconds": 1e-5} for path in PATHS]
    result = {"rows": 4096, "cols": 4096, "codec": "bf16", "measurements": measurements}
    plot = tmp_path / "plot.svg"
    plotted = run(write_bench(tmp_path / "bench.json", results=[result]), "-o", plot)
    assert plotted.returncode == 0, plotted.stderr
    # A text stands as a comment beside its outlines.
    labels = re.findall(r"<!-- 4096x4096, ([a-z-]+), speed, A GPU -->", plot.read_text())
    assert set(PATHS) <= set(labels)
