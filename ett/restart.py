"""What a restart policy knows and says; the policy itself stands in `recovery/` and is named in `ett/seams.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ett.seams import SEAMS, load

FailureClass = Literal["user", "infra", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFacts:
    """One ended attempt, or one generation of it that a failure ended, as the log tells it."""

    attempt: int
    gen: int = 0
    job: str = ""
    ended_unix_s: float = 0.0  # the supervisor's wall clock
    reason: str  # completed, failed, preempted, suspended
    failure_class: str = "unknown"
    signature: str = ""  # of the error: equal for two failures with the same cause; empty where nothing was said
    is_final: bool = False  # the program says that another attempt would meet the same error
    is_unkillable: bool = False  # a process of it hangs in the kernel and keeps its device
    local_rank: int | None = None  # of the rank that failed
    shrinks_to: int | None = None  # ranks to go on with: that local rank failed repeatedly before its first step
    pid: int = 0  # of the process that failed; 0: not known
    has_stepped: bool = False  # where the world may shrink: that process had made a step
    has_new_commit: bool = False  # it committed a cursor beyond all earlier ones


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartDecision:
    restart: bool
    delay_s: float  # to wait before the next attempt
    rule: str  # which rule decided, one word for the log
    why: str  # one sentence for a person
    num_fruitless: int = 0  # failures in a row without a new commit, with the last one


class RecoverySettings(Protocol):
    """What `ett/` itself reads of the recovery section (`ett.recovery.config:RecoveryConfig`)."""

    @property
    def max_restarts(self) -> int: ...

    @property
    def restart(self) -> Literal["attempt", "inprocess"]: ...

    @property
    def spares(self) -> int: ...

    @property
    def grace_s(self) -> float: ...

    @property
    def health_wait_s(self) -> float: ...

    @property
    def is_hang_off(self) -> bool: ...


class RestartPolicy(Protocol):
    def __call__(self, attempts: tuple[AttemptFacts, ...], config: RecoverySettings) -> RestartDecision:
        """Decide what follows the last of `attempts`, which are those of this launch, in order."""


def recovery_config() -> type[Any]:
    """Return the dataclass of the [recovery] section."""
    sections: dict[str, str] = load(SEAMS["recipe_sections"])
    config: type[Any] = load(sections["recovery"])
    return config
