# SPDX-License-Identifier: Apache-2.0
"""Modules whose weights are compressed: `TransfuseLinear` is an `nn.Linear`, `TransfuseEmbedding` an `nn.Embedding`.

The parameter `weight` is the layer's buffer: uint8, 1-D, without a gradient, in memory of torch. So tied weights stay
one parameter, a state dict has the names of the uncompressed model, and code that asks `isinstance(module, nn.Linear)`
still works; but it must not take `weight` for a matrix. `decode_weight` gives the matrix.

The layer may have another layout than the coded one, packed for instance; `layout` says which. State dicts and pickles
always have its blob.

What moves the buffer (`to`, `cuda`, `cpu`, `deepcopy`, `pickle`, `torch.load`, `load_state_dict`) also adopts it at its
new place. What changes dtypes (`half`, `bfloat16`, `float`, `to(dtype)`) leaves it and `weight_dtype` as they are, and
changes only the bias. If x has another dtype than the weights, a linear layer decodes them to that dtype and multiplies
as torch does, which is slow. An embedding gives rows of the dtype to which its model was converted.
"""

from __future__ import annotations

import copy
import multiprocessing.context
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from transfuse._errors import TransfuseError
from transfuse._options import find_layout, fits_layout
from transfuse._results import LayerInfo
from transfuse.torch import _layouts, _ops, _registry
from transfuse.torch._buffer_module import BufferModule, as_parameter, has_bytes, is_buffer, is_layer
from transfuse.torch._dtypes import TORCH_DTYPES

if TYPE_CHECKING:
    from typing import Self


