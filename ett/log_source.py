"""What `ett report` and `ett explain` have in common on the command line: which log, and as of when."""

from __future__ import annotations

import os
import time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import click

from ett.accounting import JobAccount, account
from ett.event_reader import read_folder
from ett.event_schema import NS
from ett.job_folder import ett_home, find_job
from ett.job_window import AccountingPolicy


class UnixSeconds(click.ParamType[int]):
    """Seconds since the Unix epoch, decimals allowed -> integer nanoseconds, exactly."""

    name = "unix_s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return int((Decimal(value) * NS).to_integral_value())
        except (InvalidOperation, ValueError, OverflowError):
            self.fail(f"{value!r} is not a number of seconds since the Unix epoch", param, ctx)


def log_path(job: str | None, events: Path | None) -> Path:
    """Return the folder whose log was asked for.

    Raises:
        click.UsageError: not exactly one of the two was given.
        NotFound: no such job, or several.
    """
    if (job is None) == (events is None):
        raise click.UsageError("name a job, or a folder with --events DIR; `ett ls` lists the jobs")
    return events if events is not None else find_job(ett_home(os.environ), str(job)).path


def load_account(path: Path, as_of_ns: int | None, policy: AccountingPolicy) -> JobAccount | None:
    """Return the account of the log under `path`, as of now where no instant is given; None for an empty log.

    Without an instant nothing is cut: a record that lies ahead of this machine's clock is still there.
    """
    now_ns = time.time_ns() if as_of_ns is None else as_of_ns
    return account(read_folder(path), as_of_ns=now_ns, cut_at_as_of=as_of_ns is not None, policy=policy)
