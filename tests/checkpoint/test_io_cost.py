"""The cost of rows, hot or cold: closed forms, limits and the worked example of the specification, to its digits."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from ett.checkpoint.policy.io_cost import (
    Floats,
    IoCost,
    gamma,
    hot_ratio,
    next_threshold,
    period_bytes,
    period_costs,
    saves_hot,
    threshold,
)
from ett.checkpoint.policy.period import Population, _PeriodTable, candidate_periods, interval_costs, solve
from ett.errors import ConfigError

RECORD_BYTES = 264  # 64 float32 and 8 bytes of key


def example(mtbf_h: float = 5, exposed: float = 0.1) -> IoCost:
    """K = 10, T = 600 s, W = 2 GB/s, R_bw = 4 GB/s."""
    return IoCost.of_rates(
        write_bytes_per_s=2e9, exposed=exposed, read_bytes_per_s=4e9, interval_s=600, mtbf_s=mtbf_h * 3600
    )


def zipf_population() -> Population:
    """200,000 rows, Zipf(1.05), 4,000 lookups a batch, 100 batches an interval."""
    share = 1 / np.arange(1, 200_001) ** 1.05
    return Population(-np.expm1(-share / share.sum() * 400_000), np.ones(200_000))


@pytest.mark.parametrize(
    "printed",
    [
        # p, then saved cold and hot, restored cold and hot, in bytes, then the costs of cold and hot in ns.
        (0.01, 23.8, 115.7, 11.9, 11.6, 2.18, 6.75),
        (0.10, 237.6, 920.5, 118.8, 92.1, 21.8, 53.7),
        (0.50, 1188.0, 2112.5, 594.0, 211.3, 108.9, 123.2),
        (0.58654, 1393.6, 2190.0, 696.8, 219.0, 127.7, 127.7),
        (0.70, 1663.2, 2262.9, 831.6, 226.3, 152.5, 132.0),
        (1.00, 2376.0, 2376.0, 1188.0, 237.6, 217.8, 138.6),
    ],
)
def test_the_worked_example_has_its_printed_digits(printed: tuple[float, ...]) -> None:
    p = np.array(printed[:1])
    rows = period_bytes(p, 10)
    in_bytes = [rows.saved_cold, rows.saved_hot, rows.restored_cold, rows.restored_hot]
    assert [float(x[0]) * RECORD_BYTES for x in in_bytes] == pytest.approx(list(printed[1:5]), abs=0.0501)
    costs = [float(cost[0]) * RECORD_BYTES * 1e9 for cost in period_costs(example(), p, 10)]
    assert costs == pytest.approx(list(printed[5:]), abs=0.0501 if p > 0.05 else 0.00501)


def test_the_worked_examples_gamma_and_threshold() -> None:
    assert gamma(example(), 10) == pytest.approx(1.5714, abs=5e-5)
    assert threshold(example(), 10) == pytest.approx(0.58654, abs=5e-6)


@pytest.mark.parametrize(
    ("mtbf_h", "expected"), [(0.5, 0.143), (1, 0.241), (2, 0.376), (5, 0.587), (24, 0.867), (240, 0.985)]
)
def test_more_failures_make_more_rows_hot(mtbf_h: float, expected: float) -> None:
    assert threshold(example(mtbf_h), 10) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("period", "expected"), [(3, 0.857), (5, 0.758), (10, 0.587), (20, 0.404), (50, 0.208)])
def test_longer_periods_make_more_rows_hot(period: int, expected: float) -> None:
    """The specification prints 0.404 where the root is 0.40346."""
    assert threshold(example(), period) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("mtbf_h", [0.1, 1, 5, 50, 5000])
def test_closed_forms_of_the_threshold_for_short_periods(mtbf_h: float) -> None:
    cost = example(mtbf_h)
    assert threshold(cost, 3) == pytest.approx(3 - 2 * gamma(cost, 3), abs=1e-9)
    assert threshold(cost, 4) == pytest.approx(2 - math.sqrt(3 * gamma(cost, 4) - 2), abs=1e-9)


def test_closed_form_of_the_threshold_where_updates_are_many() -> None:
    """Without q ** (m + 1), which is 0.41 ** 10 here."""
    g, k = gamma(example(), 10), 10
    closed = (k + math.sqrt(k**2 - 4 * g * (k - 1))) / (2 * g * (k - 1))
    assert closed == pytest.approx(0.58652, abs=5e-6)
    assert threshold(example(), 10) == pytest.approx(closed, abs=5e-5)


def test_closed_form_of_the_threshold_where_nearly_all_rows_are_hot() -> None:
    cost, period = example(mtbf_h=1e-3), 10
    closed = 6 * (period / 2 - gamma(cost, period)) / ((period - 1) ** 2 - 1)
    assert threshold(cost, period) == pytest.approx(closed, rel=0.01)


def test_limits_of_the_threshold() -> None:
    never, always = example(mtbf_h=1e12), example(mtbf_h=1e-9)
    assert (gamma(never, 10), threshold(never, 10)) == (pytest.approx(1), pytest.approx(1, abs=1e-6))
    assert (gamma(always, 10), threshold(always, 10)) == (pytest.approx(5), pytest.approx(0, abs=1e-6))
    assert threshold(example(), 2) == 1.0


@pytest.mark.parametrize("period", [3, 10, 100])
def test_the_ratio_of_saves_falls_from_half_a_period_to_one(period: int) -> None:
    p = np.concatenate([np.geomspace(1e-15, 1e-2, 400), np.linspace(0.011, 1, 400)])
    ratios = np.array([hot_ratio(x, period) for x in p])
    assert (np.diff(ratios) <= 1e-12 * period).all()
    assert (ratios[0], ratios[-1]) == (pytest.approx(period / 2, rel=1e-9), pytest.approx(1))
    with np.errstate(divide="ignore"):
        sums = sum(-np.expm1(j * np.log1p(-p)) for j in range(1, period))
    assert saves_hot(p, period) == pytest.approx(np.asarray(sums), rel=1e-9)
    assert ratios == pytest.approx(saves_hot(p, period) / (p * (period - 1)), rel=1e-9)


def test_the_best_threshold_of_a_population_is_that_of_every_row() -> None:
    """The specification's totals of a period: 13.5, 18.4 and 12.2 ms, printed to three digits."""
    rows = zipf_population()
    cold, hot = (cost * RECORD_BYTES * 1e3 for cost in period_costs(example(), rows.p, 10))
    assert (cold.sum(), hot.sum()) == (pytest.approx(13.5, rel=0.005), pytest.approx(18.4, rel=0.005))
    grid = np.arange(0, 1.0001, 0.005)
    totals = np.array([cold[rows.p <= theta].sum() + hot[rows.p > theta].sum() for theta in grid])
    assert grid[totals.argmin()] == pytest.approx(threshold(example(), 10), abs=0.005)
    assert totals.min() == pytest.approx(12.2, rel=0.005)
    assert (rows.p > threshold(example(), 10)).mean() == pytest.approx(0.14, abs=0.005)


