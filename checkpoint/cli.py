"""`ett checkpoint`: list, show and verify checkpoints here, what keeps and deletes them in `collection_cli.py`.

Needs no torch.
"""

from __future__ import annotations

import time
from typing import Any

import click

from ett.checkpoint.cli_output import (
    as_json_option,
    cell,
    open_store_of,
    print_json,
    print_table,
    saves_of,
    target_argument,
)
from ett.checkpoint.collection_cli import diff_command, gc_command, pin_command, unpin_command
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_facts import (
    commit_facts,
    commit_line,
    find_commit,
    lineage_line,
    quantised_line,
    save_lines,
    tier_of,
)
from ett.checkpoint.commit_log import CommitLog, check_format, line_of_history
from ett.checkpoint.compaction_cli import compact_command
from ett.checkpoint.export_cli import export_command
from ett.checkpoint.pins import holds
from ett.checkpoint.progress import Watch, progress
from ett.checkpoint.store import Store
from ett.checkpoint.verify import LEVELS, Level, damage, verify_commit, with_digests
from ett.errors import CorruptState, NoCheckpoint

_POSITION = ("seq", "step", "cursor", "state", "type", "epoch", "world_size")
_COLUMNS = (*_POSITION, "bytes", "saved", "stall_s", "created", "tier", "pins")
_TIMES_READ = {"manifest": 0, "size": 0, "hash": 1, "load": 2}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """List, show, verify, compare, pin, collect, rewrite and export checkpoints."""


@group.command("ls", short_help="List the commits of JOB|URI, newest first.")
@target_argument
@as_json_option
def list_command(target: str, as_json: bool) -> None:
    """List the commits of JOB|URI, newest first, by their records alone; `verify` reads what they list."""
    store = open_store_of(target)
    known, damaged = CommitLog(store).read_all()
    line = {commit.seq for commit in line_of_history(known)}
    pins: dict[int, list[str]] = {}
    for hold in holds(store, time.time()):
        pins.setdefault(hold.seq, []).append(hold.name or hold.why)
    saves, warnings = saves_of(target)
    rows = [
        {
            **commit_line(known[seq], tier_of(store, seq), saves),
            "state": _state(known[seq], line),
            "pins": pins.get(seq, []),
        }
        if seq in known
        else {"seq": seq, "state": "damaged", "problem": damaged[seq].fact}
        for seq in sorted({*known, *damaged}, reverse=True)
    ]
    nothing = f"no commits under {store.uri}; a script may have set another checkpoint.uri: name that folder instead"
    if as_json:
        warnings += [err.fact for err in damaged.values()] if rows else [nothing]
        print_json("ls", {"uri": store.uri, "commits": rows}, warnings)
        return
    if not rows:
        click.echo(nothing)
        return
    print_table(_COLUMNS, [[cell(row.get(column)) for column in _COLUMNS] for row in rows])


@group.command("show", short_help="Show one commit: position, tables, digests, the files of its chain.")
@target_argument
@click.option("--step", type=int, help="The commit of this step; else the newest.")
@as_json_option
@click.option("--digest", is_flag=True, help="Compute the digests from the data and compare them with those stored.")
def show_command(target: str, step: int | None, as_json: bool, digest: bool) -> None:
    """Show one commit: position, what its save wrote and took, tables with rows and digests, dense state.

    With --json also the files that a restore reads. Of a JOB its log is asked, too: how long the upload took.
    """
    store = open_store_of(target)
    commit, warnings = find_commit(store, step)
    saves, more = saves_of(target)
    if digest:
        verify_commit(store, commit, "hash")
        commit = with_digests(store, commit)
    facts = commit_facts(commit, tier_of(store, commit.seq), saves)
    if as_json:
        print_json("show", {"uri": store.uri, **facts}, warnings + more)
        return
    for name in (
        "seq",
        "step",
        "cursor",
        "type",
        "policy",
        "epoch",
        "world_size",
        "created",
        "tier",
        "bytes",
        "digest",
    ):
        click.echo(f"{name:<11} {cell(facts[name])}")
    for name, text in [*quantised_line(facts), *lineage_line(facts), *save_lines(facts)]:
        click.echo(f"{name:<11} {text}")
    tables = [[cell(table[name]) for name in ("name", "rows", "dim", "bytes", "digest")] for table in facts["tables"]]
    dense = [["(dense)", cell(facts["dense"]["tensors"]), "", cell(facts["dense"]["bytes"]), facts["dense"]["digest"]]]
    print_table(("table", "rows", "dim", "bytes", "digest"), tables + dense)
    for warning in warnings + more:
        click.echo(f"warning: {warning}", err=True)


