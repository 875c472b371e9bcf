#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzz targets of a build (preset `fuzz`), keeps what they find, and counts what they did.

    python3 tests/fuzz/run_fuzzers.py --seconds 30            # each target for 30 s, as many at once as there are cores
    python3 tests/fuzz/run_fuzzers.py --hours 10 --at-once 1  # a campaign, in turns, on one core
    python3 tests/fuzz/run_fuzzers.py --sum docs/reliability/fuzzing.csv
    python3 tests/fuzz/run_fuzzers.py --minimize

Everything is kept in the folder of `--work`: the corpora as they grow (corpus/TARGET), inputs that failed
(findings/TARGET-*), the last log of each target (logs/TARGET.log), and runs.csv, with a line for each run. `--sum` adds
the runs to a table with a line for each target and campaign, by the day on which that began; hours are of CPU time.
`--minimize` puts the fewest inputs that reach what each corpus reaches into tests/fuzz/corpus, as long as they are
small.

The exit status is 1 if a target failed, and its input is named."""

import argparse
import concurrent.futures
import configparser
import csv
import datetime
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RUN_FIELDS = [
    "started",
    "commit",
    "target",
    "seconds",
    "cpu_seconds",
    "executions",
    "covered_edges",
    "features",
    "inputs",
    "findings",
]
SUM_FIELDS = [
    "target",
    "commit",
    "first_day",
    "last_day",
    "cpu_hours",
    "executions",
    "covered_edges",
    "inputs",
    "findings",
]
# Those whose inputs are blobs begin with the golden files, too, and with blobs that the encoder makes.
OF_BLOBS = {"fuzz_blob", "fuzz_edges", "fuzz_pack_coded", "fuzz_pack_experts", "fuzz_walk"}
LARGEST_KEPT = 12 << 10  # of an input in the repository, in bytes
MOST_KEPT = 24 << 10  # of a target's inputs there, together


def find_targets(binaries: pathlib.Path, wanted: list[str]) -> list[pathlib.Path]:
    found = sorted(p for p in binaries.glob("fuzz_*") if p.is_file() and os.access(p, os.X_OK))
    names = [p.name for p in found]
    for name in wanted:
        if name not in names:
            sys.exit(f"run_fuzzers.py: no target {name} in {binaries}; there are: {', '.join(names) or 'none'}")
    if not found:
        sys.exit(
            f"run_fuzzers.py: no targets in {binaries}; build them: cmake --preset fuzz && cmake --build --preset fuzz"
        )
    return [p for p in found if not wanted or p.name in wanted]


def options_of(target: str) -> list[str]:
    """The options of a target's .options and .dict files, which OSS-Fuzz takes, too."""
    options = []
    parser = configparser.ConfigParser()
    parser.read(HERE / f"{target}.options")
    if parser.has_section("libfuzzer"):
        for key, value in parser.items("libfuzzer"):
            options.append(f"-dict={HERE / value}" if key == "dict" else f"-{key}={value}")
    return options


def seeds_of(target: pathlib.Path, work: pathlib.Path) -> list[pathlib.Path]:
    folders = [HERE / "corpus" / target.name.removeprefix("fuzz_")]
    if target.name in OF_BLOBS:
        encoded, maker = work / "seeds", target.parent / "make_fuzz_seeds"
        if not encoded.exists():
            encoded.mkdir(parents=True)
            subprocess.run([str(maker), str(encoded)], check=True)
        folders += [ROOT / "tests" / "golden", encoded]
    return [folder for folder in folders if folder.is_dir()]


def environment() -> dict[str, str]:
    # An absurd size in a file has to come out as an error, not as the sanitizer's abort.
    own = {
        "ASAN_OPTIONS": "allocator_may_return_null=1:detect_stack_use_after_return=1",
        "MSAN_OPTIONS": "allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return own | dict(os.environ)


def commit() -> str:
    """The commit that was built: TRF_COMMIT, or else the one that is checked out."""
    if os.environ.get("TRF_COMMIT"):
        return os.environ["TRF_COMMIT"]
    text = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True)
    return text.stdout.strip() or "unknown"


def read_log(text: str) -> tuple[int, int, int]:
    """Executions, edges and features of a log."""
    executions = [int(n) for n in re.findall(r"number_of_executed_units: (\d+)", text)]
    last = re.findall(r"cov: (\d+) ft: (\d+)", text)
    edges, features = (int(last[-1][0]), int(last[-1][1])) if last else (0, 0)
    return (executions[-1] if executions else 0), edges, features


def run_target(target: pathlib.Path, seconds: int, work: pathlib.Path) -> dict[str, object]:
    name = target.name
    corpus, findings, log = work / "corpus" / name, work / "findings", work / "logs" / f"{name}.log"
    for folder in (corpus, findings, log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(findings.iterdir())
    started, begin = datetime.datetime.now(datetime.UTC), time.monotonic()
    command = [
        str(target),
        f"-max_total_time={seconds}",
        "-print_final_stats=1",
        "-timeout=60",
        "-rss_limit_mb=3072",
        "-reload=0",
        f"-artifact_prefix={findings}/{name}-",
        *options_of(name),
        str(corpus),
        *map(str, seeds_of(target, work)),
    ]
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment())
        _, wait_status, usage = os.wait4(process.pid, 0)
        status = process.returncode = os.waitstatus_to_exitcode(wait_status)
    executions, edges, features = read_log(log.read_text(errors="replace"))
    found = sorted(path for path in findings.iterdir() if path not in before)
    if status != 0:
        shutil.copy(log, findings / f"{name}-{started:%Y%m%dT%H%M%S}.log")
        print(f"{name} failed with exit status {status}: {', '.join(map(str, found)) or log}", flush=True)
    run = {
        "started": f"{started:%Y-%m-%dT%H:%M:%SZ}",
        "commit": commit(),
        "target": name,
        "seconds": round(time.monotonic() - begin),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime),
        "executions": executions,
        "covered_edges": edges,
        "features": features,
        "inputs": len(list(corpus.iterdir())),
        "findings": int(status != 0),
    }
    print(
        f"{name}: {executions} executions in {run['seconds']} s, {edges} edges covered, {run['inputs']} inputs",
        flush=True,
    )
    return run


