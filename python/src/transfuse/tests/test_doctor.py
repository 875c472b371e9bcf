# SPDX-License-Identifier: Apache-2.0
"""`transfuse doctor` with what is missing, broken or made up: packages, probes, GPUs and checkpoints."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import transfuse
from transfuse import _doctor, _probes
from transfuse import _structs as s
from transfuse._doctor import _Doctor, covers
from transfuse._doctor_report import Report
from transfuse._library import library
from transfuse._memory_need import MARGIN_BYTES, count_layout_bytes, get_memory_need, packed_bytes
from transfuse._nvidia import Driver, Gpu
from transfuse._probes import ProbeResult, run_probe
from transfuse.tests.conftest import Tensors, write_safetensors

H200 = Gpu(0, "NVIDIA H200", (9, 0), 140 << 30, 139 << 30)
SCREEN = Gpu(1, "NVIDIA T400", (7, 5), 4 << 30, None)


def run_doctor(*arguments: object, path: Path | None = None) -> tuple[int, str]:
    """Runs the command as users do, with a folder of packages that come before those that are installed."""
    program = "import sys; from transfuse._command import main; sys.argv[0] = 'transfuse'; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "doctor", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(path or "")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def make_torch(folder: Path, version: str, code: str) -> Path:
    """Makes a package of torch's name."""
    for name, file, text in (
        ("torch", "__init__.py", code),
        (f"torch-{version}.dist-info", "METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"),
    ):
        (folder / name).mkdir()
        (folder / name / file).write_text(text)
    return folder


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> _Doctor:
    """One that has no packages, and a build with device code; no probe fails."""
    monkeypatch.setattr(_probes, "run_probe", lambda code: ProbeResult({"doing": "a probe"}, ""))
    made = _Doctor(Report())
    made.build = s.BuildInfoStruct(b"8.0 9.0a 9.0+PTX", 13000)
    made.versions = dict.fromkeys(_doctor._PACKAGES)
    return made


@pytest.mark.parametrize(
    ("code", "capability", "how"),
    [
        ("8.0 9.0a", (8, 0), "native"),
        ("8.0 9.0a", (8, 9), "native"),  # minor versions run what was made for older ones
        ("8.9", (8, 6), ""),
        ("9.0a", (9, 0), "native"),
        ("9.0a", (10, 0), ""),
        ("8.0 9.0a 9.0+PTX", (12, 0), "PTX"),
        ("8.0 9.0+PTX", (9, 0), "PTX"),
        ("9.0+PTX", (8, 9), ""),
        ("10.0f", (10, 3), "native"),
        ("10.0a", (10, 3), ""),
        ("9.0a+PTX", (10, 0), ""),  # of architecture-specific features
        ("native", (9, 0), ""),
        ("", (9, 0), ""),
    ],
)
def test_which_code_runs_on_which_gpu(code: str, capability: tuple[int, int], how: str) -> None:
    assert covers(code, capability) == how


def test_this_machine() -> None:
    """Whatever is here, the report comes to its end, and the status goes with what it says."""
    status, output = run_doctor()
    last = output.rstrip().splitlines()[-1]
    assert (status, last == "no problem found") in ((0, True), (1, False)), output
    assert "Traceback" not in output
    assert f"library                      {transfuse.__version__}, " in output
    assert "checkpoints, layers on a CPU yes" in output


