#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the machine code of the kernels in two builds: a change that only moves or renames things must change none.

Usage: compare_sass.py OLD NEW [--renames FILE] [--cuobjdump PATH] [--demangler PATH] [--jobs N]

OLD and NEW are object files, libraries, executables, or folders, in which all object files count, or the libraries if
there are none. Kernels are paired by architecture and demangled name, without the hashes of file names in it, after the
renames of RENAMES and of FILE (lines of an old and a new identifier), which apply to OLD. The script compares the
instructions with their addresses and encodings, and what cuobjdump says about registers, stack, shared and local memory
and the sizes of constant banks; it compares names in the code like those of kernels. The contents of constant banks are
not compared. A kernel that several files have may have several variants; then both builds must have the same ones.

Prints a line for each kernel that differs and for each that one build alone has, then a summary. Exits with 0 if all
are the same, with 1 if not, with 2 if it could not compare.

It needs c++filt and cuobjdump, which needs nvdisasm beside it. Both come with the CUDA toolkit, or from PyPI: `pip
install nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37`. Those of the Python that runs this script are
found. Both builds must be read with the same version.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

# Identifiers of OLD and what they are called in NEW, one a row: functions, types, namespaces, template arguments.
RENAMES: tuple[tuple[str, str], ...] = (
    ("trf_build_quad", "trf_build_four"),
    ("trf_build_quad_f16", "trf_build_four_f16"),
    ("trf_pack_row", "trf_row_to_window"),
    ("trf_packed_args", "trf_packed_general_args"),
    ("trf_packed_finish", "trf_packed_general_finish"),
    ("trf_packed_mma", "trf_packed_general"),
    ("trf_plain_unit_order", "trf_all_panels_order"),
    ("transcode_slabs", "pack_coded_slabs"),
    ("trf_table_source", "trf_table_slots"),
    ("trf_transcode_args", "trf_pack_coded_args"),
)

# The name under which a build's memory that belongs to no kernel appears: the sum over all its files.
MODULES = "(global and constant memory of all files)"

# In the code: `(name), or any name that is mangled or that the compiler made.
_NAME_IN_CODE = re.compile(rb"`\([^()]*\)|[\w.$]*(?:_Z|\$)[\w.$]*")
_RESOURCE = re.compile(r"(\w+(?:\[\d+\])?):(\d+)")
# _INTERNAL_<hash>_<length>_<file>_<hash>, and what c++filt leaves of _GLOBAL__N__<hash>_<length>_<file>_<hash>.
_FILE_HASH = re.compile(r"_(GLOBAL__N_|INTERNAL)_[0-9a-f]{8}_(\d+)_")
_FILE_HASH_END = re.compile(r"_[0-9a-f]{8}(?:_\d+)?")


@dataclass
class Kernel:
    """One copy of a kernel, or of a device function with code of its own."""

    arch: str
    name: str  # mangled
    instructions: int = 0
    code: str = ""  # a digest of the code, without the names in it
    names: list[str] = field(default_factory=list)  # in the code, in their order
    resources: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Variant:
    """The parts of a kernel that are compared."""

    instructions: int
    code: str
    names: tuple[str, ...]
    resources: tuple[tuple[str, int], ...]


# ---- reading ----


def parse_dump(lines: Iterable[bytes]) -> tuple[list[Kernel], dict[tuple[str, str], int]]:
    """Reads the output of `cuobjdump -sass -res-usage`.

    Returns the kernels and, by architecture and kind, the bytes of memory that belong to no kernel.
    """
    code, resources = [], {}
    modules = defaultdict(int)
    arch, kernel, digest, resources_of = "", None, None, None
    first = 0  # of the kernels of this fatbin

    def finish() -> None:
        for done in code[first:]:
            done.resources = resources.get(done.name, ())

    for line in lines:
        if kernel:
            if line[8:10] == b"/*":
                kernel.instructions += 1
            elif line.startswith(b"\t\t....."):
                kernel.code = digest.hexdigest()
                kernel = None
                continue
            if b"_Z" in line or b"$" in line or b"`" in line:
                kernel.names += [name.decode() for name in _NAME_IN_CODE.findall(line)]
                line = _NAME_IN_CODE.sub(b"@", line)
            digest.update(b" ".join(line.split()))  # cuobjdump pads lines with blanks
        elif line.startswith(b"\t\tFunction : "):
            kernel = Kernel(arch, line[13:].strip().decode())
            digest = hashlib.blake2b(digest_size=16)
            code.append(kernel)
        elif line.startswith(b"Fatbin "):
            finish()
            first, resources, resources_of = len(code), {}, None
        elif line.startswith(b"arch = "):
            arch = line[7:].strip().decode()
        elif line.startswith(b" Function "):
            resources_of = line[10:].strip().rstrip(b":").decode()
        elif line.startswith(b" Common:"):
            resources_of = ""
        elif line.startswith(b"  ") and resources_of is not None:
            found = [(kind, int(number)) for kind, number in _RESOURCE.findall(line.decode())]
            if resources_of:
                resources[resources_of] = tuple(found)
            for kind, number in () if resources_of else found:
                modules[arch, kind] += number
            resources_of = None
    finish()
    return code, dict(modules)


