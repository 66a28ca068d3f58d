"""One job as `jobs` lists it: what its account said when it was last summed up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ett.accounting import JobAccount
from ett.event_schema import COMPONENTS, NS, Component
from ett.job_state import state_of
from ett.report import build_report
from ett.store.block import clamped

COLUMNS = (
    "name", "as_of_ns", "team", "owner", "model", "state", "window_state",
    "attempts", "ranks", "started_ns", "ended_ns", "total_ns", *(f"{name}_ns" for name in COMPONENTS), "lost_ns",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRow:
    """A job's summary, exact integers of nanoseconds; `started_unix_s` is 0.0 while nothing is recorded."""

    job: str
    team: str
    owner: str
    model: str
    state: str  # queued, running, suspended, succeeded, failed, cancelled or lost
    window_state: str  # RUNNING, LOST, SUCCEEDED, FAILED or CANCELLED (R1)
    attempts: int
    ranks: int
    started_ns: int
    ended_ns: int
    as_of_ns: int
    total_ns: int
    ns: dict[Component, int]

    @property
    def started_unix_s(self) -> float:
        return self.started_ns / NS

    @property
    def ett(self) -> float | None:
        return self.ns["effective"] / self.total_ns if self.total_ns else None

    @property
    def lost_ns(self) -> int:
        return self.total_ns - self.ns["effective"]

    @property
    def ett_ppm(self) -> int:
        """ETT in parts per million, rounded down; -1 where it is undefined. Rows are sorted by it."""
        return self.ns["effective"] * 1_000_000 // self.total_ns if self.total_ns else -1


def summarised(job: str, account: JobAccount | None, as_of_ns: int) -> JobRow:
    """Return the row of a job's account; one without records is queued."""
    if account is None:
        none: dict[Component, int] = dict.fromkeys(COMPONENTS, 0)
        return JobRow(
            job=job, team="", owner="", model="", state="queued", window_state="RUNNING", attempts=0, ranks=0,
            started_ns=0, ended_ns=0, as_of_ns=as_of_ns, total_ns=0, ns=none,
        )  # fmt: skip
    submitted = account.window.submitted.data if account.window.submitted else {}
    report = build_report(account)
    return JobRow(
        job=job,
        team=plain_text(submitted.get("team", "")),
        owner=plain_text(submitted.get("owner", "")),
        model=plain_text(submitted.get("model", "")),
        state=state_of(account),
        window_state=account.window.state,
        attempts=report.num_attempts,
        ranks=clamped(report.num_ranks),
        started_ns=clamped(account.window.start_ns),
        ended_ns=clamped(account.window.end_ns),
        as_of_ns=as_of_ns,
        total_ns=clamped(report.total_ns),
        ns={name: clamped(ns) for name, ns in report.ns.items()},
    )


def row_of(values: tuple[Any, ...]) -> JobRow:
    """Return the row of a SELECT of `COLUMNS`."""
    named = dict(zip(COLUMNS, values, strict=True))
    return JobRow(
        job=named["name"],
        ns={name: named[f"{name}_ns"] for name in COMPONENTS},
        **{
            name: named[name]
            for name in (
                "team", "owner", "model", "state", "window_state", "attempts", "ranks", "started_ns", "ended_ns",
                "as_of_ns", "total_ns",
            )
        },
    )  # fmt: skip


def plain_text(value: object) -> str:
    """Return a log's text as any database takes it: no NUL, no half of a surrogate pair."""
    return str(value).encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
