# SPDX-License-Identifier: Apache-2.0
"""Finds the names that compressed weights of a model have in files, by undoing the framework's conversions.

transformers undoes its conversions on dense tensors (`revert_weight_conversion`). A compressed matrix that is only
renamed takes the new name. A model has experts in one tensor, and most files have them one by one. To sort them, we
send a small tensor the same way, whose numbers say which expert it is. Weights that are converted in any other way must
be decoded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Chunk,
    PrefixChange,
    SplitModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# The rows and columns of an expert in the small tensor are at least two, since the framework drops sides of one.
_ROWS, _COLS = 2, 3


class FileNames:
    """Names in files of a model's parameters.

    Parameters
    ----------
    model : PreTrainedModel
    conversions : list or None
        The framework's conversions with which the model was loaded; None for a model that was not loaded.
    parameters : iterable of str
        All parameters and buffers that the model would have if it were not compressed. Some rules look at several.
    """

    def __init__(self, model: PreTrainedModel, conversions: list[Any] | None, parameters: Iterable[str]) -> None:
        self.model = model
        if conversions is None:
            # The framework takes these for a model that was not loaded.
            rules = get_model_conversion_mapping(model, add_legacy=False)
            conversions = [rule for rule in rules if not isinstance(rule, PrefixChange)]
        undone = [rule.reverse_transform() for rule in reversed(conversions)]
        renamings = [rule for rule in undone if isinstance(rule, WeightRenaming)]
        self._converters = [rule for rule in undone if isinstance(rule, WeightConverter)]
        self._names = {
            name: rename_source_key(name, renamings, self._converters, reverse=True)
            for name in sorted(parameters, key=dot_natural_key)
        }

    def get_name(self, parameter: str) -> tuple[str, bool]:
        """Returns the name in a file, and whether only the name changes; merged parameters have the same name."""
        name, pattern = self._names[parameter]
        return name, pattern is None

    def sort_experts(self, parameter: str, experts: int, parts: int) -> dict[str, list[tuple[int, ...]]] | None:
        """Tells which tensors of a file the experts of a parameter become.

        Parameters
        ----------
        parameter : str
            A parameter that is [experts][rows][columns] in the model.
        experts : int
        parts : int
            How many matrices of the same shape follow each other in each expert: two for gate and up.

        Returns
        -------
        dict of str to list of tuple, or None
            The matrices of tensors, by the names in files. Each matrix is a tuple of the numbers
            `parts * expert + part` whose rows it has. A tensor of one expert has one matrix. None means that the
            conversion does something else.
        """
        name, pattern = self._names[parameter]
        if pattern is None:
            return {name: [tuple(range(parts * expert, parts * (expert + 1))) for expert in range(experts)]}
        rule = next(each for each in self._converters if pattern in each.source_patterns)
        if not all(type(operation) in (Chunk, SplitModulelist) for operation in rule.operations):
            return None
        numbers = torch.arange(experts * parts).view(experts, parts, 1, 1)
        sent = numbers.expand(experts, parts, _ROWS, _COLS).reshape(experts, parts * _ROWS, _COLS)
        rule = copy.deepcopy(rule)
        rule.add_tensor(name, parameter, pattern, sent)
        came = rule.convert(name, model=self.model, config=self.model.config)
        return {key: _read_numbers(value[0] if isinstance(value, list) else value) for key, value in came.items()}


def _read_numbers(tensor: Tensor) -> list[tuple[int, ...]]:
    matrices = tensor if tensor.dim() == 3 else tensor.unsqueeze(0)
    return [tuple(matrix[::_ROWS, 0].tolist()) for matrix in matrices]