def has_device_code(path: Path) -> bool:
    if path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(b".nv_fatbin") >= 0 or data.find(b".nv.info") >= 0


def find_inputs(path: Path) -> list[Path]:
    """Returns the files with device code, of a folder the largest first."""
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob("*.o")) or sorted(path.rglob("*.a"))
    found = [file for file in found if file.is_file() and has_device_code(file)]
    return sorted(found, key=lambda file: -file.stat().st_size)


def read_file(cuobjdump: str, path: Path) -> tuple[list[Kernel], dict[tuple[str, str], int]]:
    folder = os.path.dirname(os.path.abspath(cuobjdump))
    environment = {**os.environ, "PATH": folder + os.pathsep + os.environ.get("PATH", "")}  # for nvdisasm
    call = [cuobjdump, "-sass", "-res-usage", str(path)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, env=environment) as process:
        found = parse_dump(process.stdout)
    if process.returncode:
        raise OSError(f"{cuobjdump} failed on {path}")
    return found


# ---- names ----


def without_file_hashes(name: str) -> str:
    """Leaves out of a name what nvcc makes of a file's path, so that a kernel that moved keeps its name."""
    at = 0
    while match := _FILE_HASH.search(name, at):
        end = _FILE_HASH_END.match(name, match.end() + int(match[2]))
        at = match.start() + len(match[1]) + 1
        if end:
            name = f"{name[: match.start()]}_{match[1]}{name[end.end() :]}"
    return re.sub(r"\$__internal_\d+_\$", "$__internal_$", name)


def demangle(demangler: str, names: Iterable[str]) -> dict[str, str]:
    """Returns the demangled names; names that are not mangled stay as they are."""
    names = sorted(set(names))
    lines = "".join(name + "\n" for name in names)
    done = subprocess.run([demangler], input=lines, stdout=subprocess.PIPE, text=True, check=True)
    return dict(zip(names, map(without_file_hashes, done.stdout.split("\n")), strict=False))


