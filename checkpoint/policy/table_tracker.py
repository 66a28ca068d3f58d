"""What has changed in a rank's part of a table: since the last checkpoint was triggered, and what its hot files hold.

Maps are by slot, files by id. An id is gone when the last thing that happened to it is its eviction; its slot begins
anew then, unmarked, and what is marked next in it is another row.

The map of hot rows is that of rows whose newest record is in a live hot file. For a table whose rows are all hot it is
the map of rows changed since the base. It says what the next hot files must hold before they take the place of the
earlier ones, and so which rows are handed off to a cold file; a row that is promoted needs nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.policy.access_counter import AccessCounter
from ett.checkpoint.policy.row_map import RowMap, Slots
from ett.checkpoint.tracked_table import SlotsOf
from ett.errors import EttError

Ids = NDArray[np.int64]
_BATCHES_AHEAD = 64  # that are announced and have not passed, at most: the guard has the rows of others


@dataclass(frozen=True, slots=True)
class Changes:
    """What a checkpoint has to write if no base does, as of when it was frozen.

    slots: int64 [N], ascending: of rows that changed, or that the live hot files hold. ids: int64 [N], theirs.
    tombstones: int64 [M], ascending: ids that are no rows any more. num_updated: how many of the rows changed.
    """

    slots: Slots
    ids: Ids
    tombstones: Ids
    num_updated: int


@dataclass(frozen=True, slots=True)
class AsOf:
    """The commit that has this rank's rows as they are, but for those that are marked as changed.

    num_rows, digest: of this rank's part of the table there; None: the commit has no digest of it.
    """

    ckpt_uuid: str
    num_rows: int
    digest: str | None


@dataclass(slots=True)
class _InFlight:
    """What was taken for a checkpoint that has neither been committed nor given up."""

    dirty: RowMap
    due: RowMap
    events: list[tuple[Ids, bool]]
    capture: Capture | None
    evicted: list[tuple[Slots, Ids]] = field(default_factory=list)  # since
    counted: list[Callable[[], None]] | None = field(default_factory=list)  # since, for a counter that is to age first


class Capture(Protocol):
    """Who keeps rows as they were when they were frozen, see `ett.checkpoint.capture.row_capture.RowCapture`."""

    def grow(self, num_slots: int) -> None: ...

    def keep(self, slots: Slots, ids: Ids, path: Literal["prefetch", "guard"]) -> None: ...

    def came(self, slots: Slots) -> None: ...

    def want_only(self, wanted: RowMap) -> None: ...

    def touched(self, slots: Slots) -> None: ...

    def give_up(self, err: EttError) -> None: ...

    @property
    def is_over(self) -> bool: ...

    def close(self) -> None: ...


class TableTracker:
    """`freeze` at a step boundary, `changes` once after that in any thread, then one of `committed` and `give_back`.

    Threads may call at any time; events of one row come in order, and `evicted` before its slot gets another row. With
    a capture all calls but `changes` are made within the table's lock.
    """

    def __init__(self, counter: AccessCounter | None = None) -> None:
        self.counter = counter or AccessCounter()
        self._lock = threading.Lock()
        self._num_slots = 0
        self._dirty, self._in_hot = RowMap(), RowMap()
        self._events: list[tuple[Ids, bool]] = []  # in order: ids, whether they went or came
        self._in_flight: _InFlight | None = None
        self._ended = threading.Condition(self._lock)  # what was in flight
        self._coming: deque[Ids] = deque(maxlen=_BATCHES_AHEAD)
        self.as_of: AsOf | None = None  # None: nobody knows what has changed since any commit

    def grow(self, num_slots: int) -> None:
        with self._lock:
            if self._in_flight and self._in_flight.capture:
                self._in_flight.capture.grow(num_slots)
            self._num_slots = max(num_slots, self._num_slots)
            self._dirty.grow(num_slots)
            self._in_hot.grow(num_slots)
            self._count(lambda: self.counter.grow(num_slots))

    def restored(self, num_rows: int, in_hot: Slots, as_of: AsOf | None = None) -> None:
        """Begin after a restore: rows are as their files have them.

        Args: in_hot: slots of the rows that were read from hot files; the next hot files must hold them, too.
        """
        with self._lock:
            self.as_of = as_of
            self.counter.inserted(num_rows)
            self._in_hot.mark(in_hot)

    def announced(self, ids: Ids, slots_of: SlotsOf) -> None:
        self._coming.append(ids)
        if self._capture:
            self._keep_ahead(ids, slots_of)

    def keep_coming(self, slots_of: SlotsOf) -> None:
        """Keep rows of the batches that were announced and have not passed, in a capture; within the table's lock."""
        for ids in list(self._coming):
            self._keep_ahead(ids, slots_of)

    def passed(self) -> None:
        if self._coming:
            self._coming.popleft()

    def updated(self, slots: Slots, ids: Ids) -> None:
        if capture := self._capture:
            capture.keep(slots, ids, "guard")
        with self._lock:
            self._dirty.mark(slots)

    def touched(self, slots: Slots, ids: Ids) -> None:
        if capture := self._capture:
            capture.touched(slots)
        with self._lock:
            self._dirty.mark(slots)

    def inserted(self, slots: Slots, ids: Ids) -> None:
        """Args: ids: int64 [N], kept; slots: of the new rows, in free slots."""
        with self._lock:
            self._count(lambda: self.counter.inserted(len(slots)))
            self._events.append((ids, False))
            self._dirty.mark(slots)
            if self._in_flight and self._in_flight.capture:
                self._in_flight.capture.came(slots)

    def evicted(self, slots: Slots, ids: Ids) -> None:
        """Args: ids: int64 [N], kept; slots: int64 [N], kept, distinct: of the rows that are about to go."""
        if capture := self._capture:
            capture.keep(slots, ids, "guard")
        with self._lock:
            self._count(lambda: self.counter.evicted(slots))
            self._events.append((ids, True))
            self._dirty.clear(slots)
            self._in_hot.clear(slots)
            if self._in_flight:
                self._in_flight.evicted.append((slots, ids))

    @property
    def is_in_flight(self) -> bool:
        return self._in_flight is not None

    @property
    def num_slots(self) -> int:
        return self._num_slots

    def freeze(self, capture: Capture | None = None) -> None:
        """Take what changed, and begin the next interval: a pass over two maps, the only work at a step boundary.

        Args: capture: keeps rows as they are now until `committed` or `give_back`; None: they are not written to.
        """
        with self._lock:
            assert self._in_flight is None, "one checkpoint at a time"
            self._in_flight = _InFlight(self._dirty, self._dirty.union(self._in_hot), self._events, capture)
            self._dirty, self._events = RowMap(self._num_slots), []

    def found_changed(self, slots: RowMap) -> None:
        """Learn, before `changes`, of rows that had changed by the time of `freeze`, and that nobody told of."""
        with self._lock:
            taken = self._taken()
            taken.dirty.merge(slots)
            taken.due.merge(slots)

    def changes(self, ids_of: Callable[[Slots], Ids]) -> Changes:
        """Return what was frozen, and age the counter.

        Args: ids_of: returns the ids of the rows that are in slots now; where one has gone since, it is not looked at.
        """
        taken = self._taken()
        updated, due = taken.dirty.slots(), taken.due.slots()
        self.counter.end_interval(updated)
        ids = ids_of(due)
        with self._lock:
            ids = _before_evictions(due, ids, taken.evicted)
            for count in taken.counted or ():
                count()
            taken.counted = None
        return Changes(due, ids, _gone(taken.events), len(updated))

    def ids_when_frozen(self, ids: Ids) -> Ids:
        """Return the ids of all rows as of `freeze`, ascending. Args: ids: of all rows now, in any order."""
        with self._lock:
            since = list(self._events)
        ids = np.sort(ids)
        if not since:
            return ids
        first: Ids = np.concatenate([part for part, _ in since])
        was_there = np.repeat([is_gone for _, is_gone in since], [len(part) for part, _ in since])
        changed, at = np.unique(first, return_index=True)  # the first event of each id
        left: Ids = np.union1d(np.setdiff1d(ids, changed), changed[was_there[at]])
        return left

    def want_only(self, wanted: RowMap) -> None:
        """Have the capture, if there is one, keep only rows in slots that are marked."""
        if capture := self._capture:
            capture.want_only(wanted)

    def changed(self) -> Slots | None:
        """Return the slots of the rows that have changed since `as_of`, ascending; None while a checkpoint has them."""
        with self._lock:
            return None if self._in_flight else self._dirty.slots()

    def committed(self, hot: Slots, as_of: AsOf | None = None) -> None:
        """Forget what was taken: it is in a commit, whose hot files hold the rows of `hot` (slots at `freeze`)."""
        in_hot = RowMap(self._num_slots)
        in_hot.mark(hot)
        with self._lock:
            taken, self._in_flight = self._taken(), None
            self.as_of = as_of
            if taken.capture:
                taken.capture.close()
            in_hot.grow(self._num_slots)
            for slots, _ in taken.evicted:
                in_hot.clear(slots)
            self._in_hot = in_hot
            self._ended.notify_all()

    def give_back(self) -> None:
        """Make due again what was taken for a checkpoint that failed, was abandoned or skipped."""
        with self._lock:
            taken, self._in_flight = self._taken(), None
            if taken.capture:
                taken.capture.close()
            for count in taken.counted or ():
                count()
            taken.dirty.grow(self._num_slots)
            for slots, _ in taken.evicted:
                taken.dirty.clear(slots)
            self._dirty.merge(taken.dirty)
            self._events = [*taken.events, *self._events]
            self._ended.notify_all()

    def give_up(self, err: EttError) -> None:
        """Have the capture, if there is one, keep nothing more; what was taken stays so until `give_back`."""
        with self._lock:
            if self._in_flight and self._in_flight.capture:
                self._in_flight.capture.give_up(err)
            self._ended.notify_all()

    def await_end(self) -> None:
        with self._lock:
            self._ended.wait_for(lambda: not self._in_flight or bool(self._capture and self._capture.is_over))

    def _keep_ahead(self, ids: Ids, slots_of: SlotsOf) -> None:
        slots = slots_of(ids)
        is_row = slots >= 0
        if capture := self._capture:
            capture.keep(slots[is_row], ids[is_row], "prefetch")

    @property
    def _capture(self) -> Capture | None:
        return self._in_flight.capture if self._in_flight else None

    def _taken(self) -> _InFlight:
        assert self._in_flight is not None, "nothing was taken"
        return self._in_flight

    def _count(self, change: Callable[[], None]) -> None:
        """Tell the counter, now or when it has aged."""
        if self._in_flight and self._in_flight.counted is not None:
            self._in_flight.counted.append(change)
        else:
            change()


def _before_evictions(slots: Slots, ids: Ids, evicted: list[tuple[Slots, Ids]]) -> Ids:
    """Return ids with those of rows that went since the freeze: the first that went from each slot."""
    if not evicted:
        return ids
    left, first = np.unique(np.concatenate([slots for slots, _ in evicted]), return_index=True)
    gone = np.concatenate([ids for _, ids in evicted])[first]
    at = np.searchsorted(left, slots).clip(max=len(left) - 1)
    return np.where(left[at] == slots, gone[at], ids)


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