class CompressedModule(BufferModule):
    """The base of modules with one matrix: the layer's buffer is their `weight`.

    Attributes
    ----------
    weight : nn.Parameter, uint8, [buffer_bytes]
        The layer's buffer, which is its blob if it lies coded. It is empty on the meta device, and before it is loaded.
    weight_dtype : torch.dtype
        The dtype of the decoded weights, which is the source's.
    layout : str
        "coded", "packed", "plain" or "packed8".
    """

    weight: Tensor
    _weight_dtype: torch.dtype
    _compute_dtype: torch.dtype | None = None
    _from_dense: str  # the name of the method that makes such a module of a dense one

    @property
    def weight_shape(self) -> tuple[int, int]:
        """The numbers of rows and columns of the decoded weights."""
        raise NotImplementedError

    @property
    def weight_dtype(self) -> torch.dtype:
        """The dtype of the decoded weights, or of those that are still to be loaded, which may be set."""
        self._ask_layer()
        return self._weight_dtype

    @weight_dtype.setter
    def weight_dtype(self, dtype: torch.dtype) -> None:
        self._weight_dtype = dtype

    @property
    def layout(self) -> str:
        """As in `BufferModule`."""
        self._ask_layer()
        return self._layout

    def _ask_layer(self) -> None:
        """Takes dtype and layout from the layer: a module that shares the parameter may have put another one there."""
        # A graph that is traced reads what the module knows already, since the registry cannot be asked there.
        if torch.compiler.is_compiling():
            return
        weight = self._parameters.get("weight")
        if weight is not None and is_layer(weight):
            self._note_layer(weight)

    def _note_layer(self, weight: Tensor) -> None:
        self._layout = _registry.layer_layout(weight)
        self._weight_dtype = TORCH_DTYPES[_registry.layer_info(weight).dtype]

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of the dense module's weights, under the name by which PEFT asks quantized layers for it.

        It differs from the weights' dtype if a model was loaded in another dtype, or quantized.
        """
        return self._compute_dtype or self.weight_dtype

    def expect_compute_dtype(self, dtype: torch.dtype) -> None:
        """Sets `compute_dtype`."""
        self._compute_dtype = dtype

    def info(self) -> LayerInfo:
        """Returns what the layer says of itself; a plain or packed layer says what its blob said.

        Raises
        ------
        ValueError
            There are no weights yet.
        """
        self._check_loaded()
        return _registry.layer_info(self.weight)

    def decode_weight(self) -> Tensor:
        """Returns the decoded weights, a tensor of `weight_dtype`, [rows][cols], on the device where they lie.

        Raises
        ------
        ValueError
            There are no weights yet.
        DataError
            A tile is corrupt.
        """
        self._check_loaded()
        return _ops.decode(self.weight, *self.weight_shape, self.weight_dtype)

    @property
    def layout_reason(self) -> str:
        """Why FP8 weights for which "packed" was asked lie "packed", and not "packed8"; "" for all others.

        It is known of weights where they were packed, and not of those of a module that was copied or moved.
        """
        return _registry.layout_reason(self.weight) if self.layout == "packed" and has_bytes(self.weight) else ""

    def _check_loaded(self) -> None:
        if not has_bytes(self.weight):
            raise ValueError(f"{type(self).__name__} has no weights yet: they are to be loaded")

    def _buffer_names(self) -> tuple[str, ...]:
        return ("weight",)

    def _take_buffer(self, name: str, buffer: Tensor | None) -> None:
        rows, cols = self.weight_shape
        if buffer is None or not is_buffer(buffer):
            found = "None" if buffer is None else f"{buffer.dtype} {list(buffer.shape)}"
            raise TypeError(
                f"the weight of {self.describe()}, of {rows} x {cols}, is a layer's buffer (torch.uint8, 1-D), not "
                f"{found}; {self._from_dense} compresses dense weights"
            )
        if not has_bytes(buffer):
            return
        _registry.adopt(buffer)
        info = _registry.layer_info(buffer)
        if (info.rows, info.cols) != (rows, cols):
            raise ValueError(
                f"the layer is one of {info.rows} x {info.cols} weights, and the module's are {rows} x {cols}"
            )
        self.weight_dtype = TORCH_DTYPES[info.dtype]

    def _note_adoption(self) -> None:
        weight = self._parameters.get("weight")
        if weight is None or not has_bytes(weight):
            return
        try:
            self._note_layer(weight)
        except TransfuseError:  # the bytes are still to be written
            pass

    def expect_layout(self, layout: str) -> None:
        """Sets how weights that are to be loaded will lie in memory; existing weights stay as they are."""
        find_layout(layout)
        if not has_bytes(self.weight):
            self._layout = layout

    def _lay_out(self, blob: Tensor) -> Tensor:
        return self._convert_or_warn(blob, self.layout)

    def _convert_or_warn(self, blob: Tensor, layout: str) -> Tensor:
        # A module says "packed8" where its last weights were FP8; the next ones need not be.
        made, refusal = _layouts.convert_or_keep(blob, "packed" if layout == "packed8" else layout)
        if refusal:
            rows, cols = self.weight_shape
            warnings.warn(f"a {type(self).__name__} of {rows} x {cols} stays coded, since {refusal}", stacklevel=3)
        return made

    def _encode_again(self, buffer: Tensor) -> Tensor:
        return _layouts.encode_again(buffer)

    # Without this, copies would go through the pickle, and encode layers of another layout only to decode them.

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        self._ask_layer()
        made.__setstate__(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        self._ask_layer()
        made.__setstate__({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return made

    def __getstate__(self) -> dict[str, Any]:
        layout, state = self.layout, self.__dict__.copy()
        weight = self._parameters["weight"]
        if layout != "coded" and weight is not None and has_bytes(weight):
            state["_parameters"] = {**self._parameters, "weight": _pickled(weight)}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "weight_dtype" in state:  # a pickle of an earlier version
            state = dict(state)
            state["_weight_dtype"] = state.pop("weight_dtype")
        layout = state.get("_layout", self._layout)
        super().__setstate__(state)
        weight = self._parameters["weight"]
        if weight is not None and has_bytes(weight) and not fits_layout(self._layout, layout):
            weight.data = self._convert_or_warn(weight, layout)  # once for all modules that share it
            self._note_adoption()

    def _describe_weight(self) -> str:
        if not has_bytes(self.weight):
            return f"weights to be loaded, dtype={self.weight_dtype}"
        try:
            info = _registry.layer_info(self.weight)
        except TransfuseError as failure:
            return f"weights that are no layer ({failure.message})"
        bits = 8 * self.weight.numel() / (info.rows * info.cols)
        layout = "" if self.layout == "coded" else f", layout={self.layout}"
        return f"codec={info.codec}{layout}, bits={bits:.2f}, dtype={self.weight_dtype}"


# The parameters that pickles have in the place of those in other layouts, so that shared ones are shared in pickles,
# too. The keys are storages, since addresses come again: torch.multiprocessing moves a blob to shared memory, and the
# next blob may come to lie where it was.
_pickled_parameters: weakref.WeakKeyDictionary[torch.UntypedStorage, weakref.ref[nn.Parameter]] = (
    weakref.WeakKeyDictionary()
)

# What was pickled for processes that were started here. They inherit the file descriptors of shared memory when they
# start, which is after pickling, and these are closed with the last reference to that memory.
_sent_parameters: weakref.WeakKeyDictionary[Any, list[nn.Parameter]] = weakref.WeakKeyDictionary()


def _pickled(weight: nn.Parameter) -> nn.Parameter:
    blob = _layouts.encode_for_pickle(weight)
    known = _pickled_parameters.get(blob.untyped_storage())
    parameter = known() if known else None
    if parameter is None:
        parameter = as_parameter(blob)
        _pickled_parameters[blob.untyped_storage()] = weakref.ref(parameter)
    process = multiprocessing.context.get_spawning_popen()
    if process is not None:
        _sent_parameters.setdefault(process, []).append(parameter)
    return parameter


def _empty_buffer(device: torch.device | str | None) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device)


class TransfuseLinear(CompressedModule, nn.Linear):
    """An `nn.Linear` with compressed weights: y = x . W^T + bias.

    x is [..., in_features], y [..., out_features] of x's dtype. There are gradients with respect to x and bias, so that
    adapters train on top; the weights have none. In exact mode (`transfuse.set_exact`) y is that of `nn.Linear` with
    the decoded weights, bit for bit.

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
    device : torch.device, optional
    dtype : torch.dtype, optional
        The dtype of the weights that are to come, and of the bias.
    layout : str
        How the weights that are to come will lie in memory, "coded", "packed", "plain" or "packed8".

    The constructor makes a module whose weights are still to be loaded; `from_buffer` and `from_linear` make one that
    has them.
    """

    _from_dense = "TransfuseLinear.from_linear"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        layout: str = "coded",
    ) -> None:
        nn.Module.__init__(self)
        find_layout(layout)
        self._layout = layout
        self.in_features = in_features
        self.out_features = out_features
        self.weight_dtype = dtype or torch.get_default_dtype()
        self.weight = as_parameter(_empty_buffer(device))
        if bias:
            self.bias = nn.Parameter(torch.zeros(out_features, dtype=self.weight_dtype, device=device))
        else:
            self.register_parameter("bias", None)

    @property
    def weight_shape(self) -> tuple[int, int]:
        """`out_features` and `in_features`."""
        return self.out_features, self.in_features

    @classmethod
    def from_buffer(
        cls, buffer: Tensor, rows: int, cols: int, dtype: torch.dtype | None = None, bias: Tensor | None = None
    ) -> TransfuseLinear:
        """Makes a module from a layer's buffer, which is adopted.

        Parameters
        ----------
        buffer : Tensor, uint8, [buffer_bytes]
            A parameter stays the same one, so that modules can share it. If it is on the meta device, or empty, the
            weights are still to be loaded. A plain or packed layer makes a module of that layout.
        rows, cols : int
            `out_features` and `in_features`.
        dtype : torch.dtype, optional
            What the weights must be; needed if the bytes cannot say it.
        bias : Tensor, [rows], optional

        Raises
        ------
        TypeError, ValueError
            `buffer` is not such a tensor, or the layer has another shape or dtype.
        DataError, UnsupportedError
            The layer is corrupt, or of another version.
        """
        layer = cls(cols, rows, bias=False, device="meta", dtype=dtype)
        layer.weight = as_parameter(buffer)
        _check_dtype(layer, dtype)
        if bias is not None:
            layer.bias = bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias, bias.is_floating_point())
        return layer

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, layout: str = "coded", **options: Any) -> TransfuseLinear:
        """Compresses the weights of an `nn.Linear`, which stays as it is; the bias is the same parameter.

        Parameters
        ----------
        linear : nn.Linear
            Its weights may lie on any device; the layer will lie on the same one.
        layout : str
            How the layer will lie in memory, "coded", "packed", "plain" or "packed8".
        **options
            `codec`, `bits`, `granularity`, `favor`, `threads` and `verify` of `transfuse.Layer.encode`.

        Raises
        ------
        TypeError
            `linear` is something else, or has compressed weights already.
        ArgumentError
            No codec takes the weights: F32 needs `bits`, or `codec="bf16"`, which rounds; there is no such layout.
        UnsupportedError
            The layout does not take the codec (packed layers are of bf16, plain ones of bf16 and fp16), or not these
            weights.
        """
        if not isinstance(linear, nn.Linear) or isinstance(linear, CompressedModule):
            raise TypeError(f"from_linear takes an nn.Linear with dense weights, not a {type(linear).__name__}")
        buffer = _layouts.make_layer(linear.weight, layout, options)
        layer = cls.from_buffer(buffer, linear.out_features, linear.in_features, None, linear.bias)
        return layer.train(linear.training)

    @property
    def W_q(self) -> Tensor:
        """The same as `weight`; PEFT tells by this name that `dequantize` gives the weights, for instance for DoRA."""
        return self.weight

    def dequantize(self) -> Tensor:
        """Returns what `decode_weight` returns; PEFT calls it by this name."""
        return self.decode_weight()

    def to_dense(self) -> nn.Linear:
        """Returns an `nn.Linear` with the decoded weights, and a bias of its own."""
        weight = self.decode_weight()
        dense = nn.Linear(self.in_features, self.out_features, self.bias is not None, "meta")
        dense.weight = nn.Parameter(weight, weight.is_floating_point())
        if self.bias is not None:
            dense.bias = nn.Parameter(self.bias.detach().clone())
        return dense.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        """Returns y, [..., out_features], of the dtype of x, [..., in_features]."""
        # nn.Module looks up self.weight in three dictionaries, in Python, which would take a microsecond a call.
        parameters: dict[str, Any] = self._parameters
        return _ops.linear(x, parameters["weight"], parameters["bias"], self.out_features)

    def extra_repr(self) -> str:
        """Returns what nn.Linear's does, and the codec, bits a weight and dtype of the weights."""
        features = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{features}, {self._describe_weight()}"


