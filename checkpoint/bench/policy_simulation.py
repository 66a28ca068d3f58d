"""Plays the file protocol over a trace: the product's tracker and plan decide, files are lists of ids and versions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ett.checkpoint.bench.access_traces import Slots, Trace
from ett.checkpoint.policy.access_counter import AccessCounter
from ett.checkpoint.policy.hindsight import HindsightCounters
from ett.checkpoint.policy.io_cost import Floats, IoCost
from ett.checkpoint.policy.save_policy import Adaptive, Policy
from ett.checkpoint.policy.table_chain import TableChain, decide
from ett.checkpoint.policy.table_plan import TablePlan, plan_table
from ett.checkpoint.policy.table_tracker import TableTracker
from ett.errors import ThresholdMissed

_CHECK_EVERY = 16  # checkpoints between two that are read back


@dataclass(slots=True)
class Account:
    """In records of rows; restorable: what a restore would read, summed over intervals."""

    saved: float = 0.0
    restorable: float = 0.0
    largest: float = 0.0  # save after the first, which is a base under every policy
    hot: list[int] = field(default_factory=list)  # rows of the hot files, by checkpoint
    cold: list[int] = field(default_factory=list)
    base: list[int] = field(default_factory=list)
    periods: list[int] = field(default_factory=list)

    def total(self, weight: float) -> float:
        return self.saved + weight * self.restorable


@dataclass(slots=True)
class _File:
    seq: int
    slots: Slots
    versions: Slots
    parts: Slots  # of each row


class PolicySimulation:
    """One table whose ids are its slots.

    dead_share: what a restore reads of a row that a newer base has: its id, over a record.
    """

    def __init__(self, num_rows: int, policy: Policy, cost: IoCost, dead_share: float) -> None:
        parts = policy.parts if isinstance(policy, Adaptive) else 1
        self.account = Account()
        self._policy, self._cost, self._dead_share = policy, cost, dead_share
        self._chain = TableChain(bounds=tuple(num_rows * k // parts for k in range(1, parts)))
        self._part_of = self._chain.parts_of(np.arange(num_rows))
        self._part_rows = np.bincount(self._part_of, minlength=parts)
        self._tracker = TableTracker(AccessCounter())
        self._tracker.grow(num_rows)
        self._tracker.restored(num_rows, np.empty(0, np.int64))
        self._versions = np.zeros(num_rows, np.int64)
        self._based = np.full(num_rows, -1, np.int64)  # versions in the bases
        self._seq = 0
        self._hot = self._file(np.empty(0, np.int64))
        self._cold: list[_File] = []

    def interval(self, updated: Slots) -> None:
        """Train for an interval, then make a checkpoint, and count what it costs until the next one."""
        self._versions[updated] += 1
        self._tracker.updated(updated, updated)
        self._tracker.freeze()
        changes = self._tracker.changes(lambda slots: slots)
        decision = decide(self._policy, self._chain, self._cost, self._tracker.counter.population())
        plan = plan_table(decision, self._chain, changes, self._tracker.counter)
        self._seq += 1
        self._chain = self._chain.after(decision, self._seq, len(plan.hot) / len(self._versions))
        self._tracker.committed(plan.hot.slots)
        based = np.isin(self._part_of, np.array(decision.base))
        self._based[based] = self._versions[based]
        self._hot = self._file(plan.hot.slots)
        oldest = min(self._chain.base_seqs)
        self._cold = [file for file in self._cold if file.seq > oldest]
        self._cold.append(self._file(plan.cold.slots))
        self._count(plan, int(based.sum()), decision.solution.period if decision.solution else 0)
        if self._seq % _CHECK_EVERY == 0:
            self._check()

    def _file(self, slots: Slots) -> _File:
        return _File(self._seq, slots, self._versions[slots], self._part_of[slots])

    def _count(self, plan: TablePlan, num_based: int, period: int) -> None:
        account, seqs = self.account, np.array(self._chain.base_seqs)
        saved = num_based + plan.num_records
        account.saved += saved
        account.largest = max(account.largest, saved if self._seq > 1 else 0)
        listed = sum(len(file.slots) for file in self._cold)
        needed = sum(int((seqs[file.parts] < file.seq).sum()) for file in self._cold)
        account.restorable += len(self._versions) + len(plan.hot) + needed + self._dead_share * (listed - needed)
        account.hot.append(len(plan.hot))
        account.cold.append(len(plan.cold))
        account.base.append(num_based)
        account.periods.append(period)

    def _check(self) -> None:
        """Raises: ThresholdMissed: the files do not hold the newest version of every row."""
        seqs = np.array(self._chain.base_seqs)
        found = self._based.copy()
        for file in [*self._cold, self._hot]:  # in the order of seq: no two of the newest have a row in common
            is_newer = seqs[file.parts] < file.seq
            found[file.slots[is_newer]] = file.versions[is_newer]
        num_wrong = int((found != self._versions).sum())
        if num_wrong:
            raise ThresholdMissed(f"{self._policy}: {num_wrong} rows of {len(found)} are not read back as trained")


def simulate(trace: Trace, num_rows: int, policy: Policy, cost: IoCost, dead_share: float) -> Account:
    """Return what a policy's checkpoints cost, one after each interval of a trace."""
    simulation = PolicySimulation(num_rows, policy, cost, dead_share)
    for updated in trace:
        simulation.interval(updated)
    return simulation.account


@dataclass(frozen=True, slots=True)
class Hindsight:
    """Totals, in records.

    threshold: had it been known for each period from how many updates in it on rows are better kept hot. per_row: had
    each row's better class been known.
    """

    threshold: float
    per_row: float
    period: int


def hindsight(trace: Trace, num_rows: int, weight: float, periods: list[int]) -> Hindsight:
    """Return the least cost of whole bases every so many intervals, and of classes chosen when the trace was known."""
    return min((_of_period(trace, num_rows, weight, period) for period in periods), key=lambda best: best.threshold)


def _of_period(trace: Trace, num_rows: int, weight: float, period: int) -> Hindsight:
    by_threshold = by_row = 0.0
    for start in range(0, len(trace), period):
        length = min(period, len(trace) - start)
        counters = HindsightCounters(num_rows)
        for number in range(1, length):
            counters.end_interval(number, trace[start + number])
        cold, hot = counters.costs(length, weight)
        base = num_rows * (1 + weight * length)
        by_threshold += base + _best_threshold(counters.counts, cold, hot, length)
        by_row += base + float(np.minimum(cold, hot).sum())
    return Hindsight(by_threshold, by_row, period)


def _best_threshold(counts: Slots, cold: Floats, hot: Floats, length: int) -> float:
    """Return the least total over thresholds: rows with more updates are hot, the others cold."""
    by_count = [np.bincount(counts, costs, length + 1) for costs in (cold, hot)]
    up_to, beyond = np.cumsum(by_count[0]), by_count[1].sum() - np.cumsum(by_count[1])
    return float(min((up_to + beyond).min(), hot.sum()))
