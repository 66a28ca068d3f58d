"""`ett restore`: show what would be loaded, ask, launch the job again from there; or copy a checkpoint out."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import click

from ett.checkpoint.progress import progress
from ett.checkpoint.store import Store
from ett.checkpoint.target import job_dir_of, job_store, open_target
from ett.checkpoint.verify import LEVELS, Level
from ett.errors import UsageError
from ett.job_folder import JobFolder, Lease, ett_home
from ett.job_history import read_history
from ett.launch import run_job
from ett.launch_plan import LaunchPlan, read_plan
from ett.recovery.restore_copy import Copy, Form
from ett.recovery.restore_plan import RestorePlan, plan_of_store, plan_restore
from ett.report_text import count

SCHEMA = "ett.restore/v1"
_FORMS = get_args(Form)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    step: int | None
    world_size: int | None
    level: Level
    is_plan_only: bool
    is_agreed: bool
    as_json: bool


@click.command()
@click.argument("target", metavar="JOB|URI")
@click.option("--plan", "is_plan_only", is_flag=True, help="Only show the plan.")
@click.option("--step", type=click.IntRange(min=0), help="The checkpoint of this step; else the newest whole one.")
@click.option("--world-size", type=click.IntRange(min=1), metavar="N", help="Ranks to launch; else as the job had.")
@click.option(
    "--verify",
    "level",
    type=click.Choice(LEVELS),
    default="size",
    show_default=True,
    help="How deep the checkpoint is checked before; what fails is passed over.",
)
@click.option(
    "--to", type=click.Path(path_type=Path), metavar="DIR", help="Only copy the checkpoint into this new folder."
)
@click.option(
    "--into",
    type=click.Choice(_FORMS),
    default="checkpoint",
    show_default=True,
    help="With --to: a folder that a job goes on from, or tensors for other programs.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON; launches only with --yes.")
def command(target: str, *, to: Path | None, into: Form, yes: bool, **asked: Any) -> int:
    """Show what a restore of JOB would load, then launch the job again from there.

    With --step N, the checkpoints of later steps are abandoned, and the next save of the job deletes them; the plan
    lists them before you are asked. `--step N --to DIR` copies one out first. A URI is a checkpoint folder: its plan
    is shown, or it is copied with --to.

    The plan is made from records and sizes, unless --verify says more. Bytes are verified as the job loads them, and a
    damaged commit is passed over then.
    """
    wanted = _Asked(is_agreed=yes, **asked)
    home = ett_home(os.environ)
    job_dir = job_dir_of(target, home)
    store = open_target(target, home) if job_dir is None else job_store(job_dir)
    if into != "checkpoint" and to is None:
        raise UsageError(f"--into {into} is given without --to", do="name a new folder: --to DIR")
    if to is not None and not wanted.is_plan_only:
        _copy(store, wanted, to, into)
    elif job_dir is None:
        _plan_of_folder(store, target, wanted)
    else:
        return _restore(JobFolder(job_dir), wanted)
    return 0


def _plan_of_folder(store: Store, target: str, asked: _Asked) -> None:
    if not asked.is_plan_only:
        raise UsageError(
            f"{target} is a checkpoint folder: no job is known that could be launched from it",
            do=f"`ett restore {shlex.quote(target)} --plan` shows the plan, --to DIR copies it out",
        )
    plan = plan_of_store(store, asked.step, asked.level, asked.world_size)
    _show(plan, [], {}, asked)


def _restore(folder: JobFolder, asked: _Asked) -> int:
    plan = plan_restore(folder, asked.step, asked.level, asked.world_size)
    if asked.is_plan_only and not folder.launch_file.exists():  # such as of a job that another host runs
        _show(plan, [], {}, asked)
        return 0
    kept = _launched(read_plan(folder), asked.world_size)
    plan = replace(plan, world_size=kept.nproc)
    if not asked.is_plan_only:
        Lease(folder).release()  # a running job is found out now, not after the question
    is_complete = read_history(folder.events).is_complete
    warnings = [_complete(plan, asked.step)] if is_complete else []
    command_line = ["ett", "launch", "--job", folder.name]
    command_line += ["--resume", str(asked.step)] if asked.step is not None else []
    command_line += ["--nproc", str(kept.nproc)] if asked.world_size is not None else []
    facts = {"launch": shlex.join(command_line), "program": kept.program_text(), "nproc": kept.nproc, "cwd": kept.cwd}
    runs = f"{kept.program_text()}   ({count(kept.nproc, 'rank')}, in {kept.cwd})"
    _show(plan, warnings, facts, asked, [("launch", facts["launch"]), ("which runs", runs)])
    is_done = asked.is_plan_only or (asked.as_json and not asked.is_agreed)
    if is_done or (is_complete and asked.step is None):
        return 0
    if not asked.is_agreed and not _is_wanted(folder):
        click.echo("nothing was done")
        return 0
    return run_job(replace(kept, resume="auto" if asked.step is None else str(asked.step)), folder, None)


def _launched(kept: LaunchPlan, world_size: int | None) -> LaunchPlan:
    if world_size is None:
        return kept
    return replace(kept, nproc=world_size, nproc_min=min(kept.nproc_min, world_size))


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


def _show(
    plan: RestorePlan,
    warnings: list[str],
    facts: dict[str, Any],
    asked: _Asked,
    more: list[tuple[str, Any]] | None = None,
) -> None:
    """Print the plan. Args: facts: beside it, in JSON. more: lines below it, for people."""
    warnings = [*plan.warnings, *warnings]
    if asked.as_json:
        _print_json(asdict(plan) | facts, warnings)
        return
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    for label, text in [*plan.rows(), *(more or [])]:
        click.echo(f"{label:<11} {text}")


def _is_wanted(folder: JobFolder) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            f"restoring {folder.name} starts it again, and there is no terminal to ask on",
            do="add --yes, or --plan to see the plan only",
        )
    return click.confirm(f"launch {folder.name} again from there?")


def _copy(store: Store, asked: _Asked, to: Path, form: Form) -> None:
    if asked.world_size is not None:
        raise UsageError("--world-size is given with --to", expected="a copy is of all ranks", do="leave it out")
    copied = Copy(to=to, form=form, step=asked.step, level=asked.level, watch=progress(asked.as_json)).of(store)
    passed_over = f"commit {copied.fallback_from}, the newest, does not verify and was passed over"
    warnings = [] if copied.fallback_from is None else [passed_over]
    if asked.as_json:
        _print_json({**asdict(copied), "path": str(copied.path)}, warnings)
        return
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(
        f"{copied.path}: commit {copied.seq} of step {copied.step}, {copied.num_bytes:,} bytes in "
        f"{copied.num_files} file{'' if copied.num_files == 1 else 's'}, every byte verified"
    )


def _print_json(data: dict[str, Any], warnings: list[str]) -> None:
    click.echo(json.dumps({"schema": SCHEMA, "data": data, "warnings": warnings}, indent=1))
