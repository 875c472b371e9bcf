# SPDX-License-Identifier: Apache-2.0
"""Layers: bit for bit, products, wrong input, threads and forks."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import transfuse
from transfuse.tests.conftest import Command, Tensors, normal_bf16, was_fp8_bf16

_CODECS = {"bf16": "bf16", "f16": "fp16", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "int8": "int"}


def every_pattern(dtype: str, rows: int = 272, cols: int = 300) -> npt.NDArray[Any]:
    """Returns bits of which many are usual and each pattern of eight or sixteen is among them, NaNs included."""
    rng = np.random.default_rng(5)
    if dtype in ("bf16", "f16"):
        bits = normal_bf16(rng, rows, cols)
        bits.flat[: 2**16] = np.arange(2**16, dtype=np.uint16)
        return bits if dtype == "bf16" else bits.view(np.float16)
    codes = np.clip(rng.normal(0, 20, (rows, cols)), -127, 127).astype(np.int8)
    codes.flat[:256] = np.arange(-128, 128)
    return codes if dtype == "int8" else codes.view(np.uint8)


def bits_of(array: npt.NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array).view(np.uint8).tobytes()


@pytest.fixture
def without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)


@pytest.mark.parametrize("dtype", list(_CODECS))
def test_lossless(dtype: str) -> None:
    weights = every_pattern(dtype)
    layer = transfuse.Layer.encode(weights, dtype=dtype)
    assert layer.info.codec == _CODECS[dtype] and layer.shape == weights.shape
    assert layer.report is not None and layer.report.weights == weights.size and layer.report.relative_rms_error == 0
    for threads in (0, 1):
        assert bits_of(layer.decode(threads=threads)) == bits_of(weights)
    again = transfuse.Layer.from_bytes(layer.to_bytes())
    assert again.info == layer.info and again.report is None and again.to_bytes() == layer.to_bytes()
    assert bits_of(pickle.loads(pickle.dumps(layer)).decode()) == bits_of(weights)


@pytest.mark.parametrize("favor", ["speed", "size"])
@pytest.mark.parametrize("dtype", list(_CODECS))
def test_encode_like(dtype: str, favor: str) -> None:
    weights = every_pattern(dtype)
    layer = transfuse.Layer.encode(weights, dtype=dtype, favor=favor)
    if layer.info.codec == "int":
        with pytest.raises(transfuse.ArgumentError, match="does not say how"):
            transfuse.Layer.encode_like(weights, layer.info, dtype=dtype)
    else:
        assert transfuse.Layer.encode_like(weights, layer.info, dtype=dtype).to_bytes() == layer.to_bytes()


def test_bf16_that_was_fp8() -> None:
    rng = np.random.default_rng(6)
    weights, others = was_fp8_bf16(rng, 300, 270), normal_bf16(rng, 300, 270)
    layer = transfuse.Layer.encode(weights, dtype="bf16", codec="fp8_e4m3")
    info = layer.info
    assert (info.codec, info.dtype, info.granularity) == ("fp8_e4m3", "BF16", "scale-block:128")
    assert bits_of(layer.decode()) == bits_of(weights)
    assert transfuse.Layer.encode_like(weights, info, dtype="bf16").to_bytes() == layer.to_bytes()
    like = transfuse.Layer.encode_like(others, info, dtype="bf16")
    assert like.info.codec == "bf16" and bits_of(like.decode()) == bits_of(others)
    assert transfuse.Layer.encode(weights, dtype="bf16").info.codec == "bf16"
    with pytest.raises(transfuse.ArgumentError, match="FP8 codes times scales"):
        transfuse.Layer.encode(others, dtype="bf16", codec="fp8_e4m3")


@pytest.mark.parametrize(
    ("dtype", "name"), [("bf16", "bfloat16"), ("fp8_e4m3", "float8_e4m3fn"), ("fp8_e5m2", "float8_e5m2")]
)
def test_ml_dtypes(dtype: str, name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    weights = every_pattern(dtype).view(getattr(ml_dtypes, name))
    decoded = transfuse.Layer.encode(weights).decode()
    assert decoded.dtype == weights.dtype and bits_of(decoded) == bits_of(weights)


@pytest.mark.usefixtures("without_ml_dtypes")
@pytest.mark.parametrize(("dtype", "name"), [("bf16", "uint16"), ("fp8_e4m3", "uint8"), ("fp8_e5m2", "uint8")])
def test_without_ml_dtypes(dtype: str, name: str) -> None:
    weights = every_pattern(dtype)
    decoded = transfuse.Layer.encode(weights, dtype=dtype).decode()
    assert decoded.dtype.name == name and bits_of(decoded) == bits_of(weights)


def test_lossy() -> None:
    weights = np.random.default_rng(6).standard_normal((256, 512), np.float32)
    layer = transfuse.Layer.encode(weights, bits=4.25)
    decoded = layer.decode()
    assert decoded.dtype == np.float32 and layer.info.codec == "int" and layer.info.granularity == "channel"
    error = float(np.linalg.norm(decoded - weights) / np.linalg.norm(weights))
    assert layer.report is not None and 0.02 < error < 0.2
    assert layer.report.relative_rms_error == pytest.approx(error, rel=1e-3)
    rounded = transfuse.Layer.encode(weights, codec="bf16").decode()
    assert rounded.dtype == np.float32 and np.abs(rounded - weights).max() <= 2**-8 * np.abs(weights).max()
    assert not (rounded.view(np.uint32) & 0xFFFF).any()
    blocks = transfuse.Layer.encode(weights, bits=6, granularity="scale-block:64")
    assert blocks.info.granularity == "scale-block:64" and "256x512" in repr(blocks)


def test_not_contiguous() -> None:
    weights = every_pattern("bf16")
    for view in (weights.T, weights[::2, 3:], weights[::-1, ::-1], np.asfortranarray(weights)):
        assert bits_of(transfuse.Layer.encode(view, dtype="bf16").decode()) == bits_of(view)


def test_wrong_arrays() -> None:
    good = np.zeros((4, 4), np.float16)
    for wrong, options, sort, word in (
        ([[1.0]], {}, TypeError, "numpy.ndarray"),
        (good.astype(np.float64), {}, transfuse.ArgumentError, "float64"),
        (good.astype(np.uint16), {}, transfuse.ArgumentError, "uint16"),
        (good.astype(">f2"), {}, transfuse.ArgumentError, "byte order"),
        (good, {"dtype": "bf16"}, transfuse.ArgumentError, "float16"),
        (good, {"dtype": "int3"}, transfuse.ArgumentError, "int3"),
        (good, {"codec": "bf16"}, transfuse.ArgumentError, "F16"),
        (good.astype(np.float32), {}, transfuse.ArgumentError, "F32"),
        (good[0], {}, transfuse.ShapeError, "1 dimensions"),
        (good[None], {}, transfuse.ShapeError, "3 dimensions"),
        (good[:0], {}, ValueError, "0x4|0 x 4|rows"),
        (np.ma.masked_equal(good, 0), {}, transfuse.ArgumentError, "masked"),
        (good, {"dtype": 16}, TypeError, "dtype must be a str"),
        (good, {"codec": ["fp16"]}, transfuse.ArgumentError, "codec is"),
        (good, {"favor": {}}, transfuse.ArgumentError, "favor is"),
        (good, {"bits": "4"}, TypeError, "bits must be a number"),
        (good, {"bits": 4, "granularity": 5}, TypeError, "granularity must be a str"),
        (good, {"verify": "no"}, TypeError, "verify must be True or False"),
        (good, {"verify": 0.5}, TypeError, "verify must be True or False"),
    ):
        with pytest.raises(sort, match=word):
            transfuse.Layer.encode(wrong, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Layer.encode"):
        transfuse.Layer()
    with pytest.raises(TypeError, match="LayerInfo"):
        transfuse.Layer.encode_like(good, None)  # type: ignore[arg-type]


def test_wrong_bytes(tmp_path: Path) -> None:
    blob = transfuse.Layer.encode(every_pattern("bf16"), dtype="bf16").to_bytes()
    status = transfuse.Status
    version = bytearray(blob)
    version[4:6] = b"\xff\xff"
    for data, sort, wanted in (
        (b"", transfuse.DataError, status.TRF_ERR_TRUNCATED),
        (blob[:-1], transfuse.DataError, status.TRF_ERR_TRUNCATED),
        (b"\0" * len(blob), transfuse.DataError, status.TRF_ERR_MAGIC),
        (bytes(version), transfuse.UnsupportedError, status.TRF_ERR_VERSION),
        (blob[:-9] + bytes([blob[-9] ^ 1]) + blob[-8:], transfuse.DataError, status.TRF_ERR_CHECKSUM),
    ):
        path = tmp_path / "layer.trf"
        path.write_bytes(data)
        with pytest.raises(sort) as caught:
            transfuse.Layer.from_bytes(data)
        assert caught.value.status is wanted, caught.value
        with pytest.raises(sort, match=r"layer\.trf") as opened:
            transfuse.Layer.open(path)
        assert opened.value.status is wanted, opened.value
    with pytest.raises(FileNotFoundError, match="nothing.trf"):
        transfuse.Layer.open(tmp_path / "nothing.trf")
    with pytest.raises(transfuse.ArgumentError, match="contiguous"):
        transfuse.Layer.from_bytes(np.frombuffer(blob * 2, np.uint8)[::2])
    with pytest.raises(TypeError, match="addresses"):
        transfuse.Layer.from_bytes(np.array([None] * 64))
    with pytest.raises(transfuse.ArgumentError, match="no file name"):
        transfuse.Layer.open("\ud800")
    with pytest.raises(transfuse.ArgumentError, match="tensor has half of a surrogate"):
        transfuse.Layer.load(tmp_path, "\ud800")
    with pytest.raises(TypeError, match="tensor must be a str, not bytes"):
        transfuse.Layer.load(tmp_path, b"a")  # type: ignore[arg-type]


def test_open_and_load(tmp_path: Path, source: Path, tensors: Tensors, command: Command) -> None:
    compressed, extracted = tmp_path / "model.safetensors", tmp_path / "layer.trf"
    transfuse.compress(source, compressed)
    for tensor, wanted in (
        ("layers.0.q_proj.weight", tensors["layers.0.q_proj.weight"][1]),
        ("layers.0.experts.up_proj[2]", tensors["layers.0.experts.up_proj"][1][2]),
    ):
        loaded = transfuse.Layer.load(compressed, tensor)
        assert bits_of(loaded.decode()) == bits_of(wanted)
        done = command("extract", compressed, tensor, "-o", extracted, "-f")
        assert done.returncode == 0, done.stderr
        opened = transfuse.Layer.open(extracted)
        assert opened.to_bytes() == loaded.to_bytes() == extracted.read_bytes() and opened.info == loaded.info
        assert bits_of(opened.decode()) == bits_of(wanted)
    for tensor in ("layers.7", "layers.0.experts.up_proj[3]"):
        with pytest.raises(transfuse.NotFoundError, match=r"layers\.(7|0)"):
            transfuse.Layer.load(compressed, tensor)
    with pytest.raises(transfuse.ArgumentError, match=r"norm\.weight"):
        transfuse.Layer.load(compressed, "layers.0.norm.weight")


def test_matmul(tmp_path: Path, command: Command) -> None:
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((300, 200)).astype(np.float16)
    layer = transfuse.Layer.encode(weights)
    x = rng.standard_normal((5, 200), np.float32)
    y = layer.matmul(x)
    assert y.dtype == np.float32 and y.shape == (5, 300)
    np.testing.assert_allclose(y, x.astype(np.float64) @ weights.T.astype(np.float64), rtol=1e-5, atol=1e-4)
    (tmp_path / "layer.trf").write_bytes(layer.to_bytes())
    np.save(tmp_path / "x.npy", x)
    done = command("matmul", tmp_path / "layer.trf", tmp_path / "x.npy", "-o", tmp_path / "y.npy")
    assert done.returncode == 0, done.stderr
    assert bits_of(y) == bits_of(np.load(tmp_path / "y.npy")) == bits_of(layer.matmul(x, threads=1))
    assert bits_of(layer.matmul(np.asfortranarray(x))) == bits_of(y)
    assert layer.matmul(x[0]).shape == (300,) and layer.matmul(x[:0]).shape == (0, 300)
    assert layer.matmul(x.reshape(5, 1, 200)).shape == (5, 1, 300)
    half = x.astype(np.float16)
    assert bits_of(layer.matmul(half)) == bits_of(layer.matmul(half.astype(np.float32)))
    for wrong, sort in (
        (x[:, 1:], transfuse.ShapeError),
        (x.astype(np.float64), transfuse.ArgumentError),
        (x.astype(">f4"), transfuse.ArgumentError),
        (x.tolist(), TypeError),
    ):
        with pytest.raises(sort):
            layer.matmul(wrong)


def test_threads_share_a_layer() -> None:
    weights = every_pattern("bf16")
    layer = transfuse.Layer.encode(weights, dtype="bf16")
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(n for n in range(10) if bits_of(layer.decode(threads=2)) != bits_of(weights))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork(tmp_path: Path, source: Path) -> None:
    weights = every_pattern("f16")
    layer = transfuse.Layer.encode(weights)
    assert bits_of(layer.decode()) == bits_of(weights)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            transfuse.compress(source, tmp_path / "target")
            same = bits_of(layer.decode()) == bits_of(weights)
            status = 0 if same and transfuse.Layer.encode(weights).to_bytes() == layer.to_bytes() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (tmp_path / "target").exists() and bits_of(layer.decode()) == bits_of(weights)


def test_memory_goes_with_the_layer() -> None:
    weights = np.zeros((1024, 1024), np.int8)
    weights[:] = np.random.default_rng(8).integers(-128, 128, weights.shape)
    blob = transfuse.Layer.encode(weights).to_bytes()

    def resident_pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    before = resident_pages()
    for _ in range(100):
        transfuse.Layer.encode(weights)
        transfuse.Layer.from_bytes(blob)
    gc.collect()
    # 200 blobs of a megabyte, of which none may stay.
    assert (resident_pages() - before) * os.sysconf("SC_PAGE_SIZE") < 50 * len(blob)
