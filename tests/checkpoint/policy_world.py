"""A job of one table whose checkpoints are made as a policy decides, beside a dict that is always right.

Ranks have trackers and slots; slots are reused; training goes on while a checkpoint is in flight; checkpoints fail; the
job is restarted, on another number of ranks or from an older commit. Files are in memory here, and real in
`policy_files.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from ett.checkpoint.policy.access_counter import NUM_VALUES, AccessCounter
from ett.checkpoint.policy.io_cost import IoCost
from ett.checkpoint.policy.row_map import RowMap, Slots
from ett.checkpoint.policy.save_policy import Adaptive, CheckNRun, Differential, Full, Incremental, Policy
from ett.checkpoint.policy.table_chain import Decision, TableChain, decide, live_files
from ett.checkpoint.policy.table_plan import TablePlan, plan_table
from ett.checkpoint.policy.table_tracker import Ids, TableTracker
from ett.checkpoint.segment import SegmentIdentity, StoredFile
from ett.checkpoint.table_segments import TableFile

Table = dict[int, int]  # id -> value
RULES = frozenset({"hand-off", "newest wins", "given back", "tombstones", "seeded", "evicted in flight"})


class Files(Protocol):
    """Where files are."""

    def write(self, kind: str, seq: int, writer: int, rows: Table, tombstones: list[int]) -> list[TableFile]: ...

    def read(self, files: Iterable[TableFile]) -> Table:
        """Return what a restore of the files gives."""


@dataclass
class MemoryFiles:
    """Of several records of an id the one with the highest seq wins, and nothing else is looked at."""

    rng: random.Random
    newest_wins: bool = True
    content: dict[str, tuple[Table, list[int]]] = field(default_factory=dict)

    def write(self, kind: str, seq: int, writer: int, rows: Table, tombstones: list[int]) -> list[TableFile]:
        if not rows and not tombstones:
            return []
        path = f"{seq}.{kind}.{writer}.{len(self.content)}"
        self.content[path] = (rows, tombstones)
        ids = [*rows, *tombstones]
        file = TableFile(
            stored=StoredFile(path=path, bytes=0, xxh3_128=""),
            identity=identity_of(kind, seq, writer),
            num_rows=len(rows),
            num_tombstones=len(tombstones),
            min_id=min(ids),
            max_id=max(ids),
        )
        return [file]

    def read(self, files: Iterable[TableFile]) -> Table:
        order = list(files)
        self.rng.shuffle(order)
        if self.newest_wins:
            order.sort(key=lambda file: file.seq)
        found: Table = {}
        seen: set[tuple[int, int]] = set()
        for file in order:
            rows, tombstones = self.content[file.stored.path]
            for row_id in (*rows, *tombstones):
                assert (file.seq, row_id) not in seen, f"{row_id} is twice in commit {file.seq}"
                seen.add((file.seq, row_id))
            found.update(rows)
            for row_id in tombstones:
                found.pop(row_id, None)
        return found


def identity_of(kind: str, seq: int, writer: int) -> SegmentIdentity:
    return SegmentIdentity(
        ckpt_uuid=f"e000001-{seq:032x}", seq_parent=seq - 1, step=seq, table="", kind=kind, writer=writer, part=0
    )


@dataclass
class Rank:
    """Slots of a rank's rows; the lowest free one is taken, so that slots are reused at once."""

    slot_of: dict[int, int] = field(default_factory=dict)
    tracker: TableTracker = field(default_factory=lambda: TableTracker(AccessCounter()))

    def add(self, ids: list[int]) -> Slots:
        taken = set(self.slot_of.values())
        free = [slot for slot in range(len(taken) + len(ids)) if slot not in taken][: len(ids)]
        self.slot_of.update(zip(ids, free, strict=True))
        self.tracker.grow(max(free, default=-1) + 1)
        return np.array(free, np.int64)

    def slots(self, ids: Iterable[int]) -> Slots:
        return np.array([self.slot_of[row_id] for row_id in ids], np.int64)

    def ids_of(self, slots: Slots) -> Ids:
        ids = {slot: row_id for row_id, slot in self.slot_of.items()}
        return np.array([ids.get(slot, -1) for slot in slots.tolist()], np.int64)


@dataclass(frozen=True)
class Committed:
    rows: Table
    files: tuple[TableFile, ...]
    chain: TableChain


