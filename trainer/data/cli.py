"""`ett data generate criteo`: write input in Criteo's format."""

from __future__ import annotations

from pathlib import Path

import click

from ett.errors import Conflict, NotFound, UsageError


@click.group()
def group() -> None:
    """Generate training data in a public format."""


@group.command()
@click.argument("format_name", metavar="FORMAT", type=click.Choice(["criteo"]))
@click.option("--rows", type=click.IntRange(min=1), required=True, help="Lines to write.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file; a name ending in .gz is packed.")
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True, help="Another seed, other data."
)
@click.option("--gzip", "packed", is_flag=True, help="Pack the file whatever its name.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
def generate(*, format_name: str, rows: int, out: Path, seed: int, packed: bool, force: bool) -> None:
    """Write a file in the format of the Criteo challenge: label, 13 counts, 26 hex categories.

    The same rows and seed give the same bytes. The signal lies in the ids of nine columns.
    """
    from ett.trainer.data.generated_file import write_criteo

    if out.is_dir():
        raise UsageError(f"{out} is a folder", expected="the name of a file", do=f"--out {out}/criteo.tsv")
    if out.exists() and not out.is_file():
        raise UsageError(f"{out} is a device or a pipe", expected="the name of a file")  # --force would replace it
    if out.exists() and not force:
        raise Conflict(f"{out} exists", do="choose another --out, or replace it with --force")
    if not out.parent.is_dir():
        raise NotFound(f"folder {out.parent} does not exist", do=f"mkdir -p {out.parent}")
    num_bytes = write_criteo(out, rows, seed, packed=packed or out.suffix == ".gz")
    click.echo(f"{out}: {rows:,} lines, {num_bytes / 1e6:,.1f} MB, format {format_name}, seed {seed}")
