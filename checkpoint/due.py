"""Which steps save: the same answer on every rank, without a collective on the path of ordinary steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ett.checkpoint.auto_interval import Choice, SaveTimes, choose
from ett.checkpoint.failure_history import FailureHistory
from ett.checkpoint.interval import Interval
from ett.checkpoint.ranks import Ranks
from ett.clock import Clock

log = logging.getLogger(__name__)


class DueSteps:
    """With an interval in steps, its multiples are due. With one in time, rank 0's clock decides at agreed steps:

    each decision carries the step of the next one, about half of the remaining time ahead, so that a few collectives
    are made per interval and ranks never disagree. "auto" is chosen anew at each decision (auto_interval.py), from
    what rank 0 has measured, and said when it has changed.
    """

    def __init__(
        self, interval: Interval, ranks: Ranks, clock: Clock, *, say: Callable[..., None] = lambda ev, **fields: None
    ) -> None:
        """Args: say: records an event; rank 0's is told of each "auto" interval that differs from the one before."""
        self._interval, self._ranks, self._clock, self._say = interval, ranks, clock, say
        self._times = SaveTimes()
        self._failures = FailureHistory(clock.mono_ns() / 1e9)
        self._said: Choice | None = None
        self.start(0)

    def start(self, step: int) -> None:
        """Begin an interval at `step`, the last complete one."""
        self._began_ns = self._saved_ns = self._clock.mono_ns()
        self._began_step = step
        self._next_decision = step + 1

    def know(self, failures: FailureHistory, stats: Mapping[str, Any]) -> None:
        """Go by the job's past. Args: stats: of the commit that was restored; {} where there is none."""
        self._failures, self._times = failures, SaveTimes.of_stats(stats)

    def saved(self, stall_s: float) -> None:
        """Begin the next interval; a save held training for `stall_s`."""
        self._saved_ns = self._clock.mono_ns()
        self._times = self._times.after_stall(stall_s)

    def failed(self) -> None:
        """Begin the next interval: a save came to nothing, and tells nothing of what one costs."""
        self._saved_ns = self._clock.mono_ns()

    def written(self, write_s: float) -> None:
        """Be told how long a save took until it was committed."""
        self._times = self._times.after_write(write_s)

    def uploaded(self, upload_s: float) -> None:
        """Be told how long a commit then took to the remote store."""
        self._times = self._times.after_upload(upload_s)

    def is_due(self, step: int) -> bool:
        """Return whether to save after `step`; every rank must ask for every step."""
        if self._interval.kind == "steps":
            return step % self._interval.steps == 0
        if step < self._next_decision:
            return False
        decision = self._ranks.broadcast(self._decide(step) if self._ranks.rank == 0 else None)
        self._next_decision = decision["next"]
        return bool(decision["due"])

    def _decide(self, step: int) -> dict[str, int]:
        now = self._clock.mono_ns()
        step_s = max(1e-6, (now - self._began_ns) / 1e9 / max(1, step - self._began_step))
        interval_s = self._interval.seconds if self._interval.kind == "time" else self._auto_s(step, now / 1e9)
        left_s = interval_s - (now - self._saved_ns) / 1e9
        due = left_s <= 0
        ahead_s = interval_s if due else left_s
        return {"due": int(due), "next": step + max(1, int(ahead_s / 2 / step_s))}

    def _auto_s(self, step: int, now_s: float) -> float:
        choice = choose(self._times, self._failures, now_s)
        if choice.differs(self._said):
            self._said = choice
            log.info("%s", choice)
            self._say("ckpt_interval", step=step, **choice.fields())
        return choice.interval_s
