"""What has changed in a rank's part of a table: since the last checkpoint was triggered, and what its hot files hold.

Maps are by slot, files by id. An id is gone when the last thing that happened to it is its eviction; its slot begins
anew then, unmarked, and what is marked next in it is another row.

The map of hot rows is that of rows whose newest record is in a live hot file. For a table whose rows are all hot it is
the map of rows changed since the base. It says what the next hot files must hold before they take the place of the
earlier ones, and so which rows are handed off to a cold file; a row that is promoted needs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.policy.access_counter import AccessCounter
from ett.checkpoint.policy.row_map import RowMap, Slots

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Changes:
    """What a checkpoint has to write if no base does.

    slots: int64 [N], ascending: rows that changed, or that the live hot files hold. tombstones: int64 [M], ascending:
    ids that are no rows any more. num_updated: how many of the rows changed.
    """

    slots: Slots
    tombstones: Ids
    num_updated: int


@dataclass(frozen=True, slots=True)
class _InFlight:
    """What was taken for a checkpoint that has neither been committed nor given up."""

    dirty: RowMap
    events: list[tuple[Ids, bool]]
    evicted: RowMap  # slots whose rows have gone since


class TableTracker:
    """Calls come one at a time; `freeze` at a step boundary, then one of `committed` and `give_back`."""

    def __init__(self, counter: AccessCounter | None = None) -> None:
        self.counter = counter or AccessCounter()
        self._num_slots = 0
        self._dirty, self._in_hot = RowMap(), RowMap()
        self._events: list[tuple[Ids, bool]] = []  # in order: ids, whether they went or came
        self._in_flight: _InFlight | None = None

    def grow(self, num_slots: int) -> None:
        self._num_slots = max(num_slots, self._num_slots)
        self._dirty.grow(num_slots)
        self._in_hot.grow(num_slots)
        self.counter.grow(num_slots)
        if self._in_flight:
            self._in_flight.evicted.grow(num_slots)

    def restored(self, num_rows: int, in_hot: Slots) -> None:
        """Begin after a restore: rows are as their files have them.

        Args: in_hot: slots of the rows that were read from hot files; the next hot files must hold them, too.
        """
        self.counter.inserted(num_rows)
        self._in_hot.mark(in_hot)

    def updated(self, slots: Slots) -> None:
        self._dirty.mark(slots)

    def inserted(self, slots: Slots, ids: Ids) -> None:
        """Args: ids: int64 [N], kept; slots: of the new rows, in free slots."""
        self.counter.inserted(len(slots))
        self._events.append((ids, False))
        self._dirty.mark(slots)

    def evicted(self, slots: Slots, ids: Ids) -> None:
        """Args: ids: int64 [N], kept; slots: distinct, of the rows that go."""
        self.counter.evicted(slots)
        self._events.append((ids, True))
        self._dirty.clear(slots)
        self._in_hot.clear(slots)
        if self._in_flight:
            self._in_flight.evicted.mark(slots)

    @property
    def is_in_flight(self) -> bool:
        return self._in_flight is not None

    def freeze(self) -> Changes:
        """Take what changed, and begin the next interval."""
        assert self._in_flight is None, "one checkpoint at a time"
        dirty = self._dirty
        updated = dirty.slots()
        self.counter.end_interval(updated)
        self._in_flight = _InFlight(dirty, self._events, RowMap(self._num_slots))
        self._dirty, self._events = RowMap(self._num_slots), []
        due = RowMap(self._num_slots)
        due.merge(dirty)
        due.merge(self._in_hot)
        return Changes(due.slots(), _gone(self._in_flight.events), len(updated))

    def committed(self, hot: Slots) -> None:
        """Forget what was taken: it is in a commit, whose hot files hold the rows of `hot` (slots at `freeze`)."""
        taken, self._in_flight = self._taken(), None
        self._in_hot = RowMap(self._num_slots)
        self._in_hot.mark(hot)
        self._in_hot.remove(taken.evicted)

    def give_back(self) -> None:
        """Make due again what was taken for a checkpoint that failed, was abandoned or skipped."""
        taken, self._in_flight = self._taken(), None
        taken.dirty.grow(self._num_slots)
        taken.dirty.remove(taken.evicted)
        self._dirty.merge(taken.dirty)
        self._events = [*taken.events, *self._events]

    def _taken(self) -> _InFlight:
        assert self._in_flight is not None, "nothing was taken"
        return self._in_flight


def _gone(events: list[tuple[Ids, bool]]) -> Ids:
    """Return the ids whose last event is that they went, ascending."""
    if not any(is_gone for _, is_gone in events):
        return np.empty(0, np.int64)
    ids = np.concatenate([ids for ids, _ in events])
    has_gone = np.repeat([is_gone for _, is_gone in events], [len(ids) for ids, _ in events])
    order = np.argsort(ids, kind="stable")  # equal ids stay in the order of events
    ids, has_gone = ids[order], has_gone[order]
    is_last = np.append(ids[1:] != ids[:-1], True)
    gone: Ids = ids[is_last & has_gone]
    return gone
