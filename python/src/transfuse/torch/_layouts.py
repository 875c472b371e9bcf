# SPDX-License-Identifier: Apache-2.0
"""Layers in layouts other than the coded one, which files and state dicts have, and conversions between layouts.

The library converts any layer to a plain or packed one on the device. The way back to a coded one decodes, and encodes
on the CPU with the options that the layer's head has kept. This gives the same weights and, if this version's encoder
made the blob, the same bytes. A plain layer no longer knows its blob's row offsets; if it cannot be packed without
them, it is encoded first.

Not every layer can lie in every layout: the codec decides and, for packed layers, the weights, too. For a single layer
that is an error; layers of a model stay coded, and a warning names them.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
import zlib
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from transfuse import _structs as s
from transfuse._errors import Status, UnsupportedError, make_error
from transfuse._options import find_layout, fits_layout
from transfuse.torch import _encode, _ops, _registry
from transfuse.torch._dtypes import TORCH_DTYPES

# Options, each with the values for which the encoder makes the same of BF16 weights as by default.
_FORMLESS_OPTIONS = {"threads", "verify"}
_DEFAULT_FORM = {"codec": (None, "auto", "bf16"), "favor": (None, "speed")}

# A warning names at most this many weights, or reasons.
_WORDS_SHOWN = 6


def convert_layer(buffer: Tensor, layout: str) -> Tensor:
    """Returns a layer in another layout.

    Parameters
    ----------
    buffer : Tensor, uint8, [buffer_bytes]
        A layer in any layout. It stays as it is, and is adopted if it is not known.
    layout : str
        "coded", "packed", "plain" or "packed8".

    Returns
    -------
    Tensor, uint8
        `buffer` itself if the layer lies so; else its buffer in that layout, on the device of `buffer`, known to the
        ops. The same buffer gives the same memory again, so that ties hold, as long as that is in use and unchanged and
        neither of the two was forgotten or packed again.

    Raises
    ------
    ArgumentError
        There is no such layout.
    UnsupportedError
        The layout does not take the codec, or not these weights.
    DataError
        A tile of a coded layer does not decode. Layers in other layouts are not compared with their checksums, and the
        result has checksums of its own: `verify_layer` finds changed memory if you call it before.
    """
    wanted = find_layout(layout)
    if fits_layout(_registry.layer_layout(buffer), layout):
        return buffer
    found = _made.find(buffer, layout)
    if found is None:
        found = encode_again(buffer).to(buffer.device) if wanted == s.Layout.CODED else _convert(buffer, wanted)
        _registry.adopt(found)
        _made.note(buffer, layout, found)
    return found


def make_layer(weight: Tensor, layout: str, options: dict[str, Any]) -> Tensor:
    """Makes a layer as `lay_out` does, but raises an error if it cannot have this layout.

    Raises
    ------
    ArgumentError
        There is no such layout.
    UnsupportedError
        The layout does not take the codec, or does not take these weights.
    """
    find_layout(layout)
    buffer, _, refusal = lay_out(weight, layout, options)
    if refusal:
        raise make_error(Status.TRF_ERR_UNSUPPORTED, refusal)
    return buffer


def lay_out(weight: Tensor, layout: str, options: dict[str, Any]) -> tuple[Tensor, int, str]:
    """Makes a layer from dense weights, in a layout if that takes it, else coded.

    Returns the layer, the compressed bytes, which are those of the blob if there was one, and why the layout does not
    take the layer, or "".

    BF16 weights are packed without the encoder, which takes hundreds of times as long, if the options leave the blob's
    form to the library: the layer is encoded with its defaults when it is saved. A packed layer that its padding makes
    no smaller than the weights is encoded, since its blob says whether compressing pays. Weights that were FP8 come to
    lie "packed8", unless the codec bf16 is asked for.

    Parameters
    ----------
    weight : Tensor, [rows][cols]
        On any device; the layer will lie on the same one.
    layout : str
        "coded", "packed" or "plain".
    options : dict
        The options of `transfuse.Layer.encode`.

    Raises what `encode` does, and what `convert_layer` does for other reasons.
    """
    if layout == "packed" and weight.dtype == torch.bfloat16 and is_default_form(options):
        try:
            packed = _registry.pack(weight, packed_bf16=options.get("codec") == "bf16")
        except UnsupportedError:
            pass  # a coded layer may have row offsets, with which it is packed
        else:
            if packed.numel() < weight.numel() * weight.element_size():
                return packed, packed.numel(), ""
    blob = _encode.encode(weight, **options).to(weight.device)
    laid_out, refusal = convert_or_keep(blob, layout)
    return laid_out, blob.numel(), refusal


def is_default_form(options: dict[str, Any]) -> bool:
    """Returns whether BF16 weights that are encoded with these options become what they become by default."""
    return all(
        name in _FORMLESS_OPTIONS or value in _DEFAULT_FORM.get(name, (None,)) for name, value in options.items()
    )


def encode_again(buffer: Tensor) -> Tensor:
    """Returns the blob of a layer in any layout, on the CPU; a coded one is returned as it is.

    A packed FP8 layer becomes FP8 again, with scales if it had some.
    """
    layout = _registry.layer_layout(buffer)
    if layout == "coded":
        return buffer
    found = _made.find(buffer, "file")
    if found is None:
        info = _registry.layer_info(buffer)
        if layout == "packed8":
            info = dataclasses.replace(info, codec="fp8_e4m3")
        weights = _ops.decode(buffer, info.rows, info.cols, TORCH_DTYPES[info.dtype])
        found = _encode.encode_like(weights, info)
        _made.note(buffer, "file", found)
    return found


def encode_for_pickle(buffer: Tensor) -> Tensor:
    """Returns the blob of a layer in any layout, on the device of `buffer`; the ops need not know it.

    The same layer gives the same storage again as long as that is in use, also if it was moved to shared memory.
    """
    found = _made.find(buffer, "pickle")
    if found is None:
        found = encode_again(buffer).to(buffer.device)
        _made.note(buffer, "pickle", found)
    return found


def convert_or_keep(buffer: Tensor, layout: str) -> tuple[Tensor, str]:
    """Returns a layer in another layout and "", or, if that does not take it, `buffer` as it lies, and the reason.

    Raises what `convert_layer` does for other reasons.
    """
    _registry.adopt(buffer)
    try:
        return convert_layer(buffer, layout), ""
    except UnsupportedError as refusal:
        return buffer, refusal.message


def describe_refusals(layout: str, refused: dict[str, str]) -> str:
    """Returns the text of a warning about weights that a layout does not take: their names, by the reasons."""
    return f"weights that do not become {layout}, but stay as they are: {_enumerate_reasons(refused)}"


def describe_packed_fp8(reasons: dict[str, str]) -> str:
    """Returns the text of a warning about FP8 weights that lie packed as BF16: how many, and their names, by reasons.

    `reasons` has what `layout_reason` says of them.
    """
    count = len(reasons)
    return f"{count} weights of FP8 lie packed as BF16, and not packed8: {_enumerate_reasons(reasons)}"


def _enumerate_reasons(reasons: dict[str, str]) -> str:
    names = defaultdict(list)
    for name, reason in reasons.items():
        names[reason].append(name)
    return _enumerate([f"{_enumerate(those)}, since {reason}" for reason, those in names.items()], "; ")


def _enumerate(words: list[str], separator: str = ", ") -> str:
    more = [f"{len(words) - _WORDS_SHOWN} more"] if len(words) > _WORDS_SHOWN else []
    return separator.join(words[:_WORDS_SHOWN] + more)


def _convert(buffer: Tensor, layout: s.Layout) -> Tensor:
    """Returns a layer in a layout that is not the coded one, in memory of its own size."""
    try:
        return _registry.convert(buffer, layout)
    except UnsupportedError:
        if _registry.layer_layout(buffer) == "coded" or _registry.layer_info(buffer).codec != "bf16":
            raise
    coded = encode_again(buffer).to(buffer.device)
    _registry.adopt(coded)
    return _registry.convert(coded, layout)


@dataclasses.dataclass(frozen=True)
class _Result:
    """A result of a conversion, and what shows whether it and its source are still the layers that they were."""

    source_adoption: object
    adoption: object  # None if the ops need not know the result
    checksum: int | None
    storage: weakref.ref[torch.UntypedStorage]

    def get(self, source: Tensor) -> Tensor | None:
        storage = self.storage()
        if storage is None or self.source_adoption is not _registry.adoption_token(source):
            return None
        found = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        if self.adoption is not None and self.adoption is not _registry.adoption_token(found):
            return None
        return found if self.checksum == _sum_bytes(found) else None


def _sum_bytes(buffer: Tensor) -> int | None:
    """Returns a checksum of a buffer on the CPU, or None; there, state dicts give away blobs, which users may change.

    Versions of tensors would not show all changes, and tensors that are made in inference mode have none.
    """
    return None if buffer.is_cuda else zlib.crc32(buffer.detach().numpy().data)


class _Made:
    """Remembers the results of conversions, as long as both layers live and are those that they were.

    Modules that share a weight convert it one by one, and have to share the result, too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The keys are the source's storage, then what was made of which part.
        self._of: weakref.WeakKeyDictionary[torch.UntypedStorage, dict[tuple[str, int, int], _Result]] = (
            weakref.WeakKeyDictionary()
        )

    def find(self, buffer: Tensor, made_as: str) -> Tensor | None:
        with self._lock:
            result = self._of.get(buffer.untyped_storage(), {}).get((made_as, buffer.data_ptr(), buffer.numel()))
        return None if result is None else result.get(buffer)

    def note(self, buffer: Tensor, made_as: str, made: Tensor) -> None:
        adoption = _registry.adoption_token(buffer)
        if adoption is None:
            return
        storage = weakref.ref(made.untyped_storage())
        result = _Result(adoption, _registry.adoption_token(made), _sum_bytes(made), storage)
        with self._lock:
            self._of.setdefault(buffer.untyped_storage(), {})[made_as, buffer.data_ptr(), buffer.numel()] = result


_made = _Made()
