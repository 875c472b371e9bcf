# SPDX-License-Identifier: Apache-2.0
"""Finds which elements of a parameter its files filled, so that no layer is made of memory that nobody wrote.

vLLM keeps the calls that filled a layer until the layer is made. We replay them on the meta device, where they cost
nothing, and note which part of the parameter each copy or fill writes, and from what.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# The first row, the row after the last one, the first column, and the column after the last one.
Rectangle = tuple[int, int, int, int]

_WRITES = (
    torch.ops.aten.copy_.default,
    torch.ops.aten.fill_.Scalar,
    torch.ops.aten.fill_.Tensor,
    torch.ops.aten.zero_.default,
)


@dataclasses.dataclass(frozen=True)
class Write:
    """What one copy or fill writes to a matrix, mostly one rectangle. A copy has a `source`, a fill has None."""

    rectangles: list[Rectangle]
    source: torch.Tensor | None


class _Writes(TorchDispatchMode):
    """Notes what is written to a meta tensor, which is a matrix of `cols` columns."""

    def __init__(self, storage: torch.UntypedStorage, cols: int) -> None:
        super().__init__()
        self._storage, self._cols = storage._cdata, cols
        self.found: list[Write] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _WRITES and args[0].untyped_storage()._cdata == self._storage:
            source = args[1] if func is torch.ops.aten.copy_.default else None
            self.found.append(Write(_rectangles_of(args[0], self._cols), source))
        return result


def _rectangles_of(view: torch.Tensor, cols: int) -> list[Rectangle]:
    """Returns the part of a contiguous matrix of `cols` columns that a view of it covers."""
    if view.numel() == 0:
        return []
    offset = int(view.storage_offset())
    if view.is_contiguous():
        first, last = offset, offset + view.numel()
        if first % cols == 0 and last % cols == 0:
            return [(first // cols, last // cols, 0, cols)]
        if first // cols == (last - 1) // cols:
            return [(first // cols, first // cols + 1, first % cols, (last - 1) % cols + 1)]
    if view.dim() == 2 and view.stride(1) == 1 and view.stride(0) == cols and offset % cols + view.shape[1] <= cols:
        row, col = divmod(offset, cols)
        return [(row, row + view.shape[0], col, col + view.shape[1])]
    if view.dim() == 2 and view.shape[0] == 1 and view.stride(1) == 1:
        return _rectangles_of(view[0], cols)
    return [rectangle for part in view for rectangle in _rectangles_of(part, cols)]


def find_writes(param: torch.Tensor, loads: Iterable[inspect.BoundArguments], loader: Any) -> list[Write]:
    """Returns what loads write to a parameter, in the order of the loads.

    Parameters
    ----------
    param : torch.Tensor, [rows][cols] or [rows], or [experts][rows][cols], of which an expert counts as a row
        A parameter on any device; it is neither read nor written.
    loads : iterable of inspect.BoundArguments
        The calls of its loader. Each call gets a parameter on the meta device in place of the one that it names.
    loader : callable
        The parameter's loader.
    """
    blank = param.data.to("meta")
    blank.__class__ = param.__class__
    blank.__dict__ = dict(param.__dict__)
    with _Writes(blank.untyped_storage(), _count_cols(param)) as writes:
        for load in loads:
            arguments = inspect.BoundArguments(load.signature, OrderedDict(load.arguments))
            arguments.arguments["param"] = blank
            loader(*arguments.args, **arguments.kwargs)
    found: list[Write] = writes.found
    return found


def find_row_sources(param: torch.Tensor, loads: Iterable[inspect.BoundArguments], loader: Any) -> list[torch.Tensor]:
    """Returns the matrices that loads copy to a parameter, in the order of their rows there.

    Together they are the whole parameter: each has all of its columns, and no two write the same rows. If that is not
    so, for instance where rows are padded, the list is empty. The parameters are those of `find_writes`.
    """
    rows, cols = param.shape[0], _count_cols(param)
    found: dict[int, torch.Tensor] = {}
    for write in find_writes(param, loads, loader):
        if not write.rectangles:
            continue
        first, last, *width = write.rectangles[0]
        is_whole = len(write.rectangles) == 1 and width == [0, cols] and first not in found
        if not is_whole or write.source is None or write.source.shape != (last - first, cols):
            return []
        found[first] = write.source
    starts = sorted(found)
    ends = [start + found[start].shape[0] for start in starts]
    return [found[start] for start in starts] if [*starts, rows] == [0, *ends] else []


def find_missing(param: torch.Tensor, loads: Iterable[inspect.BoundArguments], loader: Any) -> list[Rectangle]:
    """Returns the parts of a parameter that no load writes. The parameters are those of `find_writes`."""
    written = [rectangle for write in find_writes(param, loads, loader) for rectangle in write.rectangles]
    return subtract(param.shape[0], _count_cols(param), written)


def _count_cols(param: torch.Tensor) -> int:
    return max(1, param[0].numel())


def subtract(rows: int, cols: int, rectangles: Sequence[Rectangle]) -> list[Rectangle]:
    """Returns what rectangles leave of a matrix, as rectangles of whole columns where that is possible."""
    row_cuts = sorted({0, rows, *(edge for rectangle in rectangles for edge in rectangle[:2])})
    missing: list[Rectangle] = []
    for first_row, last_row in pairwise(row_cuts):
        here = [rectangle for rectangle in rectangles if rectangle[0] <= first_row and rectangle[1] >= last_row]
        col = 0
        for first_col, last_col in sorted(rectangle[2:] for rectangle in here):
            if first_col > col:
                missing.append((first_row, last_row, col, first_col))
            col = max(col, last_col)
        if col < cols:
            missing.append((first_row, last_row, col, cols))
    merged: list[Rectangle] = []
    for rectangle in missing:
        if merged and merged[-1][1] == rectangle[0] and merged[-1][2:] == rectangle[2:]:
            merged[-1] = (merged[-1][0], *rectangle[1:])
        else:
            merged.append(rectangle)
    return merged


def describe(missing: Sequence[Rectangle], shape: tuple[int, ...]) -> str:
    """Returns parts of a parameter in words: "rows 16 to 31 and columns 0 to 7 of rows 40 to 47", or, where it is
    [experts][rows][columns], "parts of experts 3 to 3"."""
    texts = []
    for first_row, last_row, first_col, last_col in missing[:4]:
        where = f"{'rows' if len(shape) < 3 else 'parts of experts'} {first_row} to {last_row - 1}"
        is_whole = len(shape) != 2 or last_col - first_col == shape[1]
        texts.append(where if is_whole else f"columns {first_col} to {last_col - 1} of {where}")
    texts = list(dict.fromkeys(texts))
    if len(missing) > 4:
        texts.append(f"{len(missing) - 4} more parts")
    return " and ".join(texts)
