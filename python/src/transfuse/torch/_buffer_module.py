# SPDX-License-Identifier: Apache-2.0
"""Modules some of whose parameters are buffers of layers, and how these are set, moved, copied and loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from transfuse._errors import Status, TransfuseError, make_error
from transfuse.torch import _registry

if TYPE_CHECKING:
    from typing import Self


def is_buffer(tensor: Tensor) -> bool:
    """Returns whether a tensor can be a layer's buffer by its type, which is uint8 and 1-D."""
    return tensor.dtype == torch.uint8 and tensor.dim() == 1


def has_bytes(tensor: Tensor) -> bool:
    """Returns whether there are bytes to read: a tensor on the meta device, or of a module to be filled, has none."""
    return not tensor.is_meta and tensor.numel() > 0


def align_buffer(buffer: Tensor) -> Tensor:
    """Returns the buffer, copied if kernels cannot read it where it begins, as a slice of a file's memory may."""
    alignment = 16 if buffer.device.type == "cpu" else 256
    if buffer.is_contiguous() and buffer.data_ptr() % alignment == 0:
        return buffer
    return buffer.clone(memory_format=torch.contiguous_format)


def as_parameter(buffer: Tensor) -> nn.Parameter:
    """Returns a tensor as a parameter without a gradient; an existing one stays the same, so that ties hold."""
    return buffer if isinstance(buffer, nn.Parameter) else nn.Parameter(buffer, requires_grad=False)


def is_layer(tensor: Tensor) -> bool:
    """Returns whether a tensor is the buffer of a layer, or a container of experts, that was adopted."""
    return is_buffer(tensor) and has_bytes(tensor) and _registry.is_known(tensor)


def adopt_moved(buffer: Tensor) -> None:
    """Adopts a buffer that was moved, if it holds a layer.

    What `to_empty` made, or what is being read, holds none yet. Such bytes are adopted when they are used, and refused
    then if they still are no layer.
    """
    if not has_bytes(buffer):
        return
    try:
        _registry.adopt(buffer)
    except TransfuseError:
        pass


def _tensor_at(pointer: int, num_bytes: int) -> Tensor:
    """Returns a tensor at an address of the host, whose memory need not exist: it is only named, never read."""
    return torch.frombuffer((ctypes.c_uint8 * num_bytes).from_address(pointer), dtype=torch.uint8)


