# SPDX-License-Identifier: Apache-2.0
"""Runs the rows about whole models on a GPU: makes the models, measures them, and goes on after failures.

Usage: run_rows.py --rows a,b,... [--models llama-8b,...] [--budget SECONDS] [--out rows.jsonl] [--work FOLDER]

Each group of rows has a process of its own, and a checkpoint (CASES below), unless the model is compressed in memory.
If a process dies or hangs, only the row that it was at is lost; it is started again for the rest. A row of a model that
--out has as done is not measured again, so the same command goes on where it was stopped. Checkpoints that exist are
used as they are, and with --free-models removed after their last row. Rows: those of measure_model.py; l greedy texts;
p the package's tests.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, the options that make it, and the rows that it is for, in the order in which they are measured."""

    model: str
    rows: str
    make: tuple[str, ...] = ()
    keep_source: bool = False
    only_if_named: bool = False
    in_memory: tuple[str, ...] = ()  # options of measure_model.py for a model that is compressed on the device instead


CASES = {
    "llama-8b": Case("llama-8b", "cdabifqe", keep_source=True),
    "llama-8b-8": Case("llama-8b", "ef", make=("--layers", "8"), only_if_named=True),
    "llama-8b-4": Case("llama-8b", "j", make=("--layers", "4")),
    "cycles": Case("llama-8b", "k", make=("--scale", "tiny")),
    "qwen3-8b": Case("qwen3-8b", "ab"),
    "phi3-mini": Case("phi3-mini", "ab"),
    "gemma3-4b": Case("gemma3-4b", "ab"),
    "qwen3-30b-a3b": Case("qwen3-30b-a3b", "abqg"),
    "qwen3-30b-a3b-packed": Case("qwen3-30b-a3b", "am", in_memory=("--layout", "packed")),
    "qwen3-30b-a3b-packed-12": Case(
        "qwen3-30b-a3b", "am", make=("--layers", "12"), in_memory=("--layout", "packed"), only_if_named=True
    ),
    "llama-70b": Case("llama-70b", "ha", make=("--repeat",)),
}


