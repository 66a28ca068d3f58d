"""Every rank saves at the same steps, and steps between decisions cost no collective."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import Meeting, Rank, ThreadRanks

from ett.checkpoint.auto_interval import daly_s
from ett.checkpoint.due import DueSteps
from ett.checkpoint.failure_history import FailureHistory
from ett.checkpoint.interval import parse_interval
from ett.checkpoint.ranks import SoloRanks
from ett.uptime import Stretch

NS = 1_000_000_000


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
def test_auto_follows_dalys_rule_within_bounds(cost_s: float, gap_s: int) -> None:
    steps, _ = due_steps("auto", 4000, 1.0, cost_s)
    assert abs(steps[2] - steps[1] - gap_s) <= 2


@pytest.mark.parametrize(("interval", "expected"), [("10 steps", [10, 20, 30]), ("10s", [10, 20, 30])])
def test_a_fixed_interval_is_obeyed_whatever_saves_cost(interval: str, expected: list[int]) -> None:
    clock = HandClock()
    due = DueSteps(parse_interval(interval), SoloRanks(), clock)
    due.know(many_failures(), {"write_s": 500.0})
    found = []
    for step in range(1, 31):
        clock.now_ns += NS
        if due.is_due(step):
            found.append(step)
            due.saved(100.0)
            due.written(500.0)
    assert found == expected


class Job:
    """One rank that takes a step a second; its saves cost what the test says."""

    def __init__(self, past: FailureHistory | None = None, stats: dict[str, float] | None = None) -> None:
        self.clock, self.said, self.step = HandClock(), list[dict[str, Any]](), 0
        self.due = DueSteps(parse_interval("auto"), SoloRanks(), self.clock, say=lambda ev, **told: self.hear(ev, told))
        self.due.know(past or FailureHistory(0.0), stats or {})

    def hear(self, ev: str, told: dict[str, Any]) -> None:
        assert ev == "ckpt_interval"
        self.said.append(told)

    def gaps(self, num_saves: int, stall_s: float, write_s: float) -> list[int]:
        """Train until so many saves were made, and return the steps before each."""
        saves = [self.step]
        while len(saves) <= num_saves:
            self.step += 1
            self.clock.now_ns += NS
            if self.due.is_due(self.step):
                saves.append(self.step)
                self.due.saved(stall_s)
                self.due.written(write_s)
        return [after - before for before, after in pairwise(saves)]


def test_auto_waits_for_the_write_of_an_asynchronous_save() -> None:
    assert Job().gaps(5, 0.001, 100.0)[1:] == [pytest.approx(100, abs=2)] * 4


def test_auto_follows_a_store_that_becomes_slow() -> None:
    job = Job()
    for stall_s in (0.25, 4.0, 0.25):
        gap = job.gaps(20, stall_s, stall_s)[-1]
        mtbf_s = 4 * 3600 + job.clock.now_ns / NS  # nothing has failed so far
        assert gap == pytest.approx(daly_s(stall_s, mtbf_s), rel=0.03)


def test_auto_says_each_change_once_and_no_small_ones() -> None:
    job = Job()
    job.gaps(10, 0.25, 0.25)
    assert [(told["source"], told["bound"]) for told in job.said] == [("assumed", "shortest"), ("measured", "")]
    job.gaps(10, 0.3, 0.3)  # by less than a tenth
    assert len(job.said) == 2
    job.gaps(10, 4.0, 4.0)
    lengths = [told["interval_s"] for told in job.said]
    assert len(lengths) > 2
    assert all(after / before > 1.25 for before, after in pairwise(lengths))
    assert job.said[-1]["stall_s"] > 2
    assert {"step", "write_s", "upload_s", "mtbf_s", "num_failures", "up_s"} < set(job.said[-1])


def test_auto_says_its_reasons_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "ett.checkpoint.due"):
        Job().gaps(2, 1.0, 1.0)
    assert len(caplog.messages) == 2
    assert caplog.messages[1].startswith("a checkpoint every 169 s: a save holds training for 1 s and takes 1 s to")


def test_a_job_that_fails_often_is_saved_more_often() -> None:
    usual, often = Job().gaps(3, 1.0, 1.0)[-1], Job(many_failures()).gaps(3, 1.0, 1.0)[-1]
    assert usual / often == pytest.approx(math.sqrt(4 / (36 / 65)), rel=0.05)  # 64 failures in 32 hours, and the prior


def test_a_failed_save_tells_nothing_of_what_saves_cost() -> None:
    job = Job()
    before = job.gaps(3, 1.0, 1.0)[-1]
    job.due.failed()
    assert job.gaps(1, 1.0, 1.0)[0] == pytest.approx(before, abs=1)


def test_a_restart_goes_on_with_what_the_commit_says() -> None:
    assert Job(stats={"stall_s": 1.0, "write_s": 60.0}).gaps(1, 1.0, 60.0) == Job(stats={"write_s": 1.0}).gaps(1, 1, 1)


def test_ranks_with_other_measurements_save_at_the_same_steps() -> None:
    """Rank 1 is told of other stalls and failures, and its clock stands still."""
    decisions: list[Any] = []
    clock = HandClock()
    first = DueSteps(parse_interval("auto"), CountingRanks(0, decisions), clock)
    second = DueSteps(parse_interval("auto"), CountingRanks(1, decisions), HandClock())
    second.know(many_failures(), {"write_s": 100.0})
    saves = 0
    for step in range(1, 3000):
        clock.now_ns += NS
        due = first.is_due(step)
        assert second.is_due(step) == due
        if due:
            saves += 1
            first.saved(1.0)
            second.saved(50.0 * saves)
    assert saves == pytest.approx(3000 / 170, abs=2)


def many_failures() -> FailureHistory:
    """Return 64 stretches of half an hour until now, each ended by a failure."""
    ends = [-1800.0 * k for k in range(64)]
    return FailureHistory(0.0, tuple(Stretch(end - 1800.0, end, has_failed=True) for end in ends))


def test_the_interval_begins_at_the_restored_step(tmp_path: Path) -> None:
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)), interval="4 steps", background=False)
    rank.checkpointer.restore()
    assert [step for step in range(1, 10) if rank.checkpointer.step(step, step)] == [4, 8]
