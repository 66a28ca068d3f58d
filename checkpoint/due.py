"""Which steps save: the same answer on every rank, without a collective on the path of ordinary steps."""

from __future__ import annotations

import math

from ett.checkpoint.interval import Interval
from ett.checkpoint.ranks import Ranks
from ett.clock import Clock

# "auto" is Young's rule, interval = sqrt(2 * cost of a save * mean time between failures). The cost is measured; the
# time between failures of large jobs is hours, and the rule is flat: half or twice of it costs 6 % more than the best.
ASSUMED_MTBF_S = 4 * 3600.0
AUTO_SHORTEST_S, AUTO_LONGEST_S = 30.0, 1800.0


class DueSteps:
    """With an interval in steps, its multiples are due. With one in time, rank 0's clock decides at agreed steps:

    each decision carries the step of the next one, about half of the remaining time ahead, so that a few collectives
    are made per interval and ranks never disagree.
    """

    def __init__(self, interval: Interval, ranks: Ranks, clock: Clock) -> None:
        self._interval, self._ranks, self._clock = interval, ranks, clock
        self._save_cost_s = 0.0
        self.start(0)

    def start(self, step: int) -> None:
        """Begin an interval at `step`, the last complete one."""
        self._began_ns = self._saved_ns = self._clock.mono_ns()
        self._began_step = step
        self._next_decision = step + 1

    def saved(self, cost_s: float) -> None:
        """Begin the next interval; a save, good or bad, took `cost_s` of training's time."""
        self._saved_ns = self._clock.mono_ns()
        self._save_cost_s = max(cost_s, self._save_cost_s / 2)

    def is_due(self, step: int) -> bool:
        """Return whether to save after `step`; every rank must ask for every step."""
        if self._interval.kind == "steps":
            return step % self._interval.steps == 0
        if step < self._next_decision:
            return False
        decision = self._ranks.broadcast(self._decide(step) if self._ranks.rank == 0 else None)
        self._next_decision = decision["next"]
        return bool(decision["due"])

    def interval_s(self) -> float:
        """Return the present length of an interval in time."""
        if self._interval.kind == "time":
            return self._interval.seconds
        return min(AUTO_LONGEST_S, max(AUTO_SHORTEST_S, math.sqrt(2 * self._save_cost_s * ASSUMED_MTBF_S)))

    def _decide(self, step: int) -> dict[str, int]:
        now = self._clock.mono_ns()
        step_s = max(1e-6, (now - self._began_ns) / 1e9 / max(1, step - self._began_step))
        left_s = self.interval_s() - (now - self._saved_ns) / 1e9
        due = left_s <= 0
        ahead_s = self.interval_s() if due else left_s
        return {"due": int(due), "next": step + max(1, int(ahead_s / 2 / step_s))}
