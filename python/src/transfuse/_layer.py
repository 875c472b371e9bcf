# SPDX-License-Identifier: Apache-2.0
"""One compressed matrix in host memory."""

from __future__ import annotations

import ctypes
import os
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from transfuse import _structs as s
from transfuse._arrays import Array, copy_aligned, numpy_dtype, take_activations, take_weights
from transfuse._errors import ArgumentError, DataError, Status, argument_error
from transfuse._library import call, library
from transfuse._options import Granularity, check_threads, encode_path, encode_text, fill_encode_options, make_limits
from transfuse._results import LayerInfo, LayerReport, make_layer_info, make_layer_report

# The class bits of blobs that were encoded for size (TRF_FAVOR_SIZE): pairs.
PAIR_CLASS_BITS = 4


class Layer:
    """A compressed layer in host memory, validated (`trf_layer`).

    `encode`, `open`, `from_bytes` and `load` make one. It is immutable, and threads may share it. Its memory is freed
    with the last reference to it.
    """

    _handle: ctypes.c_void_p
    _info: LayerInfo
    _dtype: s.Dtype
    _report: LayerReport | None
    _read: Callable[[], bytes]

    def __init__(self) -> None:
        raise TypeError("a Layer is made by Layer.encode, Layer.open, Layer.from_bytes or Layer.load")

    @classmethod
    def encode(
        cls,
        array: Array,
        *,
        dtype: str | None = None,
        codec: str = "auto",
        favor: str = "speed",
        bits: float | None = None,
        granularity: Granularity | None = None,
        threads: int = 0,
        verify: bool = True,
    ) -> Layer:
        """Encodes a matrix.

        Parameters
        ----------
        array : numpy.ndarray, [rows][cols]
            float32, float16, int8, or the bfloat16, float8_e4m3fn or float8_e5m2 of ml_dtypes. uint16 and uint8 hold
            the bits of the latter if `dtype` says so. It is copied if it is not contiguous.
        dtype : str, optional
            "bf16", "fp8_e4m3", "fp8_e5m2" and so on: what the elements are.
        codec, favor, bits, granularity, threads, verify
            As in `transfuse.compress`; float32 needs the codec bf16, which rounds, or int.

        Returns
        -------
        Layer
            Its `report` has the encoding's results. The bytes do not depend on `threads`.

        Raises
        ------
        ArgumentError
            Also if the codec does not take the dtype, or the array has another byte order.
        ShapeError, MismatchError, OutOfMemoryError
        TypeError
            `array` is no numpy.ndarray.
        """
        weights, known = take_weights(array, dtype)
        options = s.EncodeOptionsStruct()
        fill_encode_options(
            options,
            codec=codec,
            favor=favor,
            bits=bits,
            granularity=granularity,
            threads=threads,
            verify=verify,
        )
        return cls._encode(weights, known, options)

    @classmethod
    def encode_like(cls, array: Array, info: LayerInfo, *, dtype: str | None = None) -> Layer:
        """Encodes a matrix as another one was encoded by a lossless codec, or by bf16.

        Parameters
        ----------
        array : numpy.ndarray, [rows][cols]
        info : LayerInfo
            What the blob of the other one says. If the weights are the same and this version's encoder made that blob,
            the bytes are the same, too. Where that one is BF16 that was FP8 and this one is not, the codec is bf16.
        dtype : str, optional
            As in `encode`.

        Raises
        ------
        ArgumentError, ShapeError, MismatchError, OutOfMemoryError
            As in `encode`. ArgumentError also for the codec int, whose options a blob does not keep.
        """
        if not isinstance(info, LayerInfo):
            raise TypeError(f"info must be a LayerInfo, not {type(info).__name__}")
        if info.codec == "int":
            raise argument_error("a blob of the codec int does not say how it was quantized")
        weights, known = take_weights(array, dtype)
        options = s.EncodeOptionsStruct()
        favor = "size" if info.class_bits == PAIR_CLASS_BITS else "speed"
        fill_encode_options(options, codec=info.codec, favor=favor, bits=None, granularity=None, threads=0, verify=True)
        options.probability_bits, options.slab_cols = info.probability_bits, info.slab_cols
        try:
            return cls._encode(weights, known, options)
        except ArgumentError:
            if (info.codec, known) != ("fp8_e4m3", s.Dtype.BF16):
                raise
            options.codec = s.Codec.BF16
            return cls._encode(weights, known, options)

    @classmethod
    def _encode(cls, weights: npt.NDArray[Any], dtype: s.Dtype, options: s.EncodeOptionsStruct) -> Layer:
        matrix = s.MatrixStruct()
        library().trf_matrix_init(ctypes.byref(matrix))
        matrix.weights, matrix.dtype = weights.ctypes.data, dtype
        matrix.rows, matrix.cols = weights.shape
        blob, size, report = ctypes.c_void_p(), ctypes.c_uint64(), s.LayerReportStruct()
        outputs = ctypes.byref(blob), ctypes.byref(size), ctypes.byref(report)
        call("trf_encode_layer", ctypes.byref(matrix), ctypes.byref(options), *outputs)
        try:
            # This memory comes from malloc, so that it is aligned as a blob has to be.
            layer = cls._from_memory(blob, size.value, lambda: library().trf_free(blob))
        except BaseException:
            library().trf_free(blob)
            raise
        layer._report = make_layer_report(report)
        return layer

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Layer:
        """Maps a ``.trf`` file read-only and validates it. The file must not be changed while the layer lives.

        Raises
        ------
        NotFoundError, InputOutputError, DataError, UnsupportedError
        """
        handle = ctypes.c_void_p()
        call("trf_layer_open", encode_path(path), ctypes.byref(handle))
        full_path = os.path.abspath(path)

        def read() -> bytes:
            with open(full_path, "rb") as file:
                return file.read()

        return cls._from_handle(handle, lambda: None, read)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview | Array) -> Layer:
        """Makes a layer from a blob (the content of a ``.trf`` file), which is copied and validated.

        Raises
        ------
        DataError, UnsupportedError
        """
        copy = copy_aligned(data)
        # The lambda's reference keeps the array.
        return cls._from_memory(ctypes.c_void_p(copy.ctypes.data), copy.size, lambda: copy.size)

    @classmethod
    def load(
        cls,
        checkpoint: str | os.PathLike[str],
        tensor: str,
        *,
        max_output_bytes: int | None = None,
        max_memory_bytes: int | None = None,
    ) -> Layer:
        """Reads one compressed tensor of a checkpoint to memory, through a file in the temporary folder.

        Parameters
        ----------
        checkpoint : path
            A ``.safetensors`` file, an index, or a folder.
        tensor : str
            The source's name; an expert of a 3-D tensor is "name[3]".
        max_output_bytes, max_memory_bytes : int, optional
            The most that the blob may have, on disk and then in memory, and the most memory that finding and checking
            it may take, as in `transfuse.compress`.

        Raises
        ------
        NotFoundError
            There is no such checkpoint, tensor or expert.
        ArgumentError
            The tensor is not compressed, or one of experts, and no expert is named.
        InputOutputError, DataError, UnsupportedError, LimitError
        """
        limits = make_limits(max_output_bytes, max_memory_bytes)
        with tempfile.TemporaryDirectory(prefix="transfuse-") as folder:
            path = os.path.join(folder, "layer.trf")
            names = encode_path(checkpoint), encode_text(tensor, "tensor"), encode_path(path)
            call("trf_extract_layer_within", *names, 0, ctypes.byref(limits))
            return cls.from_bytes(np.fromfile(path, np.uint8))

    @classmethod
    def _from_memory(cls, blob: ctypes.c_void_p, size: int, free: Callable[[], object]) -> Layer:
        """Makes a layer of a blob in memory, which it takes over if it succeeds."""
        handle = ctypes.c_void_p()
        call("trf_layer_from_memory", blob, size, ctypes.byref(handle))
        return cls._from_handle(handle, free, lambda: ctypes.string_at(blob, size))

    @classmethod
    def _from_handle(cls, handle: ctypes.c_void_p, free: Callable[[], object], read: Callable[[], bytes]) -> Layer:
        info = s.LayerInfoStruct()
        library().trf_layer_get_info(handle, ctypes.byref(info))
        layer = cls.__new__(cls)
        layer._handle, layer._read, layer._report = handle, read, None
        layer._info, layer._dtype = make_layer_info(info), s.Dtype(info.dtype)
        # At the end of the process all memory is freed anyway, and threads may still use the layer.
        weakref.finalize(layer, _free_layer, handle, free).atexit = False
        return layer

    @property
    def info(self) -> LayerInfo:
        """What the blob says of itself."""
        return self._info

    @property
    def report(self) -> LayerReport | None:
        """The results of the encoding; None for a layer that was not made by `encode`."""
        return self._report

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._info.rows, self._info.cols

    def __repr__(self) -> str:
        info = self._info
        bits = 8 * info.blob_bytes / (info.rows * info.cols)
        return f"<transfuse.Layer {info.rows}x{info.cols} {info.dtype}, codec {info.codec}, {bits:.2f} bits a weight>"

    def to_bytes(self) -> bytes:
        """Returns the blob, as a ``.trf`` file holds it. If the layer was opened from a file, that is read again.

        Raises
        ------
        DataError
            The file has changed since.
        """
        data = self._read()
        if len(data) != self._info.blob_bytes:
            raise DataError(
                Status.TRF_ERR_TRUNCATED,
                f"the layer's file has {len(data)} bytes, and had {self._info.blob_bytes} when it was opened",
            )
        return data

    def decode(self, *, threads: int = 0) -> Array:
        """Decodes the whole layer.

        Parameters
        ----------
        threads : int
            0 for one for each core.

        Returns
        -------
        numpy.ndarray, [rows][cols]
            The dtype is the source's: float32, float16, int8, or bfloat16, float8_e4m3fn or float8_e5m2 of ml_dtypes;
            where that is not installed, uint16 or uint8 with the same bits. Lossless codecs give the source's bits, the
            codec int on floats the dequantized weights, rounded once.

        Raises
        ------
        DataError
            A tile is corrupt.
        """
        weights: Array = np.empty(self.shape, numpy_dtype(self._dtype))
        call("trf_layer_decode", self._handle, weights.ctypes.data, weights.nbytes, check_threads(threads))
        return weights

    def matmul(self, x: Array, *, threads: int = 0) -> npt.NDArray[np.float32]:
        """Multiplies on the CPU: y = x . W^T, decoding tile by tile; the matrix is never held whole.

        Parameters
        ----------
        x : numpy.ndarray, [..., cols]
            float32, float16 or bfloat16, which are widened to F32.
        threads : int
            0 for one for each core. Results do not depend on it.

        Returns
        -------
        numpy.ndarray of float32, [..., rows]

        Raises
        ------
        ArgumentError
            x has another dtype or byte order.
        ShapeError
            The last side of x is not the layer's columns.
        DataError
            A tile is corrupt.
        """
        rows = take_activations(x, self._info.cols)
        y: npt.NDArray[np.float32] = np.empty((len(rows), self._info.rows), np.float32)
        count = check_threads(threads)
        if len(rows):
            call("trf_layer_matmul_cpu", self._handle, rows.ctypes.data, len(rows), y.ctypes.data, count)
        return y.reshape(*x.shape[:-1], self._info.rows)

    def __reduce__(self) -> tuple[Callable[[bytes], Layer], tuple[bytes]]:
        return Layer.from_bytes, (self.to_bytes(),)


def _free_layer(handle: ctypes.c_void_p, free: Callable[[], object]) -> None:
    library().trf_layer_free(handle)
    free()
