# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts of transformers whose weights are compressed.

transformers keeps the experts of a layer in two 3-D parameters: `gate_up_proj`, [experts][2 x intermediate][hidden],
and `down_proj`, [experts][hidden][intermediate]. `replace_experts` gives such a module containers in their place. A
container is one uint8 tensor that holds the blobs of all experts (`transfuse.torch.make_container`), and a parameter:

    gate_proj, up_proj, down_proj       where gate and up are tensors of their own, [experts][intermediate][hidden]
    gate_up_proj, down_proj             where they are one tensor, [experts][2 x intermediate][hidden]
    up_proj, down_proj                  where the experts have no gate

So a state dict has the containers under these names. The module's class becomes one that derives from the model's own.

Packed experts have gate and up in one container, gate_up_proj, with rows in turns; a state dict, a pickle and a saved
model have them coded, as they were or would have been. They go through `transfuse.torch.moe`, however many tokens there
are, but in exact mode, with gradients, and for x of another dtype than BF16.

For each call of coded experts the module chooses among three ways:

* If there are no more tokens than `set_experts_decode_threshold` says, they are sorted by expert on the device, and
  multiplied by the compressed experts. Nothing waits for the device, so the call can be captured in a CUDA graph.
* If there are more, `transfuse.torch.moe` packs the experts and multiplies by them, where the GPU and the experts allow
  it (`packing_refusal`) and x is BF16; they lie packed in the workspace of that call alone. Adoption packs them once to
  find that out.
* Else, and in exact mode and with gradients, the experts of this layer are decoded, and the model's own function of
  `config._experts_implementation` is called with the dense weights, for the bits that it gives without compression.
  Their memory comes from torch's allocator and goes back before the next layer runs, which takes the same memory again:
  one layer's dense weights are held at a time. With gradients they are decoded again in the backward pass.

Expert parallelism, transposed weights and biases are not supported; `find_experts_obstacle` says so.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transfuse._errors import Status, TransfuseError, UnsupportedError, make_error
from transfuse._options import PACKED_LAYOUTS, fits_layout
from transfuse._results import LayerInfo
from transfuse.torch import _ops, _packed_experts, _registry
from transfuse.torch._buffer_module import BufferModule, as_parameter, has_bytes, is_buffer
from transfuse.torch._containers import ROWS_INTERLEAVED, container_buffers, read_order
from transfuse.torch._dtypes import TORCH_DTYPES
from transfuse.torch._expert_containers import as_container, layout_of, multiplies, packed_name, take_container

if TYPE_CHECKING:
    from typing import Self

_FLAGS = ("has_gate", "has_bias", "is_transposed", "is_concatenated")
_NAMES = ("gate_up_proj", "gate_proj", "up_proj", "down_proj")
_PACKED_NAMES = ("gate_up_proj", "down_proj")
# If an expert has more tokens than this, on average, decoding all experts of a layer is faster than multiplying by
# compressed ones, which decodes an expert again for each 8 of its tokens (docs/notebook/2026-11-24-models.md).
_decode_threshold = 16
_X_DTYPES = (torch.bfloat16, torch.float16)
# Where products of coded experts by many tokens pack them. On the CPU torch's own products are faster.
_PACKING_DEVICES: tuple[str, ...] = ("cuda",)
_classes: dict[type[nn.Module], type[TransfuseExperts]] = {}


def set_experts_decode_threshold(tokens: int) -> None:
    """Sets above how many tokens of a call coded experts are packed or decoded first, and then multiplied by.

    `tokens` are those of one expert, on average: a call of t tokens, of which each goes to k of n experts, gives an
    expert t k / n. It is 16 unless this function is called. It affects the whole process. Compiled models are compiled
    anew at their next call.

    Raises
    ------
    ValueError
        `tokens` is negative.
    """
    global _decode_threshold
    if tokens < 0:
        raise ValueError(f"tokens is {tokens}; it must be 0 (always decode or pack) or more")
    _decode_threshold = int(tokens)


def get_experts_decode_threshold() -> int:
    """Returns what `set_experts_decode_threshold` set."""
    return _decode_threshold


