"""`ett export`: jobs as JSONL, as a trace for Perfetto, or as a Parquet table."""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import click

from ett.accounting import JobAccount
from ett.errors import NotFound
from ett.job_source import JobLog, store_option
from ett.job_window import AccountingPolicy
from ett.log_source import log_path
from ett.os_failure import os_failure
from ett.store.export_jsonl import export_job

FORMATS = ("jsonl", "trace", "parquet")
MAX_TRACE_BYTES = 50_000_000
_UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Bytes(click.ParamType[int]):
    """50MB, 64MiB, 1000000 -> bytes."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,12}) ?([kMG]i?B|KiB|)", value, re.ASCII)
        if found is None or found[2] not in _UNITS:
            self.fail(f"{value!r} is no size such as 50MB or 64MiB", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--events", type=click.Path(path_type=Path), metavar="DIR", help="A folder with an event log, not jobs.")
@store_option
@click.option("--format", "kind", type=click.Choice(FORMATS), default="jsonl", show_default=True, help="What to write.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    required=True,
    metavar="FILE",
    help="'-': standard output; .gz.",
)
@click.option(
    "--max-bytes", type=Bytes(), default=MAX_TRACE_BYTES, metavar="SIZE", help="Of a trace, before .gz; default: 50MB."
)
def command(
    *, jobs: tuple[str, ...], events: Path | None, store: str | None, kind: str, output: Path, max_bytes: int
) -> None:
    """Write JOBs to FILE: every record (jsonl, parquet), or the account as a trace that ui.perfetto.dev shows (trace).

    A jsonl file loses nothing: `ett ingest --events FILE` and `ett report --events FILE` read it.
    """
    logs = [log_path(job, None, store) for job in jobs]
    if events is not None or not logs:
        logs.append(log_path(None, events, store))
    if kind == "jsonl":
        num, what = _write_lines(output, (line for log in logs for line in _job_lines(log))), "lines"
    elif kind == "trace":
        num, what = write_trace(output, [_account(log) for log in logs], max_bytes), "events"
    else:
        from ett.store.export_parquet import write_parquet

        with written(output) as file:
            num, what = write_parquet(file, ((log.job, log.files()) for log in logs)), "records"
    click.echo(f"{output}: {num} {what} of {', '.join(log.job or str(log) for log in logs)}", err=str(output) == "-")


def write_trace(output: Path, accounts: Sequence[JobAccount], max_bytes: int) -> int:
    """Write the jobs' accounts as a trace, say what was merged, and return its number of events."""
    from ett.store.export_trace import trace_of

    trace = trace_of(accounts, max_bytes)
    _write_lines(output, trace.lines)
    for note in trace.notes:
        click.echo(f"warning: {note}", err=True)
    return trace.num_events


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A file that is there only when it is whole; gzipped where its name ends so; "-" is standard output.

    Raises: NotFound: there is no such folder. EttError: it cannot be written.
    """
    if str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = path.resolve()  # a link stays a link
    if not target.parent.is_dir():
        raise NotFound(f"folder {path.parent} does not exist", do="make it, or choose another place for the file")
    if target.exists() and not target.is_file():  # a device or a pipe: a rename would put a plain file in its place
        with _failure_names(path), target.open("wb") as file, _packed(file, path) as packed:
            yield packed
        return
    fresh = target.with_name(f"{target.name}.{os.getpid()}.new")
    try:
        with _failure_names(path), fresh.open("wb") as file, _packed(file, path) as packed:
            yield packed
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


@contextmanager
def _failure_names(path: Path) -> Iterator[None]:
    """A failure to write names the file that was asked for; the kernel names it for opening alone."""
    try:
        yield
    except OSError as err:
        raise os_failure(err, path, elsewhere="another file") from err


@contextmanager
def _packed(file: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    """What packs into `file` where the name of `path` asks for it."""
    if path.suffix != ".gz":
        yield file
        return
    with gzip.GzipFile("", "wb", fileobj=file, compresslevel=6, mtime=0) as packed:
        with io.BufferedWriter(cast(io.RawIOBase, packed), 1 << 20) as buffered:
            yield buffered


def _account(log: JobLog) -> JobAccount:
    account = log.account(None, AccountingPolicy())
    if account is None:
        raise NotFound(f"{log} has no records", do="wait for its first record")
    return account


def _job_lines(log: JobLog) -> Iterator[bytes]:
    launch, recipe = log.launch_and_recipe()
    name = log.job or (log.folder.name if log.folder is not None else "")
    return export_job(name, log.files(), launch, recipe)


def _write_lines(path: Path, lines: Iterable[bytes]) -> int:
    num = 0
    with written(path) as file:
        for line in lines:
            file.write(line)
            num += 1
    return num
