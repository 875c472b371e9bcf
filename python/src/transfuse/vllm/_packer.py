# SPDX-License-Identifier: Apache-2.0
"""From dense weights on the GPU to the layer that serves: packed, coded, or, where neither is possible, plain.

Packed layers lie side by side in one block, whose size is known before the first of them is there. If each had a block
of its own, which torch rounds up to 2 MiB, a model of 8 billion weights would take a quarter of a GiB more, which vLLM
counts as weights; and so it would in blocks of 256 MiB, the ends of which stay empty.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch.nn import Parameter
from vllm.logger import init_logger

import transfuse.torch as tt
from transfuse import UnsupportedError
from transfuse._memory_need import packed_bytes
from transfuse.torch._load import TensorPart, load_assembled
from transfuse.vllm import _graphs
from transfuse.vllm._lazy_weight import LazyWeight

logger = init_logger("vllm.transfuse")

# A layer of another layout than the coded one begins with a head.
_HEAD_BYTES = 256
# Tiles that may come to be stored when a layer's weights change; a layer takes 4 KiB more for each.
_STORED_ROOM = 16
# Of the places of layers.
_ALIGNMENT = 256
# What torch takes from the driver is rounded up to this.
_ROUNDING = 2 << 20
# Bytes of a stored tile.
_STORED_TILE_BYTES = 4096

_packers: dict[torch.device, Packer] = {}


@dataclasses.dataclass
class Packed:
    """A layer that serves.

    Attributes
    ----------
    buffer : torch.Tensor, uint8, [buffer_bytes]
    key : Parameter, uint8, [256]
        The view of its head by which the ops find it.
    layout : str
        "packed", "coded" or "plain".
    shape : tuple of int
        Rows and columns.
    place : torch.Tensor, uint8, [place_bytes]
        The memory that the layer may take, which begins with the buffer.
    """

    buffer: torch.Tensor
    key: Parameter
    layout: str
    shape: tuple[int, int]
    place: torch.Tensor

    @property
    def dense_bytes(self) -> int:
        """What the weights take in BF16."""
        return 2 * self.shape[0] * self.shape[1]

    def replace(self, weight: torch.Tensor, name: str) -> None:
        """Puts other weights of the same shape in the place of those that are there.

        Weights that fit the layer's window come to lie where the old ones did, under graphs that have captured it.
        Others are packed anew, in the same memory if that is enough, and else in new memory; `_graphs` notes the layer
        then. If an error comes of it, the old weights are still there.

        Raises
        ------
        ValueError
            The layer lies coded.
        """
        if self.layout == "packed":
            try:
                tt.repack(self.buffer, weight)
            except UnsupportedError as refusal:
                logger.debug("transfuse: %s is packed anew: %s", name, refusal.message)
                self._pack_anew(weight, name)
        elif self.layout == "plain":
            rows, cols = self.shape
            self.buffer[_HEAD_BYTES : _HEAD_BYTES + self.dense_bytes].view(torch.bfloat16).view(rows, cols).copy_(
                weight
            )
        else:
            raise ValueError(
                f"{name}: weights of layers that lie coded cannot be changed while they serve; serve with "
                '--additional-config \'{"transfuse": {"layout": "packed"}}\''
            )

    def _pack_anew(self, weight: torch.Tensor, name: str) -> None:
        """Makes the layer anew, with the window that suits these weights."""
        made, layout = _make(weight, name, self.layout)
        missing = _align(made.numel() - self.place.numel(), _STORED_TILE_BYTES) // _STORED_TILE_BYTES
        if layout == "packed" and 0 < missing <= _STORED_ROOM:
            made = tt.pack(weight, stored_room=_STORED_ROOM - missing)
        _graphs.note_changed(name)
        tt.forget(self.buffer)
        self.layout = layout
        if made.numel() <= self.place.numel():
            self.buffer = _put(made, self.place)
        else:
            self.place = self.buffer = made
            self.key.data = tt.layer_key(made)


@dataclasses.dataclass
class _Block:
    """Memory for several layers, and how much of it they have taken."""

    memory: torch.Tensor
    taken: int = 0


class Packer:
    """Packs the layers of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._expected = 0  # bytes of layers that are still to come
        self._expected_encoding = 0  # bytes of dense weights that the encoder will get, where that is known
        self._blocks: list[_Block] = []

    @classmethod
    def of(cls, device: torch.device) -> Packer:
        """Returns that of a device."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        return _packers.setdefault(device, cls(device))

    @staticmethod
    def end() -> None:
        """Ends the loading of a model: layers of the next one get blocks of their own."""
        _packers.clear()

    def expect(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Says which packed layers are to come, [rows][cols] each, so that a block has room for all of them."""
        self._expected = sum(packed_bytes(rows, cols) + _STORED_ROOM * _STORED_TILE_BYTES for rows, cols in shapes)

    def expect_encoding(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Says which layers, [rows][cols] each, are to be encoded, so that a line can say how long that takes."""
        self._expected_encoding = sum(2 * rows * cols for rows, cols in shapes)

    @staticmethod
    def expect_compressed() -> None:
        """Says that weights come from a compressed folder: few of them are encoded, or none."""
        for packer in _packers.values():
            packer._expected_encoding = 0

    def pack(self, weight: torch.Tensor, name: str, layout: str) -> Packed:
        """Returns a layer of dense weights, [rows][cols], which it does not need afterwards."""
        self._release_temporaries()
        layer, layout = _make(weight, name, layout, self.encode)
        place = self._find_place(layer.numel())
        buffer = _put(layer, place)
        rows, cols = weight.shape
        return Packed(buffer, Parameter(tt.layer_key(buffer), requires_grad=False), layout, (rows, cols), place)

    def load(self, parts: Sequence[LazyWeight | torch.Tensor], shape: tuple[int, int]) -> Packed:
        """Returns a coded layer of compressed tensors that have tiles, taken as they are, and of blobs on the CPU.

        Their rows follow each other. Those of files are decoded once, which a GPU does at 2 TB/s, since loading alone
        does not see rANS words that are corrupt.

        Raises
        ------
        TransfuseError, RuntimeError
            A tensor cannot be read or decoded; the message names file and tensor.
        """
        self._release_temporaries()
        sources = [part.find_tiles() if isinstance(part, LazyWeight) else part for part in parts]
        first = sources[0]
        if len(sources) == 1 and isinstance(first, TensorPart):
            buffer = tt.load_layer(first.checkpoint, first.tensor, self._device, rows=first.rows, cols=first.cols)
            layers = [buffer]
        else:
            buffer = load_assembled([source for source in sources if source is not None], self._device)
            layers = tt.container_buffers(buffer)
        for part, layer in zip(parts, layers, strict=True):
            if isinstance(part, LazyWeight):
                part.check_tiles(layer)
        return Packed(buffer, Parameter(tt.layer_key(buffer), requires_grad=False), "coded", shape, buffer)

    def encode(self, weight: torch.Tensor) -> torch.Tensor:
        """Returns the blob of dense weights, on the CPU; the first time a line says how long that will take."""
        start = time.perf_counter()
        blob = tt.encode(weight)
        if self._expected_encoding:
            rate = weight.nbytes / max(time.perf_counter() - start, 1e-9)
            logger.info(
                "transfuse: layers are encoded on the CPU while the model is loaded: the first one at %.2f GB/s, so "
                "all %.2f GiB of weights in about %.0f s; a folder that 'transfuse compress' wrote is loaded as it is",
                rate / 1e9,
                self._expected_encoding / 2**30,
                self._expected_encoding / rate,
            )
            self._expected_encoding = 0
        return blob

    def _release_temporaries(self) -> None:
        """Gives back what the layer before needed while it was made: no layer is to lie in a part of it."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _find_place(self, bytes_: int) -> torch.Tensor:
        """Returns memory for the next layer, in a block."""
        size = _align(bytes_, _ALIGNMENT)
        block = next((block for block in self._blocks if block.taken + size <= block.memory.numel()), None)
        if block is None:
            wanted = _align(max(size, self._expected), _ROUNDING)
            block = _Block(torch.empty(wanted, dtype=torch.uint8, device=self._device))
            self._blocks.append(block)
        place = block.memory[block.taken : block.taken + bytes_]
        block.taken += size
        self._expected = max(0, self._expected - size)
        return place


def _put(layer: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Returns a copy of a layer where its place begins."""
    buffer = place[: layer.numel()]
    buffer.copy_(layer)
    tt.adopt(buffer)
    return buffer


def _make(
    weight: torch.Tensor, name: str, layout: str, encode: Callable[[torch.Tensor], torch.Tensor] = tt.encode
) -> tuple[torch.Tensor, str]:
    """Returns a layer in memory of its own, and its layout. encode: gives the blob of dense weights, on the CPU."""
    reason = ""
    if layout == "packed":
        try:
            layer = tt.pack(weight, stored_room=_STORED_ROOM)
            if layer.numel() < weight.nbytes:
                return layer, layout
            reason = "packing does not make it smaller"
        except UnsupportedError as refusal:
            reason = refusal.message
    blob = encode(weight)
    if layout == "coded" and blob.numel() < weight.nbytes:
        return blob.to(weight.device), layout
    logger.info("transfuse: %s stays plain: %s", name, reason or "compressing does not make it smaller")
    return tt.convert_layer(blob.to(weight.device), "plain"), "plain"


def _align(size: int, to: int) -> int:
    return -(-size // to) * to
