"""What was found of this host before a restart; the checks themselves stand in `recovery/` (`ett/seams.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ett.restart import RestartDecision


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that an attempt needs of its host."""

    check: str  # disk, memory, …
    took_s: float
    fact: str = ""  # what is wrong; empty: nothing
    note: str = ""  # what is said though an attempt may follow
    do: str = ""  # what an operator does about it


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptNeeds:
    """What the next attempt is, as far as its host matters."""

    sections: Mapping[str, Any] = field(default_factory=dict)  # of the recipe; {} of a program that is none
    is_thorough: bool = False  # what takes a moment is looked at as well, devices and the store
    has_committed: bool = False  # the attempt goes on from a commit of the job
    places: tuple[int, ...] = (0,)  # LOCAL_RANK of each rank
    fewest: int = 1  # ranks that the job may go on with


class HostChecks(Protocol):
    def __call__(
        self, job_dir: Path, needs: AttemptNeeds, config: Any, meanwhile: Callable[[], None]
    ) -> tuple[Finding, ...]:
        """Look at this host, within the deadline of `config`; () where that is switched off.

        Args: meanwhile: called again and again; what it raises ends the look.
        """


def unwell(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    return tuple(found for found in findings if found.fact)


def look_fields(findings: tuple[Finding, ...]) -> dict[str, Any]:
    """Return what a record of a look at this host says of it; None: nothing."""
    ill = unwell(findings)
    return {
        "ok": not ill,
        "checks": {found.check: round(found.took_s, 3) for found in findings},
        "failed": {found.check: found.fact for found in ill} or None,
        "noted": {found.check: found.note for found in findings if found.note} or None,
    }


def give_up(findings: tuple[Finding, ...], waited_s: float) -> RestartDecision:
    """Return the decision that ends a job on a host that is not well: no restart is used up on it."""
    facts = "; ".join(f"{found.check}: {found.fact}" for found in unwell(findings))
    why = f"this host cannot run it ({facts}), looked at for {waited_s:.0f} s"
    return RestartDecision(restart=False, delay_s=0.0, rule="unhealthy_host", why=why)
