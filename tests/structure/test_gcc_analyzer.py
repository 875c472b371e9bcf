# SPDX-License-Identifier: Apache-2.0
"""gcc's -fanalyzer finds nothing in the C files of a build, with assertions on.

Usage: test_gcc_analyzer.py --build DIR [--root DIR] [--jobs N] [--fresh]
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import c_checker

# The analyzer of each version has other checks, and other false alarms. Debian 12's:
VERSION = 12
# __clang_analyzer__ makes the functions that report a failure return none but failures, for this analyzer as for
# clang's: each reads one source at a time. With -O1 it sees what is inlined, and forgets less.
#
# A leak is what gcc 12 takes a pointer for that a function stores in its caller's struct or list; none of those that
# were read is one. clang-tidy looks for leaks, too, and the leak sanitizer does in all tests, failing allocations among
# them. Unset values it finds where a loop that fills an array would not run once. clang-tidy, gcc's own
# -Wmaybe-uninitialized and, in fuzz targets, the memory sanitizer look for these.
_ARGUMENTS = (
    *("-O1", "-UNDEBUG", "-U_FORTIFY_SOURCE", "-D__clang_analyzer__", "-fanalyzer", "-Werror"),
    *("-Wno-analyzer-malloc-leak", "-Wno-analyzer-use-of-uninitialized-value"),
)
# For elements of arrays of vector registers it cannot tell which are set, and takes 25 s for these eight files.
_LEFT_OUT = "_avx"


def strip_launcher(command: str) -> list[str]:
    """Returns a compile command without ccache before it and with its output thrown away."""
    words = shlex.split(command)
    if Path(words[0]).name == "ccache":
        del words[0]
    words[words.index("-o") + 1] = "/dev/null"
    return words


def check_file(path: str, command: str) -> tuple[bool, str]:
    """Returns whether gcc finds nothing in a file, and what it says."""
    done = subprocess.run(
        [*strip_launcher(command), *_ARGUMENTS], cwd=Path(path).parent, capture_output=True, text=True, check=False
    )
    return done.returncode == 0, done.stderr.strip() or f"{path}: gcc fails"


def test_finds() -> None:
    """A pointer that may be null is found, and one that is not is left alone."""
    text = (
        "#include <stdlib.h>\nint *f(void);\nint *f(void) {\n    int *p = malloc(4);\n    %s*p = 1;\n    return p;\n}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, guard, wanted in (("bad.c", "", False), ("good.c", "if (p)\n        ", True)):
            path = Path(folder) / name
            path.write_text(text % guard, encoding="utf-8")
            clean, findings = check_file(str(path), f"cc -DNDEBUG -O3 -o {name}.o -c {path}")
            assert clean == wanted, findings


def main() -> int:
    options = c_checker.parse_options(__doc__.splitlines()[0])
    database = options.build / "compile_commands.json"
    compiler = ""
    if database.is_file():
        entries = json.loads(database.read_text(encoding="utf-8"))
        first = next((entry for entry in entries if entry["file"].endswith(".c")), None)
        if first:
            words = [strip_launcher(first["command"])[0], "--version"]
            compiler = subprocess.run(words, capture_output=True, text=True, check=False).stdout.partition("\n")[0]
    if not re.search(rf"\(.*\) {VERSION}\.\d", compiler) or "clang" in compiler:
        print(f"skipped structure.gcc_analyzer: the build has no compile commands of gcc {VERSION} ('{compiler}')")
        return c_checker.SKIPPED
    test_finds()
    return c_checker.run("gcc_analyzer", options, (compiler, _ARGUMENTS), check_file, _LEFT_OUT)


if __name__ == "__main__":
    sys.exit(main())
