# SPDX-License-Identifier: Apache-2.0
"""Measures which lines and branches the tests run of what reads untrusted bytes: format, decoders, safetensors.

    measure_coverage.py [BUILD] [--jobs N] [--only REGEX] [--keep] [--missing FILE...] [--csv FILE]

Builds the tests below in BUILD (build/coverage) with gcc's --coverage, without optimization and assertions, runs them,
and prints a line for each file and folder. Goals are 95 % of the lines and 90 % of the branches of each group; a group
below them makes the exit status 1. --only: only the tests whose names match. --keep: what earlier runs counted is added
to, and nothing is built. --missing: prints the lines of these files that did not run, and those with a branch that was
not taken. --csv: where the figures go.

How branches are counted: as gcov does, one for each way out of a condition, and of each part of it that && and ||
join. Those of exceptions are left out (device headers are compiled as C++), and there are none of assert. No
function is inlined; those of headers are compiled into many objects, and gcov has a copy of their branches for each: a
branch is taken if it is in any of the copies. Code for AVX-512 counts where the processor has it (VBMI2, too), as it
cannot run elsewhere.

Device headers run in the emulated warps of tests/warp. Those that cannot are in NOT_EMULATED, with the reason; another
.cuh of decoder_gpu that no test runs is an error, unless only some tests run.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOALS = 95.0, 90.0
GROUPS = {
    "format": r"format/.*",
    "decoder_cpu": r"decoder_cpu/.*",
    "decoder_gpu": r"decoder_gpu/.*\.(h|cuh)",
    "safetensors reader": r"loader/trf_(safetensors|json|checkpoint_index)\.[ch]",
}
NOT_EMULATED = {
    "decoder_gpu/trf_kernel_smem.cuh": "host code that asks CUDA",
    "decoder_gpu/trf_prefetch.cuh": "PTX, in place of which warp_edge.cpp has a read",
    "decoder_gpu/trf_ptx.cuh": "PTX, in place of which warp_emulation.h stands",
}
UNIT_TESTS = """
    blob_tiles blob_validate checkpoint checkpoint_failures checkpoint_folder checkpoint_index
    checkpoint_no_memory checksum coded_product_warp data_checksum decode decode_choice decode_edges_warp
    device_packed8_layer device_packed_layer device_plain device_verify divisor edge_warp find_fp8_warp
    fp8_checkpoint fragment_write golden integrity_warp lane layer_on_cpu limits matmul model_config no_threads
    pack_coded_experts_warp pack_coded_warp packed packed8 packed8_validate packed_form packed_validate
    plain_head row_reader safetensors scaled_fp8 slab_directory warp_walk