class BufferModule(nn.Module):
    """A module some of whose parameters are buffers of layers, or containers, which stay adopted when they move.

    Such a parameter is uint8, 1-D, and has no gradient. Bytes that are written into it directly are not noticed: set
    the parameter, or load a state dict. What torch calls the buffers of a module is something else.
    """

    _layout = "coded"
    # Messages name the place that it had in its model when it was compressed or loaded.
    _path = ""
    # While a framework loads a model it asks for state dicts, which leave out what is loaded already, and it sets
    # memory that nobody has filled in the place of parameters that it misses.
    _is_loading = False

    @property
    def layout(self) -> str:
        """How the weights lie in memory, "coded", "packed", "packed8" or "plain"; if they are still to be loaded, how
        they will.

        Weights that the layout does not take will be coded. FP8 weights for which "packed" was asked lie "packed8".
        """
        return self._layout

    def _buffer_names(self) -> tuple[str, ...]:
        """Returns the names of the parameters that are buffers of layers."""
        raise NotImplementedError

    def _state_names(self) -> tuple[str, ...]:
        """Returns the names under which a state dict has the layers, which are coded there."""
        return self._buffer_names()

    def dense_names(self) -> tuple[str, ...]:
        """Returns the names that the uncompressed module has for the parameters whose place the buffers take."""
        return self._buffer_names()

    def _take_buffer(self, name: str, buffer: Tensor | None) -> None:
        """Checks and adopts what is to become a parameter; it may still be empty, or on the meta device.

        Raises
        ------
        TypeError
            The tensor is not the buffer of a layer; it has dense weights, for instance.
        ValueError
            The layer has another shape.
        DataError, UnsupportedError
            The buffer is corrupt, or of another version.
        """
        raise NotImplementedError

    def _note_adoption(self) -> None:
        """Does what a module has to do when its buffers are adopted at a new place."""

    def _lay_out(self, blob: Tensor) -> Tensor:
        """Returns a blob of a state dict in the module's layout; other and empty tensors are returned as they are."""
        return blob

    def _encode_again(self, buffer: Tensor) -> Tensor:
        """Returns the blob that a state dict has for a parameter that holds a layer, in whatever layout that lies."""
        return buffer

    def describe(self) -> str:
        """Returns what messages call the module: its path in the model, if that is known, and its class."""
        kind = type(self).__name__
        return f"{self._path} ({kind})" if self._path else kind

    def to_dense(self) -> nn.Module:
        """Returns the uncompressed module, with the decoded weights; this one stays as it is.

        Raises
        ------
        UnsupportedError
            Nobody knows what the module was before.
        """
        raise make_error(
            Status.TRF_ERR_UNSUPPORTED,
            f"{self.describe()} cannot be made an uncompressed module again: leave the layer out of the compression "
            "(compress_model(exclude=...), 'transfuse compress --exclude')",
        )

    def reset_parameters(self) -> None:
        """Raises an error: dense modules draw random weights here, and a layer's buffer cannot be drawn.

        A framework that loads a model also calls it for modules that have their weights; then it does nothing.
        """
        if self._is_loading:
            return
        raise RuntimeError(f"{self.describe()} has compressed weights, which cannot be drawn at random")

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Registers as nn.Module does, also when an attribute is set; raises what `_take_buffer` raises."""
        if name in self._buffer_names():
            self._refuse_unfilled(name, param)
            self._take_buffer(name, param)
        super().register_parameter(name, param)
        self._note_adoption()

    def _refuse_unfilled(self, name: str, buffer: Tensor | None) -> None:
        """Raises an error rather than let memory be read that a framework allocated for a missing parameter."""
        # Bytes that were read from a file are adopted; memory that was only allocated is not.
        if self._is_loading and buffer is not None and has_bytes(buffer) and not is_layer(buffer):
            raise RuntimeError(
                f"the {name} of a {type(self).__name__} was to be set to something that is no compressed weight of the "
                "files: the checkpoint does not give it"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = {name: self._parameters[name] for name in self._buffer_names()}
        old = [(name, each.data, each.data_ptr()) for name, each in before.items() if each is not None]
        super()._apply(fn, recurse)
        for name, data, pointer in old:
            self._follow_buffer(name, data, pointer)
        return self

    def _follow_buffer(self, name: str, old: Tensor, old_pointer: int) -> None:
        """Adopts a buffer at its new place, or puts the old one back where it was converted."""
        buffer = self._parameters[name]
        assert buffer is not None
        if not is_buffer(buffer):
            self._parameters[name] = as_parameter(old)
            raise TypeError(
                f"compressed weights cannot be made {buffer.dtype}: {name} of {self.describe()} is a layer's buffer, "
                "and stays one"
            )
        if old.is_meta or buffer.is_meta or buffer.data_ptr() == old_pointer:
            return
        if old.data_ptr() != old_pointer:
            # share_memory has moved the storage itself, so that nothing else has the old place forgotten.
            _registry.forget(_tensor_at(old_pointer, old.numel()))
        if old.is_cuda and not buffer.is_cuda:
            _registry.wait_for(old.device)  # with non_blocking=True the bytes are still on their way to the host
        adopt_moved(buffer)
        self._note_adoption()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for name in self._buffer_names():
            buffer = self._parameters[name]
            if buffer is not None:
                adopt_moved(buffer)
        self._note_adoption()

    # The blob of a layer of another layout stays on the CPU: on a GPU there may be no room for it.
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.layout == "coded" or self._is_loading:
            return
        for name in self._buffer_names():
            buffer = self._parameters[name]
            if buffer is not None and has_bytes(buffer):
                destination[prefix + name] = self._encode_again(buffer)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        assign = bool(local_metadata.get("assign_to_params_buffers", False))
        rest = dict(state_dict)
        for name in self._buffer_names():
            blob = state_dict.get(prefix + name)
            if not isinstance(blob, Tensor):
                continue
            try:
                self._load_blob(name, blob, assign)
            except (TransfuseError, TypeError, ValueError) as failure:
                error_msgs.append(f'While loading the compressed parameter named "{prefix}{name}": {failure}')
            rest[prefix + name] = self._loaded(name, blob, assign)
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _loaded(self, name: str, blob: Tensor, assign: bool) -> Tensor:
        """Returns what torch may load once the blob is there: the parameter again, which changes nothing."""
        parameter = self._parameters[name]
        assert parameter is not None
        if assign:
            return parameter
        if parameter.is_meta:  # torch then warns, as for any tensor that meets the meta device
            return torch.empty_like(parameter, device=blob.device)
        return parameter.data

    def _load_blob(self, name: str, blob: Tensor, assign: bool) -> None:
        """Takes a blob of a state dict, of whatever length; the parameter stays the same one unless `assign`."""
        parameter = self._parameters[name]
        assert parameter is not None
        if assign:
            taken = blob
            if has_bytes(blob) and is_buffer(blob):
                if self.layout != "coded" and not parameter.is_meta:
                    taken = blob.to(parameter.device)  # state dicts of such modules have blobs on the CPU
                taken = self._lay_out(align_buffer(taken))
            setattr(self, name, as_parameter(taken))
        elif parameter.is_meta or not is_buffer(blob):
            self._take_buffer(name, blob)
        elif blob.is_meta:
            raise ValueError(f"{name} of {self.describe()} is on the meta device in the state dict: it has no bytes")
        else:
            # It gets memory of its own: if a blob is overwritten in place, it is not the one that was adopted.
            fresh = blob.detach().to(parameter.device, copy=True, memory_format=torch.contiguous_format)
            self._take_buffer(name, fresh)
            self._change_data(name, self._lay_out(fresh))

    def _change_data(self, name: str, buffer: Tensor) -> None:
        """Gives a parameter other bytes, of any number; it stays the same object."""
        parameter = self._parameters[name]
        assert parameter is not None
        parameter.data = buffer
        # Compiled graphs look at the sizes of parameters again only if the dictionary that these are in has changed.
        self._parameters[name] = None
        self._parameters[name] = parameter
        self._note_adoption()


def note_paths(model: nn.Module) -> None:
    """Tells the compressed modules of a model where they are in it, so that their messages can say so."""
    for path, module in model.named_modules():
        if isinstance(module, BufferModule) and not module._path:
            module._path = path
