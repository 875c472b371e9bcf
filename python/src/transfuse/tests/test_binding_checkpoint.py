# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: there and back, against the command, and what goes wrong."""

from __future__ import annotations

import ctypes
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transfuse
from transfuse import _checkpoint
from transfuse import _structs as s
from transfuse._library import library
from transfuse.tests.conftest import Command, Tensors, was_fp8_bf16, write_safetensors


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    path = tmp_path_factory.mktemp("compressed") / "model.safetensors"
    transfuse.compress(source, path)
    return path


def test_there_and_back(tmp_path: Path, source: Path, compressed: Path) -> None:
    back = tmp_path / "back.safetensors"
    report = transfuse.decompress(str(compressed), back)
    assert back.read_bytes() == source.read_bytes()
    assert report.tensors == 7 and report.compressed_tensors == 5 and report.warning == ""
    assert report.output_bytes < report.source_bytes and report.relative_rms_error == 0
    assert transfuse.verify(compressed, against=source).compressed_tensors == 5
    assert transfuse.verify(compressed).compressed_tensors == 5


def write_weights(path: Path, weights: np.ndarray[Any, Any], dtype: str) -> Path:
    write_safetensors(path, {"w": (dtype, weights)})
    return path


def test_sources_that_are_not_equal(tmp_path: Path, command: Command) -> None:
    """Equality is that of bits: an error of 0 is not enough, nor is one that could not be measured."""
    weights = (0.02 * np.random.default_rng(5).standard_normal((64, 256))).astype(np.float16)
    source, out = write_weights(tmp_path / "s.safetensors", weights, "F16"), tmp_path / "o.safetensors"
    transfuse.compress(source, out, bits=6)
    report = transfuse.verify(out, against=source)
    assert 0 < report.relative_rms_error < 0.1 and report.differing_tensors == 1
    zeros = write_weights(tmp_path / "z.safetensors", 0 * weights, "F16")
    assert transfuse.verify(out, against=zeros).relative_rms_error == np.inf
    assert "relative error inf" in command("verify", out, "--against", zeros).stdout.replace("\n", "")
    for value in (np.nan, np.inf):
        weights[3, 5] = value
        other = write_weights(tmp_path / "n.safetensors", weights, "F16")
        with pytest.raises(transfuse.MismatchError, match="row 3, column 5 differs"):
            transfuse.verify(out, against=other)
    back = tmp_path / "b.safetensors"
    transfuse.decompress(out, back)
    assert transfuse.verify(out, against=back).differing_tensors == 0
    assert "every tensor is equal" in command("verify", out, "--against", back).stdout.replace("\n", "")


def test_weights_beyond_bf16(tmp_path: Path) -> None:
    weights = np.random.default_rng(6).standard_normal((64, 256)).astype(np.float32)
    weights[1, 2] = 3.4e38
    source, out = write_weights(tmp_path / "s.safetensors", weights, "F32"), tmp_path / "o.safetensors"
    report = transfuse.compress(source, out, codec="bf16")
    assert report.rounded_tensors == 1 and report.relative_rms_error == np.inf
    report = transfuse.verify(out, against=source)
    assert report.relative_rms_error == np.inf and report.differing_tensors == 1


def test_other_files_of_a_folder(tmp_path: Path, source: Path) -> None:
    """They are compared with another folder's, and a note says where they are not."""
    model, out = tmp_path / "model", tmp_path / "out"
    model.mkdir()
    file = model / "model.safetensors"
    file.write_bytes(source.read_bytes())
    (model / "README.md").write_text("a")
    transfuse.compress(model, out)
    assert transfuse.verify(out, against=model).notes == ()
    (out / "README.md").write_text("b")
    with pytest.raises(transfuse.MismatchError, match="README"):
        transfuse.verify(out, against=model)
    (note,) = transfuse.verify(out, against=file).notes
    assert str(file) in note and "none of the other files" in note


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, []),
        ({"favor": "size"}, ["--favor", "size"]),
        ({"bits": 4.25}, ["--bits", "4.25"]),
        ({"codec": "int"}, ["--int8"]),
        ({"embeddings": True}, ["--embeddings"]),
        (
            {"bits": 5, "granularity": "scale-group:32", "include": ["*q_proj*", "*float*"], "exclude": ["*float*"]},
            "--bits 5 --granularity scale-group:32 --include *q_proj* --include *float* --exclude *float*".split(),
        ),
    ],
)
def test_same_bytes_as_the_program(
    tmp_path: Path, source: Path, command: Command, options: dict[str, object], words: list[str]
) -> None:
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    transfuse.compress(source, ours, **options)  # type: ignore[arg-type]
    done = command("compress", source, "-o", theirs, *words)
    assert done.returncode == 0, done.stderr
    assert ours.read_bytes() == theirs.read_bytes()
    assert ours.read_bytes() != source.read_bytes()


