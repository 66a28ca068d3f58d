"""What a row costs to save and to restore, hot or cold, and from which update probability on hot is cheaper.

A period is `period` intervals: a base, then period - 1 checkpoints of what changed. A row that is updated in each
interval with probability p is saved L times by cold files, A times by hot ones, and a restore reads L/2 or A/period
copies of it, expected over where in the period the failure comes:

    L(p) = m p      A(p) = sum over j = 1 .. m of (1 - q^j) = m - q (1 - q^m) / p      m = period - 1, q = 1 - p

Derived, with proofs, in the specification of the checkpoint engine, section 3; summary in docs/checkpoint_policy.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ett.errors import ConfigError

Floats = NDArray[np.float64]
BISECTIONS = 60
_FEW_UPDATES = 1e-3  # m p below which A's closed form cancels; its series to the third power is exact to 1e-10 there


@dataclass(frozen=True, kw_only=True, slots=True)
class IoCost:
    """Seconds of training that bytes cost.

    saved_s: a byte that is written. restorable_s: a byte that a restore would read, for each interval of its life.
    """

    saved_s: float
    restorable_s: float

    def __post_init__(self) -> None:
        if not (0 < self.saved_s < math.inf and 0 <= self.restorable_s < math.inf):
            raise ConfigError(
                f"a saved byte costs {self.saved_s} s, a restorable one {self.restorable_s} s an interval",
                expected="a finite cost above zero to save, and one of at least zero to restore",
            )

    @classmethod
    def of_rates(
        cls, *, write_bytes_per_s: float, exposed: float, read_bytes_per_s: float, interval_s: float, mtbf_s: float
    ) -> IoCost:
        """Args: exposed: the share of writing that training waits for; a restore is waited for in full."""
        return cls(
            saved_s=exposed / write_bytes_per_s,
            restorable_s=interval_s / mtbf_s / read_bytes_per_s,
        )

    @property
    def weight(self) -> float:
        """Return what a byte that stays restorable for one interval costs, in bytes saved."""
        return self.restorable_s / self.saved_s


@dataclass(frozen=True, slots=True)
class PeriodBytes:
    """Records of rows that a period saves, and that a restore within it is expected to read; arrays like p."""

    saved_cold: Floats
    saved_hot: Floats
    restored_cold: Floats
    restored_hot: Floats


def saves_cold(p: Floats, period: int | Floats) -> Floats:
    """Return L(p). Args: period: one, or an array that broadcasts with p."""
    return np.asarray(p, np.float64) * (period - 1)


def saves_hot(p: Floats, period: int | Floats) -> Floats:
    """Return A(p) for p in [0, 1]. Args: period: one, or an array that broadcasts with p."""
    p, m = np.asarray(p, np.float64), np.asarray(period, np.float64) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        closed = m + (1 - p) * np.expm1(m * np.log1p(-p)) / p
    two = (m + 1) * m / 2  # m + 1 over 2, 3, 4
    three = two * (m - 1) / 3
    four = three * (m - 2) / 4
    series = p * (two - p * (three - p * four))
    return np.where(p >= 1, m, np.where(m * p < _FEW_UPDATES, series, closed))


def period_bytes(p: Floats, period: int) -> PeriodBytes:
    cold, hot = saves_cold(p, period), saves_hot(p, period)
    return PeriodBytes(cold, hot, cold / 2, hot / period)


def period_costs(cost: IoCost, p: Floats, period: int) -> tuple[Floats, Floats]:
    """Return what a byte of rows costs in a period without its base, in seconds: kept cold, kept hot."""
    read_s = cost.restorable_s * period
    cold = saves_cold(p, period) * (cost.saved_s + read_s / 2)
    hot = saves_hot(p, period) * (cost.saved_s + read_s / period)
    return cold, hot


def gamma(cost: IoCost, period: int) -> float:
    """Return the ratio A/L at which hot and cold cost the same; between 1 and period / 2."""
    read_s = cost.restorable_s * period
    return (cost.saved_s + read_s / 2) / (cost.saved_s + read_s / period)


def hot_ratio(p: float, period: int) -> float:
    """Return A(p) / L(p), which falls strictly from period / 2 at 0 to 1 at 1."""
    m = period - 1
    if m * p < _FEW_UPDATES:
        return (m + 1) / 2 - p * (m + 1) * (m - 1) / 6 * (1 - p * (m - 2) / 4)
    if p >= 1:
        return 1.0
    return 1 / p + (1 - p) * math.expm1(m * math.log1p(-p)) / (m * p * p)


def threshold(cost: IoCost, period: int) -> float:
    """Return p*: rows that are updated more often than this are cheaper hot; 1 where the two never differ."""
    if period < 3:
        return 1.0
    target, low, high = gamma(cost, period), 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if hot_ratio(middle, period) > target:
            low = middle
        else:
            high = middle
    return high


def next_threshold(weight: float, remaining: int) -> float:
    """Return the probability of an update in the next interval above which a row that is due is written hot.

    Args: weight: of `IoCost`. remaining: checkpoints before the next base, this one included.

    A row that is written hot now, and cold at the next checkpoint, costs 1 + w now and 1 + w (r - 1) then. Cold now, it
    costs 1 + w r, and with probability p once more 1 + w (r - 1). Both ways leave the same behind, so hot pays if and
    only if p (1 + w (r - 1)) > 1. The bound only rises as r falls, and so looking one interval ahead is optimal.
    """
    return 1 / (1 + weight * (remaining - 1))
