# SPDX-License-Identifier: Apache-2.0
"""Tries things out for `transfuse doctor`, each in an interpreter of its own: a crash or a hang is a finding."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from typing import Any

_MARK = "@transfuse-probe "

# The working folder is not in the path, as it is not for programs. `tell` adds to what the probe has found out.
_PRELUDE = f"""
import json, sys
sys.path[:] = [path for path in sys.path if path]
def tell(**values):
    print("\\n{_MARK}" + json.dumps(values), flush=True)
"""

# What follows runs in the other interpreter. `doing` is what the reader is told if it fails there.

CPU = """
tell(doing="opening the library")
import numpy as np
from transfuse import Layer
tell(doing="coding a layer")
weights = np.random.default_rng(1).normal(0, 0.02, (96, 160)).astype(np.float16)
layer = Layer.encode(weights)
tell(doing="decoding a layer")
assert (layer.decode() == weights).all(), "decoded weights differ"
tell(doing="a product on the CPU")
x = np.ones((2, 160), np.float32)
assert np.allclose(layer.matmul(x), x @ weights.astype(np.float32).T, atol=1e-4), "the product is wrong"
"""

GPU = """
import ctypes
from transfuse._library import call
tell(doing="starting the GPU")
call("trf_context_create", {index}, ctypes.byref(ctypes.c_void_p()))
"""

TORCH = """
tell(doing="import torch")
import torch
tell(version=torch.__version__, cuda=torch.version.cuda)
tell(doing="torch.cuda")
devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
tell(devices=devices)
"""

# Small and large batches, which take different paths on a GPU.
OPS = """
tell(doing="loading transfuse's ops")
import torch
from transfuse.torch import _encode, _ops, _registry
weight = (0.02 * torch.randn(512, 512)).to(torch.bfloat16)
blob = _encode.encode(weight)
for device in {devices}:
    for batch in (1, 4096 if device != "cpu" else 16):
        tell(doing=f"a product of {{batch}} rows on {{device}}")
        x = torch.randn(batch, 512).to(torch.bfloat16)
        there = blob.to(device)
        _registry.adopt(there)
        y = _ops.linear(x.to(device), there, None, 512).cpu().float()
        reference = x.float() @ weight.float().T
        assert torch.allclose(y, reference, rtol=0.02, atol=0.02), "the product is wrong"
    tell(**{{device: True}})
"""

# At first this does not import transfuse, like a program that knows only the framework.
FRAMEWORK = """
import importlib, warnings
tell(doing="import {framework}")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    auto = importlib.import_module("{framework}.quantizers.auto")
    tell(registered="transfuse" in auto.AUTO_QUANTIZATION_CONFIG_MAPPING)
    tell(doing="import transfuse")
    import transfuse
said = [str(warning.message) for warning in caught if "transfuse" in str(warning.message)]
if "transfuse" not in auto.AUTO_QUANTIZATION_CONFIG_MAPPING:
    sys.exit(said[-1] if said else "{framework} does not know transfuse's checkpoints after it")
"""

# This opens a folder as a framework would, but without the weights.
OPENING = """
tell(doing="import {framework}")
import transfuse, {framework}
from transfuse.hf import _opening
tell(doing="opening the folder")
tell(opening=_opening.describe_folder({folder!r}))
"""

# This tries a library that the package opens by its name, or in the folders of NVIDIA's packages beside its own.
CUBLASLT = """
import ctypes, os
import transfuse
tell(doing="opening libcublasLt.so.{major}")
site = os.path.dirname(transfuse.__path__[0])
places = [os.path.join(site, "nvidia", folder, "lib", "") for folder in ("cu{major}", "cublas")]
for place in ["", *(place for place in places if os.path.isdir(place))]:
    try:
        ctypes.CDLL(place + "libcublasLt.so.{major}")
        break
    except OSError as failure:
        why = failure
else:
    sys.exit(str(why))
"""


@dataclasses.dataclass(frozen=True)
class ProbeResult:
    """What a probe told, and why it failed, or ""; `doing` among the values says at what."""

    values: dict[str, Any]
    failure: str


def _describe_end(code: int, errors: str) -> str:
    if code < 0:
        return f"the interpreter was ended by {signal.Signals(-code).name}"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1] if lines else f"the interpreter ended with status {code}"


def run_probe(code: str, timeout_seconds: float = 300) -> ProbeResult:
    """Runs a program of this module in an interpreter of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PRELUDE + code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_seconds,
            check=False,
        )
        output, failure = done.stdout, "" if done.returncode == 0 else _describe_end(done.returncode, done.stderr)
    except subprocess.TimeoutExpired as expired:
        printed = expired.stdout or b""
        output = printed if isinstance(printed, str) else printed.decode("utf-8", "replace")
        failure = f"it did not end within {timeout_seconds:g} seconds"
    values: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith(_MARK):
            values |= json.loads(line.removeprefix(_MARK))
    return ProbeResult(values, failure)
