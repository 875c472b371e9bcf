# SPDX-License-Identifier: Apache-2.0
"""The contents of `quantization_config` in a compressed checkpoint's config.json (format/FORMAT.md, section 10)."""

from __future__ import annotations

import copy
import difflib
from typing import Any

from transfuse._errors import Status, make_error
from transfuse._layout_choice import Batches, read_batches, read_memory
from transfuse._options import LAYOUTS

# Files have the weights in this layout, whatever the layout in memory.
_FILE_LAYOUT = "coded"
# Each layer has the layout that `transfuse.choose_layouts` gives it.
AUTO_LAYOUT = "auto"


class Method(str):
    """The name of a quantization method, with what the frameworks expect of a member of their enums."""

    @property
    def value(self) -> str:
        """The name."""
        return str(self)


METHOD = Method("transfuse")

# transformers takes the value of `transformers_weights` in config.json for the name of a file. These are the words by
# which our sentence is recognized (format/FORMAT.md, section 10), and the sentence that the command writes.
COMPRESSED_BY = "compressed by transfuse"
NEEDS_TRANSFUSE = (
    f"this folder is {COMPRESSED_BY}; install transfuse to load it, or run 'transfuse decompress' to get the original "
    "files back"
)

# Users pass these arguments, and files have the other fields.
_ARGUMENTS = ("exact", "layout", "memory", "batches")
_KNOWN = f"{', '.join(map(repr, _ARGUMENTS[:-1]))} and {_ARGUMENTS[-1]!r}"
_WRITTEN = ("version", "codec", "bits", "stored", "source_config")


def check_loadable(stored: object) -> None:
    """Raises UnsupportedError for a checkpoint that was compressed for storage alone, as its `stored` says."""
    if stored:
        raise make_error(
            Status.TRF_ERR_UNSUPPORTED,
            "this checkpoint is stored only (--store-only, as for models that are quantized already): run "
            "'transfuse decompress' first, and load what that writes",
        )


def _check_auto(layout: str, memory: int | str | None, batches: Batches | None) -> None:
    """Raises an error if the arguments of "auto" do not go with the layout, or are none that it takes."""
    for name, value in (("memory", memory), ("batches", batches)):
        if value is not None and layout != AUTO_LAYOUT:
            raise TypeError(f"{name} goes with layout={AUTO_LAYOUT!r}, not with {layout!r}")
    if layout == AUTO_LAYOUT and memory is None:
        raise TypeError(f"layout={AUTO_LAYOUT!r} needs memory, such as memory='80GB'")
    if memory is not None:
        read_memory(memory)
    if batches is not None:
        read_batches(batches)


