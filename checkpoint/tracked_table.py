"""A table that says which of its rows change, so that a checkpoint need not write all of them, nor stop training.

A table calls on the rank that has its rows. Calls come from several threads, one at a time, within the table's lock,
and those of one row in order; what they do is on the path of training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.table_lock import TableLock

Ids = NDArray[np.int64]
Slots = NDArray[np.int64]
SlotsOf = Callable[[Ids], Slots]


class RowChanges(Protocol):
    """What is told of a table's rows, which are known by slots: small numbers, given again when their rows are gone.

    slots, ids: int64 [N], of the same rows, distinct, in any order; ids are kept.
    """

    def grow(self, num_slots: int) -> None:
        """Slots are below num_slots from now on."""

    def announced(self, ids: Ids, slots_of: SlotsOf) -> None:
        """A batch will look ids up, and most likely change their rows; some are no rows yet.

        Args: slots_of: as `TrackedTable.slots_of`, which takes time, for whoever needs it.
        """

    def passed(self) -> None:
        """The batch that was announced first, of those that have not passed, changes nothing any more."""

    def updated(self, slots: Slots, ids: Ids) -> None:
        """Rows are about to change: they are still as they were."""

    def inserted(self, slots: Slots, ids: Ids) -> None:
        """Rows have come, in slots that were free."""

    def evicted(self, slots: Slots, ids: Ids) -> None:
        """Rows are about to go: they are still as they were."""

    def touched(self, slots: Slots, ids: Ids) -> None:
        """Rows may have changed, untold: what they were is lost."""

    def await_end(self) -> None:
        """Return when nothing depends on being told any more; not within the table's lock."""


@runtime_checkable
class TrackedTable(Protocol):
    """A TableShard with changes that can be told."""

    tracked_by: RowChanges  # who is told: the last that `track` was called with
    lock: TableLock  # held while rows are told of; who holds it may `gather` while another thread trains

    def track(self, changes: RowChanges) -> None:
        """Tell `changes`, and nobody else, of everything from now on, first of the slots that there are; it knows the
        rows in them. NOBODY_TRACKS: nobody is told any more, and it costs nothing.
        """

    def touched(self, ids: Ids | None) -> None:
        """Tell of rows that somebody has written to. Args: ids: those that are no rows of this rank are passed over;
        None: all.
        """

    def num_tracked_rows(self) -> int:
        """Return how many rows this rank saves."""

    def tracked_ids(self) -> Ids:
        """Return the ids of all rows that this rank saves, int64 [N], in any order, as a copy; within the lock."""

    def slots_of(self, ids: Ids) -> Slots:
        """Return the slots of rows, int64 [N]; -1 where there is no row. Within the lock."""

    def ids_of_slots(self, slots: Slots) -> Ids:
        """Return the ids of the rows in slots, int64 [N]; any number for a slot without a row. Within the lock."""


class NobodyTracks:
    def grow(self, num_slots: int) -> None:
        return None

    def announced(self, ids: Ids, slots_of: SlotsOf) -> None:
        return None

    def passed(self) -> None:
        return None

    def updated(self, slots: Slots, ids: Ids) -> None:
        return None

    def inserted(self, slots: Slots, ids: Ids) -> None:
        return None

    def evicted(self, slots: Slots, ids: Ids) -> None:
        return None

    def touched(self, slots: Slots, ids: Ids) -> None:
        return None

    def await_end(self) -> None:
        return None


NOBODY_TRACKS: RowChanges = NobodyTracks()
