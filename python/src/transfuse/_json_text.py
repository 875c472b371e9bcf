# SPDX-License-Identifier: Apache-2.0
"""Reading files that strangers wrote, and the JSON in them."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import Any, BinaryIO


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading. To open a FIFO that nobody writes to does not hang.

    Raises
    ------
    OSError
        It cannot be opened, or is a FIFO, a device or a folder.
    """
    return open(path, "rb", opener=_open_at_once)


def _open_at_once(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", path)


def read_text(path: str | os.PathLike[str]) -> str:
    """Returns the text of a file, with or without a byte order mark.

    Raises
    ------
    OSError
        As `open_regular`.
    ValueError
        It is no UTF-8.
    """
    with open_regular(path) as file:
        return file.read().decode("utf-8-sig")


def parse_json(text: str | bytes) -> Any:
    """Returns what a text holds, as Python's json module reads it.

    Raises
    ------
    ValueError
        It is no JSON, or it is nested more deeply than Python reads.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