class ConfigFields:
    """The attributes that the configs for transformers and for diffusers share.

    Parameters
    ----------
    exact : bool
        Turns the exact mode on when a model is loaded with this config (`transfuse.set_exact`): logits are then those
        of the uncompressed model on the same machine, bit for bit. This affects the whole process, and is not saved.
    layout : str
        How the weights of linear layers, embeddings and experts lie in memory: "coded", "packed", "plain" or "packed8".
        "packed" is packed8 for FP8 that fits it. Weights that a layout does not take lie coded, as all experts do with
        "plain". In files all of them are coded, also after saving. With "auto" each layer has the layout that
        `transfuse.choose_layouts` gives it for `memory` and `batches`.
    memory : int or str, optional
        For "auto" alone, which needs it: what weights, CUDA and the framework may take, such as "80GB". The KV cache
        and activations come on top.
    batches : int, sequence of int, or mapping of int to float, optional
        For "auto" alone: rows of x of a step, as in `transfuse.choose_layouts`; 1 if it is not given.
    version, codec, bits, stored, source_config
        What `transfuse compress` wrote; not for users.

    Raises
    ------
    UnsupportedError
        There is no such layout.
    ArgumentError
        `memory` or `batches` is no size or no numbers.
    DataError
        `source_config` is no text.
    TypeError
        `exact` is not a bool, or there is no such argument, or `memory` is missing with "auto", or it or `batches` is
        given without it.
    """

    quant_method: Any

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        """Makes a config from what a config.json holds, or from a dict that a user passes as `quantization_config`.

        A config in a file has a `version`, and its keys from later versions are kept and otherwise ignored. An unknown
        key from a user is a TypeError.
        """
        known = {"quant_method", *_ARGUMENTS, *_WRITTEN}
        others = {key: value for key, value in config_dict.items() if key not in known and "version" in config_dict}
        config = cls(**{key: value for key, value in config_dict.items() if key not in others})
        # A file's key must not take the place of a method.
        config.__dict__.update((key, value) for key, value in others.items() if not hasattr(config, key))
        unused = {}
        for key, value in kwargs.items():
            if hasattr(config, key):
                setattr(config, key, value)
            else:
                unused[key] = value
        return (config, unused) if return_unused_kwargs else config

    def __init__(
        self,
        *,
        exact: bool = False,
        layout: str = "coded",
        memory: int | str | None = None,
        batches: Batches | None = None,
        version: int | None = None,
        codec: str | None = None,
        bits: float | None = None,
        stored: bool | None = None,
        source_config: str | None = None,
        quant_method: str | None = None,
        **unknown: Any,
    ) -> None:
        for name in unknown:
            near = difflib.get_close_matches(name, _ARGUMENTS, n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            raise TypeError(f"{type(self).__name__} has no argument {name!r}; {meant}it takes {_KNOWN}")
        written = {"codec": codec, "bits": bits, "stored": stored, "source_config": source_config}
        if version is None and any(value is not None for value in written.values()):
            name = next(name for name, value in written.items() if value is not None)
            raise TypeError(
                f"{type(self).__name__}: {name!r} is what files say of themselves, and changes nothing of a model that "
                f"is loaded; it takes {_KNOWN}"
            )
        if not isinstance(exact, bool):
            raise TypeError(f"exact is a bool, not {type(exact).__name__}")
        if layout not in (*LAYOUTS, AUTO_LAYOUT):
            known = ", ".join(map(repr, (*LAYOUTS, AUTO_LAYOUT)))
            raise make_error(Status.TRF_ERR_UNSUPPORTED, f"the layout {layout!r} is not known; there is {known}")
        _check_auto(layout, memory, batches)
        if source_config is not None and not isinstance(source_config, str):
            found = type(source_config).__name__
            raise make_error(
                Status.TRF_ERR_FORMAT, f"the quantization_config's source_config is a string, and not of type {found}"
            )
        self.quant_method = METHOD
        self.exact, self.layout = exact, layout
        self.memory, self.batches = memory, batches
        self.version, self.codec, self.bits = version, codec, bits
        self.stored, self.source_config = stored, source_config

    def check_loadable(self) -> None:
        """Refuses a checkpoint that was compressed for storage alone.

        Raises
        ------
        UnsupportedError
        """
        check_loadable(self.stored)

    def get_loading_attributes(self) -> dict[str, Any]:
        """Returns the attributes that an argument of from_pretrained decides, whatever the file says."""
        return {name: getattr(self, name) for name in _ARGUMENTS}

    def to_dict(self) -> dict[str, Any]:
        """Returns what config.json holds, without the arguments, which each loading decides."""
        fields = {name: copy.deepcopy(value) for name, value in self.__dict__.items() if value is not None}
        for name in (*_ARGUMENTS, "_model_dtype"):  # the latter exists only while a model is saved
            fields.pop(name, None)
        fields["layout"] = _FILE_LAYOUT
        fields["quant_method"] = METHOD.value
        return fields

    def to_diff_dict(self) -> dict[str, Any]:
        """Returns the same as `to_dict`: defaults are not left out."""
        return self.to_dict()