@group.command("verify")
@target_argument
@click.option("--step", type=int, help="Only the commit of this step; else all.")
@click.option(
    "--level",
    "--verify",
    "level",
    type=click.Choice(LEVELS),
    default="hash",
    show_default=True,
    help="Check the records, also the sizes, also every byte, also every row.",
)
@as_json_option
def verify_command(target: str, step: int | None, level: Level, as_json: bool) -> int:
    """Verify every commit of JOB|URI, or only the one of --step.

    Exit code 8: something is damaged. 10: nothing is restorable.
    """
    store = open_store_of(target)
    rows = _verified(store, step, level, progress(as_json))
    usable = [row for row in rows if row["ok"] and row["type"] is not None]
    if as_json:
        print_json("verify", {"uri": store.uri, "level": level, "commits": rows, "usable": len(usable)}, [])
    else:
        for row in rows:
            where = f"commit {row['seq']} of step {row['step']}" if row["type"] else row["name"]
            click.echo(
                f"{'ok     ' if row['ok'] else 'DAMAGED'} {where}" + (f": {row['problem']}" if not row["ok"] else "")
            )
    if not usable:
        raise NoCheckpoint(
            f"no usable checkpoint under {store.uri}", do="start anew with --resume never, or another uri"
        )
    bad = [row for row in rows if not row["ok"]]
    if bad:
        raise CorruptState(
            f"{len(bad)} of {len(rows)} are damaged; first: {bad[0]['problem']}",
            did=f"{len(usable)} usable, newest of step {usable[0]['step']}",
            do="a restore falls back to the newest usable commit by itself",
        )
    return 0


def _verified(store: Store, step: int | None, level: Level, watch: Watch) -> list[dict[str, Any]]:
    """Return one entry per commit, newest first, and one for FORMAT.json; fresh starts hold nothing to verify."""
    if step is not None:
        chosen, _ = find_commit(store, step)
        known = {chosen.seq: chosen}
        damaged: dict[int, CorruptState] = {}
    else:
        known, damaged = CommitLog(store).read_all()
    states = {commit.ckpt_uuid: commit.num_bytes for commit in known.values()}
    with watch(store, "verifying", sum(states.values()) * _TIMES_READ[level]) as reading:
        rows = _verified_rows(reading, known, damaged, level, is_all=step is None)
    if (known or damaged) and step is None and not check_format(store):
        rows.append({**_row(0, None, "FORMAT.json is missing or damaged"), "name": "FORMAT.json"})
    return rows


def _verified_rows(
    store: Store, known: dict[int, Commit], damaged: dict[int, CorruptState], level: Level, *, is_all: bool
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    seen: dict[str, str | None] = {}
    for seq in sorted({*known, *damaged}, reverse=True):
        if seq in damaged:
            rows.append(_row(seq, None, damaged[seq].fact))
            continue
        commit = known[seq]
        if commit.is_fresh:
            continue
        if commit.ckpt_uuid not in seen:
            err = damage(store, commit, level)
            if err and is_all and seq not in CommitLog(store).seqs():
                continue  # a running job has collected it meanwhile
            seen[commit.ckpt_uuid] = err.fact if err else None
        rows.append(_row(seq, commit, seen[commit.ckpt_uuid]))
    return rows


def _row(seq: int, commit: Commit | None, problem: str | None) -> dict[str, Any]:
    return {
        "seq": seq,
        "name": f"commit {seq}",
        "step": commit.step if commit else None,
        "type": commit.type if commit else None,
        "ok": problem is None,
        "problem": problem,
    }


def _state(commit: Commit, line: set[int]) -> str:
    if commit.seq not in line:
        return "abandoned"
    return "fresh start" if commit.is_fresh else "restorable"


for command in (pin_command, unpin_command, gc_command, diff_command, compact_command, export_command):
    group.add_command(command)
