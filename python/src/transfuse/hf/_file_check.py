# SPDX-License-Identifier: Apache-2.0
"""Tells compressed .safetensors files from others by their headers, and finds what their folder says of them.

A framework that does not know of compressed tensors takes their names for surplus ones, reports them, and draws weights
at random. So we watch each of its ways into a file (_guard.py), and ask here. Only the header is read, and it is not
parsed where no word in it can belong to a compressed file. This module imports neither torch nor a framework.
"""

from __future__ import annotations

import difflib
import os
import zipfile
import zlib
from collections.abc import Iterable
from typing import Any

from transfuse._errors import Status, make_error
from transfuse._json_text import open_regular, parse_json, read_text
from transfuse.hf._config_fields import METHOD

# The name of a compressed tensor ends in this, and its data begins with that (format/FORMAT.md, section 10).
SUFFIX = "_trf"
_MAGICS = (b"SNAR", b"SNAX")
_LEAST_BYTES = 16
_MOST_HEADER_BYTES = 100_000_000
# One of these stands in the header of each compressed file; the last one begins an escape, which may hide the others.
_FORMAT = b'"transfuse_format"'
_WORDS = (_FORMAT, b'_trf"', b"\\u")
# The parameters of compressed modules begin with one of these: a blob, a layer of another layout, or a container of
# experts. A small number of two bytes comes next, since a pickle's storages are looked at without their types.
_STATE_MAGICS = (b"SNAR", b"TRFL", b"TRFX")
# What reading a header that is not what it should be may raise.
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
# If weights have another name than usual, transformers' config.json names them under this key.
WEIGHTS_KEY = "transformers_weights"

WAY_OUT = (
    "load its folder by from_pretrained with transfuse installed, or run 'transfuse decompress' and use its output"
)
STATE = (
    "is the state dict of a model whose layers transfuse compressed, which no other model takes: save that model by "
    "model.save_pretrained(), which writes what from_pretrained loads"
)


def is_compressed(path: Any) -> bool:
    """Returns whether a file holds compressed tensors. A file that cannot be read is left to its loader."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path).endswith(".safetensors"):
        return False
    try:
        with open_regular(path) as file:
            start, text = _read_header(file)
            if not any(word in text for word in _WORDS):
                return False
            header = parse_json(text)
            if "transfuse_format" in (header.get("__metadata__") or {}):
                return True
            places = [start + tensor["data_offsets"][0] for name, tensor in header.items() if _may_hold(name, tensor)]
            return any(_read_head(file, place)[:4] in _MAGICS for place in places)
    except _UNREADABLE:
        return False


def _read_header(file: Any) -> tuple[int, bytes]:
    """Returns where the data of a .safetensors file begin, and its header, which is empty if it is too large."""
    size = int.from_bytes(file.read(8), "little")
    return 8 + size, file.read(size) if size <= _MOST_HEADER_BYTES else b""


def _may_hold(name: str, tensor: dict[str, Any]) -> bool:
    if not name.endswith(SUFFIX) or tensor["dtype"] != "U8":
        return False
    return len(tensor["shape"]) == 1 and int(tensor["shape"][0]) >= _LEAST_BYTES


def _read_head(file: Any, place: int) -> bytes:
    file.seek(place)
    return file.read(_LEAST_BYTES)  # type: ignore[no-any-return]


def find_compressed(files: Iterable[Any] | None) -> str | None:
    """Returns the first of some files that holds compressed tensors, or None."""
    return next((os.fspath(path) for path in files or () if is_compressed(path)), None)


def refuse_compressed(path: Any, loader: str) -> None:
    """Raises UnsupportedError for a compressed file, or for a folder that has one, that `loader` is about to read."""
    found = find_compressed(_list_files(path))
    if found is not None:
        raise make_error(
            Status.TRF_ERR_UNSUPPORTED, f"{found} is compressed by transfuse, and {loader} cannot read it: {WAY_OUT}"
        )


def refuse_second(path: Any, name: str, first: Any) -> Exception:
    """Returns the error of a file that has a tensor which a file before it has, too: one of them would be left out."""
    return make_error(Status.TRF_ERR_FORMAT, f"{path}: tensor {name!r}: {first} has one of this name, too")


def refuse_elsewhere(file: str, index: Any) -> None:
    """Raises DataError if an index, as transformers returns it, names files that are not beside it.

    Parameters
    ----------
    file : str
        A compressed file that the index led to.
    index : dict or None
        None if there is only one file.
    """
    for tensor, name in ((index or {}).get("weight_map") or {}).items():
        if os.path.basename(name) != name:
            raise make_error(
                Status.TRF_ERR_FORMAT,
                f"{file}: the index that leads here has {name!r} for tensor {tensor!r}, which is no name of a file "
                "beside it",
            )


def _list_files(path: Any) -> list[Any]:
    if isinstance(path, (str, os.PathLike)) and os.path.isdir(path):
        return [os.path.join(path, name) for name in sorted(os.listdir(path))]
    return [path]


def holds_state(path: Any) -> bool:
    """Returns whether a file holds parameters of compressed modules under their own names: a state dict that was saved.

    The file is a .safetensors file, or a pickle of torch, a zip archive in which the storages are separate files.
    """
    if not isinstance(path, (str, os.PathLike)):
        return False
    try:
        if os.fspath(path).endswith(".safetensors"):
            with open_regular(path) as file:
                start, text = _read_header(file)
                header = parse_json(text) if b'"U8"' in text and _FORMAT not in text else {}
                tensors = [tensor for name, tensor in header.items() if _may_be_state(name, tensor)]
                return any(_is_state(_read_head(file, start + tensor["data_offsets"][0])) for tensor in tensors)
        if os.fspath(path).endswith(_PICKLES):
            with open_regular(path) as file, zipfile.ZipFile(file) as archive:
                storages = [name for name in archive.namelist() if "/data/" in name]
                return any(_is_state(_read_storage(archive, name)) for name in storages)
    except (*_UNREADABLE, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError):  # also of an encrypted archive
        pass
    return False


def _may_be_state(name: str, tensor: dict[str, Any]) -> bool:
    return not name.endswith(SUFFIX) and tensor.get("dtype") == "U8" and len(tensor["shape"]) == 1


def _read_storage(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as file:
        return file.read(_LEAST_BYTES)


def _is_state(head: bytes) -> bool:
    return len(head) == _LEAST_BYTES and head[:4] in _STATE_MAGICS and head[5] == 0


def find_state(path: Any) -> str | None:
    """Returns a file that holds a state dict of compressed modules: the path's own, or the first one of its folder."""
    return next((os.fspath(file) for file in _list_files(path) if holds_state(file)), None)


