# SPDX-License-Identifier: Apache-2.0
"""How much of a GPU's memory a checkpoint takes."""

from __future__ import annotations

import dataclasses
import math

from transfuse._checkpoint import CheckpointInfo, TensorInfo
from transfuse._results import LayerInfo

# The GPU memory that CUDA, cuBLASLt and a framework take before there is any model.
MARGIN_BYTES = 1 << 30

# A directory has 8 bytes for each slab of 32 rows and 4 for each slot of the table and each scale pair, in pieces
# aligned to 256 bytes.
_SLAB_ROWS, _SLAB_BYTES, _SLOT_BYTES, _SCALE_PAIR_BYTES, _ALIGNMENT = 32, 8, 4, 4, 256

# A packed layer (format/PACKED.md) has tiles of 64x32 weights at 12 bits, and a line for 32 of them side by side.
_PACKED_HEAD_BYTES = 256
_PACKED_ROWS, _PACKED_COLS, _PACKED_TILE_BYTES = 64, 32, 3072
_LINE_TILES, _LINE_BYTES = 32, 128
# A tile of packed FP8 has a byte a weight; weights that share a scale are blocks of a multiple of 64x128.
_PACKED8_TILE_BYTES, _PACKED8_BLOCK = 2048, 128
_MATRIX = 2  # dimensions; more are experts


@dataclasses.dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a checkpoint takes in a GPU's memory.

    They are for tensors as they are stored, directories beside the compressed ones, room to decode the largest layer,
    and a margin.
    """

    weights: int
    directories: int
    workspace: int
    margin: int = MARGIN_BYTES

    @property
    def total(self) -> int:
        """The sum of them all."""
        return self.weights + self.directories + self.workspace + self.margin


def _align(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _directory_bytes(tensor: TensorInfo) -> int:
    layer = tensor.layer
    if layer is None:
        return 0
    slabs = math.ceil(layer.rows / _SLAB_ROWS) * math.ceil(layer.cols / layer.slab_cols)
    table = (_SLOT_BYTES << layer.probability_bits) + _SCALE_PAIR_BYTES * _count_scale_pairs(layer)
    return tensor.blobs * (_align(slabs * _SLAB_BYTES) + _align(table) + _ALIGNMENT)


def _count_scale_pairs(layer: LayerInfo) -> int:
    """Returns how many scale pairs a directory has: one for each scale of BF16 that is coded as FP8."""
    if not is_scaled_fp8(layer):
        return 0
    if layer.granularity == "channel":
        return layer.rows
    side = int(layer.granularity.partition(":")[2] or max(layer.rows, layer.cols))
    return math.ceil(layer.rows / side) * math.ceil(layer.cols / side)


def packed_bytes(rows: int, cols: int) -> int:
    """Returns how many bytes a packed layer without stored tiles takes; nearly all layers are like that."""
    return _tiled_bytes(rows, cols, _PACKED_TILE_BYTES)


def packed8_bytes(rows: int, cols: int) -> int:
    """Returns how many bytes a packed FP8 layer takes."""
    return _tiled_bytes(rows, cols, _PACKED8_TILE_BYTES)


def may_become_packed8(layer: LayerInfo) -> bool:
    """Returns whether "packed" gives a packed FP8 layer, unless it has too many weights that are no FP8."""
    blocks, _, size = layer.granularity.partition(":")
    fits = blocks in ("none", "tensor") or (blocks == "scale-block" and int(size) % _PACKED8_BLOCK == 0)
    return layer.codec == "fp8_e4m3" and fits


def layer_packed_bytes(layer: LayerInfo) -> int:
    """Returns how many bytes a layer of bf16 or fp8_e4m3 takes if it is packed, as packed FP8 where it can be that."""
    return _tiled_bytes(
        layer.rows, layer.cols, _PACKED8_TILE_BYTES if may_become_packed8(layer) else _PACKED_TILE_BYTES
    )


def _tiled_bytes(rows: int, cols: int, tile_bytes: int) -> int:
    bands, tiles = math.ceil(rows / _PACKED_ROWS), math.ceil(cols / _PACKED_COLS)
    lines = bands * math.ceil(tiles / _LINE_TILES)
    return _align(_PACKED_HEAD_BYTES + lines * _LINE_BYTES) + bands * tiles * tile_bytes


def is_scaled_fp8(layer: LayerInfo) -> bool:
    """Returns whether the weights of a blob are BF16 numbers that are coded as the FP8 with scales that they were."""
    return (layer.codec, layer.dtype) == ("fp8_e4m3", "BF16")


def is_bf16_layer(layer: LayerInfo) -> bool:
    """Returns whether the weights of a blob are BF16 numbers, as they are or as the FP8 with scales that they were."""
    return layer.codec == "bf16" or is_scaled_fp8(layer)


def _may_be_packed(tensor: TensorInfo, layer: LayerInfo) -> bool:
    return is_bf16_layer(layer) or (layer.codec == "fp8_e4m3" and len(tensor.shape) <= _MATRIX)


def _can_be_plain(layer: LayerInfo) -> bool:
    return layer.codec == "fp16" or is_bf16_layer(layer)


def count_layout_bytes(checkpoint: CheckpointInfo, layout: str) -> int:
    """Estimates what the tensors take if all that can be are packed, or plain.

    Experts in tensors of their own count as others, though plain ones lie coded.
    """
    total = 0
    for tensor in checkpoint.tensors:
        layer = tensor.layer
        if layout == "packed" and layer is not None and _may_be_packed(tensor, layer):
            # Experts do not lie in packed FP8.
            each = packed_bytes(layer.rows, layer.cols) if len(tensor.shape) > _MATRIX else layer_packed_bytes(layer)
            total += tensor.blobs * each
        elif layout == "plain" and layer is not None and _can_be_plain(layer) and len(tensor.shape) == _MATRIX:
            total += 2 * layer.rows * layer.cols
        else:
            total += tensor.bytes
    return total


def get_memory_need(checkpoint: CheckpointInfo) -> MemoryNeed:
    """Returns what a checkpoint takes if all its compressed tensors stay compressed."""
    return MemoryNeed(
        weights=checkpoint.bytes,
        directories=sum(_directory_bytes(tensor) for tensor in checkpoint.tensors),
        workspace=max((2 * math.prod(tensor.shape) for tensor in checkpoint.tensors if tensor.layer), default=0),
    )
