"""`ett publish`: a serving artefact of a committed checkpoint, without the job or a GPU; and which there are."""

from __future__ import annotations

import os

import click

from ett.checkpoint.cli_output import as_json_option, cell, open_store_of, print_json, print_table, target_argument
from ett.checkpoint.progress import progress
from ett.checkpoint.publication_log import PublicationLog
from ett.checkpoint.publish import (
    PublishPlan,
    named_commit,
    plan_publish,
    problems_of,
    publish,
    publish_newest_whole,
    unfinished,
)
from ett.checkpoint.publish_job_cli import job_command
from ett.checkpoint.publish_settings import Pruning, PublishSettings
from ett.checkpoint.published_job import PublishedJob
from ett.checkpoint.published_text import publication_facts, show_published
from ett.checkpoint.store import Store, open_store
from ett.checkpoint.target import job_dir_of
from ett.errors import CorruptState, UsageError
from ett.job_folder import ett_home
from ett.store_uri import shown_uri

_COLUMNS = ("number", "kind", "base", "job", "step", "seq", "rows", "bytes", "weight_bits", "created", "key")


class _PublishGroup(click.Group):
    """`ett publish JOB` is `ett publish commit JOB`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["commit", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_PublishGroup, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Make a serving artefact of a committed checkpoint, without the job and without a GPU.

    `ett publish JOB|URI --to DIR|URL` is short for `ett publish commit …`; a job named status is reached by that.
    """


@command.command("commit", short_help="Publish one commit of JOB|URI.")
@target_argument
@click.option("--to", metavar="DIR|URL", required=True, help="A folder of publications, of any store; made if need be.")
@click.option("--step", type=int, help="The commit of this step; else the newest that verifies.")
@click.option("--commit", "seq", type=int, help="The commit of this number.")
@click.option("--tables", metavar="NAME,…", default="", help="Only these tables; else all.")
@click.option("--quantise", type=click.Choice(["8", "4"]), help="Weights in so many bits, row by row; lossy.")
@click.option("--min-updates", type=click.IntRange(min=1), help="Leave out rows that were updated less often.")
@click.option("--max-age", type=click.IntRange(min=1), help="Leave out rows not updated in the table's last N updates.")
@click.option("--delta", is_flag=True, help="Only what changed since the last publication there, where that is known.")
@click.option("--plan", "is_plan", is_flag=True, help="Only say what would be written.")
@click.option("--verify", is_flag=True, help="Read what is published already, and make anew what is damaged.")
@as_json_option
def commit_command(
    target: str,
    *,
    to: str,
    step: int | None,
    seq: int | None,
    tables: str,
    quantise: str | None,
    min_updates: int | None,
    max_age: int | None,
    delta: bool,
    is_plan: bool,
    verify: bool,
    as_json: bool,
) -> None:
    """Write the tables' rows without optimizer states, the model's dense tensors and a manifest under --to.

    Every byte is verified on the way, and the commit is held meanwhile. The artefact exists when its manifest does,
    which is written last. Run again after whatever failed: files that are whole are not made again, and what is
    published already is only named.

    Exit code 0: published, now or before. 3: the settings do not fit a table. 4: there is no such table, step or
    commit. 7: another version of ett publishes the same there. 8: the named commit, or what is published, is damaged.
    10, 122: there is no checkpoint, or none that verifies.
    """
    if step is not None and seq is not None:
        raise UsageError("--step and --commit name two commits", expected="one of the two")
    settings = PublishSettings(
        tables=tuple(name for name in tables.split(",") if name),
        bits=int(quantise or 0),
        pruning=Pruning(min_updates=min_updates or 0, max_age_updates=max_age or 0),
    )
    store, place, watch = open_store_of(target), open_store(to, "--to"), progress(as_json)
    if is_plan:
        _show_plan(plan_publish(store, named_commit(store, step, seq), place, settings, delta=delta), place, as_json)
    elif step is None and seq is None:
        show_published(
            publish_newest_whole(store, place, settings, delta=delta, verify=verify, watch=watch), place, as_json
        )
    else:
        commit = named_commit(store, step, seq)
        show_published(publish(store, commit, place, settings, delta=delta, verify=verify, watch=watch), place, as_json)


@command.command("status", short_help="List the publications of a folder, and what was begun and not ended.")
@click.argument("place", metavar="DIR|URL|JOB")
@click.option("--verify", is_flag=True, help="Read every byte of every artefact.")
@as_json_option
def status_command(place: str, *, verify: bool, as_json: bool) -> None:
    """List the publications under DIR|URL, or where JOB's recipe has them, newest first: the first is the one to serve.

    Exit code 8: a manifest or a file is damaged or missing.
    """
    job_dir = job_dir_of(place, ett_home(os.environ))
    store = open_store(place, "DIR|URL") if job_dir is None else PublishedJob.of(job_dir).open()
    publications, damaged = PublicationLog(store).read_all()
    problems = [err.fact for err in damaged.values()]
    problems += [problem for publication in publications for problem in problems_of(store, publication, verify=verify)]
    begun = unfinished(store)
    rows = [publication_facts(publication) for publication in publications]
    if as_json:
        print_json("publish_status", {"uri": shown_uri(store.uri), "publications": rows, "unfinished": begun}, problems)
    elif rows:
        print_table(_COLUMNS, [[cell(row[column]) for column in _COLUMNS] for row in rows])
    else:
        click.echo(f"nothing is published under {shown_uri(store.uri)}")
    for folder in () if as_json else begun:
        click.echo(f"not ended: {folder['key']}, {folder['files']} files of {folder['bytes']:,} bytes: publish again")
    if problems:
        raise CorruptState(
            f"{len(problems)} files are damaged; first: {problems[0]}",
            do="publish the commit again, with --verify: what is damaged is made anew; meanwhile serve an older one",
        )


def _show_plan(plan: PublishPlan, to: Store, as_json: bool) -> None:
    tables = [table.spec.name for table in plan.settings.chosen(plan.commit)]
    facts = {
        "to": shown_uri(to.uri),
        "key": plan.key,
        "kind": plan.kind,
        "base": None if plan.base is None else plan.base.newest.number,
        "reasons": list(plan.reasons),
        "step": plan.commit.step,
        "seq": plan.commit.seq,
        "tables": tables,
        "bytes": plan.num_bytes,
        "parts_there": plan.num_parts,
        "done": None if plan.done is None else plan.done.number,
    }
    if as_json:
        print_json("publish_plan", facts, [])
        return
    click.echo(
        f"commit {plan.commit.seq} of step {plan.commit.step}: {', '.join(tables)}, about {plan.num_bytes:,} "
        f"bytes of rows and ids, and the dense tensors, to {facts['to']}"
    )
    if plan.base is not None:
        click.echo(f"of tables that have no new base since, only what changed after publication {facts['base']}")
    for reason in plan.reasons:
        click.echo(f"all rows: {reason}")
    if plan.done is not None:
        click.echo(f"it is there already, as publication {plan.done.number}")
    elif plan.num_parts:
        click.echo(f"{plan.num_parts} files are there, left by an earlier attempt")


command.add_command(job_command)
