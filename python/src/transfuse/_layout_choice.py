# SPDX-License-Identifier: Apache-2.0
"""Chooses the layout of each layer of a checkpoint within a memory (`include/transfuse/layouts.h`)."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from transfuse import _structs as s
from transfuse._checkpoint import Path
from transfuse._errors import DeviceError, Status, argument_error, make_error
from transfuse._library import call, library
from transfuse._memory_need import MARGIN_BYTES
from transfuse._options import LAYOUTS, encode_path, encode_text, find_layout, layout_name

# Rows of x of a step: one number, several that are equally frequent, or each with its share of the steps.
Batches: TypeAlias = "int | Sequence[int] | Mapping[int, float]"

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_NO_LAYER = 2**32 - 1
_EXPERT_LAYOUTS = ("coded", "packed")
_MOST_BYTES = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class LayoutChoice:
    """What `choose_layouts` found; all numbers are those of each GPU.

    Attributes
    ----------
    layouts : dict of str to str
        "coded", "packed" or "plain" for each tensor of the checkpoint that belongs to a layer, by the source's name.
    memory_bytes : int
        What was asked about.
    layer_bytes, other_bytes, cache_bytes, margin_bytes : int
        What layers take, tensors that stay as they are, the KV cache, and CUDA and the framework.
    least_memory_bytes : int
        The smallest memory that the model fits.
    microseconds, plain_microseconds, one_gb_microseconds : float
        The expected time of the products of a step; the same with all layers plain; and what one more GB would save.
    least_microseconds : float
        No choice within the memory takes less, by the times that are known.
    times_of : str
        The card whose times were taken, where no tuning has any.
    is_own_card : bool
        Whether it is the one that was asked about, or none was.
    is_estimated : bool
        Whether the checkpoint is not compressed, so that the sizes of coded layers are estimated from samples.
    """

    layouts: dict[str, str]
    memory_bytes: int
    layer_bytes: int
    other_bytes: int
    cache_bytes: int
    margin_bytes: int
    least_memory_bytes: int
    microseconds: float
    plain_microseconds: float
    one_gb_microseconds: float
    least_microseconds: float
    times_of: str
    is_own_card: bool
    is_estimated: bool

    def count_layouts(self) -> dict[str, int]:
        """Returns how many tensors have each layout."""
        chosen = [name for name, value in LAYOUTS.items() if value < s.LAYOUTS]
        return {name: sum(layout == name for layout in self.layouts.values()) for name in chosen}


def read_memory(memory: int | str) -> int:
    """Returns a number of bytes such as "80GB", "79.2 GiB" or 80000000000.

    Raises
    ------
    ArgumentError
        It is no size.
    """
    if isinstance(memory, int) and not isinstance(memory, bool) and 0 < memory <= _MOST_BYTES:
        return memory
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)b?\s*", str(memory), re.IGNORECASE)
    unit = _UNITS.get(match[2].lower()) if match else None
    if not match or unit is None or not isinstance(memory, str) or not 1 <= float(match[1]) * unit <= _MOST_BYTES:
        raise argument_error(f"memory is {memory!r}; it must be a number of bytes, or a size such as '80GB'")
    return int(float(match[1]) * unit)


def read_batches(batches: Batches) -> dict[int, float]:
    """Returns each batch with its share.

    Raises
    ------
    ArgumentError
        There are no batches, or one is below 1, or a share is not above 0.
    """
    shares: list[tuple[object, object]]
    if isinstance(batches, Mapping):
        shares = list(batches.items())
    else:
        several = batches if isinstance(batches, Iterable) and not isinstance(batches, str) else [batches]
        shares = [(batch, 1.0) for batch in several]
    if not shares:
        raise argument_error("batches is empty; it must have a number of rows")
    found: dict[int, float] = {}
    for batch, share in shares:
        if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= 1 << 20:
            raise argument_error(f"batches has {batch!r}; it must have whole numbers from 1 to 1,048,576")
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= sys.float_info.max:
            raise argument_error(f"the share of batch {batch} is {share!r}; it must be above 0")
        found[batch] = float(share)
    return found


def choose_among(
    layers: ctypes.Array[s.LayoutLayerStruct],
    memory_bytes: int,
    batches: Batches,
    card: str | None = None,
    tuning: Path | None = None,
) -> tuple[list[str], s.LayoutsChoiceStruct]:
    """Returns a layout for each of the layers, and what they come to (`trf_layouts_choose`)."""
    shares = read_batches(batches)
    options, choice = s.LayoutsOptionsStruct(), s.LayoutsChoiceStruct()
    library().trf_layouts_options_init(ctypes.byref(options))
    options.memory_bytes = memory_bytes
    options.batches = (ctypes.c_uint32 * len(shares))(*shares)
    options.shares = (ctypes.c_double * len(shares))(*shares.values())
    options.num_batches = len(shares)
    options.card = None if card is None else encode_text(card, "card")
    found = (ctypes.c_int * len(layers))()
    handle = ctypes.c_void_p()
    if tuning is not None:
        call("trf_tuning_read", encode_path(tuning), ctypes.byref(handle))
    try:
        options.tuning = handle
        call("trf_layouts_choose", layers, len(layers), ctypes.byref(options), found, ctypes.byref(choice))
    except DeviceError as error:
        assert tuning is not None  # it is of another device than the card
        raise make_error(error.status, f"{os.fspath(tuning)!r}: {error.message}") from None
    finally:
        library().trf_tuning_free(handle)
    return [layout_name(layout) for layout in found], choice


def _join_expert_layouts(names: Sequence[str] | None) -> int:
    """Returns a mask of the layouts that experts may have; None leaves all that they can have."""
    if names is None:
        return (1 << s.LAYOUTS) - 1
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"expert_layouts must be a sequence of layouts or None, not {names!r}")
    mask = 0
    for name in names:
        if name not in _EXPERT_LAYOUTS:
            raise argument_error(f"expert_layouts has {name!r}; experts lie {' or '.join(_EXPERT_LAYOUTS)}")
        mask |= 1 << find_layout(name)
    if not mask:
        raise argument_error("expert_layouts is empty; experts have to lie somehow")
    return mask


class _LayerSet:
    """The layers of a checkpoint (`trf_layout_set`), and the names of its tensors."""

    def __init__(self, path: Path, gpus: int, context: int) -> None:
        self.handle = ctypes.c_void_p()
        options = s.LayoutSetOptionsStruct()
        library().trf_layout_set_options_init(ctypes.byref(options))
        if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= 1024:
            raise argument_error(f"gpus is {gpus!r}; it must be a whole number from 1 to 1,024")
        if isinstance(context, bool) or not isinstance(context, int) or not 0 <= context <= 1 << 32:
            raise argument_error(f"context is {context!r}; it must be a number of tokens")
        options.gpus, options.context_tokens = gpus, context
        checkpoint = ctypes.c_void_p()
        call("trf_checkpoint_open", encode_path(path), ctypes.byref(checkpoint))
        try:
            count = library().trf_checkpoint_num_tensors(checkpoint)
            tensor = s.TensorInfoStruct()
            self.tensors: list[bytes] = []
            for index in range(count):
                call("trf_checkpoint_tensor", checkpoint, index, ctypes.byref(tensor))
                self.tensors.append(tensor.name)
            call("trf_layout_set_read", checkpoint, ctypes.byref(options), ctypes.byref(self.handle))
        finally:
            library().trf_checkpoint_close(checkpoint)

    def __enter__(self) -> _LayerSet:
        return self

    def __exit__(self, *_: object) -> None:
        library().trf_layout_set_free(self.handle)

    def read_info(self) -> s.LayoutSetInfoStruct:
        info = s.LayoutSetInfoStruct()
        library().trf_layout_set_get_info(self.handle, ctypes.byref(info))
        return info

    def copy_layers(self, count: int, expert_layouts: Sequence[str] | None) -> ctypes.Array[s.LayoutLayerStruct]:
        """Returns the layers; experts have those of `expert_layouts` that they may have anyway."""
        allowed = _join_expert_layouts(expert_layouts)
        layers = (s.LayoutLayerStruct * count)(*library().trf_layout_set_layers(self.handle)[:count])
        for layer in layers:
            if layer.experts:
                layer.layouts &= allowed
        return layers

    def name_layouts(self, layouts: Sequence[str]) -> dict[str, str]:
        found = {}
        for name in self.tensors:
            index = library().trf_layout_set_find(self.handle, name)
            if index != _NO_LAYER:
                found[name.decode("utf-8", "replace")] = layouts[index]
        return found


def choose_layouts(
    path: Path,
    memory: int | str,
    batches: Batches = 1,
    *,
    gpus: int = 1,
    context: int | None = None,
    card: str | None = None,
    tuning: Path | None = None,
    expert_layouts: Sequence[str] | None = None,
) -> LayoutChoice:
    """Chooses coded, packed or plain for each layer of a checkpoint, so that a step is expected to take the least time.

    Parameters
    ----------
    path : path
        A model, compressed or not.
    memory : int or str
        How much of each GPU's memory it may take, all that is counted included: bytes, or a size such as "80GB".
    batches : int, sequence of int, or mapping of int to float
        Rows of x of a step. Several are equally frequent, or have the shares of a mapping.
    gpus : int
        GPUs that share every layer by tensor parallelism.
    context : int, optional
        Tokens that the KV cache has to hold, of all requests together; None counts no cache.
    card : str, optional
        The GPU's name, or "H100" or "H200". Other cards, and None without a tuning, have the H200's times.
    tuning : path, optional
        What `transfuse tune` measured, on the card if one is named; None for `card` is the device of the tuning.
    expert_layouts : sequence of str, optional
        The layouts that experts may have, of "coded" and "packed"; None allows both.

    Returns
    -------
    LayoutChoice

    Raises
    ------
    OutOfMemoryError
        Nothing fits; the message says how much is missing.
    DeviceError
        The tuning is one of another device than `card`.
    ArgumentError, NotFoundError, DataError, UnsupportedError
    """
    total = read_memory(memory)
    with _LayerSet(path, gpus, 0 if context is None else context) as found:
        info = found.read_info()
        if not info.num_layers:
            raise make_error(Status.TRF_ERR_UNSUPPORTED, f"{os.fspath(path)!r}: no tensor may have several layouts")
        fixed = MARGIN_BYTES + info.other_bytes + info.cache_bytes
        layers = found.copy_layers(info.num_layers, expert_layouts)
        layouts, choice = choose_among(layers, max(total - fixed, 0), batches, card, tuning)
        named = found.name_layouts(layouts)
    return LayoutChoice(
        layouts=named,
        memory_bytes=total,
        layer_bytes=choice.memory_bytes,
        other_bytes=info.other_bytes,
        cache_bytes=info.cache_bytes,
        margin_bytes=MARGIN_BYTES,
        least_memory_bytes=choice.least_bytes + fixed,
        microseconds=choice.microseconds,
        plain_microseconds=choice.plain_microseconds,
        one_gb_microseconds=choice.one_gb_microseconds,
        least_microseconds=choice.least_microseconds,
        times_of=choice.card.decode(),
        is_own_card=bool(choice.is_own_card),
        is_estimated=bool(info.is_estimated),
    )
