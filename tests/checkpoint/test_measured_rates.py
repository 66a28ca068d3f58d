"""Rates are those that were measured of late, a prior before that, and never beyond their bounds."""

from __future__ import annotations

import random

import pytest

from ett.checkpoint.policy.measured_rates import (
    LONGEST_MTBF_S,
    MTBF_MEMORY_S,
    PRIOR_MTBF_S,
    SHORTEST_MTBF_S,
    WRITE_RATE,
    MeasuredRates,
    mtbf_s,
)
from ett.uptime import Stretch

HOUR_S = 3600.0


def test_nothing_measured_is_the_prior() -> None:
    rates = MeasuredRates()
    assert (rates.write.value, rates.exposed.value, rates.mtbf_s) == (1e9, 0.1, 4 * HOUR_S)
    assert rates.after_save(num_bytes=0, write_s=0, stall_s=0) == rates


def test_a_rate_is_the_measured_one_after_a_while() -> None:
    rates = MeasuredRates()
    for _ in range(300):
        rates = rates.after_save(num_bytes=4e8, write_s=0.2, stall_s=0.004).after_restore(num_bytes=3e9, read_s=1)
    assert rates.write.value == pytest.approx(2e9, rel=0.02)
    assert rates.exposed.value == pytest.approx(0.02, rel=0.1)
    assert rates.read.value == pytest.approx(3e9, rel=0.02)


def test_a_rate_follows_a_change() -> None:
    """After five half lives a thirty-second part of the old rate is left."""
    rate = WRITE_RATE
    for num_bytes in [2e9] * 400 + [1e9] * 300:
        rate = rate.after(num_bytes, 1)
    assert rate.value == pytest.approx(1e9 * (1 + 1 / 32), rel=0.01)


@pytest.mark.parametrize(("num_bytes", "expected"), [(0, 1e6), (1e20, 1e12)])
def test_a_rate_keeps_its_bounds(num_bytes: float, expected: float) -> None:
    assert WRITE_RATE.after(num_bytes, 1e6).value == expected


def test_stall_beyond_writing_is_all_of_it() -> None:
    assert MeasuredRates().after_save(num_bytes=1, write_s=1e6, stall_s=1e9).exposed.value == pytest.approx(1, abs=1e-3)


def test_failures_of_a_steady_job_are_found() -> None:
    rng, now_s, stretches = random.Random(1), 0.0, []
    while now_s < 60 * 86400:
        began_s, now_s = now_s, now_s + rng.expovariate(1 / (6 * HOUR_S))
        stretches.append(Stretch(began_s, now_s, has_failed=True))
    assert mtbf_s(stretches, now_s) == pytest.approx(6 * HOUR_S, rel=0.4)  # of 28 failures: 19 % a deviation


def test_hours_in_which_the_job_was_not_up_are_not_watched() -> None:
    """Up for an hour, down for a day: it fails every hour, not every day."""
    stretches = [Stretch(at, at + HOUR_S, has_failed=True) for at in range(0, 40 * 86400, 25 * 3600)]
    assert mtbf_s(stretches, stretches[-1].ended_s) == pytest.approx(
        (4 + 7 * 24 / 25) / (1 + 7 * 24 / 25) * HOUR_S, 0.1
    )


def test_a_job_without_failures_expects_them_ever_later() -> None:
    found = [mtbf_s([Stretch(0, now_s, has_failed=False)], now_s) for now_s in (0, HOUR_S, 24 * HOUR_S, 720 * HOUR_S)]
    assert found[0] == PRIOR_MTBF_S
    assert found == sorted(found)
    assert found[-1] <= PRIOR_MTBF_S + MTBF_MEMORY_S <= LONGEST_MTBF_S


@pytest.mark.slow
def test_old_failures_count_less() -> None:
    now_s = 30 * 86400.0
    old, late = ([Stretch(at, at, has_failed=True)] * 10 for at in (0.0, now_s - HOUR_S))
    up = [Stretch(0.0, now_s, has_failed=False)]
    assert mtbf_s(old + up, now_s) > 4 * mtbf_s(late + up, now_s)
    assert mtbf_s([Stretch(now_s, now_s, has_failed=True)] * 10**6, now_s) == SHORTEST_MTBF_S


def test_the_cost_is_that_of_what_was_measured() -> None:
    cost = MeasuredRates().io_cost(interval_s=600)
    assert cost.saved_s == pytest.approx(0.1 / 1e9)
    assert cost.restorable_s == pytest.approx(600 / (4 * HOUR_S) / 1e9)
    assert MeasuredRates().most_records(250, interval_s=10, share=0.5) == pytest.approx(2e7)
