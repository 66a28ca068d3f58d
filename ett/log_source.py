"""What `ett report` and `ett explain` have in common on the command line: which log, and as of when."""

from __future__ import annotations

import os
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import click

from ett.accounting import JobAccount
from ett.errors import NotFound
from ett.event_reader import event_files
from ett.event_schema import NS
from ett.job_folder import ett_home, find_job
from ett.job_source import JobLog, opened, store_url
from ett.job_window import AccountingPolicy

_END_OF_DATES_S = 253_402_300_800  # the year 10000; later instants have no date to be shown as


class UnixSeconds(click.ParamType[int]):
    """Seconds since the Unix epoch, decimals allowed -> integer nanoseconds, exactly."""

    name = "unix_s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            seconds = Decimal(value)
            if not abs(seconds) < _END_OF_DATES_S:
                raise ValueError
            return int((seconds * NS).to_integral_value())
        except (InvalidOperation, ValueError, OverflowError):
            self.fail(f"{value!r} is not a number of seconds since the Unix epoch", param, ctx)


def log_path(job: str | None, events: Path | None, store: str | None = None) -> JobLog:
    """Return the log that was asked for: a folder's, else a job's by its name or the only prefix of one.

    Raises:
        click.UsageError: not exactly one of job and events was given.
        NotFound: no such job, or several; or a folder that holds no event log.
    """
    if (job is None) == (events is None):
        raise click.UsageError("name a job, or a folder with --events DIR; `ett ls` lists the jobs")
    if events is not None:
        _check_is_log(events)
        return JobLog(job="", folder=events)
    url = store_url(store)
    if url is None:
        folder = find_job(ett_home(os.environ), str(job))
        return JobLog(job=folder.name, folder=folder.path)
    with opened(url) as found:
        return JobLog(job=found.find_job(str(job)), store=url)


def _check_is_log(path: Path) -> None:
    """A folder of other things was named by mistake; an empty one is a log that has not begun."""
    if not path.is_dir() or (path / "events").is_dir() or event_files(path):
        return
    if any(entry.is_file() for entry in path.iterdir()):
        raise NotFound(f"no event log under {path}", expected="a folder with *.jsonl files, or one that holds events/")


def load_account(log: JobLog, as_of_ns: int | None, policy: AccountingPolicy) -> JobAccount | None:
    """Return the account of the log, as of now where no instant is given; None for an empty log."""
    return log.account(as_of_ns, policy)
