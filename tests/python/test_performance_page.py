# SPDX-License-Identifier: Apache-2.0
"""Compares the pages' tables and the plot with the medians that they are made from, and tests how medians are made."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "tools" / "bench"
DATA = ROOT / "docs" / "performance"
PAGES = [ROOT / "README.md", ROOT / "docs" / "performance.md"]


def run(script: Path, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-B", str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture()
def copy(tmp_path: Path) -> Path:
    """A folder with what the scripts read, which they may write to."""
    for folder in ("tools/bench", "docs/performance", "runtime/tuning"):
        (tmp_path / folder).mkdir(parents=True)
    for file in (*BENCH.glob("*.py"), *DATA.iterdir(), *PAGES, ROOT / "runtime" / "tuning" / "trf_crossovers.inc"):
        shutil.copy(file, tmp_path / file.relative_to(ROOT))
    return tmp_path


def test_tables_are_those_of_the_medians() -> None:
    checked = run(BENCH / "performance_tables.py", "--check")
    assert checked.returncode == 0, checked.stderr


def test_plot_is_that_of_the_medians(tmp_path: Path) -> None:
    drawn = run(BENCH / "plot_speed.py", "-o", tmp_path / "plot.svg")
    assert drawn.returncode == 0, drawn.stderr
    plot = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert plot == (DATA / "speed-over-batch.svg").read_text(encoding="utf-8")
    assert len(plot) < 60_000 and 'fill="#ffffff"' in plot.splitlines()[1]


def test_medians_change_the_page_and_the_plot(copy: Path) -> None:
    speed = copy / "docs" / "performance" / "speed.csv"
    text = speed.read_text(encoding="utf-8")
    line = re.search(r"^NVIDIA H200,\w+,\d+,8192x8192,bf16,,1,cublaslt,([\d.]+),.*$", text, re.M)
    speed.write_text(text.replace(line[0], line[0].replace(line[1], f"{2 * float(line[1]):.2f}")), encoding="utf-8")
    assert run(copy / "tools/bench/performance_tables.py", "--check").returncode == 1
    assert run(copy / "tools/bench/performance_tables.py").returncode == 0
    assert run(copy / "tools/bench/performance_tables.py", "--check").returncode == 0
    assert "| 8192×8192 | H200 | **1.33**/**2.63** |" in (copy / "docs" / "performance.md").read_text(encoding="utf-8")
    assert run(copy / "tools/bench/plot_speed.py").returncode == 0
    drawn = copy / "docs" / "performance" / "speed-over-batch.svg"
    assert drawn.read_text() != (DATA / "speed-over-batch.svg").read_text()


def test_the_readme_has_packed_layers_first_and_coded_ones_beside(copy: Path) -> None:
    packed = copy / "docs" / "performance" / "packed.csv"
    text = packed.read_text(encoding="utf-8")
    for card in ("H100", "H200"):  # the table has the lower figure of the two
        line = re.search(rf"^{card},0,0,8192x8192,32,([\d.]+),.*$", text, re.M)
        text = text.replace(line[0], line[0].replace(line[1], f"{2 * float(line[1]):.2f}"))
        packed.write_text(text, encoding="utf-8")
        assert run(copy / "tools/bench/performance_tables.py").returncode == 0
        page = (copy / "README.md").read_text(encoding="utf-8")
        doubled = re.search(r"^\| 8192×8192 \| [\d.*]+ \| \*\*2\.4\d\*\* (\| [\d.*]+ ){4}\|$", page, re.M)
        assert bool(doubled) == (card == "H200"), page
    assert run(copy / "tools/bench/plot_speed.py").returncode == 0
    drawn = (copy / "docs" / "performance" / "speed-over-batch.svg").read_text(encoding="utf-8")
    assert drawn != (DATA / "speed-over-batch.svg").read_text(encoding="utf-8")
    # The words are explained before the table uses them.
    before = page.partition("<!-- table: first -->")[0].lower()
    assert "*packed*" in before and "*coded*" in before


def test_every_point_of_the_plot_lies_on_its_axes() -> None:
    plot = (DATA / "speed-over-batch.svg").read_text(encoding="utf-8")
    assert "packed: 75 %" in plot and "coded: 68 %" in plot
    grid = re.search(r'<path d="([^"]*)" stroke="#dddddd"/>', plot)[1]
    lines = [float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)h", grid)]
    curves = re.findall(r'<path d="M([^"]*)" fill="none"', plot)
    heights = [float(place.split()[1]) for curve in curves for place in curve.split("L")]
    assert len(curves) == 12 and len(heights) > 100
    assert min(lines) <= min(heights) and max(heights) <= max(lines)


def test_a_second_card_makes_rows_of_its_own(copy: Path) -> None:
    row = "NVIDIA H100 80GB HBM3,abc,9,2048x5632,bf16,{favor},1,{what},{time},{time},{time},\n"
    with open(copy / "docs" / "performance" / "speed.csv", "a", encoding="utf-8") as speed:
        speed.write(row.format(favor="", what="cublaslt", time="30.00"))
        speed.write(row.format(favor="speed", what="auto", time="20.00"))
    assert run(copy / "tools/bench/performance_tables.py").returncode == 0
    page = (copy / "docs" / "performance.md").read_text(encoding="utf-8")
    assert re.search(r"^\| 2048×5632 \| H200 \|.*\n\| 2048×5632 \| H100 \| \*\*1\.34\*\*/\*\*1\.50\*\*", page, re.M)


def test_packed_and_coded_layers_stand_side_by_side(copy: Path) -> None:
    page, data = copy / "docs" / "performance.md", copy / "docs" / "performance"
    (data / "packed.csv").write_text(
        "card,early_launch,pause_s,layer,batch,cublaslt_us,packed_us,fastest_us,kernel,cut\n"
        "H100,0,0,8192x8192,1,13,10,9,bulk-64,1\n"
        "H100,0,0.6,8192x8192,8,11,10,10,wgmma-96,1\n"
        "H100,1,0,8192x8192,32,14,10,10,bulk-64,1\n"
        "H200,0,0,1024x4096,128,9,10,10,bulk-64,1\n"
    )
    (data / "speed.csv").write_text(
        "card,commit,rounds,subject,codec,favor,batch,what,median_us,q1_us,q3_us,error_f32\n"
        "NVIDIA H100 80GB HBM3,abc,9,8192x8192,bf16,,1,cublaslt,12,12,12,\n"
        "NVIDIA H100 80GB HBM3,abc,9,8192x8192,bf16,speed,1,auto,10,10,10,\n"
        "NVIDIA H100 80GB HBM3,abc,9,8192x8192,bf16,,64,cublaslt,8,8,8,\n"
        "NVIDIA H100 80GB HBM3,abc,9,8192x8192,bf16,speed,64,auto,10,10,10,\n"
    )
    page.write_text("<!-- table: layouts -->\n<!-- end -->\n", encoding="utf-8")
    (copy / "README.md").write_text("", encoding="utf-8")
    assert run(copy / "tools/bench/performance_tables.py", "--check").returncode == 1
    assert run(copy / "tools/bench/performance_tables.py").returncode == 0
    assert [line for line in page.read_text(encoding="utf-8").splitlines() if "×" in line] == [
        "| 8192×8192 | H100 | **1.30**/**1.20** | – | – | –/0.80 | – | – |",
        "| 1024×4096 | H200 | – | – | – | – | 0.90/– | – |",
    ]


def test_models_and_packing_come_from_their_files(copy: Path) -> None:
    page, data = copy / "docs" / "performance.md", copy / "docs" / "performance"
    (data / "models.csv").write_text(
        "card,model,layout,what,size,ratio,tokens_per_s,bf16_tokens_per_s\n"
        "H100,A,packed,decode,1,1.30,13,10\n"
        "H100,A,packed,prompt,8192,0.95,,\n"
        "H100,B,coded,decode,1,,30,\n"
    )
    (data / "packing.csv").write_text(
        "card,run,what,layer,us,min_us,max_us\n"
        "H200,1,pack dense,28672x8192,269,261,2026\n"
        "H200,2,pack dense,4096x4096,76,,\n"
        "H200,1,convert plain to packed,8192x8192,226,,\n"
    )
    page.write_text("".join(f"<!-- table: {name} -->\n<!-- end -->\n" for name in ("models", "transfers")))
    assert run(copy / "tools/bench/performance_tables.py").returncode == 0
    filled = page.read_text(encoding="utf-8")
    assert "| A | packed | H100 | **1.30** | – | – | – | – | – | – | 0.95 |" in filled and "| B |" not in filled
    assert "| packing dense 28672×8192, µs | 269 | – | – |" in filled


def test_mixtures_are_compared_with_the_fastest_other(copy: Path) -> None:
    page, data = copy / "docs" / "performance.md", copy / "docs" / "performance"
    subject = "128 of 768x2048, 8 routed"
    times = [
        ("NVIDIA H200", "uniform", 1, "packed mixture", 20),
        ("NVIDIA H200", "uniform", 1, "limit, packed", 10),
        ("NVIDIA H200", "uniform", 1, "vllm, table", 30),
        ("NVIDIA H200", "uniform", 1, "limit, bf16", 14),
        ("NVIDIA H200", "uniform", 16384, "packed mixture", 20),
        ("NVIDIA H200", "uniform", 16384, "vllm, default", 30),
        ("NVIDIA H200", "uniform", 16384, "torch grouped_mm, compiled", 18),
        ("NVIDIA H100 80GB HBM3", "skewed", 64, "packed mixture", 20),
        ("NVIDIA H100 80GB HBM3", "skewed", 64, "limit, packed", 19),
        ("NVIDIA H100 80GB HBM3", "skewed", 64, "vllm, searched", 21),
        ("NVIDIA H100 80GB HBM3", "skewed", 4, "packed mixture", 20),  # which nothing was compared with
        ("NVIDIA H100 80GB HBM3", "skewed", 4, "limit, bf16", 25),
    ]
    lines = [
        f'{card},abc,9,"{subject}, {routes}",bf16,speed,{tokens},"{what}",{time},{time},{time},'
        for card, routes, tokens, what, time in times
    ]
    header = "card,commit,rounds,subject,codec,favor,batch,what,median_us,q1_us,q3_us,error_f32"
    (data / "mixtures.csv").write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    page.write_text("<!-- table: mixtures -->\n<!-- end -->\n", encoding="utf-8")
    filled = run(copy / "tools/bench/performance_tables.py")
    assert filled.returncode == 0, filled.stderr
    name = "Qwen3-30B-A3B: 128 of 768×2048, 8 a token"
    assert [line for line in page.read_text(encoding="utf-8").splitlines() if "×" in line] == [
        f"| {name} | H200 | **1.50**, 50 % | – | – | – | – | – | – | 0.90 |",
        f"| {name}, skewed | H100 | – | – | – | **1.05**, 95 % | – | – | – | – |",
    ]


def test_a_card_that_lacks_a_batch_of_the_first_table_is_named(copy: Path) -> None:
    packed = copy / "docs" / "performance" / "packed.csv"
    text = packed.read_text(encoding="utf-8")
    packed.write_text(re.sub(r"^H100,0,0,8192x8192,32,.*\n", "", text, flags=re.M), encoding="utf-8")
    made = run(copy / "tools/bench/performance_tables.py")
    assert made.returncode == 1 and "KeyError" not in made.stderr
    assert (
        "packed.csv: the table of README.md needs packed 8192x8192 at batch 32, which NVIDIA H100 lacks" in made.stderr
    )


def test_data_are_small_and_have_medians_within_their_quartiles() -> None:
    files = list(DATA.iterdir())
    assert sum(file.stat().st_size for file in files) < 280_000  # of two cards
    lines = 0
    for file in files:
        if file.suffix != ".csv":
            continue
        with open(file, newline="", encoding="utf-8") as rows:
            for row in csv.DictReader(rows):
                if "median_us" in row:
                    low, high = row.get("q1_us") or row.get("min_us"), row.get("q3_us") or row.get("max_us")
                    assert 0 < float(low) <= float(row["median_us"]) <= float(high), (file.name, row)
                    lines += 1
    assert lines > 900


def test_medians_and_quartiles_of_a_bench(tmp_path: Path) -> None:
    seconds = [4e-6, 1e-6, 3e-6, 2e-6, 5e-6]
    measurements = [
        {"what": "fused", "favor": "speed", "batch": 8, "seconds": seconds, "error_f32": 1.234e-6},
        {"what": "cublaslt", "favor": None, "batch": 8, "seconds": [1500e-6]},
        {"what": "ahead", "favor": "speed", "batch": 8, "seconds": seconds},
    ]
    blob = {"favor": "size", "bits_per_weight": 10.81234, "entropy_bits": 10.5, "relative_rms_error": 0.0}
    layers = {
        "device": "cuda",
        "gpu": "A GPU",
        "commit": "abc",
        "results": [{"rows": 64, "cols": 32, "codec": "bf16", "measurements": measurements, "blobs": [blob]}],
    }
    figures = {
        "device": "cuda",
        "gpu": "A GPU",
        "figures": [{"subject": "2 x 3x4, a b", "batch": 1, "what": "grouped", "seconds": seconds}],
    }
    for name, bench in (("layers", layers), ("figures", figures)):
        (tmp_path / name).write_text(json.dumps(bench))
    made = run(BENCH / "medians.py", tmp_path / "layers", tmp_path / "figures")
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines() == [
        "card,commit,rounds,subject,codec,favor,batch,what,median_us,q1_us,q3_us,error_f32",
        "A GPU,abc,5,64x32,bf16,speed,8,fused,3.00,2.00,4.00,1.2e-06",
        "A GPU,abc,1,64x32,bf16,,8,cublaslt,1500.0,1500.0,1500.0,",
        'A GPU,,5,"2 x 3x4, a b",bf16,speed,1,grouped,3.00,2.00,4.00,',
    ]
    made = run(BENCH / "medians.py", "--sizes", tmp_path / "layers")
    assert made.stdout.splitlines()[1:] == ["A GPU,abc,64x32,bf16,size,10.500,10.812,0"]
    on_cpu = {"device": "cpu", "cpu": "A CPU", "results": [{"rows": 64, "cols": 32, "codec": "bf16", **blob}]}
    (tmp_path / "on_cpu").write_text(json.dumps(on_cpu))
    made = run(BENCH / "medians.py", "--sizes", tmp_path / "on_cpu")
    assert made.stdout.splitlines()[1:] == ["A CPU,,64x32,bf16,size,10.500,10.812,0"]
    made = run(BENCH / "medians.py", tmp_path / "on_cpu")
    assert made.returncode == 1 and "not a file of bench --device cuda" in made.stderr
    (tmp_path / "figures").write_text("no JSON")
    made = run(BENCH / "medians.py", tmp_path / "figures")
    assert made.returncode == 1 and "cannot be read" in made.stderr
    assert run(BENCH / "medians.py").returncode == 1
