"""For how long saves may hold training: a budget each, and a while after three in a row that would have exceeded it.

A store that does not answer holds nobody longer than `LONGEST_S` even then.
"""

from __future__ import annotations

from dataclasses import dataclass

from ett.errors import Unreachable

OVER_IN_A_ROW = 3  # saves that come to nothing rather than exceed the budget; the next may
OVER_BUDGET = "S007"  # the code of `over_budget`
LONGEST_S = 120.0  # that training waits for anything of a save written beside it


class StallBudget:
    """Counts the saves that were given up for it; every rank comes to the same."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self.num_over = 0  # in a row

    @property
    def may_block(self) -> bool:
        return self.num_over >= OVER_IN_A_ROW

    @property
    def limit_s(self) -> float:
        """Return for how long training waits next."""
        return max(LONGEST_S, self._budget_s) if self.may_block else self._budget_s


@dataclass(slots=True)
class Patience:
    """What is left of the time that training waits, in its steps, for staging memory of one save; of all tables."""

    left_s: float


def over_budget(fact: str) -> Unreachable:
    """Return what a save comes to that held training, or would have, for too long."""
    return Unreachable(
        fact,
        expected="a store that takes a save within the interval (checkpoint.stall_budget_s bounds the wait)",
        do="find out what holds the store up, lengthen checkpoint.interval, or raise checkpoint.stall_budget_s",
        did="gave the save up; its rows are in the next one",
        code="S007",
    )
