"""Where a table stands between its bases, part by part of its ids, and what a policy decides for the next save."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.policy.access_counter import NUM_VALUES
from ett.checkpoint.policy.io_cost import IoCost, next_threshold
from ett.checkpoint.policy.period import Population, Solution, solve
from ett.checkpoint.policy.save_policy import Adaptive, CheckNRun, Differential, Full, Incremental, Policy
from ett.checkpoint.table_segments import TableFile

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]
LOWEST_ID, END_OF_IDS = -(1 << 63), 1 << 63


@dataclass(frozen=True, slots=True)
class TableChain:
    """What is committed of a table.

    bounds: where parts end, ascending: part k has the ids from bounds[k - 1] up to bounds[k], exclusive. The same on
    every rank. stagger: in [0, 1), another for each table: bases of their parts would else come together.
    """

    bounds: tuple[int, ...] = ()
    ages: tuple[int, ...] = ()  # checkpoints since the part's base, for each part; () before the first base
    base_seqs: tuple[int, ...] = ()  # the commit of the part's base
    credit: float = 0.0  # parts that are due for a base
    stagger: float = 0.0
    sizes: tuple[float, ...] = ()  # rows of the hot files since the last base, over all rows

    @property
    def num_parts(self) -> int:
        return len(self.bounds) + 1

    def ids_of(self, parts: range) -> range:
        """Return the ids of consecutive parts."""
        ends = (LOWEST_ID, *self.bounds, END_OF_IDS)
        return range(ends[parts.start], ends[parts.stop])

    def parts_of(self, ids: Ids) -> NDArray[np.int64]:
        return np.searchsorted(np.array(self.bounds, np.int64), ids, side="right")

    def after(self, decision: Decision, seq: int, hot_share: float) -> TableChain:
        """Return the chain after the commit of a decision; hot_share: rows in its hot files, over all rows."""
        fresh = decision.base
        ages = [0 if k in fresh else age + 1 for k, age in enumerate(self.ages or (0,) * self.num_parts)]
        seqs = [seq if k in fresh else old for k, old in enumerate(self.base_seqs or (0,) * self.num_parts)]
        is_whole = len(fresh) == self.num_parts
        return replace(
            self,
            ages=tuple(ages),
            base_seqs=tuple(seqs),
            credit=decision.credit,
            sizes=() if is_whole else (*self.sizes, hot_share),
        )

    @classmethod
    def of_files(
        cls, bounds: Sequence[int], files: Sequence[TableFile], num_rows: int, stagger: float = 0.0
    ) -> TableChain:
        """Return the chain of a restored table, whose parts may be other ones than when the files were written.

        Every part is as old as the oldest base may be: one without rows has left no file, but the changes after it.
        """
        chain = cls(bounds=tuple(bounds), credit=stagger, stagger=stagger)
        if not files:
            return chain
        changes = {file.seq for file in files if file.identity.kind != "base"}
        oldest = min([file.seq for file in files if file.identity.kind == "base"] + [seq - 1 for seq in changes])
        hot = sum(file.num_rows for file in files if file.identity.kind == "hot")
        return replace(
            chain,
            ages=(len(changes),) * chain.num_parts,
            base_seqs=(oldest,) * chain.num_parts,
            sizes=(hot / max(1, num_rows),) * bool(changes),
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What a checkpoint writes of a table.

    base: the parts that get a base, consecutive. is_hot: bool [num_parts, 256]: whether a row that is due is hot, by
    its part and the byte of its access counter.
    """

    base: range
    is_hot: Mask
    credit: float = 0.0
    solution: Solution | None = None  # of the adaptive policy


