"""`ett explain`: every interval of a job with the rule that charged it and the record that says so."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from ett.accounting import JobAccount
from ett.event_schema import NS
from ett.job_source import store_option
from ett.job_window import AccountingPolicy
from ett.log_source import UnixSeconds, load_account, log_path
from ett.rank_timeline import Piece
from ett.report_text import duration
from ett.shown_text import say

RULES = {
    "R3": "no attempt was alive and nothing was allocated",
    "R4": "allocated, not yet started",
    "R5": "a blocking span ran",
    "R6": "neither a span nor a step ran",
    "R7": "a step was begun and not completed",
    "R8": "a completed step; its data is new above the high-water mark, replayed below",
    "R9": "a completed step of an attempt whose position in the data is unknown, until a restore says it",
    "R10": "a blocking span that nobody ended ran until a fault or the attempt's end",
    "R11": "a lost step record, recovered from the cursors around it",
    "R12": "after train_end",
    "R13": "a blocking span inside training",
    "R14": "learned, but never committed: the job ended without keeping it",
    "R20": "the first step's excess over later ones, inferred to be compilation",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Adjacent pieces with one verdict: what was charged, to which rank's word, by which rule."""

    begin_ns: int
    end_ns: int
    component: str
    reason: str
    rule: str
    rank: int | None
    num_pieces: int
    evidence: str


def intervals(pieces: Iterable[Piece]) -> list[Interval]:
    """Return the pieces with adjacent ones of the same verdict joined; steps of one kind become one interval."""
    groups: list[list[Piece]] = []
    for piece in pieces:
        if groups and _verdict(groups[-1][-1]) == _verdict(piece):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return [
        Interval(
            begin_ns=group[0].begin_ns,
            end_ns=group[-1].end_ns,
            component=group[0].component,
            reason=group[0].reason,
            rule=group[0].rule,
            rank=group[0].rank,
            num_pieces=len(group),
            evidence=_evidence(group),
        )
        for group in groups
    ]


def folded(found: Sequence[Interval]) -> list[Interval]:
    """Return the intervals with each stretch of the training loop as one line a verdict: their times are summed.

    Between two steps there are always some microseconds of the loop itself, so a stretch alternates; it ends at
    anything else.
    """
    lines: list[Interval] = []
    stretch: dict[tuple[str, ...], Interval] = {}
    for interval in found:
        verdict = (interval.component, interval.reason, interval.rule)
        same = stretch.get(verdict)
        if not _is_loop(interval):
            lines += stretch.values()
            stretch = {}
            lines.append(interval)
        elif same is None:
            stretch[verdict] = interval
        else:
            took_ns = same.end_ns - same.begin_ns + interval.end_ns - interval.begin_ns
            num_pieces = same.num_pieces + interval.num_pieces
            evidence = f"{same.evidence.split(' to ')[0]} to {interval.evidence.rpartition(' ')[2]}"
            stretch[verdict] = replace(same, end_ns=same.begin_ns + took_ns, num_pieces=num_pieces, evidence=evidence)
    return lines + list(stretch.values())


def _is_loop(interval: Interval) -> bool:
    return interval.reason in ("new_data", "replay", "unsaved_tail", "cursor_unknown") or (
        interval.component == "wasted" and interval.reason == "untracked"
    )


@click.command()
@click.argument("job", required=False)
@click.option("--events", type=click.Path(path_type=Path), metavar="DIR", help="A folder with an event log, not a job.")
@store_option
@click.option("--as-of", type=UnixSeconds(), metavar="UNIX_S", help="Explain what was known at that time.")
@click.option("--infer-compile", is_flag=True, help="Book the first step's excess over later ones as compilation.")
@click.option("--every-step", is_flag=True, help="A line for every step, rather than one for each stretch of them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with every step.")
def command(
    *,
    job: str | None,
    events: Path | None,
    store: str | None,
    as_of: int | None,
    infer_compile: bool,
    every_step: bool,
    as_json: bool,
) -> None:
    """Print every interval of JOB with its rule and its evidence."""
    account = load_account(log_path(job, events, store), as_of, AccountingPolicy(infer_compile=infer_compile))
    found = [] if account is None else intervals(account.pieces)
    if as_json:
        say(json.dumps(_json(account, found)))
        return
    say(f"{'at':>12}  {'for':>10}  {'pieces':>6}  {'charged to':<32}{'rank':<6}{'rule':<5}evidence")
    for interval in found if every_step else folded(found):
        say(_line(interval, found[0].begin_ns))
    for rule in sorted({i.rule for i in found}, key=lambda name: int(name[1:])):
        say(f"{rule:<4} {RULES[rule]}")


def _verdict(piece: Piece) -> tuple[object, ...]:
    evidence = piece.record if piece.step is None else None
    return (piece.component, piece.reason, piece.rule, piece.rank, piece.step is None, evidence and evidence[:-1])


def _evidence(group: list[Piece]) -> str:
    records = {piece.record[:-1]: piece.record for piece in group if piece.record is not None}
    if not records:
        return "no record"
    first, last = next(iter(records.values())), list(records.values())[-1]
    if len(records) == 1:
        return first.where
    return f"{first.where} to {last.seq}"


def _line(interval: Interval, origin_ns: int) -> str:
    charged = f"{interval.component}.{interval.reason}"
    rank = "-" if interval.rank is None else f"r{interval.rank}"
    at = f"+{(interval.begin_ns - origin_ns) / NS:.3f}s"
    took = duration(interval.end_ns - interval.begin_ns)
    return (
        f"{at:>12}  {took:>10}  {interval.num_pieces:>6}  {charged:<32}{rank:<6}{interval.rule:<5}{interval.evidence}"
    )


def _json(account: JobAccount | None, found: list[Interval]) -> dict[str, Any]:
    rows = [{name: getattr(interval, name) for name in Interval.__dataclass_fields__} for interval in found]
    data = {
        "job": "" if account is None else account.job,
        "intervals": rows,
        "rules": {name: RULES[name] for name in sorted({row["rule"] for row in rows})},
    }
    return {
        "schema": "ett.explain/v1",
        "data": data,
        "warnings": [] if account is None else account.problems.warnings(),
    }
