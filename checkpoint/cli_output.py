"""What the commands of `ett checkpoint` share: their target, and how they print."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import click

from ett.checkpoint.save_records import SaveRecord, read_saves
from ett.checkpoint.store import Store
from ett.checkpoint.target import job_dir_of, open_target
from ett.errors import EttError
from ett.job_folder import ett_home

target_argument = click.argument("target", metavar="JOB|URI")
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def open_store_of(target: str) -> Store:
    return open_target(target, ett_home(os.environ))


def saves_of(target: str) -> tuple[dict[str, SaveRecord], list[str]]:
    """Return what the log of the job that `target` names says of its saves, and a warning where it cannot be read."""
    job_dir = job_dir_of(target, ett_home(os.environ))
    if job_dir is None:
        return {}, []
    try:
        return read_saves(job_dir / "events"), []
    except (EttError, OSError) as err:
        return {}, [f"what the job's log says of its saves is not shown: {err}"]


def print_json(verb: str, data: dict[str, Any], warnings: list[str]) -> None:
    envelope = {"schema": f"ett.checkpoint.{verb}/v1", "data": data, "warnings": warnings}
    click.echo(json.dumps(envelope, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max([len(title), *(len(row[i]) for row in rows)]) for i, title in enumerate(columns)]
    for row in [columns, *rows]:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return "-" if value is None else str(value)  # digits alone: a step is pasted into the next command
