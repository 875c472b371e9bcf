# SPDX-License-Identifier: Apache-2.0
"""The Python package: a wheel of this source tree, without device code, passes its own tests in a bare environment.

TRANSFUSE names the command of the build, in whose folder the wheel's build stays. No network is used: what makes and
tests the wheel is that of the environment in which this runs (tests/requirements.txt).
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(os.environ["TRF_SOURCE_DIR"])
BUILD = Path(os.environ["TRANSFUSE"]).parent


def run(*arguments: object, **environment: str) -> str:
    """Runs a program outside of the source tree, which must not be taken for the package; returns what it printed."""
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=BUILD,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel installed."""
    for needed in ("numpy", "ml_dtypes", "scikit_build_core"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    offline = ["--no-index", "--no-deps"]
    settings = ["--config-settings=cmake.define.TRF_CUDA=OFF", f"--config-settings=build-dir={BUILD / 'wheel'}"]
    run(*pip, "wheel", *offline, "--no-build-isolation", *settings, "-w", folder, ROOT)
    wheels = [path.name for path in folder.iterdir()]
    assert len(wheels) == 1 and "-py3-none-linux_" in wheels[0], wheels

    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # What is installed here is found there, behind what is installed there.
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(*pip, "--python", python, "install", *offline, folder / wheels[0])
    return python.parent


def test_wheel_passes_its_tests(environment: Path) -> None:
    python = environment / "python"
    place = run(python, "-c", "import transfuse; print(transfuse.__file__)").strip()
    assert Path(place).is_relative_to(environment.parent), place
    print(run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "transfuse"))


def test_wheel_has_the_program(environment: Path) -> None:
    version = run(environment / "python", "-c", "import transfuse; print(transfuse.__version__)")
    assert run(environment / "transfuse", "--version") == f"transfuse {version}"


def test_needs_neither_torch_nor_work_at_import(environment: Path) -> None:
    program = """
import sys, transfuse
from transfuse import _library
print(sorted({"torch", "ml_dtypes", "transformers", "vllm"} & set(sys.modules)), _library.library.cache_info().misses)
"""
    assert run(environment / "python", "-c", program) == "[] 0\n"


def test_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    config = ROOT / "pyproject.toml"
    run(
        sys.executable,
        "-m",
        "mypy",
        f"--config-file={config}",
        f"--cache-dir={tmp_path}",
        ROOT / "python/src/transfuse",
    )
