"""A table that says what changes: what it has told, what is committed of it, and what the next checkpoint writes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ett.checkpoint.capture.boundary_rows import BoundaryRows, DeviceStaging, SelfKeepingTable
from ett.checkpoint.capture.device_capture import DeviceCapture
from ett.checkpoint.capture.row_capture import RowCapture
from ett.checkpoint.policy.row_map import RowMap
from ett.checkpoint.policy.table_chain import Decision, TableChain
from ett.checkpoint.policy.table_plan import TablePlan, plan_table
from ett.checkpoint.policy.table_tracker import AsOf, Changes, TableTracker
from ett.checkpoint.stall_budget import Patience
from ett.checkpoint.table_segments import Ids, TableSpec
from ett.checkpoint.tracked_table import Slots, TrackedTable

NO_IDS: Ids = np.empty(0, np.int64)
_IDS_AT_ONCE = 1 << 18  # that are looked up while training may wait


@dataclass(slots=True)
class TrackedRows:
    """What a rank knows of one table that says what changes, and of the checkpoint of it that is under way."""

    spec: TableSpec
    shard: TrackedTable
    tracker: TableTracker = field(default_factory=TableTracker)
    chain: TableChain = field(default_factory=TableChain)
    kept_hot_seq: int = 0  # hot files up to it are of an earlier life, whose hot rows nobody knows any more
    num_rows: int = 0  # when it was frozen
    digest: str | None = None  # of all of them, once they are written; None: some are not
    capture: RowCapture | DeviceCapture | None = None
    boundary: BoundaryRows | None = None  # of a table that knows by itself what has changed, until it was asked
    changes: Changes | None = None
    decision: Decision | None = None
    plan: TablePlan | None = None
    base_ids: Ids | None = None  # of a base of some parts
    own_keeper: SelfKeepingTable | None = field(init=False)  # the shard, if it keeps its rows by itself

    def __post_init__(self) -> None:
        self.own_keeper = self.shard if isinstance(self.shard, SelfKeepingTable) else None

    @property
    def is_whole(self) -> bool:
        """Whether every row goes into a base."""
        return self.decision is not None and len(self.decision.base) == self.chain.num_parts

    def follow(self, as_of: AsOf | None = None) -> None:
        """Be told of all changes from now on, of rows that are as they were committed.

        Another Checkpointer that saves the table, and would be told no more, is waited for.
        """
        self.shard.tracked_by.await_end()
        self.tracker = TableTracker()
        self.shard.track(self.tracker)
        self.tracker.restored(self.shard.num_tracked_rows(), NO_IDS, as_of)

    def freeze(self, capture: RowCapture | None) -> None:
        self.capture = capture
        self.num_rows = self.shard.num_tracked_rows()
        self.tracker.freeze(capture)

    def freeze_on_device(self, staging: DeviceStaging | None, patience: Patience) -> None:
        """As `freeze`, of a table that keeps its rows by itself."""
        assert self.own_keeper is not None
        self.boundary = self.own_keeper.at_boundary(staging, patience)
        self.capture = None if staging is None else DeviceCapture(self.spec, self.shard, self.boundary)
        self.num_rows = self.shard.num_tracked_rows()
        self.tracker.freeze(self.capture)

    def give_back(self) -> None:
        """Make due again what was frozen; within the table's lock."""
        if self.boundary is not None:
            self.boundary.put_back()
            self.boundary = None
        if self.tracker.is_in_flight:
            self.tracker.give_back()

    def keep_coming(self) -> None:
        """Copy the rows that batches on their way will change: they were announced before the step boundary."""
        if self.capture is not None:
            with self.shard.lock:
                self.tracker.keep_coming(self.shard.slots_of)

    def find_changes(self) -> None:
        """List what was frozen."""
        if self.boundary is not None:
            changed = RowMap.of_bytes(self.tracker.num_slots, self.boundary.changed())
            self.tracker.found_changed(changed)
            self.boundary = None
        self.changes = self.tracker.changes(self._ids_of_slots)

    @property
    def num_due(self) -> int:
        """Return how many rows have changed, or are held by the live hot files; more are in no hot or cold file."""
        return 0 if self.changes is None else len(self.changes.ids)

    def make_plan(self, decision: Decision) -> None:
        assert self.changes is not None
        self.decision = decision
        self.plan = plan_table(decision, self.chain, self.changes, self.tracker.counter)
        if self.plan.base and not self.is_whole:
            self.base_ids = self.ids_of_base()
        if self.capture is not None and not self.is_whole:
            self.tracker.want_only(self._wanted())

    def ids_of_base(self) -> Ids:
        """Return the ids of the rows, as of when they were frozen, that go into base files."""
        if self.base_ids is not None:
            return self.base_ids
        with self.shard.lock:
            # Rows that come or go from now on are told of to the tracker, which is asked within the lock, too.
            ids = self.tracker.ids_when_frozen(self.shard.tracked_ids())
        assert self.plan is not None
        first, last = self.plan.base.start, self.plan.base.stop - 1
        return ids[np.searchsorted(ids, first) : np.searchsorted(ids, last, side="right")]

    def ids_now(self) -> Ids:
        with self.shard.lock:
            return self.shard.tracked_ids()

    def end(self) -> None:
        self.capture = self.changes = self.plan = self.base_ids = None

    def _wanted(self) -> RowMap:
        assert self.plan is not None
        wanted = RowMap(self.tracker.num_slots)
        for rows in (self.plan.hot, self.plan.cold):
            wanted.mark(rows.slots)
        ids = NO_IDS if self.base_ids is None else self.base_ids
        for start in range(0, len(ids), _IDS_AT_ONCE):
            with self.shard.lock.patiently():
                slots = self.shard.slots_of(ids[start : start + _IDS_AT_ONCE])
            wanted.grow(self.tracker.num_slots)
            wanted.mark(slots[slots >= 0])
        return wanted

    def _ids_of_slots(self, slots: Slots) -> Ids:
        with self.shard.lock:
            return self.shard.ids_of_slots(slots)
