"""The order of the training rows of windows that are read side by side.

L windows are a group. Their rows, each window's in its own order, are merged so that every window is used up at the
same pace: the j-th of n rows comes where (2j + 1) / 2n is, of equal places the earlier window first. One window is a
group of its own, and its order that of the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from ett.trainer.data.position import Position
from ett.trainer.data.row_source import Rows, W


def merged_positions(sizes: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return for each window where its rows stand in the order of the group: int64 [n], increasing."""
    if len(sizes) == 1:
        return [np.arange(sizes[0], dtype=np.int64)]
    keys = np.concatenate([(2 * np.arange(size) + 1) / (2 * max(size, 1)) for size in sizes])
    positions = np.empty(len(keys), np.int64)
    positions[np.argsort(keys, kind="stable")] = np.arange(len(keys))
    return np.split(positions, np.cumsum(sizes)[:-1])


@dataclass(frozen=True, slots=True)
class Group(Generic[W]):
    """Windows that are read side by side, with their wanted rows in order."""

    start: Position
    lanes: tuple[Rows[W], ...]
    positions: tuple[NDArray[np.int64], ...]
    bad_before: int  # malformed rows of the epoch before this group

    @property
    def num_rows(self) -> int:
        return sum(len(lane.numbers) for lane in self.lanes)

    def between(self, begin: int, end: int) -> list[Rows[W]]:
        """Return the rows at the places [begin, end) of the group's order, window by window."""
        found = []
        for lane, positions in zip(self.lanes, self.positions, strict=True):
            first, last = np.searchsorted(positions, (begin, end)).tolist()
            if first < last:
                found.append(lane.cut(first, last))
        return found


def slice_of(runs: Sequence[Rows[W]], begin: int, end: int) -> tuple[Rows[W], ...]:
    """Return the rows [begin, end) of all runs, one after another."""
    kept, at = [], 0
    for run in runs:
        first, last = max(begin - at, 0), min(end - at, len(run.numbers))
        if first < last:
            kept.append(run.cut(first, last))
        at += len(run.numbers)
    return tuple(kept)