@pytest.mark.slow
def test_the_cost_of_an_interval_is_flat_around_the_best_period() -> None:
    printed = {2: 1.80, 3: 1.55, 4: 1.46, 6: 1.42, 8: 1.44, 10: 1.49, 20: 1.79, 60: 2.63}
    costs = interval_costs(example(), zipf_population(), list(printed)) * RECORD_BYTES * 1e3
    assert costs == pytest.approx(list(printed.values()), rel=0.005)
    assert solve(example(), zipf_population(), longest=64).period == 6


def test_a_write_limit_makes_fewer_rows_hot() -> None:
    rows = Population(zipf_population().p[::500], np.full(400, 500.0))
    free = solve(example(mtbf_h=0.5), rows, longest=10)
    tight = solve(example(mtbf_h=0.5), rows, longest=10, most_records=0.7 * free.records_per_interval)
    assert tight.records_per_interval <= 0.7 * free.records_per_interval * (1 + 1e-6)
    assert tight.cost.saved_s > free.cost.saved_s
    assert tight.period >= free.period
    same_period = solve(example(mtbf_h=0.5), rows, longest=10, most_records=free.records_per_interval)
    assert same_period == free


def test_the_threshold_rises_with_the_multiplier_until_the_bytes_fit() -> None:
    rows = Population(np.linspace(0.01, 0.99, 99), np.full(99, 1000.0))
    limits = [90_000.0, 70_000.0, 60_000.0, 56_000.0]
    found = [solve(example(mtbf_h=0.05), rows, longest=8, most_records=limit) for limit in limits]
    assert all(solution.records_per_interval <= limit * 1.000001 for solution, limit in zip(found, limits, strict=True))
    multipliers = [solution.cost.saved_s for solution in found]
    assert multipliers == sorted(multipliers)