@dataclass
class PolicyWorld:
    rng: random.Random
    files: Files
    policy: Policy
    ids: Callable[[], int]
    rules: frozenset[str] = RULES  # those that hold
    shakes: bool = True  # classes and bases change at random, whatever the policy says
    cost: IoCost = field(default_factory=lambda: IoCost(saved_s=1.0, restorable_s=0.2))
    rows: Table = field(default_factory=dict)
    ranks: list[Rank] = field(default_factory=lambda: [Rank()])
    seq: int = 0
    chain: TableChain = field(default_factory=TableChain)
    live: tuple[TableFile, ...] = ()
    kept_hot_seq: int = 0
    commits: list[Committed] = field(default_factory=list)
    wrong: int = 0  # commits that were not read back as they were

    def train(self, num_events: int) -> None:
        """Update, insert and evict rows, in any order."""
        for _ in range(num_events):
            known = list(self.rows)
            match self.rng.choice("uuuuiie" if known else "i"):
                case "u":
                    some = self.rng.sample(known, self.rng.randint(1, min(4, len(known))))
                    for rank, ids in self._by_rank(some):
                        rank.tracker.updated(rank.slots(ids), np.array(ids, np.int64))
                    self._set(some)
                case "i":
                    some = sorted({self.ids() for _ in range(3)} - set(known))
                    for rank, ids in self._by_rank(some):
                        rank.tracker.inserted(rank.add(ids), np.array(ids, np.int64))
                    self._set(some)
                case "e":
                    some = self.rng.sample(known, self.rng.randint(1, min(2, len(known))))
                    for rank, ids in self._by_rank(some):
                        rank.tracker.evicted(rank.slots(ids), np.array(ids, np.int64))
                        for row_id in ids:
                            del rank.slot_of[row_id], self.rows[row_id]

    def checkpoint(self, *, fails: bool, events_in_flight: int) -> None:
        """Write what the policy decides of the rows as they are now; training goes on before it is committed."""
        self.seq += 1
        updated = [set(rank.tracker._dirty.slots().tolist()) for rank in self.ranks]
        saved, owned = dict(self.rows), [sorted(rank.slot_of) for rank in self.ranks]
        for rank in self.ranks:
            rank.tracker.freeze()
        self.train(events_in_flight)
        if fails and self.rng.random() < 0.5:
            self._give_back()
            return
        for rank in self.ranks:
            self._forget_evictions(rank)
        changes = [rank.tracker.changes(rank.ids_of) for rank in self.ranks]
        decision = self._decision()
        new: list[TableFile] = []
        plans: list[TablePlan] = []
        for number, rank in enumerate(self.ranks):
            plan = plan_table(decision, self.chain, changes[number], rank.tracker.counter)
            plans.append(self._without_rules(plan, updated[number]))
            new += self._write(number, plans[-1], {row_id: saved[row_id] for row_id in owned[number]})
        self.train(events_in_flight)
        if fails:
            self._give_back()
            return
        hot_share = sum(len(plan.hot) for plan in plans) / max(1, len(saved))
        self.chain = self.chain.after(decision, self.seq, hot_share)
        self.live = live_files(self.chain, self.live, new, kept_hot_seq=self.kept_hot_seq)
        for rank, plan in zip(self.ranks, plans, strict=True):
            self._forget_evictions(rank)
            rank.tracker.committed(plan.hot.slots)
        self.commits.append(Committed(saved, self.live, self.chain))
        self.wrong += self.files.read(self.live) != saved

    def restart(self, num_ranks: int, *, back: int = 0, num_parts: int = 1) -> None:
        """Start new processes from the newest commit, or from one `back` commits earlier; the number goes on.

        They read which rows the hot files hold, or take these files for cold ones.
        """
        commit = self.commits[max(0, len(self.commits) - 1 - back)]
        self.commits = self.commits[: max(1, len(self.commits) - back)]
        self.seq += 1
        self.rows, self.live = dict(commit.rows), commit.files
        self.ranks = [Rank() for _ in range(num_ranks)]
        hot = set(self.files.read(file for file in self.live if file.identity.kind == "hot"))
        self.kept_hot_seq = self.seq if "seeded" in self.rules and self.rng.random() < 0.5 else 0
        for rank, ids in self._by_rank(list(self.rows)):
            self.rng.shuffle(ids)
            rank.add(ids)
            in_hot = hot & set(ids) if "seeded" in self.rules and not self.kept_hot_seq else set()
            rank.tracker.restored(len(ids), rank.slots(in_hot))
        self.chain = TableChain.of_files(self.bounds(num_parts), self.live, len(self.rows))

    def bounds(self, num_parts: int) -> tuple[int, ...]:
        known = sorted(self.rows)
        return tuple(sorted(self.rng.sample(known, min(len(known), num_parts - 1))))

    def _decision(self) -> Decision:
        counters = [rank.tracker.counter.population() for rank in self.ranks]
        decision = decide(self.policy, self.chain, self.cost, counters[0])
        if not self.shakes or not self.chain.ages:
            return decision
        shape = (self.chain.num_parts, NUM_VALUES)
        is_hot = np.array([self.rng.random() < 0.5 for _ in range(shape[0])])
        if self.rng.random() < 0.7:
            decision = replace(decision, is_hot=np.broadcast_to(is_hot[:, None], shape))
        if self.rng.random() < 0.2:
            start = self.rng.randrange(shape[0])
            decision = replace(decision, base=range(start, self.rng.randint(start + 1, shape[0])))
        return decision

    def _write(self, writer: int, plan: TablePlan, values: Table) -> list[TableFile]:
        base = {row_id: value for row_id, value in values.items() if row_id in plan.base}
        hot, cold = ({row_id: values[row_id] for row_id in some.ids.tolist()} for some in (plan.hot, plan.cold))
        return [
            *self.files.write("base", self.seq, writer, base, []),
            *self.files.write("hot", self.seq, writer, hot, []),
            *self.files.write("cold", self.seq, writer, cold, plan.tombstones.tolist()),
        ]

    def _without_rules(self, plan: TablePlan, updated: set[int]) -> TablePlan:
        if "hand-off" not in self.rules:
            changed = np.array([slot in updated for slot in plan.cold.slots.tolist()], np.bool_)
            plan = replace(plan, cold=plan.cold.where(changed))
        if "tombstones" not in self.rules:
            plan = replace(plan, tombstones=np.empty(0, np.int64))
        return plan

    def _give_back(self) -> None:
        for rank in self.ranks:
            if "given back" not in self.rules:
                taken = rank.tracker._taken()
                taken.dirty, taken.events = RowMap(), []
            self._forget_evictions(rank)
            rank.tracker.give_back()

    def _forget_evictions(self, rank: Rank) -> None:
        if "evicted in flight" not in self.rules:
            rank.tracker._taken().evicted.clear()

    def _set(self, ids: Iterable[int]) -> None:
        for row_id in ids:
            self.rows[row_id] = self.rng.getrandbits(48)

    def _by_rank(self, ids: list[int]) -> list[tuple[Rank, list[int]]]:
        parts: list[list[int]] = [[] for _ in self.ranks]
        for row_id in ids:
            parts[row_id % len(self.ranks)].append(row_id)
        return [(rank, part) for rank, part in zip(self.ranks, parts, strict=True) if part]


