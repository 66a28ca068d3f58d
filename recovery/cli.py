"""`ett restore`: show what would be loaded, ask, launch the job again from there; or copy a checkpoint out."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from ett.checkpoint.export import export_commit
from ett.checkpoint.progress import progress
from ett.checkpoint.store import open_store
from ett.checkpoint.target import job_uri
from ett.errors import UsageError
from ett.job_folder import JobFolder, Lease, ett_home, find_job
from ett.job_history import read_history
from ett.launch import run_job
from ett.launch_plan import read_plan
from ett.recovery.restore_plan import RestorePlan, plan_restore
from ett.report_text import count

SCHEMA = "ett.restore/v1"


@click.command()
@click.argument("job")
@click.option("--step", type=click.IntRange(min=0), help="The checkpoint of this step; else the newest whole one.")
@click.option(
    "--to", type=click.Path(path_type=Path), metavar="DIR", help="Only copy the checkpoint into this new folder."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON; launches only with --yes.")
def command(job: str, step: int | None, to: Path | None, yes: bool, as_json: bool) -> int:
    """Show what a restore of JOB would load, then launch the job again from there.

    With --step N, the checkpoints of later steps are abandoned, and the next save of the job deletes them; the plan
    lists them before you are asked. `--step N --to DIR` copies one out first.

    The plan is made from records and sizes. Bytes are verified as the job loads them, and a damaged commit is passed
    over then; `ett checkpoint verify JOB` reads them all before.
    """
    folder = find_job(ett_home(os.environ), job)
    if to is not None:
        _export(folder, step, to, as_json)
        return 0
    plan = plan_restore(folder, step)
    kept = read_plan(folder)
    Lease(folder).release()  # a running job is found out now, not after the question
    is_complete = read_history(folder.events).is_complete
    warnings = [*plan.warnings, *([_complete(plan, step)] if is_complete else [])]
    launch = shlex.join(["ett", "launch", "--job", folder.name, *(["--resume", str(step)] if step is not None else [])])
    if as_json:
        facts = {"launch": launch, "program": kept.program_text(), "nproc": kept.nproc, "cwd": kept.cwd}
        _print_json(asdict(plan) | facts, warnings)
    else:
        runs = f"{kept.program_text()}   ({count(kept.nproc, 'rank')}, in {kept.cwd})"
        _print_plan([*plan.rows(), ("launch", launch), ("which runs", runs)], warnings)
    if (as_json and not yes) or (is_complete and step is None):
        return 0
    if not yes and not _is_wanted(folder):
        click.echo("nothing was done")
        return 0
    return run_job(replace(kept, resume="auto" if step is None else str(step)), folder, None)


def _complete(plan: RestorePlan, step: int | None) -> str:
    if step is None:
        return (
            f"job {plan.job} is complete: nothing is left to train and nothing is launched; "
            f"`ett restore {plan.job} --step N` goes back to an earlier checkpoint"
        )
    return f"job {plan.job} is complete" + (
        f", and step {plan.step} is its newest checkpoint: no saved step is trained again"
        if plan.step >= plan.newest_step
        else f"; {count(plan.newest_step - plan.step, 'step')} of it would be trained again"
    )


def _print_plan(rows: list[tuple[str, str]], warnings: list[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    for label, text in rows:
        click.echo(f"{label:<11} {text}")


def _is_wanted(folder: JobFolder) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            f"restoring {folder.name} starts it again, and there is no terminal to ask on",
            do="add --yes, or --json to see the plan only",
        )
    return click.confirm(f"launch {folder.name} again from there?")


def _export(folder: JobFolder, step: int | None, to: Path, as_json: bool) -> None:
    exported = export_commit(open_store(job_uri(folder.path)), step, to, progress(as_json))
    if as_json:
        _print_json({**asdict(exported), "path": str(exported.path)}, [])
        return
    click.echo(
        f"{exported.path}: commit {exported.seq} of step {exported.step}, {exported.num_bytes:,} bytes in "
        f"{exported.num_files} files, every byte verified"
    )


def _print_json(data: dict[str, Any], warnings: list[str]) -> None:
    click.echo(json.dumps({"schema": SCHEMA, "data": data, "warnings": warnings}, indent=1))
