# SPDX-License-Identifier: Apache-2.0
"""`transfuse doctor`: what this machine has, what of transfuse works on it, and whether a checkpoint fits its GPUs.

Things that may crash are tried in other interpreters (`_probes`), so that there is a report whatever is broken.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import importlib.metadata
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence

from transfuse import _probes
from transfuse import _structs as s
from transfuse._doctor_checkpoint import CheckpointDoctor
from transfuse._doctor_report import Report, write_size
from transfuse._doctor_serving import ServingOptions
from transfuse._library import find_installed, library
from transfuse._nvidia import Driver, Gpu, find_driver

_OLDEST_CAPABILITY = (8, 0)
_OLDEST_TORCH = (2, 10)
_OLDEST_TRANSFORMERS = (5, 0)
_OLDEST_VLLM = (0, 26)
# The oldest driver for each major version of the CUDA runtime; a driver serves all minor versions of its own.
_OLDEST_DRIVER = {12: "525.60.13", 13: "580"}
_SERVING = ("--gpus", "--context", "--memory-gb")
_PACKAGES = ("numpy", "ml_dtypes", "torch", "transformers", "accelerate", "peft", "diffusers", "vllm")


def _parse_version(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _find_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _write_cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def covers(device_code: str, capability: tuple[int, int]) -> str:
    """Returns "native", "PTX" or "": how code for these architectures runs on a GPU of that compute capability."""
    found = ""
    for word in device_code.split():
        match = re.fullmatch(r"(\d+)\.(\d)([a-z]?)(\+PTX)?", word)
        if not match:
            continue
        of = int(match[1]), int(match[2])
        if match[4]:
            if of <= capability and (not match[3] or of == capability):
                found = found or "PTX"
        elif of == capability or (match[3] in ("", "f") and of[0] == capability[0] and of <= capability):
            return "native"
    return found


class _Doctor:
    def __init__(self, report: Report) -> None:
        self.report = report
        self.build = s.BuildInfoStruct(b"", 0)
        self.library_problem = ""
        self.driver = Driver(None, 0, (), "")
        self.versions: dict[str, str | None] = {}
        self.gpus: list[Gpu] = []  # the GPUs that products run on
        self.torch_works = False

    @property
    def device_code(self) -> str:
        return str(self.build.device_code.decode())

    # ---- what there is ----

    def look_at_library(self) -> None:
        report = self.report
        report.section("transfuse")
        try:
            library().trf_get_build_info(ctypes.byref(self.build))
            report.row("library", f"{library().trf_version().decode()}, {library()._name}")
            code = self.device_code
            runtime = f"for compute capability {code}; CUDA runtime {_write_cuda(self.build.cuda_version)}"
            report.row("device code", runtime if code else "none: this build is for the CPU alone")
        except (ImportError, OSError, AttributeError) as failure:
            self.library_problem = f"the library does not load: {failure}; install transfuse again"
            report.row("library", "does not load")
        report.row("command", self._run_command())

    def _run_command(self) -> str:
        try:
            program = find_installed("bin", "transfuse")
            done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=60)
            return f"{done.stdout.split()[-1]}, {program}"
        except (ImportError, OSError, IndexError, subprocess.SubprocessError) as failure:
            self.report.add_problem(f"the command does not run: {failure}; install transfuse again")
            return "does not run"

    def look_at_gpus(self) -> None:
        report = self.report
        self.driver = find_driver()
        report.section("GPUs")
        driver = self.driver
        if driver.version is None and not driver.cuda_version:
            report.row("driver", "none of NVIDIA's was found")
        else:
            cuda = f", for CUDA {_write_cuda(driver.cuda_version)}" if driver.cuda_version else ""
            report.row("driver", (driver.version or "of unknown version") + cuda)
        if driver.problem:
            report.row("CUDA", f"does not start: {driver.problem}")
        elif not driver.gpus:
            report.row("GPU", "none")
        for gpu in driver.gpus:
            free = "" if gpu.free_bytes is None else f", {write_size(gpu.free_bytes)} of them free"
            capability = ".".join(map(str, gpu.capability))
            report.row(
                f"GPU {gpu.index}",
                f"{gpu.name}, compute capability {capability}, {write_size(gpu.total_bytes)}{free}",
            )

    def look_at_packages(self) -> None:
        self.report.section("Python")
        self.report.row("Python", f"{platform.python_version()}, {sys.executable}")
        for package in _PACKAGES:
            self.versions[package] = _find_version(package)
            self.report.row(package, self.versions[package] or "not installed")

    # ---- what works ----

    def try_cpu(self) -> bool:
        failure = self.library_problem
        if not failure:
            result = _probes.run_probe(_probes.CPU)
            failure = f"{result.values.get('doing')}: {result.failure}" if result.failure else ""
        return self.report.conclude("checkpoints, layers on a CPU", failure)

    def _explain_driver(self) -> str:
        """Returns what is wrong with the driver, for a build with device code, or ""."""
        driver, runtime = self.driver, self.build.cuda_version
        if not driver.cuda_version or driver.cuda_version // 1000 >= runtime // 1000:
            return ""
        return (
            f"driver {driver.version or 'of unknown version'} is for CUDA {_write_cuda(driver.cuda_version)}, and this "
            f"build's CUDA runtime {_write_cuda(runtime)} needs driver {_OLDEST_DRIVER.get(runtime // 1000, '')} or "
            "newer: update the driver"
        )

    def _explain_gpu(self, gpu: Gpu) -> str:
        """Returns why a GPU cannot be used, or ""."""
        if gpu.capability < _OLDEST_CAPABILITY:
            return "its compute capability is below 8.0"
        code = covers(self.device_code, gpu.capability)
        if not code:
            return f"there is no device code for it among {self.device_code}; build transfuse on this machine"
        if code == "PTX" and self.driver.cuda_version < self.build.cuda_version:
            of, known = _write_cuda(self.build.cuda_version), _write_cuda(self.driver.cuda_version)
            return f"its code is PTX of CUDA {of}, which a driver for CUDA {known} does not read: update the driver"
        result = _probes.run_probe(_probes.GPU.format(index=gpu.index))
        return result.failure

    def try_gpus(self) -> None:
        report, driver = self.report, self.driver
        what = "products on a GPU"
        if not driver.gpus:
            outdated = self._explain_driver() if self.device_code else ""
            problem = outdated or (driver.problem and f"CUDA does not start: {driver.problem}")
            # Without libcuda, as in a container that was started without GPUs, nothing is wrong.
            seen = bool(driver.cuda_version)
            report.conclude(what, problem if seen else "", "" if problem and seen else "there is no GPU")
            return
        if self.library_problem:
            report.conclude(what, "", "the library does not load")
            return
        if not self.device_code:
            report.conclude(
                what, "this build of transfuse has no device code: install a wheel that has, or build it where nvcc is"
            )
            return
        outdated = self._explain_driver()
        if outdated:
            report.conclude(what, outdated)
            return
        reasons = {gpu.index: self._explain_gpu(gpu) for gpu in driver.gpus}
        self.gpus = [gpu for gpu in driver.gpus if not reasons[gpu.index]]
        for gpu in driver.gpus:
            # A GPU that only drives a screen is no problem beside one that works.
            reason = reasons[gpu.index]
            report.conclude(f"{what} ({gpu.index})", "" if self.gpus else reason, reason if self.gpus else "")
        if self.gpus:
            major = self.build.cuda_version // 1000
            missing = _probes.run_probe(_probes.CUBLASLT.format(major=major)).failure
            report.conclude("large batches on a GPU", missing and f"{missing}; pip install 'nvidia-cublas=={major}.*'")

    def try_torch(self) -> bool:
        """Tries torch ops on the CPU and on each GPU; returns whether those on the CPU work."""
        report, version = self.report, self.versions["torch"]
        what = "PyTorch on a CPU"
        if version is None:
            return report.conclude(what, "", "torch is not installed: pip install torch")
        if _parse_version(version) < _OLDEST_TORCH:
            return report.conclude(what, f"torch {version} is older than 2.10: pip install -U torch")
        result = _probes.run_probe(_probes.TORCH)
        if result.failure:
            return report.conclude(what, f"{result.values['doing']}: {result.failure}; install torch again")
        devices = ["cpu", *(f"cuda:{index}" for index in range(result.values["devices"]))] if self.gpus else ["cpu"]
        ops = _probes.run_probe(_probes.OPS.format(devices=devices))
        works = bool(ops.values.get("cpu"))
        report.conclude(what, "" if works else f"{ops.values['doing']}: {ops.failure}")
        if not self.gpus:
            report.conclude("PyTorch on a GPU", "", "there is no GPU that transfuse can use")
        elif len(devices) == 1:
            why = "was built for the CPU" if result.values["cuda"] is None else "finds no GPU"
            report.conclude("PyTorch on a GPU", f"torch {version} {why}: install a torch for CUDA")
        elif works:
            report.conclude("PyTorch on a GPU", f"{ops.values['doing']}: {ops.failure}" if ops.failure else "")
        return works

    def _try_framework(self, framework: str) -> None:
        """Reports whether an installed framework knows transfuse's checkpoints."""
        result = _probes.run_probe(_probes.FRAMEWORK.format(framework=framework))
        if result.failure or result.values["registered"]:
            problem = f"{result.values['doing']}: {result.failure}" if result.failure else ""
            self.report.conclude(framework, problem)
            return
        off = os.environ.get("TRANSFUSE_NO_HOOK") == "1"
        why = "TRANSFUSE_NO_HOOK=1 is set" if off else "the wheel's .pth file is not in this environment"
        self.report.row(framework, f"yes, in programs that import transfuse: {why}")

    def try_frameworks(self, torch_works: bool) -> None:
        """Tries the frameworks that are built on PyTorch."""
        report, version = self.report, self.versions["transformers"]
        needs = "" if torch_works else "it needs transfuse's part for PyTorch"
        if version is None:
            report.conclude("transformers", "", "it is not installed: pip install transformers accelerate")
        elif _parse_version(version) < _OLDEST_TRANSFORMERS:
            report.conclude("transformers", f"transformers {version} is older than 5: pip install -U transformers")
        elif needs:
            report.conclude("transformers", "", needs)
        else:
            self._try_framework("transformers")
        if self.versions["diffusers"] and torch_works:
            self._try_framework("diffusers")
        if self.versions["vllm"]:
            report.conclude("vLLM", *_explain_vllm(self.versions["vllm"], needs, bool(self.gpus)))

    # ---- a checkpoint ----

    def look_at_checkpoint(self, path: str, serving: ServingOptions | None = None) -> None:
        CheckpointDoctor(self.report, self.gpus, self.versions, self.torch_works, serving).look(path)


