"""A table that says which of its rows change, so that a checkpoint need not write all of them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Slots = NDArray[np.int64]


class RowChanges(Protocol):
    """What is told of a table's rows, which are known by slots: small numbers, given again when their rows are gone."""

    def grow(self, num_slots: int) -> None:
        """Slots are below num_slots from now on."""

    def updated(self, slots: Slots) -> None:
        """Rows have changed, or are about to."""

    def inserted(self, slots: Slots, ids: Ids) -> None:
        """Rows have come, in slots that were free. Args: ids: int64 [N], kept."""

    def evicted(self, slots: Slots, ids: Ids) -> None:
        """Rows are about to go; slots are distinct. Args: slots, ids: int64 [N], kept."""


@runtime_checkable
class TrackedTable(Protocol):
    """A TableShard with changes that can be told."""

    tracked_by: RowChanges  # who is told: the last that `track` was called with

    def track(self, changes: RowChanges) -> None:
        """Tell `changes`, and nobody else, of everything from now on, first of the slots that there are; it knows the
        rows in them.
        """

    def touched(self, ids: Ids | None) -> None:
        """Tell as if rows had changed: somebody has written to them. Args: ids: those that are no rows of this rank are
        passed over; None: all.
        """

    def num_tracked_rows(self) -> int:
        """Return how many rows this rank saves."""

    def ids_of_slots(self, slots: Slots) -> Ids:
        """Return the ids of the rows in slots, int64 [N]; any number for a slot without a row."""


class NobodyTracks:
    def grow(self, num_slots: int) -> None:
        return None

    def updated(self, slots: Slots) -> None:
        return None

    def inserted(self, slots: Slots, ids: Ids) -> None:
        return None

    def evicted(self, slots: Slots, ids: Ids) -> None:
        return None


NOBODY_TRACKS: RowChanges = NobodyTracks()
