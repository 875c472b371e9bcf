# SPDX-License-Identifier: Apache-2.0
"""What a wheel of this source tree brings along: its bill of materials is valid and true, and it names no folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from wheel_environment import BUILD, ROOT, make_environment

MAKE_SBOM = ROOT / "tools" / "make_sbom.py"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel as test_binding.py makes it, in the same build."""
    for needed in ("numpy", "ml_dtypes", "scikit_build_core"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("wheel")
    make_environment(folder, "wheel", "TRF_TORCH=OFF")
    return zipfile.ZipFile(next(folder.glob("*.whl")))


@pytest.fixture(scope="module")
def bill(wheel: zipfile.ZipFile) -> str:
    names = [name for name in wheel.namelist() if name.endswith(".cdx.json")]
    assert len(names) == 1 and re.fullmatch(r"transfuse-[\d.]+\.dist-info/sboms/transfuse\.cdx\.json", names[0]), names
    return wheel.read(names[0]).decode()


def test_bill_is_valid(bill: str) -> None:
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert validator.validate_str(bill) is None
    assert validator.validate_str(bill.replace('"library"', '"libary"')) is not None


def test_bill_names_what_is_linked(wheel: zipfile.ZipFile, bill: str, tmp_path: Path) -> None:
    parts: dict[str, Any] = {part["name"]: part for part in json.loads(bill)["components"]}
    assert sorted(parts) == ["jansson", "lz4", "xxhash", "zstd"]
    modules = {"jansson": "jansson", "lz4": "liblz4", "xxhash": "libxxhash", "zstd": "libzstd"}
    for name, module in modules.items():
        done = subprocess.run(["pkg-config", "--modversion", module], capture_output=True, text=True, check=True)
        assert parts[name]["version"] == done.stdout.strip()

    needed = set()
    for name in wheel.namelist():
        if name.startswith(("transfuse/bin/", "transfuse/lib/")):
            path = wheel.extract(name, tmp_path)
            done = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True)
            needed |= set(re.findall(r"\(NEEDED\).*\[lib(\w+)\.so", done.stdout))
    shared = {name for name, part in parts.items() if part["properties"][0]["value"] == "shared"}
    assert shared == needed - {"c", "m", "transfuse"} == {"jansson", "lz4", "zstd"}


def make_bill(folder: Path, known: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    (folder / "known").write_text(known)
    command = [sys.executable, "-B", str(MAKE_SBOM), "--version", "1.0", "--known", str(folder / "known")]
    command += ["--out", str(folder / "bill.json"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_unknown_library_is_refused(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    command = wheel.extract("transfuse/bin/transfuse", tmp_path)
    done = make_bill(tmp_path, "lz4|1|BSD-2-Clause|pkg:generic/lz4@1|liblz4\n", command)
    assert done.returncode == 1 and "libjansson, libtransfuse, libzstd" in done.stderr, done.stderr
    done = make_bill(tmp_path, "lz4|1|BSD-2-Clause|liblz4\n", command)
    assert done.returncode == 1 and "'lz4|1|BSD-2-Clause|liblz4' is not NAME|" in done.stderr, done.stderr


def test_static_library_is_found_in_the_map(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    library = next(name for name in wheel.namelist() if "/libtransfuse.so" in name)
    linker_map = tmp_path / "map"
    linker_map.write_text(
        "Archive member included\n\n/usr/lib/libz.a(inflate.o)\n        main.o (inflate)\nLOAD libq.a\n"
    )
    known = "z|1|Zlib|pkg:generic/z@1|libz\njansson|2|MIT|pkg:generic/j@2|libjansson\nq|1|MIT|pkg:generic/q@1|libq\n"
    done = make_bill(tmp_path, known, "--map", linker_map, wheel.extract(library, tmp_path))
    assert done.returncode == 0, done.stderr
    parts = json.loads((tmp_path / "bill.json").read_text())["components"]
    linkage = [(part["name"], part["properties"][0]["value"]) for part in parts]
    assert linkage == [("jansson", "shared"), ("z", "static")]


def test_no_file_names_a_folder_of_the_build(wheel: zipfile.ZipFile) -> None:
    for name in wheel.namelist():
        content = wheel.read(name)
        for folder in (ROOT, BUILD / "wheel"):
            assert os.fsencode(folder) not in content, f"{name} has {folder} in it"