@pytest.mark.parametrize("seed", range(40))
def test_the_multiplier_is_the_least_with_which_the_bytes_fit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.random(30) ** rng.integers(1, 6)
    p[rng.random(30) < 0.1], p[rng.random(30) < 0.1] = 0, 1
    rows = Population(p, rng.integers(0, 1000, 30).astype(float))
    cost, periods = example(mtbf_h=10 ** rng.uniform(-3, 2), exposed=10 ** rng.uniform(-3, 0)), candidate_periods(64)
    table = _PeriodTable(cost, rows, periods)
    most = float(rows.rows.sum()) * rng.random()
    mu = table.multipliers(most)
    fits = table.of_multipliers(mu)[0] <= most
    least, _ = table.of_multipliers(np.full(len(periods), 1e6 * cost.saved_s))  # nobody is hot that is ever cold
    assert (fits | (least > most * (1 - 1e-9))).all()
    less = np.maximum((cost.saved_s + mu) * (1 - 1e-8) - cost.saved_s, 0)
    assert not (table.of_multipliers(less)[0] <= most)[fits & (mu > 0)].any()


def test_where_nothing_fits_the_least_is_saved() -> None:
    rows = Population(np.array([0.5]), np.array([1000.0]))
    solution = solve(example(), rows, longest=32, most_records=1.0)
    assert solution.period == candidate_periods(32)[-1]
    assert solution.threshold == pytest.approx(1, abs=1e-3)


def test_a_billion_rows_are_solved_in_5_ms() -> None:
    """From their histogram, with a write limit: the thread's own time, the best of seven on a busy machine."""
    rows = Population(np.linspace(0, 1, 256), np.full(256, 1e9 / 256))
    took = []
    for _ in range(7):
        began = time.thread_time()
        solve(example(), rows, longest=64, most_records=6e8)
        took.append(time.thread_time() - began)
    assert min(took) < 0.005


@pytest.mark.parametrize("weight", [0.01, 1 / 6, 1.0, 5.0])
def test_looking_one_interval_ahead_is_the_best_of_all_ways(weight: float) -> None:
    """Against dynamic programming over hot and cold at every checkpoint of a period."""
    p: Floats = np.linspace(0.0005, 0.9995, 1000)
    in_hot, not_in_hot = np.zeros(1000), np.zeros(1000)
    for remaining in range(1, 40):
        hot, cold = 1 + weight + in_hot, 1 + weight * remaining + not_in_hot
        is_better = hot < cold - 1e-12
        assert (is_better == (p > next_threshold(weight, remaining))).all()
        in_hot = np.minimum(hot, cold)
        not_in_hot = (1 - p) * not_in_hot + p * in_hot


@pytest.mark.parametrize(("saved_s", "restorable_s"), [(0.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_costs_are_finite(saved_s: float, restorable_s: float) -> None:
    with pytest.raises(ConfigError, match="costs"):
        IoCost(saved_s=saved_s, restorable_s=restorable_s)
