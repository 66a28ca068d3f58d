"""A report as facts, bars and tables, before it becomes text, Markdown or HTML: the three say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ett.attribution import Attribution
from ett.event_schema import COMPONENTS, Component
from ett.report import Report
from ett.report_text import count, duration, recompilation_line, share
from ett.roll_up import RollUp, Row, reason_name
from ett.site import Site

STACKING: tuple[Component, ...] = (
    "effective",
    "wasted",
    "initialization",
    "scheduling",
    "compilation",
    "shutdown",
)
_TOP_REASONS = 3
_MOST_BARS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    label: str
    ns: Mapping[Component, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """`numbers` are the columns that are read from the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    title: str
    facts: tuple[str, ...]
    bars: tuple[Bar, ...]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def job_document(report: Report, views: Attribution, site: Site, fixes: str) -> Document:
    """Return one job's report: components with budgets, then who caused what."""
    facts = [report.state_word, count(report.num_ranks, "rank"), count(report.num_attempts, "attempt")]
    facts += [f"wall {duration(report.total_ns)}", _ett(report.ett, site)]
    return Document(
        title=report.job or "(no job)",
        facts=tuple(facts),
        bars=(Bar(label=report.job or "(no job)", ns=report.ns),),
        tables=(component_table(report, views, site), caused_table(views)),
        notes=tuple(line for line in (*caused_lines(views), fixes, recompilation_line(report.recompilations)) if line),
        warnings=report.warnings,
    )


def roll_up_document(found: RollUp, title: str, site: Site, bars: Sequence[Bar], warnings: Sequence[str]) -> Document:
    facts = [count(found.num_jobs, "job"), f"{_unit(found)} {duration(found.total_ns)}", _ett(found.ett, site)]
    facts += [found.view.replace("-", " "), f"weighted by {'rank-seconds' if found.weight == 'rank' else 'seconds'}"]
    lost = sorted(bars, key=lambda bar: bar.ns["effective"] - sum(bar.ns.values()))
    return Document(
        title=title,
        facts=tuple(facts),
        bars=(Bar(label="all", ns=found.ns), *(lost[:_MOST_BARS] if len(bars) > 1 else ())),
        tables=(_roll_up_table(found),),
        notes=(f"the {_MOST_BARS} jobs with the largest loss are drawn",) if len(bars) > _MOST_BARS else (),
        warnings=tuple(warnings),
    )


def component_table(report: Report, views: Attribution, site: Site) -> Table:
    rows = []
    for component in sorted(COMPONENTS, key=lambda c: (-report.ns[c], COMPONENTS.index(c))):
        ns = report.ns[component]
        ratio = ns / report.total_ns if report.total_ns else None
        spent = [row for row in views.as_spent if row.component == component]
        owners = list(dict.fromkeys(row.owner for row in spent if row.owner))
        top = (
            "" if component == "effective" else ", ".join(f"{r.reason} {duration(r.ns)}" for r in spent[:_TOP_REASONS])
        )
        budget, owner = budget_cell(component, ratio, site), ", ".join(owners) or "-"
        rows.append((component, duration(ns), share(ratio), budget, owner, top))
    total = ("total", duration(report.total_ns), share(1.0 if report.total_ns else None), "", "", "")
    return Table(
        title="Where the time went, as spent",
        columns=("component", "time", "share", "budget", "owner", "top reasons"),
        rows=(*rows, total),
        numbers=frozenset({1, 2, 3}),
    )


def caused_table(views: Attribution) -> Table:
    """Who caused it: one row a cause; the sum is that of the components, to the nanosecond."""
    rows = []
    for row in sorted(views.as_caused, key=lambda r: (r.component == "effective", r.cause != "interruption", -r.ns)):
        name = f"{reason_name(row)} x{row.count}" if row.cause == "interruption" else reason_name(row)
        parts = (row.lost_ns, row.teardown_ns, row.again_ns)
        shown = [duration(ns) if ns else "" for ns in parts]
        ratio = row.ns / views.total_ns if views.total_ns else None
        rows.append((name, duration(row.ns), share(ratio), *shown, row.owner or "-"))
    return Table(
        title="Who caused it",
        columns=("cause", "time", "share", "lost work", "teardown", "paid again", "owner"),
        rows=(*rows, ("total", duration(views.total_ns), share(1.0 if views.total_ns else None), "", "", "", "")),
        numbers=frozenset({1, 2, 3, 4, 5}),
    )