def test_info(source: Path, compressed: Path, tensors: Tensors, command: Command) -> None:
    listed = transfuse.info(compressed)
    assert {tensor.name: tensor.shape for tensor in listed.tensors} == {n: a.shape for n, (_, a) in tensors.items()}
    assert {tensor.name: tensor.dtype for tensor in listed.tensors} == {n: d for n, (d, _) in tensors.items()}
    said = {tensor["name"]: tensor for tensor in json.loads(command("info", compressed, "--json").stdout)["tensors"]}
    for tensor in listed.tensors:
        assert tensor.file == str(compressed) and tensor.bytes == said[tensor.name]["bytes"]
        assert tensor.compressed == (tensor.layer is not None) == (tensor.codec is not None)
    experts = next(tensor for tensor in listed.tensors if tensor.name.endswith("experts.up_proj"))
    assert experts.blobs == 3 and experts.codec == "bf16" and 0 < experts.bits < 16
    assert listed.source_bytes == transfuse.info(source).bytes == sum(a.nbytes for _, a in tensors.values())
    assert not any(tensor.compressed for tensor in transfuse.info(source).tensors)


def test_missing_and_existing(tmp_path: Path, source: Path, compressed: Path) -> None:
    missing = tmp_path / "no such file.safetensors"
    for call in (
        lambda: transfuse.compress(missing, tmp_path / "target"),
        lambda: transfuse.decompress(missing, tmp_path / "target"),
        lambda: transfuse.verify(missing),
        lambda: transfuse.verify(compressed, missing),
        lambda: transfuse.info(missing),
    ):
        with pytest.raises(FileNotFoundError, match="no such file.safetensors") as caught:
            call()
        assert isinstance(caught.value, transfuse.NotFoundError)
        assert caught.value.status is transfuse.Status.TRF_ERR_NOT_FOUND
    with pytest.raises(FileExistsError) as exists:
        transfuse.compress(source, compressed)
    assert isinstance(exists.value, transfuse.OutputExistsError) and str(compressed) in exists.value.message
    target = tmp_path / "target"
    target.write_text("old")
    transfuse.decompress(compressed, target, overwrite=True)
    assert target.read_bytes() == source.read_bytes()
    assert list(tmp_path.iterdir()) == [target]


