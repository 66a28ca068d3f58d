"""`ett checkpoint pin|unpin|gc|diff`: what stays, what goes, and what differs."""

from __future__ import annotations

import re
from typing import Any

import click

from ett.checkpoint.cli_output import as_json_option, cell, open_store_of, print_json, print_table, target_argument
from ett.checkpoint.collection import Collection, Keep, collect, plan_collection
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.pins import pin, unpin
from ett.checkpoint.progress import progress
from ett.checkpoint.verify import with_digests
from ett.errors import UsageError

_SPAN = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(s|m|h|d)")
_SPAN_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(|KiB|MiB|GiB|TiB)")
_SIZE_POWER = ["", "KiB", "MiB", "GiB", "TiB"]


@click.command("pin")
@target_argument
@click.option("--step", type=int, help="The commit of this step; else the newest.")
@click.option("--name", help="Name of the pin; else step-N.")
@as_json_option
def pin_command(target: str, step: int | None, name: str | None, as_json: bool) -> None:
    """Keep a commit until it is unpinned, whatever checkpoint.keep_last says."""
    store = open_store_of(target)
    commit, warnings = find_commit(store, step)
    chosen = name or f"step-{commit.step}"
    pin(store, commit, chosen)
    if as_json:
        print_json("pin", {"uri": store.uri, "name": chosen, "seq": commit.seq, "step": commit.step}, warnings)
        return
    click.echo(f"pinned commit {commit.seq} of step {commit.step} as {chosen}")


@click.command("unpin")
@target_argument
@click.argument("name")
@as_json_option
def unpin_command(target: str, name: str, as_json: bool) -> None:
    """Give the commit of the pin NAME back to retention."""
    store = open_store_of(target)
    unpin(store, name)
    if as_json:
        print_json("unpin", {"uri": store.uri, "name": name}, [])
        return
    click.echo(f"unpinned {name}")


@click.command("gc")
@target_argument
@click.option("--keep-last", type=click.IntRange(min=1), default=3, show_default=True, help="Newest commits kept.")
@click.option("--keep-every", metavar="SPAN", help="Keep one commit of each such span besides, as 6h or 1d.")
@click.option("--max-bytes", metavar="SIZE", help="Drop the oldest of these until the rest fits, as 2TiB; two stay.")
@click.option("--yes", is_flag=True, help="Delete; without it, only say what would be.")
@as_json_option
def gc_command(
    target: str, *, keep_last: int, keep_every: str | None, max_bytes: str | None, yes: bool, as_json: bool
) -> None:
    """Delete commits that nothing keeps, and files that no commit needs.

    Kept besides: pins, commits being read, the newest record. Files that dead saves left go when they are a day old.
    Nothing goes while a record cannot be read or the newest commit is not whole; --yes reads it in full.
    """
    keep = Keep(last=keep_last, every_s=_seconds(keep_every), max_bytes=_bytes(max_bytes))
    store = open_store_of(target)
    plan = plan_collection(store, keep)
    if yes:
        collect(store, keep, plan, progress(as_json))
    if as_json:
        print_json("gc", {"uri": store.uri, "deleted": yes, **_as_json(plan)}, [])
        return
    rows = [
        [cell(seq), cell(plan.commits[seq].step), plan.kept.get(seq, "-"), "" if seq in plan.kept else "delete"]
        for seq in sorted(plan.commits, reverse=True)
    ]
    print_table(("seq", "step", "kept as", ""), rows)
    click.echo(
        f"{len(plan.gone)} commits, {len(plan.names)} files of {plan.num_bytes} bytes "
        + ("deleted" if yes else "would be deleted; --yes deletes them")
    )
    if plan.too_young:
        click.echo(f"{plan.too_young} files without a commit are younger than a day and stay")


@click.command("diff", short_help="Compare the commits of two steps.")
@target_argument
@click.argument("steps", nargs=2, type=int, metavar="STEP STEP")
@as_json_option
def diff_command(target: str, steps: tuple[int, int], as_json: bool) -> None:
    """Compare the commits of two steps: tables, rows, bytes, and whether the content is equal.

    A commit that says only what has changed stores no digests of its tables: they are computed, by reading its chain.
    """
    store = open_store_of(target)
    (old, warnings), (new, _) = (find_commit(store, step) for step in steps)
    old, new = (commit if commit.digest is not None else with_digests(store, commit) for commit in (old, new))
    rows = _differences(old, new)
    shared = {file.path for file in old.stored_files()} & {file.path for file in new.stored_files()}
    data = {
        "uri": store.uri,
        "steps": list(steps),
        "seqs": [old.seq, new.seq],
        "equal": old.digest == new.digest,
        "tables": rows,
        "shared_files": len(shared),
    }
    if as_json:
        print_json("diff", data, warnings)
        return
    columns = ("table", "rows", "rows_then", "bytes", "bytes_then", "content")
    print_table(columns, [[cell(row[column]) for column in columns] for row in rows])
    click.echo(f"{'equal' if data['equal'] else 'different'}; {len(shared)} files in common")


def _differences(old: Commit, new: Commit) -> list[dict[str, Any]]:
    """Return one line a table, the dense state last: what it was in each, and how its content compares."""
    sides = []
    for commit in (old, new):
        side = {table.spec.name: (table.num_rows, table.num_bytes, table.digest) for table in commit.tables}
        if commit.dense is not None:
            side["(dense)"] = (commit.dense.num_items, commit.dense.num_bytes, commit.dense.digest)
        sides.append(side)
    before, after = sides
    rows = []
    for name in sorted({*before, *after}, key=lambda name: (name == "(dense)", name)):
        was, now = before.get(name), after.get(name)
        if was is None or now is None:
            content = "added" if was is None else "removed"
        else:
            content = "equal" if was[2] == now[2] else "changed"
        rows.append(
            {
                "table": name,
                "rows": was and was[0],
                "rows_then": now and now[0],
                "bytes": was and was[1],
                "bytes_then": now and now[1],
                "content": content,
            }
        )
    return rows


def _as_json(plan: Collection) -> dict[str, Any]:
    return {
        "commits": [
            {"seq": seq, "step": commit.step, "kept_as": plan.kept.get(seq)}
            for seq, commit in sorted(plan.commits.items(), reverse=True)
        ],
        "files": len(plan.names),
        "bytes": plan.num_bytes,
        "too_young": plan.too_young,
    }


def _seconds(text: str | None) -> float:
    if text is None:
        return 0.0
    found = _SPAN.fullmatch(text)
    if found is None:
        raise UsageError(f"--keep-every is {text!r}", expected="a number with s, m, h or d, such as 6h")
    return float(found[1]) * _SPAN_S[found[2]]


def _bytes(text: str | None) -> int:
    if text is None:
        return 0
    found = _SIZE.fullmatch(text)
    if found is None:
        raise UsageError(f"--max-bytes is {text!r}", expected="a number with KiB, MiB, GiB or TiB, such as 2TiB")
    return int(float(found[1]) * 1024 ** _SIZE_POWER.index(found[2]))
