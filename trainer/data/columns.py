"""Named columns of rows: an array each, or, where rows hold lists, values with lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Jagged:
    """values [L], row after row, and lengths int64 [n], which sum to L."""

    values: NDArray[Any]
    lengths: NDArray[np.int64]
    weights: NDArray[np.float32] | None = None  # [L], of the values in a weighted sum; None: all are one

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, rows: NDArray[np.int64]) -> Jagged:
        """Return the rows of the given numbers, in their order."""
        begins = (np.cumsum(self.lengths) - self.lengths)[rows]
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        shift = np.repeat(begins - (ends - lengths), lengths)
        return self._at(np.arange(len(shift), dtype=np.int64) + shift, lengths)

    def last(self, num_values: int) -> Jagged:
        """Return the last `num_values` of each row, or all where it has fewer."""
        lengths = np.minimum(self.lengths, num_values)
        ends, new_ends = np.cumsum(self.lengths), np.cumsum(lengths)
        shift = np.repeat(ends - new_ends, lengths)
        return self._at(np.arange(len(shift), dtype=np.int64) + shift, lengths)

    def _at(self, places: NDArray[np.int64], lengths: NDArray[np.int64]) -> Jagged:
        return Jagged(self.values[places], lengths, None if self.weights is None else self.weights[places])


Column = NDArray[Any] | Jagged
Columns = Mapping[str, Column]


def take_rows(columns: Columns, rows: NDArray[np.int64]) -> dict[str, Column]:
    """Return the rows of the given numbers of every column, in their order."""
    return {name: column.take(rows) if isinstance(column, Jagged) else column[rows] for name, column in columns.items()}


def join_rows(parts: Sequence[Columns]) -> Columns:
    """Return the rows of all parts (at least one), which have the same columns, one after another."""
    if len(parts) == 1:
        return parts[0]
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(parts: Sequence[Column]) -> Column:
    jagged = [part for part in parts if isinstance(part, Jagged)]
    if jagged:
        weights = [part.weights for part in jagged if part.weights is not None]
        return Jagged(
            np.concatenate([p.values for p in jagged]),
            np.concatenate([p.lengths for p in jagged]),
            np.concatenate(weights) if weights else None,
        )
    return np.concatenate([part for part in parts if not isinstance(part, Jagged)])