def test_corrupt(tmp_path: Path, source: Path, compressed: Path, tensors: Tensors) -> None:
    data = bytearray(compressed.read_bytes())
    cut, flipped = tmp_path / "cut.safetensors", tmp_path / "flipped.safetensors"
    cut.write_bytes(data[:-1])
    with pytest.raises(transfuse.DataError, match="cut.safetensors"):
        transfuse.verify(cut)
    tensor = next(t for t in transfuse.info(compressed).tensors if t.codec == "bf16")
    data[tensor.file_offset + tensor.bytes // 2] ^= 1
    flipped.write_bytes(data)
    with pytest.raises(ValueError, match="flipped.safetensors") as caught:
        transfuse.decompress(flipped, tmp_path / "target")
    error = caught.value
    assert isinstance(error, transfuse.DataError) and error.status is transfuse.Status.TRF_ERR_CHECKSUM
    assert error.offset is not None and tensor.name in error.message and str(error).endswith("[TRF_ERR_CHECKSUM]")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is transfuse.DataError and vars(again) == vars(error)
    assert not (tmp_path / "target").exists()


def test_mismatch(tmp_path: Path, source: Path, compressed: Path) -> None:
    data = bytearray(source.read_bytes())
    place = next(t for t in transfuse.info(source).tensors if t.name.endswith("q_proj.weight")).file_offset
    data[place] ^= 1
    other = tmp_path / "other.safetensors"
    other.write_bytes(data)
    with pytest.raises(transfuse.MismatchError, match=r"q_proj\.weight"):
        transfuse.verify(compressed, other)


def test_bf16_that_was_fp8(tmp_path: Path) -> None:
    source, small, back = (tmp_path / f"{name}.safetensors" for name in ("source", "small", "back"))
    weights = was_fp8_bf16(np.random.default_rng(7), 256, 384)
    write_safetensors(source, {"a.weight": ("BF16", weights)})
    for codec in ("auto", "fp8_e4m3"):
        report = transfuse.compress(source, small, codec=codec, overwrite=True)
        assert report.scaled_fp8_tensors == {"scale-block:128": 1} and report.compressed_tensors == 1
        transfuse.decompress(small, back, overwrite=True)
        assert back.read_bytes() == source.read_bytes()
    assert transfuse.compress(source, small, codec="bf16", overwrite=True).scaled_fp8_tensors == {}


def test_other_files(tmp_path: Path, source: Path) -> None:
    folder, out = tmp_path / "folder", tmp_path / "out"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(source.read_bytes())
    (folder / "tokenizer.json").write_text("{}")
    transfuse.compress(folder, out)
    (out / "mine.txt").write_text("mine")
    report = transfuse.verify(out, against=folder)
    assert (report.compared_files, report.added_files) == (1, 1) and report.notes == ("not in the source: mine.txt",)
    (out / "tokenizer.json").write_text("[]")
    with pytest.raises(transfuse.MismatchError, match=r"tokenizer\.json \(the first at byte 0\)"):
        transfuse.verify(out, against=folder)
    (out / "tokenizer.json").unlink()
    with pytest.raises(transfuse.NotFoundError, match=r"tokenizer\.json"):
        transfuse.verify(out, against=folder)
    assert transfuse.verify(out, against=folder, skip_extra=["tokenizer.json"]).compared_files == 0


def test_bad_arguments(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "target"
    for options in (
        {"codec": "zip"},
        {"favor": "nobody"},
        {"bits": 9},
        {"bits": float("nan")},
        {"bits": 4, "codec": "bf16"},
        {"granularity": "channel"},
        {"bits": 4, "granularity": "scale-group:17"},
        {"bits": 4, "granularity": "row"},
        {"threads": -1},
        {"include": ["a\0b"]},
    ):
        with pytest.raises(ValueError) as caught:
            transfuse.compress(source, target, **options)
        assert isinstance(caught.value, transfuse.ArgumentError), options
    wrong: list[tuple[str, Any]] = [("include", "*"), ("include", b"*"), ("include", 5)]
    for name, globs in [*wrong, ("exclude", [b"*"]), ("skip_extra", [5])]:
        with pytest.raises(TypeError, match=name):
            transfuse.compress(source, target, **{name: globs})
    with pytest.raises(transfuse.ArgumentError, match="NUL"):
        transfuse.info("a\0b")
    assert not target.exists()


@pytest.mark.parametrize("flag", ["dry_run", "verify", "overwrite", "store_only", "resume", "embeddings"])
def test_flags_are_true_or_false(tmp_path: Path, source: Path, flag: str) -> None:
    """What C makes of another value, an int, would be something else: 0.5 and 2^32 become 0."""
    target = tmp_path / "target"
    wrong: list[Any] = [0.5, 2**32, 2, -1, "no", None, []]
    for value in wrong:
        with pytest.raises(TypeError, match=f"{flag} must be True or False"):
            transfuse.compress(source, target, **{flag: value})
    assert not target.exists()
    right: list[Any] = [True, 1, np.True_, False, 0, np.False_]
    for value in right:
        transfuse.compress(source, target, **{flag: value})
        target.unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["progress", "note"])
def test_what_cannot_be_called(tmp_path: Path, source: Path, name: str) -> None:
    wrong: dict[str, Any] = {name: 5}
    with pytest.raises(TypeError, match=f"{name} must be a function or None, not int"):
        transfuse.compress(source, tmp_path / "target", **wrong)
    assert not (tmp_path / "target").exists()


def test_progress(tmp_path: Path, source: Path, tensors: Tensors) -> None:
    seen: list[tuple[str, int, int]] = []
    transfuse.compress(source, tmp_path / "target", progress=lambda *said: seen.append(said))
    assert {name for name, _, _ in seen} <= set(tensors) | {source.name} and seen
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert all(done <= total for _, done, total in seen)


def test_progress_stops(tmp_path: Path, source: Path) -> None:
    with pytest.raises(transfuse.CancelledError) as caught:
        transfuse.compress(source, tmp_path / "target", progress=lambda *_: True)
    assert caught.value.status is transfuse.Status.TRF_ERR_CANCELLED

    def fail(*_: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        transfuse.compress(source, tmp_path / "target", progress=fail)
    assert list(tmp_path.iterdir()) == []


def fake_library(monkeypatch: pytest.MonkeyPatch, lines: list[bytes]) -> dict[str, Any]:
    """Puts in the library's place what notes these lines, and fills a report; returns what options it got."""
    seen: dict[str, Any] = {}

    def call(name: str, *arguments: Any) -> None:
        options, report = arguments[-2]._obj, arguments[-1]._obj
        for field in ("store_only", "dry_run", "overwrite", "resume"):
            seen[field] = getattr(options, field)
        for field in ("skip_extra", "include", "exclude"):
            globs = getattr(options, field)
            seen[field] = [globs[place] for place in range(3)] if globs else None
        for line in lines:
            options.note(None, line)
        seen["stopped"] = options.progress(None, b"t", 1, 2)
        report.warning = b"\n".join(lines)
        report.models, report.extra_files, report.extra_bytes = 2, 3, 2**40
        report.left[s.LeftReason.F32] = s.LeftTensorsStruct(5, 1200)
        seen["name"] = name

    monkeypatch.setattr(_checkpoint, "call", call)
    return seen


def test_options_and_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library says is all there, under the names of the header."""
    seen = fake_library(monkeypatch, [b"one line", b"another, not UTF-8: \xff"])
    told: list[str] = []
    report = transfuse.compress(
        "a", "b", store_only=True, dry_run=True, skip_extra=["original", "*.bin"], note=told.append
    )
    assert seen["name"] == "trf_compress_checkpoint" and seen["store_only"] == seen["dry_run"] == 1
    assert seen["skip_extra"] == [b"original", b"*.bin", None] and seen["exclude"] is None
    assert report.notes == ("one line", "another, not UTF-8: \ufffd") == tuple(told)
    assert report.warning == "one line\nanother, not UTF-8: \ufffd"
    assert (report.models, report.extra_files, report.extra_bytes) == (2, 3, 2**40)
    assert report.left == {"F32 without a lossless codec": (5, 1200)}
    assert report.left["F32 without a lossless codec"].bytes == 1200
    transfuse.decompress("a", "b", skip_extra=["original"])
    assert seen["name"] == "trf_decompress_checkpoint" and seen["skip_extra"][0] == b"original"
    assert seen["store_only"] == seen["dry_run"] == seen["resume"] == 0
    transfuse.compress("a", "b", resume=True)
    assert seen["resume"] == 1 and seen["dry_run"] == 0
    transfuse.verify("a", "b", skip_extra=["original"])
    assert seen["name"] == "trf_verify_checkpoint" and seen["skip_extra"][0] == b"original"
    with pytest.raises(TypeError, match="skip_extra"):
        transfuse.compress("a", "b", skip_extra="original")


def test_note_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it raises asks the library to stop, is passed on, and no function of the user's is called any more."""
    seen = fake_library(monkeypatch, [b"one", b"two"])
    told: list[object] = []

    def fail(line: str) -> None:
        told.append(line)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        transfuse.compress("a", "b", note=fail, progress=lambda *said: told.append(said))
    assert seen["stopped"] == 1 and told == ["one"]


def test_texts_of_reasons() -> None:
    texts = [library().trf_left_reason_text(reason).decode() for reason in s.LeftReason]
    assert len(set(texts)) == len(texts) and "?" not in texts
    assert ctypes.sizeof(s.LeftTensorsStruct) == 16


def test_threads(tmp_path: Path, source: Path, compressed: Path) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            target = tmp_path / str(number)
            transfuse.compress(source, target)
            assert target.read_bytes() == compressed.read_bytes()
            transfuse.verify(target, source)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_limits(tmp_path: Path, source: Path, compressed: Path) -> None:
    back = tmp_path / "back.safetensors"
    size = source.stat().st_size
    with pytest.raises(transfuse.LimitError, match=rf"tensor '.*': max_output_bytes is {size - 1}, ") as caught:
        transfuse.decompress(compressed, back, max_output_bytes=size - 1)
    assert caught.value.status is transfuse.Status.TRF_ERR_LIMIT and not back.exists()
    transfuse.decompress(compressed, back, max_output_bytes=size, max_memory_bytes=2**30)
    with pytest.raises(transfuse.LimitError, match=r"max_output_bytes is 1000"):
        transfuse.compress(source, tmp_path / "out.safetensors", max_output_bytes=1000)
    name = next(tensor.name for tensor in transfuse.info(compressed).tensors if tensor.blobs == 1)
    calls: list[Callable[[int], object]] = [
        lambda limit: transfuse.compress(source, tmp_path / "out.safetensors", max_memory_bytes=limit),
        lambda limit: transfuse.decompress(compressed, tmp_path / "again.safetensors", max_memory_bytes=limit),
        lambda limit: transfuse.verify(compressed, max_memory_bytes=limit),
        lambda limit: transfuse.info(compressed, max_memory_bytes=limit),
        lambda limit: transfuse.Layer.load(compressed, name, max_memory_bytes=limit),
    ]
    for call in calls:
        with pytest.raises(transfuse.LimitError, match=r"max_memory_bytes is 500"):
            call(500)
        call(2**30)
    with pytest.raises(transfuse.LimitError, match=r"max_output_bytes is 500"):
        transfuse.Layer.load(compressed, name, max_output_bytes=500)
    for wrong in (0, -1, 2**64):
        with pytest.raises(transfuse.ArgumentError, match="max_memory_bytes is"):
            transfuse.info(compressed, max_memory_bytes=wrong)
    with pytest.raises(TypeError, match="max_memory_bytes must be an int"):
        transfuse.info(compressed, max_memory_bytes=1.5)  # type: ignore[arg-type]
