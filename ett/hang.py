"""What hang detection knows and says; the rules stand in `recovery/hang_policy.py` and are named in `ett/seams.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ett.restart import FailureClass, RecoverySettings


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProgress:
    """How one live rank of the running attempt goes on, as its event log tells it.

    Times are those that the supervisor itself lived through: one that was stopped with its workers counts nothing.
    """

    rank: int
    idle_s: float  # since its last step, commit, or begin or end of a blocking span
    step_idle_s: float  # since its last completed step; since the start where there is none
    num_steps: int = 0  # completed in this attempt
    last_step: int | None = None  # number of the last one
    spans: tuple[str, ...] = ()  # open blocking spans, the innermost last
    has_ended_training: bool = False
    is_in_step: bool = False  # it said that a step began, and not yet that it ended
    longest_pause_s: float = 0.0  # longest idle time that ended, between two of its steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Hang:
    """A rank that made no progress for longer than its phase may take."""

    rank: int
    idle_s: float
    limit_s: float
    phase: str  # "step", or the name of the span that it is in
    last_step: int | None
    failure_class: FailureClass = "unknown"
    state: str = ""  # what the kernel says of the process, where that explains it
    stacks: tuple[str, ...] = ()  # files with stack dumps, relative to the job's folder

    def __str__(self) -> str:
        after = "" if self.last_step is None else f" after step {self.last_step}"
        where = "" if self.phase == "step" else f" in {self.phase}"
        state = f" ({self.state})" if self.state else ""
        return f"rank {self.rank} made no progress for {self.idle_s:.0f} s{where}{after}{state}"


class HangPolicy(Protocol):
    def __call__(self, ranks: Sequence[RankProgress], config: RecoverySettings) -> Hang | None:
        """Return who hangs, None where nobody does. `ranks` are the live ones that recorded anything."""
