"""How a job comes back: the recipe's [recovery] section."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ett.errors import ConfigError
from ett.recovery.hang_limits import OFF, HangLimits, seconds
from ett.recovery.health_limits import HealthLimits

MOST_SPARES = 64  # of one host, which has no more ranks than that


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryConfig:
    max_restarts: int = 3  # restarts after failures, per launch; 0 ends the job at its first failure
    # What is started anew after a failure: "attempt": every rank; "inprocess": only the rank that ended, where the
    # others run a function of `@ett.restartable`.
    restart: Literal["attempt", "inprocess"] = "attempt"
    # Of a recipe: processes that have imported torch and the trainer and wait to be a rank that is started anew, for
    # 200 MB of memory each (docs/recovery.md). 0: each such rank imports anew.
    spares: int = 0
    # How a rank starts: steps beside each other where they need nothing of each other, or one after the other; of no
    # influence on any bit (docs/startup.md).
    startup: Literal["parallel", "serial"] = "parallel"
    restart_window: str = "off"  # such as "1h": max_restarts counts the failures of the last hour only
    grace_s: float = 30.0  # from SIGTERM to SIGKILL: time to save
    backoff_s: float = 1.0  # wait before the second restart in a row without a new commit; doubles from there
    max_backoff_s: float = 60.0  # longest wait
    max_attempts_without_commit: int = 5  # failed attempts in a row that committed nothing new: then give up
    # Longest time without a step or a commit: "10m", "off", or "auto": 20 times the longest pause between two steps of
    # this attempt so far, 15 minutes at least and an hour at most.
    hang_after: str = "auto"
    hang_limits: HangLimits = field(default_factory=HangLimits)  # the same within spans, by kind
    health: HealthLimits = field(default_factory=HealthLimits)  # what a host needs before a restart on it

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ConfigError(f"recovery.max_restarts is {self.max_restarts}", expected="0 or more")
        if not 0 <= self.spares <= MOST_SPARES:
            raise ConfigError(f"recovery.spares is {self.spares}", expected=f"0 to {MOST_SPARES}")
        if not 0 <= self.grace_s <= 86_400:
            raise ConfigError(f"recovery.grace_s is {self.grace_s}", expected="0 to 86400 seconds")
        if not 0 <= self.backoff_s <= self.max_backoff_s:
            raise ConfigError(
                f"recovery.backoff_s is {self.backoff_s}",
                expected=f"0 to recovery.max_backoff_s, which is {self.max_backoff_s}",
            )
        if self.max_attempts_without_commit < 1:
            raise ConfigError(
                f"recovery.max_attempts_without_commit is {self.max_attempts_without_commit}", expected="1 or more"
            )
        seconds(self.restart_window, "recovery.restart_window")
        if self.hang_after != "auto":
            seconds(self.hang_after, "recovery.hang_after")

    @property
    def is_hang_off(self) -> bool:
        return self.hang_after.strip().lower() in ("off", "0")

    @property
    def health_wait_s(self) -> float:
        return self.health.wait_s

    @property
    def has_restart_window(self) -> bool:
        return self.restart_window_s != OFF

    @property
    def restart_window_s(self) -> float:
        """How far back failures count; infinity for the whole launch."""
        return seconds(self.restart_window, "recovery.restart_window")
