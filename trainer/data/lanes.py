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
        """Return the rows at the places [begin, end) of the group's order, lane by lane."""
        firsts = [np.searchsorted(positions, (begin, end)).tolist() for positions in self.positions]
        return [lane.cut(first, last) for lane, (first, last) in zip(self.lanes, firsts, strict=True)]


class GlobalBatch(Generic[W]):
    """The rows of one batch of all ranks, lane by lane."""

    def __init__(self) -> None:
        self._lanes: list[list[Rows[W]]] = []
        self.size = 0

    def add(self, by_lane: Sequence[Rows[W]]) -> None:
        self._lanes += [[] for _ in range(len(by_lane) - len(self._lanes))]
        for lane, rows in zip(self._lanes, by_lane, strict=False):
            if len(rows.numbers):
                lane.append(rows)
                self.size += len(rows.numbers)

    def slice_of(self, rank: int, world: int) -> tuple[Rows[W], ...]:
        """Return a rank's rows: an equal share, but that it ends where a lane does where one ends nearby."""
        ends = np.cumsum([sum(len(rows.numbers) for rows in lane) for lane in self._lanes]).tolist()
        begin, end = slice_begin(rank, world, ends), slice_begin(rank + 1, world, ends)
        kept, at = [], 0
        for rows in (rows for lane in self._lanes for rows in lane):
            first, last = max(begin - at, 0), min(end - at, len(rows.numbers))
            if first < last:
                kept.append(rows.cut(first, last))
            at += len(rows.numbers)
        return tuple(kept)


def slice_begin(rank: int, world: int, lane_ends: Sequence[int]) -> int:
    """Return where the slice of `rank` begins.

    A sixteenth of a slice is given up (two rows of a small one) so that a rank needs no other window for a few rows:
    windows that are read side by side differ a little in their training rows.
    """
    size = lane_ends[-1]
    even, slice_size = rank * size // world, size // world
    if rank in (0, world):
        return even
    nearest = min(lane_ends, key=lambda end: abs(end - even))
    return nearest if abs(nearest - even) <= _tolerance(slice_size) else even


def _tolerance(slice_size: int) -> int:
    return min(max(2, slice_size // 16), slice_size // 4)


def longest_slice(batch_size: int, world: int) -> int:
    """Return the most rows that any rank may get of a batch."""
    if world == 1:
        return batch_size
    return min(batch_size, -(-batch_size // world) + 2 * _tolerance(batch_size // world))
