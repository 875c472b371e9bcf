#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes each file of adversarial_cases.py, and checks what the library and the command make of it.

    run_adversarial.py DRIVER TRANSFUSE [--every N] [--only TEXT] [--write]

DRIVER is adversarial_driver.c, TRANSFUSE the command, which takes each Nth case, too. For each call:

* The status is that of the table, offset and message are those in adversarial.json, which --write makes anew.
* The message is one line of UTF-8 without control characters, and names what the case says.
* It ends within a minute.
* Outside of the folder "out" nothing is made, changed or removed; in it is the output of a call that succeeds, and
  nothing after one that fails.
* The command ends with status 1 and the library's message, or with 0.

The blobs of tests/golden/corrupt are read from files, too: alone, and as a tensor of a file of weights.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
INDEX = HERE / "adversarial.json"
HANG_SECONDS = 60
#: on which a terminal acts
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")

import adversarial_cases  # noqa: E402
import adversarial_files as files  # noqa: E402

Answer = tuple[str, int, str]


class Driver:
    """The process that makes the calls, in the room."""

    def __init__(self, path: str, room: Path) -> None:
        self.room = room
        self.process = subprocess.Popen([path], cwd=room, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def call(self, *words: str) -> Answer:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\t".join(words).encode(errors="surrogateescape") + b"\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], HANG_SECONDS)[0]:
            self.process.kill()
            raise AssertionError(f"{words}: no answer in {HANG_SECONDS} s")
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"{words}: the process ended with status {self.process.wait()}")
        status, offset, message = line.removesuffix(b"\n").decode().split("\t", 2)
        return status, int(offset), plain(message, self.room)

    def end(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(HANG_SECONDS)


def plain(message: str, room: Path) -> str:
    """Returns a message without what depends on the machine: where the room is, and how Jansson puts it."""
    message = message.replace(str(room), "ROOM")
    return re.sub("(not valid JSON: ).*( at byte [0-9]+)$", r"\1...\2", message)


def survey(room: Path) -> dict[str, tuple[Any, ...]]:
    """Returns what is in the room outside of "out", without reading it."""
    found: dict[str, tuple[Any, ...]] = {}
    for folder, names, more in os.walk(room):
        if Path(folder) == room:
            names.remove("out")
        for name in names + more:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            target = os.readlink(path) if os.path.islink(path) else ""
            found[path] = (info.st_mode, info.st_ino, info.st_nlink, info.st_size, info.st_mtime_ns, target)
    return found


def group(answers: list[list[Any]]) -> list[list[Any]]:
    """Joins calls that were answered in the same way."""
    joined: dict[tuple[Any, ...], list[str]] = {}
    for line, *answer in answers:
        joined.setdefault(tuple(answer), []).append(line)
    return [[" | ".join(lines), *answer] for answer, lines in joined.items()]


def empty(folder: Path) -> None:
    """Removes a folder, whatever its permissions, and makes it anew."""
    for inner, names, _ in os.walk(folder):
        for name in names:
            path = os.path.join(inner, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


class Run:
    def __init__(self, options: argparse.Namespace, room: Path) -> None:
        self.options, self.room = options, room
        self.recorded = {} if options.write else json.loads(INDEX.read_text())
        self.found: dict[str, Any] = {}
        self.failures: list[str] = []
        self.calls = self.commands = 0
        (room / "in").mkdir()
        (room / "out").mkdir()
        room.chmod(0o755)
        self.driver = Driver(options.driver, room)
        self.bases = files.make_bases(room, lambda *words: self.driver.call(*words)[0])

    def fail(self, what: str) -> None:
        self.failures.append(what)
        print(what, flush=True)

    def begin(self) -> None:
        empty(self.room / "in")
        empty(self.room / "out")

    def call(self, *words: str) -> Answer:
        try:
            self.calls += 1
            return self.driver.call(*words)
        except AssertionError as error:
            self.fail(str(error))
            self.driver = Driver(self.options.driver, self.room)
            return "no answer", -1, ""

    def check_message(self, what: str, answer: Answer, words: tuple[str, ...]) -> None:
        status, _, message = answer
        if status == "TRF_OK":
            return
        missing = [word for word in words if word not in message]
        if missing or not message or CONTROLS.search(message):
            self.fail(f"{what}: the message lacks {missing}, or has control characters: {message!r}")

    def command(self, what: str, words: list[str], answer: Answer) -> None:
        """Runs the command with the arguments of a call, and expects the same."""
        name, *rest = words
        arguments = {"open": ["info", *rest[:1]],
                     "verify": ["verify", *rest[:1], *(["--against", *rest[1:]] if rest[1:] else [])],
                     "compress": ["compress", *rest[:1], "-o", *rest[1:2]],
                     "decompress": ["decompress", *rest[:1], "-o", *rest[1:2]],
                     "layouts": ["layouts", *rest[:1], "--memory", "1G", "--context", "1000"],
                     "npy": ["matmul", "layer.trf", *rest[:1], "-o", "out/y.npy"]}.get(name)  # fmt: skip
        if not arguments or len(rest) > 2:
            return
        arguments += [{"overwrite": "-f", "store": "--store-only"}[word] for word in rest[2:]]
        self.commands += 1
        done = subprocess.run(
            [self.options.transfuse, *arguments], cwd=self.room, capture_output=True, timeout=HANG_SECONDS
        )
        last = done.stderr.decode().rstrip("\n").rpartition("\n")[2]
        last = plain(last.removesuffix(f" [{answer[0]}]"), self.room) + f" [{answer[0]}]" * last.endswith("]")
        status, _, message = answer
        expected = (0, "") if status == "TRF_OK" else (1, f"transfuse: {message} [{status}]")
        if done.returncode != expected[0] or (status != "TRF_OK" and last != expected[1]):
            self.fail(f"{what}: the command ended with {done.returncode}: {last}\n  and not with {expected}")

    def check_calls(self, case: files.Case, number: int) -> list[Any]:
        """Makes the calls of a case. Returns their answers."""
        answers: list[Any] = []
        armed = False
        for line, status in case.calls.items():
            words = line.split(" ")
            what = f"{case.name}: {line}"
            before = sorted(os.listdir(self.room / "out"))
            answer = self.call(*words)
            if answer[0] != status:
                self.fail(f"{what}: {answer[0]}, and not {status}: {answer[2]}")
            self.check_message(what, answer, case.words)
            if status != "TRF_OK" and sorted(os.listdir(self.room / "out")) != before:
                self.fail(f"{what}: failed, and left something: {sorted(os.listdir(self.room / 'out'))}")
            if status != "TRF_OK":
                answers.append([line, *answer])
            if status != "TRF_OK" and not armed and number % self.options.every == 0:
                self.command(what, words, answer)
            armed = words[0] in ("arm", "as_other_user")
        return answers

    def check(self, case: files.Case, number: int) -> None:
        self.begin()
        case.make(self.room)
        before = survey(self.room)
        answers = self.check_calls(case, number)
        answers = group(answers)
        self.found[case.name] = answers
        if not self.options.write and answers != self.recorded.get(case.name):
            self.fail(f"{case.name}: {answers}\n  and not {self.recorded.get(case.name)}")
        after = survey(self.room)
        if before != after and not any(line.startswith("arm") for line in case.calls):
            self.fail(f"{case.name}: outside of the output is changed: {before.items() ^ after.items()}")
        made = sorted(os.listdir(self.room / "out"))
        if made != case.made:
            self.fail(f"{case.name}: the output holds {made}, and not {case.made}")
        for one, other in case.same:
            if (self.room / one).read_bytes() != (self.room / other).read_bytes():
                self.fail(f"{case.name}: {one} and {other} differ")

    def check_golden(self) -> int:
        """Reads the corrupt blobs of tests/golden from files."""
        statuses = json.loads((GOLDEN / "corrupt.json").read_text())
        for name, entry in statuses.items():
            self.begin()
            blob = (GOLDEN / "corrupt" / name).read_bytes()
            header = {"w_trf": files.tensor("U8", [len(blob)], 0, len(blob))}
            (self.room / "in/layer.trf").write_bytes(blob)
            (self.room / "in" / files.NAME).write_bytes(files.safetensors(header, blob))
            before = survey(self.room)
            layer = self.call("layer", "in/layer.trf")
            lines = [("verify", "in/layer.trf"), ("decompress", "in/layer.trf", "out/x"),
                     ("verify", f"in/{files.NAME}"), ("decompress", f"in/{files.NAME}", "out/x")]  # fmt: skip
            for answer, line in [(layer, ("layer", "in/layer.trf")), *((self.call(*each), each) for each in lines)]:
                what = f"{name}: {' '.join(line)}"
                is_file = line[1].endswith(files.NAME)
                may_differ = is_file and (answer[0] == "TRF_OK" or blob[:4] == b"SNAX")  # no blob, or one of experts
                if answer[0] != entry["status"] and not may_differ:
                    self.fail(f"{what}: {answer}, and not {entry['status']}")
                has_path = line[0] != "layer" or answer[0] != "TRF_ERR_RANS"  # which decoding finds, after opening
                self.check_message(what, answer, (line[1], *(["w"] if is_file else [])) if has_path else ())
            if survey(self.room) != before:
                self.fail(f"{name}: outside of the output is changed")
        return len(statuses)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("transfuse")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    options.driver, options.transfuse = (os.path.abspath(path) for path in (options.driver, options.transfuse))
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        run = Run(options, Path(folder).resolve())
        cases = adversarial_cases.all_cases(run.bases)
        names = [case.name for case in cases]
        assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]
        (run.room / "layer.trf").write_bytes(run.bases.layer)
        for number, case in enumerate(cases):
            if options.only in case.name:
                run.check(case, number)
        golden = run.check_golden() if not options.only else 0
        run.begin()
        if run.driver.end() != 0:
            run.fail("the driver did not end well")
    if options.write and not run.failures:
        lines = [f"{json.dumps(name)}: {json.dumps(answers)}" for name, answers in run.found.items()]
        INDEX.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    elif not options.only and not options.write and set(run.recorded) != set(names):
        run.fail(f"adversarial.json has other cases: {set(run.recorded) ^ set(names)}")
    print(f"{len(cases)} cases, {golden} golden blobs, {run.calls} calls, {run.commands} commands: "
          f"{len(run.failures)} failures")  # fmt: skip
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
