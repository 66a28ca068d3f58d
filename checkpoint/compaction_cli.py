"""`ett checkpoint compact`: the newest checkpoint in new files, so that a restore reads no chain."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import click

from ett.checkpoint.cli_output import as_json_option, open_store_of, print_json, target_argument
from ett.checkpoint.commit import Commit
from ett.checkpoint.compaction import Compaction, compact, plan_compaction
from ett.checkpoint.progress import progress
from ett.checkpoint.target import job_dir_of
from ett.errors import UsageError
from ett.job_folder import JobFolder, Lease, ett_home


@click.command("compact", short_help="Rewrite the newest commit without its chain.")
@target_argument
@click.option("--step", type=int, help="Refuse where the newest commit is of another step.")
@click.option("--dry-run", is_flag=True, help="Only say what would be read and written.")
@click.option("--stopped", is_flag=True, help="The job does not run: needed where that cannot be seen from this host.")
@as_json_option
def compact_command(target: str, *, step: int | None, dry_run: bool, stopped: bool, as_json: bool) -> None:
    """Write the newest commit's rows as new base files and commit them as a `rewrite` of the same step.

    Only what is live is written, and read back; it is committed if its digests are the chain's. The dense state's
    files are listed again, not copied. The old chain stays until `gc` or the job's own retention.

    The job must not run: a process that still saves there stops at its next save (ETT-L008). Exit code 7: the job
    runs, or somebody has committed meanwhile; nothing has changed then.
    """
    store = open_store_of(target)
    if not dry_run:
        _refuse_running(target)
    plan = plan_compaction(store, step)
    rewrite: Commit | None = None
    if plan.is_needed and not dry_run:
        with _stopped_jobs(target, plan, stopped):
            rewrite = compact(store, plan, watch=progress(as_json))
    if as_json:
        print_json("compact", {"uri": store.uri, **_facts(plan, rewrite)}, [])
        return
    click.echo(_text(plan, rewrite))


def _refuse_running(target: str) -> None:
    """Raise Conflict where the named job runs: before its checkpoints are said to be unfit for something else."""
    folder = job_dir_of(target, ett_home(os.environ))
    if folder and folder.is_dir():
        Lease(JobFolder(folder)).release()


@contextmanager
def _stopped_jobs(target: str, plan: Compaction, is_said: bool) -> Iterator[None]:
    """Hold the leases of the jobs concerned, so that none runs and none starts. Raises: Conflict: one runs."""
    home = ett_home(os.environ)
    named = job_dir_of(target, home)
    folders = {named} if named else set()
    if plan.newest.job:
        folders.add(home / "jobs" / plan.newest.job)
    with ExitStack() as stack:
        for folder in sorted(folders):
            if folder.is_dir():
                stack.callback(Lease(JobFolder(folder)).release)
            elif not is_said:
                raise UsageError(
                    f"job {folder.name}, which made the newest commit, is not known on this host: "
                    "whether it runs cannot be seen",
                    expected="a job that has ended: one that runs would be stopped at its next save",
                    do="run this on the job's host, or add --stopped",
                )
        yield


def _facts(plan: Compaction, rewrite: Commit | None) -> dict[str, Any]:
    source = plan.source
    return {
        "step": source.step,
        "seq": source.seq,
        "chain_len": source.chain_len,
        "rows": sum(table.num_rows for table in source.tables),
        "files": sum(len(table.files) for table in source.tables),
        "bytes": sum(table.num_bytes for table in source.tables),
        "live_bytes": plan.live_bytes,
        "is_needed": plan.is_needed,
        "rewrite": None
        if rewrite is None
        else {
            "seq": rewrite.seq,
            "files": sum(len(table.files) for table in rewrite.tables),
            "bytes": sum(table.num_bytes for table in rewrite.tables),
            "digest": rewrite.digest,
        },
    }


def _text(plan: Compaction, rewrite: Commit | None) -> str:
    facts = _facts(plan, rewrite)
    chain = (
        f"commit {facts['seq']} of step {facts['step']}: {facts['rows']:,} rows in {facts['files']} files of "
        f"{facts['bytes']:,} bytes, a base and {facts['chain_len']} later commits"
    )
    if not plan.is_needed:
        return f"{chain}\nit is a base already: nothing to rewrite"
    made = facts["rewrite"]
    if made is None:
        return f"{chain}\nwould be rewritten as about {facts['live_bytes']:,} bytes"
    return f"{chain}\nrewritten as commit {made['seq']}: {made['files']} files of {made['bytes']:,} bytes, read back"
