# SPDX-License-Identifier: Apache-2.0
"""Parsing the JSON of files that strangers wrote."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Returns what a text holds, as Python's json module reads it.

    Raises
    ------
    ValueError
        It is no JSON, or it is nested more deeply than Python reads.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