class TransfuseEmbedding(CompressedModule, nn.Embedding):
    """An `nn.Embedding` with compressed weights, of which single rows are decoded.

    ids are int32 or int64 of any shape; the result is [..., embedding_dim] of `output_dtype`. There is no gradient, so
    `padding_idx`, `scale_grad_by_freq` and `sparse` have no effect; they are kept for code that reads them.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
    padding_idx : int, optional
        A row, counted from the end if negative, as in nn.Embedding.
    device : torch.device, optional
    dtype : torch.dtype, optional
        The dtype of the weights that are to come.
    layout : str
        How they will lie in memory, "coded", "packed", "plain" or "packed8".

    Attributes
    ----------
    output_dtype : torch.dtype
        The dtype of the rows. It is that of the weights, unless these were rounded or quantized to another one than the
        model's, or the model was converted by `half`, `to(dtype)` and so on.
    """

    _from_dense = "TransfuseEmbedding.from_embedding"

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        layout: str = "coded",
    ) -> None:
        nn.Module.__init__(self)
        find_layout(layout)
        self._layout = layout
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx is {padding_idx}; there are {num_embeddings} rows")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx % num_embeddings if padding_idx is not None else None
        self.max_norm = None
        self.norm_type = 2.0
        self.scale_grad_by_freq = False
        self.sparse = False
        self.weight_dtype = self.output_dtype = dtype or torch.get_default_dtype()
        self.weight = as_parameter(_empty_buffer(device))

    @property
    def weight_shape(self) -> tuple[int, int]:
        """`num_embeddings` and `embedding_dim`."""
        return self.num_embeddings, self.embedding_dim

    @classmethod
    def from_buffer(
        cls, buffer: Tensor, rows: int, cols: int, dtype: torch.dtype | None = None, padding_idx: int | None = None
    ) -> TransfuseEmbedding:
        """Makes an embedding of a layer's buffer; parameters and errors are those of `TransfuseLinear.from_buffer`."""
        embedding = cls(rows, cols, padding_idx, device="meta", dtype=dtype)
        embedding.weight = as_parameter(buffer)
        _check_dtype(embedding, dtype)
        embedding._set_output_dtype(embedding.weight_dtype)
        return embedding

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, *, layout: str = "coded", **options: Any) -> TransfuseEmbedding:
        """Compresses the weights of an `nn.Embedding`, which stays as it is.

        Embeddings of transformers that multiply by a scale (Gemma's, BART's) become `TransfuseScaledEmbedding`.
        Parameters and errors are those of `TransfuseLinear.from_linear`.

        Raises
        ------
        ValueError
            The embedding has a `max_norm`, which changes weights while they are read.
        """
        if not isinstance(embedding, nn.Embedding) or isinstance(embedding, CompressedModule):
            raise TypeError(
                f"from_embedding takes an nn.Embedding with dense weights, not a {type(embedding).__name__}"
            )
        buffer = _layouts.make_layer(embedding.weight, layout, options)
        return make_embedding(embedding, buffer).train(embedding.training)

    def to_dense(self) -> nn.Embedding:
        """Returns an `nn.Embedding` with the decoded weights, of `output_dtype`."""
        weight = self.decode_weight().to(self.output_dtype)
        dense = nn.Embedding(*self.weight_shape, self.padding_idx, device="meta")
        dense.weight = nn.Parameter(weight, weight.is_floating_point())
        dense.scale_grad_by_freq, dense.sparse = self.scale_grad_by_freq, self.sparse
        return dense.train(self.training)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the rows of ids, [..., embedding_dim], of `output_dtype`."""
        return _ops.embedding(ids, self.weight, self.num_embeddings, self.embedding_dim, self.output_dtype)

    def _set_output_dtype(self, dtype: torch.dtype) -> None:
        self.output_dtype = dtype

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # A float parameter without elements shows what becomes of the others.
        self._set_output_dtype(fn(torch.empty(0, dtype=self.output_dtype, device=self.weight.device)).dtype)
        return self

    def extra_repr(self) -> str:
        """Returns what nn.Embedding's does, and the codec, bits a weight and dtype of the weights."""
        padding = f", padding_idx={self.padding_idx}" if self.padding_idx is not None else ""
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, {self._describe_weight()}"