def test_no_torch_is_no_problem(doctor: _Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    assert not doctor.try_torch()
    doctor.try_frameworks(False)
    assert doctor.report.problems == []
    assert "torch is not installed: pip install torch" in capsys.readouterr().out


def test_broken_torch(tmp_path: Path) -> None:
    path = make_torch(tmp_path, "2.11.0", "raise OSError('libnothing.so.3: cannot open shared object file')")
    status, output = run_doctor(path=path)
    assert status == 1
    assert "import torch: OSError: libnothing.so.3: cannot open shared object file; install torch again" in output
    assert "Traceback" not in output


def test_crashing_torch(tmp_path: Path) -> None:
    path = make_torch(tmp_path, "2.11.0", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    status, output = run_doctor(path=path)
    assert status == 1
    assert "import torch: the interpreter was ended by SIGSEGV; install torch again" in output


def test_old_torch(tmp_path: Path) -> None:
    status, output = run_doctor(path=make_torch(tmp_path, "2.9.1", ""))
    assert status == 1
    assert "torch 2.9.1 is older than 2.10: pip install -U torch" in output


def test_host_that_does_not_know_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of transformers' name whose table cannot be written to."""
    (tmp_path / "transformers" / "quantizers").mkdir(parents=True)
    for name in ("__init__.py", "quantizers/__init__.py"):
        (tmp_path / "transformers" / name).write_text("")
    (tmp_path / "transformers" / "quantizers" / "auto.py").write_text(
        "from types import MappingProxyType\nAUTO_QUANTIZATION_CONFIG_MAPPING = MappingProxyType({})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = run_probe(_probes.FRAMEWORK.format(framework="transformers"))
    assert not result.values["registered"]
    assert "transfuse could not register with transformers.quantizers.auto" in result.failure


def test_probe_that_hangs() -> None:
    result = run_probe("tell(doing='nothing')\nimport time\ntime.sleep(60)", timeout_seconds=1)
    assert result == ProbeResult({"doing": "nothing"}, "it did not end within 1 seconds")


def test_probe_says_what_is_wrong_with_a_product() -> None:
    code = _probes.CPU.replace("layer.matmul(x)", "2 * layer.matmul(x)")
    assert run_probe(_probes.CPU).failure == ""
    result = run_probe(code)
    assert (result.values["doing"], result.failure) == ("a product on the CPU", "AssertionError: the product is wrong")


# ---- GPUs ----


def test_gpu_works(doctor: _Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.driver = Driver("580.82.07", 13000, (H200,), "")
    doctor.try_gpus()
    assert doctor.gpus == [H200]
    assert doctor.report.problems == []
    assert "products on a GPU (0)        yes" in capsys.readouterr().out


def test_gpu_for_a_screen_is_no_problem_beside_one_that_works(doctor: _Doctor) -> None:
    doctor.driver = Driver("580.82.07", 13000, (H200, SCREEN), "")
    doctor.try_gpus()
    assert (doctor.gpus, doctor.report.problems) == ([H200], [])


@pytest.mark.parametrize(
    ("build", "driver", "problem"),
    [
        ((b"", 0), Driver("580.82.07", 13000, (H200,), ""), "this build of transfuse has no device code"),
        (
            (b"9.0a", 13000),
            Driver("550.54.15", 12040, (H200,), ""),
            "driver 550.54.15 is for CUDA 12.4, and this build's CUDA runtime 13.0 needs driver 580 or newer",
        ),
        # The driver's libraries may refuse before there is a list of GPUs.
        (
            (b"9.0a", 13000),
            Driver("550.54.15", 12040, (), "cuInit: system has unsupported display driver (803)"),
            "needs driver 580 or newer",
        ),
        ((b"9.0a", 13000), Driver("580.82.07", 13000, (), "cuInit: unknown error (999)"), "cuInit: unknown error"),
        ((b"8.0", 13000), Driver("580.82.07", 13000, (H200,), ""), "there is no device code for it among 8.0"),
        ((b"8.0 9.0+PTX", 13010), Driver("580.82.07", 13000, (H200,), ""), "PTX of CUDA 13.1"),
        ((b"9.0a", 13000), Driver("580.82.07", 13000, (SCREEN,), ""), "compute capability is below 8.0"),
    ],
)
def test_gpu_that_cannot_be_used(doctor: _Doctor, build: tuple[bytes, int], driver: Driver, problem: str) -> None:
    doctor.build = s.BuildInfoStruct(*build)
    doctor.driver = driver
    doctor.try_gpus()
    assert doctor.gpus == []
    assert len(doctor.report.problems) == 1
    assert problem in doctor.report.problems[0]


@pytest.mark.parametrize(
    "driver",
    [
        Driver(None, 0, (), ""),
        Driver("580.82.07", 13000, (), ""),
        Driver("580.82.07", 0, (), "libcuda.so.1: cannot open shared object file"),  # a container without GPUs
    ],
)
def test_no_gpu_is_no_problem(doctor: _Doctor, driver: Driver) -> None:
    doctor.driver = driver
    doctor.try_gpus()
    assert doctor.report.problems == []


def test_large_batches_need_cublaslt(doctor: _Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    # No CUDA has this version.
    code = _probes.CUBLASLT.format(major=99)
    result = run_probe(code)
    assert "libcublasLt.so.99: cannot open shared object file" in result.failure
    monkeypatch.setattr(_probes, "run_probe", lambda code: result if "cublas" in code else ProbeResult({}, ""))
    doctor.driver = Driver("580.82.07", 13000, (H200,), "")
    doctor.try_gpus()
    assert doctor.gpus == [H200]
    assert doctor.report.problems == [f"large batches on a GPU: {result.failure}; pip install 'nvidia-cublas==13.*'"]


def test_gpu_that_fails(doctor: _Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_probes, "run_probe", lambda code: ProbeResult({}, "DeviceError: starting CUDA: busy"))
    doctor.driver = Driver("580.82.07", 13000, (H200,), "")
    doctor.try_gpus()
    assert doctor.report.problems == ["products on a GPU (0): DeviceError: starting CUDA: busy"]


# ---- what stands upon PyTorch ----


def answer(monkeypatch: pytest.MonkeyPatch, torch: dict[str, object], ops: dict[str, object], failure: str) -> None:
    """Makes up what torch and the ops say; `failure` is the ops'."""

    def run(code: str) -> ProbeResult:
        return ProbeResult(torch, "") if code == _probes.TORCH else ProbeResult(ops, failure)

    monkeypatch.setattr(_probes, "run_probe", run)


def test_torch_on_a_gpu(doctor: _Doctor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.versions["torch"], doctor.gpus = "2.11.0", [H200]
    answer(monkeypatch, {"cuda": "13.0", "devices": 1}, {"cpu": True, "cuda:0": True}, "")
    assert doctor.try_torch()
    assert doctor.report.problems == []
    assert "PyTorch on a GPU             yes" in capsys.readouterr().out


def test_torch_whose_products_on_a_gpu_fail(doctor: _Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    doctor.versions["torch"], doctor.gpus = "2.11.0", [H200]
    at_work = {"cpu": True, "doing": "a product of 1 rows on cuda:0"}
    answer(monkeypatch, {"cuda": "13.0", "devices": 1}, at_work, "RuntimeError: no kernel")
    assert doctor.try_torch()  # on the CPU
    assert doctor.report.problems == ["PyTorch on a GPU: a product of 1 rows on cuda:0: RuntimeError: no kernel"]


@pytest.mark.parametrize(("cuda", "why"), [(None, "was built for the CPU"), ("13.0", "finds no GPU")])
def test_torch_without_gpu(doctor: _Doctor, monkeypatch: pytest.MonkeyPatch, cuda: str | None, why: str) -> None:
    doctor.versions["torch"], doctor.gpus = "2.11.0", [H200]
    answer(monkeypatch, {"cuda": cuda, "devices": 0}, {"cpu": True}, "")
    assert doctor.try_torch()
    assert doctor.report.problems == [f"PyTorch on a GPU: torch 2.11.0 {why}: install a torch for CUDA"]


@pytest.mark.parametrize(
    ("off", "why"), [("1", "TRANSFUSE_NO_HOOK=1 is set"), ("", "the wheel's .pth file is not in this environment")]
)
def test_hook_is_off(
    doctor: _Doctor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], off: str, why: str
) -> None:
    doctor.versions["transformers"] = "5.17.0"
    monkeypatch.setenv("TRANSFUSE_NO_HOOK", off)
    monkeypatch.setattr(_probes, "run_probe", lambda code: ProbeResult({"registered": False}, ""))
    doctor.try_frameworks(True)
    assert doctor.report.problems == []
    assert f"yes, in programs that import transfuse: {why}" in capsys.readouterr().out


def test_old_transformers(doctor: _Doctor) -> None:
    doctor.versions["transformers"] = "4.57.1"
    doctor.try_frameworks(True)
    assert doctor.report.problems == [
        "transformers: transformers 4.57.1 is older than 5: pip install -U transformers",
    ]


# ---- checkpoints ----


@pytest.fixture
def folder(tmp_path: Path, tensors: Tensors) -> Path:
    """A checkpoint with a config.json."""
    (tmp_path / "source").mkdir()
    write_safetensors(tmp_path / "source" / "model.safetensors", tensors)
    (tmp_path / "source" / "config.json").write_text('{"model_type": "llama"}')
    transfuse.compress(tmp_path / "source", tmp_path / "compressed")
    return tmp_path


def test_checkpoint_fits(folder: Path, doctor: _Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.gpus = [H200]
    doctor.look_at_checkpoint(str(folder / "compressed"))
    output = capsys.readouterr().out
    assert doctor.report.problems == []
    assert "compressed                   5 of 7 tensors" in output
    assert "names transfuse: transformers can load it" in output
    assert "fits: 137.99 GiB remain" in output or "fits: 138.00 GiB remain" in output


def test_checkpoint_does_not_fit(folder: Path, doctor: _Doctor) -> None:
    doctor.gpus = [Gpu(0, "NVIDIA A2", (8, 6), 16 << 30, 1 << 30)]
    doctor.look_at_checkpoint(str(folder / "compressed"))
    assert len(doctor.report.problems) == 1
    assert "and no GPU has as much memory free" in doctor.report.problems[0]


def test_memory_need_is_the_sum_of_its_parts(folder: Path) -> None:
    need = get_memory_need(transfuse.info(folder / "compressed"))
    stored = sum(tensor.bytes for tensor in transfuse.info(folder / "compressed").tensors)
    assert need.weights == stored
    assert need.workspace == 2 * 300 * 520
    # At least the decode table of each of the 7 blobs, and a small part of what is described.
    assert 7 * 4 << 9 <= need.directories <= stored
    assert need.total == stored + need.directories + need.workspace + MARGIN_BYTES


def test_memory_of_layouts(folder: Path) -> None:
    """Of the five compressed tensors one is BF16, as are three experts, one F16; experts do not lie plain."""
    checkpoint = transfuse.info(folder / "compressed")
    stored = {tensor.name: tensor.bytes for tensor in checkpoint.tensors}
    q, k = (stored[f"layers.0.{name}_proj.weight"] for name in "qk")
    experts = stored["layers.0.experts.up_proj"]
    packed = packed_bytes(300, 520) + 3 * packed_bytes(96, 160)
    assert count_layout_bytes(checkpoint, "packed") == sum(stored.values()) - q - experts + packed
    assert count_layout_bytes(checkpoint, "plain") == sum(stored.values()) - q - k + 2 * (300 * 520 + 100 * 300)
    assert abs(8 * packed_bytes(4096, 4096) / 4096**2 - 12.0157) < 1e-3


def test_checkpoint_that_transformers_would_fill_with_random_weights(folder: Path, doctor: _Doctor) -> None:
    shutil.copy(folder / "source" / "config.json", folder / "compressed")
    doctor.look_at_checkpoint(str(folder / "compressed"))
    assert len(doctor.report.problems) == 1
    assert "transformers would give random weights" in doctor.report.problems[0]


def test_broken_config(folder: Path, doctor: _Doctor) -> None:
    (folder / "compressed" / "config.json").write_text("{")
    doctor.look_at_checkpoint(str(folder / "compressed"))
    assert len(doctor.report.problems) == 1
    assert "config.json of" in doctor.report.problems[0]


def test_checkpoint_that_is_not_compressed(folder: Path, doctor: _Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.look_at_checkpoint(str(folder / "source"))
    assert doctor.report.problems == []
    output = capsys.readouterr().out
    assert "compressed                   no" in output
    assert f"transfuse compress {folder / 'source'} -o TARGET" in output


def test_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    status, output = run_doctor(tmp_path / "nothing", path=make_torch(tmp_path, "2.9.1", ""))
    assert status == 1
    assert f"{tmp_path / 'nothing'}: " in output
    assert "TRF_ERR_NOT_FOUND" in output


def test_checkpoint_that_is_cut(folder: Path, doctor: _Doctor) -> None:
    file = folder / "compressed" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    doctor.look_at_checkpoint(str(folder / "compressed"))
    assert len(doctor.report.problems) == 1
    assert "TRF_ERR_TRUNCATED" in doctor.report.problems[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["one", "two"], "unexpected argument 'two'"),
        (["--hlp"], "unknown option '--hlp'; did you mean '--help'?"),
        (["--jsn=1"], "unknown option '--jsn'; did you mean '--json'?"),
        (["--unlikely"], "unknown option '--unlikely'\n"),
        ([""], "path is empty"),
        (["--gpsu", "2"], "unknown option '--gpsu'; did you mean '--gpus'?"),
        (["model", "--gpus", "0"], "argument --gpus: '0' is not a whole number from 1 on"),
        (["model", "--context", "32k"], "argument --context: '32k' is not a whole number from 1 on"),
        (["model", "--memory-gb", "nan"], "argument --memory-gb: 'nan' is not a size in GB"),
        (["--context", "4096"], "about serving a model: name its folder, too"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str) -> None:
    status, output = run_doctor(*arguments)
    assert status == 2
    assert "usage: transfuse doctor" in output and f"{says}" in output


@pytest.mark.parametrize("columns", [40, 80])
def test_lines_fit_the_columns(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    report = Report()
    report.section("What works")
    report.row("large batches on a GPU", "no: " + 9 * "libcublasLt is not there; ")
    report.add_problem("a path " + columns * "/long" + " stays whole, and " + 9 * "what is around it is folded, ")
    report.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["", "What works"]
    assert {len(line) <= columns for line in lines if "/long" not in line} == {True}
    assert any(columns * "/long" in line for line in lines)
    assert sum("libcublasLt" in line for line in lines) > 1
    label = "  large batches on a GPU: no:" if columns == 40 else "  large batches on a GPU       no:"
    assert lines[2].startswith(label)


def test_device_code_goes_with_a_runtime() -> None:
    info = s.BuildInfoStruct()
    library().trf_get_build_info(ctypes.byref(info))
    assert bool(info.device_code) == (info.cuda_version >= 12000)
    assert info.device_code or info.cuda_version == 0
