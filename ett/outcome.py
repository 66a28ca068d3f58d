"""How a launch ended, as its supervisor tells the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ett.failure import RankExit
from ett.job_history import SavedSteps
from ett.restart import RestartDecision
from ett.world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    status: Literal["succeeded", "failed", "preempted"]
    failure: RankExit | None = None  # of the first failing rank of the last attempt
    decision: RestartDecision | None = None  # that ended the restarts
    cause: str = ""  # what the program said, in its own words
    log_tail: str = ""  # path of its last lines
    saved: SavedSteps | None = None  # of a job that was stopped
    do: str = ""  # what to do about a host that is not well
    world: World | None = None  # the smaller one to go on with