class TransfuseScaledEmbedding(TransfuseEmbedding):
    """An embedding whose rows are multiplied by a number, as in the models of Gemma and BART.

    Attributes
    ----------
    scale : float
    rounds_scale : bool
        Whether the number is rounded to the dtype of the rows first, as Gemma's is.
    multiplier : float
        The number that rows are multiplied by.
    """

    scale: float = 1.0
    rounds_scale: bool = False
    multiplier: float = 1.0

    @classmethod
    def with_scale(cls, embedding: TransfuseEmbedding, scale: float, rounds_scale: bool) -> TransfuseScaledEmbedding:
        """Makes a scaled embedding of the same parameter, whose weights may still have to be loaded."""
        scaled = cls(*embedding.weight_shape, embedding.padding_idx, "meta", embedding.weight_dtype, embedding.layout)
        scaled.weight = embedding.weight
        scaled.scale, scaled.rounds_scale = scale, rounds_scale
        scaled._set_output_dtype(embedding.output_dtype)
        return scaled

    @property
    def embed_scale(self) -> Tensor:
        """The multiplier as a tensor, as transformers and PEFT ask for it."""
        return torch.tensor(self.multiplier, device=self.weight.device)

    def to_dense(self) -> nn.Embedding:
        """Raises UnsupportedError: the model's own class, which multiplies, is not known any more."""
        return BufferModule.to_dense(self)  # type: ignore[return-value]

    def _set_output_dtype(self, dtype: torch.dtype) -> None:
        super()._set_output_dtype(dtype)
        rounded = torch.tensor(self.scale, dtype=dtype, device="cpu").item()
        self.multiplier = float(rounded) if self.rounds_scale else self.scale

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the rows of ids, [..., embedding_dim], of `output_dtype`, times the scale."""
        return super().forward(ids) * self.multiplier

    def extra_repr(self) -> str:
        """Returns what TransfuseEmbedding's does, and the multiplier."""
        return f"{super().extra_repr()}, multiplier={self.multiplier:g}"


