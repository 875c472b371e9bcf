# SPDX-License-Identifier: Apache-2.0
"""Groups products in compiled graphs that have one input, such as q, k and v, or gate and up.

They become one call of `transfuse::linear_group`, which runs them in shared launches. Models need no change for it.

This is a pass over inductor's graphs, so it acts only where `torch.compile` does. Members that share a launch add their
sums in another order than single products. Exact mode has no such products and is not affected.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

# Products with more rows of x than this never share a launch (TRF_FUSED_MAX_M).
_MAX_GROUPED_ROWS = 64
# One call has at most this many members; the library shares launches among as many.
_MAX_MEMBERS = 8

_enabled = True


def set_grouping(enabled: bool) -> None:
    """Sets whether models that are compiled from now on run products that have one input in shared launches.

    By default they do. What is compiled already stays as it is until it is compiled again
    (`torch.compiler.reset()`).
    """
    global _enabled
    _enabled = bool(enabled)


def is_grouping() -> bool:
    """Returns what `set_grouping` set last."""
    return _enabled


def install() -> None:
    """Puts the pass into inductor's settings, before any that is there already. `transfuse.torch` calls it once."""
    present = inductor_config.post_grad_custom_pre_pass
    if not isinstance(present, _GroupingPass):
        inductor_config.post_grad_custom_pre_pass = _GroupingPass(present)


class _GroupingPass(CustomGraphPass):
    """Groups the products of a graph, then runs the pass that was there before, if there was one."""

    def __init__(self, following: Callable[[torch.fx.Graph], None] | None) -> None:
        self._following = following

    def __call__(self, graph: torch.fx.Graph) -> None:
        if _enabled:
            group_products(graph)
        if self._following is not None:
            self._following(graph)

    def uuid(self) -> Any:
        """Identifies what the pass does, for inductor's cache of graphs; None where the other pass has no name."""
        ours = (get_hash_for_files((__file__,)), _enabled)
        if self._following is None:
            return ours
        theirs = self._following.uuid() if isinstance(self._following, CustomGraphPass) else None
        return None if theirs is None else (ours, theirs)


def group_products(graph: torch.fx.Graph) -> int:
    """Replaces products without bias that have one input and at most 64 rows of it by grouped ones, in place.

    Returns the number of grouped calls that it has made.
    """
    products: dict[Hashable, list[torch.fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.transfuse.linear.default and _can_join(node):
            products.setdefault(node.args[0], []).append(node)
    calls = 0
    for members in products.values():
        for first in range(0, len(members), _MAX_MEMBERS):
            if len(members[first : first + _MAX_MEMBERS]) > 1:
                _replace(graph, members[first : first + _MAX_MEMBERS])
                calls += 1
    return calls


def _can_join(node: torch.fx.Node) -> bool:
    """Returns whether a product can join a group.

    It must have no bias, a buffer and an input that are known where the group's first member stands, and few enough
    rows; a number of rows that is not known while compiling may be few.
    """
    if len(node.args) != 4 or node.kwargs:
        return False
    x, buffer, bias, _ = node.args
    if bias is not None or not isinstance(x, torch.fx.Node):
        return False
    if not isinstance(buffer, torch.fx.Node) or buffer.op not in ("placeholder", "get_attr"):
        return False
    value = x.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return False
    rows: int | torch.SymInt = 1
    for size in value.shape[:-1]:
        rows = rows * size
    return not isinstance(rows, int) or 0 < rows <= _MAX_GROUPED_ROWS


def _replace(graph: torch.fx.Graph, members: list[torch.fx.Node]) -> None:
    """Puts one grouped call in the place of the first member; members are in the order of the graph."""
    x = members[0].args[0]
    buffers = [member.args[1] for member in members]
    rows = [member.args[3] for member in members]
    with graph.inserting_before(members[0]):
        group = graph.call_function(torch.ops.transfuse.linear_group.default, (x, buffers, rows))
        group.meta["val"] = [member.meta["val"] for member in members]
        for index, member in enumerate(members):
            result = graph.call_function(operator.getitem, (group, index))
            result.meta = dict(member.meta)
            member.replace_all_uses_with(result)
    for member in reversed(members):
        graph.erase_node(member)
