"""Save-on-update: a checkpoint holds every row as it was at its step boundary, in whatever order threads come."""

from __future__ import annotations

import random
import sys
import threading
from typing import Any

import numpy as np
import pytest
from capture_world import RULES, CaptureWorld

from ett.checkpoint.capture import row_capture, staged_rows, staging_pool
from ett.checkpoint.policy.row_map import RowMap
from ett.checkpoint.policy.table_tracker import TableTracker

ROWS_OF_BLOCK = 3
BLOCK_BYTES = staged_rows._ALIGNED + 16 * ROWS_OF_BLOCK


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three rows, and two rows swept at once."""
    for module in (staged_rows, staging_pool):
        monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(row_capture, "_SWEPT_BYTES", 32)


def worlds(num_seeds: int, rules: frozenset[str] = RULES, **settings: Any) -> list[CaptureWorld]:
    """Live through histories until one goes wrong, or all have gone well."""
    lived: list[CaptureWorld] = []
    for seed in range(num_seeds):
        world = CaptureWorld(random.Random(seed), rules, **settings)
        lived.append(world)
        try:
            world.run()
        except (AssertionError, KeyError) as err:  # a row that is wanted, or its staged copy, is not there any more
            world.wrong.append(str(err))
        world.pool.blocks = world.pool.blocks[:0].copy()  # a page of each pool would stay
        if world.wrong:
            break
    return lived


def assert_exact(lived: list[CaptureWorld], num_seeds: int) -> None:
    assert [world.wrong for world in lived] == [[]] * num_seeds
    assert sum(world.num_saved for world in lived) > num_seeds
    for path in ("prefetch", "guard", "sweep"):
        assert sum(world.counts[path] for world in lived), path


def test_what_is_wanted_is_marked_while_no_update_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both change words of the same maps, of which the one that writes last would lose what the other wrote."""
    held, mark = [], RowMap.mark_others

    def marked(self: RowMap, than: RowMap) -> None:
        frame = sys._getframe(1)
        held.append(frame.f_locals["self"]._table.lock._owner == threading.get_ident())
        mark(self, than)

    monkeypatch.setattr(RowMap, "mark_others", marked)
    CaptureWorld(random.Random(0), RULES).run()
    assert held and all(held)


@pytest.mark.slow
def test_every_row_is_that_of_the_boundary() -> None:
    assert_exact(worlds(200), 200)


@pytest.mark.campaign
def test_every_row_is_that_of_the_boundary_in_thousands_of_histories() -> None:
    assert_exact(worlds(4000), 4000)


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", [1, 2])
def test_training_waits_where_staging_memory_is_full_and_loses_nothing(num_blocks: int) -> None:
    lived = worlds(25, pool_bytes=num_blocks * BLOCK_BYTES)
    assert_exact(lived, 25)
    assert all(world.pool.most_bytes <= num_blocks * BLOCK_BYTES for world in lived)


@pytest.mark.slow
def test_what_was_given_up_is_in_the_next_checkpoint() -> None:
    """At any moment of it: its rows come back, and the next holds those of its own boundary."""
    lived = worlds(150, given_up=0.4, num_steps=12)
    assert [world.wrong for world in lived] == [[]] * 150
    assert sum(world.num_given_up for world in lived) > 50 and sum(world.num_saved for world in lived) > 50


@pytest.mark.slow
def test_training_waits_no_longer_for_staging_memory_than_its_patience() -> None:
    lived = worlds(60, pool_bytes=BLOCK_BYTES, patience_s=0.0, num_steps=12)
    assert [world.wrong for world in lived] == [[]] * 60
    assert sum(world.num_given_up for world in lived) > 10 and sum(world.num_saved for world in lived) > 10


def test_a_checker_sees_rows_that_are_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule E."""
    monkeypatch.setattr(TableTracker, "give_back", lambda self: self.committed(np.empty(0, np.int64)))
    assert worlds(400, given_up=0.4, num_steps=12)[-1].wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    "without",
    [
        {"whole step"},  # rule A: the boundary is that of a whole step
        {"exclusion"},  # U3: a row is not changed while it is being copied
        {"guard", "coming"},  # U2, and T3: batches that were read ahead before the boundary
        {"guard", "prefetch"},
        {"evictions"},
    ],
)
def test_a_checker_sees_what_each_rule_prevents(without: set[str]) -> None:
    assert worlds(400, RULES - without)[-1].wrong


@pytest.mark.slow
def test_what_is_read_ahead_need_not_be_guarded() -> None:
    """The guard is what is left for ids that are announced by nobody, and for rows that go."""
    lived = worlds(20, RULES)
    captured = {path: sum(world.counts[path] for world in lived) for path in ("prefetch", "guard", "sweep")}
    assert captured["guard"] < captured["prefetch"] < captured["prefetch"] + captured["sweep"]
