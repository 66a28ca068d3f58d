"""`ett ingest`: jobs' folders into the job store."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from ett.errors import CorruptState, NotFound, UsageError
from ett.job_folder import checked_name, ett_home, find_job
from ett.job_source import own_store, store_url
from ett.shown_text import say
from ett.store.export_jsonl import ExportedJob, read_export
from ett.store.folder_ingest import FolderIngest, ingest_export, ingest_folder
from ett.store.job_store import Store, open_store

_SHOWN_REJECTS = 5


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--all", "all_jobs", is_flag=True, help="Every job under $ETT_HOME.")
@click.option(
    "--events",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder with an event log: that of the one JOB named; or a file of `ett export`.",
)
@click.option("--store", metavar="URL", help="The store; else $ETT_STORE, the site's [store] url, or $ETT_HOME/ett.db.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(jobs: tuple[str, ...], all_jobs: bool, events: Path | None, store: str | None, as_json: bool) -> None:
    """Take what is new in the logs of JOBs into the job store. Doing it again changes nothing.

    Lines that are no records are counted and shown, and never keep the others out; exit code 8 says that a record
    conflicts with one that is stored under the same number.
    """
    is_export = events is not None and events.is_file()
    if events is not None and (all_jobs or len(jobs) > 1 or not (jobs or is_export)):
        raise click.UsageError(f"--events is the log of one job: name that job, `ett ingest NAME --events {events}`")
    if events is None and all_jobs == bool(jobs):
        raise click.UsageError("name jobs, or say --all; `ett ls` lists them")
    url = store_url(store) or own_store()
    done, warnings = list[FolderIngest](), list[str]()
    with open_store(url) as opened:
        for name, source in _sources(jobs, events):
            try:
                done.append(_ingest(opened, name, source))
            except NotFound as err:
                if not all_jobs:
                    raise
                warnings.append(f"{name}: {err}")
        place = opened.name
    _say(done, warnings, place, as_json)
    if any(code == "conflict" for one in done for code, _ in one.rejected):
        raise _conflict(done)


def _ingest(store: Store, job: str, source: Path | ExportedJob) -> FolderIngest:
    return ingest_folder(store, job, source) if isinstance(source, Path) else ingest_export(store, source, job)


def _sources(jobs: tuple[str, ...], events: Path | None) -> Iterator[tuple[str, Path | ExportedJob]]:
    """Yield each job's name and where its log is. Raises: NotFound, UsageError, DataError."""
    if events is not None and events.is_file():
        exported = read_export(events)
        if jobs and len(exported) != 1:
            raise UsageError(f"{events} holds {len(exported)} jobs", expected="one, to be taken in under another name")
        yield from ((checked_name(jobs[0] if jobs else one.job), one) for one in exported)
        return
    if events is not None:
        yield checked_name(jobs[0]), events
        return
    home = ett_home(os.environ)
    if jobs:
        yield from ((folder.name, folder.path) for folder in (find_job(home, job) for job in jobs))
        return
    root = home / "jobs"
    yield from ((path.name, path) for path in sorted(root.iterdir()) if path.is_dir()) if root.is_dir() else ()


def _say(done: list[FolderIngest], warnings: list[str], place: str, as_json: bool) -> None:
    notes = [f"{one.job}: {note}" for one in done for note in one.notes] + warnings
    if as_json:
        rows = [
            {
                "job": one.job,
                "files": one.files,
                "accepted": one.accepted,
                "duplicate": one.duplicate,
                "rejected": dict(Counter(code for code, _ in one.rejected)),
            }
            for one in done
        ]
        say(json.dumps({"schema": "ett.ingest/v1", "data": {"jobs": rows}, "warnings": notes}))
        return
    for one in done:
        if one.accepted or one.rejected or len(done) == 1:
            counts = f"{one.accepted} new, {one.duplicate} known, {len(one.rejected)} rejected"
            say(f"{one.job}: {counts} of {one.files} files")
        for _, text in one.rejected[:_SHOWN_REJECTS]:
            say(f"  rejected {text}", err=True)
        if len(one.rejected) > _SHOWN_REJECTS:
            say(f"  and {len(one.rejected) - _SHOWN_REJECTS} more", err=True)
    say(f"{len(done)} jobs, {sum(one.accepted for one in done)} new records in {place}")
    for note in notes:
        say(f"warning: {note}", err=True)


def _conflict(done: list[FolderIngest]) -> CorruptState:
    found = [f"{one.job}: {text}" for one in done for code, text in one.rejected if code == "conflict"]
    return CorruptState(
        f"{len(found)} records conflict with stored ones; the first: {found[0]}",
        expected="one record for each job, file and sequence number",
        did="kept the record that was stored first, and everything else",
        do="if two jobs share this name, ingest the other under a name of its own: `ett ingest NAME --events DIR`",
        code="C009",
    )