def decide(
    policy: Policy, chain: TableChain, cost: IoCost, rows: Population, most_records: float = math.inf
) -> Decision:
    """Return what the next checkpoint writes.

    Args: rows: by the byte of their counter. most_records: rows that may be written in an interval.
    """
    whole = range(chain.num_parts)
    is_first = not chain.ages
    match policy:
        case Full():
            return Decision(whole, _same(chain, is_hot=False))
        case Incremental() | Differential():
            is_due = is_first or max(chain.ages) >= policy.max_chain
            return Decision(whole if is_due else range(0), _same(chain, is_hot=isinstance(policy, Differential)))
        case CheckNRun():
            is_due = is_first or costs_its_cycles_average(chain.sizes)
            return Decision(whole if is_due else range(0), _same(chain, is_hot=True))
        case Adaptive():
            return _adapted(policy, chain, cost, rows, most_records)


def costs_its_cycles_average(sizes: Sequence[float]) -> bool:
    """Return whether the last of a cycle's differentials was as dear as its checkpoints on average: 1 + S_1 + ... + S_n
    <= (n + 1) S_n, where a base costs 1.
    """
    return bool(sizes) and 1 + sum(sizes) <= (len(sizes) + 1) * sizes[-1]


def _adapted(policy: Adaptive, chain: TableChain, cost: IoCost, rows: Population, most_records: float) -> Decision:
    parts = chain.num_parts
    if not chain.ages:
        # Parts would otherwise come of age together; half a period late is as dear as half a period early.
        return Decision(range(parts), _same(chain, is_hot=False), credit=chain.stagger - parts / 2)
    # Bases of the first period come up to half a period late.
    longest = max(1, (policy.max_chain + 1) * 2 // 3)
    solution = solve(cost, rows, longest=longest, most_records=most_records)
    credit = min(float(parts), chain.credit + parts / solution.period)
    num_overdue = sum(age >= policy.max_chain for age in chain.ages)
    if num_overdue:  # a job is restarted again and again, which forgets the credit
        credit = max(credit, num_overdue)
    base = _oldest(chain.ages, math.floor(credit + 1e-9))
    is_hot = np.empty((parts, NUM_VALUES), np.bool_)
    for part, age in enumerate(chain.ages):
        remaining = max(1, solution.period - age - 1)
        is_hot[part] = rows.p > next_threshold(solution.cost.weight, remaining)
    return Decision(base, is_hot, credit - len(base), solution)


def _oldest(ages: Sequence[int], num_parts: int) -> range:
    """Return up to num_parts consecutive parts from the oldest on: a file of several has no other part's ids within."""
    if num_parts <= 0:
        return range(0)
    first = 0 if num_parts >= len(ages) else max(range(len(ages)), key=lambda part: ages[part])
    return range(first, min(first + num_parts, len(ages)))


def _same(chain: TableChain, *, is_hot: bool) -> Mask:
    return np.full((chain.num_parts, NUM_VALUES), is_hot)


def live_files(
    chain: TableChain, old: Sequence[TableFile], new: Sequence[TableFile], *, kept_hot_seq: int = 0
) -> tuple[TableFile, ...]:
    """Return the files that a commit lists.

    Args: chain: after it. old: those of the commit before. new: its own. kept_hot_seq: hot files up to this commit are
    as cold ones: the process that wrote them has ended, and nobody knows which rows the next ones would have to hold.

    New hot files hold every row of the old ones that no other new file has. Base files go when all of their parts have
    newer ones. Cold files go in the order of commits, when every part has a newer base: a tombstone never before a row.
    """
    oldest = min(chain.base_seqs)
    bases = [file for file in old if file.identity.kind == "base" and _is_needed(chain, file)]
    stays = {"cold": END_OF_IDS, "hot": kept_hot_seq}  # up to which commit
    cold = [file for file in old if oldest < file.seq <= stays.get(file.identity.kind, 0)]
    return (*bases, *cold, *new)


def _is_needed(chain: TableChain, base: TableFile) -> bool:
    first, last = chain.parts_of(np.array([base.min_id, base.max_id], np.int64))
    return min(chain.base_seqs[first : last + 1]) <= base.seq