def get_expert_names(module: nn.Module) -> tuple[str, ...]:
    """Returns the names of the weights of a dense experts module of transformers; none of any other module."""
    # transformers.integrations.use_experts_implementation sets these attributes.
    if isinstance(module, TransfuseExperts) or not all(hasattr(module, name) for name in _FLAGS):
        return ()
    return "gate_up_proj" if module.has_gate else "up_proj", "down_proj"


def find_experts_obstacle(module: nn.Module) -> str | None:
    """Returns why the experts of a module of transformers cannot run compressed, or None.

    It looks only at shapes and attributes, so the module may be on the meta device.
    """
    if isinstance(module, TransfuseExperts):
        return "its experts are compressed already"
    names = get_expert_names(module)
    if not names:
        return f"{type(module).__name__} is no experts module of transformers"
    if module.is_transposed or module.has_bias:
        return "its weights are transposed" if module.is_transposed else "its experts have biases"
    for name in names:
        weight = module._parameters.get(name)
        if weight is None or weight.dim() != 3 or weight.shape[0] != module.num_experts:
            return f"its {name} is no parameter of the shape [experts][rows][columns]"
    extra = set(module._parameters) - set(names)
    if extra or module._buffers:
        return f"what it does with {', '.join(sorted(extra | set(module._buffers)))} is not known"
    return None


def replace_experts(
    module: nn.Module,
    *,
    gate_up: Tensor | Sequence[Tensor] | None = None,
    gate: Tensor | Sequence[Tensor] | None = None,
    up: Tensor | Sequence[Tensor] | None = None,
    down: Tensor | Sequence[Tensor],
) -> TransfuseExperts:
    """Gives an experts module of transformers compressed weights, in place.

    Parameters
    ----------
    module : nn.Module
        Its class is one that transformers decorates with `use_experts_implementation` (MixtralExperts, Qwen3MoeExperts,
        DeepseekV3Experts ...), with dense weights, which may be on the meta device. It stays the same object and an
        instance of that class; `gate_up_proj` and `down_proj` go.
    gate_up : container, or blobs of all experts, of [2 x intermediate][hidden]
        Or `gate` and `up`, each of [intermediate][hidden]; `up` alone where the experts have no gate. Packed experts
        are `gate_up`, whose rows are interleaved, and `down`, from `pack_experts`.
    down : container, or blobs of all experts, of [hidden][intermediate]
        A container on the meta device, or an empty one, will be loaded later: by setting the parameter, or from a state
        dict.

    Returns
    -------
    TransfuseExperts
        `module`.

    Raises
    ------
    TypeError
        A tensor is no container.
    ValueError
        The module cannot run compressed experts (`find_experts_obstacle`), these are not the containers that it needs,
        or one has experts of another number or shape.
    DataError
        A blob is corrupt.
    UnsupportedError
        A blob is of another version; experts lie in a layout in which they cannot run.
    """
    obstacle = find_experts_obstacle(module)
    if obstacle:
        raise ValueError(obstacle)
    given = {"gate_up_proj": gate_up, "gate_proj": gate, "up_proj": up, "down_proj": down}
    containers = {name: as_container(experts) for name, experts in given.items() if experts is not None}
    shapes = _shapes_of(module, tuple(containers))
    dtype = next(parameter.dtype for parameter in module._parameters.values() if parameter is not None)
    made = _class_of(type(module)).__new__(_class_of(type(module)))
    state = {key: value for key, value in module.__dict__.items() if key != "_parameters"}
    made.__dict__.update(state, _parameters={}, container_shapes=shapes, weight_dtype=dtype, dense_dtype=dtype)
    made.product_dtypes = ()
    made.packing_refusal = "its experts are to be loaded first"
    made._coded_infos = dict.fromkeys(shapes)
    for name, container in containers.items():
        made.register_parameter(name, as_parameter(container))
    if made._is_packed():
        made._coded_infos = dict.fromkeys(("gate_proj", "up_proj", "down_proj"))
    object.__setattr__(module, "__dict__", made.__dict__)
    object.__setattr__(module, "__class__", type(made))
    assert isinstance(module, TransfuseExperts)
    return module


