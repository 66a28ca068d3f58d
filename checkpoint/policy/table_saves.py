"""What a rank writes of its tables at each checkpoint, as a policy decides, and what the commit lists of them.

Ranks agree on the parts that get a base; each finds by itself which of its rows are hot. A table that does not say what
changes is written whole, every time, and while training waits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ett.checkpoint.canonical_json import Json
from ett.checkpoint.capture.boundary_rows import DeviceStaging
from ett.checkpoint.capture.capture_counts import CaptureCounts, sum_of
from ett.checkpoint.capture.row_capture import RowCapture
from ett.checkpoint.capture.staged_rows import can_be_staged
from ett.checkpoint.capture.staging_pool import StagingPool
from ett.checkpoint.commit import Commit, TableEntry
from ett.checkpoint.digest import combine
from ett.checkpoint.failure_history import FailureHistory
from ett.checkpoint.policy.measured_rates import MeasuredRates
from ett.checkpoint.policy.save_policy import Adaptive, Full, Policy
from ett.checkpoint.policy.table_chain import END_OF_IDS, Decision, TableChain, decide, live_files
from ett.checkpoint.policy.table_tracker import AsOf
from ett.checkpoint.policy.tracked_rows import NO_IDS, TrackedRows
from ett.checkpoint.ranks import Ranks, gather_or_raise
from ett.checkpoint.segment import ALIGNMENT
from ett.checkpoint.stall_budget import Patience
from ett.checkpoint.table_segments import Ids, TableFile
from ett.checkpoint.table_writer import RowsToWrite, WrittenTable
from ett.checkpoint.tracked_table import TrackedTable
from ett.checkpoint.training_state import TrainingState
from ett.checkpoint.worker_threads import in_threads, num_work_threads
from ett.clock import Clock
from ett.errors import EttError

log = logging.getLogger(__name__)
_SAMPLE = 256  # ids of a rank from which the ends of parts are chosen
_PRIOR_INTERVAL_S = 60.0
_ID_BYTES = 8  # in a file, at most; as a rule two


class TableSaves:
    """`begin` once, then for each checkpoint `freeze`, `plan`, what there is to write, and `committed` or `give_back`.

    `begin` and `plan` are collective; the others are each rank's own. What comes after `freeze` may be done by another
    thread, and with a pool while training goes on.
    """

    def __init__(
        self,
        policy: Policy,
        name: str,
        state: TrainingState,
        ranks: Ranks,
        clock: Clock,
        *,
        pool: StagingPool | None = None,
        device: DeviceStaging | None = None,
        max_live: float = 0.0,
    ) -> None:
        """Args:
        pool: for rows that change before they are written; None: none do, training waits.
        device: for such rows of all tables in device memory.
        max_live: of the rows that a commit lists, over the table's; 0: any.
        """
        self.policy_name = name
        self._max_live = max_live
        self.state = state
        self._policy, self._ranks, self._clock, self._pool = policy, ranks, clock, pool
        self._device = device
        self._tracked: dict[str, TrackedRows] = {}
        self._live: dict[str, tuple[TableFile, ...]] = {}
        self._rates = MeasuredRates()
        self._failures = FailureHistory(self._now_s())
        self._last_s = 0.0
        self._has_said_untracked = False

    def begin(
        self,
        restored: Commit | None,
        failures: FailureHistory,
        read_s: float = 0.0,
        own: Mapping[str, AsOf] = MappingProxyType({}),
    ) -> None:
        """Follow the tables from their present state on: that of a commit, which took `read_s`, or of a fresh start.

        Args: own: what this rank has of each of the commit's tables.
        """
        self._failures = failures
        if restored is not None:
            self._rates = self._rates.after_restore(num_bytes=restored.num_bytes, read_s=read_s)
        self._live = {table.spec.name: table.files for table in restored.tables} if restored else {}
        self._tracked = {}
        self.state.settle()
        if isinstance(self._policy, Full) and self._pool is None:
            return
        for spec in self.state.specs:
            shard = self.state.shards[spec.name]
            if not isinstance(shard, TrackedTable) or (self._pool is not None and not can_be_staged(spec)):
                continue
            table = self._tracked[spec.name] = TrackedRows(spec, shard)
            table.follow(own.get(spec.name))
        self._say_untracked()
        if restored is None:
            return
        bounds = self._bounds(self._ranks)
        rows = {table.spec.name: table.num_rows for table in restored.tables}
        for number, (name, table) in enumerate(self._tracked.items()):
            files, stagger = self._live.get(name, ()), number / len(self._tracked)
            table.chain = TableChain.of_files(bounds[name], files, rows.get(name, 0), stagger)
            table.kept_hot_seq = restored.seq

    def freeze(self, patience: Patience) -> None:
        """Take what has changed; with a pool, keep from now on what rows were until they are written.

        Args: patience: with which training waits for room in the pool.
        """
        self.state.settle()
        specs, shares = {spec.name: spec for spec in self.state.specs}, self._device_shares()
        for name, table in self._tracked.items():
            table.spec = specs[name]
            # Another Checkpointer of this model, since our last save, or other columns than we have saved.
            if table.shard.tracked_by is not table.tracker:
                table.follow()
                table.chain = TableChain()
            with table.shard.lock:
                if table.own_keeper is not None:
                    table.freeze_on_device(shares.get(name), patience)
                else:
                    table.freeze(self._capture_of(table, patience))

    def plan(self, ranks: Ranks) -> None:
        """Agree on what is written of what was frozen."""
        for table in self._tracked.values():  # of all tables before anything else: their update comes within a step
            table.keep_coming()
        in_threads(self._tracked.values(), TrackedRows.find_changes, num_work_threads())
        if any(not table.chain.ages for table in self._tracked.values()):
            bounds = self._bounds(ranks)
            for number, (name, table) in enumerate(self._tracked.items()):
                if not table.chain.ages:
                    table.chain = TableChain(bounds=bounds[name], stagger=number / len(self._tracked))
        self._decide(ranks)

    @property
    def has_untracked(self) -> bool:
        """Whether a table does not say what changes; the same on every rank."""
        return any(spec.name not in self._tracked for spec in self.state.specs)

    def untracked_rows(self) -> Iterator[RowsToWrite]:
        """Yield the rows of tables that do not say what changes. Raises: see `TrainingState.all_rows`."""
        for spec in self.state.specs:
            if spec.name not in self._tracked:
                yield self.state.all_rows(spec)

    def tracked_rows(self) -> Iterator[RowsToWrite]:
        """Yield what goes into files of the others, as was agreed: several of one table after each other."""
        for table in self._tracked.values():
            yield from self._rows_of(table)

    def captured(self) -> CaptureCounts:
        """Return how this rank's rows came to the checkpoint that is under way, all of which have been read.

        Raises: CorruptState: some were written to untold before, or meanwhile.
        """
        captures = [table.capture for table in self._tracked.values() if table.capture is not None]
        for capture in captures:
            capture.check()
        counts = sum_of(capture.counts for capture in captures)
        pools = [self._pool, None if self._device is None else self._device.pool]
        return replace(counts, staged_bytes=sum(pool.most_bytes for pool in pools if pool is not None))

    def entries(self, written: Sequence[WrittenTable]) -> tuple[list[Json], list[Json]]:
        """Return this rank's part of each table's entry, and how many of its rows are hot and are at all."""
        entries, shares = [], []
        for spec in self.state.specs:
            parts = [table for table in written if table.spec.name == spec.name]
            tracked = self._tracked.get(spec.name)
            is_whole = tracked is None or tracked.is_whole
            num_rows = parts[0].num_rows if tracked is None else tracked.num_rows
            files = tuple(file for part in parts for file in part.files)
            digest = combine([part.digest for part in parts]) if is_whole else None
            if tracked is not None:
                tracked.digest = digest
            entries.append(TableEntry(spec=spec, num_rows=num_rows, digest=digest, files=files).as_json())
            num_hot = 0 if tracked is None or tracked.plan is None else len(tracked.plan.hot)
            shares.append([num_hot, num_rows])
        return entries, shares

    def listed(self, tables: Sequence[TableEntry], shares: Sequence[Json], seq: int) -> tuple[TableEntry, ...]:
        """Return the tables of a commit with every file that is live after it. Args: tables: with its own files."""
        listed = []
        for number, table in enumerate(tables):
            tracked = self._tracked.get(table.spec.name)
            if tracked is None or tracked.is_whole:
                listed.append(table)
                continue
            chain = self._chain_after(tracked, number, shares, seq)
            old = self._live[table.spec.name]
            files = live_files(chain, old, table.files, kept_hot_seq=tracked.kept_hot_seq)
            listed.append(replace(table, digest=None, files=files))
        return tuple(listed)

    def thresholds(self) -> dict[str, float]:
        """Return p* of each table for which the adaptive policy has found it, of what was frozen last."""
        decisions = {name: table.decision for name, table in self._tracked.items()}
        return {name: each.solution.threshold for name, each in decisions.items() if each and each.solution}

    def committed(self, commit: Commit, shares: Sequence[Json]) -> None:
        """Go on from a commit. Args: shares: what `entries` returned, of each rank."""
        for number, table in enumerate(commit.tables):
            tracked = self._tracked.get(table.spec.name)
            if tracked is not None and tracked.plan is not None:
                tracked.chain = self._chain_after(tracked, number, shares, commit.seq)
                with tracked.shard.lock:
                    as_of = AsOf(commit.ckpt_uuid, tracked.num_rows, tracked.digest)
                    tracked.tracker.committed(tracked.plan.hot.slots, as_of)
            self._live[table.spec.name] = table.files
        self._end()
        new = sum(f.stored.bytes for table in commit.tables for f in table.files if f.seq == commit.seq)
        took = {name: commit.stats[name] for name in ("write_s", "stall_s")}
        self._rates = self._rates.after_save(num_bytes=new, **took)
        self._last_s = self._now_s()

    def give_back(self) -> None:
        """Make due again what was taken for a checkpoint that is none."""
        for table in self._tracked.values():
            with table.shard.lock:
                table.give_back()
        self._end()

    def give_up(self, err: EttError) -> None:
        """Have the save that is under way come to nothing: training waits for none of it any more."""
        for table in self._tracked.values():
            with table.shard.lock:
                table.tracker.give_up(err)

    @contextmanager
    def given_back_on_error(self) -> Iterator[None]:
        """`give_back` if the body raises anything: rows would be kept for a checkpoint that nobody writes."""
        with ExitStack() as stack:
            stack.callback(self.give_back)
            yield
            stack.pop_all()

    def await_others(self) -> None:
        """Return when no other Checkpointer saves a table any more: rows of it may be written to untold."""
        for shard in self.state.shards.values():
            if isinstance(shard, TrackedTable):
                shard.tracked_by.await_end()

    def touched(self, name: str, ids: Ids | None) -> None:
        """See `TrackedTable.touched`; a table that is not tracked is written whole in any case."""
        if name in self._tracked:
            self._tracked[name].shard.touched(ids)

    def _say_untracked(self) -> None:
        """Log once which tables every save writes whole, as `full` without a pool does with all."""
        names = [spec.name for spec in self.state.specs if spec.name not in self._tracked]
        if names and not self._has_said_untracked:
            self._has_said_untracked = True
            log.info(
                "each save writes these tables whole while training waits, for they do not say what changes: %s",
                ", ".join(names),
            )

    def _device_shares(self) -> dict[str, DeviceStaging]:
        """Return the memory of each table on a device: its share, by its bytes, of what there is for all."""
        on_device = {name: table for name, table in self._tracked.items() if table.own_keeper is not None}
        if self._device is None or not on_device:
            return {}
        sizes = {name: each.spec.row_bytes * each.shard.num_tracked_rows() for name, each in on_device.items()}
        for_all, total = self._device.device_bytes, max(1, sum(sizes.values()))
        return {name: replace(self._device, device_bytes=for_all * size // total) for name, size in sizes.items()}

    def _capture_of(self, table: TrackedRows, patience: Patience) -> RowCapture | None:
        if self._pool is None:
            return None
        return RowCapture(
            table.spec,
            table.shard,
            self.state.gatherer(table.spec),
            self._pool,
            self._clock,
            num_slots=table.tracker.num_slots,
            patience=patience,
        )

    def _end(self) -> None:
        for table in self._tracked.values():
            table.end()

    def _decide(self, ranks: Ranks) -> None:
        """Have every rank take the bases that the rank with most rows of a table would, the first of several."""
        interval_s = self._now_s() - self._last_s if self._last_s else _PRIOR_INTERVAL_S
        rates = replace(self._rates, mtbf_s=self._failures.mtbf_s(self._now_s()))
        cost = rates.io_cost(max(interval_s, 1e-3))
        votes = []
        for table in self._tracked.values():
            own = table.decision = decide(self._policy, table.chain, cost, table.tracker.counter.population())
            votes.append([table.num_rows, own.base.start, own.base.stop, own.credit, table.num_due])
        by_rank = ranks.gather(votes)

        def make_plan(number: int) -> None:
            name, table = tables[number]
            of_table = [votes[number] for votes in by_rank]
            _, first, end, credit, _ = max(of_table, key=lambda vote: int(vote[0]))
            assert table.decision is not None
            agreed = replace(table.decision, base=range(first, end), credit=credit)
            shares = [(int(vote[0]), int(vote[4])) for vote in of_table]
            table.make_plan(self._bounded(agreed, table, self._live.get(name, ()), shares))

        tables = list(self._tracked.items())
        in_threads(range(len(tables)), make_plan, num_work_threads())

    def _bounded(
        self, decision: Decision, table: TrackedRows, live: Sequence[TableFile], shares: Sequence[tuple[int, int]]
    ) -> Decision:
        """Return a decision for a base of the whole table where the one made would list too many bytes.

        Args: shares: rows, and rows that are due, of each rank. On every rank alike.
        """
        chain = table.chain
        if not self._max_live or not chain.ages:
            return decision
        after = chain.after(decision, END_OF_IDS, 0.0)
        kept = sum(file.stored.bytes for file in live_files(after, live, (), kept_hot_seq=table.kept_hot_seq))
        num_rows, num_due = (sum(column) for column in zip(*shares, strict=True))
        num_new = num_rows * len(decision.base) // chain.num_parts + num_due
        row_bytes = table.spec.row_bytes
        # A base, a hot and a cold file of each rank, whose sections are aligned.
        kept += len(shares) * 3 * (len(table.spec.groups) + 3) * ALIGNMENT
        if kept + num_new * (row_bytes + _ID_BYTES) <= self._max_live * num_rows * row_bytes:
            return decision
        return replace(decision, base=range(chain.num_parts), credit=chain.stagger - chain.num_parts / 2)

    def _rows_of(self, table: TrackedRows) -> Iterator[RowsToWrite]:
        plan, capture = table.plan, table.capture
        gather = self.state.gatherer(table.spec) if capture is None else capture.gather
        assert plan is not None
        if plan.base:
            yield RowsToWrite(spec=table.spec, kind="base", ids=table.ids_of_base(), gather=gather)
        for kind, rows, tombstones in (("hot", plan.hot, NO_IDS), ("cold", plan.cold, plan.tombstones)):
            yield RowsToWrite(spec=table.spec, kind=kind, ids=rows.ids, gather=gather, tombstones=tombstones)

    def _bounds(self, ranks: Ranks) -> dict[str, tuple[int, ...]]:
        """Return where each table's parts end: as many rows in each, of all ranks."""
        parts = self._policy.parts if isinstance(self._policy, Adaptive) else 1
        if parts == 1:
            return dict.fromkeys(self._tracked, ())

        def sample() -> Json:
            return [_evenly(table.ids_now()) for table in self._tracked.values()]

        by_rank = gather_or_raise(ranks, sample)
        return {
            name: _ends([row_id for samples in by_rank for row_id in samples[number]], parts)
            for number, name in enumerate(self._tracked)
        }

    def _chain_after(self, table: TrackedRows, number: int, shares: Sequence[Json], seq: int) -> TableChain:
        assert table.decision is not None
        num_hot, num_rows = (sum(share[number][k] for share in shares) for k in range(2))
        return table.chain.after(table.decision, seq, num_hot / max(1, num_rows))

    def _now_s(self) -> float:
        return self._clock.mono_ns() / 1e9


def _evenly(ids: Ids) -> list[int]:
    """Return up to _SAMPLE ids, from all places of a list."""
    at = np.linspace(0, max(0, len(ids) - 1), min(len(ids), _SAMPLE)).astype(np.int64)
    chosen: list[int] = ids[at].tolist()
    return chosen


def _ends(sample: list[int], parts: int) -> tuple[int, ...]:
    known = np.unique(np.array(sample, np.int64))
    at = (np.arange(1, parts) * len(known)) // parts
    return tuple(int(row_id) for row_id in np.unique(known[at])) if len(known) else ()
