# SPDX-License-Identifier: Apache-2.0
"""The hook by which transformers and diffusers find transfuse, each time in a Python of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest

import transfuse

HOOK = "transfuse_hook.pth"
# Prints which of these modules are there, and whether we are in a framework's tables.
STATE = """
import json, sys
frameworks = [sys.modules.get(name + ".quantizers.auto") for name in ("transformers", "diffusers")]
print(json.dumps({
    "modules": [name for name in ("transfuse", "torch", "transformers", "diffusers", "numpy") if name in sys.modules],
    "registered": [each is not None and "transfuse" in each.AUTO_QUANTIZER_MAPPING for each in frameworks],
    "configs": [each is not None and "transfuse" in each.AUTO_QUANTIZATION_CONFIG_MAPPING for each in frameworks],
    "finders": [getattr(finder, "__name__", "") for finder in sys.meta_path],
}))
"""


@pytest.fixture
def hook() -> Path:
    """The file that the wheel puts beside the package."""
    folders = [Path(transfuse.__file__).parent.parent, *(Path(sysconfig.get_path(p)) for p in ("purelib", "platlib"))]
    for folder in folders:
        if (folder / HOOK).is_file():
            return folder / HOOK
    pytest.fail(f"there is no {HOOK} in {', '.join(map(str, folders))}")


def run(program: str, **environment: str) -> dict[str, Any]:
    """Runs a program in a Python that reads no .pth file by itself, and returns what its end says."""
    folder = str(Path(transfuse.__file__).parent.parent)
    paths = os.pathsep.join([folder, *(path for path in sys.path if path)])
    variables = {**os.environ, "PYTHONPATH": paths, **environment}
    command = [sys.executable, "-S", "-c", program + STATE]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "could not register" not in done.stderr
    state: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return state


def line_of(hook: Path) -> str:
    """Returns the program in the file."""
    (line,) = [line for line in hook.read_text().splitlines() if line and not line.startswith("#")]
    return line + "\n"


def test_the_file_is_small(hook: Path) -> None:
    assert len(hook.read_text().splitlines()) <= 20
    # Python runs the lines of such a file that begin with import, and takes the others for folders.
    assert line_of(hook).startswith("import ")


def test_the_file_waits_for_all_that_we_watch(hook: Path) -> None:
    """Whichever of these modules a program imports first: what it imports then comes to be watched, too."""
    from transfuse._hook import FRAMEWORKS

    named = re.findall(r'"([a-z_]+(?:\.[a-z_]+)+)"', line_of(hook))
    assert named == ["transfuse._hook", *FRAMEWORKS]


WATCHED = """
import importlib
from transfuse._hook import FRAMEWORKS
from transfuse.hf._guard import _MARK
places = [
    ("transformers.modeling_utils", "load_state_dict"),
    ("transformers.modeling_utils", "get_hf_quantizer"),
    ("transformers.modeling_layers", "_get_resolved_checkpoint_files"),
    ("transformers.trainer_utils", "load_sharded_checkpoint"),
    ("accelerate.utils.modeling", "load_state_dict"),
    ("accelerate.utils", "load_state_dict"),
    ("peft.utils.save_and_load", "safe_load_file"),
    ("diffusers.models.modeling_utils", "load_state_dict"),
    ("diffusers.loaders.single_file_utils", "load_state_dict"),
    ("diffusers.loaders.lora_base", "_get_model_file"),
]
for module, name in places:
    if module.partition(".")[0] in FIRST or module in sys.modules:
        assert hasattr(getattr(importlib.import_module(module), name), _MARK), (module, name)
"""


@pytest.mark.parametrize("first", ["transformers", "accelerate", "peft", "diffusers"])
@pytest.mark.parametrize("order", ["file", "late"])
def test_readers_are_watched(hook: Path, first: str, order: str) -> None:
    """By the file alone, whichever framework a program begins with, and where transfuse is imported last."""
    if not has(first) or not has("transformers"):
        pytest.skip(f"{first} is not installed")
    modules = {
        "transformers": "transformers.modeling_utils, transformers.trainer_utils, transformers.modeling_layers",
        "accelerate": "accelerate.utils",
        "peft": "peft",
        "diffusers": "diffusers.loaders.lora_base, diffusers.loaders.single_file_utils",
    }
    use = f"import sys\nFIRST = {first!r}\nimport {modules[first]}\n"
    run((line_of(hook) + use if order == "file" else use + "import transfuse\n") + WATCHED)


def test_the_file_imports_nothing(hook: Path) -> None:
    state = run(line_of(hook))
    assert state["modules"] == [] and "TransfuseHook" in state["finders"]


def test_the_file_is_quick(hook: Path) -> None:
    program = compile(line_of(hook), HOOK, "exec")
    before = list(sys.meta_path)
    times = []
    try:
        for _ in range(20):
            start = time.perf_counter()
            exec(program, {})
            times.append(time.perf_counter() - start)
    finally:
        sys.meta_path[:] = before
    assert min(times) < 0.001


def test_the_file_can_be_turned_off(hook: Path) -> None:
    state = run(line_of(hook), TRANSFUSE_NO_HOOK="1")
    assert "TransfuseHook" not in state["finders"]
    if has("transformers"):
        state = run(line_of(hook) + "import transformers.quantizers.auto\n", TRANSFUSE_NO_HOOK="1")
        assert state["registered"][0] is False and "transfuse" not in state["modules"]


def has(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return has("torch") if name != "torch" else True


@pytest.fixture(params=["transformers", "diffusers"])
def framework(request: pytest.FixtureRequest) -> str:
    for name in ("torch", request.param):
        if not has(name):
            pytest.skip(f"{name} is not installed")
    return str(request.param)


@pytest.mark.parametrize("order", ["file", "package", "both", "late", "twice"])
def test_registers_with(hook: Path, framework: str, order: str) -> None:
    use = f"import {framework}.quantizers.auto\n"
    programs = {
        "file": line_of(hook) + use,
        "package": "import transfuse\n" + use,
        "both": line_of(hook) + "import transfuse\n" + use,
        "late": use + "import transfuse\n",
        "twice": line_of(hook) + use + "import transfuse, transfuse._hook\ntransfuse._hook.install()\n",
    }
    state = run(programs[order])
    index = ["transformers", "diffusers"].index(framework)
    assert state["registered"][index] and state["configs"][index]
    assert state["finders"].count("transfuse._hook") == 1


def test_importing_transfuse_imports_no_host() -> None:
    state = run("import transfuse\n")
    assert {"torch", "transformers", "diffusers"}.isdisjoint(state["modules"])


def test_the_loader_of_the_host_stays_as_it_was() -> None:
    if not has("transformers"):
        pytest.skip("transformers is not installed")
    check = """
import transfuse, transformers.quantizers.auto as auto, importlib, inspect
assert "exec_module" not in vars(auto.__spec__.loader)
assert "AUTO_QUANTIZER_MAPPING" in inspect.getsource(auto)
importlib.reload(auto)
"""
    assert run(check)["registered"][0]


def test_a_failure_is_a_warning() -> None:
    if not has("transformers"):
        pytest.skip("transformers is not installed")
    program = """
import warnings, transfuse, transfuse.hf
def fail(module):
    raise RuntimeError("no luck")
transfuse.hf.register_transformers = fail
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import transformers.quantizers.auto
assert any("could not register" in str(each.message) and "no luck" in str(each.message) for each in caught)
"""
    assert run(program)["registered"][0] is False
