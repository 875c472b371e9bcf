# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts of transformers whose weights are compressed.

transformers keeps the experts of a layer in two 3-D parameters: `gate_up_proj`, [experts][2 x intermediate][hidden],
and `down_proj`, [experts][hidden][intermediate]. `replace_experts` gives such a module containers in their place. A
container is one uint8 tensor that holds the blobs of all experts (`transfuse.torch.make_container`), and a parameter:

    gate_proj, up_proj, down_proj       where gate and up are tensors of their own, [experts][intermediate][hidden]
    gate_up_proj, down_proj             where they are one tensor, [experts][2 x intermediate][hidden]
    up_proj, down_proj                  where the experts have no gate

So a state dict has the containers under these names. The module's class becomes one that derives from the model's own.
For each call it chooses between two ways:

* If there are few tokens, they are sorted by expert on the device, and multiplied by the compressed experts. Nothing
  waits for the device, so the call can be captured in a CUDA graph.
* If there are more than `set_experts_decode_threshold` says, in exact mode, or with gradients, the experts of this
  layer are decoded, and the model's own function of `config._experts_implementation` is called with the dense weights,
  for the bits that it gives without compression. Their memory comes from torch's allocator and goes back before the
  next layer runs, which takes the same memory again: one layer's dense weights are held at a time. With gradients they
  are decoded again in the backward pass.

Expert parallelism, transposed weights and biases are not supported; `find_experts_obstacle` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transfuse._errors import Status, TransfuseError, make_error
from transfuse.torch import _ops, _registry
from transfuse.torch._buffer_module import BufferModule, as_parameter, has_bytes, is_buffer
from transfuse.torch._containers import container_buffers, make_container
from transfuse.torch._dtypes import TORCH_DTYPES
from transfuse.torch._encode import encode

if TYPE_CHECKING:
    from typing import Self

_FLAGS = ("has_gate", "has_bias", "is_transposed", "is_concatenated")
_NAMES = ("gate_up_proj", "gate_proj", "up_proj", "down_proj")
# If an expert has more tokens than this, on average, decoding all experts of a layer is faster than multiplying by
# compressed ones, which decodes an expert again for each 8 of its tokens (docs/notebook/2026-11-24-models.md).
_decode_threshold = 16
_X_DTYPES = (torch.bfloat16, torch.float16)
_classes: dict[type[nn.Module], type[TransfuseExperts]] = {}


def set_experts_decode_threshold(tokens: int) -> None:
    """Sets above how many tokens of a call experts are decoded and multiplied by the model's own function.

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
        raise ValueError(f"tokens is {tokens}; it must be 0 (always decode) or more")
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
        Or `gate` and `up`, each of [intermediate][hidden]; `up` alone where the experts have no gate.
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
    DataError, UnsupportedError
        A blob is corrupt, or of another version.
    """
    obstacle = find_experts_obstacle(module)
    if obstacle:
        raise ValueError(obstacle)
    given = {"gate_up_proj": gate_up, "gate_proj": gate, "up_proj": up, "down_proj": down}
    containers = {name: _as_container(experts) for name, experts in given.items() if experts is not None}
    shapes = _shapes_of(module, tuple(containers))
    dtype = next(parameter.dtype for parameter in module._parameters.values() if parameter is not None)
    made = _class_of(type(module)).__new__(_class_of(type(module)))
    state = {key: value for key, value in module.__dict__.items() if key != "_parameters"}
    made.__dict__.update(state, _parameters={}, container_shapes=shapes, weight_dtype=dtype, dense_dtype=dtype)
    made.product_dtypes = ()
    for name, container in containers.items():
        made.register_parameter(name, as_parameter(container))
    object.__setattr__(module, "__dict__", made.__dict__)
    object.__setattr__(module, "__class__", type(made))
    assert isinstance(module, TransfuseExperts)
    return module


