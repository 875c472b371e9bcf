# SPDX-License-Identifier: Apache-2.0
"""What is fetched to build, test and release is pinned: packages of Python by hash, actions and images by digest.

Each *requirements.in has only exact pins, and the *requirements.txt beside it the same pins with their hashes; what
builds the package (pyproject.toml) is pinned exactly, as in the environment that makes the release's wheel.
Usage: test_pins.py [--root DIR]; other arguments are those that every test here gets.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from repository_files import ROOT, list_files, read_text, report

_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")


def normalize(name: str) -> str:
    """Returns a package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> tuple[dict[str, str], list[str]]:
    """Returns the version for each package of a requirements file, and the requirements that are no exact pins."""
    pins, others = {}, []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        requirement = line.partition("#")[0].strip()
        match = _PIN.fullmatch(re.sub(r"\s+--hash=sha256:[0-9a-f]{64}", "", requirement).strip())
        if match:
            pins[normalize(match[1])] = match[2]
        elif requirement:
            others.append(requirement.split()[0])
    return pins, others


def find_unhashed(text: str) -> list[str]:
    """Returns the requirements that have no hash."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [line.split()[0] for line in lines if line.strip() and line[0] != "#" and "--hash=sha256:" not in line]


def check_requirements(root: Path, name: str) -> list[str]:
    """Returns what is wrong with a *requirements.in and the file that was made of it."""
    made = name.removesuffix(".in") + ".txt"
    if not (root / made).is_file():
        return [f"{name}: there is no {made}; `uv pip compile` makes it"]
    wanted, others = read_pins(read_text(root / name))
    text = read_text(root / made)
    found, odd = read_pins(text)
    lines = [f"{name}: {other} is not pinned (NAME==VERSION)" for other in others]
    lines += [f"{made}: {other} is not pinned" for other in odd]
    lines += [f"{made}: {other} has no hash" for other in find_unhashed(text)]
    for package in sorted(wanted.keys() | found.keys()):
        if wanted.get(package) != found.get(package):
            lines.append(f"{made}: {package} is {found.get(package)}, and {wanted.get(package)} in {name}")
    return lines


def check_build_system(root: Path) -> list[str]:
    """Returns what pyproject.toml takes to build and does not pin as tools/wheel_requirements.in does."""
    match = re.search(r"^\[build-system\]$.*?^requires = \[(.*?)\]", read_text(root / "pyproject.toml"), re.M | re.S)
    pins, _ = read_pins(read_text(root / "tools" / "wheel_requirements.in"))
    lines = []
    for requirement in re.findall(r'"([^"]+)"', match[1] if match else ""):
        name, _, version = requirement.partition("==")
        if not version or pins.get(normalize(name)) != version:
            lines.append(f"pyproject.toml: {requirement} is not the pin of tools/wheel_requirements.in")
    return lines if match else ["pyproject.toml: no requires in [build-system]"]


def check_workflow(name: str, text: str) -> list[str]:
    """Returns the actions of a workflow that are not pinned by commit, and the images that are not by digest."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*(- )?uses:", line) and not re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line):
            lines.append(f"{name}:{number}: an action is pinned as OWNER/NAME@COMMIT # vVERSION")
        if re.match(r"\s*image:|FROM ", line) and not re.search(r"@sha256:[0-9a-f]{64}\b", line):
            lines.append(f"{name}:{number}: an image is pinned as NAME@sha256:DIGEST")
    return lines


def find_faults(root: Path) -> tuple[int, list[str]]:
    """Returns how many files were looked at, and what is wrong with some."""
    lines, checked = check_build_system(root), 1
    for name in list_files(root):
        if name.endswith("requirements.in"):
            lines += check_requirements(root, name)
        elif name.endswith("requirements.txt"):
            if not (root / name).with_suffix(".in").is_file():
                lines.append(f"{name}: there is no .in file of which it was made")
        elif name.startswith(".github/workflows/") or name == "Containerfile":
            lines += check_workflow(name, read_text(root / name))
        else:
            continue
        checked += 1
    return checked, lines


def test_finds() -> None:
    """Each fault is found in a folder that has them all, and none in one that is as it should be."""
    good, hashed = "a_b==1.0\n", f"a-b==1.0 \\\n    --hash=sha256:{'0' * 64}\n"
    build = '[build-system]\nrequires = ["a_b%s"]\n'
    texts = {
        "pyproject.toml": (build % ">=1", build % "==1.0"),
        "tools/wheel_requirements.in": (good, good),
        "tools/wheel_requirements.txt": ("a-b==1.1\n", hashed),
        "tests/requirements.in": ("a>=1\n", good),
        "tests/requirements.txt": ("", hashed),
        "tests/other_requirements.in": (good, good),
        "tests/other_requirements.txt": (None, hashed),
        "tests/odd_requirements.txt": (hashed, None),
    }
    for at, wanted in ((0, 6), (1, 0)):
        with tempfile.TemporaryDirectory() as folder:
            for name, pair in texts.items():
                text = pair[at]
                if text is not None:
                    (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                    (Path(folder) / name).write_text(text, encoding="utf-8")
            _, lines = find_faults(Path(folder))
            assert len(lines) == wanted, "\n".join(lines)
    loose = "      - uses: o/n@v4\n      image: debian:12\nFROM debian:12 AS build\n"
    exact = f"- uses: o/n@{'0' * 40} # v4.0.1\n  image: debian@sha256:{'0' * 64}\nCOPY --from=build a b\n"
    assert len(check_workflow("a.yml", loose)) == 3 and not check_workflow("a.yml", exact)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    options, _ = parser.parse_known_args()
    test_finds()
    checked, lines = find_faults(options.root)
    return report(lines, f"{checked} files; {len(lines)} findings", checked > 5)


if __name__ == "__main__":
    sys.exit(main())
