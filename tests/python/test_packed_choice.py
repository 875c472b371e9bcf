# SPDX-License-Identifier: Apache-2.0
"""What is made from times of packed products, here invented ones: medians, and the constants that choose kernels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIT = os.environ.get("PACKED_CHOICE_FIT")
HEADING = "card,early_launch,pause_s,layer,batch,kernel,cut,chosen,rounds,median_us,q1_us,q3_us"
# Layers of 66 and 64 tiles of 128 rows of W, so that each block has one. What the library chooses for these takes half
# as long again as what is the fastest here.
TIMES = {"wgmma-64": 20.0, "bulk-128": 30.0, "wgmma-128": 40.0}
LAYERS = ("8448x4096", "8192x4096")

needs_fit = pytest.mark.skipif(not FIT, reason="PACKED_CHOICE_FIT names no program")


def run(*arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run([FIT, *map(str, arguments)], capture_output=True, text=True)


def line_of(kernel: str, us: float, layer: str = LAYERS[0], cut: str = "1", early_launch: int = 0) -> str:
    return f"H100,{early_launch},0,{layer},16,{kernel},{cut},0,20,{us},{us},{us}"


def write_times(path: Path, times: dict[str, float], *more: str) -> Path:
    lines = [line_of(kernel, us, layer) for layer in LAYERS for kernel, us in times.items()]
    path.write_text("\n".join([HEADING, *lines, *more]) + "\n")
    return path


@needs_fit
def test_check_reports_choices(tmp_path: Path) -> None:
    others = line_of("cublaslt", 5, cut=""), line_of("wgmma-128", 1, early_launch=1)
    made = run("--check", write_times(tmp_path / "times.csv", TIMES, *others))
    assert made.returncode == 0, made.stderr
    assert "as they are: 1 of 3 products within 3 % of the fastest" in made.stdout
    assert "//   H100 8448x4096 by 16: bulk-128 1, fastest wgmma-64 1, 50.0 %\n" in made.stdout
    assert ".bulk_start" not in made.stdout


@needs_fit
def test_times_of_several_files_are_averaged(tmp_path: Path) -> None:
    once = write_times(tmp_path / "once.csv", TIMES)
    again = write_times(tmp_path / "again.csv", TIMES | {"bulk-128": 20.0})
    assert "bulk-128 1, fastest wgmma-64 1, 25.0 %" in run("--check", once, again).stdout


@needs_fit
def test_search_finds_constants_that_lose_less(tmp_path: Path) -> None:
    made = run("--seconds", 1, "--seed", 3, write_times(tmp_path / "times.csv", TIMES))
    assert made.returncode == 0, made.stderr
    before, after = (float(loss) for loss in re.findall(r"loss ([\d.]+)$", made.stdout, re.M))
    assert after < before / 10
    assert "found: 2 of 2 products within 3 %" in made.stdout


@needs_fit
def test_constants_are_printed_as_the_source_has_them(tmp_path: Path) -> None:
    made = run("--seconds", 0, write_times(tmp_path / "times.csv", TIMES))
    assert made.returncode == 0, made.stderr
    printed = made.stdout[made.stdout.index("    .bulk_start") :]
    source = (ROOT / "fused" / "packed" / "trf_packed_estimate.c").read_text()
    assert "".join(printed.split()).rstrip(",") in "".join(source.split()).replace(",}", "}")


@needs_fit
def test_choices_of_another_card_are_kept(tmp_path: Path) -> None:
    made = run("--seconds", 0, "--keep", "H200", write_times(tmp_path / "times.csv", TIMES))
    assert "as they are: 0 of 2 products within 3 % of the fastest; 182 of 182 kept choices" in made.stdout


@needs_fit
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (line_of("wgmma-65", 1), "there is no such kernel or cut"),
        (line_of("wgmma-64", 1, cut="9"), "there is no such kernel or cut"),
        (line_of("bulk-128", 1, cut="stream-k"), "the kernel does not run the product in this cut"),
        (line_of("wgmma-64", 1).replace("H100", "H150"), "the card is none of H100 and H200"),
        (line_of("wgmma-64", 1, layer="8192"), "layer, batch or time is no number"),
        (line_of("wgmma-64", 0), "layer, batch or time is no number"),
        ("H100,0,0", "a line of 12 fields is expected"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    times = write_times(tmp_path / "times.csv", TIMES, line)
    made = run("--check", times)
    assert made.returncode == 1
    assert f"{times}:8: {message}" in made.stderr


@needs_fit
def test_what_is_no_file_of_times_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "other.csv:1: not a file of times" in run("--check", tmp_path / "other.csv").stderr
    assert "cannot be opened" in run("--check", tmp_path / "none.csv").stderr
    assert run("--check").returncode == 2
    assert run("--keep", "H150", tmp_path / "other.csv").returncode == 2


def run_script(name: str, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-B", str(ROOT / "tools" / "packed_choice" / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def medians(*files: Path) -> subprocess.CompletedProcess:
    return run_script("packed_medians.py", *files)


def test_medians_are_of_what_is_chosen_and_of_the_fastest(tmp_path: Path) -> None:
    chosen = "H100,0,0,8192x4096,16,bulk-128,1,1,5,{0},{0},{0}"
    for number, us in enumerate((31.0, 33.0, 32.0)):
        dense = line_of("cublaslt", us + 10, LAYERS[1], cut="")
        lines = [HEADING, dense, chosen.format(us), line_of("wgmma-64", us - 2, LAYERS[1])]
        (tmp_path / f"{number}.csv").write_text("\n".join(lines) + "\n")
    made = medians(*tmp_path.iterdir())
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[1:] == ["H100,0,0,8192x4096,16,42.00,32.00,30.00,bulk-128,1"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,b"], "times.csv:1: not a file of times"),
        ([HEADING, "H100,0,0"], "times.csv:2: no line of times"),
        ([HEADING, line_of("cublaslt", 1, cut="")], "H100 0 0 8448x4096 16: no time of what is chosen"),
        ([HEADING, line_of("wgmma-64", 1)], "H100 0 0 8448x4096 16: no time of cublaslt"),
    ],
)
def test_medians_want_whole_products(tmp_path: Path, lines: list[str], message: str) -> None:
    (tmp_path / "times.csv").write_text("\n".join(lines) + "\n")
    made = medians(tmp_path / "times.csv")
    assert made.returncode == 1
    assert message in made.stderr


def test_kernels_that_can_go(tmp_path: Path) -> None:
    """The cheap ones go, cheapest first, while the limits hold for all of them together, on each card."""
    lines = [
        HEADING,
        *(line_of(kernel, us) for kernel, us in [("wgmma-64", 100), ("wgmma-80", 101), ("wgmma-96", 102)]),
        *(line_of(kernel, us, LAYERS[1]) for kernel, us in [("bulk-128", 1000), ("wgmma-64", 1100)]),
        line_of("cublaslt", 1, cut=""),
    ]
    (tmp_path / "times.csv").write_text("\n".join(lines) + "\n")
    made = run_script("packed_shapes.py", tmp_path / "times.csv", "--mean", 0.15, "--worst", 3)
    assert made.returncode == 0, made.stderr
    first, other = (f"{layer} by 16" for layer in LAYERS)
    assert made.stdout.splitlines() == [
        f"without bulk-128: H100: 9.09 %, worst 10.0 % at {other}",
        f"without wgmma-64: H100: 0.09 %, worst 1.0 % at {first}",
        f"without wgmma-80: H100: 0.00 %, worst 0.0 % at {first}",
        f"without wgmma-96: H100: 0.00 %, worst 0.0 % at {first}",
        "can go: wgmma-80, wgmma-96",
        f"without all of them: H100: 0.00 %, worst 0.0 % at {first}",
    ]
    # The other card has only one kernel, which stays.
    (tmp_path / "other.csv").write_text("\n".join([HEADING, line_of("wgmma-80", 1).replace("H100", "H200")]) + "\n")
    made = run_script("packed_shapes.py", tmp_path / "times.csv", tmp_path / "other.csv", "--mean", 0.25)
    assert "can go: wgmma-96, wgmma-64\n" in made.stdout
    assert "inf" in made.stdout


def test_kernels_want_times(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text("\n".join([HEADING, line_of("cublaslt", 1, cut="")]) + "\n")
    made = run_script("packed_shapes.py", tmp_path / "times.csv")
    assert made.returncode == 1
    assert "no time of a kernel" in made.stderr
