"""`ett compare A B`: what made two jobs differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import click

from ett.accounting import JobAccount
from ett.comparison import Align, Changed, Comparison, Difference, changed_values, compare, signed
from ett.errors import NotFound
from ett.event_schema import NS
from ett.job_source import JobLog, store_option
from ett.job_window import AccountingPolicy
from ett.log_source import log_path
from ett.report import Report
from ett.report_text import duration, share
from ett.shown_text import say

_SHOWN_REASONS = 8
_SHOWN_CHANGES = 20


@click.command()
@click.argument("a")
@click.argument("b")
@store_option
@click.option(
    "--align",
    type=click.Choice(get_args(Align)),
    default="attempt",
    show_default=True,
    help="The whole jobs by attempt, both up to the same learned data (step), or equally long (wall).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, a: str, b: str, store: str | None, align: Align, as_json: bool) -> None:
    """Say what made job B better or worse than job A: each a job, or the path of a log or an export."""
    logs = [_log(name, store) for name in (a, b)]
    found = compare(_account(logs[0]), _account(logs[1]), align)
    launches, recipes = zip(*(log.launch_and_recipe() for log in logs), strict=True)
    environment, recipe = changed_values(*launches), changed_values(*recipes)
    warnings = [f"{r.job}: {text}" for r in (found.a, found.b) for text in r.warnings]
    if as_json:
        say(json.dumps(_json(found, align, environment, recipe, warnings)))
        return
    for line in _lines(found):
        say(line)
    for title, changes in (("environment", environment), ("recipe", recipe)):
        say(f"{title}: " + ("no difference known" if not changes else ""))
        for change in changes[:_SHOWN_CHANGES]:
            say(f"  {change.key}: {_shown(change.a)} -> {_shown(change.b)}")
        if len(changes) > _SHOWN_CHANGES:
            say(f"  and {len(changes) - _SHOWN_CHANGES} more: --json has all")
    say(found.verdict)
    for warning in warnings:
        say(f"warning: {warning}", err=True)


def _log(name: str, store: str | None) -> JobLog:
    """A name with a slash is a path: no job has such a name."""
    return log_path(None, Path(name)) if "/" in name or name in (".", "..") else log_path(name, None, store)


def _account(log: JobLog) -> JobAccount:
    account = log.account(None, AccountingPolicy())
    if account is None:
        raise NotFound(f"{log} has no records", do="wait for its first record")
    return account


def _lines(found: Comparison) -> list[str]:
    a, b = found.a, found.b
    lines = [f"A {_header(a)}", f"B {_header(b)}", f"compared: {found.aligned}", ""]
    lines.append(f"{'':<28}{'A':>10}{'B':>10}{'B - A':>11}{'points':>9}")
    lines += [_row(d) for d in found.components]
    total = Difference(name="total", a_ns=a.total_ns, b_ns=b.total_ns, points=0.0)
    lines.append(_row(total).removesuffix(f"{0.0:>+9.1f}"))
    lines.append("points: B's share of its time less A's, times 100; more of anything but effective is worse")
    moved = [d for d in found.reasons if d.delta_ns and not d.name.startswith("effective.")]
    lines += ["", "reasons, largest difference first"] if moved else []
    lines += [_row(d) for d in moved[:_SHOWN_REASONS]]
    lines += ["", f"{'attempt':<28}{'A':>10}{'B':>10}{'B - A':>11}{'ETT A':>9}{'ETT B':>9}"]
    for pair in found.attempts:
        times = [None if r is None else r.total_ns for r in (pair.a, pair.b)]
        cells = [f"{'-' if ns is None else duration(ns):>10}" for ns in times]
        delta = "-" if times[0] is None or times[1] is None else signed(times[1] - times[0])
        shares = [f"{'-' if r is None else share(r.ett):>9}" for r in (pair.a, pair.b)]
        lines.append(f"{pair.number:<28}{''.join(cells)}{delta:>11}{''.join(shares)}")
    return [*lines, ""]


def _header(report: Report) -> str:
    return (
        f"{report.job or '(no job)'}   {report.state_word}   wall {duration(report.total_ns)}   ETT {share(report.ett)}"
    )


def _row(d: Difference) -> str:
    return f"{d.name:<28}{duration(d.a_ns):>10}{duration(d.b_ns):>10}{signed(d.delta_ns):>11}{d.points:>+9.1f}"


def _shown(value: object) -> str:
    text = "-" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _json(
    found: Comparison, align: Align, environment: list[Changed], recipe: list[Changed], warnings: list[str]
) -> dict[str, Any]:
    data = {
        "a": _job_json(found.a),
        "b": _job_json(found.b),
        "align": align,
        "aligned": found.aligned,
        "components": [_difference_json(d) for d in found.components],
        "reasons": [_difference_json(d) for d in found.reasons],
        "attempts": [
            {"attempt": p.number, "a": p.a and _job_json(p.a), "b": p.b and _job_json(p.b)} for p in found.attempts
        ],
        "environment": [{"key": c.key, "a": c.a, "b": c.b} for c in environment],
        "recipe": [{"key": c.key, "a": c.a, "b": c.b} for c in recipe],
        "verdict": found.verdict,
    }
    return {"schema": "ett.compare/v1", "data": data, "warnings": warnings}


def _job_json(report: Report) -> dict[str, Any]:
    return {
        "job": report.job,
        "state": report.state,
        "total_ns": report.total_ns,
        "ett": report.ett,
        "ns": report.ns,
        "failures": report.count("failure", "inprocess"),
    }


def _difference_json(d: Difference) -> dict[str, Any]:
    row = {"name": d.name, "a_ns": d.a_ns, "b_ns": d.b_ns, "delta_ns": d.delta_ns}
    return row | {"delta_s": d.delta_ns / NS, "points": d.points}