def encode_experts(module: nn.Module, **options: Any) -> dict[str, Tensor]:
    """Encodes the dense experts of a module, gate and up apart where it keeps them one after the other.

    Parameters
    ----------
    module : nn.Module
        A module for which `find_experts_obstacle` returns None.
    **options
        The options of `transfuse.Layer.encode`.

    Returns
    -------
    dict of str to Tensor
        The arguments of `replace_experts`, on the device of the weights.
    """
    weights = {name: module._parameters[name] for name in get_expert_names(module)}
    parts: dict[str, Tensor] = {}
    for name, weight in weights.items():
        assert weight is not None
        if name == "gate_up_proj" and module.is_concatenated:
            parts["gate"], parts["up"] = weight.detach().chunk(2, dim=1)
        else:
            parts[name.removesuffix("_proj")] = weight.detach()
    return {
        key: _as_container([encode(expert, **options) for expert in part.cpu()]).to(part.device)
        for key, part in parts.items()
    }


class TransfuseExperts(BufferModule):
    """The base of the experts modules that `replace_experts` makes; their class derives from the model's, too.

    Attributes
    ----------
    gate_up_proj, gate_proj, up_proj, down_proj : nn.Parameter, uint8, [container_bytes]
        Two or three of these exist, as this file's docstring says.
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
    """

    container_shapes: dict[str, tuple[int, int, int]]
    weight_dtype: torch.dtype
    dense_dtype: torch.dtype
    product_dtypes: tuple[torch.dtype, ...]
    down_proj: Tensor
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
        few = top_k_index.numel() <= _decode_threshold * self.num_experts
        few = few and hidden_states.dtype in self.product_dtypes
        if _ops.is_exact() or not few:
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
            about = f"codec={info.codec}, bits={bits:.2f}, dtype={self.weight_dtype}"
            lines.append(f"{name}: {experts} of {rows} x {cols}, {about}")
        return "\n".join(lines)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The class is made at run time, so it cannot be found by its name.
        return _new_instance, (self._dense_class,), self.__dict__.copy()

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
        if any(_registry.layer_layout(expert) != "coded" for expert in container_buffers(buffer)):
            raise make_error(Status.TRF_ERR_UNSUPPORTED, f"{what}: experts lie coded")
        shapes = {(info.rows, info.cols) for info in infos}
        if len(infos) != experts or shapes != {(rows, cols)}:
            listed = ", ".join(f"{r} x {c}" for r, c in sorted(shapes))
            raise ValueError(f"{what}: the container has {len(infos)} experts of {listed}")
        self.weight_dtype = TORCH_DTYPES[infos[0].dtype]

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

    def _note_adoption(self) -> None:
        containers = [each for each in self._parameters.values() if each is not None and has_bytes(each)]
        whole = len(containers) == len(self.container_shapes)
        self.product_dtypes = tuple(
            dtype for dtype in _X_DTYPES if whole and all(_multiplies(container, dtype) for container in containers)
        )

    def _forward_dense(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        own = self._dense_class.forward
        result: Tensor = own(_Dense(self, self.decode_weights()), hidden_states, top_k_index, top_k_weights)
        return result

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


def _multiplies(container: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether the library multiplies x of a dtype by these experts, where they are."""
    try:
        _registry.check_experts_dtype(container, dtype)
    except TransfuseError:
        return False
    return True


class _Dense:
    """An experts module as the model's own function sees it, with dense weights and otherwise unchanged."""

    def __init__(self, module: TransfuseExperts, weights: dict[str, Tensor]) -> None:
        self._module = module
        for name, weight in weights.items():
            setattr(self, name, weight)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _as_container(experts: Tensor | Sequence[Tensor]) -> Tensor:
    """Returns a container as it is, or one that is made of the blobs of experts."""
    return experts if isinstance(experts, Tensor) else make_container(list(experts))


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
    "encode_experts",
    "find_experts_obstacle",
    "get_expert_names",
    "get_experts_decode_threshold",
    "replace_experts",
    "set_experts_decode_threshold",
]
