# SPDX-License-Identifier: Apache-2.0
"""Compressed weights that a framework's loader takes for dense ones, and that are decoded when it copies them.

Loaders cut the part that they want out of a tensor (`narrow`, slices, `chunk`, `split`), and copy it to a parameter. A
`LazyWeight` stays lazy while it is cut. The copy then reads and decodes only the tiles that the part touches, on the
device of the parameter. Any other operation gets the dense tensor, on the CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_map_only

from transfuse._checkpoint import TensorInfo
from transfuse._errors import Status, TransfuseError, make_error
from transfuse._memory_need import is_bf16_layer, is_scaled_fp8
from transfuse.hf._file_check import find_compressed, refuse_second
from transfuse.hf._file_check import is_compressed as is_file_compressed
from transfuse.torch import _ops
from transfuse.torch._dtypes import TORCH_DTYPES
from transfuse.torch._load import Checkpoint, TensorPart, load_layer
from transfuse.torch._registry import check_decoded

_aten = torch.ops.aten

# A part of a coded layer can be decoded if it begins and ends at multiples of this, or where the matrix does.
_TILE_SIZE = 256

# A part of a layer can be loaded if it begins and ends at multiples of this, or where the matrix does.
_SHARD_STEP = 16


@dataclasses.dataclass(frozen=True)
class _Part:
    """What a lazy weight has of its tensor. `experts` is one expert of a stack, several, or None if it is no stack."""

    experts: range | int | None
    rows: range
    cols: range

    @property
    def shape(self) -> tuple[int, ...]:
        stack = (len(self.experts),) if isinstance(self.experts, range) else ()
        return *stack, len(self.rows), len(self.cols)

    def __str__(self) -> str:
        ranges = [self.rows, self.cols] if self.experts is None else [self.experts, self.rows, self.cols]
        return ", ".join(str(one) if isinstance(one, int) else f"{one.start}:{one.stop}" for one in ranges)

    def cut(self, dim: int, first: int, last: int) -> _Part:
        """Returns the part with the indices from `first` up to, but without, `last` of one of its dimensions."""
        field = ("experts", "rows", "cols")[dim + 3 - len(self.shape)]
        return dataclasses.replace(self, **{field: getattr(self, field)[first:last]})


class LazyWeight(torch.Tensor):
    """A compressed tensor of a checkpoint, or a part of it, with the shape and the dtype of the source.

    It keeps the checkpoint open, whose file has to stay where it is. A lazy weight cannot be written to.

    Parameters
    ----------
    checkpoint : Checkpoint
    info : TensorInfo
        The compressed tensor, [rows][cols] or [experts][rows][cols].
    part : optional
        The part of the tensor that this is, by default all of it.
    """

    checkpoint: Checkpoint
    info: TensorInfo
    part: _Part

    # Calls from Python are not intercepted, so that parameters of other classes can be copied to.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, checkpoint: Checkpoint, info: TensorInfo, part: _Part | None = None) -> LazyWeight:
        """Makes a lazy weight; nothing is read."""
        if part is None:
            *stack, rows, cols = (range(size) for size in info.shape)
            part = _Part(stack[0] if stack else None, rows, cols)
        made: LazyWeight = torch.Tensor._make_wrapper_subclass(
            cls, part.shape, dtype=TORCH_DTYPES[info.dtype], device=torch.device("cpu")
        )
        made.checkpoint, made.info, made.part = checkpoint, info, part
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Names the tensor and the part of it that this is."""
        return f"LazyWeight({self.info.name}[{self.part}] of {self.info.file}, {self.dtype})"

    def dense(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Returns the weights, decoded on a device, which is the CPU or a CUDA device.

        Raises
        ------
        TransfuseError, RuntimeError
            They cannot be read or decoded; the message names the file and the tensor.
        """
        part = self.part
        if not isinstance(part.experts, range):
            return self._decode(part.experts, torch.device(device))
        stack = torch.empty(part.shape, dtype=self.dtype, device=device)
        for index, expert in enumerate(part.experts):
            stack[index] = self._decode(expert, stack.device)
        return stack

    def _decode(self, expert: int | None, device: torch.device) -> torch.Tensor:
        name = _name_of(self.info, expert)
        rows, cols = self.part.rows, self.part.cols
        if not rows or not cols:
            return torch.empty(len(rows), len(cols), dtype=self.dtype, device=device)
        first_row, num_rows = _widen(rows, self.info.shape[-2])
        first_col, num_cols = _widen(cols, self.info.shape[-1])
        with _named_source(self.info, name):
            layer = load_layer(self.checkpoint, name, device, rows=(first_row, num_rows), cols=(first_col, num_cols))
            tiles = _decode_checked(layer, num_rows, num_cols, self.dtype)
        return tiles[rows.start - first_row : rows.stop - first_row, cols.start - first_col : cols.stop - first_col]

    def is_bf16_layer(self) -> bool:
        """Returns whether this is BF16, and BF16 in its files, as it is or as the FP8 that it was."""
        layer = self.info.layer
        return self.dtype == torch.bfloat16 and layer is not None and is_bf16_layer(layer)

    def find_tiles(self) -> TensorPart | None:
        """Returns the part of the tensor for a coded layer to take over as it is; None if it has to be encoded anew.

        Such a part is a matrix of BF16 weights that begins and ends at multiples of 256 rows and columns, or where the
        tensor does.
        """
        part, info = self.part, self.info
        if isinstance(part.experts, range) or not self.is_bf16_layer():
            return None
        ranges = []
        for wanted, size in ((part.rows, info.shape[-2]), (part.cols, info.shape[-1])):
            whole = wanted.start, len(wanted)
            if not wanted or whole != _widen(wanted, size):
                return None
            ranges.append(whole)
        return TensorPart(self.checkpoint, _name_of(info, part.experts), *ranges)

    def is_scaled_fp8(self) -> bool:
        """Returns whether this is BF16 whose file has it as FP8 with scales."""
        layer = self.info.layer
        return self.dtype == torch.bfloat16 and layer is not None and is_scaled_fp8(layer)

    def load_packed8(self, device: torch.device) -> torch.Tensor:
        """Reads this matrix of scaled FP8 to a device as a packed FP8 layer. Corrupt tiles are noticed.

        Raises
        ------
        UnsupportedError
            It does not fit that layout.
        TransfuseError, RuntimeError
            It cannot be read or decoded; the message names the file and the tensor.
        """
        part, info = self.part, self.info
        if isinstance(part.experts, range):
            raise make_error(Status.TRF_ERR_UNSUPPORTED, f"{self!r} is a stack of experts")
        for wanted, size in ((part.rows, info.shape[-2]), (part.cols, info.shape[-1])):
            if not wanted or wanted.start % _SHARD_STEP or (wanted.stop % _SHARD_STEP and wanted.stop != size):
                raise make_error(
                    Status.TRF_ERR_UNSUPPORTED, f"it is a part that is not cut at multiples of {_SHARD_STEP}: {part}"
                )
        name = _name_of(info, part.experts)
        rows, cols = (part.rows.start, len(part.rows)), (part.cols.start, len(part.cols))
        with _named_source(info, name):
            return load_layer(self.checkpoint, name, device, layout="packed8", rows=rows, cols=cols)

    def check_tiles(self, layer: torch.Tensor) -> None:
        """Decodes a layer that was loaded from what `find_tiles` returned, and throws the weights away.

        Raises
        ------
        TransfuseError, RuntimeError
            The layer is corrupt; the message names the file and the tensor.
        """
        assert not isinstance(self.part.experts, range)
        with _named_source(self.info, _name_of(self.info, self.part.experts)):
            _decode_checked(layer, len(self.part.rows), len(self.part.cols), self.dtype)

    def _compact(self) -> torch.Tensor:
        """Returns the weights with the strides and the offset that this tensor claims, for ops that rely on them."""
        dense = self.dense()
        is_compact = dense.is_contiguous() and dense.storage_offset() == 0
        return dense if is_compact else dense.clone(memory_format=torch.contiguous_format)

    # torch does the following without asking __torch_dispatch__.

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        memo[id(self)] = dense = self._compact()
        return dense

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._compact().__reduce_ex__(protocol)

    def __dlpack__(self, *arguments: Any, **options: Any) -> Any:
        return self._compact().__dlpack__(*arguments, **options)

    def numpy(self, *arguments: Any, **options: Any) -> Any:
        """Returns what the dense tensor returns."""
        return self._compact().numpy(*arguments, **options)

    def tolist(self) -> Any:
        """Returns what the dense tensor returns."""
        return self._compact().tolist()

    def data_ptr(self) -> NoReturn:
        """Raises RuntimeError, since there is no memory yet."""
        raise RuntimeError(f"{self!r} has no memory before it is copied")

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Cuts lazily, decodes where a copy goes, and hands dense tensors to any other operation."""
        kwargs = kwargs or {}
        for index, schema in enumerate(func._schema.arguments):
            argument = args[index] if index < len(args) else kwargs.get(schema.name)
            if isinstance(argument, LazyWeight) and schema.alias_info is not None and schema.alias_info.is_write:
                raise TypeError(f"{func} would write to {argument!r}, which can only be read")
        handle = _HANDLERS.get(func)
        if handle is not None:
            result = handle(*args, **kwargs)
            if result is not NotImplemented:
                return result
        dense_args, dense_kwargs = tree_map_only(LazyWeight, LazyWeight._compact, (args, kwargs))
        return func(*dense_args, **dense_kwargs)


def find_fp8_loads(loads: Iterable[Any]) -> list[LazyWeight]:
    """Returns the weights among the arguments of loads of a parameter that are FP8 with scales in their files."""
    values = (value for load in loads for value in load.arguments.values())
    return [value for value in values if isinstance(value, LazyWeight) and value.is_scaled_fp8()]


def _widen(part: range, size: int) -> tuple[int, int]:
    """Returns the first index and the number of indices of the whole tiles that hold a range."""
    first = part.start // _TILE_SIZE * _TILE_SIZE
    return first, min(-(-part.stop // _TILE_SIZE) * _TILE_SIZE, size) - first


def _name_of(info: TensorInfo, expert: int | None) -> str:
    return info.name if expert is None else f"{info.name}[{expert}]"


def _decode_checked(layer: torch.Tensor, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """Decodes a layer; corrupt rANS words, which loading does not notice, raise an error on a GPU, too."""
    weights = _ops.decode(layer, rows, cols, dtype)
    check_decoded(layer)
    return weights


@contextmanager
def _named_source(info: TensorInfo, name: str) -> Iterator[None]:
    """A block that puts file and tensor in front of the messages of exceptions, unless they name them already."""
    where = f"{info.file}: tensor {name!r}: "
    try:
        yield
    except TransfuseError as failure:
        if where not in failure.message:
            failure.message = where + failure.message
        raise
    except (RuntimeError, ValueError) as failure:
        if failure.args and isinstance(failure.args[0], str):
            failure.args = (where + failure.args[0], *failure.args[1:])
        raise


def _with(lazy: LazyWeight, part: _Part) -> LazyWeight:
    # A view of a tensor that was not made in inference mode is no inference tensor.
    with torch.inference_mode(lazy.is_inference()):
        return LazyWeight(lazy.checkpoint, lazy.info, part)


def _same(lazy: LazyWeight) -> LazyWeight:
    return _with(lazy, lazy.part)


def _slice(lazy: LazyWeight, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    if step != 1:
        return NotImplemented
    first, last, _ = slice(start, end).indices(lazy.shape[dim])
    return _with(lazy, lazy.part.cut(dim % lazy.dim(), first, max(first, last)))


def _split(lazy: LazyWeight, size: int, dim: int = 0) -> Any:
    length = lazy.shape[dim]
    if size <= 0 or not length:
        return NotImplemented
    return [_slice(lazy, dim, first, first + size) for first in range(0, length, size)]


def _split_with_sizes(lazy: LazyWeight, sizes: list[int], dim: int = 0) -> Any:
    if sum(sizes) != lazy.shape[dim] or min(sizes, default=0) < 0:
        return NotImplemented  # the dense tensor raises the error
    lasts = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [_slice(lazy, dim, last - size, last) for last, size in zip(lasts, sizes, strict=True)]


def _select(lazy: LazyWeight, dim: int, index: int) -> Any:
    experts = lazy.part.experts
    if not isinstance(experts, range) or dim % lazy.dim() or not -len(experts) <= index < len(experts):
        return NotImplemented
    return _with(lazy, dataclasses.replace(lazy.part, experts=experts[index]))


def _unbind(lazy: LazyWeight, dim: int = 0) -> Any:
    if lazy.dim() != 3 or dim % 3:
        return NotImplemented
    return [_select(lazy, 0, index) for index in range(lazy.shape[0])]


def _view(lazy: LazyWeight, shape: list[int]) -> Any:
    wanted = torch.empty(lazy.shape, device="meta").view(shape).shape
    return _same(lazy) if wanted == lazy.shape else NotImplemented


def _copy_to(
    lazy: LazyWeight, *, dtype: torch.dtype | None = None, device: torch.device | None = None, **others: Any
) -> torch.Tensor:
    """Decodes on the device that the copy will be on."""
    where = device or lazy.device
    if where.type == "meta":
        return torch.empty(lazy.shape, dtype=dtype or lazy.dtype, device=where)
    return lazy.dense(where if where.type == "cuda" else "cpu").to(dtype=dtype, device=where)


def _copy(target: torch.Tensor, lazy: LazyWeight, non_blocking: bool = False) -> torch.Tensor:
    """Fills a dense tensor. Nothing is read for a loader that runs on the meta device, to count what it would copy."""
    device = target.device
    if device.type == "meta":
        return target.copy_(torch.empty(lazy.shape, dtype=lazy.dtype, device="meta"))
    return target.copy_(lazy.dense(device if device.type == "cuda" else "cpu"), non_blocking)


_HANDLERS: dict[Any, Callable[..., Any]] = {
    _aten.slice.Tensor: _slice,
    _aten.split.Tensor: _split,
    _aten.split_with_sizes.default: _split_with_sizes,
    _aten.select.int: _select,
    _aten.unbind.int: _unbind,
    _aten.detach.default: _same,
    _aten.alias.default: _same,
    _aten.view.default: _view,
    _aten._unsafe_view.default: _view,
    _aten._to_copy.default: _copy_to,
    _aten.copy_.default: _copy,
    # In inference mode torch hands us these ops rather than the ones that they consist of.
    **{op: op.decompose for op in (_aten.narrow.default, _aten.chunk.default)},
}


def join_rows(matrices: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Joins neighbouring lazy matrices whose rows follow each other in one tensor of a file; the order stays."""
    joined: list[torch.Tensor] = []
    for matrix in matrices:
        last = joined[-1] if joined else None
        if isinstance(last, LazyWeight) and isinstance(matrix, LazyWeight) and _continues(last, matrix):
            joined[-1] = _with(
                last, dataclasses.replace(last.part, rows=range(last.part.rows.start, matrix.part.rows.stop))
            )
        else:
            joined.append(matrix)
    return joined


def _continues(first: LazyWeight, second: LazyWeight) -> bool:
    a, b = first.part, second.part
    return (
        (first.checkpoint, first.info.name, first.dtype) == (second.checkpoint, second.info.name, second.dtype)
        and (a.experts, a.cols, a.rows.stop) == (b.experts, b.cols, b.rows.start)
        and not isinstance(a.experts, range)
    )


def is_compressed(files: Iterable[str]) -> bool:
    """Returns whether the headers of some files of weights say that one of them is compressed."""
    return find_compressed(files) is not None


def iterate_dense(
    files: Iterable[str], *, skip: Callable[[str], bool] = lambda name: False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of files of weights by the source's names, each with the source's shape and dtype.

    Parameters
    ----------
    files : iterable of str
        `.safetensors` files, compressed or not.
    skip : callable
        Whether a tensor of this name is not wanted.

    Yields
    ------
    name : str
    tensor : torch.Tensor
        A `LazyWeight` if the tensor is compressed, else a dense tensor on the CPU.

    Raises
    ------
    TransfuseError
        A file cannot be opened, or has a tensor that a file before it has, too.
    """
    from safetensors import SafetensorError, safe_open

    owners: dict[str, str] = {}

    def take(name: str, path: str) -> bool:
        if owners.setdefault(name, path) != path:
            raise refuse_second(path, name, owners[name])
        return not skip(name)

    for path in files:
        # The library's errors name the file, as those of safetensors do not.
        checkpoint = Checkpoint(path) if is_file_compressed(path) else None  # lazy weights hold it open
        try:
            dense = safe_open(path, framework="pt")
        except SafetensorError as failure:
            raise make_error(Status.TRF_ERR_FORMAT, f"{path}: {failure}") from failure
        with dense:
            if checkpoint is None:
                for name in dense.keys():
                    if take(name, path):
                        yield name, dense.get_tensor(name)
                continue
            for name, info in checkpoint.tensors.items():
                if take(name, path):
                    yield name, LazyWeight(checkpoint, info) if info.compressed else dense.get_tensor(name)
