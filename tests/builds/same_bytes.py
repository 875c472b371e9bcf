# SPDX-License-Identifier: Apache-2.0
"""Builds the program same_bytes in several ways and compares what it prints with same_bytes.csv.

It takes gcc and clang without and with optimization, gcc for this very CPU, and both compilers for aarch64 where
there are gcc-aarch64-linux-gnu and qemu-user (--arm64 says where Jansson, xxHash and Check for arm64 are). Each build
runs with 1, 2, 7 and 16 threads (emulated: 1 and 7) and with each instruction set that the CPU has; one runs on an
emulated CPU without AVX, too, where the C library takes other functions.

Usage: same_bytes.py [--into FOLDER] [--only NAME ...] [--arm64 FOLDER] [--jobs N] [--write]

--arm64 names a folder in which packages of Debian are unpacked, such as by
    apt-get download libjansson-dev:arm64 libjansson4:arm64 libxxhash-dev:arm64 libxxhash0:arm64 check:arm64 \
        libsubunit-dev:arm64 libsubunit0:arm64      (after dpkg --add-architecture arm64, apt-get update)
    for package in *.deb; do dpkg -x $package FOLDER; done
The compiler and the emulator for it are in gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user.
--write writes same_bytes.csv by the first build: after a change of the encoder that is meant to give other bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
EXPECTED = HERE / "same_bytes.csv"
THREADS = (1, 2, 7, 16)
EMULATED_THREADS = (1, 7)
AARCH64 = "aarch64-linux-gnu"
ROOMS = ("base", "format", "decoder_cpu", "encoder", "loader", "tests/builds")
OFF = ("TRF_CUDA", "TRF_BUILD_TOOLS", "TRF_BUILD_EXAMPLES", "TRF_EMULATE_KERNELS")


@dataclass
class Build:
    """A way to build: a compiler, its flags, and what runs the program."""

    name: str
    compiler: str
    flags: str
    more: dict[str, str] = field(default_factory=dict)  # CMake variables
    runner: list[str] = field(default_factory=list)
    simd: tuple[str, ...] = ("scalar", "avx2", "avx512")


def list_builds() -> list[Build]:
    cross = {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": "aarch64"}
    target = {**cross, "CMAKE_C_COMPILER_TARGET": AARCH64}
    emulator = ["qemu-aarch64"]
    return [
        Build("gcc-O3", "gcc", "-O3"),
        Build("gcc-O0", "gcc", "-O0"),
        Build("clang-O3", "clang", "-O3"),
        Build("clang-O0", "clang", "-O0"),
        Build("gcc-native", "gcc", "-O3 -march=native"),
        Build("aarch64-gcc-O3", f"{AARCH64}-gcc", "-O3", cross, emulator, ("scalar",)),
        Build("aarch64-gcc-O0", f"{AARCH64}-gcc", "-O0", cross, emulator, ("scalar",)),
        Build("aarch64-clang-O3", "clang", "-O3", target, emulator, ("scalar",)),
    ]


def find_objects(folder: Path) -> list[str]:
    """Lists the object files of a configured build that the program consists of."""
    objects = []
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        if Path(entry["file"]).parent in [ROOT / room for room in ROOMS]:
            objects += re.findall(r" -o (\S+\.o)", entry["command"])
    return objects


def compile_program(build: Build, folder: Path, arm64: Path | None, jobs: int) -> Path:
    """Compiles with the flags that CMake sets. The rest of the library, nearly half of it, is left out."""
    environment = dict(os.environ)
    if build.more and arm64:
        environment["PKG_CONFIG_SYSROOT_DIR"] = str(arm64)
        environment["PKG_CONFIG_LIBDIR"] = f"{arm64}/usr/lib/{AARCH64}/pkgconfig:{arm64}/usr/share/pkgconfig"
    variables = {
        **build.more,
        "CMAKE_C_COMPILER": build.compiler,
        "CMAKE_BUILD_TYPE": "None",
        "CMAKE_C_FLAGS": f"{build.flags} -DNDEBUG",
        "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
        **dict.fromkeys(OFF, "OFF"),
    }
    settings = [f"-D{name}={value}" for name, value in variables.items()]
    log = folder.with_suffix(".log")
    program = folder / "same_bytes"
    target = [f"--target={build.more['CMAKE_C_COMPILER_TARGET']}"] if "CMAKE_C_COMPILER_TARGET" in build.more else []

    def run(output: IO[str], *command: str) -> None:
        if subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=output, check=False).returncode:
            raise SystemExit(f"{build.name}: {' '.join(command)} failed; see {log}")

    with log.open("w") as output:
        run(output, "cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *settings)
        objects = find_objects(folder)
        run(output, "cmake", "--build", str(folder), "-j", str(jobs), "--target", *objects)
        jansson = subprocess.run(
            ["pkg-config", "--libs", "jansson"], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        paths = [str(folder / name) for name in objects]
        static = ["-static"] if build.more else []  # an emulator need not find libraries, then
        run(output, build.compiler, *target, *static, *paths, *jansson, "-pthread", "-lm", "-o", str(program))
    return program


def run_program(command: list[str], simd: str, threads: int) -> tuple[list[str], str]:
    """Returns the lines that the program prints, and the instruction set that it takes."""
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [*command, str(threads), str(ROOT / "tests/golden"), scratch],
            env={**os.environ, "TRF_SIMD": simd}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} fails with TRF_SIMD={simd}, {threads} threads: {done.stderr}")
    return done.stdout.splitlines(), done.stderr.split()[0]


def list_runs(build: Build, program: Path) -> list[tuple[list[str], str, str, tuple[int, ...]]]:
    """Lists commands, the most that TRF_SIMD allows, what the run is called, and numbers of threads."""
    command = [*build.runner, str(program)]
    threads = EMULATED_THREADS if build.runner else THREADS
    runs = [(command, simd, simd, threads) for simd in build.simd]
    if build.name == "gcc-O3" and shutil.which("qemu-x86_64"):
        emulated = ["qemu-x86_64", "-cpu", "Nehalem", str(program)]
        runs.append((emulated, "avx512", "emulated Nehalem", EMULATED_THREADS))
    return runs


def compare(build: Build, program: Path, expected: list[str]) -> int:
    """Runs a build in all ways. Returns how many gave other bytes."""
    different = 0
    for command, simd, called, numbers in list_runs(build, program):
        for threads in numbers:
            lines, used = run_program(command, simd, threads)
            if used != simd and called == simd:
                print(f"{build.name:18} {called:8} this CPU does not have it")
                break
            wrong = sorted(set(lines) - set(expected))
            print(f"{build.name:18} {called:16} {threads:2} threads: {len(wrong)} of {len(lines)} differ", flush=True)
            for line in wrong[:8]:
                print(f"    {line}")
            different += lines != expected
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=ROOT / "build/same_bytes")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--arm64", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    builds = [build for build in list_builds() if not arguments.only or build.name in arguments.only]
    if arguments.only and len(builds) != len(set(arguments.only)):
        parser.error(f"there are the builds {' '.join(build.name for build in list_builds())}")
    different = left_out = 0
    for build in builds:
        needed = [build.compiler, *build.runner[:1], *([f"{AARCH64}-gcc"] if build.more else [])]
        missing = [tool for tool in needed if not shutil.which(tool)]
        if build.more and not arguments.arm64:
            missing.append("--arm64")
        if missing:
            print(f"{build.name:18} left out: there is no {' and no '.join(missing)}")
            left_out += 1
            continue
        arguments.into.mkdir(parents=True, exist_ok=True)
        program = compile_program(build, arguments.into / build.name, arguments.arm64, arguments.jobs)
        if arguments.write:
            EXPECTED.write_text("".join(f"{line}\n" for line in run_program([str(program)], "scalar", 1)[0]))
            arguments.write = False
        different += compare(build, program, EXPECTED.read_text().splitlines())
    print(f"{different} runs gave other bytes; {left_out} builds were left out")
    return int(different > 0 or left_out > 0)


if __name__ == "__main__":
    sys.exit(main())
