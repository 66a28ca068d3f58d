"""What the job's log says of its failures reaches every rank, and the next life of the job."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import Rank, RecordingRun, ThreadRanks, raise_first, run_ranks

from ett.checkpoint.failure_history import FailureHistory, read_failures
from ett.checkpoint.ranks import SoloRanks
from ett.clock import SystemClock
from ett.event_log import EventWriter

DAY_S = 86_400


class StoppedClock:
    def __init__(self, wall_s: float, mono_s: float) -> None:
        self.wall_s, self.mono_s = wall_s, mono_s

    def wall_ns(self) -> int:
        return int(self.wall_s * 1e9)

    def mono_ns(self) -> int:
        return int(self.mono_s * 1e9)


def failed_attempts(job_dir: Path, num: int, each_s: int) -> None:
    """Write the log of a job whose attempts, back to back until DAY_S, failed after each_s."""
    clock = StoppedClock(DAY_S - num * each_s, 0.0)
    supervisor = EventWriter(job_dir / "events/0", "sup", {"job": "j"}, clock=clock, wait_s=None)
    for attempt in range(1, num + 1):
        rank = EventWriter(job_dir / f"events/{attempt}", "r0", {"job": "j", "att": attempt, "rank": 0})
        rank.emit("step", samples=1, step=1, b_mono=0, e_mono=1)
        supervisor.emit("attempt_started", att=attempt)
        clock.wall_s += each_s
        supervisor.emit("attempt_ended", att=attempt, reason="failed")


def test_every_rank_has_rank_zeros_history_on_its_own_clock(tmp_path: Path) -> None:
    """Rank 1 sees no log, and its monotonic clock began at another time."""
    failed_attempts(tmp_path, 3, 600)

    def work(ranks: ThreadRanks) -> tuple[float, int, float]:
        run = RecordingRun(tmp_path if ranks.rank == 0 else Path("/nowhere"))
        now_s = 50.0 + 1000 * ranks.rank
        found = read_failures(run, ranks, StoppedClock(DAY_S + 60 * ranks.rank, now_s))
        return found.mtbf_s(now_s + 300), found.num_failures, found.up_s(now_s + 300)

    results: list[Any] = run_ranks(2, work)
    raise_first(results)
    assert results[0] == pytest.approx(results[1])
    assert results[0] == (pytest.approx((4 * 3600 + 1800 + 300) / 4, rel=0.01), 3, pytest.approx(2100))


def test_a_job_without_a_log_has_no_past() -> None:
    run = RecordingRun()
    assert read_failures(run, SoloRanks(), StoppedClock(DAY_S, 7.0)) == FailureHistory(7.0)


def test_a_log_that_cannot_be_read_keeps_no_job_from_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "events/0/sup-x.jsonl").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        assert read_failures(RecordingRun(tmp_path), SoloRanks(), StoppedClock(DAY_S, 7.0)) == FailureHistory(7.0)
    assert "how often this job fails is not known" in caplog.text


@pytest.mark.parametrize("policy", ["full", "adaptive"])
def test_a_restarted_job_still_knows_its_failures_and_what_its_saves_took(tmp_path: Path, policy: str) -> None:
    def life(ranks: ThreadRanks) -> dict[str, Any]:
        rank = Rank(tmp_path / "checkpoints", ranks, clock=SystemClock(), policy=policy, interval="auto")
        rank.run.job_dir = tmp_path
        at = rank.checkpointer.restore()
        step = at.step if at else 0
        rank.fill(1)
        assert rank.checkpointer.step(step + 1, step + 1) is None
        rank.checkpointer.save(step + 2, step + 2)
        return next(fields for ev, fields in rank.run.said if ev == "ckpt_interval")

    def lived() -> dict[str, Any]:
        (said,) = run_ranks(1, life)
        raise_first([said])
        assert isinstance(said, dict)
        return said

    first = lived()
    assert (first["num_failures"], first["source"], first["mtbf_s"]) == (0, "assumed", pytest.approx(14_400, rel=0.01))
    failed_attempts(tmp_path, 5, 600)
    second = lived()
    assert (second["num_failures"], second["source"]) == (5, "last life")
    assert second["write_s"] > 0