def random_policy(rng: random.Random) -> Policy:
    chain = rng.randint(1, 12)
    policies: list[Policy] = [
        Full(),
        Incremental(chain),
        Differential(chain),
        CheckNRun(),
        *[Adaptive(chain, rng.randint(1, 4))] * 4,
    ]
    return rng.choice(policies)


def live_through(
    seed: int, files: Callable[[random.Random], Files], rules: frozenset[str] = RULES, num_checkpoints: int = 9
) -> PolicyWorld:
    """Return a world after a random life."""
    rng = random.Random(seed)
    most_ids = rng.choice([12, 40])
    world = PolicyWorld(rng, files(rng), random_policy(rng), lambda: rng.randrange(most_ids), rules, seed % 4 > 0)
    world.train(12)
    parts = world.policy.parts if isinstance(world.policy, Adaptive) else 1
    world.chain = TableChain(bounds=world.bounds(parts))
    world.checkpoint(fails=False, events_in_flight=1)
    for _ in range(num_checkpoints):
        world.train(rng.randrange(6))
        world.checkpoint(fails=rng.random() < 0.3, events_in_flight=rng.randrange(4))
        if rng.random() < 0.25:
            world.restart(rng.randint(1, 3), back=rng.choice([0, 0, 1, 2]), num_parts=parts)
    return world
