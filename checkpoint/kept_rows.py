"""What a restore need not read: rows that are in memory still as the commit has them.

A rank that outlived another one has its tables. Where a tracker was told of every change since the very commit that is
restored, the rows that it has not marked are those of the commit, and the others are read again. What cannot be proved
so is read whole, as in a new process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from ett.checkpoint.commit import Commit, TableEntry
from ett.checkpoint.policy.table_tracker import TableTracker
from ett.checkpoint.read_plan import Mask
from ett.checkpoint.table import TableShard
from ett.checkpoint.table_segments import Ids
from ett.checkpoint.tracked_table import TrackedTable


@runtime_checkable
class KeepsRows(TrackedTable, Protocol):
    """A TrackedTable of which some rows can be taken back."""

    @property
    def is_rows_alone(self) -> bool:
        """Whether each row is a function of its own updates, so that the others may stay as they are."""

    def begin_rollback(self, ids: Ids) -> None:
        """Forget the rows of ids, int64 [N], distinct, which exist, and be ready for as many; in place of
        `begin_import`, so nobody is told of anything any more.
        """


@dataclass(frozen=True, slots=True)
class Kept:
    """A table on a rank, of whose rows all have stayed as they were committed but for some.

    changed: int64 [N], ascending: ids of rows that have changed or come since. num_rows, digest: of the rank's part of
    the commit; None: the commit has none.
    """

    changed: Ids
    num_rows: int
    digest: str | None

    def wanted(self, owned: Callable[[Ids], Mask], ids: Ids) -> Mask:
        """Return which of ids, int64 [N], are to be read, of those that are this rank's as `owned` says."""
        at = np.searchsorted(self.changed, ids)
        found: Mask = at < len(self.changed)
        found[found] = self.changed[at[found]] == ids[found]
        if found.any():
            found[found] = owned(ids[found])
        return found


def has_rows_of_a_commit(shard: TableShard) -> bool:
    """Return whether it is known what has changed in a table since some commit."""
    if not isinstance(shard, KeepsRows) or not shard.is_rows_alone:
        return False
    return isinstance(shard.tracked_by, TableTracker) and shard.tracked_by.as_of is not None


def kept_rows(shard: TableShard, table: TableEntry, commit: Commit) -> Kept | str:
    """Return what this rank has of a table of a commit, or why it reads all of it; "": it has no rows yet."""
    if not isinstance(shard, KeepsRows) or not shard.num_tracked_rows():
        return ""
    if not shard.is_rows_alone:
        return "its rows give way to each other"
    if any(file.weight_bits for file in table.files):
        return "the commit has its weights quantised"
    with shard.lock:
        tracker = shard.tracked_by
        if not isinstance(tracker, TableTracker) or tracker.as_of is None:
            return "nobody knows what has changed in it since a commit"
        if tracker.as_of.ckpt_uuid != commit.ckpt_uuid:
            return "what has changed in it is known since another commit"
        slots = tracker.changed()
        if slots is None:
            return "a save of it is under way"
        return Kept(np.sort(shard.ids_of_slots(slots)), tracker.as_of.num_rows, tracker.as_of.digest)
