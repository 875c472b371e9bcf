# SPDX-License-Identifier: Apache-2.0
"""The `transfuse` command of an installed package: it becomes the program that the wheel holds, but for `doctor`."""

from __future__ import annotations

import os
import sys

from transfuse._library import find_installed


def main() -> None:
    """Replaces this process by the command, with the same arguments; `doctor` runs here."""
    if sys.argv[1:2] == ["doctor"]:
        from transfuse._doctor import main as doctor

        sys.exit(doctor(sys.argv[2:]))
    os.execv(find_installed("bin", "transfuse"), ["transfuse", *sys.argv[1:]])
