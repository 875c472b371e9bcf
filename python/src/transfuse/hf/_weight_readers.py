# SPDX-License-Identifier: Apache-2.0
"""Finding modules whose weight is read by the code around them, as a matrix, rather than by their own `forward`.

T5 casts activations to `self.wo.weight.dtype`, and torch's own transformer layers hand `self.linear1.weight` to a fused
function. Neither would do with a blob, and nothing but the source tells.
"""

from __future__ import annotations

import functools
import inspect
import re

from torch import nn

# Set weights up, and are over by the time that there are blobs.
_SETUP = ("__init__", "_init_weights", "reset_parameters", "_reset_parameters", "tie_weights", "_tie_weights")


def find_weight_reader(model: nn.Module, path: str) -> str:
    """Returns the class of a module around that of a path which reads its weight, or "".

    The device of a weight is that of the blob, and so is no reason.
    """
    parts = path.split(".")
    around = model
    for depth in range(len(parts)):
        reads = re.compile(rf"\bself\.{re.escape('.'.join(parts[depth:]))}\.weight\b(?!\.device\b)")
        if reads.search(_source_of(type(around))):
            return type(around).__name__
        around = around.get_submodule(parts[depth])
    return ""


@functools.cache
def _source_of(kind: type[nn.Module]) -> str:
    """Returns the text of the methods of a class and its bases, up to those that every module has."""
    texts = []
    for base in kind.__mro__:
        if base.__module__ in ("torch.nn.modules.module", "transformers.modeling_utils", "builtins"):
            continue
        for name, member in vars(base).items():
            if inspect.isfunction(member) and name not in _SETUP:
                try:
                    texts.append(inspect.getsource(member))
                except (OSError, TypeError):
                    continue
    return "\n".join(texts)
