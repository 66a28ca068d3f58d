"""The rows of a table as they are at a step boundary, while training goes on changing them: save-on-update.

Nothing is copied at the boundary. A row that is about to change is copied to staging memory first, where that has not
been done (U2 of the specification); most are copied earlier, when a batch is announced that will look them up. The
writer takes rows that were staged from there, and reads the others where they lie, in id order: the sweep. What is done
to one row is done within the table's lock: a row is settled when its value is in staging memory, when the writer has
read it, or when it is not wanted.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ett.checkpoint.capture.capture_counts import CaptureCounts
from ett.checkpoint.capture.staged_rows import StagedRows
from ett.checkpoint.capture.staging_pool import StagingPool
from ett.checkpoint.policy.row_map import RowMap
from ett.checkpoint.stall_budget import Patience, over_budget
from ett.checkpoint.table_segments import Bytes, Ids, TableSpec
from ett.checkpoint.table_writer import Gather
from ett.checkpoint.tracked_table import Slots, TrackedTable
from ett.clock import Clock
from ett.errors import CorruptState, EttError, Unreachable

Path = Literal["prefetch", "guard"]
_SWEPT_BYTES = 1 << 20  # that are read within the lock at once: training may wait for it
_WAIT_S = 0.1  # for room, before it is looked whether the save is still going on


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
        self._spec, self._table, self._read, self._clock = spec, table, read, clock
        self._settled = RowMap(num_slots)
        self._others = RowMap(num_slots)  # that are not wanted
        self._staged = StagedRows(spec.group_bytes, pool)
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
            room = self._staged.room()
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
        with self._table.lock.patiently():  # training marks rows within it
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
        self._staged.close()

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
        self._staged.take(np.flatnonzero(places >= 0), places[places >= 0], columns)

    def _stage(self, slots: Slots, ids: Ids) -> None:
        if not (ids[1:] > ids[:-1]).all():
            order = np.argsort(ids)
            slots, ids = slots[order], ids[order]
        try:
            self._staged.put(ids, lambda columns: self._read(ids, columns))
        except EttError as err:
            self.give_up(err)
            return
        except OSError as err:
            self.give_up(Unreachable(f"a row of table {self._spec.name} could not be read: {err}", code="S003"))
            return
        self._settled.mark(slots)

    def _wait(self) -> None:
        if self._patience.left_s <= 0:
            waited_s = f"{self._waited_ns / 1e9:.1f} s"
            self.give_up(over_budget(f"training waited {waited_s} for staging memory for rows of {self._spec.name}"))
            return
        began_ns = self._clock.mono_ns()
        with self._table.lock.let_go():
            self._staged.pool.wait(min(_WAIT_S, self._patience.left_s))
        took_ns = self._clock.mono_ns() - began_ns
        self._waited_ns += took_ns
        self._patience.left_s -= took_ns / 1e9

    def give_up(self, err: EttError) -> None:
        """Have the save fail: training goes on, and nothing more is kept; within the table's lock."""
        self._failure, self.is_over = self._failure or err, True
