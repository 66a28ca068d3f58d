"""Which jobs a command is about: one, some by name, or all of a team, a model, an owner, or the fleet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ett.accounting import JobAccount
from ett.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """No names and no --events: all jobs that --team, --model and --owner leave."""

    jobs: tuple[str, ...]
    events: Path | None
    team: str | None
    model: str | None
    owner: str | None
    fleet: bool

    def __post_init__(self) -> None:
        if self.fleet and (self.jobs or self.events):
            raise UsageError("--fleet means all jobs", expected="it, or some jobs by name")

    @property
    def is_fleet(self) -> bool:
        """True where all jobs are looked at, and kept by team, model and owner."""
        return not self.jobs and self.events is None and bool(self.team or self.model or self.owner or self.fleet)

    @property
    def is_one_job(self) -> bool:
        return len(self.jobs) < 2 and not self.is_fleet

    @property
    def title(self) -> str:
        named = [f"{name} {value}" for name in ("team", "model", "owner") if (value := getattr(self, name))]
        return ", ".join([*named, *self.jobs]) or "fleet"

    def has(self, account: JobAccount) -> bool:
        submitted = account.window.submitted.data if account.window.submitted else {}
        asked = {name: getattr(self, name) for name in ("team", "model", "owner")}
        return all(value is None or str(submitted.get(name, "")) == value for name, value in asked.items())

    def named(self) -> dict[str, str | None]:
        """Return what the jobs are kept by, for JSON."""
        return {"team": self.team, "model": self.model, "owner": self.owner}
