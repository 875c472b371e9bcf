# SPDX-License-Identifier: Apache-2.0
"""Folders that a stranger may have made: each reader raises the exception of its status, at once, or says nothing."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transfuse
from transfuse import _doctor_checkpoint, _doctor_serving
from transfuse._serving_config import NoEstimateError
from transfuse.hf import _file_check, _opening
from transfuse.tests.conftest import normal_bf16, write_safetensors

NAME = "model.safetensors"
INDEX = NAME + ".index.json"
HANG_SECONDS = 60
Data, IO, Missing = transfuse.DataError, transfuse.InputOutputError, transfuse.NotFoundError
Unsupported = transfuse.UnsupportedError


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """Ends a test that waits for a FIFO."""
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the folders "source" and "compressed"."""
    room = tmp_path_factory.mktemp("bases")
    (room / "source").mkdir()
    weights = normal_bf16(np.random.default_rng(1), 128, 256)
    write_safetensors(room / "source" / NAME, {"a.weight": ("BF16", weights)})
    (room / "source" / INDEX).write_text(json.dumps({"weight_map": {"a.weight": NAME}}))
    (room / "source/config.json").write_text('{"model_type": "llama", "dtype": "bfloat16"}')
    transfuse.compress(room / "source", room / "compressed")
    return room


