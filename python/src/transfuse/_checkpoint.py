# SPDX-License-Identifier: Apache-2.0
"""Whole checkpoints: a .safetensors file, a model.safetensors.index.json, or a folder that holds either."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from transfuse import _structs as s
from transfuse._library import call, library
from transfuse._options import (
    Granularity,
    check_callable,
    check_flag,
    check_threads,
    encode_path,
    encode_text,
    fill_encode_options,
    granularity_name,
    make_limits,
)
from transfuse._results import LayerInfo, make_layer_info
from transfuse._threads import Cancel, call_interruptible

# It is called with the name of the tensor at work, and with how many bytes of the source checkpoint are done, and how
# many there are.
Progress: TypeAlias = Callable[[str, int, int], object]
# It is called with a line for the user, for instance about the part of a checkpoint that will not load afterwards.
Note: TypeAlias = Callable[[str], object]
Path: TypeAlias = "str | os.PathLike[str]"


class LeftTensors(NamedTuple):
    """The number of tensors that stayed as they were, and their bytes."""

    tensors: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class CheckpointReport:
    """Totals over a checkpoint (`trf_checkpoint_report`), or over all models of a pipeline.

    `source_bytes` are those of all tensors uncompressed, `output_bytes` those of all tensors as the compressed
    checkpoint holds them; `compressed_source_bytes`, `compressed_bytes` and `compressed_weights` count only the
    compressed tensors. `rounded_tensors` counts F32 tensors that the codec bf16 rounded, and `relative_rms_error` is
    over the weights that a lossy codec compressed; it is infinite where a finite weight has become infinite. A dry run
    estimates it, as it does sizes, from a sample of the weights.

    `warning` has everything that the user should know about the result, as lines, or ""; it may be cut after 1023
    bytes. `notes` has the same lines, uncut. `models` is 1, or the number of models of a pipeline. `widened_tensors`
    counts F32 tensors that were compressed without loss, since each weight is a BF16 number. `source_file_bytes` and
    `output_file_bytes` are of whole files. `extra_files` and `extra_bytes` count those among them that hold weights and
    were carried over uncompressed; `skipped_files` and `skipped_bytes` were not carried over. `left` says which tensors
    `compress` left as they were, by the reason, such as "F32 without a lossless codec". `compared_files` counts files
    besides the tensors' that `verify` found equal to the source's, and `added_files` those that the source does not
    have. `scaled_fp8_tensors` counts BF16 tensors that `compress` found to be FP8 E4M3 times scales, by the granularity
    of these: "tensor", "channel" or "scale-block:128". `source_fp8_tensors` counts tensors that were FP8 E4M3 with
    scales beside them in the source, likewise. `side_tables` are the tensors of such scales, which are kept for
    `decompress`, and `unused_side_tables` those of them that are of activations or of a KV cache: no product uses them;
    all of them take `side_table_bytes`. `differing_tensors` counts those that `verify` found to agree with the source,
    but not in every bit, as a lossy codec has it: 0 is equality.
    """

    tensors: int
    compressed_tensors: int
    source_bytes: int
    output_bytes: int
    compressed_source_bytes: int
    compressed_bytes: int
    compressed_weights: int
    rounded_tensors: int
    relative_rms_error: float
    peak_buffer_bytes: int
    warning: str
    models: int = 1
    widened_tensors: int = 0
    source_file_bytes: int = 0
    output_file_bytes: int = 0
    extra_files: int = 0
    extra_bytes: int = 0
    skipped_files: int = 0
    skipped_bytes: int = 0
    compared_files: int = 0
    added_files: int = 0
    side_tables: int = 0
    unused_side_tables: int = 0
    side_table_bytes: int = 0
    differing_tensors: int = 0
    scaled_fp8_tensors: dict[str, int] = dataclasses.field(default_factory=dict)
    source_fp8_tensors: dict[str, int] = dataclasses.field(default_factory=dict)
    left: dict[str, LeftTensors] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """One tensor of a checkpoint (`trf_tensor_info`).

    `name`, `dtype` and `shape` are the source's, except that FP8 with scales has the dtype BF16, as which it is loaded
    (`source_bytes` are those of its codes). `bytes` is its size in this checkpoint, and its first byte lies at
    `file_offset` of `file`. `blobs` is 0 if it is not compressed, and 1 or the number of experts if it is; `layer` is
    None, or the first blob's information with exceptions, tiles and bytes summed over all blobs. `is_bare_blob` says
    that the tensor begins as compressed ones do, though neither its name nor the file says so: a state dict of a
    compressed model was written to a file.
    """

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    compressed: bool
    source_bytes: int
    bytes: int
    file_offset: int
    blobs: int
    layer: LayerInfo | None
    is_bare_blob: bool = False

    @property
    def codec(self) -> str | None:
        """The codec's name, such as "bf16"; None for a tensor that is not compressed."""
        return self.layer.codec if self.layer else None

    @property
    def bits(self) -> float:
        """Bits a weight in this checkpoint; 0 for a tensor without weights."""
        weights = 1
        for size in self.shape:
            weights *= size
        return 8 * self.bytes / weights if weights else 0.0


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """What is in a checkpoint: its tensors, in order of the files."""

    path: str
    tensors: tuple[TensorInfo, ...]

    @property
    def source_bytes(self) -> int:
        """Bytes of all tensors, uncompressed."""
        return sum(tensor.source_bytes for tensor in self.tensors)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors in this checkpoint."""
        return sum(tensor.bytes for tensor in self.tensors)


def compress(
    source: Path,
    target: Path,
    *,
    codec: str = "auto",
    favor: str = "speed",
    bits: float | None = None,
    granularity: Granularity | None = None,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    embeddings: bool = False,
    threads: int = 0,
    verify: bool = True,
    overwrite: bool = False,
    store_only: bool = False,
    dry_run: bool = False,
    resume: bool = False,
    skip_extra: Sequence[str] | None = None,
    max_output_bytes: int | None = None,
    max_memory_bytes: int | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
) -> CheckpointReport:
    """Compresses a checkpoint to another one of the same kind: file to file, folder to folder.

    The target appears whole or not at all; Ctrl-C, too, leaves nothing behind, unless `resume` is set. A folder may be
    a pipeline of diffusers, with a ``model_index.json``, each model of which is compressed.

    Parameters
    ----------
    source, target : path
        A ``.safetensors`` file, an index (which stands for its folder), or a folder.
    codec : str
        "auto" (the lossless codec of each tensor's dtype; BF16 that was FP8 with scales is FP8 again), "bf16", "fp16",
        "fp8_e4m3", "fp8_e5m2" or "int".
    favor : str
        "speed" or "size".
    bits : float, optional
        Quantizes floats to so many bits a weight, 2 to 8, scales included; implies the codec int. The codec int without
        `bits` is absmax INT8.
    granularity : str, optional
        Which weights share a scale, with the codec int: "tensor", "channel", "scale-group:G" or "scale-block:B".
    include, exclude : sequence of str, optional
        Globs of the tensors to compress, in place of the usual choice, and of those to leave as they are. Each has to
        match a tensor's name.
    embeddings : bool
        Compress embeddings and what is tied to them, too; not together with `include`, which decides alone.
    threads : int
        0 means one for each core.
    verify : bool
        Read back what is written, decode it, and compare it with the source before the target gets its name.
    overwrite : bool
        Replace a target that exists, atomically.
    store_only : bool
        Also compress what cannot be loaded afterwards: quantized checkpoints and adapters. They are compressed bit for
        bit, and must be decompressed before they are loaded.
    dry_run : bool
        Write nothing: the report says what would be done, with sizes that are estimated from a sample of each tensor.
    resume : bool
        If the call ends early, keep what is encoded, and go on from what such a call of the same source and options
        has left. The target's bytes are the same either way. Not together with `dry_run`.
    skip_extra : sequence of str, optional
        Globs of files that are not to be carried over, by their path below the folder; "original" takes all that is
        below it.
    max_output_bytes, max_memory_bytes : int, optional
        The most that all files of the target may have, and the most memory that the source's files may make the call
        take (`trf_limits` in ``transfuse.h`` says what is counted); fewer `threads` take less. More is `LimitError`,
        before it is written or taken.
    progress : callable, optional
        ``progress(tensor, done_bytes, total_bytes)``, called now and then from another thread. If it returns something
        true, the call ends with `CancelledError`; what it raises ends the call, too, and is passed on.
    note : callable, optional
        ``note(line)``, called from another thread as soon as there is a line of the report's `notes`. What it raises
        ends the call, and is passed on.

    Returns
    -------
    CheckpointReport

    Raises
    ------
    NotFoundError
        There is no such file, or a glob matches no tensor.
    UnsupportedError
        Nothing could load the result, and `store_only` is not set.
    OutputExistsError, InputOutputError, DataError, CancelledError, MismatchError, LimitError
    ArgumentError
        Also if the codec does not take the dtype of a tensor that `include` names.
    """
    options = s.CheckpointOptionsStruct()
    library().trf_checkpoint_options_init(ctypes.byref(options))
    options.embeddings = check_flag(embeddings, "embeddings")
    if embeddings and include is not None:
        raise ValueError("embeddings goes with the usual choice of tensors, not with include")
    fill_encode_options(
        options.encode,
        codec=codec,
        favor=favor,
        bits=bits,
        granularity=granularity,
        threads=threads,
        verify=verify,
    )
    globs = _make_globs(include, "include"), _make_globs(exclude, "exclude")
    options.include, options.exclude = globs
    options.overwrite = check_flag(overwrite, "overwrite")
    options.store_only = check_flag(store_only, "store_only")
    options.dry_run = check_flag(dry_run, "dry_run")
    options.resume = check_flag(resume, "resume")
    options.skip_extra = _make_globs(skip_extra, "skip_extra")
    options.limits = ctypes.pointer(make_limits(max_output_bytes, max_memory_bytes))
    return _run("trf_compress_checkpoint", [encode_path(source), encode_path(target)], options, progress, note)


def decompress(
    path: Path,
    target: Path,
    *,
    threads: int = 0,
    overwrite: bool = False,
    skip_extra: Sequence[str] | None = None,
    max_output_bytes: int | None = None,
    max_memory_bytes: int | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
) -> CheckpointReport:
    """Undoes `compress`: restores the tensors, names and metadata of its source, bit for bit with lossless codecs.

    A ``.trf`` file becomes a safetensors file of one tensor named "weight".

    Parameters
    ----------
    path
        The compressed checkpoint, or a ``.trf`` file.
    target, threads, overwrite, skip_extra, max_output_bytes, max_memory_bytes, progress, note
        As in `compress`.

    Returns
    -------
    CheckpointReport

    Raises
    ------
    NotFoundError, OutputExistsError, InputOutputError, DataError, UnsupportedError, CancelledError, LimitError
    """
    options = _make_options(threads, skip_extra)
    options.limits = ctypes.pointer(make_limits(max_output_bytes, max_memory_bytes))
    options.overwrite = check_flag(overwrite, "overwrite")
    return _run("trf_decompress_checkpoint", [encode_path(path), encode_path(target)], options, progress, note)


def verify(
    path: Path,
    against: Path | None = None,
    *,
    threads: int = 0,
    skip_extra: Sequence[str] | None = None,
    max_memory_bytes: int | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
) -> CheckpointReport:
    """Checks every blob of a compressed checkpoint or ``.trf`` file, and decodes every tile.

    Parameters
    ----------
    path : path
        The compressed checkpoint.
    against : path, optional
        The source checkpoint, with which every tensor is compared: bit for bit, except with the codec int on floats,
        whose error is in the report. Other files are compared, too.
    skip_extra : sequence of str, optional
        Globs of other files that are not compared.
    threads, max_memory_bytes, progress, note
        As in `compress`.

    Returns
    -------
    CheckpointReport

    Raises
    ------
    DataError
        The file is malformed, truncated or corrupt.
    MismatchError
        A tensor differs from that in `against`, and the message names tensor, row and column; or other files differ,
        and the message names them.
    NotFoundError, InputOutputError, UnsupportedError, CancelledError, LimitError
    """
    options = _make_options(threads, skip_extra)
    options.limits = ctypes.pointer(make_limits(max_memory_bytes=max_memory_bytes))
    paths = [encode_path(path), None if against is None else encode_path(against)]
    return _run("trf_verify_checkpoint", paths, options, progress, note)


def info(path: Path, *, max_memory_bytes: int | None = None) -> CheckpointInfo:
    """Lists the tensors of a checkpoint, compressed or not, or of a ``.trf`` file (one tensor, "weight").

    Parameters
    ----------
    path
        The checkpoint.
    max_memory_bytes
        As in `compress`; what Python itself takes for the list is not counted.

    Raises
    ------
    NotFoundError, InputOutputError, DataError, UnsupportedError, LimitError
    """
    checkpoint = ctypes.c_void_p()
    limits = make_limits(max_memory_bytes=max_memory_bytes)
    call("trf_checkpoint_open_within", encode_path(path), ctypes.byref(limits), ctypes.byref(checkpoint))
    try:
        count = library().trf_checkpoint_num_tensors(checkpoint)
        return CheckpointInfo(os.fsdecode(path), tuple(read_tensor_info(checkpoint, index) for index in range(count)))
    finally:
        library().trf_checkpoint_close(checkpoint)


def read_tensor_info(checkpoint: ctypes.c_void_p, index: int) -> TensorInfo:
    """Returns what an open checkpoint says of one of its tensors."""
    tensor = s.TensorInfoStruct()
    call("trf_checkpoint_tensor", checkpoint, index, ctypes.byref(tensor))
    dtype = tensor.dtype.decode("utf-8", "replace")
    layer = make_layer_info(tensor.layer) if tensor.compressed else None
    if layer and layer.codec == "fp8_e4m3" and layer.dtype == "BF16":
        dtype = layer.dtype  # what loading gives, whatever the source has
    return TensorInfo(
        name=tensor.name.decode("utf-8", "replace"),
        file=os.fsdecode(tensor.file),
        dtype=dtype,
        shape=tuple(tensor.shape[: tensor.num_dims]),
        compressed=bool(tensor.compressed),
        source_bytes=tensor.source_bytes,
        bytes=tensor.bytes,
        file_offset=tensor.file_offset,
        blobs=tensor.blobs,
        layer=layer,
        is_bare_blob=bool(tensor.is_bare_blob),
    )


def _make_options(threads: int, skip_extra: Sequence[str] | None) -> s.CheckpointOptionsStruct:
    options = s.CheckpointOptionsStruct()
    library().trf_checkpoint_options_init(ctypes.byref(options))
    options.encode.threads = check_threads(threads)
    options.skip_extra = _make_globs(skip_extra, "skip_extra")
    return options


def _make_globs(globs: Sequence[str] | None, what: str) -> ctypes.Array[ctypes.c_char_p] | None:
    if globs is None:
        return None
    if isinstance(globs, (str, bytes)):
        raise TypeError(f"{what} must be a sequence of globs, not one string")
    if not isinstance(globs, Iterable):
        raise TypeError(f"{what} must be a sequence of globs, not {type(globs).__name__}")
    encoded = [encode_text(glob, f"each of {what}") for glob in globs]
    return (ctypes.c_char_p * (len(encoded) + 1))(*encoded, None)


def _run(
    name: str,
    paths: list[bytes | None],
    options: s.CheckpointOptionsStruct,
    progress: Progress | None,
    note: Note | None,
) -> CheckpointReport:
    """Runs a job on a thread of its own, whose progress function says whether the caller wants to stop."""
    check_callable(progress, "progress")
    check_callable(note, "note")
    report = s.CheckpointReportStruct()
    cancel = Cancel()
    raised: list[BaseException] = []
    notes: list[str] = []

    def call_back(function: Callable[..., object], *arguments: object) -> object:
        """Calls a function of the user's, unless the job is to end anyway; if that raises, the job ends."""
        if cancel.is_set():
            return False
        try:
            return function(*arguments)
        except BaseException as failure:
            raised.append(failure)
            cancel.set()
        return False

    def on_progress(_context: object, tensor: bytes, done: int, total: int) -> int:
        if progress is not None and call_back(progress, tensor.decode("utf-8", "replace"), done, total):
            cancel.set()
        return int(cancel.is_set())

    def on_note(_context: object, line: bytes) -> None:
        notes.append(line.decode("utf-8", "replace"))
        if note is not None:
            call_back(note, notes[-1])

    options.progress = s.ProgressFunction(on_progress)
    options.note = s.NoteFunction(on_note)
    arguments = [*paths, ctypes.byref(options), ctypes.byref(report)]
    try:
        call_interruptible(lambda: call(name, *arguments), cancel)
    finally:
        if raised:
            raise raised[0]
    return _make_report(report, tuple(notes))


def _count_granularities(counts: Iterable[int], block: int) -> dict[str, int]:
    return {granularity_name(granularity, block): tensors for granularity, tensors in enumerate(counts) if tensors}


def _make_report(report: s.CheckpointReportStruct, notes: tuple[str, ...]) -> CheckpointReport:
    apart = ("warning", "scaled_fp8_tensors", "source_fp8_tensors", "left", "notes")
    fields = [field.name for field in dataclasses.fields(CheckpointReport) if field.name not in apart]
    left = {}
    for reason, each in enumerate(report.left):
        if each.tensors:
            text = library().trf_left_reason_text(reason).decode()
            left[text] = LeftTensors(each.tensors, each.bytes)
    return CheckpointReport(
        **{name: getattr(report, name) for name in fields},
        warning=report.warning.decode("utf-8", "replace"),
        scaled_fp8_tensors=_count_granularities(report.scaled_fp8_tensors, 128),
        source_fp8_tensors=_count_granularities(report.source_fp8_tensors, report.source_fp8_block),
        left=left,
        notes=notes,
    )
