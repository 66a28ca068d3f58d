"""`ett checkpoint export`: one commit, verified, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import click

from ett.checkpoint.cli_output import as_json_option, open_store_of, print_json, target_argument
from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.export import export_commit
from ett.checkpoint.progress import progress
from ett.checkpoint.safetensors_export import export_safetensors


@click.command("export", short_help="Write one commit as safetensors, or as a checkpoint folder.")
@target_argument
@click.option("--to", type=click.Path(path_type=Path), metavar="DIR", required=True, help="A new folder.")
@click.option("--step", type=int, help="The commit of this step; else the newest.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "checkpoint"]),
    default="safetensors",
    show_default=True,
    help="Tensors for other programs, or a checkpoint that a job can go on from.",
)
@as_json_option
def export_command(target: str, *, to: Path, step: int | None, form: str, as_json: bool) -> None:
    """Write one commit of JOB|URI to DIR, every byte verified on the way; DIR appears when it is whole.

    safetensors: of each table `<table>`, `<table>.ids` and `<table>.<state>`, rows in one order that is not that of
    the ids; the dense state in dense.safetensors; an index of all tensors. checkpoint: the commit's own files.
    """
    store, watch = open_store_of(target), progress(as_json)
    if form == "checkpoint":
        copied = export_commit(store, step, to, watch)
        facts = {"step": copied.step, "seq": copied.seq, "bytes": copied.num_bytes, "files": copied.num_files}
        warnings: list[str] = []
    else:
        commit, warnings = find_commit(store, step)
        with watch(store, "exporting", commit.num_bytes) as reading:
            made = export_safetensors(reading, commit, to)
        num_files = len({*made.files.values()}) + 1
        facts = {"step": commit.step, "seq": commit.seq, "bytes": made.num_bytes, "files": num_files}
    if as_json:
        print_json("export", {"uri": store.uri, "path": str(to), "format": form, **facts}, warnings)
        return
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(
        f"{to}: commit {facts['seq']} of step {facts['step']}, {facts['bytes']:,} bytes in {facts['files']} files, "
        "every byte verified"
    )
