# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint takes in a GPU's memory."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path

from transfuse._checkpoint import CheckpointInfo, TensorInfo

# What CUDA, cuBLASLt and a framework keep of a GPU's memory before there is any model.
MARGIN_BYTES = 1 << 30

# A directory has 8 bytes for each slab of 32 rows, 4 for each slot of the table, and pieces aligned to 256 bytes.
_SLAB_ROWS, _SLAB_BYTES, _SLOT_BYTES, _ALIGNMENT = 32, 8, 4, 256


@dataclasses.dataclass(frozen=True)
class MemoryNeed:
    """Bytes in a GPU's memory: tensors as they are stored, directories beside the compressed ones, room to decode the
    largest layer, and a margin."""

    weights: int
    directories: int
    workspace: int
    margin: int = MARGIN_BYTES

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.directories + self.workspace + self.margin


def _align(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _directory_bytes(tensor: TensorInfo) -> int:
    layer = tensor.layer
    if layer is None:
        return 0
    slabs = math.ceil(layer.rows / _SLAB_ROWS) * math.ceil(layer.cols / layer.slab_cols)
    return tensor.blobs * (_align(slabs * _SLAB_BYTES) + _align(_SLOT_BYTES << layer.probability_bits) + _ALIGNMENT)


def measure_need(checkpoint: CheckpointInfo) -> MemoryNeed:
    """Returns what a checkpoint takes whose compressed tensors all stay compressed."""
    return MemoryNeed(
        weights=checkpoint.bytes,
        directories=sum(_directory_bytes(tensor) for tensor in checkpoint.tensors),
        workspace=max((2 * math.prod(tensor.shape) for tensor in checkpoint.tensors if tensor.layer), default=0),
    )


def read_quant_method(path: str | os.PathLike[str]) -> str | None:
    """Returns the `quant_method` of the config.json beside a checkpoint: None without the file, "" without the entry.

    Raises
    ------
    ValueError
        The file is not JSON, or not of an object.
    OSError
    """
    place = Path(path)
    config = (place if place.is_dir() else place.parent) / "config.json"
    if not config.is_file():
        return None
    values = json.loads(config.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{config} is not of a JSON object")
    quantization = values.get("quantization_config")
    return str(quantization.get("quant_method", "")) if isinstance(quantization, dict) else ""
