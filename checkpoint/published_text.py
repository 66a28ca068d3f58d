"""A publication as people and other programs see it."""

from __future__ import annotations

from typing import Any

import click

from ett.checkpoint.cli_output import print_json
from ett.checkpoint.publication import Publication
from ett.checkpoint.publish import Published
from ett.checkpoint.store import Store
from ett.store_uri import shown_uri


def publication_facts(publication: Publication) -> dict[str, Any]:
    lineage = publication.lineage
    return {
        "number": publication.number,
        "key": publication.key,
        "kind": publication.kind,
        "base": publication.base,
        "created": publication.created,
        "job": lineage.job,
        "step": lineage.step,
        "seq": lineage.seq,
        "cursor": lineage.cursor,
        "ckpt_uuid": lineage.ckpt_uuid,
        "rows": sum(table.num_rows for table in publication.tables),
        "pruned": sum(table.num_pruned for table in publication.tables),
        "files": len(publication.stored_files()),
        "bytes": publication.num_bytes,
        "weight_bits": max((table.weight_bits for table in publication.tables), default=0),
        "tables": [table.name for table in publication.tables],
    }


def show_published(done: Published, to: Store, as_json: bool) -> None:
    facts = {
        "to": shown_uri(to.uri),
        **publication_facts(done.publication),
        "was_done": done.was_done,
        "files_reused": done.num_reused,
        "files_written": done.num_written,
        "fallback_from": done.fallback_from,
    }
    warnings = [f"all rows were published: {reason}" for reason in done.reasons]
    if done.fallback_from is not None:
        warnings.append(f"commit {done.fallback_from}, the newest, does not verify: commit {facts['seq']} is published")
    if as_json:
        print_json("publish", facts, warnings)
        return
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    how = "was there already" if done.was_done else f"{done.num_written} files written, {done.num_reused} were there"
    click.echo(
        f"{facts['to']}: publication {facts['number']}, commit {facts['seq']} of step {facts['step']}, "
        f"{facts['rows']:,} rows, {facts['bytes']:,} bytes in {facts['files']} files; {how}"
    )