def find_scale(embedding: nn.Embedding) -> tuple[float, bool] | None:
    """Returns scale and `rounds_scale` of an embedding of transformers that multiplies by a scale; None for others.

    The embeddings of Gemma keep it in a buffer, which is rounded to the weights' dtype, and as a float; those of BART
    only as a float. They share no class, so we recognize them by the classes' names, and by having nothing else.
    """
    kind = type(embedding)
    if not kind.__name__.endswith("ScaledWordEmbedding") or kind.__bases__ != (nn.Embedding,):
        return None
    if set(embedding._parameters) != {"weight"} or not set(embedding._buffers) <= {"embed_scale"}:
        return None
    if "embed_scale" in embedding._buffers:
        scale = getattr(embedding, "scalar_embed_scale", None)
        return (float(scale), True) if isinstance(scale, (int, float)) else None
    scale = getattr(embedding, "embed_scale", None)
    return (float(scale), False) if isinstance(scale, (int, float)) else None


def make_embedding(embedding: nn.Embedding, buffer: Tensor) -> TransfuseEmbedding:
    """Returns the compressed module for an embedding, plain or scaled, which stays as it is.

    The embedding may be on the meta device, and so may the buffer. Rows have the dtype of the embedding's weights.

    Raises
    ------
    TypeError
        The embedding is of a class whose forward is not known.
    ValueError
        The embedding has a `max_norm`.
    """
    scale = find_scale(embedding)
    if scale is None and type(embedding) is not nn.Embedding:
        raise TypeError(f"what a {type(embedding).__name__} does with its weights is not known")
    if embedding.max_norm is not None:
        raise ValueError(f"max_norm is {embedding.max_norm}: it would change compressed weights while they are read")
    made = TransfuseEmbedding.from_buffer(
        buffer, embedding.num_embeddings, embedding.embedding_dim, None, embedding.padding_idx
    )
    if embedding.weight.is_floating_point():
        made._set_output_dtype(embedding.weight.dtype)
    if scale is not None:
        made = TransfuseScaledEmbedding.with_scale(made, *scale)
    made.norm_type, made.scale_grad_by_freq = embedding.norm_type, embedding.scale_grad_by_freq
    made.sparse = embedding.sparse
    return made


def _check_dtype(module: CompressedModule, dtype: torch.dtype | None) -> None:
    if dtype is not None and module.weight_dtype != dtype:
        raise ValueError(f"the layer's weights are {module.weight_dtype}, not {dtype}")
