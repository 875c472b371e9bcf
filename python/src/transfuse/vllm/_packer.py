# SPDX-License-Identifier: Apache-2.0
"""From dense weights on the GPU to the layer that serves: packed, coded, or, where neither is possible, plain.

Memory is taken so that nothing is left of it: layers are packed in scratch memory that is there once for each device,
and copied to memory of just their size, which comes from the driver. Were it cut from the block of a dense matrix that
was freed, the rest of that block would be lost.
"""

from __future__ import annotations

import dataclasses

import torch
from torch.nn import Parameter
from vllm.logger import init_logger

import transfuse.torch as tt
from transfuse import UnsupportedError

logger = init_logger("vllm.transfuse")

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
    """

    buffer: torch.Tensor
    key: Parameter
    layout: str
    shape: tuple[int, int]

    @property
    def dense_bytes(self) -> int:
        """What the weights take in BF16."""
        return 2 * self.shape[0] * self.shape[1]

    def replace(self, weight: torch.Tensor, name: str) -> None:
        """Puts other weights of the same shape in the place of those that are there, at the same address.

        Raises
        ------
        ValueError
            They do not fit where the layer lies.
        """
        if self.layout == "packed":
            try:
                tt.repack(self.buffer, weight)
            except UnsupportedError as refusal:
                raise ValueError(
                    f"{name}: new weights cannot take the place of the old ones: {refusal.message}"
                ) from None
        elif self.layout == "plain":
            rows, cols = self.shape
            self.buffer[256 : 256 + self.dense_bytes].view(torch.bfloat16).view(rows, cols).copy_(weight)
        else:
            raise ValueError(
                f"{name}: weights of layers that lie coded cannot be changed while they serve; serve with "
                '--additional-config \'{"transfuse": {"layout": "packed"}}\''
            )


class Packer:
    """Packs the layers of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._scratch: torch.Tensor | None = None

    @classmethod
    def of(cls, device: torch.device) -> Packer:
        """Returns that of a device."""
        return _packers.setdefault(device, cls(device))

    @staticmethod
    def release() -> None:
        """Frees all scratch memory."""
        _packers.clear()

    def pack(self, weight: torch.Tensor, name: str, layout: str) -> Packed:
        """Returns a layer of dense weights, [rows][cols], which it does not need afterwards."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # the dense matrix of the layer before
        buffer, layout = self._make(weight, name, layout)
        rows, cols = weight.shape
        return Packed(buffer, Parameter(tt.layer_key(buffer), requires_grad=False), layout, (rows, cols))

    def _make(self, weight: torch.Tensor, name: str, layout: str) -> tuple[torch.Tensor, str]:
        reason = ""
        if layout == "packed":
            try:
                buffer = tt.pack(weight)
                if buffer.numel() < weight.nbytes:
                    return buffer, layout
                reason = "packing does not make it smaller"
            except UnsupportedError as refusal:
                reason = refusal.message
        blob = tt.encode(weight)
        if layout == "coded" and blob.numel() < weight.nbytes:
            buffer = blob.to(self._device)
            tt.adopt(buffer)
            return buffer, layout
        logger.info("transfuse: %s stays plain: %s", name, reason or "compressing does not make it smaller")
        buffer = blob.to(self._device)
        tt.adopt(buffer)
        return tt.convert_layer(buffer, "plain"), "plain"