class Runner:
    """Runs programs within the time that is left, and keeps their results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.until = time.monotonic() + options.budget
        self.failed = 0

    def describe_machine(self) -> None:
        """Writes on what machine the rows are measured."""
        import torch
        import transformers
        import transfuse

        # Does not use torch, whose context would take memory of the GPU.
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        gpu = subprocess.run(query, capture_output=True, text=True).stdout.strip() if shutil.which(query[0]) else None
        self.emit(
            row="machine",
            torch=torch.__version__,
            transformers=transformers.__version__,
            transfuse=transfuse.__version__,
            gpu=gpu,
            free_bytes={str(self.options.work): shutil.disk_usage(self.options.work).free},
        )

    def left(self) -> float:
        return self.until - time.monotonic()

    def emit(self, **values: object) -> None:
        text = json.dumps(values)
        print(text, flush=True)
        with self.options.out.open("a") as file:
            file.write(text + "\n")

    def run(self, row: str, name: str, arguments: list[object], limit: float | None = None) -> int:
        """Runs a program, whose output goes to ours; returns its status, and -1 if it was ended for its time."""
        command = [sys.executable, *map(str, arguments)]
        print(f"[{time.strftime('%H:%M:%S')}] {' '.join(command)}", file=sys.stderr, flush=True)
        limit = min(self.left(), limit or self.options.budget_a_row)
        status = -1
        if limit > 5:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = subprocess.run(command, timeout=limit, check=False).returncode
        if status:
            why = f"not done within {max(limit, 0):.0f} s" if status == -1 else f"the process ended with {status}"
            self.emit(row=row, case=name, error=why, command=command[1:])
            self.failed = 1
        return status

    def read_lines(self) -> list[dict]:
        """Returns what has been measured so far, by this run and earlier ones."""
        if not self.options.out.exists():
            return []
        return [json.loads(line) for line in self.options.out.read_text().splitlines() if line.strip()]

    def is_done(self, row: str, name: str) -> bool:
        """Returns whether a row has been measured to its end."""
        return any(line["row"] == row and line.get("case") == name and line.get("done") for line in self.read_lines())

    def measure_case(self, name: str, case: Case, rows: list[str]) -> None:
        """Makes the case's checkpoint and measures its rows."""
        options = self.options
        rows = [row for row in rows if not self.is_done(row, name)]
        if not rows:
            return
        folder, plain = options.work / name, options.work / f"{name}-source"
        place = ["--device", options.device]
        if options.scale == "tiny" and "--scale" not in case.make:
            place += ["--scale", "tiny"]
        fixed = [HERE / "measure_model.py", case.model, folder, "--out", options.out, *case.make, *place]
        if case.in_memory:
            self.measure_rows(name, rows, [*fixed, "--in-memory", *case.in_memory, *options.measure])
            return
        keep = "d" in rows and case.keep_source
        if keep and not plain.exists():
            shutil.rmtree(folder, ignore_errors=True)
        source = ["--keep-source", plain] if keep else []
        more = ["--overflow", options.overflow, *source]
        if self.run("make", name, [HERE / "make_model.py", case.model, folder, *case.make, *more, *place]):
            return
        if keep:
            fixed += ["--plain", plain]
        self.measure_rows(name, rows, [*fixed, *options.measure])
        if options.free_models:
            for path in (folder, plain, options.overflow / name):
                shutil.rmtree(path, ignore_errors=True)

    def measure_rows(self, name: str, rows: list[str], command: list[object]) -> None:
        """Measures rows in one process, and starts it again after the row at which it ended or hung."""
        while rows and self.left() > 5:
            known = len(self.read_lines())
            process = subprocess.Popen([sys.executable, *map(str, command), "--rows", ",".join(rows)])
            moved = time.monotonic()
            while process.poll() is None:
                time.sleep(0.5)
                if len(self.read_lines()) > known:
                    known, moved = len(self.read_lines()), time.monotonic()
                if self.left() < 0 or time.monotonic() - moved > self.options.budget_a_row:
                    process.kill()
                    process.wait()
            finished = [row for row in rows if self.is_done(row, name)]
            if process.returncode in (0, 1):  # what failed has said so itself
                self.failed |= process.returncode
                return
            at = next(row for row in rows if row not in finished)
            self.emit(row=at, case=name, error=f"the process ended with {process.returncode}")
            self.failed = 1
            rows = rows[rows.index(at) + 1 :]

    def measure_greedy(self) -> None:
        """l: trains the byte-level model, if that has not been done, and compares greedy texts."""
        folder, tiny = self.options.work / "byte-model", self.options.scale == "tiny"
        place = ["--device", self.options.device]
        train = [ROOT / "tests" / "gpu" / "train_byte_model.py", folder, *place, *(["--seconds", 10] if tiny else [])]
        if (folder / "prompts.json").exists() or not self.run("l", "train", train):
            length = ["--tokens", 16] if tiny else []
            self.run("l", "compare", [HERE / "measure_greedy.py", folder, "--out", self.options.out, *place, *length])

    def run_package_tests(self) -> None:
        """p: the tests that come with the package: ops, graphs, modules, loading."""
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--pyargs", "transfuse"]
        done = subprocess.run(command, timeout=max(self.left(), 1), check=False, capture_output=True, text=True)
        print(done.stdout[-4000:], done.stderr[-2000:], sep="\n", file=sys.stderr, flush=True)
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        self.emit(row="p", what="the package's own tests", value=last, **{"pass": done.returncode == 0})
        self.failed |= done.returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", required=True, help="some of a to l, and p for the package's own tests")
    parser.add_argument("--models", help=f"some of {','.join(CASES)}; all that have the rows if it is left out")
    parser.add_argument("--budget", type=float, default=550, help="seconds for everything")
    parser.add_argument("--budget-a-row", type=float, default=400, help="seconds for one row of one model")
    parser.add_argument("--out", type=Path, default=Path("rows.jsonl"))
    parser.add_argument("--work", type=Path, default=Path("/dev/shm/transfuse-models"))
    parser.add_argument("--overflow", type=Path, default=Path("/tmp/transfuse-models"), help="as of make_model.py")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", choices=("real", "tiny"), default="real")
    parser.add_argument("--free-models", action="store_true", help="remove each checkpoint after its last row")
    parser.add_argument("measure", nargs="*", help="after --: options for measure_model.py, such as --batches 1")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    runner = Runner(options)
    asked = options.rows.split(",")
    runner.describe_machine()
    usual = [name for name, case in CASES.items() if not case.only_if_named]
    for name in options.models.split(",") if options.models else usual:
        runner.measure_case(name, CASES[name], [row for row in CASES[name].rows if row in asked])
    if "l" in asked:
        runner.measure_greedy()
    if "p" in asked:
        runner.run_package_tests()
    return runner.failed


if __name__ == "__main__":
    sys.exit(main())