def rename(names: dict[str, str], renames: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Replaces whole identifiers in the meanings, all at once: two names may be exchanged."""
    table = dict(renames)
    if not table:
        return names
    pattern = re.compile(r"(?<![\w$])(?:" + "|".join(map(re.escape, table)) + r")(?![\w$])")
    return {name: pattern.sub(lambda match: table[match[0]], meaning) for name, meaning in names.items()}


def read_renames(text: str) -> list[tuple[str, str]]:
    """Reads lines of an old and a new identifier; what follows a # is a comment."""
    rows = [line.split("#")[0].split() for line in text.splitlines()]
    for row in filter(None, rows):
        if len(row) != 2:
            raise ValueError(f"not an old and a new identifier: {' '.join(row)}")
    return [(row[0], row[1]) for row in rows if row]


# ---- comparing ----

Build = dict[tuple[str, str], set[Variant]]  # by architecture and name


def collect(kernels: list[Kernel], modules: list[dict[tuple[str, str], int]], names: dict[str, str]) -> Build:
    build = defaultdict(set)
    for kernel in kernels:
        in_code = tuple(names[name] for name in kernel.names)
        variant = Variant(kernel.instructions, kernel.code, in_code, kernel.resources)
        build[kernel.arch, names[kernel.name]].add(variant)
    sums = defaultdict(lambda: defaultdict(int))
    for module in modules:
        for (arch, kind), number in module.items():
            sums[arch][kind] += number
    for arch, of_kinds in sums.items():
        build[arch, MODULES].add(Variant(0, "", (), tuple(sorted(of_kinds.items()))))
    return dict(build)


def describe_difference(old: set[Variant], new: set[Variant]) -> str:
    """Says what differs between a kernel's variants, of which only those matter that one side alone has."""
    if len(old) != len(new):
        return f"{len(old)} variants -> {len(new)}"
    only_old, only_new = old - new, new - old
    if len(only_old) > 1:
        return f"{len(only_old)} of {len(old)} variants"
    before, after = only_old.pop(), only_new.pop()
    parts = []
    if before.instructions != after.instructions:
        parts.append(f"{before.instructions} -> {after.instructions} instructions")
    elif before.code != after.code:
        parts.append(f"code of {before.instructions} instructions")
    elif before.names != after.names:
        parts.append("names in the code")
    was, now = dict(before.resources), dict(after.resources)
    for kind in sorted(was.keys() | now.keys()):
        if was.get(kind) != now.get(kind):
            parts.append(f"{kind} {was.get(kind, 'none')} -> {now.get(kind, 'none')}")
    return ", ".join(parts)


def compare(old: Build, new: Build) -> tuple[list[str], str]:
    """Returns a line for each difference, and the summary."""
    lines = []
    both = sorted(old.keys() & new.keys())
    different = [key for key in both if old[key] != new[key]]
    for arch, name in different:
        lines.append(f"differs: {arch} {name}: {describe_difference(old[arch, name], new[arch, name])}")
    only_old, only_new = (sorted(a.keys() - b.keys()) for a, b in ((old, new), (new, old)))
    lines += [f"only in OLD: {arch} {name}" for arch, name in only_old]
    lines += [f"only in NEW: {arch} {name}" for arch, name in only_new]

    def count(keys: list[tuple[str, str]]) -> int:
        return sum(1 for _, name in keys if name != MODULES)

    archs = ", ".join(sorted({arch for arch, _ in old.keys() | new.keys()}))
    summary = (
        f"{count(both) - count(different)} kernels are the same, {count(different)} differ, "
        f"{count(only_old)} are only in OLD, {count(only_new)} only in NEW ({archs})"
    )
    if any(name == MODULES for _, name in different + only_old + only_new):
        summary += "; memory of no kernel differs"
    return lines, summary


# ---- the command ----


def find_cuobjdump() -> str | None:
    """Looks in PATH, in the usual places of the toolkit, and in the wheels of this Python."""
    folders = [Path(os.environ[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders.append(Path("/usr/local/cuda/bin"))
    for place in sys.path:
        folders += sorted(Path(place).glob("nvidia/cu*/bin")) + sorted(Path(place).glob("nvidia/cuda_*/bin"))
    found = [shutil.which("cuobjdump")] + [shutil.which("cuobjdump", path=str(folder)) for folder in folders]
    return next(filter(None, found), None)


def read_builds(
    cuobjdump: str, demangler: str, paths: list[Path], jobs: int, renames: list[tuple[str, str]]
) -> list[Build]:
    inputs = [(side, file) for side, path in enumerate(paths) for file in find_inputs(path)]
    with ThreadPoolExecutor(jobs) as pool:
        dumps = list(pool.map(lambda entry: read_file(cuobjdump, entry[1]), inputs))
    builds = []
    for side in range(len(paths)):
        own = [dump for (of, _), dump in zip(inputs, dumps, strict=True) if of == side]
        kernels = [kernel for found, _ in own for kernel in found]
        if not kernels:
            raise ValueError(f"{paths[side]} has no device code")
        names = demangle(demangler, [name for kernel in kernels for name in (kernel.name, *kernel.names)])
        builds.append(collect(kernels, [modules for _, modules in own], rename(names, renames if side == 0 else ())))
    return builds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--renames", type=Path, metavar="FILE", help="lines of an old and a new identifier")
    parser.add_argument("--cuobjdump", metavar="PATH")
    parser.add_argument("--demangler", metavar="PATH", default="c++filt")
    parser.add_argument("--jobs", type=int, metavar="N", default=os.cpu_count() or 1, help="files read at once")
    options = parser.parse_args()
    cuobjdump = options.cuobjdump or find_cuobjdump()
    if not cuobjdump:
        print("compare_sass.py: there is no cuobjdump; --help says where it comes from", file=sys.stderr)
        return 2
    try:
        renames = list(RENAMES)
        if options.renames:
            renames += read_renames(options.renames.read_text(encoding="utf-8"))
        builds = read_builds(cuobjdump, options.demangler, [options.old, options.new], options.jobs, renames)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"compare_sass.py: {error}", file=sys.stderr)
        return 2
    lines, summary = compare(*builds)
    print("".join(line + "\n" for line in lines) + summary)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
