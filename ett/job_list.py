"""`ett ls`: the jobs of this home, newest first."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ett.accounting import JobAccount
from ett.errors import CorruptState, NotFound
from ett.event_schema import NS
from ett.job_folder import ett_home
from ett.job_state import state_of
from ett.job_window import AccountingPolicy
from ett.log_source import load_account
from ett.report import build_report
from ett.report_text import share

_COLUMNS = ("job", "team", "owner", "model", "state", "attempts", "ett", "started")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRow:
    """One job; `ett` from 0 to 1 or None, `started` RFC 3339 in UTC or empty while nothing is recorded."""

    job: str
    team: str
    owner: str
    model: str
    state: str
    attempts: int
    ett: float | None
    started: str


def list_jobs(jobs: Path) -> tuple[list[JobRow], list[str]]:
    """Return the jobs under the folder, newest first, and a warning for each whose log cannot be read."""
    rows, warnings = [], []
    folders = [entry for entry in jobs.iterdir() if entry.is_dir()] if jobs.is_dir() else []
    for folder in folders:
        try:
            account = load_account(folder, None, AccountingPolicy()) if (folder / "events").is_dir() else None
        except (CorruptState, NotFound) as err:
            warnings.append(f"{folder.name}: {err}")
            continue
        rows.append(job_row(folder.name, account))
    return sorted(rows, key=lambda row: (row.started, row.job), reverse=True), warnings


def job_row(name: str, account: JobAccount | None) -> JobRow:
    """Return the row of a job; one without records yet is queued."""
    if account is None:
        return JobRow(job=name, team="", owner="", model="", state="queued", attempts=0, ett=None, started="")
    submitted = account.window.submitted.data if account.window.submitted else {}
    started = datetime.fromtimestamp(account.window.start_ns / NS, UTC)
    report = build_report(account)
    return JobRow(
        job=name,
        team=str(submitted.get("team", "")),
        owner=str(submitted.get("owner", "")),
        model=str(submitted.get("model", "")),
        state=state_of(account),
        attempts=report.num_attempts,
        ett=report.ett,
        started=started.isoformat(timespec="seconds").replace("+00:00", "Z"),
    )


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> None:
    """List the jobs under $ETT_HOME, newest first."""
    rows, warnings = list_jobs(ett_home(os.environ) / "jobs")
    if as_json:
        data = {"jobs": [asdict(row) for row in rows]}
        click.echo(json.dumps({"schema": "ett.jobs/v1", "data": data, "warnings": warnings}))
        return
    for line in _table([_COLUMNS, *(_cells(row) for row in rows)]):
        click.echo(line)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _cells(row: JobRow) -> tuple[str, ...]:
    values: dict[str, Any] = asdict(row) | {"ett": share(row.ett)}
    return tuple(str(values[name]) or "-" for name in _COLUMNS)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
