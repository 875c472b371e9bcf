# SPDX-License-Identifier: Apache-2.0
"""The Python package without torch: a wheel of this source tree passes the tests that need none.

tests/python/test_torch.py has those that do.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from wheel_environment import make_environment, run

FRAMEWORKS = {"torch", "transformers", "accelerate", "peft"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel installed."""
    for needed in ("numpy", "ml_dtypes", "scikit_build_core"):
        pytest.importorskip(needed)
    return make_environment(tmp_path_factory.mktemp("wheel"), "wheel", "TRF_TORCH=OFF", hidden=FRAMEWORKS)


def test_wheel_passes_its_tests(environment: Path) -> None:
    python = environment / "python"
    place = run(python, "-c", "import transfuse; print(transfuse.__file__)").strip()
    assert Path(place).is_relative_to(environment.parent), place
    names = "test_binding or test_doctor"
    print(run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", names, "--pyargs", "transfuse"))


def test_wheel_has_the_program(environment: Path) -> None:
    version = run(environment / "python", "-c", "import transfuse; print(transfuse.__version__)")
    assert run(environment / "transfuse", "--version") == f"transfuse {version}"


def test_doctor_finds_no_problem(environment: Path) -> None:
    output = run(environment / "transfuse", "doctor")
    assert output.endswith("no problem found\n"), output
    assert "torch is not installed" in output


def test_needs_neither_torch_nor_work_at_import(environment: Path) -> None:
    program = """
import sys, transfuse
from transfuse import _library
print(sorted({"torch", "ml_dtypes", "transformers", "vllm"} & set(sys.modules)), _library.library.cache_info().misses)
"""
    assert run(environment / "python", "-c", program) == "[] 0\n"
