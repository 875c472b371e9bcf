# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: changes the validators and the decode step in small ways, and looks whether a test notices.

    mutate.py BUILD [FILE...] [--sample N --seed N] [--jobs N] [--results JSON] [--retry] [--csv FILE]

BUILD: a build folder in which the tests of TARGETS are built (such as build/quick; --list-tests names them). Each
mutant (c_mutants.py) is compiled, linked with the library and each test in turn, and run; a test that fails, crashes or
takes more than CPU_S seconds of processor time kills it. What survives all tests is compiled again with the address and
undefined-behaviour sanitizers and tried once more, since tests hand over buffers of exact size. Mutants that do not
compile do not count.

What then survives must stand in survivors.json with a reason: one that does not, or an entry there that no longer
survives, is an error. FILE: those of TARGETS to try; all of them if none is named. --sample: at most so many mutants of
each file, drawn with the seed. --results: a file to which each outcome is written; with --retry only those that
survived there are tried again, and the others count as they stand there. --csv: where the table goes, a line a file.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "structure"))

import c_mutants  # noqa: E402  its own import needs the path

CPU_S = 20
SURVIVORS = Path(__file__).with_name("survivors.json")
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
KILLED, SURVIVED, INVALID = "killed", "survived", "invalid"


@dataclass(frozen=True)
class Target:
    """Tests by their names in tests/unit, the quickest first. users: sources that a header is compiled into."""

    tests: tuple[str, ...]
    users: tuple[str, ...] = ()


_LANE_USERS = ("format/trf_validate.c", "decoder_cpu/trf_decode_ref.c", "decoder_cpu/trf_decode_tile.c")
TARGETS = {
    "format/trf_validate.c": Target(("golden", "blob_validate")),
    "format/trf_head.c": Target(("blob_validate",)),
    "format/trf_lane.h": Target(("lane", "golden"), (*_LANE_USERS, "tests/unit/test_lane.c")),
    "format/trf_split.h": Target(("lane", "golden", "blob_validate"), (*_LANE_USERS, "tests/unit/test_lane.c")),
    "format/trf_slab_reader.h": Target(("lane",), ("tests/unit/test_lane.c",)),
    "decoder_cpu/trf_decode_ref.c": Target(("golden",)),
    "decoder_cpu/trf_decode_tile.c": Target(("golden",)),
    "format/trf_layout_head.c": Target(("packed_validate", "packed8_validate", "plain_head")),
    "format/trf_packed_head.c": Target(("packed_validate", "packed")),
    "format/trf_packed_validate.c": Target(("packed_validate",)),
    "format/trf_packed8_head.c": Target(("packed8_validate", "packed8")),
    "format/trf_packed8_validate.c": Target(("packed8_validate",)),
    "format/trf_plain_head.c": Target(("plain_head",)),
}


class Build:
    """How the build folder compiles its sources and links its tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        commands = json.loads((self.folder / "compile_commands.json").read_text())
        self.flags = {os.path.relpath(entry["file"], ROOT): self._flags(entry["command"]) for entry in commands}
        self.links: dict[str, list[str]] = {}

    @staticmethod
    def _flags(command: str) -> list[str]:
        words = shlex.split(command)
        taken = [word for word in words if word.startswith(("-I", "-D", "-std", "-m"))]
        return [*taken, *(f"-I{words[i + 1]}" for i, word in enumerate(words) if word == "-isystem")]

    def prepare(self, test: str) -> None:
        target = f"tests/unit/test_{test}"
        if not (self.folder / target).exists():
            raise SystemExit(f"{self.folder / target} is not there: build the target test_{test}")
        told = subprocess.run(
            ["ninja", "-C", self.folder, "-t", "commands", "-s", target], check=True, capture_output=True, text=True
        )
        words = shlex.split(told.stdout)
        self.links[test] = words[words.index("&&") + 1 : len(words) - 1 - words[::-1].index("&&")]

    def compile(self, source: str, text: Path, header: Path | None, output: Path, sanitize: bool) -> bool:
        """Compiles `text`, which is the source or a mutant of it; `header` goes before, in place of the true one."""
        extra = [*(["-include", str(header)] if header else []), *(["-O1", "-g", *SANITIZE] if sanitize else ["-O0"])]
        near = ["-iquote", str((ROOT / source).parent)]
        command = ["cc", *self.flags[source], *near, *extra, "-w", "-DNDEBUG", "-c", str(text), "-o", str(output)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def run(self, test: str, objects: dict[str, Path], program: Path, sanitize: bool) -> bool:
        """Links a test with the objects in place of those of their sources, and returns whether it succeeds."""
        words = list(self.links[test])
        words[words.index("-o") + 1] = str(program)
        own = f"tests/unit/test_{test}.c"
        inputs = [str(path) for source, path in objects.items() if not source.startswith("tests/") or source == own]
        if own in objects:
            words = [word for word in words if not word.endswith(f"test_{test}.c.o")]
        command = [words[0], *inputs, *words[1:], *(SANITIZE if sanitize else [])]
        if subprocess.run(command, cwd=self.folder, capture_output=True, check=False).returncode:
            return False  # a test that needs what is gone notices
        environment = {
            **os.environ,
            "CK_FORK": "no",
            "TRF_TEST_QUICK": "1",
            "TRF_SOURCE_DIR": str(ROOT),
            "ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=0",
        }
        limited = ["prlimit", f"--cpu={CPU_S}", "--core=0", str(program)]
        return subprocess.run(limited, capture_output=True, cwd=program.parent, env=environment).returncode == 0


def try_mutant(build: Build, file: str, mutant: c_mutants.Mutant) -> str:
    """Returns what becomes of a mutant."""
    target = TARGETS[file]
    with tempfile.TemporaryDirectory(prefix="transfuse-mutant-") as scratch:
        changed = Path(scratch) / Path(file).name
        changed.write_text(mutant.apply((ROOT / file).read_text()))
        header = changed if target.users else None
        for sanitize in (False, True):
            objects = {}
            for source in target.users or (file,):
                objects[source] = Path(scratch) / f"{Path(source).stem}.{int(sanitize)}.o"
                text = ROOT / source if header else changed
                if not build.compile(source, text, header, objects[source], sanitize):
                    return INVALID
            for test in target.tests:
                if not build.run(test, objects, Path(scratch) / f"test_{test}", sanitize):
                    return KILLED
    return SURVIVED


def check_unchanged(build: Build, file: str) -> None:
    """The tests have to pass with the source as it is, built in the same way."""
    nothing = c_mutants.Mutant("unchanged", 1, 0, 0, "")
    if try_mutant(build, file, nothing) != SURVIVED:
        raise SystemExit(f"{file}: a test fails without any change, or the file does not compile")


def reasons_of(file: str) -> dict[str, str]:
    """Returns the names of the file's known survivors, each with its reason."""
    groups = json.loads(SURVIVORS.read_text()).get(file, []) if SURVIVORS.exists() else []
    return {name: group["reason"] for group in groups for name in group["mutants"]}


