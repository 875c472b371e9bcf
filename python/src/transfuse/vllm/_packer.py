# SPDX-License-Identifier: Apache-2.0
"""Makes the layer that serves from dense weights on the GPU: packed, coded, or, where neither is possible, plain.

Packed layers lie side by side in a few memory blocks. If each had a block of its own, which torch rounds up to 2 MiB, a
model of 8 billion weights would take a quarter of a GiB more, which vLLM counts as weights; and so it would in blocks
of 256 MiB, whose ends stay empty. What shapes the layers have is known before the first of them is made, but not which
of them were FP8, and take two thirds of the memory. So a block gets room for a fourth of the layers, or for as much as
has been made, as if those to come were like the one at hand. Embeddings and heads, which are often of another kind,
have blocks of their own.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch
from torch.nn import Parameter
from vllm.logger import init_logger

import transfuse.torch as tt
from transfuse import UnsupportedError
from transfuse._memory_need import packed8_bytes, packed_bytes
from transfuse._options import PACKED_LAYOUTS
from transfuse.torch._load import TensorPart, load_assembled
from transfuse.torch._registry import join_rows, overwrite
from transfuse.vllm import _graphs
from transfuse.vllm._lazy_weight import LazyWeight

logger = init_logger("vllm.transfuse")

# This many more tiles may have to be stored when a layer's weights change; a layer takes 4 KiB more for each.
_STORED_ROOM = 16
# Layers are placed at multiples of this.
_ALIGNMENT = 256
# torch takes memory from the driver in multiples of this.
_ROUNDING = 2 << 20
# A stored tile takes this many bytes.
_STORED_TILE_BYTES = 4096

_packers: dict[torch.device, Packer] = {}


@dataclasses.dataclass
class Packed:
    """A layer that serves.

    Attributes
    ----------
    buffer : torch.Tensor, uint8, [buffer_bytes]
    key : Parameter, uint8, [256]
        A view of the layer's head, by which the ops find it.
    layout : str
        "packed", "packed8", "coded" or "plain".
    shape : tuple of int
        Rows and columns.
    place : torch.Tensor, uint8, [place_bytes]
        The memory that the layer may take, which begins with the buffer.
    layout_reason : str
        Why weights that were found to be FP8 lie "packed", and not "packed8"; "" for all others.
    """

    buffer: torch.Tensor
    key: Parameter
    layout: str
    shape: tuple[int, int]
    place: torch.Tensor
    layout_reason: str = ""

    @property
    def dense_bytes(self) -> int:
        """The number of bytes that the weights take in BF16."""
        return 2 * self.shape[0] * self.shape[1]

    @property
    def held_bytes(self) -> int:
        """The number of bytes that the layer takes."""
        return self.buffer.numel()

    def replace(self, weight: torch.Tensor, name: str) -> None:
        """Replaces the weights by others of the same shape.

        Weights that fit the layer's form are put where the old ones were, so that captured graphs use them. Others
        are packed anew, in the same memory if it is large enough, and else in new memory; then `_graphs` notes the
        layer. If that raises an error, the layer still has the old weights.

        Raises
        ------
        ValueError
            The layer lies coded.
        """
        if self.layout in PACKED_LAYOUTS:
            try:
                tt.repack(self.buffer, weight)
            except UnsupportedError as refusal:
                logger.debug("transfuse: %s is packed anew: %s", name, refusal.message)
                self._pack_anew(weight, name)
        elif self.layout == "plain":
            # With the checksum of these weights.
            overwrite(self.buffer, tt.convert_layer(tt.encode(weight).to(weight.device), "plain"))
        else:
            raise ValueError(
                f"{name}: weights of layers that lie coded cannot be changed while they serve; serve with "
                '--additional-config \'{"transfuse": {"layout": "packed"}}\''
            )

    def _pack_anew(self, weight: torch.Tensor, name: str) -> None:
        """Makes the layer anew, with a form that suits these weights."""
        made, layout = _make(weight, name, "packed")
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
    """A memory block for several layers, and how many bytes of it they have taken."""

    memory: torch.Tensor
    taken: int = 0


class Packer:
    """Packs the layers of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._expected: Counter[tuple[int, int]] = Counter()  # the shapes of layers that are still to come
        self._whole_bytes = 0  # how many bytes they all took as packed BF16, when they were announced
        self._made_bytes = 0  # how many those took that have come
        self._expected_encoding = 0  # how many bytes of dense weights the encoder will get, where that is known
        self._blocks: list[_Block] = []

    @classmethod
    def of(cls, device: torch.device) -> Packer:
        """Returns the packer of a device."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        return _packers.setdefault(device, cls(device))

    @staticmethod
    def end() -> None:
        """Ends the loading of a model: layers of the next one get blocks of their own."""
        _packers.clear()

    def expect(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Announces the packed layers, [rows][cols] each, that are to come, so that few blocks have room for them."""
        self._expected = Counter(shapes)
        self._whole_bytes = _count_bytes(self._expected, "packed")
        self._made_bytes = 0

    def expect_encoding(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Announces the layers, [rows][cols] each, that will be encoded, so that a line can say how long it takes."""
        self._expected_encoding = sum(2 * rows * cols for rows, cols in shapes)

    @staticmethod
    def expect_compressed() -> None:
        """Announces that weights come from a compressed folder, so that few layers have to be encoded, or none."""
        for packer in _packers.values():
            packer._expected_encoding = 0

    def pack(self, weight: torch.Tensor, name: str, layout: str) -> Packed:
        """Makes a layer of dense weights, [rows][cols], which are not needed afterwards."""
        self._release_temporaries()
        layer, layout = _make(weight, name, layout, self.encode)
        rows, cols = weight.shape
        packed = self._put_in_block(layer, layout, (rows, cols))
        packed.layout_reason = tt.layout_reason(layer)
        return packed

    def load_packed8(self, parts: Sequence[LazyWeight], shape: tuple[int, int]) -> Packed:
        """Makes one packed FP8 layer of lazy weights that are FP8 in their files, whose rows follow each other.

        Raises
        ------
        UnsupportedError
            They do not fit that layout: their scales, where they are cut, or their numbers of rows.
        TransfuseError, RuntimeError
            A tensor cannot be read or decoded; the message names file and tensor.
        """
        self._release_temporaries()
        layers = [part.load_packed8(self._device) for part in parts]
        layer = layers[0] if len(layers) == 1 else join_rows(layers)
        del layers
        return self._put_in_block(layer, "packed8", shape)

    def load(self, parts: Sequence[LazyWeight | torch.Tensor], shape: tuple[int, int]) -> Packed:
        """Makes a coded layer of lazy weights, whose tiles are taken as they are, and of blobs on the CPU.

        The rows of the parts follow each other. Parts from files are decoded once, which a GPU does at 2 TB/s, since
        loading alone does not notice corrupt rANS words.

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
        """Encodes dense weights to a blob on the CPU; the first time a log line says how long all of them will take."""
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
        """Frees the memory that making the previous layer needed, so that no layer comes to lie in a part of it."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _put_in_block(self, layer: torch.Tensor, layout: str, shape: tuple[int, int]) -> Packed:
        place = self._find_place(layer.numel(), shape, layout)
        buffer = _put(layer, place)
        return Packed(buffer, Parameter(tt.layer_key(buffer), requires_grad=False), layout, shape, place)

    def _find_place(self, bytes_: int, shape: tuple[int, int], layout: str) -> torch.Tensor:
        """Returns memory for the next layer, in a block."""
        size = _align(bytes_, _ALIGNMENT)
        is_expected = self._expected[shape] > 0
        block = next((block for block in self._blocks if block.taken + size <= block.memory.numel()), None)
        if block is None:
            wanted = size
            if is_expected:
                most = max(self._whole_bytes // 4, self._made_bytes)
                wanted = max(size, min(_count_bytes(self._expected, layout), most))
            block = _Block(torch.empty(_align(wanted, _ROUNDING), dtype=torch.uint8, device=self._device))
            self._blocks.append(block)
        place = block.memory[block.taken : block.taken + bytes_]
        block.taken += size
        if is_expected:
            self._expected[shape] -= 1
            self._made_bytes += size
        return place


def _put(layer: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Copies a layer to the beginning of its place, and returns the copy."""
    buffer = place[: layer.numel()]
    buffer.copy_(layer)
    tt.adopt(buffer)
    return buffer


def _make(
    weight: torch.Tensor, name: str, layout: str, encode: Callable[[torch.Tensor], torch.Tensor] = tt.encode
) -> tuple[torch.Tensor, str]:
    """Makes a layer in memory of its own and returns it with its layout. `encode` makes a blob on the CPU."""
    reason = ""
    if layout == "packed":
        try:
            layer = tt.pack(weight, stored_room=_STORED_ROOM)
            if layer.numel() < weight.nbytes:
                return layer, tt.layer_layout(layer)
            reason = "packing does not make it smaller"
        except UnsupportedError as refusal:
            reason = refusal.message
    blob = encode(weight)
    if layout == "coded" and blob.numel() < weight.nbytes:
        return blob.to(weight.device), layout
    logger.info("transfuse: %s stays plain: %s", name, reason or "compressing does not make it smaller")
    return tt.convert_layer(blob.to(weight.device), "plain"), "plain"


def _count_bytes(shapes: Counter[tuple[int, int]], layout: str) -> int:
    """Returns how many bytes layers take, of so many of each shape, that all lie in this layout."""
    if layout == "packed8":
        return sum(count * packed8_bytes(*shape) for shape, count in shapes.items())
    room = _STORED_ROOM * _STORED_TILE_BYTES
    return sum(count * (packed_bytes(*shape) + room) for shape, count in shapes.items())


def _align(size: int, to: int) -> int:
    return -(-size // to) * to
