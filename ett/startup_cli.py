"""`--startup` of `ett report` and `ett timeline`: the starts of the job that was asked for, and nothing ignored."""

from __future__ import annotations

from collections.abc import Collection

import click
from click.core import ParameterSource

from ett.errors import NotFound, UsageError
from ett.job_source import JobLog
from ett.startup_log import StartedRank, read_starts


def check_startup_options(taken: Collection[str], usage: str) -> None:
    """Raises: UsageError: the command was given an option that would be ignored.

    Args: taken: the parameters that --startup goes with. usage: the command that has them all.
    """
    ctx = click.get_current_context()
    for param in ctx.command.params:
        given = ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
        if given and param.name not in (*taken, "startup"):
            raise UsageError(f"{param.opts[0]} with --startup", expected=usage)


def starts_of(log: JobLog) -> list[StartedRank]:
    """Return the starts of a job. Raises: NotFound: it has not begun to."""
    starts = read_starts(log.files())
    if not starts:
        raise NotFound(f"no rank of {log.job or log} has begun to start", do="`ett ls` shows what the job is doing")
    return starts
