# SPDX-License-Identifier: Apache-2.0
"""Makes a wheel of this source tree, without device code, and an environment that has it installed.

TRANSFUSE names the command of the build, in whose folder the wheel's build stays. No network is used: what makes and
tests the wheel is that of the environment in which this runs (tests/requirements.txt).
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
from collections.abc import Container
from pathlib import Path

ROOT = Path(os.environ["TRF_SOURCE_DIR"])
BUILD = Path(os.environ["TRANSFUSE"]).parent


def run(*arguments: object, **environment: str) -> str:
    """Runs a program outside the source tree, which must not be taken for the package; returns what it printed."""
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


def link_packages(folder: Path, hidden: Container[str]) -> Path:
    """Returns a new folder with links to the packages that are installed here, but for those of these names."""
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name.partition("-")[0] not in hidden:  # of name-version.dist-info, too
            (folder / entry.name).symlink_to(entry)
    return folder


def make_environment(folder: Path, build: str, *settings: str, hidden: Container[str] = ()) -> Path:
    """Returns the folder of the programs of a new environment in `folder`, which is empty.

    build: the name of the folder in which CMake builds, which tests may share: they wait for each other. settings:
    values of cmake.define, such as "TRF_CUDA=OFF".
    hidden: packages of this environment that the new one does not see.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    offline = ["--no-index", "--no-deps"]
    defined = [f"--config-settings=cmake.define.{setting}" for setting in ("TRF_CUDA=OFF", *settings)]
    place = f"--config-settings=build-dir={BUILD / build}"
    with open(BUILD / f"{build}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(*pip, "wheel", *offline, "--no-build-isolation", *defined, place, "-w", folder, ROOT)
    wheels = [path.name for path in folder.iterdir()]
    assert len(wheels) == 1 and "-py3-none-linux_" in wheels[0], wheels

    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # Packages that are installed here are found there, after those that are installed there.
    (site / "outer.pth").write_text(f"{link_packages(folder / 'outer', hidden)}\n")
    run(*pip, "--python", python, "install", *offline, folder / wheels[0])
    return python.parent
