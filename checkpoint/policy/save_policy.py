"""Policies: what decides which rows a checkpoint writes, as plain values; spelled as in a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from ett.errors import ConfigError

LONGEST_CHAIN = 32  # partial checkpoints after a base, where nothing else is said


@dataclass(frozen=True, slots=True)
class Full:
    """A base every time."""


@dataclass(frozen=True, slots=True)
class Incremental:
    """Every row cold: a checkpoint writes what changed since the one before."""

    max_chain: int = LONGEST_CHAIN  # checkpoints after a base before the next one

    def __post_init__(self) -> None:
        _check_chain(self.max_chain)


@dataclass(frozen=True, slots=True)
class Differential:
    """Every row hot: a checkpoint writes what changed since the base."""

    max_chain: int = LONGEST_CHAIN

    def __post_init__(self) -> None:
        _check_chain(self.max_chain)


@dataclass(frozen=True, slots=True)
class CheckNRun:
    """Differential, with a base after one that cost what its cycle costs on average (Check-N-Run, NSDI'22)."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Each row hot or cold as is cheaper; bases when they are worth it, a part of the table at a time."""

    max_chain: int = LONGEST_CHAIN
    parts: int = 16  # a base is spread over up to so many checkpoints

    def __post_init__(self) -> None:
        _check_chain(self.max_chain)
        if self.parts < 1:
            raise ConfigError(f"a base in {self.parts} parts", expected="at least 1")


Policy = Full | Incremental | Differential | CheckNRun | Adaptive
NAMES = ("adaptive", "full", "incremental", "differential", "check_n_run")


def parse_policy(name: str, max_chain: int = LONGEST_CHAIN) -> Policy:
    """Return the policy that `checkpoint.policy` and `checkpoint.max_chain` of a recipe mean.

    Raises: ConfigError: no known name, or a chain of no checkpoint.
    """
    _check_chain(max_chain)
    match name:
        case "adaptive":
            return Adaptive(max_chain)
        case "full":
            return Full()
        case "incremental":
            return Incremental(max_chain)
        case "differential":
            return Differential(max_chain)
        case "check_n_run":
            return CheckNRun()
    raise ConfigError(f"checkpoint.policy is {name!r}", expected=", ".join(NAMES))


def _check_chain(max_chain: int) -> None:
    if max_chain < 1:
        raise ConfigError(f"checkpoint.max_chain is {max_chain}", expected="at least 1")
