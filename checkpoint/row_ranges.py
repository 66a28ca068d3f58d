"""Rows of tensors that lie in the order of their ids, from and to the memory of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ett.checkpoint.table import TableRows


def gather_range(rows: Tensor, weights: Tensor, states: Mapping[str, Tensor], out: TableRows) -> None:
    """Copy rows, int64 [M], ascending, to `out` in host memory."""
    at = _places(rows)
    for source, target in ((weights, out.weights), *((states[name], column) for name, column in out.states.items())):
        _copy(source[at], target)


def scatter_range(rows: Tensor, given: TableRows, weights: Tensor, states: Mapping[str, Tensor]) -> None:
    """Copy what is given to rows, int64 [M], ascending, of weights and states."""
    at = _places(rows)
    for source, target in (
        (given.weights, weights),
        *((column, states[name]) for name, column in given.states.items()),
    ):
        if isinstance(at, slice):
            _copy(source, target[at])
        else:
            target[at] = source.to(target.device)


def _copy(source: Tensor, target: Tensor) -> None:
    if source.device.type == target.device.type == "cpu":
        # As bytes, by numpy: torch would start threads of its own in each of those that save or restore.
        np.copyto(target.view(torch.uint8).numpy(), source.view(torch.uint8).numpy())
    else:
        target.copy_(source)


def _places(rows: Tensor) -> slice | Tensor:
    """Return a slice for rows that follow each other, which is copied as it lies and without a list of numbers."""
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
