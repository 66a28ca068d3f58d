"""`ett sync`: send event logs to a collector, once or for as long as jobs run."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import click

from ett.collector.access import read_token
from ett.collector.agent import Agent, AgentConfig
from ett.collector.endpoint import Endpoint
from ett.collector.spool import Counts, Spool
from ett.errors import Conflict, NotFound, Unreachable, UsageError
from ett.event_reader import parse_file
from ett.job_folder import JOB_NAME, JobFolder, ett_home, find_job
from ett.recipe import resolve_telemetry
from ett.recipe_cli import site_file

GIVE_UP_AFTER_S = 60.0


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]…")
@click.option("--all", "all_jobs", is_flag=True, help="Every job under $ETT_HOME, also those that come later.")
@click.option(
    "--events",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="A bare log folder instead of jobs.",
)
@click.option("--endpoint", metavar="URL", help="The collector; else telemetry.endpoint of $ETT_… or the site file.")
@click.option("--watch", is_flag=True, help="Go on until SIGTERM or Ctrl-C, then send what is left.")
@click.option(
    "--interval", type=click.FloatRange(min=0.05), metavar="SECONDS", help="Between two looks (default: 10; --watch)."
)
@click.option(
    "--shutdown-flush",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="For the last of it (default: 2; --watch).",
)
@click.option(
    "--give-up-after",
    type=click.FloatRange(min=0),
    default=GIVE_UP_AFTER_S,
    show_default=True,
    metavar="SECONDS",
    help="Of failures in a row, without --watch.",
)
@click.option("--token-file", type=click.Path(path_type=Path), help="Else $ETT_TOKEN_FILE, else $ETT_TOKEN.")
@click.option("--config", type=click.Path(path_type=Path), help="Site file; else $ETT_CONFIG or $ETT_HOME/ett.toml.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--until-eof", is_flag=True, hidden=True, help="End, as after SIGTERM, when standard input does.")
def command(
    *,
    jobs: tuple[str, ...],
    all_jobs: bool,
    events: Path | None,
    endpoint: str | None,
    watch: bool,
    interval: float | None,
    shutdown_flush: float | None,
    give_up_after: float,
    token_file: Path | None,
    config: Path | None,
    as_json: bool,
    until_eof: bool,
) -> None:
    """Send event logs to a collector, at least once; what it has already is counted and not stored twice.

    The log files are the queue: nothing is lost while the collector is away, and nothing is deleted here.
    """
    if (len(jobs) > 0) + all_jobs + (events is not None) != 1:
        raise click.UsageError("name jobs, or give --all, or --events DIR")
    telemetry = resolve_telemetry(os.environ, site_file(config))
    url = endpoint or telemetry.endpoint
    if url in ("", "file:"):
        raise UsageError(
            "no collector is named", expected="--endpoint URL, $ETT_TELEMETRY_ENDPOINT or telemetry.endpoint"
        )
    spools = _Spools(jobs, all_jobs, events, url)
    agent = Agent(
        Endpoint(url, lambda: read_token(token_file, os.environ)),
        spools.open_each,
        AgentConfig(
            interval_s=interval or telemetry.flush_interval_s,
            shutdown_flush_s=telemetry.shutdown_flush_s if shutdown_flush is None else shutdown_flush,
            give_up_after_s=None if watch else give_up_after,
        ),
    )
    try:
        is_complete = _watch(agent, until_eof) if watch else agent.ship()
    finally:
        _print(agent.counts, as_json)
        for path in spools.with_rejects:
            click.echo(f"rejected lines are listed in {path}", err=True)
    if not is_complete:
        raise Unreachable(f"{url} did not take everything in time", do="`ett sync` sends the rest later")


def _watch(agent: Agent, until_eof: bool) -> bool:
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: agent.request_stop())
    if until_eof:
        threading.Thread(target=_stop_at_eof, args=(agent.request_stop,), daemon=True).start()
    return agent.run()


def _stop_at_eof(request_stop: Callable[[], None]) -> None:
    """Whoever started us holds the other end; when it ends, however that happens, this returns."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    request_stop()


class _Spools:
    """The spools that were asked for, one open at a time; those without anything new are passed over."""

    def __init__(self, jobs: tuple[str, ...], all_jobs: bool, events: Path | None, url: str) -> None:
        self._home, self._url, self._events, self._all = ett_home(os.environ), url, events, all_jobs
        self._named = [find_job(self._home, name) for name in jobs]
        self._seen: dict[Path, tuple[tuple[str, int], ...]] = {}
        self._held: set[str] = set()
        self.with_rejects: set[Path] = set()

    def open_each(self) -> Iterator[Spool]:
        for job, events, folder in self._wanted():
            sizes = _sizes(events)
            if self._seen.get(events) == sizes:
                continue
            try:
                spool = Spool(job, events, folder, self._url)
            except Conflict as err:
                if not self._all:
                    raise
                if job not in self._held:
                    click.echo(f"ett sync: {err.fact}; left to it", err=True)
                self._held.add(job)
                continue
            try:
                yield spool
                if spool.is_drained:
                    self._seen[events] = sizes
                if spool.counts.rejected or spool.counts.unsendable:
                    self.with_rejects.add(spool.rejected_file)
            finally:
                spool.close()

    def _wanted(self) -> Iterator[tuple[str, Path, Path]]:
        if self._events is not None:
            root = self._events / "events" if (self._events / "events").is_dir() else self._events
            key = sha256(str(root.absolute()).encode()).hexdigest()[:12]
            yield _job_of(root), root, self._home / "sync" / key
            return
        named = self._named
        if self._all and (self._home / "jobs").is_dir():
            named = [JobFolder(path) for path in sorted((self._home / "jobs").iterdir())]
        for folder in named:
            if folder.events.is_dir():
                yield folder.name, folder.events, folder.path / "sync"


def _sizes(events: Path) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((str(path), path.stat().st_size) for path in events.rglob("*.jsonl")))


def _job_of(events: Path) -> str:
    """The job that the first whole record names."""
    for path in sorted(events.rglob("*.jsonl")):
        with path.open("rb") as file:
            head = file.read(1 << 16)
        for record in parse_file(path.name, head).records:
            if JOB_NAME.fullmatch(record.job):
                return record.job
    raise NotFound(f"no record under {events} names a job", expected="a folder with event files")


def _print(counts: Counts, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"schema": "ett.sync/v1", "data": asdict(counts), "warnings": []}))
        return
    more = f", {counts.unsendable} unsendable" if counts.unsendable else ""
    click.echo(
        f"sent {counts.sent} lines: {counts.accepted} accepted, {counts.duplicate} duplicate, "
        f"{counts.rejected} rejected{more}"
    )
