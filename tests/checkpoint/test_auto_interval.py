"""The interval is Daly's for what saves cost and how often the job fails, within bounds, and says what it is from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ett.checkpoint.auto_interval import LONGEST_S, SHORTEST_S, SaveTimes, choose, daly_s
from ett.checkpoint.failure_history import FailureHistory
from ett.uptime import Stretch

MTBF_S = 4 * 3600.0


def measured(stall_s: float, write_s: float = 0.0, upload_s: float = 0.0) -> SaveTimes:
    return SaveTimes().after_stall(stall_s).after_write(write_s).after_upload(upload_s)


@pytest.mark.parametrize("stall_s", [0.01, 1.0, 30.0, 600.0, 7200.0, MTBF_S])
def test_the_formula_is_the_least_expected_time_of_a_run(stall_s: float) -> None:
    """Daly's model of the whole run: mtbf (exp((t + stall) / mtbf) - 1) / t for each second of work."""

    def cost(t: float) -> float:
        return MTBF_S * math.expm1((t + stall_s) / MTBF_S) / t

    least = min(cost(t) for t in np.geomspace(0.1, 10 * MTBF_S, 20_000))
    assert cost(daly_s(stall_s, MTBF_S)) <= least * 1.001


def test_for_a_short_stall_it_is_youngs_rule() -> None:
    assert daly_s(0.01, MTBF_S) == pytest.approx(math.sqrt(2 * 0.01 * MTBF_S), rel=1e-3)


def test_a_stall_of_many_failures_trains_for_one_of_them() -> None:
    assert daly_s(3 * MTBF_S, MTBF_S) == MTBF_S


@pytest.mark.parametrize(
    ("times", "expected_s", "bound"),
    [
        (SaveTimes(), SHORTEST_S, "shortest"),
        (measured(0.001), SHORTEST_S, "shortest"),
        (measured(1.0), daly_s(1.0, MTBF_S), ""),
        (measured(300.0), LONGEST_S, "longest"),
        (measured(0.001, write_s=75.0), 75.0, "write"),
        (measured(0.001, write_s=75.0, upload_s=50.0), 125.0, "write"),
        (measured(1.0, write_s=75.0), daly_s(1.0, MTBF_S), ""),
        (measured(300.0, write_s=4000.0), 4000.0, "write"),
    ],
)
def test_the_interval_keeps_its_bounds_and_is_never_shorter_than_a_save(
    times: SaveTimes, expected_s: float, bound: str
) -> None:
    choice = choose(times, FailureHistory(0.0), 0.0)
    assert (choice.interval_s, choice.bound) == (pytest.approx(expected_s), bound)


def test_a_job_that_fails_often_saves_more_often() -> None:
    failed = tuple(Stretch(at * 600.0, (at + 1) * 600.0, has_failed=True) for at in range(100))
    often = choose(measured(1.0), FailureHistory(60_000.0, failed), 60_000.0)
    assert often.mtbf_s == pytest.approx((MTBF_S + 60_000) / 101, rel=0.01)  # a fifth of it is the prior
    assert often.interval_s == pytest.approx(daly_s(1.0, often.mtbf_s))
    assert often.interval_s < choose(measured(1.0), FailureHistory(0.0), 0.0).interval_s / 4


def test_a_longer_write_is_believed_at_once_a_shorter_one_by_and_by() -> None:
    times = measured(1.0, write_s=10.0).after_write(40.0)
    assert times.write_s == 40.0
    assert 10.0 < times.after_write(10.0).write_s < 40.0
    for _ in range(30):
        times = times.after_write(10.0)
    assert times.write_s == pytest.approx(10.0, rel=0.01)


def test_the_first_measurement_replaces_what_an_earlier_life_had() -> None:
    earlier = SaveTimes.of_stats({"stall_s": 9.0, "write_s": 20.0})
    assert (earlier.stall_s, earlier.write_s, earlier.source) == (9.0, 20.0, "last life")
    assert earlier.after_stall(1.0).stall_s == 1.0


def test_a_commit_without_a_stall_was_written_while_training_waited() -> None:
    assert SaveTimes.of_stats({"write_s": 2.0}).stall_s == 2.0
    assert SaveTimes.of_stats({"rewrite_s": 500.0}) == SaveTimes()


def test_what_is_said_has_every_figure_and_where_it_is_from() -> None:
    failed = (Stretch(0.0, 7200.0, has_failed=True),)
    said = str(choose(measured(1.5, write_s=2.25, upload_s=9.0), FailureHistory(7200.0, failed), 7200.0))
    assert said == (
        "a checkpoint every 179 s: a save holds training for 1.5 s and takes 2.25 s to write and 9 s to upload; "
        "a failure every 2.99 h (1 seen in 2 h up, with a prior of one in 4 h)"
    )
    assert "no save has been measured yet" in str(choose(SaveTimes(), FailureHistory(0.0), 0.0))
    restored = choose(SaveTimes.of_stats({"write_s": 2.0}), FailureHistory(0.0), 0.0)
    assert "as the commit that was restored says" in str(restored)
