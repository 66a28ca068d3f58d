"""How many intervals from one base to the next, and what saving costs where the disk cannot take more."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ett.checkpoint.policy.io_cost import Floats, IoCost, saves_cold, saves_hot, threshold

_MOST_MU = 2.0**20  # times what a saved byte costs: there every row is cold that is ever
_PAST = 1 + 1e-9  # beyond where a group turns cold, by more than the rounding of its two costs


@dataclass(frozen=True, slots=True)
class Population:
    """Rows by how often they are updated: probability in an interval float64 [B], rows float64 [B]."""

    p: Floats
    rows: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    period: int  # intervals from base to base; 1: a base every time
    threshold: float  # p* of the period
    cost: IoCost  # with the write limit's multiplier in what a saved byte costs
    records_per_interval: float  # saved, bases included


def candidate_periods(longest: int) -> list[int]:
    """Return every period to 16, then steps of a quarter: the cost is flat around the best."""
    periods, period = list(range(1, min(longest, 16) + 1)), 20
    while period <= longest:
        periods.append(period)
        period = period * 5 // 4
    return periods


def solve(cost: IoCost, rows: Population, *, longest: int, most_records: float = float("inf")) -> Solution:
    """Return the period and threshold that cost least.

    Args: longest: most intervals in a period. most_records: what may be saved in an interval: bytes that the store
    takes in it, over the bytes of a record. Where no period fits, the one that saves least is taken.
    """
    table = _PeriodTable(cost, rows, candidate_periods(longest))
    mu = table.multipliers(most_records)
    records, costs = table.of_multipliers(mu)
    fits = records <= most_records * (1 + 1e-6)
    best = int(np.argmin(np.where(fits, costs, np.inf)) if fits.any() else np.argmin(records))
    with_mu = replace(cost, saved_s=cost.saved_s + float(mu[best]))
    period = table.periods[best]
    return Solution(
        period=period,
        threshold=threshold(with_mu, period),
        cost=with_mu,
        records_per_interval=float(records[best]),
    )


def interval_costs(cost: IoCost, rows: Population, periods: list[int]) -> Floats:
    """Return the seconds that a byte of every record costs an interval, for each period, base included."""
    table = _PeriodTable(cost, rows, periods)
    return table.of_multipliers(np.zeros(len(periods)))[1]


class _PeriodTable:
    """Every period beside every group of rows, so that one bisection serves all periods."""

    def __init__(self, cost: IoCost, rows: Population, periods: list[int]) -> None:
        self.periods, self._cost, self._rows = periods, cost, rows.rows
        self._num_rows = float(rows.rows.sum())
        self._count = np.array(periods, np.float64)
        self._cold = saves_cold(rows.p, self._count[:, None])
        self._hot = saves_hot(rows.p, self._count[:, None])

    def of_multipliers(self, mu: Floats) -> tuple[Floats, Floats]:
        """Return records saved an interval and seconds a byte of them costs; mu: s a byte, for each period."""
        saved_s = (self._cost.saved_s + mu)[:, None]
        cold_s = self._cold * (saved_s + self._cost.restorable_s * self._count[:, None] / 2)
        hot_s = self._hot * (saved_s + self._cost.restorable_s)
        is_cold = cold_s <= hot_s
        records = (self._num_rows + np.where(is_cold, self._cold, self._hot) @ self._rows) / self._count
        # The multiplier decides who is hot; what is paid is the cost without it.
        paid_s = np.where(is_cold, cold_s, hot_s) @ self._rows + self._num_rows * saved_s[:, 0]
        return records, paid_s / self._count - mu * records

    def multipliers(self, most_records: float) -> Floats:
        """Return the least mu with which each period saves no more; one that makes every row cold where none does.

        A group turns cold where S + mu times what it saves more hot is what it restores less, so that the records are
        steps down over the groups in the order in which they turn.
        """
        more = self._hot - self._cold
        less_s = self._cost.restorable_s * (self._cold * self._count[:, None] / 2 - self._hot)
        with np.errstate(divide="ignore", invalid="ignore"):
            turns_at = np.where(more > 0, less_s / more, np.where(less_s > 0, np.inf, -np.inf))  # S + mu
        order = np.argsort(turns_at, axis=1)
        turned = np.cumsum(np.take_along_axis(more * self._rows, order, axis=1), axis=1)
        all_hot = self._num_rows + self._hot @ self._rows
        steps = (all_hot[:, None] - turned) / self._count[:, None]
        first = np.argmax(steps <= most_records, axis=1)[:, None]
        found = np.take_along_axis(np.take_along_axis(turns_at, order, axis=1), first, axis=1) * _PAST
        fits = (np.take_along_axis(steps, first, axis=1) <= most_records) & np.isfinite(found)
        mu = np.where(fits, np.maximum(found - self._cost.saved_s, 0.0), _MOST_MU * self._cost.saved_s)[:, 0]
        return np.where(all_hot / self._count <= most_records, 0.0, mu)
