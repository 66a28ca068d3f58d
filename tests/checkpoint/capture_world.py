"""Checkpoints of one table whose rows are two halves, while three threads that take turns read ahead, train and write.

The rules of save-on-update can be switched off one by one: then a checkpoint has a row of another step, or of two.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from stepper import SteppedLock, Stepper

from ett.checkpoint.capture.row_capture import RowCapture
from ett.checkpoint.capture.staging_pool import StagingPool
from ett.checkpoint.digest import ColumnGroup
from ett.checkpoint.policy.access_counter import NUM_VALUES
from ett.checkpoint.policy.table_chain import Decision, TableChain
from ett.checkpoint.policy.table_tracker import TableTracker
from ett.checkpoint.policy.tracked_rows import TrackedRows
from ett.checkpoint.stall_budget import Patience, over_budget
from ett.checkpoint.table_segments import TableSpec
from ett.checkpoint.tracked_table import NOBODY_TRACKS, RowChanges
from ett.clock import SystemClock
from ett.errors import Unreachable

Ids = NDArray[np.int64]
NUM_IDS, BATCH, DEPTH = 14, 4, 2
RULES = frozenset({"whole step", "guard", "prefetch", "coming", "exclusion", "evictions"})
SPEC = TableSpec(table_id="t0000", name="table", dim=2, groups=(ColumnGroup("weight", "int64", 2),))


class HalvedTable:
    """Rows by slot, each of two halves that are written and read one after the other."""

    def __init__(self, stepper: Stepper, *, excludes: bool) -> None:
        self.lock = SteppedLock(stepper, excludes=excludes)
        self.tracked_by: RowChanges = NOBODY_TRACKS
        self.halves = np.zeros((NUM_IDS + 2, 2), np.int64)
        self.slots: dict[int, int] = {}
        self._free = list(range(NUM_IDS + 2))
        self._stepper = stepper

    def track(self, changes: RowChanges) -> None:
        self.tracked_by = changes
        changes.grow(len(self.halves))

    def touched(self, ids: Ids | None) -> None:
        raise AssertionError("nobody writes to these rows untold")

    def num_tracked_rows(self) -> int:
        return len(self.slots)

    def tracked_ids(self) -> Ids:
        return np.array(list(self.slots), np.int64)

    def slots_of(self, ids: Ids) -> Ids:
        return np.array([self.slots.get(row_id, -1) for row_id in ids.tolist()], np.int64)

    def ids_of_slots(self, slots: Ids) -> Ids:
        ids = {slot: row_id for row_id, slot in self.slots.items()}
        return np.array([ids.get(slot, -1) for slot in slots.tolist()], np.int64)

    def read(self, ids: Ids, columns: tuple[NDArray[np.uint8], ...]) -> None:
        """A gather that another thread may come between."""
        slots = self.slots_of(ids)
        assert (slots >= 0).all() and (ids[1:] > ids[:-1]).all()
        halves = columns[0].view(np.int64)
        for half in range(2):
            halves[:, half] = self.halves[slots, half]
            self._stepper.pause()

    def write(self, ids: Ids, value: int) -> None:
        slots = self.slots_of(ids)
        for half in range(2):
            self.halves[slots, half] = value
            self._stepper.pause()

    def add(self, ids: Ids) -> Ids:
        slots = np.array([self._free.pop(0) for _ in ids], np.int64)  # the one freed last is the next
        self.slots.update(zip(ids.tolist(), slots.tolist(), strict=True))
        return slots

    def remove(self, ids: Ids) -> None:
        for row_id in ids.tolist():
            self._free.insert(0, self.slots.pop(row_id))

    def rows(self) -> dict[int, tuple[int, int]]:
        return {row_id: (int(self.halves[at][0]), int(self.halves[at][1])) for row_id, at in self.slots.items()}


class TickingClock(SystemClock):
    """A second passes whenever somebody looks."""

    def __init__(self) -> None:
        self._looks = 0

    def mono_ns(self) -> int:
        self._looks += 1
        return self._looks * 1_000_000_000


class SteppedPool(StagingPool):
    def __init__(self, stepper: Stepper, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._stepper = stepper

    def wait(self, timeout_s: float) -> None:
        self._stepper.pause(lambda: bool(self._idle))


@dataclass
class CaptureWorld:
    """`run` some steps with a checkpoint after some of them; `wrong` is what they hold that is not so."""

    rng: random.Random
    rules: frozenset[str] = RULES
    pool_bytes: int = 1 << 20
    num_steps: int = 8
    patience_s: float = math.inf  # with which training waits for staging memory, by a `TickingClock`
    given_up: float = 0.0  # the share of steps that begin by giving up the checkpoint that is under way
    wrong: list[str] = field(default_factory=list)
    num_saved: int = 0
    num_given_up: int = 0

    def __post_init__(self) -> None:
        self.stepper = Stepper(self.rng)
        self.table = HalvedTable(self.stepper, excludes="exclusion" in self.rules)
        self.pool = SteppedPool(self.stepper, self.pool_bytes)
        self.tracked = TrackedRows(SPEC, self.table)  # type: ignore[arg-type]
        self.tracked.follow()
        if "coming" not in self.rules:
            self.tracked.tracker.keep_coming = lambda slots_of: None  # type: ignore[method-assign]
        self.tracked.chain = TableChain(bounds=(NUM_IDS // 2,), ages=(1, 1), base_seqs=(1, 1))
        self.counts = {"prefetch": 0, "guard": 0, "sweep": 0}
        self._ahead: deque[Ids] = deque()
        self._oracle: dict[int, tuple[int, int]] | None = None  # of the checkpoint that is under way
        self._committed: dict[int, tuple[int, int]] = {}
        self._is_over = False

    @property
    def tracker(self) -> TableTracker:
        return self.tracked.tracker

    def run(self) -> None:
        self._insert(np.arange(NUM_IDS - 3))
        self.stepper.run(self._read_ahead, self._train, self._write)

    def _read_ahead(self) -> None:
        for _ in range(self.num_steps):
            self.stepper.pause(lambda: len(self._ahead) < DEPTH)
            ids = np.array(sorted(self.rng.sample(range(NUM_IDS), BATCH)), np.int64)
            if "prefetch" in self.rules:
                with self.table.lock:
                    self.tracker.announced(ids, self.table.slots_of)
            self._ahead.append(ids)

    def _train(self) -> None:
        for step in range(1, self.num_steps + 1):
            self.stepper.pause(lambda: bool(self._ahead))
            ids = self._ahead[0]
            if self._oracle is not None and self.rng.random() < self.given_up:
                with self.table.lock:
                    self.tracker.give_up(over_budget("given up"))
            if self.rng.random() < 0.3:
                self._evict(self.rng.sample(sorted(set(self.table.slots) - set(ids.tolist())), 1))
            is_early = "whole step" not in self.rules and self._oracle is None
            self._update(ids, step, self._trigger if is_early else None)
            if "prefetch" in self.rules:
                self.tracker.passed()
            self._ahead.popleft()
            if self._oracle is None and self.rng.random() < 0.6:
                self._trigger()
        self._is_over = True

    def _update(self, ids: Ids, value: int, half_way: object = None) -> None:
        """As a table of a fixed range does: told of within the lock, written outside of it."""
        known = self.table.slots_of(ids) >= 0
        with self.table.lock:
            if "guard" in self.rules:
                self.tracker.updated(self.table.slots_of(ids[known]), ids[known])
            else:
                with self.tracker._lock:
                    self.tracker._dirty.mark(self.table.slots_of(ids[known]))
        if callable(half_way):
            self.table.halves[self.table.slots_of(ids[known]), 0] = value
            half_way()
        self.table.write(ids[known], value)
        if not known.all():
            self._insert(ids[~known], value)

    def _insert(self, ids: Ids, value: int = 0) -> None:
        slots = self.table.add(ids)
        self.table.halves[slots] = value
        self.tracker.inserted(slots, ids)

    def _evict(self, victims: list[int]) -> None:
        ids = np.array(victims, np.int64)
        with self.table.lock:
            slots = self.table.slots_of(ids)
            taken = self.tracker._in_flight
            if taken is None or "evictions" in self.rules:
                self.tracker.evicted(slots, ids)
            else:
                capture, taken.capture = taken.capture, None
                self.tracker.evicted(slots, ids)
                taken.capture = capture
            self.table.remove(ids)

    def _trigger(self) -> None:
        slots = len(self.table.halves)
        with self.table.lock:
            read = self.table.read
            capture = RowCapture(
                SPEC,
                self.table,  # type: ignore[arg-type]
                read,
                self.pool,
                TickingClock(),
                num_slots=slots,
                patience=Patience(self.patience_s),
            )
            self.tracked.freeze(capture)
            self._oracle = self.table.rows()

    def _write(self) -> None:
        while True:
            self.stepper.pause(lambda: self._oracle is not None or self._is_over)
            if self._oracle is None:
                return
            try:
                self._save(self._oracle)
            except Unreachable:
                with self.table.lock:
                    self.tracker.give_back()
                self.num_given_up += 1
            self.tracked.end()
            self._oracle = None
            assert self.pool.lent == 0

    def _save(self, oracle: dict[int, tuple[int, int]]) -> None:
        tracked, capture = self.tracked, self.tracked.capture
        assert capture is not None
        tracked.keep_coming()
        tracked.find_changes()
        is_hot = np.array([[self.rng.random() < 0.5 for _ in range(NUM_VALUES)] for _ in range(2)])
        first = self.rng.randrange(3)
        base = range(first, self.rng.randint(first, 2))
        tracked.make_plan(Decision(base, is_hot))
        assert tracked.plan is not None and tracked.num_rows == len(oracle)
        ids = [tracked.plan.hot.ids, tracked.plan.cold.ids]
        if tracked.plan.base:
            ids.insert(0, tracked.ids_of_base())
        found: dict[int, tuple[int, int]] = {}
        for part in ids:
            for some in np.array_split(part, self.rng.randint(1, 4)):
                column = np.empty((len(some), 16), np.uint8)
                capture.gather(some, (column,))
                values = [(int(one), int(other)) for one, other in column.view(np.int64)]
                assert not found.keys() & set(some.tolist())
                found |= dict(zip(some.tolist(), values, strict=True))
        capture.check()
        self._judge(oracle, found, tracked.plan.tombstones.tolist())
        with self.table.lock:
            self.tracker.committed(tracked.plan.hot.slots)
        for path in self.counts:
            self.counts[path] += getattr(capture.counts, path)
        self.num_saved += 1

    def _judge(self, oracle: dict[int, tuple[int, int]], found: dict[int, tuple[int, int]], gone: list[int]) -> None:
        for row_id, value in found.items():
            if value != oracle.get(row_id):
                self.wrong.append(f"row {row_id} is {value}, was {oracle.get(row_id)}")
        before = {} if self.tracked.is_whole else self._committed
        now = {row_id: row for row_id, row in before.items() if row_id not in gone} | found
        if now != oracle:
            self.wrong.append(f"restored as {now}, was {oracle}")
        self._committed = oracle
