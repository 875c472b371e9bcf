# SPDX-License-Identifier: Apache-2.0
"""PEFT refuses to merge an adapter into compressed weights, and says why.

By itself it would add the adapter's matrix to the bytes of a buffer, which torch refuses for the shapes, in words that
tell nothing. PEFT has a method for what forbids merging in a model, `BaseTuner._check_merge_allowed`, but none for a
layer by itself, which diffusers calls directly; so that `merge` of its layers is wrapped, too. Importing PEFT does not
import transfuse.torch by this: as long as nobody else has, there are no compressed weights.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

_MARK = "_transfuse_refuses"


def register_peft(tuners_utils: ModuleType) -> None:
    """Makes adapters refuse to be merged into compressed layers. May be called again.

    Parameters
    ----------
    tuners_utils : module
        `peft.tuners.tuners_utils`, right after its import or any time later.
    """
    tuner, layer = tuners_utils.BaseTuner, tuners_utils.BaseTunerLayer
    if hasattr(tuner, _MARK):
        return
    setattr(tuner, _MARK, True)
    check = tuner._check_merge_allowed

    @functools.wraps(check)
    def check_merge_allowed(self: Any) -> Any:
        for name, module in self.model.named_modules():
            if isinstance(module, layer):
                _refuse(module, name)
        return check(self)

    tuner._check_merge_allowed = check_merge_allowed
    _wrap_merges(layer)

    def init_subclass(cls: type[Any], /, **options: Any) -> None:
        super(layer, cls).__init_subclass__(**options)
        _wrap_merge(cls)

    layer.__init_subclass__ = classmethod(init_subclass)


def _refuse(layer: Any, name: str = "") -> None:
    buffer_module = sys.modules.get("transfuse.torch._buffer_module")
    base = layer.get_base_layer()
    if buffer_module is not None and isinstance(base, buffer_module.BufferModule):
        raise ValueError(
            f"an adapter cannot be merged into compressed weights ({name or type(base).__name__}): use it unmerged, or "
            "merge it into the uncompressed model and compress that"
        )


def _wrap_merges(cls: type[Any]) -> None:
    derived: type[Any]
    for derived in cls.__subclasses__():
        _wrap_merge(derived)
        _wrap_merges(derived)


def _wrap_merge(cls: type[Any]) -> None:
    merge = cls.__dict__.get("merge")
    if merge is None or hasattr(merge, _MARK):
        return

    @functools.wraps(merge)
    def guarded(self: Any, *arguments: Any, **options: Any) -> Any:
        _refuse(self)
        return merge(self, *arguments, **options)

    setattr(guarded, _MARK, True)
    cls.merge = guarded
