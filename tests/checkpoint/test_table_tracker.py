"""What a checkpoint is told of a table is as it was when it was frozen, whatever happens until it is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from ett.checkpoint.policy.row_map import Slots
from ett.checkpoint.policy.table_tracker import Changes, Ids, TableTracker

NONE: Slots = np.empty(0, np.int64)


class Table:
    """Slots with ids; id 100 + n is in slot n at first."""

    def __init__(self, num_rows: int) -> None:
        self.ids = np.arange(100, 100 + num_rows)
        self.tracker = TableTracker()
        self.tracker.grow(num_rows)
        self.tracker.restored(num_rows, NONE)

    def ids_of(self, slots: Slots) -> Ids:
        found: Ids = self.ids[slots]
        return found

    def update(self, *slots: int) -> None:
        self.tracker.updated(np.array(slots), self.ids[list(slots)])

    def evict(self, slot: int) -> None:
        self.tracker.evicted(np.array([slot]), self.ids[[slot]])
        self.ids[slot] = -1

    def insert(self, slot: int, row_id: int) -> None:
        self.ids[slot] = row_id
        self.tracker.inserted(np.array([slot]), np.array([row_id]))

    def changes(self) -> Changes:
        self.tracker.freeze()
        return self.tracker.changes(self.ids_of)


def shown(changes: Changes) -> tuple[list[int], list[int]]:
    return changes.ids.tolist(), changes.tombstones.tolist()


def test_only_what_changed_since_the_last_checkpoint_is_due() -> None:
    table = Table(10)
    table.update(3, 7, 3)
    assert shown(table.changes()) == ([103, 107], [])
    table.tracker.committed(NONE)
    table.update(7)
    assert shown(table.changes()) == ([107], [])


def test_what_hot_files_hold_is_due_again() -> None:
    table = Table(10)
    table.update(3, 7)
    table.changes()
    table.tracker.committed(np.array([3]))
    changes = table.changes()
    assert (shown(changes), changes.num_updated) == (([103], []), 0)


def test_rows_that_go_while_the_changes_are_listed_are_in_them() -> None:
    """Slot 4 gets another row, which goes as well, and a third; slot 5 stays free."""
    table = Table(10)
    table.update(4, 5, 6)
    table.tracker.freeze()

    def ids_of(slots: Slots) -> Ids:
        table.evict(4)
        table.insert(4, 900)
        table.evict(4)
        table.insert(4, 901)
        table.evict(5)
        return table.ids_of(slots)

    assert shown(table.tracker.changes(ids_of)) == ([104, 105, 106], [])
    table.tracker.committed(np.array([4, 6]))
    assert shown(table.changes()) == ([901, 106], [104, 105, 900])


def test_the_counter_learns_what_happened_while_it_aged() -> None:
    table = Table(10)
    table.update(*range(10))
    table.tracker.freeze()
    table.evict(4)
    table.insert(4, 900)
    table.evict(5)
    table.tracker.changes(table.ids_of)
    values = table.tracker.counter.values(np.arange(10))
    assert set(values[[4, 5]]) == {0}
    assert (values[[0, 1, 2, 3, 6, 7, 8, 9]] > 0).all()
    assert table.tracker.counter.population().rows.sum() == 9


def test_a_checkpoint_that_fails_gives_everything_back() -> None:
    table = Table(10)
    table.update(1, 2, 3)
    table.evict(8)
    table.changes()
    table.update(4)
    table.evict(2)
    table.insert(8, 108)
    table.tracker.give_back()
    assert shown(table.changes()) == ([101, 103, 104, 108], [102])


def test_an_id_that_came_back_is_no_tombstone() -> None:
    table = Table(10)
    table.evict(1)
    table.evict(2)
    table.insert(2, 101)
    table.insert(1, 500)
    table.evict(1)
    assert shown(table.changes()) == ([101], [102, 500])


def test_one_checkpoint_is_in_flight_at_a_time() -> None:
    table = Table(3)
    assert not table.tracker.is_in_flight
    table.tracker.freeze()
    assert table.tracker.is_in_flight
    with pytest.raises(AssertionError, match="one checkpoint at a time"):
        table.tracker.freeze()
    table.tracker.give_back()
    with pytest.raises(AssertionError, match="nothing was taken"):
        table.tracker.committed(NONE)
