"""Which rows of a table a checkpoint writes into which files: a decision, applied to what has changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.policy.access_counter import AccessCounter
from ett.checkpoint.policy.row_map import Slots
from ett.checkpoint.policy.table_chain import Decision, TableChain
from ett.checkpoint.policy.table_tracker import Changes, Ids


@dataclass(frozen=True, slots=True)
class SlotsOfIds:
    """Rows in the order of their ids. ids: int64 [N], strictly ascending. slots: int64 [N]."""

    ids: Ids
    slots: Slots

    def where(self, mask: NDArray[np.bool_]) -> SlotsOfIds:
        return SlotsOfIds(self.ids[mask], self.slots[mask])

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What a rank writes of a table, as its rows were when they were frozen; a slot may have another row by now.

    base: the ids whose rows all go into base files, and into no other; empty: none.
    """

    base: range
    hot: SlotsOfIds
    cold: SlotsOfIds
    tombstones: Ids  # in the cold files, ascending

    @property
    def num_records(self) -> int:
        """Return how many rows the hot and cold files have."""
        return len(self.hot) + len(self.cold)


def plan_table(decision: Decision, chain: TableChain, changes: Changes, counter: AccessCounter) -> TablePlan:
    """Apply a decision to a rank's changes; the counter has aged."""
    is_whole = len(decision.base) == chain.num_parts
    due = SlotsOfIds(changes.ids[:0], changes.slots[:0]) if is_whole else _by_id(changes)
    parts = chain.parts_of(due.ids)
    in_base = (parts >= decision.base.start) & (parts < decision.base.stop)
    is_hot = decision.is_hot[parts, counter.values(due.slots)]
    return TablePlan(
        base=chain.ids_of(decision.base) if decision.base else range(0),
        hot=due.where(is_hot & ~in_base),
        cold=due.where(~is_hot & ~in_base),
        tombstones=np.empty(0, np.int64) if is_whole else changes.tombstones,
    )


def _by_id(changes: Changes) -> SlotsOfIds:
    """Return what changed in the order of the ids, in which a table of a fixed size has its slots."""
    if (changes.ids[1:] > changes.ids[:-1]).all():
        return SlotsOfIds(changes.ids, changes.slots)
    order = np.argsort(changes.ids)
    return SlotsOfIds(changes.ids[order], changes.slots[order])
