# SPDX-License-Identifier: Apache-2.0
"""The `transfuse` command of the package, and `python -m transfuse`, which is the same."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import transfuse
from transfuse._library import find_installed

PROGRAM = "import sys; from transfuse._command import main; sys.argv[0] = 'transfuse'; main()"
STARTS = pytest.mark.parametrize(
    "start", ([sys.executable, "-m", "transfuse"], [sys.executable, "-c", PROGRAM]), ids=["module", "script"]
)


def run(start: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*start, *arguments], capture_output=True, text=True, check=False)


@STARTS
def test_it_is_the_program(start: Sequence[str]) -> None:
    program = [str(find_installed("bin", "transfuse"))]
    for arguments in (["--version"], ["-V"], ["help", "compress"], [], ["compres"], ["verify", "absent"]):
        by_package, by_program = run(start, *arguments), run(program, *arguments)
        assert by_package.returncode == by_program.returncode, arguments
        assert (by_package.stdout, by_package.stderr) == (by_program.stdout, by_program.stderr), arguments
    assert run(start, "--version").stdout == f"transfuse {transfuse.__version__}\n"


@STARTS
def test_help_tells_of_doctor(start: Sequence[str]) -> None:
    helped, asked = run(start, "help", "doctor"), run(start, "doctor", "--help")
    assert helped.returncode == asked.returncode == 0
    assert helped.stdout == asked.stdout and "doctor" in helped.stdout


@STARTS
def test_a_reader_that_goes_away_is_no_error(start: Sequence[str]) -> None:
    with subprocess.Popen([*start, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        errors = process.stderr.read()
    # It may have been done before the pipe was closed.
    assert process.returncode in (0, -signal.SIGPIPE) and errors == ""


@STARTS
def test_starting_needs_no_numpy(start: Sequence[str]) -> None:
    """What is imported before the program runs: little, since Python answers Ctrl-C with a traceback meanwhile."""
    done = subprocess.run([start[0], "-v", *start[1:], "--version"], capture_output=True, text=True, check=True)
    imported = re.findall(r"^import '([^']*)'", done.stderr, re.MULTILINE)
    assert "transfuse._command" in imported and "numpy" not in imported


@pytest.mark.parametrize("command", ["verify", "doctor"])
@pytest.mark.parametrize("ignored", [False, True], ids=["ended", "ignored"])
def test_ctrl_c_prints_no_traceback(command: str, ignored: bool) -> None:
    interrupt = "lambda *_: signal.raise_signal(signal.SIGINT)"
    code = f"import os, signal, sys; from transfuse import _command, _doctor; sys.argv = ['transfuse', {command!r}]; "
    code += f"os.execv = _doctor.main = {interrupt}; "
    code += "signal.signal(signal.SIGINT, signal.SIG_IGN); " if ignored else ""
    done = run([sys.executable, "-c", code + "_command.main()"])
    # Shells make 130 of the signal, too.
    assert done.returncode in ((0,) if ignored else (130, -signal.SIGINT))
    assert done.stdout == done.stderr == ""


def test_a_package_without_its_program_says_so(tmp_path: Path) -> None:
    code = f"import transfuse; transfuse.__path__[:] = [{str(tmp_path)!r}]; from transfuse import _command; "
    # Its modules are imported before they are out of reach.
    code = f"import transfuse._command, transfuse._library; {code}_command.main()"
    done = run([sys.executable, "-c", code], "--version")
    assert done.returncode == 1
    assert done.stderr.startswith("transfuse: transfuse is not installed: ") and done.stderr.count("\n") == 1