def _explain_vllm(version: str, needs: str, has_gpu: bool) -> tuple[str, str]:
    """Returns what is wrong with the plugin for vLLM, and why it does not serve if nothing is wrong; each may be ""."""
    if _parse_version(version) < _OLDEST_VLLM:
        return "", f"vLLM {version} is older than {'.'.join(map(str, _OLDEST_VLLM))}: pip install -U vllm"
    names = [point.name for point in importlib.metadata.entry_points(group="vllm.general_plugins")]
    if "transfuse" not in names:
        return "its plugin is not found: install the wheel into the environment of vLLM", ""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "transfuse" not in allowed.split(","):
        return f"VLLM_PLUGINS={allowed} leaves the plugin out", ""
    return "", needs or ("" if has_gpu else "it needs a GPU")


def _explain_surplus(word: str) -> str:
    """Returns what is wrong with an argument that the parser does not know."""
    if not word.startswith("-"):
        return f"unexpected argument '{word}': one checkpoint is looked at"
    option = word.partition("=")[0]
    near = difflib.get_close_matches(option, ("--help", "--json", *_SERVING), 1)
    return f"unknown option '{option}'" + (f"; did you mean '{near[0]}'?" if near else "")


def _read_count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 on")
    return int(text)


def _read_gb(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = 0
    if not 0 < size < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size in GB")
    return size


def _add_serving_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "serving",
        "Any of these estimates, for a folder, what its weights take in each layout when vLLM serves it, and how many "
        "requests the KV cache then holds.",
    )
    group.add_argument("--gpus", type=_read_count, metavar="N", help="GPUs that share the model (1)")
    group.add_argument(
        "--context",
        type=_read_count,
        metavar="TOKENS",
        help="tokens of a request, with its answer (8192, or what the model is made for if that is less)",
    )
    group.add_argument(
        "--memory-gb",
        type=_read_gb,
        metavar="GB",
        help="memory of a GPU as it is sold, in place of the GPUs here; without either 80 and 141",
    )


