"""The rows of a table as they are at a step boundary, while training goes on changing them: save-on-update.

Nothing is copied at the boundary. A row that is about to change is copied to staging memory first, where that has not
been done (U2 of the specification); most are copied earlier, when a batch is announced that will look them up. The
writer takes rows that were staged from there, and reads the others where they lie, in id order: the sweep. What is done
to one row is done within the table's lock: a row is settled when its value is in staging memory, when the writer has
read it, or when it is not wanted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from ett.checkpoint.capture.staged_ids import StagedIds
from ett.checkpoint.capture.staging_pool import BLOCK_BYTES, StagingPool
from ett.checkpoint.policy.row_map import RowMap
from ett.checkpoint.stall_budget import Patience, over_budget
from ett.checkpoint.table_segments import Bytes, Ids, TableSpec
from ett.checkpoint.table_writer import Gather
from ett.checkpoint.tracked_table import Slots, TrackedTable
from ett.clock import Clock
from ett.errors import CorruptState, EttError, Unreachable

Path = Literal["prefetch", "guard"]
_ALIGNED = 64  # bytes, of each column of a block
_SWEPT_BYTES = 1 << 20  # that are read within the lock at once: training may wait for it
_WAIT_S = 0.1  # for room, before it is looked whether the save is still going on


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureCounts:
    """Rows by the way that their values went, and for how long training waited for staging memory."""

    prefetch: int = 0
    guard: int = 0
    sweep: int = 0
    waited_s: float = 0.0
    staged_bytes: int = 0  # of staging memory, lent at once at most since training began


def sum_of(counts: Iterable[CaptureCounts]) -> CaptureCounts:
    sums = {f.name: 0 for f in fields(CaptureCounts)}
    for each in counts:
        sums = {name: value + getattr(each, name) for name, value in sums.items()}
    return CaptureCounts(**sums)


def can_be_staged(spec: TableSpec) -> bool:
    """Return whether a row fits into a block."""
    return rows_of_block(spec) > 0


def rows_of_block(spec: TableSpec) -> int:
    return (BLOCK_BYTES - _ALIGNED * len(spec.groups)) // spec.row_bytes


class RowCapture:
    """One checkpoint of one table; made, and closed, within the table's lock."""

    def __init__(
        self,
        spec: TableSpec,
        table: TrackedTable,
        read: Gather,
        pool: StagingPool,
        clock: Clock,
        *,
        num_slots: int,
        patience: Patience,
    ) -> None:
        """Args: read: copies rows as they are now, by ids, ascending. num_slots: of the table. patience: of all tables,
        with staging memory that is full; then the save fails, and training goes on.
        """
        self._spec, self._table, self._read, self._pool, self._clock = spec, table, read, pool, clock
        self._settled = RowMap(num_slots)
        self._others = RowMap(num_slots)  # that are not wanted
        self._staged = StagedIds()
        self._block_rows = rows_of_block(spec)
        self._open, self._filled = -1, 0  # the block that rows go to, and how many it has
        self._unread: dict[int, int] = {}  # rows that the writer has not taken, of each block
        self._counting = threading.Lock()  # of _unread
        self._num = {"prefetch": 0, "guard": 0, "sweep": 0}
        self._waited_ns = 0
        self._patience = patience
        self.is_over = False  # nothing is kept any more
        self._failure: EttError | None = None

    @property
    def counts(self) -> CaptureCounts:
        return CaptureCounts(**self._num, waited_s=self._waited_ns / 1e9)

    def grow(self, num_slots: int) -> None:
        self._settled.grow(num_slots)
        self._others.grow(num_slots)

    def keep(self, slots: Slots, ids: Ids, path: Path) -> None:
        """Copy rows that are wanted and not yet settled; within the table's lock, before they change.

        Where staging memory is full, the guard waits for the writer and lets it into the table meanwhile; a prefetch
        leaves the rows to the guard.
        """
        left = self._settled.unmarked(slots)
        while len(left) and not self.is_over:
            room = self._room()
            if not room:
                if path == "prefetch":
                    return
                self._wait()
                left = self._settled.unmarked(slots)  # the writer was here
                continue
            part, left = left[:room], left[room:]
            self._stage(slots[part], ids[part])
            self._num[path] += len(part)

    def came(self, slots: Slots) -> None:
        """Learn of rows that are none of this checkpoint's."""
        self._settled.mark(slots)
        self._others.mark(slots)

    def want_only(self, wanted: RowMap) -> None:
        """Keep no others from now on; until this is called every row is wanted."""
        self._settled.mark_others(wanted)
        self._others.mark_others(wanted)

    def touched(self, slots: Slots) -> None:
        """Give up if rows are wanted: nobody knows whether they were read before they were written to."""
        if len(self._others.unmarked(slots)):
            self.give_up(
                CorruptState(
                    f"rows of table {self._spec.name} were written to while a checkpoint of them was on its way",
                    expected="changes that are told before they are made, or no checkpoint on its way",
                    do="set checkpoint.background = false for a model whose rows are changed by other code",
                )
            )

    def gather(self, ids: Ids, columns: tuple[Bytes, ...]) -> None:
        """Copy rows as they were at the boundary; by several threads, with other ids each.

        Args: ids: int64 [N], ascending. columns: uint8 [N, row_bytes] a group.
        Raises: what a copy of a row raised, whoever made it.
        """
        at_once = max(1, _SWEPT_BYTES // self._spec.row_bytes)
        for start in range(0, len(ids), at_once):
            part = slice(start, start + at_once)
            self._sweep(ids[part], tuple(column[part] for column in columns))

    def check(self) -> None:
        """Look, when all rows have been read, whether they were those of the boundary. Raises: CorruptState."""
        with self._table.lock:
            if self._failure is not None:
                raise self._failure
            self._read(np.empty(0, np.int64), tuple(np.empty((0, g.row_bytes), np.uint8) for g in self._spec.groups))

    def close(self) -> None:
        """Keep nothing any more; within the table's lock."""
        self.is_over = True
        with self._counting:
            blocks, self._unread = list(self._unread), {}
        self._pool.give_back(blocks)

    def _sweep(self, ids: Ids, columns: tuple[Bytes, ...]) -> None:
        with self._table.lock.patiently():
            if self._failure is not None:
                raise self._failure
            places = self._staged.find(ids)
            at = np.flatnonzero(places < 0)
            live = columns
            if len(at) < len(ids):
                live = tuple(np.empty((len(at), column.shape[1]), np.uint8) for column in columns)
            if len(at):
                self._read(ids[at], live)
                self._settled.mark(self._table.slots_of(ids[at]))
                self._num["sweep"] += len(at)
        if len(at) == len(ids):
            return
        for column, part in zip(columns, live, strict=True):
            column[at] = part
        self._unstage(np.flatnonzero(places >= 0), places[places >= 0], columns)

    def _unstage(self, at: Ids, places: Ids, columns: tuple[Bytes, ...]) -> None:
        """Copy staged rows to where they are wanted; their memory is free afterwards."""
        blocks, rows = np.divmod(places, self._block_rows)
        for column, staged in zip(columns, self._columns(), strict=True):
            column[at] = staged[blocks, rows]
        numbers, taken = np.unique(blocks, return_counts=True)
        empty = []
        with self._counting:
            for number, count in zip(numbers.tolist(), taken.tolist(), strict=True):
                self._unread[number] -= count
                if not self._unread[number] and number != self._open:
                    del self._unread[number]
                    empty.append(number)
        self._pool.give_back(empty)

    def _room(self) -> int:
        """Return how many rows can be staged now, in one block."""
        if self._open >= 0 and self._filled < self._block_rows:
            return self._block_rows - self._filled
        number = self._pool.take()
        if number is None:
            return 0
        with self._counting:
            full, self._open, self._filled = self._open, number, 0
            is_empty = full >= 0 and not self._unread[full]
            if is_empty:
                del self._unread[full]
            self._unread[number] = 0
        self._pool.give_back([full] if is_empty else [])
        return self._block_rows

    def _stage(self, slots: Slots, ids: Ids) -> None:
        if not (ids[1:] > ids[:-1]).all():
            order = np.argsort(ids)
            slots, ids = slots[order], ids[order]
        rows = slice(self._filled, self._filled + len(ids))
        try:
            self._read(ids, tuple(staged[self._open, rows] for staged in self._columns()))
        except EttError as err:
            self.give_up(err)
            return
        except OSError as err:
            self.give_up(Unreachable(f"a row of table {self._spec.name} could not be read: {err}", code="S003"))
            return
        self._staged.put(ids, self._open * self._block_rows + self._filled)
        self._settled.mark(slots)
        self._filled += len(ids)
        with self._counting:
            self._unread[self._open] += len(ids)

    def _columns(self) -> list[Bytes]:
        """Return the pool's memory as rows of this table: uint8 [blocks, rows of a block, row_bytes] a group."""
        found, begin, blocks = [], 0, self._pool.blocks
        for group in self._spec.groups:
            size = self._block_rows * group.row_bytes
            part = blocks[:, begin : begin + size]
            shape, strides = (len(blocks), self._block_rows, group.row_bytes), (blocks.strides[0], group.row_bytes, 1)
            found.append(np.lib.stride_tricks.as_strided(part, shape, strides))
            begin += -(-size // _ALIGNED) * _ALIGNED
        return found

    def _wait(self) -> None:
        if self._patience.left_s <= 0:
            waited_s = f"{self._waited_ns / 1e9:.1f} s"
            self.give_up(over_budget(f"training waited {waited_s} for staging memory for rows of {self._spec.name}"))
            return
        began_ns = self._clock.mono_ns()
        with self._table.lock.let_go():
            self._pool.wait(min(_WAIT_S, self._patience.left_s))
        took_ns = self._clock.mono_ns() - began_ns
        self._waited_ns += took_ns
        self._patience.left_s -= took_ns / 1e9

    def give_up(self, err: EttError) -> None:
        """Have the save fail: training goes on, and nothing more is kept; within the table's lock."""
        self._failure, self.is_over = self._failure or err, True
