"""The rows of jobs: found by name, kept after each account, listed page by page without reading the others."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ett.accounting import JobAccount
from ett.errors import AccessDenied, Conflict, NotFound, UsageError
from ett.event_schema import COMPONENTS, NS
from ett.job_folder import JOB_NAME
from ett.store.block import clamped
from ett.store.database import Database
from ett.store.job_row import COLUMNS, JobRow, plain_text, row_of

STALE_AFTER_NS = 90 * NS  # silence after which a running job is LOST (D5): a row this old may say the wrong word
SORTS = {"start": "started_ns", "ett": "ett_ppm", "lost": "lost_ns"}
_CURSOR = re.compile(rf"([a-z]+)\.(-?[0-9]{{1,19}})\.({JOB_NAME.pattern})", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFilter:
    """Which jobs; None: any."""

    team: str | None = None
    model: str | None = None
    state: str | None = None
    since_unix_s: float | None = None  # started at or after

    def admits(self, row: JobRow) -> bool:
        is_since = self.since_unix_s is None or row.started_ns >= int(self.since_unix_s * NS)
        return is_since and all(
            wanted is None or plain_text(wanted) == found
            for wanted, found in ((self.team, row.team), (self.model, row.model), (self.state, row.state))
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPage:
    """Rows in order, and where the next page begins; None: that was the last."""

    rows: tuple[JobRow, ...]
    next_cursor: str | None
    warnings: tuple[str, ...] = ()  # jobs that are left out, since their log cannot be read


class JobTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def locked_id(self, job: str) -> int:
        """Return the job's id, made where it is new, its row locked until the transaction ends."""
        self._database.run("INSERT INTO job (name) VALUES (?) ON CONFLICT (name) DO NOTHING", (job,))
        locked = f"SELECT id FROM job WHERE name = ?{self._database.for_update}"
        return int(self._database.rows(locked, (job,))[0][0])

    def is_known(self, job: str) -> bool:
        return bool(self._database.rows("SELECT 1 FROM job WHERE name = ?", (job,)))

    def known_id(self, job: str) -> int:
        """Raises: NotFound."""
        found = self._database.rows("SELECT id FROM job WHERE name = ?", (job,))
        if not found:
            raise NotFound(f"there is no job {job!r} in the store {self._database.name}", do="`ett ls` lists them")
        return int(found[0][0])

    def generation(self, job: str) -> int:
        return int(self._database.rows("SELECT generation FROM job WHERE id = ?", (self.known_id(job),))[0][0])

    def has_new_records(self, job: str) -> bool:
        sql = "SELECT generation <> summary_generation FROM job WHERE id = ?"
        return bool(self._database.rows(sql, (self.known_id(job),))[0][0])

    def stale(self) -> list[str]:
        """Names of the jobs whose row is older than their records, or than the silence that makes a job lost."""
        found = self._database.rows(
            "SELECT name FROM job WHERE generation <> summary_generation "
            "UNION SELECT name FROM job WHERE window_state = 'RUNNING' AND as_of_ns < ?",
            (time.time_ns() - STALE_AFTER_NS,),
        )
        return [name for (name,) in found]

    def keep(self, row: JobRow, account: JobAccount | None, generation: int) -> None:
        """Keep a summary of that generation. A reader's summary is not worth waiting for a writer: it is left out."""
        values = summary_values(row)
        names = ", ".join(f"{name} = ?" for name in values)
        try:
            with self._database.writing(wait_s=0.2):
                job_id = self.locked_id(row.job)
                known = self._database.rows("SELECT summary_generation FROM job WHERE id = ?", (job_id,))[0][0]
                if known > generation:
                    return
                self._database.run(
                    f"UPDATE job SET {names}, summary_generation = ? WHERE id = ?",
                    (*values.values(), generation, job_id),
                )
                self._database.run("DELETE FROM attempt WHERE job_id = ?", (job_id,))
                self._database.run_many(
                    "INSERT INTO attempt VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", _attempt_rows(job_id, account)
                )
        except (Conflict, AccessDenied):  # one who may only read keeps nothing
            return

    def page(self, asked: JobFilter, *, sort: str, limit: int | None, cursor: str | None) -> JobPage:
        column = SORTS[sort]
        conditions, values = ["1 = 1"], list[object]()
        for name in ("team", "model", "state"):
            if (wanted := getattr(asked, name)) is not None:
                conditions.append(f"{name} = ?")
                values.append(plain_text(wanted))
        if asked.since_unix_s is not None:
            conditions.append("started_ns >= ?")
            values.append(clamped(int(asked.since_unix_s * NS)))
        if cursor is not None:
            conditions.append(f"({column}, name) < (?, ?)")
            values += parsed_cursor(cursor, sort)
        most = "" if limit is None else " LIMIT ?"
        values += [] if limit is None else [limit + 1]
        found = self._database.rows(
            f"SELECT {', '.join(COLUMNS)} FROM job WHERE {' AND '.join(conditions)} "
            f"ORDER BY {column} DESC, name DESC{most}",
            values,
        )
        return cut_page([row_of(row) for row in found], sort=sort, limit=limit)


def page_of_rows(
    rows: Iterable[JobRow], asked: JobFilter, *, sort: str, limit: int | None, cursor: str | None
) -> JobPage:
    """Return the page that a store with these rows would give."""
    kept = [row for row in rows if asked.admits(row)]
    kept.sort(key=lambda row: _sort_key(row, sort), reverse=True)
    if cursor is not None:
        after = parsed_cursor(cursor, sort)
        kept = [row for row in kept if _sort_key(row, sort) < after]
    return cut_page(kept, sort=sort, limit=limit)


def cut_page(rows: Sequence[JobRow], *, sort: str, limit: int | None) -> JobPage:
    if limit is None or len(rows) <= limit:
        return JobPage(rows=tuple(rows), next_cursor=None)
    number, name = _sort_key(rows[limit - 1], sort)
    return JobPage(rows=tuple(rows[:limit]), next_cursor=f"{sort}.{number}.{name}")


def parsed_cursor(cursor: str, sort: str) -> tuple[int, str]:
    """Raises: UsageError."""
    found = _CURSOR.fullmatch(cursor)
    if found is None or found[1] != sort:
        raise UsageError(
            f"cursor {cursor[:60]!r} is none of a list sorted by {sort}", expected="the `next` of the page before"
        )
    return clamped(int(found[2])), found[3]


def _sort_key(row: JobRow, sort: str) -> tuple[int, str]:
    return getattr(row, SORTS[sort]), row.job


def summary_values(row: JobRow) -> dict[str, object]:
    """Return what the job table keeps of a row, by column."""
    names: tuple[str, ...] = ("as_of_ns", "team", "owner", "model", "state", "window_state", "attempts", "ranks")
    names += ("started_ns", "ended_ns", "total_ns", "lost_ns", "ett_ppm")
    return {name: getattr(row, name) for name in names} | {f"{name}_ns": row.ns[name] for name in COMPONENTS}


def _attempt_rows(job_id: int, account: JobAccount | None) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for timeline in () if account is None else account.timelines:
        attempt = timeline.attempt
        if attempt.start_ns is None:
            continue
        spent = dict.fromkeys(COMPONENTS, 0)
        for piece in timeline.pieces:
            spent[piece.component] += piece.end_ns - piece.begin_ns
        what = (plain_text(attempt.reason or ""), clamped(attempt.world or 1))
        times = (clamped(attempt.start_ns), clamped(attempt.end_ns))
        rows.append((job_id, clamped(attempt.number), *times, *what, *(clamped(spent[name]) for name in COMPONENTS)))
    return rows
