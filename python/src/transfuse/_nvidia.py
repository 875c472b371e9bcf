# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA driver and its GPUs, asked through the driver's own libraries by ctypes; no CUDA toolkit is needed."""

from __future__ import annotations

import ctypes
import dataclasses
import re
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from pathlib import Path

_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
# Both count the memory of one GPU, and differ by what the driver keeps; a slice of a GPU (MIG) has much less.
_SAME_MEMORY = 0.9


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU, by its CUDA ordinal. `free_bytes` is None where NVML does not say."""

    index: int
    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int | None


@dataclasses.dataclass(frozen=True)
class Driver:
    """The driver that was found.

    `version` is the driver's own, such as "580.82.07", or None if unknown. `cuda_version` is the newest CUDA that it
    supports, 13000 for 13.0, or 0 without libcuda. `problem` says why CUDA does not start, or is ""; having no GPU is
    no problem.
    """

    version: str | None
    cuda_version: int
    gpus: tuple[Gpu, ...]
    problem: str


class _CudaError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Cuda:
    """libcuda, each of whose calls raises on failure."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self._lib = lib

    def __call__(self, name: str, *arguments: object) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code != 0:
            text = c_char_p()
            self._lib.cuGetErrorString(c_int(code), byref(text))
            raise _CudaError(code, f"{name}: {(text.value or b'unknown error').decode()} ({code})")

    def read_int(self, name: str, *arguments: object) -> int:
        value = c_int()
        self(name, byref(value), *arguments)
        return value.value


def _read_memory(nvml: ctypes.CDLL | None, bus_id: bytes) -> tuple[int, int] | None:
    """Asks NVML how many bytes a GPU has, and how many are free."""
    handle, memory = c_void_p(), (c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
    if nvml is None or nvml.nvmlDeviceGetHandleByPciBusId_v2(c_char_p(bus_id), byref(handle)) != 0:
        return None
    return (memory[0], memory[1]) if nvml.nvmlDeviceGetMemoryInfo(handle, byref(memory)) == 0 else None


def _read_gpu(cuda: _Cuda, nvml: ctypes.CDLL | None, index: int) -> Gpu:
    device = c_int(cuda.read_int("cuDeviceGet", c_int(index)))
    name, bus_id, total = ctypes.create_string_buffer(256), ctypes.create_string_buffer(64), c_size_t()
    cuda("cuDeviceGetName", name, c_int(len(name)), device)
    cuda("cuDeviceTotalMem_v2", byref(total), device)
    cuda("cuDeviceGetPCIBusId", bus_id, c_int(len(bus_id)), device)
    capability = (
        cuda.read_int("cuDeviceGetAttribute", c_int(_CAPABILITY_MAJOR), device),
        cuda.read_int("cuDeviceGetAttribute", c_int(_CAPABILITY_MINOR), device),
    )
    memory = _read_memory(nvml, bus_id.value)
    whole = memory is not None and total.value >= _SAME_MEMORY * memory[0]
    return Gpu(
        index, name.value.decode("utf-8", "replace"), capability, total.value, memory[1] if memory and whole else None
    )


def _open_nvml(name: str) -> ctypes.CDLL | None:
    try:
        nvml = ctypes.CDLL(name)
        nvml.nvmlDeviceGetHandleByPciBusId_v2.argtypes = [c_char_p, POINTER(c_void_p)]
        nvml.nvmlDeviceGetMemoryInfo.argtypes = [c_void_p, c_void_p]
        return nvml if nvml.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def _read_driver_version(nvml: ctypes.CDLL | None, module: Path) -> str | None:
    """Returns the driver's version from NVML or from its kernel module."""
    text = ctypes.create_string_buffer(96)
    if nvml is not None and nvml.nvmlSystemGetDriverVersion(text, c_uint(len(text))) == 0:
        return text.value.decode("utf-8", "replace")
    try:
        match = re.search(r"Kernel Module\s+(?:for \S+\s+)?([0-9.]+)", module.read_text(errors="replace"))
    except OSError:
        return None
    return match[1] if match else None


def find_driver(
    cuda_library: str = "libcuda.so.1",
    nvml_library: str = "libnvidia-ml.so.1",
    module: Path = Path("/proc/driver/nvidia/version"),
) -> Driver:
    """Returns what is known of the driver and of the GPUs that programs see (CUDA_VISIBLE_DEVICES counts)."""
    nvml = _open_nvml(nvml_library)
    version = _read_driver_version(nvml, module)
    cuda_version = 0
    gpus: list[Gpu] = []
    problem = ""
    try:
        cuda = _Cuda(ctypes.CDLL(cuda_library))
        cuda_version = cuda.read_int("cuDriverGetVersion")
        cuda("cuInit", c_uint(0))
        for index in range(cuda.read_int("cuDeviceGetCount")):
            gpus.append(_read_gpu(cuda, nvml, index))
    except _CudaError as failure:
        problem = "" if failure.code == _NO_DEVICE else str(failure)
    except (OSError, AttributeError) as failure:
        # Without a driver nothing can be wrong with it.
        problem = str(failure) if version is not None else ""
    return Driver(version, cuda_version, tuple(gpus), problem)
