# SPDX-License-Identifier: Apache-2.0
"""Writes the bill of materials of a wheel, CycloneDX 1.6 in JSON: what became part of its libraries and its command.

What that is tell the files themselves (the libraries that they ask for), the linker's maps (members of static ones),
and CMake (headers that are compiled in). A library that is neither listed nor the system's is an error, so that no
build brings along what the bill does not name. The same files give the same bytes: no date and no random number.
Usage: make_sbom.py --version V --known FILE --out FILE [--map FILE]... ELF...
FILE of known parts: a line NAME|VERSION|LICENCE|PURL|HOW for each, HOW being `headers`, or the library's name (libz).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Of the system that a wheel is for, by manylinux's rules; compiler and loader; torch, which the user has.
SYSTEM = {
    *("libc", "libm", "libpthread", "libdl", "librt", "libstdc++", "libgcc", "libgcc_s", "libgcc_eh", "libc_nonshared"),
    *("ld-linux-x86-64", "ld-linux-aarch64", "libtorch_cpu"),
}


@dataclass(frozen=True)
class Part:
    """A library that may become part of a wheel; how: `headers`, or its file's name without an ending."""

    name: str
    version: str
    licence: str
    purl: str
    how: str


def read_known(path: Path) -> list[Part]:
    """Returns the parts of a file of lines; raises ValueError for one that has another number of fields."""
    parts = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = line.split("|")
        if len(fields) != 5 or not all(fields):
            raise ValueError(f"{path}: '{line}' is not NAME|VERSION|LICENCE|PURL|HOW")
        parts.append(Part(*fields))
    return parts


def stem(library: str) -> str:
    """Returns a library's name without folder, ending and version: libz of /usr/lib/libz.so.1.2 and of libz.a."""
    return re.sub(r"\.(a|so)(\.\d+)*$", "", Path(library).name)


def find_needed(elf: Path) -> set[str]:
    """Returns the shared libraries that a file asks the loader for."""
    done = subprocess.run(["readelf", "-dW", str(elf)], capture_output=True, text=True, check=True)
    return {stem(name) for name in re.findall(r"\(NEEDED\)\s+Shared library: \[(.+?)\]", done.stdout)}


def find_archives(linker_map: Path) -> set[str]:
    """Returns the static libraries of which a linked file has members."""
    text = linker_map.read_text(encoding="utf-8", errors="replace")
    return {stem(path) for path in re.findall(r"^(\S+\.a)\(", text, re.M)}


def find_linked(elfs: list[Path], maps: list[Path]) -> dict[str, str]:
    """Returns for each library that became part of the files, or is loaded by them, which of the two it is."""
    linked = {name: "static" for path in maps for name in find_archives(path)}
    for elf in elfs:
        linked |= {name: "shared" for name in find_needed(elf) if name not in linked}
    own = {stem(elf.name) for elf in elfs}
    return {name: how for name, how in linked.items() if name not in SYSTEM | own}


def choose_parts(known: list[Part], linked: dict[str, str]) -> list[tuple[Part, str]]:
    """Returns the parts that are used, sorted by name, and how; raises ValueError for a library that is not known."""
    unknown = sorted(linked.keys() - {part.how for part in known})
    if unknown:
        raise ValueError(f"linked, but not listed in cmake/TransfuseSbom.cmake: {', '.join(unknown)}")
    chosen = [(part, linked.get(part.how, "headers")) for part in known if part.how in {"headers", *linked}]
    return sorted(chosen, key=lambda pair: pair[0].name)


def describe(part: Part, how: str) -> dict[str, object]:
    """Returns a part as a component of the bill."""
    # What is no SPDX identifier is a name.
    licence = {"name" if " " in part.licence else "id": part.licence}
    return {
        "type": "library",
        "bom-ref": part.purl,
        "name": part.name,
        "version": part.version,
        "licenses": [{"license": licence}],
        "purl": part.purl,
        "properties": [{"name": "transfuse:linkage", "value": how}],
    }


def make_bill(version: str, parts: list[tuple[Part, str]]) -> dict[str, object]:
    purl = f"pkg:pypi/transfuse@{version}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": purl,
                "name": "transfuse",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "purl": purl,
            }
        },
        "components": [describe(part, how) for part, how in parts],
        "dependencies": [
            {"ref": purl, "dependsOn": [part.purl for part, _ in parts]},
            *({"ref": part.purl} for part, _ in parts),
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", required=True)
    parser.add_argument("--known", type=Path, required=True)
    parser.add_argument("--map", type=Path, action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("elf", type=Path, nargs="+")
    options = parser.parse_args()
    try:
        parts = choose_parts(read_known(options.known), find_linked(options.elf, options.map))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"make_sbom.py: {error}", file=sys.stderr)
        return 1
    bill = make_bill(options.version, parts)
    options.out.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
