# SPDX-License-Identifier: Apache-2.0
"""transfuse: entropy-coded weights of large language models, decoded where they are used.

Checkpoints are compressed, verified, decompressed and listed by `compress`, `verify`, `decompress` and `info`; a
`Layer` is one compressed matrix in host memory. All of it runs on the CPU and needs NumPy alone. Functions may be
called from several threads at once, and do not hold the interpreter's lock while the library works. Failures are
exceptions of one family, `TransfuseError`. docs/python.md in the source tree is the page for users.
"""

from __future__ import annotations

import importlib

from transfuse import _hook

TYPE_CHECKING = False  # type checkers see True; to import typing takes as long as all of this
if TYPE_CHECKING:
    from typing import Any

    from transfuse._checkpoint import (
        CheckpointInfo,
        CheckpointReport,
        LeftTensors,
        Note,
        Progress,
        TensorInfo,
        compress,
        decompress,
        info,
        verify,
    )
    from transfuse._errors import (
        ArgumentError,
        CancelledError,
        DataError,
        DeviceError,
        InputOutputError,
        LimitError,
        MismatchError,
        NotFoundError,
        OutOfMemoryError,
        OutputExistsError,
        ShapeError,
        Status,
        TransfuseError,
        UnsupportedError,
    )
    from transfuse._layer import Layer
    from transfuse._layout_choice import LayoutChoice, choose_layouts
    from transfuse._options import Granularity
    from transfuse._results import LayerInfo, LayerReport

__all__ = [
    "ArgumentError",
    "CancelledError",
    "CheckpointInfo",
    "CheckpointReport",
    "DataError",
    "DeviceError",
    "Granularity",
    "InputOutputError",
    "Layer",
    "LayerInfo",
    "LayerReport",
    "LayoutChoice",
    "LeftTensors",
    "LimitError",
    "MismatchError",
    "NotFoundError",
    "Note",
    "OutOfMemoryError",
    "OutputExistsError",
    "Progress",
    "ShapeError",
    "Status",
    "TensorInfo",
    "TransfuseError",
    "UnsupportedError",
    "choose_layouts",
    "compress",
    "decompress",
    "info",
    "verify",
]

# The modules of the names above. They are imported, and NumPy with them, when the first name is used, since the command
# needs none of them and would take several times as long to start.
_MODULES = ("_checkpoint", "_errors", "_layer", "_layout_choice", "_options", "_results")

# Names that are imported, along with torch or transformers, only when they are used, and their modules.
_LATER = {
    "TransfuseConfig": "transfuse.hf",
    "TransfuseEmbedding": "transfuse.torch",
    "TransfuseLinear": "transfuse.torch",
    "compress_model": "transfuse.torch",
    "is_exact": "transfuse.torch",
    "set_exact": "transfuse.torch",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from transfuse._library import library

        return str(library().trf_version().decode())
    if name in __all__:
        for module in _MODULES:
            found = importlib.import_module(f"transfuse.{module}")
            if hasattr(found, name):
                return globals().setdefault(name, getattr(found, name))
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'transfuse' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LATER})


_hook.install()
