# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: changes the validators and the decode step in small ways, and looks whether a test notices.

    mutate.py BUILD [FILE...] [--sample N] [--seed N] [--jobs N] [--results JSON] [--again] [--csv FILE]

BUILD: a build folder in which the tests of TARGETS are built (such as build/quick; --list-tests names them). Mutants
of a file (c_mutants.py) are compiled together, each changed function under a name of its own, and linked with the
library and each test in turn; the test is run once for each mutant that the tests before let live. A test that fails,
crashes or takes more than CPU_S seconds of processor time kills a mutant. What survives all tests is compiled again
with the address and undefined-behaviour sanitizers and tried once more, since tests hand over buffers of exact size.
Mutants that do not compile do not count.

What then survives must stand in survivors.json with a reason: one that does not, or an entry there that no longer
survives, is an error. FILE: those of TARGETS to try; all of them if none is named. --sample: at most so many mutants of
each file, drawn with the seed.
--results: where outcomes are kept: a later run with the same file goes on, and tries nothing again that is killed;
--again tries the survivors again, after tests were added. --csv: where the table goes, a line a file.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
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

CPU_S, SANITIZED_CPU_S = 10, 40
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
    "format/trf_validate.c": Target(("golden", "blob_tiles", "blob_validate")),
    "format/trf_head.c": Target(("blob_validate",)),
    "format/trf_lane.h": Target(("lane", "golden"), (*_LANE_USERS, "tests/unit/test_lane.c")),
    "format/trf_split.h": Target(("lane", "golden", "blob_validate"), (*_LANE_USERS, "tests/unit/test_lane.c")),
    "format/trf_slab_reader.h": Target(("lane",), ("tests/unit/test_lane.c",)),
    "format/trf_row_reader.h": Target(("row_reader",), ("tests/unit/test_row_reader.c",)),
    "decoder_cpu/trf_decode_ref.c": Target(("golden", "lane")),
    "decoder_cpu/trf_decode_tile.c": Target(("golden", "lane")),
    "format/trf_layout_head.c": Target(("plain_head", "packed_validate", "packed8_validate")),
    "format/trf_packed_head.c": Target(("packed_head", "packed_validate")),
    "format/trf_packed_validate.c": Target(("packed_validate",)),
    "format/trf_packed8_head.c": Target(("packed8_validate",)),
    "format/trf_packed8_validate.c": Target(("packed8_validate",)),
    "format/trf_packed_reader.h": Target(
        ("packed_reader", "packed_validate"), ("format/trf_packed_validate.c", "tests/unit/test_packed_reader.c")
    ),
    "format/trf_packed8_reader.h": Target(
        ("packed_reader", "packed8_validate"), ("format/trf_packed8_validate.c", "tests/unit/test_packed_reader.c")
    ),
    "format/trf_plain_head.c": Target(("plain_head",)),
    "format/trf_data_checksum.c": Target(("data_checksum",)),
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

    def compile(self, source: str, text: Path, header: Path | None, output: Path, sanitize: bool) -> str:
        """Compiles `text`; `header` goes before, in place of the true one. @return what the compiler says."""
        fast = ["-O1"] if header else ["-O0"]  # what is in headers is called often
        extra = [*(["-include", str(header)] if header else []), *(["-O1", "-g", *SANITIZE] if sanitize else fast)]
        near = ["-iquote", str((ROOT / source).parent)]
        command = ["cc", *self.flags[source], *near, *extra, "-w", "-DNDEBUG", "-c", str(text), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""

    def link(self, test: str, objects: dict[str, Path], program: Path, sanitize: bool) -> None:
        """Links a test with the objects in place of those of their sources."""
        words = list(self.links[test])
        words[words.index("-o") + 1] = str(program)
        own = f"tests/unit/test_{test}.c"
        inputs = [str(path) for source, path in objects.items() if not source.startswith("tests/") or source == own]
        if own in objects:
            words = [word for word in words if not word.endswith(f"test_{test}.c.o")]
        switch = str(Path(__file__).with_name("mutant_switch.c"))
        extra = [*(SANITIZE if sanitize else []), switch]
        subprocess.run([words[0], *inputs, *words[1:], *extra], cwd=self.folder, check=True)


class Trial:
    """A file with some of its mutants, compiled into its tests."""

    def __init__(self, build: Build, file: str, mutants: dict[int, c_mutants.Mutant], folder: Path, sanitize: bool):
        self.build, self.file, self.folder, self.sanitize = build, file, folder, sanitize
        self.mutants = dict(mutants)
        self.invalid: list[int] = []
        self.objects = self._compile()

    def _compile(self) -> dict[str, Path]:
        """Compiles the sources, without the mutants that do not compile."""
        users, changed = TARGETS[self.file].users, self.folder / Path(self.file).name
        while True:
            text, owners = c_mutants.write_switched((ROOT / self.file).read_text(), self.mutants)
            # xxHash is linked: it need not be compiled each time.
            changed.write_text(text.replace("#define XXH_INLINE_ALL", "#define XXH_STATIC_LINKING_ONLY"))
            objects, said = {}, ""
            for source in users or (self.file,):
                objects[source] = self.folder / f"{Path(source).stem}.o"
                header = changed if users else None
                said += self.build.compile(source, ROOT / source if users else changed, header, objects[source],
                                           self.sanitize)  # fmt: skip
            wrong = {int(line) for line in re.findall(rf"{re.escape(str(changed))}:(\d+):\d+: error", said)}
            bad = {owners[line] for line in wrong if line in owners}
            if not said:
                return objects
            if not bad:
                raise SystemExit(f"{self.file} does not compile:\n{said[:4000]}")
            self.invalid += bad
            for number in bad:
                del self.mutants[number]

    def survivors(self, test: str, numbers: list[int]) -> list[int]:
        """Runs a test with each of the mutants. @return those with which it passes."""
        program = self.folder / f"test_{test}"
        self.build.link(test, self.objects, program, self.sanitize)
        reader, writer = os.pipe()
        environment = {
            **os.environ,
            "CK_FORK": "no",
            "TRF_TEST_QUICK": "1",
            "TRF_SOURCE_DIR": str(ROOT),
            "ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=0",
            "TRF_MUTANTS": ",".join(map(str, numbers)),
            "TRF_MUTANTS_FD": str(writer),
            "TRF_MUTANTS_CPU_S": str(SANITIZED_CPU_S if self.sanitize else CPU_S),
        }
        ran = subprocess.Popen([program], env=environment, pass_fds=[writer], cwd=self.folder,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        os.close(writer)
        with os.fdopen(reader) as lines:
            outcomes = {int(number): int(status) for number, status in (line.split() for line in lines)}
        ran.wait()
        if len(outcomes) != len(set(numbers)):
            raise SystemExit(f"{test}: {len(outcomes)} of {len(numbers)} mutants of {self.file} were run")
        return [number for number in numbers if outcomes[number] == 0]


def try_mutants(build: Build, file: str, mutants: list[c_mutants.Mutant]) -> dict[str, str]:
    """Returns what becomes of the mutants, by their names."""
    numbered = dict(enumerate(mutants, 1))
    outcomes = {mutant.name: KILLED for mutant in mutants}
    alive = [0, *numbered]
    for sanitize in (False, True):
        with tempfile.TemporaryDirectory(prefix="transfuse-mutants-") as folder:
            left = {n: mutant for n, mutant in numbered.items() if n in alive}
            trial = Trial(build, file, left, Path(folder), sanitize)
            outcomes.update({numbered[n].name: INVALID for n in trial.invalid})
            alive = [n for n in alive if n not in trial.invalid]
            for test in TARGETS[file].tests:
                alive = trial.survivors(test, alive)
                if 0 not in alive:
                    raise SystemExit(f"{file}: {test} fails without any change")
    outcomes.update({numbered[n].name: SURVIVED for n in alive if n})
    return outcomes


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
    """Tries mutants of the file. known: outcomes of earlier runs. @return all outcomes by name."""
    mutants = c_mutants.make_mutants((ROOT / file).read_text())
    names = {mutant.name for mutant in mutants}
    done = {name: outcome for name, outcome in known.items() if name in names}
    random.Random(f"{options.seed} {file}").shuffle(mutants)
    drawn = mutants[: options.sample] if options.sample else mutants
    left = [m for m in drawn if m.name not in done or (options.again and done[m.name] == SURVIVED)]
    share = -(-len(left) // options.jobs)
    parts = [left[at : at + share] for at in range(0, len(left), share)] if left else []
    with ThreadPoolExecutor(options.jobs) as pool:
        for outcomes in pool.map(lambda part: try_mutants(build, file, part), parts):
            done.update(outcomes)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--results", type=Path)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--list-tests", action="store_true")
    options = parser.parse_args()
    if options.list_tests:
        print(*sorted({f"test_{test}" for target in TARGETS.values() for test in target.tests}))
        return 0
    for file in options.files:
        if file not in TARGETS:
            parser.error(f"{file} is none of {', '.join(TARGETS)}")
    if options.again and not options.results:
        parser.error("--again needs --results")
    build, faults, rows = Build(options.build), 0, []
    results = json.loads(options.results.read_text()) if options.results and options.results.exists() else {}
    for file in options.files or TARGETS:
        for test in TARGETS[file].tests:
            build.prepare(test)
        outcomes = measure(build, file, options, results.get(file, {}))
        results[file] = outcomes
        if options.results:
            options.results.write_text(json.dumps(results, indent=1))
        total = len(c_mutants.make_mutants((ROOT / file).read_text()))
        faults += report_survivors(file, outcomes, len(outcomes) == total)
        counts = {kind: list(outcomes.values()).count(kind) for kind in (KILLED, SURVIVED, INVALID)}
        tried = counts[KILLED] + counts[SURVIVED]
        rows.append([file, total, len(outcomes), tried, counts[KILLED], f"{100 * counts[KILLED] / max(tried, 1):.1f}"])
        print(
            f"{file}: {len(outcomes)} of {total} mutants drawn, {counts[INVALID]} do not compile, "
            f"{counts[KILLED]} of {tried} killed ({rows[-1][-1]} %)"
        )
    if options.csv:
        with options.csv.open("w", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows(
                [["file", "mutants", "drawn", "compiled", "killed", "killed_percent"], *rows]
            )
    return faults > 0


if __name__ == "__main__":
    sys.exit(main())
