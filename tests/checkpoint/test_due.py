"""Every rank saves at the same steps, and steps between decisions cost no collective."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import Meeting, Rank, ThreadRanks

from ett.checkpoint.due import DueSteps
from ett.checkpoint.interval import parse_interval


class HandClock:
    def __init__(self) -> None:
        self.now_ns = 0

    def wall_ns(self) -> int:
        return self.now_ns

    def mono_ns(self) -> int:
        return self.now_ns


class CountingRanks:
    """Two ranks in one thread: rank 0 leaves its decisions in a list that rank 1 reads."""

    def __init__(self, rank: int, decisions: list[Any]) -> None:
        self.rank, self.world_size, self.decisions, self.read = rank, 2, decisions, 0

    def broadcast(self, value: Any) -> Any:
        if self.rank == 0:
            self.decisions.append(value)
        self.read += 1
        return self.decisions[self.read - 1]

    def gather(self, value: Any) -> list[Any]:
        raise AssertionError("nothing is gathered to decide")

    def close(self) -> None:
        return


def due_steps(interval: str, num_steps: int, step_s: float, cost_s: float = 0.0) -> tuple[list[int], int]:
    """Return the steps at which both ranks save and the number of collectives; rank 1's clock stands still."""
    decisions: list[Any] = []
    clock = HandClock()
    first = DueSteps(parse_interval(interval), CountingRanks(0, decisions), clock)
    second = DueSteps(parse_interval(interval), CountingRanks(1, decisions), HandClock())
    found = []
    for step in range(1, num_steps + 1):
        clock.now_ns += int(step_s * 1e9)
        due = first.is_due(step)
        assert second.is_due(step) == due
        if due:
            found.append(step)
            first.saved(cost_s)
            second.saved(0.0)
    return found, len(decisions)


def test_intervals_in_steps_need_no_collective() -> None:
    assert due_steps("7 steps", 30, 1.0) == ([7, 14, 21, 28], 0)


def test_intervals_in_time_are_met_with_few_collectives() -> None:
    steps, collectives = due_steps("60s", 10_000, 0.1)
    gaps = [b - a for a, b in pairwise(steps)]
    assert all(600 <= gap <= 606 for gap in gaps)
    assert len(steps) == 16
    assert collectives < 16 * 14


def test_a_step_longer_than_the_interval_saves_every_step() -> None:
    assert due_steps("1s", 5, 10.0)[0] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("cost_s", "gap_s"), [(0.0, 30), (1.0, 170), (1000.0, 1800)])
def test_auto_follows_youngs_rule_within_bounds(cost_s: float, gap_s: int) -> None:
    steps, _ = due_steps("auto", 6000, 1.0, cost_s)
    assert abs(steps[-1] - steps[-2] - gap_s) <= 2


def test_the_interval_begins_at_the_restored_step(tmp_path: Path) -> None:
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)), interval="4 steps")
    rank.checkpointer.restore()
    assert [step for step in range(1, 10) if rank.checkpointer.step(step, step)] == [4, 8]