class TransfuseExperts(BufferModule):
    """The base of the experts modules that `replace_experts` makes; their class derives from the model's, too.

    Attributes
    ----------
    gate_up_proj, gate_proj, up_proj, down_proj : nn.Parameter, uint8, [container_bytes]
        Two or three of these exist, as this file's docstring says.
    layout : str
        "coded", "packed", or "packed8", which is FP8 that was packed; "packed" if only one container is.
    container_shapes : dict of str to (int, int, int)
        For each of these the numbers of experts, and of rows and columns of their decoded weights.
    weight_dtype : torch.dtype
        The dtype of the weights that were encoded.
    dense_dtype : torch.dtype
        The dtype of the decoded weights that the model's own function gets. It is the dtype of the dense module, and
        `half`, `to(dtype)` and so on change it.
    product_dtypes : tuple of torch.dtype
        The dtypes of x that the compressed experts multiply on their device. Any other x is multiplied by decoded
        weights.
    packing_refusal : str
        Why calls with many tokens decode the experts, and do not pack them; "" if they pack them. It is of coded
        experts.
    """

    container_shapes: dict[str, tuple[int, int, int]]
    weight_dtype: torch.dtype
    dense_dtype: torch.dtype
    product_dtypes: tuple[torch.dtype, ...]
    packing_refusal: str
    gate_up_proj: Tensor
    down_proj: Tensor
    # The containers that the module has when it lies coded, and how each was encoded; None: not yet, or by default.
    _coded_infos: dict[str, LayerInfo | None]
    # The model's class has these.
    num_experts: int
    has_gate: bool
    act_fn: Callable[[Tensor], Tensor]
    _apply_gate: Callable[[Tensor], Tensor]
    _dense_class: type[nn.Module]

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Returns the weighted sum of each token's experts.

        Parameters
        ----------
        hidden_states : Tensor, [tokens][hidden]
        top_k_index : Tensor, [tokens][k]
            The experts of each token.
        top_k_weights : Tensor, [tokens][k]

        Returns
        -------
        Tensor, [tokens][hidden]
            Its dtype is that of `hidden_states`.
        """
        if _ops.is_forward_mode():
            return self._forward_dense(hidden_states, top_k_index, top_k_weights)
        if torch.is_grad_enabled() and (hidden_states.requires_grad or top_k_weights.requires_grad):
            # The dense weights are not kept for the backward pass, but decoded again.
            result: Tensor = checkpoint(
                self._forward_dense,
                hidden_states,
                top_k_index,
                top_k_weights,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            return result
        if _ops.is_exact() or hidden_states.dtype not in self.product_dtypes:
            return self._forward_dense(hidden_states, top_k_index, top_k_weights)
        if self._is_packed():
            return self._forward_packed(hidden_states, top_k_index, top_k_weights)
        if top_k_index.numel() > _decode_threshold * self.num_experts:
            if not self.packing_refusal and hidden_states.dtype == torch.bfloat16:
                return self._forward_packed(hidden_states, top_k_index, top_k_weights)
            return self._forward_dense(hidden_states, top_k_index, top_k_weights)
        return self._forward_compressed(hidden_states, top_k_index, top_k_weights)

    def decode_weights(self) -> dict[str, Tensor]:
        """Returns the dense weights as the model has them: `gate_up_proj` (or `up_proj`) and `down_proj`.

        Returns
        -------
        dict of str to Tensor
            [experts][rows][columns] each, of `dense_dtype`.

        Raises
        ------
        ValueError
            There are no weights yet.
        """
        if "gate_proj" not in self.container_shapes:
            return {name: self._decode(name) for name in self.container_shapes}
        experts, rows, cols = self.container_shapes["gate_proj"]
        both = torch.empty(experts, 2 * rows, cols, dtype=self.dense_dtype, device=self.down_proj.device)
        for name, out in (("gate_proj", both[:, :rows]), ("up_proj", both[:, rows:])):
            if self.dense_dtype == self.weight_dtype:
                _ops.decode_experts_into(self._loaded_container(name), out)
            else:
                out.copy_(self._decode(name))
        return {"gate_up_proj": both, "down_proj": self._decode("down_proj")}

    @property
    def layout_reason(self) -> str:
        """Why FP8 experts lie "packed", and not "packed8", for each container that does; "" for all others.

        It is known of experts where they were packed, and not of those of a module that was copied or moved.
        """
        return "; ".join(f"{name}: {reason}" for name, reason in self.layout_reasons().items())

    def layout_reasons(self) -> dict[str, str]:
        """Returns what `layout_reason` says, by the containers' names."""
        if not self._is_packed():
            return {}
        found = {name: getattr(self, name) for name in self._buffer_names()}
        reasons = {name: _registry.layout_reason(each) for name, each in found.items() if has_bytes(each)}
        return {name: reason for name, reason in reasons.items() if reason}

    def dense_shapes(self) -> dict[str, tuple[int, int, int]]:
        """Returns the shapes of what `decode_weights` returns, which may be asked for before anything is loaded."""
        shapes = dict(self.container_shapes)
        if "gate_proj" in shapes:
            experts, rows, cols = shapes.pop("gate_proj")
            del shapes["up_proj"]
            shapes["gate_up_proj"] = experts, 2 * rows, cols
        return shapes

    def dense_names(self) -> tuple[str, ...]:
        """Returns the names of what `decode_weights` returns."""
        return tuple(self.dense_shapes())

    def extra_repr(self) -> str:
        """Returns the shapes of the experts, the codec, bits a weight and the dtype."""
        lines = []
        for name, (experts, rows, cols) in self.container_shapes.items():
            container = getattr(self, name)
            if not has_bytes(container):
                lines.append(f"{name}: {experts} of {rows} x {cols}, weights to be loaded, dtype={self.weight_dtype}")
                continue
            info = _registry.expert_infos(container)[0]
            bits = 8 * container.numel() / (experts * rows * cols)
            layout = "" if self._layout == "coded" else f", layout={self._layout}"
            about = f"codec={info.codec}{layout}, bits={bits:.2f}, dtype={self.weight_dtype}"
            lines.append(f"{name}: {experts} of {rows} x {cols}, {about}")
        return "\n".join(lines)

    def prepare_layout(self, layout: str) -> tuple[str, Callable[[], None]]:
        """Makes the experts' containers of another layout; the module takes them when the function is called.

        Containers get new parameters, and packed ones other names. To packed ones experts are decoded one by one on
        their device; to coded ones they are encoded on the CPU.

        Returns
        -------
        str
            Why the layout does not take these experts, or "".
        function
            It puts the containers in, or does nothing if there is a reason.

        Raises
        ------
        DataError
            A container is corrupt.
        TransfuseError
            Memory is short, and so on.
        """
        if fits_layout(self._layout, layout):
            return "", _do_nothing
        if not all(has_bytes(container) for container in self._containers()):
            return "its experts are to be loaded first", _do_nothing
        if layout == "coded":
            coded = {name: made.to(self.down_proj.device) for name, made in self._encode_packed().items()}
            return "", lambda: self._put_containers(coded)
        if layout not in PACKED_LAYOUTS:
            return "experts lie coded, packed or packed8", _do_nothing
        if self._is_packed():  # as BF16, where packed8 is asked for
            return "its experts are packed as BF16 already", _do_nothing
        return self.prepare_packed({name: getattr(self, name) for name in self.container_shapes}, layout)

    def prepare_packed(self, containers: dict[str, Tensor], layout: str = "packed") -> tuple[str, Callable[[], None]]:
        """Does what `prepare_layout` does for "packed" and "packed8", from coded containers.

        The module need not have these yet. "packed" gives "packed8" of FP8 with scales that fits.
        """
        reason = self._find_packing_obstacle(containers["down_proj"].device)
        if reason:
            return reason, _do_nothing
        try:
            packed, infos = self._pack(containers, layout)
        except UnsupportedError as refusal:
            return refusal.message, _do_nothing

        def swap() -> None:
            self._coded_infos = infos
            self._put_containers(packed)

        return "", swap

    def convert_layout(self, layout: str) -> str:
        """Does what `prepare_layout` prepares, and returns its reason."""
        reason, swap = self.prepare_layout(layout)
        swap()
        return reason

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The class is made at run time, so it cannot be found by its name.
        state = self.__dict__.copy()
        if self._is_packed() and all(has_bytes(container) for container in self._containers()):
            coded = {name: as_parameter(made.to(self.down_proj.device)) for name, made in self._encode_packed().items()}
            state.update(_parameters=coded, container_shapes=self._coded_shapes())
        return _new_instance, (self._dense_class,), state

    # Copies do not go through the pickle, which has coded experts.

    def __copy__(self) -> Self:
        made = _new_instance(self._dense_class)
        made.__setstate__(self.__dict__.copy())
        return made  # type: ignore[return-value]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = _new_instance(self._dense_class)
        memo[id(self)] = made
        made.__setstate__({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return made  # type: ignore[return-value]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._layout != state.get("_layout", "coded"):  # a pickle of packed experts
            reason = self.convert_layout("packed")  # packed8 again, if it was
            if reason:
                warnings.warn(f"a {type(self).__name__} stays coded, since {reason}", stacklevel=2)

    def _buffer_names(self) -> tuple[str, ...]:
        return tuple(self.container_shapes)

    def _take_buffer(self, name: str, buffer: Tensor | None) -> None:
        experts, rows, cols = self.container_shapes[name]
        what = f"{name} of a {type(self).__name__} of {experts} experts of {rows} x {cols}"
        if buffer is None or not is_buffer(buffer):
            found = "None" if buffer is None else f"{buffer.dtype} {list(buffer.shape)}"
            raise TypeError(f"{what} is a container (torch.uint8, 1-D), not {found}")
        if not has_bytes(buffer):
            return
        _registry.adopt(buffer)
        infos = _registry.expert_infos(buffer)
        self._check_layout(name, buffer, what)
        shapes = {(info.rows, info.cols) for info in infos}
        if len(infos) != experts or shapes != {(rows, cols)}:
            listed = ", ".join(f"{r} x {c}" for r, c in sorted(shapes))
            raise ValueError(f"{what}: the container has {len(infos)} experts of {listed}")
        self.weight_dtype = TORCH_DTYPES[infos[0].dtype]

    def _check_layout(self, name: str, buffer: Tensor, what: str) -> None:
        """Raises an error for a container that does not lie as the others do, or in which experts cannot run."""
        layouts = {_registry.layer_layout(expert) for expert in container_buffers(buffer)}
        others = [each for own, each in self._parameters.items() if own != name and each is not None]
        # Memory that nobody has filled yet, which `to_empty` gives, has no layout and asks for none.
        wanted = {layout_of(each) for each in others if has_bytes(each)} - {""} or {"coded", *PACKED_LAYOUTS}
        if wanted & set(PACKED_LAYOUTS):  # containers are packed each in its own way
            wanted |= set(PACKED_LAYOUTS)
        are_packed = layouts <= set(PACKED_LAYOUTS)
        reason: str | None = ""
        if len(layouts) > 1 or not layouts <= wanted:
            reason = f"its experts lie {' and '.join(sorted(layouts))}, and not {' or '.join(sorted(wanted))}"
        elif are_packed:
            reason = self._find_packing_obstacle(buffer.device)
        if reason:
            raise make_error(Status.TRF_ERR_UNSUPPORTED, f"{what}: {reason}")
        if (read_order(buffer) == ROWS_INTERLEAVED) != (are_packed and name == "gate_up_proj"):
            raise ValueError(f"{what}: rows of gate_up_proj are interleaved if it is packed, and no others are")

    def _decode(self, name: str) -> Tensor:
        return _ops.decode_experts(self._loaded_container(name), *self.container_shapes[name], self.dense_dtype)

    def _loaded_container(self, name: str) -> Tensor:
        container: Tensor = getattr(self, name)
        if not has_bytes(container):
            raise ValueError(f"{name} has no weights yet: they are to be loaded")
        return container

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.dense_dtype = fn(torch.empty(0, dtype=self.dense_dtype, device=self.down_proj.device)).dtype
        return self

    def _containers(self) -> list[Tensor]:
        return [each for each in self._parameters.values() if each is not None]

    def _note_adoption(self) -> None:
        containers = [each for each in self._containers() if has_bytes(each)]
        if len(containers) < len(self.container_shapes):
            self.product_dtypes = ()
            self.packing_refusal = "its experts are to be loaded first"
            return
        layouts = {layout_of(container) for container in containers}
        are_packed = layouts <= set(PACKED_LAYOUTS)
        if layouts <= {"coded", *PACKED_LAYOUTS}:  # else the bytes are still to be written
            self._layout = "coded" if not are_packed else "packed8" if layouts == {"packed8"} else "packed"
        dtypes = _X_DTYPES if layouts == {"coded"} else _X_DTYPES[:1] if are_packed else ()
        self.product_dtypes = tuple(
            dtype for dtype in dtypes if all(multiplies(container, dtype) for container in containers)
        )
        self.packing_refusal = self._find_packing_refusal() if layouts == {"coded"} else "its experts are packed"

    def _find_packing_obstacle(self, device: torch.device) -> str | None:
        reason = _packed_experts.find_packing_obstacle(self, device)
        return reason or _packed_experts.find_shape_obstacle(self.dense_shapes()["gate_up_proj"], device)

    def _coded_shapes(self) -> dict[str, tuple[int, int, int]]:
        """Returns the shapes of the containers that the module has if it lies coded."""
        shapes = self.dense_shapes()
        experts, rows, cols = shapes["gate_up_proj"]
        half = experts, rows // 2, cols
        shapes.update(gate_proj=half, up_proj=half)
        return {name: shapes[name] for name in self._coded_infos}

    def _encode_packed(self) -> dict[str, Tensor]:
        """Returns the containers, on the CPU, that the module has if it lies coded."""
        infos = [self._coded_infos["down_proj"]]
        (down,) = _packed_experts.encode_packed(self.down_proj, infos, is_interleaved=False)
        return {**self._encode_gate_up(), "down_proj": down}

    def _encode_gate_up(self) -> dict[str, Tensor]:
        """Returns the containers of `_encode_packed` other than down_proj."""
        infos = {name: info for name, info in self._coded_infos.items() if name != "down_proj"}
        # Rows were in turns when the container was taken. Its head may have changed in memory since then.
        made = _packed_experts.encode_packed(self.gate_up_proj, list(infos.values()), is_interleaved=True)
        return dict(zip(infos, made))

    def _pack(
        self, containers: dict[str, Tensor], layout: str = "packed"
    ) -> tuple[dict[str, Tensor], dict[str, LayerInfo | None]]:
        """Returns packed containers of coded ones, down_proj, all others or both, and how these were encoded."""
        pack = _packed_experts.pack_fp8_experts if layout == "packed8" else _packed_experts.pack_experts_quietly
        first = [container for name, container in containers.items() if name != "down_proj"]
        made = {"gate_up_proj": pack(*first, interleave=True)} if first else {}
        if "down_proj" in containers:
            made["down_proj"] = pack(containers["down_proj"], interleave=False)
        return made, {name: _registry.expert_infos(each)[0] for name, each in containers.items()}

    def _put_containers(self, containers: dict[str, Tensor]) -> None:
        """Replaces all containers, after which the module lies in their layout."""
        shapes = self._coded_shapes() if tuple(containers) != _PACKED_NAMES else self.dense_shapes()
        for container in containers.values():
            _registry.adopt(container)  # before anything has changed
        self._parameters.clear()
        self.container_shapes = {name: shapes[name] for name in containers}
        for name, container in containers.items():
            self.register_parameter(name, as_parameter(container))

    def _state_names(self) -> tuple[str, ...]:
        return tuple(self._coded_infos) if self._is_packed() else self._buffer_names()

    def _is_packed(self) -> bool:
        return self._layout in PACKED_LAYOUTS

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._layout == "coded" or self._is_loading or not all(has_bytes(each) for each in self._containers()):
            return
        for name in self._buffer_names():
            del destination[prefix + name]
        destination.update((prefix + name, made) for name, made in self._encode_packed().items())

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
        if self._layout == "coded":
            lists = strict, missing_keys, unexpected_keys, error_msgs
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *lists)
            return
        assign = bool(local_metadata.get("assign_to_params_buffers", False))
        names, own_names = self._state_names(), self._buffer_names()
        given = {name: state_dict[prefix + name] for name in names if prefix + name in state_dict}
        try:
            self._load_coded(given, assign)
        except (TransfuseError, TypeError, ValueError) as failure:
            listed = ", ".join(f'"{prefix}{name}"' for name in given)
            error_msgs.append(f"While loading the compressed experts {listed}: {failure}")
        # Torch is given the packed containers again, which changes nothing, and reports all other keys.
        own_keys = {prefix + name for name in (*names, *own_names)}
        rest = {key: value for key, value in state_dict.items() if key not in own_keys}
        for name, blob in given.items():
            if isinstance(blob, Tensor):
                rest[prefix + packed_name(name)] = self._loaded(packed_name(name), blob, assign)
        missing: list[str] = []
        nn.Module._load_from_state_dict(
            self, rest, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs
        )
        missing_keys += [prefix + name for name in names if strict and name not in given]
        missing_keys += [key for key in missing if key not in own_keys]
        unexpected = [prefix + name for name in own_names if name not in names]
        unexpected_keys += [key for key in unexpected if strict and key in state_dict]

    def _load_coded(self, blobs: dict[str, Tensor], assign: bool) -> None:
        """Packs coded containers of a state dict and takes them; the parameters stay the same ones unless `assign`.

        A parameter on the meta device takes nothing unless `assign`, like any other parameter of torch.
        """
        shapes = self._coded_shapes()
        to_pack = {}
        for name, given in blobs.items():
            blob = take_container(given, f"{name} of a {type(self).__name__}", shapes[name])
            taker = self._parameters[packed_name(name)]
            assert taker is not None
            if assign or not taker.is_meta:
                to_pack[name] = blob.detach().to(blob.device if taker.is_meta else taker.device)
        packed, infos = self._pack(self._complete(to_pack))
        self._coded_infos = {**self._coded_infos, **infos}
        for name, made in packed.items():
            if assign:
                setattr(self, name, as_parameter(made))
            else:
                self._change_data(name, made)

    def _complete(self, blobs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns coded containers, and what is packed together with them: it is encoded from the module.

        Raises
        ------
        ValueError
            The module has no weights yet from which it could be.
        """
        names = [name for name in self._coded_infos if name != "down_proj"]
        given = [name for name in names if name in blobs]
        if len(given) in (0, len(names)):
            return blobs
        if not has_bytes(self.gate_up_proj) or layout_of(self.gate_up_proj) not in PACKED_LAYOUTS:
            missing = ", ".join(name for name in names if name not in given)
            raise ValueError(
                f"{' and '.join(names)} are packed together and have to come together, since the module has no weights "
                f"yet; the state dict lacks {missing}"
            )
        device = blobs[given[0]].device
        encoded = {name: made.to(device) for name, made in self._encode_gate_up().items() if name not in given}
        return {name: found[name] for name in self._coded_infos for found in (blobs, encoded) if name in found}

    def _forward_dense(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        own = self._dense_class.forward
        result: Tensor = own(_Dense(self, self.decode_weights()), hidden_states, top_k_index, top_k_weights)
        return result

    def _forward_packed(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        if top_k_index.shape[-1] > _packed_experts.MOST_ROUTES:
            return self._forward_dense(hidden_states, top_k_index, top_k_weights)
        activation = _packed_experts.name_activation(self)
        assert activation is not None
        gate_up, up = self._gate_and_up()
        containers = gate_up, self.down_proj
        return _ops.moe(hidden_states, top_k_index, top_k_weights.float(), *containers, activation=activation, up=up)

    def _gate_and_up(self) -> tuple[Tensor, Tensor | None]:
        """Returns the containers as `moe` takes them."""
        if "gate_proj" in self.container_shapes:
            return self._loaded_container("gate_proj"), self._loaded_container("up_proj")
        return self._loaded_container("gate_up_proj"), None

    def _find_packing_refusal(self) -> str:
        """Returns why calls with many tokens cannot pack these coded experts, or ""; this may wait for the device."""
        device = self.down_proj.device
        if device.type not in _PACKING_DEVICES:
            return f"experts are not packed for products on {device.type}"
        reason = self._find_packing_obstacle(device) if self.has_gate else "its experts have no gate"
        if reason:
            return reason
        gate_up, up = self._gate_and_up()
        top_k = getattr(getattr(self, "config", None), "num_experts_per_tok", None)
        activation = _packed_experts.name_activation(self)
        assert activation is not None
        try:
            _registry.prepare_moe(gate_up, self.down_proj, up=up, top_k=top_k or 1, activation=activation)
        except TransfuseError as refusal:  # too little memory, too: decoding may find some
            return refusal.message
        return ""

    def _forward_compressed(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        tokens, k = top_k_index.shape
        ids, order = torch.sort(top_k_index.reshape(-1))
        # This is where each expert's tokens begin, and where the last one's end: [experts + 1].
        bounds = torch.arange(self.num_experts + 1, device=ids.device, dtype=ids.dtype)
        offsets = torch.searchsorted(ids, bounds, out_int32=True)
        x = hidden_states.expand(k, -1) if tokens == 1 else hidden_states[order // k]
        y = self._multiply_by_experts(x, offsets) * top_k_weights.reshape(-1)[order].unsqueeze(-1)
        if tokens == 1:
            return y.sum(dim=0, keepdim=True).to(hidden_states.dtype)
        # Rows return to the order of the tokens, and are summed up as in transformers, without atomic additions.
        back = torch.empty_like(order)
        back[order] = torch.arange(tokens * k, device=order.device)
        return y[back].view(tokens, k, y.shape[-1]).sum(dim=1).to(hidden_states.dtype)

    def _multiply_by_experts(self, x: Tensor, offsets: Tensor) -> Tensor:
        """Returns the result of each row's expert; rows are sorted by expert."""
        products = {
            name: _ops.experts(x, offsets, getattr(self, name), rows)
            for name, (_, rows, _) in self.container_shapes.items()
            if name != "down_proj"
        }
        if not self.has_gate:
            hidden = self.act_fn(products["up_proj"])
        elif "gate_up_proj" in products:
            hidden = self._apply_gate(products["gate_up_proj"])
        elif self._has_plain_gate():
            hidden = self.act_fn(products["gate_proj"]) * products["up_proj"]
        else:
            hidden = self._apply_gate(torch.cat([products["gate_proj"], products["up_proj"]], dim=-1))
        return _ops.experts(hidden, offsets, self.down_proj, self.container_shapes["down_proj"][1])

    def _has_plain_gate(self) -> bool:
        """Returns whether the gate is act_fn(gate) * up, which transformers' decorator adds by this name."""
        return getattr(self._apply_gate, "__name__", "") == "_default_apply_gate"


def _do_nothing() -> None:
    pass


class _Dense:
    """An experts module as the model's own function sees it, with dense weights and otherwise unchanged."""

    def __init__(self, module: TransfuseExperts, weights: dict[str, Tensor]) -> None:
        self._module = module
        for name, weight in weights.items():
            setattr(self, name, weight)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _shapes_of(module: nn.Module, given: tuple[str, ...]) -> dict[str, tuple[int, int, int]]:
    """Returns the shapes that the dense parameters require of the decoded containers, in the order of _NAMES."""
    choices: list[set[str]] = [{"up_proj", "down_proj"}]
    if module.has_gate:
        choices = [{"gate_up_proj", "down_proj"}]
        if module.is_concatenated:
            choices.append({"gate_proj", "up_proj", "down_proj"})
    if set(given) not in choices:
        wanted = " or ".join(", ".join(name for name in _NAMES if name in choice) for choice in choices)
        raise ValueError(f"containers are given for {', '.join(given)}; {type(module).__name__} takes {wanted}")
    own = get_expert_names(module)[0]
    first, down = module._parameters[own], module._parameters["down_proj"]
    assert first is not None and down is not None
    experts, rows, cols = first.shape
    shapes = {"down_proj": (experts, down.shape[1], down.shape[2])}
    if "gate_proj" in given:
        shapes.update(gate_proj=(experts, rows // 2, cols), up_proj=(experts, rows // 2, cols))
    else:
        shapes[own] = (experts, rows, cols)
    return {name: shapes[name] for name in _NAMES if name in given}


def _class_of(dense_class: type[nn.Module]) -> type[TransfuseExperts]:
    """Returns the class of compressed modules that stands for a class of a model."""
    if dense_class not in _classes:
        _classes[dense_class] = _make_class(dense_class)
    return _classes[dense_class]


def _make_class(dense_class: type[nn.Module]) -> type[TransfuseExperts]:
    members = {"_dense_class": dense_class, "__module__": __name__, "__doc__": TransfuseExperts.__doc__}
    return type(f"Transfuse{dense_class.__name__}", (TransfuseExperts, dense_class), members)


def _new_instance(dense_class: type[nn.Module]) -> TransfuseExperts:
    made = _class_of(dense_class)
    return made.__new__(made)


__all__ = [
    "TransfuseExperts",
    "find_experts_obstacle",
    "get_expert_names",
    "get_experts_decode_threshold",
    "replace_experts",
    "set_experts_decode_threshold",
]