def caused_lines(views: Attribution) -> list[str]:
    """Return "as caused: 2 host_failure (infra) cost 44m in all (…) = 5.2 points of ETT": a line for each of three."""
    lines = []
    stops = sorted((row for row in views.as_caused if row.cause == "interruption"), key=lambda row: -row.ns)
    for row in stops[:_TOP_REASONS]:
        kinds = f"{row.count} {row.reason}" + (f" ({row.cause_class})" if row.reason != row.cause_class else "")
        parts = [(row.lost_ns, "lost"), (row.teardown_ns, "teardown"), (row.again_ns, "paid again")]
        told = " + ".join(f"{duration(ns)} {what}" for ns, what in parts if ns)
        points = f" = {row.ns / views.total_ns * 100:.1f} points of ETT" if views.total_ns else ""
        lines.append(f"as caused: {kinds} cost {duration(row.ns)} in all ({told}){points}")
    if len(stops) > _TOP_REASONS:
        rest = sum(row.ns for row in stops[_TOP_REASONS:])
        lines.append(f"as caused: {count(len(stops) - _TOP_REASONS, 'other cause')} cost {duration(rest)}")
    return lines


def beside_components(report: Report, views: Attribution, site: Site) -> dict[Component, tuple[str, str]] | None:
    """Return each component's budget and owner; None where the site file knows neither."""
    if not site.owners and not site.objectives:
        return None
    rows = {row[0]: row for row in component_table(report, views, site).rows}
    return {component: (rows[component][3], rows[component][4]) for component in COMPONENTS}


def budget_cell(component: str, ratio: float | None, site: Site) -> str:
    """Return "2.5 %", with a "!" where the share is above it; "" without a budget."""
    budget = site.budget(component)
    if budget is None:
        return ""
    return share(budget) + (" !" if ratio is not None and ratio > budget else "")


def _roll_up_table(found: RollUp) -> Table:
    of_jobs = found.by in ("attempt", "model")
    columns = (found.by, _unit(found), "share", "ETT" if of_jobs else "owner", "top reasons")
    rows = tuple(_roll_up_row(row, found, of_jobs=of_jobs) for row in found.rows)
    ett = share(found.ett) if of_jobs else ""
    total = ("total", duration(found.total_ns), share(1.0 if found.total_ns else None), ett, "")
    numbers = frozenset({1, 2, 3}) if of_jobs else frozenset({1, 2})
    return Table(
        title=f"By {found.by}, {found.view.replace('-', ' ')}", columns=columns, rows=(*rows, total), numbers=numbers
    )


def _roll_up_row(row: Row, found: RollUp, *, of_jobs: bool) -> tuple[str, ...]:
    name = f"{row.name} x{row.count}" if row.count and not of_jobs else row.name
    middle = share(row.effective_ns / row.ns if row.ns else None) if of_jobs else row.owner or "-"
    own = f"{row.name}."  # a row of one component need not say it again of each reason
    told = (f"{reason.removeprefix(own)} {duration(ns)}" for reason, ns in row.top)
    top = "" if found.by == "reason" else ", ".join(told)
    return (name, duration(row.ns), share(row.ns / found.total_ns if found.total_ns else None), middle, top)


def _unit(found: RollUp) -> str:
    return "rank-time" if found.weight == "rank" else "time"


def _ett(ett: float | None, site: Site) -> str:
    objective = site.budget("ett")
    return f"ETT {share(ett)}" + (f" (objective {share(objective)})" if objective is not None else "")