def report_survivors(file: str, outcomes: dict[str, str], complete: bool) -> int:
    """Prints the survivors without a reason, and reasons without a survivor. @return how many there are."""
    reasons = reasons_of(file)
    survivors = [name for name, outcome in outcomes.items() if outcome == SURVIVED]
    unexplained = [name for name in survivors if name not in reasons]
    stale = [name for name in reasons if (complete or name in outcomes) and outcomes.get(name) != SURVIVED]
    for name in unexplained:
        print(f"{file}: survived without a reason in {SURVIVORS.name}:\n    {name}")
    for name in stale:
        print(f"{file}: stands in {SURVIVORS.name} and did not survive:\n    {name}")
    return len(unexplained) + len(stale)


def measure(build: Build, file: str, options: argparse.Namespace, known: dict[str, str]) -> dict[str, str]:
    """Tries the file's mutants, and returns their outcomes by name. known: outcomes of an earlier run."""
    mutants = c_mutants.make_mutants((ROOT / file).read_text())
    if options.sample and options.sample < len(mutants):
        drawn = set(random.Random(f"{options.seed} {file}").sample(range(len(mutants)), options.sample))
        mutants = [mutant for i, mutant in enumerate(mutants) if i in drawn]
    done = {m.name: known[m.name] for m in mutants if known.get(m.name) in (KILLED, INVALID)}
    left = [mutant for mutant in mutants if mutant.name not in done]
    check_unchanged(build, file)
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(lambda mutant: try_mutant(build, file, mutant), left)
        for mutant, outcome in zip(left, outcomes):
            done[mutant.name] = outcome
            if outcome == SURVIVED and mutant.name not in reasons_of(file):
                print(f"    {file}:{mutant.line}: {mutant.name}", flush=True)
    return {mutant.name: done[mutant.name] for mutant in mutants}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--results", type=Path)
    parser.add_argument("--retry", action="store_true")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--list-tests", action="store_true")
    options = parser.parse_args()
    if options.list_tests:
        print(*sorted({f"test_{test}" for target in TARGETS.values() for test in target.tests}))
        return 0
    for file in options.files:
        if file not in TARGETS:
            parser.error(f"{file} is none of {', '.join(TARGETS)}")
    if options.retry and not options.results:
        parser.error("--retry needs --results")
    build, faults, rows = Build(options.build), 0, []
    results = json.loads(options.results.read_text()) if options.results and options.results.exists() else {}
    for file in options.files or TARGETS:
        for test in TARGETS[file].tests:
            build.prepare(test)
        outcomes = measure(build, file, options, results.get(file, {}) if options.retry else {})
        results[file] = outcomes
        if options.results:
            options.results.write_text(json.dumps(results, indent=1))
        faults += report_survivors(file, outcomes, not options.sample)
        counts = {kind: list(outcomes.values()).count(kind) for kind in (KILLED, SURVIVED, INVALID)}
        tried = counts[KILLED] + counts[SURVIVED]
        rows.append([file, tried, counts[KILLED], f"{100 * counts[KILLED] / max(tried, 1):.1f}"])
        print(f"{file}: {tried} mutants, {counts[KILLED]} killed ({rows[-1][3]} %), {counts[INVALID]} do not compile")
    if options.csv:
        with options.csv.open("w", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows([["file", "mutants", "killed", "per_cent"], *rows])
    return faults > 0


if __name__ == "__main__":
    sys.exit(main())