def write(name: str, content: str | bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def link(name: str, target: str) -> Callable[[Path], Any]:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return make


def fifo(name: str) -> Callable[[Path], Any]:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


def map_to(name: Any) -> str:
    return json.dumps({"weight_map": {"a.weight": name}})


def header(text: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if size is None else size) + text


#: what is done to a folder, and the exceptions of info, verify, compress, decompress and Layer.load
CASES: dict[str, tuple[Callable[[Path], Any], type[Exception]]] = {
    "weights_fifo": (fifo(NAME), IO),
    "weights_device": (link(NAME, "/dev/zero"), IO),
    "weights_loop": (link(NAME, NAME), IO),
    "weights_dangling": (link(NAME, "/nonexistent"), Missing),
    "weights_empty": (write(NAME, b""), Data),
    "weights_header_of_2_to_63": (write(NAME, header(b"{}", 1 << 63)), Data),
    "weights_header_nested": (write(NAME, header(b"[" * 100_000)), Data),
    "weights_header_nan": (write(NAME, header(b'{"a":NaN}')), Data),
    "weights_header_twice": (write(NAME, header(b'{"a":{},"a":{}}')), Data),
    "weights_header_no_utf_8": (write(NAME, header(b'{"\xff":{}}')), Data),
    "weights_of_format_9": (write(NAME, header(b'{"__metadata__":{"transfuse_format":"9"}}')), Unsupported),
    "index_fifo": (fifo(INDEX), IO),
    "index_device": (link(INDEX, "/dev/zero"), IO),
    "index_loop": (link(INDEX, INDEX), IO),
    "index_no_json": (write(INDEX, "{"), Data),
    "index_nested": (write(INDEX, '{"weight_map":' * 100_000), Data),
    "index_number": (write(INDEX, map_to(1)), Data),
    "index_up": (write(INDEX, map_to(f"../source/{NAME}")), Data),
    "index_absolute": (write(INDEX, map_to("/etc/passwd")), Data),
    "index_no_map": (write(INDEX, "{}"), Data),
}


@pytest.mark.parametrize("kind", ["source", "compressed"])
@pytest.mark.parametrize("name", CASES)
def test_checkpoints_raise(tmp_path: Path, bases: Path, name: str, kind: str) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(bases / kind, folder)
    spoil, expected = CASES[name]
    spoil(folder)
    readers: list[Callable[[], Any]] = [
        lambda: transfuse.info(folder),
        lambda: transfuse.verify(folder),
        lambda: transfuse.compress(folder, out),
        lambda: transfuse.decompress(folder, out),
        lambda: transfuse.Layer.load(folder, "a.weight"),
    ]
    for read in readers:
        with pytest.raises(expected) as raised:
            read()
        assert isinstance(raised.value, transfuse.TransfuseError) and raised.value.message.isprintable()
        assert not out.exists()


@pytest.mark.parametrize("spoil", [fifo("extra"), link("extra", "/dev/zero"), link("extra", ".")])
def test_what_is_no_file_is_not_carried_over(tmp_path: Path, bases: Path, spoil: Callable[[Path], Any]) -> None:
    for kind, rewrite in (("source", transfuse.compress), ("compressed", transfuse.decompress)):
        folder = tmp_path / kind
        shutil.copytree(bases / kind, folder)
        spoil(folder)
        with pytest.raises(Unsupported):
            rewrite(folder, tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("make", [fifo("x"), link("x", "/dev/zero"), link("x", "x"), link("x", ".")])
def test_layers_and_tunings_raise(tmp_path: Path, bases: Path, make: Callable[[Path], Any]) -> None:
    make(tmp_path)
    with pytest.raises(IO):
        transfuse.Layer.open(tmp_path / "x")
    with pytest.raises(IO):
        transfuse.choose_layouts(bases / "source", 10**9, tuning=tmp_path / "x")


NO_CONFIGS = [
    fifo("config.json"),
    link("config.json", "/dev/zero"),
    link("config.json", "config.json"),
    write("config.json", b"\xff"),
    write("config.json", "["),
    write("config.json", '{"a":' * 100_000),
    write("config.json", "[]"),
]


@pytest.mark.parametrize("spoil", NO_CONFIGS)
def test_configs_that_cannot_be_read(tmp_path: Path, spoil: Callable[[Path], Any]) -> None:
    spoil(tmp_path)
    assert _file_check.read_config(str(tmp_path / "config.json")) == {}
    assert "error" in _opening.describe_folder(str(tmp_path))
    with pytest.raises(NoEstimateError):
        _doctor_serving._read_config(tmp_path)
    with pytest.raises((OSError, ValueError)):
        _doctor_checkpoint._read_json(tmp_path / "config.json")


def make_archive(path: Path, flags: int) -> None:
    """Writes a zip archive as torch.save does, and changes its flags: 1 says that it is encrypted."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data/0", b"x" * 64)
    content = bytearray(path.read_bytes())
    content[6] |= flags
    content[content.index(b"PK\x01\x02") + 8] |= flags
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", [".safetensors", ".bin", ".pt"])
def test_guards_leave_what_they_cannot_read_to_the_loader(tmp_path: Path, suffix: str) -> None:
    for name, make in {
        "fifo": fifo, "device": lambda name: link(name, "/dev/zero"), "loop": lambda name: link(name, name),
        "empty": lambda name: write(name, b""), "huge": lambda name: write(name, header(b"{", (1 << 64) - 1)),
        "text": lambda name: write(name, b"PK\x05\x06" + bytes(18)),
        "encrypted": lambda name: lambda folder: make_archive(folder / name, 1),
        "far": lambda name: write(name, header(
            b'{"a_trf":{"dtype":"U8","shape":[16],"data_offsets":[9223372036854775807,9223372036854775823]}}')),
    }.items():  # fmt: skip
        path = tmp_path / (name + suffix)
        make(path.name)(tmp_path)
        assert not _file_check.is_compressed(path) and not _file_check.holds_state(path)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x.safetensors", "a/b", "", None, 1, []])
def test_the_doctor_opens_no_file_elsewhere(tmp_path: Path, name: object) -> None:
    (tmp_path / INDEX).write_text(map_to(name))
    with pytest.raises(_opening.CannotOpen, match="beside"):
        _opening.find_weight_files(tmp_path, "model")


def test_the_doctor_refuses_an_index_that_names_nothing(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text('{"weight_map": {}}')
    with pytest.raises(_opening.CannotOpen, match=f"{INDEX}: weight_map is empty: it names no tensor"):
        _opening.find_weight_files(tmp_path, "model")
