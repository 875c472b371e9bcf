# SPDX-License-Identifier: Apache-2.0
"""The package's parts for PyTorch and transformers: a wheel with the ops passes the tests that need torch, on the CPU.

Without torch (tests/torch_requirements.txt) this skips. tests/python/test_binding.py has the tests that need none.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

try:
    import torch
except ImportError as failure:
    pytest.skip(f"there is no torch, which 'sh test.sh' installs: {failure}", allow_module_level=True)
from wheel_environment import ROOT, make_environment, run


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel installed."""
    return make_environment(tmp_path_factory.mktemp("wheel"), "wheel-torch", "TRF_TORCH=ON")


def test_wheel_passes_its_tests(environment: Path) -> None:
    names = "not test_binding and not test_doctor_nvidia"
    print(
        run(
            environment / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", names, "--pyargs", "transfuse"
        )
    )


def test_doctor_finds_no_problem(environment: Path) -> None:
    output = run(environment / "transfuse", "doctor")
    assert output.endswith("no problem found\n"), output
    assert f"torch                        {torch.__version__.partition('+')[0]}\n" in output
    assert "PyTorch on a CPU             yes\n" in output


def test_types(tmp_path: Path) -> None:
    """Here, because types come from torch, and there are none where it is not installed."""
    config = f"--config-file={ROOT / 'pyproject.toml'}"
    run(sys.executable, "-m", "mypy", config, f"--cache-dir={tmp_path}", ROOT / "python/src/transfuse")