""".split()
REPLAYS = "blob checkpoint config edges frequency index lane pack_coded packed safetensors walk".split()


@dataclass
class Line:
    """What ran of a line: how often, and the branches of each copy of it."""

    count: int = 0
    copies: list[list[int]] = field(default_factory=list)

    def branches(self) -> list[int]:
        """Returns how often each branch was taken, over all copies.

        Where a line is in several copies in one function, their branches stand one after the other; so the shortest
        copy tells how many there are.
        """
        if not self.copies:
            return []
        size = min(map(len, self.copies))
        sums = [0] * size
        for copy in self.copies:
            for i, count in enumerate(copy):
                sums[i % size] += count
        return sums


def build(folder: Path, jobs: int) -> None:
    flags = "-O0 -DNDEBUG --coverage -Dalways_inline=unused"
    subprocess.run(
        ["cmake", "--preset", "quick", "-B", folder, "-DTRF_EMULATE_KERNELS=ON", "-DCMAKE_BUILD_TYPE=Debug",
         f"-DCMAKE_C_FLAGS_DEBUG={flags}", f"-DCMAKE_CXX_FLAGS_DEBUG={flags}"],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    targets = [f"test_{name}" for name in UNIT_TESTS] + [f"replay_{name}" for name in REPLAYS]
    subprocess.run(["cmake", "--build", folder, "-j", str(jobs), "--target", *targets], cwd=ROOT, check=True)
    for counts in folder.rglob("*.gcda"):
        counts.unlink()


def run_tests(folder: Path, jobs: int, only: str) -> None:
    names = [f"unit.{name}" for name in UNIT_TESTS] + [f"fuzz.{name}" for name in REPLAYS]
    chosen = [re.escape(name) for name in names if re.search(only, name)]
    environment = {**os.environ, "TRF_TEST_QUICK": "1", "CK_DEFAULT_TIMEOUT": "3600"}
    command = ["ctest", "--test-dir", folder, "-j", str(jobs), "--timeout", "3600", "--output-on-failure"]
    subprocess.run([*command, "-R", f"^({'|'.join(chosen)})$"], check=True, env=environment)


def read_counts(counts: Path) -> list[dict]:
    """Returns what gcov says of the sources that are compiled into one object."""
    command = ["gcov", "--branch-probabilities", "--json-format", "--stdout", counts.name]
    told = subprocess.run(command, cwd=counts.parent, capture_output=True, text=True, check=True).stdout
    return [file for text in told.splitlines() for file in json.loads(text)["files"]]


def collect(folder: Path, jobs: int) -> dict[str, dict[int, Line]]:
    """Returns the lines with code of all files in GROUPS, by the file's name and the line's number."""
    found: dict[str, dict[int, Line]] = defaultdict(lambda: defaultdict(Line))
    wanted = re.compile("|".join(f"({pattern})" for pattern in GROUPS.values()))
    has_avx512 = "avx512_vbmi2" in Path("/proc/cpuinfo").read_text()
    with ThreadPoolExecutor(jobs) as pool:
        for files in pool.map(read_counts, sorted(folder.rglob("*.gcda"))):
            for file in files:
                path = os.path.normpath(folder / file["file"])
                name = os.path.relpath(path, ROOT)
                if not wanted.fullmatch(name) or (name.endswith("_avx512.c") and not has_avx512):
                    continue
                for entry in file["lines"]:
                    line = found[name][entry["line_number"]]
                    line.count += entry["count"]
                    branches = [branch["count"] for branch in entry["branches"] if not branch["throw"]]
                    if branches:
                        line.copies.append(branches)
    return found


def count(lines: list[Line]) -> tuple[int, int, int, int]:
    """Returns how many lines there are, how many ran, and the same of branches."""
    branches = [taken for line in lines for taken in line.branches()]
    return len(lines), sum(line.count > 0 for line in lines), len(branches), sum(taken > 0 for taken in branches)


def percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 100.0


def row_of(name: str, lines: list[Line]) -> list:
    all_lines, ran, branches, taken = count(lines)
    return [
        name,
        all_lines,
        ran,
        round(percent(ran, all_lines), 1),
        branches,
        taken,
        round(percent(taken, branches), 1),
    ]


def print_missing(name: str, lines: dict[int, Line]) -> None:
    source = (ROOT / name).read_text().splitlines()
    for number, line in sorted(lines.items()):
        branches = line.branches()
        if line.count == 0 or 0 in branches:
            said = "did not run" if line.count == 0 else f"{branches.count(0)} of {len(branches)} branches not taken"
            print(f"{name}:{number}: {said}: {source[number - 1].strip()}")


def check_all_emulated(found: dict[str, dict[int, Line]]) -> None:
    """Raises SystemExit if a device header of decoder_gpu has run nowhere, or is said not to be emulated and is."""
    names = {os.path.relpath(path, ROOT) for path in (ROOT / "decoder_gpu").glob("*.cuh")}
    wrong = (names - set(found)) ^ set(NOT_EMULATED)
    if wrong:
        sys.exit(f"measure_coverage.py: NOT_EMULATED should differ in {', '.join(sorted(wrong))}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, nargs="?", default=ROOT / "build" / "coverage")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--no-run", action="store_true", help="only count again what has run")
    parser.add_argument("--missing", nargs="*", default=[], metavar="FILE")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    folder = options.build.resolve()
    if not options.keep and not options.no_run:
        build(folder, options.jobs)
    if not options.no_run:
        run_tests(folder, options.jobs, options.only)
    found = collect(folder, options.jobs)
    if not options.only:
        check_all_emulated(found)
    rows, below = [], 0
    for group, pattern in GROUPS.items():
        names = sorted(name for name in found if re.fullmatch(pattern, name))
        rows += [row_of(name, list(found[name].values())) for name in names]
        rows.append(row_of(group, [line for name in names for line in found[name].values()]))
        below += rows[-1][3] < GOALS[0] or rows[-1][6] < GOALS[1]
    for name, reason in NOT_EMULATED.items():
        print(f"{name:42} not measured: {reason}")
    for name, lines, ran, line_percent, branches, taken, branch_percent in rows:
        print(f"{name:42} {ran:5} of {lines:5} lines {line_percent:5.1f} %  "
              f"{taken:5} of {branches:5} branches {branch_percent:5.1f} %")  # fmt: skip
    for name in options.missing:
        print_missing(name, found[name])
    if options.csv:
        with options.csv.open("w", newline="") as out:
            head = ["file", "lines", "lines_run", "lines_percent", "branches", "branches_taken", "branches_percent"]
            csv.writer(out, lineterminator="\n").writerows([head, *rows])
    return below > 0


if __name__ == "__main__":
    sys.exit(main())
