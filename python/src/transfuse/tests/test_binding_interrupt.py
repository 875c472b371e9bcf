# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a job of hundreds of megabytes soon, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import transfuse
from transfuse.tests.conftest import normal_bf16, write_safetensors

# Says when the job is under way, and how it ended.
_PROGRAM = """
import sys, time, transfuse
def progress(name, done, total):
    if done and not said:
        said.append(1)
        print("busy", flush=True)
said = []
job, source, target = sys.argv[1:]
try:
    if job == "verify":
        transfuse.verify(source, progress=progress, threads=1)
    else:
        getattr(transfuse, job)(source, target, progress=progress, threads=1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
else:
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.safetensors"
    words = np.tile(normal_bf16(np.random.default_rng(3), 256, 8192), (64, 1))
    write_safetensors(path, {"big.weight": ("BF16", words)})  # 256 MiB
    return path


@pytest.fixture(scope="module")
def compressed(large: Path) -> Path:
    path = large.with_name("compressed.safetensors")
    transfuse.compress(large, path)
    return path


@pytest.mark.parametrize(("job", "of"), [("compress", "large"), ("decompress", "compressed"), ("verify", "compressed")])
def test_interrupt(tmp_path: Path, request: pytest.FixtureRequest, job: str, of: str) -> None:
    source = str(request.getfixturevalue(of))
    command = [sys.executable, "-c", _PROGRAM, job, source, str(tmp_path / "target")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "busy\n"
    process.send_signal(signal.SIGINT)
    # What goes on to its end leaves a target. Generous: the machine may be busy with other things.
    output, errors = process.communicate(timeout=60)
    assert (output, errors, process.returncode) == ("interrupted\n", "", 0)
    assert list(tmp_path.iterdir()) == []
