# SPDX-License-Identifier: Apache-2.0
"""The `transfuse` command of an installed package: it becomes the program that the wheel holds, but for `doctor`."""

from __future__ import annotations

import os
import signal
import sys


def _run_doctor(arguments: list[str], interrupt: object) -> int:
    """Runs `doctor`, which cleans up if Ctrl-C ends it. `interrupt` is what SIGINT does to a program."""
    from transfuse._doctor import main as doctor

    try:
        signal.signal(signal.SIGINT, interrupt)  # type: ignore[arg-type]
        return doctor(arguments)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def main() -> None:
    """Replaces this process by the command, with the same arguments; `doctor` runs here."""
    # Ctrl-C would print a traceback. A program in the background, for which SIGINT is ignored, goes on ignoring it.
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from transfuse._library import find_installed

    arguments = sys.argv[1:]
    if arguments == ["help", "doctor"]:
        arguments = ["doctor", "--help"]
    if arguments[:1] == ["doctor"]:
        sys.exit(_run_doctor(arguments[1:], interrupt))
    try:
        program = find_installed("bin", "transfuse")
    except ImportError as error:
        sys.exit(f"transfuse: {error}")
    # Python ignores SIGPIPE, and the program would inherit that: `transfuse info model | head` would be an error.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(program, ["transfuse", *arguments])
