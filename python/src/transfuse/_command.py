# SPDX-License-Identifier: Apache-2.0
"""The `transfuse` command of an installed package: it becomes the program that the wheel holds, but for `doctor`."""

from __future__ import annotations

import os
import signal
import sys

from transfuse._library import find_installed


def main() -> None:
    """Replaces this process by the command, with the same arguments; `doctor` runs here."""
    arguments = sys.argv[1:]
    if arguments == ["help", "doctor"]:
        arguments = ["doctor", "--help"]
    if arguments[:1] == ["doctor"]:
        from transfuse._doctor import main as doctor

        sys.exit(doctor(arguments[1:]))
    try:
        program = find_installed("bin", "transfuse")
    except ImportError as error:
        sys.exit(f"transfuse: {error}")
    # Python ignores it, and what is ignored stays so in the program: `transfuse info model | head` would be an error.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(program, ["transfuse", *arguments])
