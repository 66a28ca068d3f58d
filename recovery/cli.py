"""`ett restore`: show what would be loaded, ask, launch the job again from there; or copy a checkpoint out."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from ett.checkpoint.export import export_commit
from ett.checkpoint.target import job_uri
from ett.errors import UsageError
from ett.job_folder import JobFolder, Lease, ett_home, find_job
from ett.launch import run_job
from ett.launch_plan import read_plan
from ett.recovery.restore_plan import plan_restore

SCHEMA = "ett.restore/v1"


@click.command()
@click.argument("job")
@click.option("--step", type=click.IntRange(min=0), help="The checkpoint of this step; else the newest that verifies.")
@click.option(
    "--to", type=click.Path(path_type=Path), metavar="DIR", help="Only copy the checkpoint into this new folder."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON; launches only with --yes.")
def command(job: str, step: int | None, to: Path | None, yes: bool, as_json: bool) -> int:
    """Show what a restore of JOB would load, then launch the job again from there.

    With --step, later checkpoints stay where they are and are no longer resumed from.
    """
    folder = find_job(ett_home(os.environ), job)
    if to is not None:
        _export(folder, step, to, as_json)
        return 0
    plan = plan_restore(folder, step)
    kept = read_plan(folder)
    Lease(folder).release()  # a running job is found out now, not after the question
    program = " ".join(["ett launch", *(["--"] if kept.kind == "command" else []), kept.target, *kept.args])
    if as_json:
        _print_json({**asdict(plan), "launch": program}, list(plan.warnings))
        if not yes:
            return 0
    else:
        for warning in plan.warnings:
            click.echo(f"warning: {warning}", err=True)
        for label, text in [*plan.rows(), ("launch", f"{program}, {kept.nproc} ranks, in {kept.cwd}")]:
            click.echo(f"{label:<11} {text}")
    if not yes:
        _ask(folder)
    return run_job(replace(kept, resume="auto" if step is None else str(step)), folder, None)


def _ask(folder: JobFolder) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            f"restoring {folder.name} starts it again, and there is no terminal to ask on",
            do="add --yes, or --json to see the plan only",
        )
    click.confirm(f"launch {folder.name} again from there?", abort=True)


def _export(folder: JobFolder, step: int | None, to: Path, as_json: bool) -> None:
    exported = export_commit(job_uri(folder.path), step, to)
    if as_json:
        _print_json({**asdict(exported), "path": str(exported.path)}, [])
        return
    click.echo(
        f"{exported.path}: commit {exported.seq} of step {exported.step}, {exported.num_bytes:,} bytes in "
        f"{exported.num_files} files, every byte verified"
    )


def _print_json(data: dict[str, Any], warnings: list[str]) -> None:
    click.echo(json.dumps({"schema": SCHEMA, "data": data, "warnings": warnings}, indent=1))