def refuse_state(path: Any) -> None:
    """Raises UnsupportedError if a file, or one of a folder, holds a state dict of compressed modules."""
    found = find_state(path)
    if found is not None:
        raise make_error(Status.TRF_ERR_UNSUPPORTED, f"{found} {STATE}")


def refuse_blobs(state_dict: Any, loader: str) -> None:
    """Raises UnsupportedError for a state dict with compressed tensors, which `loader` is about to take."""
    for name, tensor in (state_dict or {}).items():
        if "uint8" not in str(getattr(tensor, "dtype", "")) or tensor.dim() != 1 or tensor.is_meta:
            continue
        head = bytes(tensor[:_LEAST_BYTES].tolist())
        if str(name).endswith(SUFFIX) and len(head) == _LEAST_BYTES and head[:4] in _MAGICS:
            raise make_error(
                Status.TRF_ERR_UNSUPPORTED,
                f"the state dict has the compressed tensor {name!r}, which {loader} cannot load: {WAY_OUT}",
            )
        if _is_state(head):
            raise make_error(Status.TRF_ERR_UNSUPPORTED, f"what {loader} was given {STATE} ({name!r} holds a layer)")


def find_marker(file: str) -> dict[str, Any]:
    """Returns transfuse's `quantization_config` from the config.json in the folder of a compressed file.

    Where there is none, one is made up, since the file says by itself how it is compressed.

    Raises
    ------
    UnsupportedError
        There is one of another method instead: without their scales, the compressed tensors are no weights.
    """
    config = read_config(os.path.join(os.path.dirname(file), "config.json"))
    waiting = [config]
    others: list[Any] = []
    while waiting:
        fields = waiting.pop(0)
        for key in ("quantization_config", "compression_config"):
            marker = fields.get(key)
            if isinstance(marker, dict) and is_marker(marker):
                return dict(marker)
            others += [marker] if marker is not None else []
        waiting += [value for value in fields.values() if isinstance(value, dict)]
    if others:
        raise refuse_other_method(file, others[0])
    return {"quant_method": METHOD.value}


def refuse_other_method(file: str, config: Any) -> Exception:
    """Returns the error for a compressed file whose `quantization_config` names another method to read it, or none."""
    method = config.get("quant_method") if isinstance(config, dict) else getattr(config, "quant_method", None)
    name = str(getattr(method, "value", method) or "")
    if not name or difflib.get_close_matches(name.lower(), [METHOD]):
        found = f"{name!r} for a quant_method" if name else "no quant_method"
        return make_error(
            Status.TRF_ERR_UNSUPPORTED,
            f"{file} is compressed by transfuse, and the quantization_config beside it has {found}: put "
            f'back the one that transfuse wrote, with "quant_method": "{METHOD}", or compress the source again',
        )
    return make_error(
        Status.TRF_ERR_UNSUPPORTED,
        f"{file} is compressed by transfuse, and is to be quantized by {name}, which cannot read it: leave out that "
        "quantization_config if you passed it, or run 'transfuse decompress' first",
    )


def is_marker(marker: Any) -> bool:
    """Returns whether a `quantization_config` is one of transfuse."""
    return isinstance(marker, dict) and marker.get("quant_method") == METHOD


def read_config(path: str) -> dict[str, Any]:
    """Returns what a config.json holds, as Python reads it; it is empty if there is none that can be read."""
    try:
        fields = parse_json(read_text(path))
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def source_weights_name(source_config: str | None) -> str | None:
    """Returns the name that the source's config.json gives its file of weights, if it gives one."""
    try:
        fields = parse_json((source_config or "{}").removeprefix("\ufeff"))
    except ValueError:
        return None
    name = fields.get(WEIGHTS_KEY) if isinstance(fields, dict) else None
    return name if isinstance(name, str) else None
