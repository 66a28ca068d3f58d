"""`ett data generate`: write input in Criteo's format, or user histories in Parquet."""

from __future__ import annotations

from pathlib import Path

import click

from ett.errors import Conflict, NotFound, UsageError
from ett.trainer.data.config import DEFAULT_MAX_LENGTH


@click.group()
def group() -> None:
    """Generate training data in a public format, or user histories."""


@group.command()
@click.argument("format_name", metavar="FORMAT", type=click.Choice(["criteo", "sequence"]))
@click.option("--rows", type=click.IntRange(min=1), required=True, help="Rows to write.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file; a name ending in .gz is packed.")
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True, help="Another seed, other data."
)
@click.option("--gzip", "packed", is_flag=True, help="criteo: pack the file whatever its name.")
@click.option(
    "--max-length",
    type=click.IntRange(1, 500_000),
    default=DEFAULT_MAX_LENGTH,
    show_default=True,
    help="sequence: ids of the longest history.",
)
@click.option("--force", is_flag=True, help="Replace a file that exists.")
def generate(*, format_name: str, rows: int, out: Path, seed: int, packed: bool, max_length: int, force: bool) -> None:
    """Write a file of training data; the same rows and seed give the same data.

    criteo: lines of the Criteo challenge: label, 13 counts, 26 hex categories. The signal lies in the ids of nine
    columns. sequence: Parquet with label, user_id, item_id and history, a list of ids of very uneven length. The signal
    lies in how the item goes with the history.
    """
    from ett.trainer.data.generated_file import write_criteo, write_sequence

    if packed and format_name != "criteo":
        raise UsageError(f"--gzip with {format_name}", expected="--gzip with criteo only: Parquet is packed by itself")
    if out.is_dir():
        raise UsageError(f"{out} is a folder", expected="the name of a file", do=f"--out {out}/criteo.tsv")
    if out.exists() and not out.is_file():
        raise UsageError(f"{out} is a device or a pipe", expected="the name of a file")  # --force would replace it
    if out.exists() and not force:
        raise Conflict(f"{out} exists", do="choose another --out, or replace it with --force")
    if not out.parent.is_dir():
        raise NotFound(f"folder {out.parent} does not exist", do=f"mkdir -p {out.parent}")
    if format_name == "criteo":
        num_bytes, unit = write_criteo(out, rows, seed, packed=packed or out.suffix == ".gz"), "lines"
    else:
        num_bytes, unit = write_sequence(out, rows, seed, max_length=max_length), "rows"
    click.echo(f"{out}: {rows:,} {unit}, {num_bytes / 1e6:,.1f} MB, format {format_name}, seed {seed}")