def append_run(path: pathlib.Path, run: dict[str, object]) -> None:
    is_new = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, RUN_FIELDS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(run)


def run_all(targets: list[pathlib.Path], seconds: int, at_once: int, work: pathlib.Path) -> int:
    """Runs each target once. Returns how many failed."""
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for run in pool.map(lambda target: run_target(target, seconds, work), targets):
            append_run(work / "runs.csv", run)
            failed += int(str(run["findings"]))
    return failed


def sum_runs(runs: list[dict[str, str]]) -> list[dict[str, object]]:
    """A line for each target. commit: the last one that was run."""
    groups: dict[str, list[dict[str, str]]] = {}
    for run in runs:
        groups.setdefault(run["target"], []).append(run)
    return [
        {
            "target": target,
            "commit": group[-1]["commit"],
            "first_day": group[0]["started"][:10],
            "last_day": group[-1]["started"][:10],
            "cpu_hours": f"{sum(int(r['cpu_seconds']) for r in group) / 3600:.3f}",
            "executions": sum(int(r["executions"]) for r in group),
            "covered_edges": max(int(r["covered_edges"]) for r in group),
            "inputs": int(group[-1]["inputs"]),
            "findings": sum(int(r["findings"]) for r in group),
        }
        for target, group in sorted(groups.items())
    ]


def write_sum(work: pathlib.Path, table: pathlib.Path) -> None:
    """Lines of campaigns that began on other days stay as they are."""
    with open(work / "runs.csv", newline="") as file:
        ours = sum_runs(list(csv.DictReader(file)))
    keys = {(line["target"], line["first_day"]) for line in ours}
    others: list[dict[str, object]] = []
    if table.exists():
        with open(table, newline="") as file:
            others = [dict(line) for line in csv.DictReader(file) if (line["target"], line["first_day"]) not in keys]
    table.parent.mkdir(parents=True, exist_ok=True)
    with open(table, "w", newline="") as file:
        writer = csv.DictWriter(file, SUM_FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(others + ours, key=lambda line: (str(line["target"]), str(line["first_day"]))))


def minimize(target: pathlib.Path, work: pathlib.Path) -> None:
    name = target.name
    kept = HERE / "corpus" / name.removeprefix("fuzz_")
    (work / "corpus" / name).mkdir(parents=True, exist_ok=True)
    named = {path.read_bytes() for path in kept.iterdir()} if kept.is_dir() else set()  # by people, or findings
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                str(target),
                "-merge=1",
                "-rss_limit_mb=3072",
                "-timeout=60",
                *options_of(name),
                folder,
                *map(str, seeds_of(target, work)),
                str(work / "corpus" / name),
            ],
            env=environment(),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        kept.mkdir(parents=True, exist_ok=True)
        golden = {path.read_bytes() for path in (ROOT / "tests" / "golden").iterdir() if path.is_file()}
        total = sum(map(len, named))
        for path in sorted(pathlib.Path(folder).iterdir(), key=lambda path: path.stat().st_size):
            content = path.read_bytes()
            if content in named or content in golden or len(content) > LARGEST_KEPT or total + len(content) > MOST_KEPT:
                continue
            total += len(content)
            (kept / path.name[:12]).write_bytes(content)
    print(f"{name}: {len(list(kept.iterdir()))} inputs, {total} bytes in {kept}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build" / "fuzz" / "tests" / "fuzz")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "fuzzing")
    parser.add_argument("--target", action="append", default=[], help="fuzz_NAME; may be repeated; all if left out")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--seconds",
        type=int,
        default=int(os.environ.get("TRF_FUZZ_SECONDS", "30")),
        help="for each target, or in a campaign for each turn; TRF_FUZZ_SECONDS, or 30",
    )
    parser.add_argument("--hours", type=float, help="run all targets in turns for so long, at the lowest priority")
    parser.add_argument("--sum", type=pathlib.Path, metavar="CSV", help="add the runs to a table, and run nothing")
    parser.add_argument("--minimize", action="store_true", help="update tests/fuzz/corpus, and run nothing else")
    args = parser.parse_args()
    if args.sum:
        write_sum(args.work, args.sum)
        return 0
    targets = find_targets(args.binaries, args.target)
    if args.minimize:
        for target in targets:
            minimize(target, args.work)
        return 0
    args.work.mkdir(parents=True, exist_ok=True)
    if args.hours is None:
        return int(run_all(targets, args.seconds, args.at_once, args.work) > 0)
    os.nice(19)
    failed, end = 0, time.monotonic() + 3600 * args.hours
    while time.monotonic() < end:
        failed += run_all(find_targets(args.binaries, args.target), args.seconds, args.at_once, args.work)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
