"""Many jobs as one: sums of seconds or of rank-seconds, by component, owner, reason, attempt or model (rule R18).

No share is ever averaged: a row's share is its sum over the sum of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ett.accounting import JobAccount
from ett.attribution import Attribution, CausedRow, SpentRow, attribute
from ett.event_schema import COMPONENTS, Component
from ett.interval_set import Interval
from ett.report import Report, build_report
from ett.site import Site

By = Literal["component", "owner", "reason", "attempt", "model"]
Weight = Literal["rank", "job"]
View = Literal["as-spent", "as-caused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPart:
    """What a roll-up keeps of one job, and of each of its attempts: a few numbers, whatever the length of its log."""

    job: str
    team: str
    model: str
    owner: str
    report: Report
    views: Attribution
    attempts: tuple[tuple[int, Attribution], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """`ns` are weighted as asked; `effective_ns` of them learned something; `count` are interruptions."""

    name: str
    owner: str
    ns: int
    effective_ns: int
    count: int
    top: tuple[tuple[str, int], ...]  # the largest reasons of lost time, with their weighted ns


@dataclass(frozen=True, kw_only=True, slots=True)
class RollUp:
    """`job_ns` and `rank_ns` are the six components by seconds and by rank-seconds; `rows` sum to one of them."""

    num_jobs: int
    by: By
    weight: Weight
    view: View
    job_ns: dict[Component, int]
    rank_ns: dict[Component, int]
    rows: tuple[Row, ...]

    @property
    def ns(self) -> dict[Component, int]:
        return self.rank_ns if self.weight == "rank" else self.job_ns

    @property
    def total_ns(self) -> int:
        return sum(self.ns.values())

    @property
    def ett(self) -> float | None:
        return self.ns["effective"] / self.total_ns if self.total_ns else None


def job_part(account: JobAccount, site: Site, window: Interval | None = None, *, by_attempt: bool = False) -> JobPart:
    """Return what a roll-up needs of a job within `window`, the whole of it where None."""
    submitted = account.window.submitted.data if account.window.submitted else {}
    return JobPart(
        job=account.job,
        team=str(submitted.get("team", "")),
        model=str(submitted.get("model", "")),
        owner=str(submitted.get("owner", "")),
        report=build_report(account, window),
        views=attribute(account, site, window),
        attempts=tuple(_by_attempt(account, site, window)) if by_attempt else (),
    )


def _by_attempt(account: JobAccount, site: Site, window: Interval | None) -> Iterator[tuple[int, Attribution]]:
    """An attempt's time begins where the one before it ended, so that the waiting before it is its own."""
    begin_ns, until_ns = (account.window.start_ns, account.window.end_ns) if window is None else window
    attempts = [t.attempt for t in account.timelines if t.attempt.start_ns is not None]
    for attempt in attempts:
        end_ns = until_ns if attempt is attempts[-1] else min(until_ns, attempt.cut_ns)
        if begin_ns < end_ns:
            yield attempt.number, attribute(account, site, (begin_ns, end_ns))
            begin_ns = end_ns


def roll_up(parts: Iterable[JobPart], *, by: By, weight: Weight, view: View) -> RollUp:
    """Sum the jobs; rows come largest loss first. By attempt and by model both views are equal: they move no time
    from one job to another."""
    job_ns, rank_ns = dict.fromkeys(COMPONENTS, 0), dict.fromkeys(COMPONENTS, 0)
    groups: dict[str, _Group] = {}
    num_jobs = 0
    for part in parts:
        num_jobs += 1
        for spent in part.views.as_spent:
            job_ns[spent.component] += spent.ns
            rank_ns[spent.component] += spent.rank_ns
        for name, views in _named(part, by):
            rows: Sequence[SpentRow | CausedRow] = views.as_spent if view == "as-spent" else views.as_caused
            for row in rows:
                group = groups.setdefault(name or _row_name(row, by), _Group())
                group.add(row, weight)
    rows_of_groups = [group.row(name) for name, group in groups.items() if group.ns or by == "component"]
    return RollUp(
        num_jobs=num_jobs,
        by=by,
        weight=weight,
        view=view,
        job_ns=job_ns,
        rank_ns=rank_ns,
        rows=tuple(sorted(rows_of_groups, key=lambda row: (row.effective_ns - row.ns, row.name))),
    )


def roll_up_json(found: RollUp, scope: dict[str, Any]) -> dict[str, Any]:
    """Return the `ett.rollup/v1` object."""
    both = {"job": found.job_ns, "rank": found.rank_ns}
    data = {
        "scope": scope,
        "jobs": found.num_jobs,
        "by": found.by,
        "weight": found.weight,
        "view": found.view,
        "total_ns": found.total_ns,
        "ns": found.ns,
        "ett": found.ett,
        "weights": {name: {"total_ns": sum(ns.values()), "ns": ns} for name, ns in both.items()},
        "rows": [
            {**asdict(row), "top": [{"reason": name, "ns": ns} for name, ns in row.top]}
            | {"share": row.ns / found.total_ns if found.total_ns else None}
            for row in found.rows
        ],
    }
    return {"schema": "ett.rollup/v1", "data": data}


@dataclass(kw_only=True, slots=True)
class _Group:
    owners: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    ns: int = 0
    effective_ns: int = 0
    count: int = 0

    def add(self, row: SpentRow | CausedRow, weight: Weight) -> None:
        ns = row.rank_ns if weight == "rank" else row.ns
        self.ns += ns
        self.owners[row.owner] += ns
        if row.component == "effective":
            self.effective_ns += ns
        elif ns:
            self.reasons[reason_name(row)] += ns
        self.count += row.count if isinstance(row, CausedRow) else 0

    def row(self, name: str) -> Row:
        return Row(
            name=name,
            owner=next(iter(self.owners)) if len(self.owners) == 1 else "several",
            ns=self.ns,
            effective_ns=self.effective_ns,
            count=self.count,
            top=tuple(sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))[:3]),
        )


def _named(part: JobPart, by: By) -> Iterable[tuple[str, Attribution]]:
    """Views with the name of their row, "" where each of their own rows names it."""
    if by == "attempt":
        return [(f"{part.job}/{number}", views) for number, views in part.attempts]
    return [(part.model or "(no model)" if by == "model" else "", part.views)]


def _row_name(row: SpentRow | CausedRow, by: By) -> str:
    if by == "owner":
        return row.owner or "(nobody)"
    if by == "reason":
        return reason_name(row)
    return f"{row.cause_class} interruptions" if isinstance(row, CausedRow) and row.cause_class else str(row.component)


def reason_name(row: SpentRow | CausedRow) -> str:
    """Return "initialization.restore", or of an interruption "infra: host_failure"."""
    if isinstance(row, CausedRow) and row.cause_class is not None:
        return row.reason if row.reason == row.cause_class else f"{row.cause_class}: {row.reason}"
    return f"{row.component}.{row.reason}"
