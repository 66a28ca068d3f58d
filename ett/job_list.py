"""`ett ls`: the jobs of this home or of a store, a page at a time."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import click

from ett.ago import Ago
from ett.errors import EttError
from ett.event_schema import NS
from ett.job_source import accounts, opened, store_option, store_url
from ett.job_state import STATES
from ett.job_window import AccountingPolicy
from ett.report_text import duration, share
from ett.shown_text import one_line, say
from ett.store.job_row import JobRow, summarised
from ett.store.job_table import SORTS, JobFilter, JobPage, page_of_rows

_COLUMNS = ("job", "team", "owner", "model", "state", "attempts", "ett", "started")
_PAGE_ROWS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedJob:
    """One job as it is printed; `ett` from 0 to 1 or None, `started` RFC 3339 in UTC or empty."""

    job: str
    team: str
    owner: str
    model: str
    state: str
    attempts: int
    ett: float | None
    started: str


def list_jobs(store: str | None, asked: JobFilter, *, sort: str, limit: int, cursor: str | None) -> JobPage:
    """Return a page of the store at that URL, else of the folders under $ETT_HOME: the same rows for the same logs."""
    url = store_url(store)
    if url is not None:
        with opened(url) as found:
            return found.page(asked, sort=sort, limit=limit, cursor=cursor)
    rows, warnings = list[JobRow](), list[str]()
    for name, account in accounts(None, AccountingPolicy()):
        if isinstance(account, EttError):
            warnings.append(f"{name}: {account}")
        else:
            rows.append(summarised(name, account, time.time_ns()))
    page = page_of_rows(rows, asked, sort=sort, limit=limit, cursor=cursor)
    return JobPage(rows=page.rows, next_cursor=page.next_cursor, warnings=tuple(warnings))


@click.command()
@store_option
@click.option("--team", metavar="NAME", help="Only jobs of this team.")
@click.option("--model", metavar="NAME", help="Only jobs of this model.")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--since", type=Ago(), metavar="AGO", help="Only jobs that started in the last 7d, 12h, 90m, …")
@click.option(
    "--sort", type=click.Choice(sorted(SORTS)), default="start", help="Newest first (start), or by ETT, or lost time."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=_PAGE_ROWS, show_default=True, help="Rows of a page.")
@click.option("--cursor", metavar="TEXT", help="The page after the one that named this cursor.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    store: str | None,
    team: str | None,
    model: str | None,
    state: str | None,
    since: float | None,
    sort: str,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List the jobs under $ETT_HOME, or of a store, newest first."""
    asked = JobFilter(team=team, model=model, state=state, since_unix_s=since)
    page = list_jobs(store, asked, sort=sort, limit=limit, cursor=cursor)
    if as_json:
        data = {"jobs": [asdict(_listed(row)) for row in page.rows], "next": page.next_cursor}
        say(json.dumps({"schema": "ett.jobs/v1", "data": data, "warnings": list(page.warnings)}))
        return
    columns = (*_COLUMNS[:7], "lost", *_COLUMNS[7:]) if sort == "lost" else _COLUMNS
    for line in _table([columns, *(_cells(row, columns) for row in page.rows)]):
        say(line)
    if page.next_cursor is not None:
        say(f"next page: the same command with --cursor {page.next_cursor}", err=True)
    for warning in page.warnings:
        say(f"warning: {warning}", err=True)


def _listed(row: JobRow) -> ListedJob:
    started = datetime.fromtimestamp(row.started_ns // NS, UTC).isoformat() if row.started_ns else ""
    return ListedJob(
        job=row.job,
        team=row.team,
        owner=row.owner,
        model=row.model,
        state=row.state,
        attempts=row.attempts,
        ett=row.ett,
        started=started.replace("+00:00", "Z"),
    )


def _cells(row: JobRow, columns: tuple[str, ...]) -> tuple[str, ...]:
    values: dict[str, Any] = asdict(_listed(row)) | {"ett": share(row.ett), "lost": duration(row.lost_ns)}
    return tuple(one_line(str(values[name])) or "-" for name in columns)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
