"""What the commands of `ett checkpoint` share: their target, and how they print."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import click

from ett.checkpoint.store import Store
from ett.checkpoint.target import open_target
from ett.job_folder import ett_home

target_argument = click.argument("target", metavar="JOB|URI")
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def open_store_of(target: str) -> Store:
    return open_target(target, ett_home(os.environ))


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
