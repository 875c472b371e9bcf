# SPDX-License-Identifier: Apache-2.0
"""Reads what users set: ``--additional-config '{"transfuse": {"layout": "packed"}}'``.

vLLM hashes its additional config, so that it uses cached graphs only for the settings that they were made for.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

# The key of vLLM's additional config.
KEY = "transfuse"

_LAYOUTS = ("packed", "coded")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of one engine.

    Attributes
    ----------
    layout : str
        How layers lie in the GPU's memory: "packed", the faster one, or "coded", the smaller one.
    exact : bool
        Whether each layer is decoded and vLLM's own product multiplies: the results are vLLM's in BF16 bit for bit, and
        it is slow.
    exclude : tuple of str
        Patterns (`fnmatch`) of layers that stay as vLLM has them, by vLLM's names, such as "model.layers.0.*".
    """

    layout: str = "packed"
    exact: bool = False
    exclude: tuple[str, ...] = ()

    def is_excluded(self, name: str) -> bool:
        """Returns whether a pattern of `exclude` fits the name of a layer."""
        return any(fnmatchcase(name, pattern) for pattern in self.exclude)

    def find_unfitted(self, names: Collection[str]) -> list[str]:
        """Returns the patterns of `exclude` that fit none of these names."""
        return [each for each in self.exclude if not any(fnmatchcase(name, each) for name in names)]


def read_settings(additional_config: object) -> Settings:
    """Returns what vLLM's additional config says of us.

    Raises
    ------
    ValueError
        There is no such option, or an option does not take its value.
    """
    given = additional_config.get(KEY, {}) if isinstance(additional_config, Mapping) else {}
    if not isinstance(given, Mapping):
        raise ValueError(f"additional_config[{KEY!r}] must be a dict of options, not {type(given).__name__}")
    known = [field.name for field in dataclasses.fields(Settings)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"transfuse has no option {name!r}; {meant}it takes {', '.join(map(repr, known))}")
    values: dict[str, Any] = dict(given)
    layout = values.get("layout", Settings.layout)
    if layout not in _LAYOUTS:
        raise ValueError(f"transfuse's option 'layout' is {layout!r}; it takes {' and '.join(map(repr, _LAYOUTS))}")
    if not isinstance(values.get("exact", False), bool):
        raise ValueError(f"transfuse's option 'exact' is true or false, not {values['exact']!r}")
    patterns = values.get("exclude", ())
    if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f"transfuse's option 'exclude' is a list of patterns of names, not {patterns!r}")
    return Settings(layout, bool(values.get("exact", False)), tuple(patterns))
