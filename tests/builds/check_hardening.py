# SPDX-License-Identifier: Apache-2.0
"""Looks into built programs and libraries for each of the flags of cmake/TransfuseHardening.cmake, by readelf.

It builds a program without them first, and one with them, to see that it finds what is missing.
Usage: check_hardening.py --cc CC [--flag FLAG]... [--small ELF]... ELF...
Each FLAG is one that the compiler takes. A small file has no large frames, and nothing that libc could check.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
# An indirect branch may land here, by the x86 manual on control-flow enforcement.
_BRANCH_TARGET = b"\xf3\x0f\x1e\xfa"
# Large frames are made page by page, and each page is touched: sub $4096,%rsp, then orq $0,(%rsp) or movq $0,(%rsp).
_PROBE = re.compile(rb"\x48\x81\xec\x00\x10\x00\x00\x48(\x83\x0c\x24\x00|\xc7\x04\x24\x00\x00\x00\x00)")
# Start files of the C library have some marks in a program that has none of its own.
_ENOUGH_TARGETS = 16
_PROGRAM = """
#include <stdio.h>
#include <string.h>
#define F(n) int f##n(int x) { return x * n; }
#define G(n) F(n##0) F(n##1) F(n##2) F(n##3) F(n##4) F(n##5) F(n##6) F(n##7) F(n##8) F(n##9)
G(1) G(2)
int main(int argc, char **argv) {
    char page[3 << 12], text[16];
    strcpy(text, argv[0]);
    return fread(page, 1, sizeof page, stdin) + printf("%s %d", text, page[argc]) < 0;
}
"""


def read_elf(options: str, path: Path) -> str:
    return subprocess.run(["readelf", *options.split(), str(path)], capture_output=True, text=True, check=True).stdout


def is_program(dynamic: str) -> bool:
    """Returns whether a file is a program, by its dynamic section: a library has a name for the loader."""
    return "(SONAME)" not in dynamic


def read_code(path: Path) -> bytes:
    """Returns the bytes of .text."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "text"
        subprocess.run(["objcopy", "-O", "binary", "--only-section=.text", str(path), str(out)], check=True)
        return out.read_bytes()


def find_gaps(path: Path, flags: list[str], small: bool = False) -> list[str]:
    """Returns what a file lacks; small: without what such a file may lack."""
    segments, dynamic = read_elf("-lW", path), read_elf("-dW", path)
    imports = set(re.findall(r" UND (\w+)", read_elf("-W --dyn-syms", path)))
    code = read_code(path)
    gaps = {
        "-z relro: no GNU_RELRO segment": "GNU_RELRO" not in segments,
        "-z now: symbols are bound late": not re.search(r"\bNOW\b|BIND_NOW", dynamic),
        "-z noexecstack: the stack is executable": not re.search(r"GNU_STACK +(\w+ +){5}RW +", segments),
        "a segment is writable and executable": bool(re.search(r"^ +LOAD .* RWE ", segments, re.M)),
        "relocations in the code": "TEXTREL" in dynamic,
        "-fPIE, -pie: loads at a fixed address": is_program(dynamic) and not re.search(r"Flags: .*\bPIE\b", dynamic),
    }
    if not small:
        checked = any(re.fullmatch(r"__\w+_chk", name) for name in imports)
        gaps["-D_FORTIFY_SOURCE: no checked call of the C library"] = not checked
    if "-fstack-protector-strong" in flags:
        gaps["-fstack-protector-strong: nothing checks the stack"] = "__stack_chk_fail" not in imports
    if "-fstack-clash-protection" in flags and platform.machine() == "x86_64" and not small:
        gaps["-fstack-clash-protection: no large frame is probed"] = not _PROBE.search(code)
    if "-fcf-protection" in flags:
        gaps["-fcf-protection: no marked branch targets"] = code.count(_BRANCH_TARGET) < _ENOUGH_TARGETS
    return [text for text, missing in gaps.items() if missing]


def build(cc: str, folder: Path, name: str, flags: list[str]) -> Path:
    source, out = folder / "program.c", folder / name
    source.write_text(_PROGRAM, encoding="utf-8")
    subprocess.run([cc, "-w", *flags, str(source), "-o", str(out)], check=True)
    return out


def test_finds(cc: str, flags: list[str]) -> None:
    """All is missed that a program is built without, and nothing that it is built with."""
    off = {
        "-fstack-protector-strong": "-fno-stack-protector",
        "-fstack-clash-protection": "-fno-stack-clash-protection",
        "-fcf-protection": "-fcf-protection=none",
    }
    without = [*(off[flag] for flag in flags), "-O2", "-U_FORTIFY_SOURCE", "-fno-pie", "-no-pie"]
    soft = [*without, "-Wl,-z,norelro,-z,lazy,-z,execstack"]
    hard = [*flags, "-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fPIE", "-pie", "-Wl,-z,relro,-z,now"]
    with tempfile.TemporaryDirectory() as folder:
        gaps = find_gaps(build(cc, Path(folder), "soft", soft), flags)
        probed = "-fstack-clash-protection" in flags and platform.machine() == "x86_64"
        others = [flag for flag in flags if flag != "-fstack-clash-protection"]
        assert len(gaps) == 5 + len(others) + probed, gaps
        gaps = find_gaps(build(cc, Path(folder), "hard", hard), flags)
        assert not gaps, gaps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cc", required=True)
    parser.add_argument("--flag", action="append", default=[])
    parser.add_argument("--small", type=Path, action="append", default=[])
    parser.add_argument("elf", type=Path, nargs="+")
    options = parser.parse_args()
    for tool in ("readelf", "objcopy"):
        if not shutil.which(tool):
            print(f"skipped: there is no {tool}")
            return SKIPPED
    test_finds(options.cc, options.flag)
    gaps = 0
    for path in [*options.elf, *options.small]:
        for gap in find_gaps(path, options.flag, path in options.small):
            print(f"{path}: {gap}")
            gaps += 1
    print(f"{len(options.elf) + len(options.small)} files, {len(options.flag)} flags of the compiler; {gaps} gaps")
    return 1 if gaps else 0


if __name__ == "__main__":
    sys.exit(main())
