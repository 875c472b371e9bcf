# SPDX-License-Identifier: Apache-2.0
"""What the doctor reads of made-up driver libraries, which a C compiler makes; without one this is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from transfuse._nvidia import Driver, Gpu, find_driver

# Two GPUs: one whole, and one that is a slice of a larger one.
_CUDA = """
#include <stdio.h>
int cuInit(unsigned flags) { return INIT; }
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuGetErrorString(int code, const char **text) { *text = code == 999 ? "unknown error" : "another"; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = 70 + index; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
    return snprintf(name, size, "GPU of number %d", device) >= size;
}
int cuDeviceGetPCIBusId(char *bus, int size, int device) { return snprintf(bus, size, "0000:%d:00.0", device) >= size; }
int cuDeviceTotalMem_v2(unsigned long *bytes, int device) { *bytes = device == 70 ? 79000 : 20000; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 8 : attribute == 76 ? device - 70 : -1;
    return 0;
}
"""
_NVML = """
#include <stdio.h>
#include <stdlib.h>
int nvmlInit_v2(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "550.54.15") >= (int)size; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
    *handle = (void *)strtoul(bus + 5, NULL, 10);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory) {
    memory[0] = 80000, memory[1] = 1000 + (unsigned long)handle, memory[2] = 0;
    return 0;
}
"""
_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (x)\nGCC version: gcc 12\n"
)


def build(folder: Path, name: str, source: str) -> str:
    """Compiles a library."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        pytest.skip("there is no C compiler")
    file = folder / f"{name}.c"
    file.write_text(source)
    library = folder / f"{name}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", file, "-o", library], check=True)
    return str(library)


@pytest.fixture
def nvml(tmp_path: Path) -> str:
    return build(tmp_path, "nvml", _NVML)


def cuda_that_starts_with(folder: Path, code: int) -> str:
    return build(folder, "cuda", _CUDA.replace("INIT", str(code)))


def test_gpus(tmp_path: Path, nvml: str) -> None:
    driver = find_driver(cuda_that_starts_with(tmp_path, 0), nvml, tmp_path / "none")
    assert driver == Driver(
        "550.54.15",
        12040,
        (Gpu(0, "GPU of number 70", (8, 0), 79000, 1070), Gpu(1, "GPU of number 71", (8, 1), 20000, None)),
        "",
    )


def test_without_nvml(tmp_path: Path) -> None:
    module = tmp_path / "version"
    module.write_text(_MODULE)
    driver = find_driver(cuda_that_starts_with(tmp_path, 0), "libnothing.so", module)
    assert driver.version == "575.57.08"
    assert [gpu.free_bytes for gpu in driver.gpus] == [None, None]


def test_having_no_device_is_no_problem(tmp_path: Path, nvml: str) -> None:
    assert find_driver(cuda_that_starts_with(tmp_path, 100), nvml) == Driver("550.54.15", 12040, (), "")


def test_cuda_that_does_not_start(tmp_path: Path, nvml: str) -> None:
    driver = find_driver(cuda_that_starts_with(tmp_path, 999), nvml)
    assert driver == Driver("550.54.15", 12040, (), "cuInit: unknown error (999)")


def test_library_that_lacks_a_function(tmp_path: Path, nvml: str) -> None:
    driver = find_driver(build(tmp_path, "empty", "int nothing;"), nvml)
    assert (driver.cuda_version, driver.gpus) == (0, ())
    assert "cuDriverGetVersion" in driver.problem


def test_no_driver_at_all(tmp_path: Path) -> None:
    assert find_driver("libnothing.so", "libnothing.so", tmp_path / "none") == Driver(None, 0, (), "")