def _parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="transfuse doctor",
        description="Says what this machine has, what of transfuse works on it, what will happen when a checkpoint is "
        "loaded, and whether it fits a GPU.",
        epilog="Exit status: 0 no problem found, 1 a problem found, 2 wrong usage.",
    )
    parser.add_argument(
        "checkpoint", nargs="?", help="a .safetensors file, an index, or the folder of a model or pipeline"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, and nothing else")
    _add_serving_options(parser)
    options, surplus = parser.parse_known_args(arguments)
    if surplus:
        parser.error(_explain_surplus(surplus[0]))
    if options.checkpoint == "":
        parser.error("the checkpoint's path is empty")
    if options.checkpoint is None and _find_serving(options):
        parser.error("--gpus, --context and --memory-gb are about serving a model: name its folder, too")
    return options


def _find_serving(options: argparse.Namespace) -> ServingOptions | None:
    given = {name: getattr(options, name) for name in ("gpus", "context", "memory_gb")}
    given = {name: value for name, value in given.items() if value is not None}
    return ServingOptions(**given) if given else None


def main(arguments: Sequence[str]) -> int:
    """Prints the report; returns 0 if no problem was found, else 1."""
    options = _parse_arguments(arguments)
    report = Report(quiet=options.json)
    doctor = _Doctor(report)
    doctor.look_at_library()
    doctor.look_at_gpus()
    doctor.look_at_packages()
    report.section("What works")
    doctor.try_cpu()
    doctor.try_gpus()
    doctor.torch_works = doctor.try_torch()
    doctor.try_frameworks(doctor.torch_works)
    if options.checkpoint and not doctor.library_problem:
        doctor.look_at_checkpoint(options.checkpoint, _find_serving(options))
    report.close()
    return 1 if report.problems else 0
