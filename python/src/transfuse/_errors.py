# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the package: one family, with a class for each kind of status of the C library."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """The status that a call of the library returns (`trf_status`); the names are those of the header."""

    TRF_OK = 0
    TRF_ERR_ARGUMENT = 1
    TRF_ERR_MEMORY = 2
    TRF_ERR_IO = 3
    TRF_ERR_EXISTS = 4
    TRF_ERR_NOT_FOUND = 5
    TRF_ERR_TRUNCATED = 6
    TRF_ERR_MAGIC = 7
    TRF_ERR_VERSION = 8
    TRF_ERR_HEADER = 9
    TRF_ERR_TABLE = 10
    TRF_ERR_TILE = 11
    TRF_ERR_CHECKSUM = 12
    TRF_ERR_RANS = 13
    TRF_ERR_FORMAT = 14
    TRF_ERR_UNSUPPORTED = 15
    TRF_ERR_MISMATCH = 16
    TRF_ERR_SHAPE = 17
    TRF_ERR_DEVICE = 18
    TRF_ERR_CUDA = 19
    TRF_ERR_CANCELLED = 20
    TRF_ERR_LIMIT = 21


class TransfuseError(Exception):
    """Any failure of transfuse.

    Attributes
    ----------
    status : Status
        Name and number of the library's status, such as ``Status.TRF_ERR_TABLE``.
    message : str
        One line from the library, which names file, tensor and offset, what was expected and what was found.
    offset : int or None
        The byte at fault, counted from the beginning of the file or blob; None if there is none.
    cuda : int
        The ``cudaError_t`` of a ``TRF_ERR_CUDA``, else 0.
    """

    def __init__(self, status: Status, message: str, offset: int | None = None, cuda: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.offset = offset
        self.cuda = cuda

    def __str__(self) -> str:
        return f"{self.message} [{self.status.name}]"

    def __reduce__(self) -> tuple[type[TransfuseError], tuple[Status, str, int | None, int]]:
        return type(self), (self.status, self.message, self.offset, self.cuda)


class ArgumentError(TransfuseError, ValueError):
    """An argument is out of its documented range."""


class ShapeError(TransfuseError, ValueError):
    """Shapes do not fit each other."""


class OutOfMemoryError(TransfuseError, MemoryError):
    """An allocation failed."""


class InputOutputError(TransfuseError, OSError):
    """The operating system refused to open, read, write, sync or rename."""


class OutputExistsError(TransfuseError, FileExistsError):
    """The target exists, and overwriting was not asked for."""


class NotFoundError(TransfuseError, FileNotFoundError):
    """There is no such file or tensor."""


class DataError(TransfuseError, ValueError):
    """A file or blob is malformed, truncated or corrupt, or not one of transfuse; `status` tells which."""


class UnsupportedError(TransfuseError, NotImplementedError):
    """The request is valid, but this build cannot do it, or does not read that version of the format."""


class MismatchError(TransfuseError):
    """Decoded weights differ from the ones they are compared with."""


class DeviceError(TransfuseError, RuntimeError):
    """There is no such device, or a CUDA call failed."""


class CancelledError(TransfuseError):
    """The caller's progress function asked to stop."""


class LimitError(TransfuseError):
    """What a file asks for is more than the caller's limits allow; nothing of it was written or allocated."""


_CLASSES: dict[Status, type[TransfuseError]] = {
    Status.TRF_ERR_ARGUMENT: ArgumentError,
    Status.TRF_ERR_MEMORY: OutOfMemoryError,
    Status.TRF_ERR_IO: InputOutputError,
    Status.TRF_ERR_EXISTS: OutputExistsError,
    Status.TRF_ERR_NOT_FOUND: NotFoundError,
    Status.TRF_ERR_TRUNCATED: DataError,
    Status.TRF_ERR_MAGIC: DataError,
    Status.TRF_ERR_VERSION: UnsupportedError,
    Status.TRF_ERR_HEADER: DataError,
    Status.TRF_ERR_TABLE: DataError,
    Status.TRF_ERR_TILE: DataError,
    Status.TRF_ERR_CHECKSUM: DataError,
    Status.TRF_ERR_RANS: DataError,
    Status.TRF_ERR_FORMAT: DataError,
    Status.TRF_ERR_UNSUPPORTED: UnsupportedError,
    Status.TRF_ERR_MISMATCH: MismatchError,
    Status.TRF_ERR_SHAPE: ShapeError,
    Status.TRF_ERR_DEVICE: DeviceError,
    Status.TRF_ERR_CUDA: DeviceError,
    Status.TRF_ERR_CANCELLED: CancelledError,
    Status.TRF_ERR_LIMIT: LimitError,
}


def make_error(status: int, message: str, offset: int | None = None, cuda: int = 0) -> TransfuseError:
    """Returns the exception of a status."""
    known = Status(status)
    return _CLASSES[known](known, message, offset, cuda)


def argument_error(message: str) -> TransfuseError:
    """Returns the exception for an argument that does not even reach the library."""
    return make_error(Status.TRF_ERR_ARGUMENT, message)
