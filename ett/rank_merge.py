"""Partitions of all ranks of an attempt -> the attempt's partition: the weakest link decides (rule R15)."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ett.clock_alignment import Timed
from ett.event_schema import Component
from ett.rank_timeline import Piece
from ett.step_credit import Step

PRECEDENCE: tuple[Component, ...] = ("scheduling", "initialization", "compilation", "wasted", "effective", "shutdown")
_WEAKNESS = {component: index for index, component in enumerate(PRECEDENCE)}


class Generation(NamedTuple):
    """One world within an attempt, in [begin_ns, end_ns): who left evidence, and who of them wrote steps."""

    gen: int
    begin_ns: int
    end_ns: int
    ranks: frozenset[int]
    steppers: frozenset[int]


def generations(
    ranks: Mapping[int, Sequence[Timed]], steps: Mapping[int, Sequence[Step]], start_ns: int, end_ns: int
) -> list[Generation]:
    """Cut an attempt's time where the first record of each newer generation was written; heartbeats begin none."""
    evidence: dict[int, set[int]] = {}
    begins: dict[int, int] = {}
    for rank, records in ranks.items():
        for time_ns, record in records:
            evidence.setdefault(record.gen, set()).add(rank)
            if record.ev != "heartbeat":
                begins[record.gen] = min(time_ns, begins.get(record.gen, time_ns))
    steppers: dict[int, set[int]] = {}
    for rank, own in steps.items():
        for step in own:
            steppers.setdefault(step.gen, set()).add(rank)
    found: list[Generation] = []
    until = end_ns
    for gen in sorted(begins or evidence, reverse=True):
        begin_ns = start_ns if gen == min(begins or evidence) else max(start_ns, begins.get(gen, start_ns))
        if begin_ns < until:
            members, writers = frozenset(evidence[gen]), frozenset(steppers.get(gen, ()))
            found.append(Generation(gen, begin_ns, until, members, writers))
            until = begin_ns
    return found[::-1]


def merge_ranks(pieces: Mapping[int, Sequence[Piece]], worlds: Sequence[Generation]) -> list[Piece]:
    """Return the attempt's pieces in order: at each instant the weakest component, and its lowest rank's reason."""
    if len(pieces) == 1:
        return list(next(iter(pieces.values())))
    merged: list[Piece] = []
    for world in worlds:
        merged += _merge_world(pieces, world)
    return merged


def _merge_world(pieces: Mapping[int, Sequence[Piece]], world: Generation) -> list[Piece]:
    """A rank that wrote no step, beside others that did, counts only where one of its own blocking spans runs."""
    counting = []
    for rank in world.ranks:
        is_silent = bool(world.steppers) and rank not in world.steppers
        for piece in pieces[rank]:
            if piece.end_ns > world.begin_ns and piece.begin_ns < world.end_ns and (piece.is_covered or not is_silent):
                begin_ns, end_ns = max(piece.begin_ns, world.begin_ns), min(piece.end_ns, world.end_ns)
                counting.append(piece._replace(begin_ns=begin_ns, end_ns=end_ns))
    counting.sort(key=lambda piece: piece.begin_ns)
    return _weakest(counting)


def _weakest(counting: Sequence[Piece]) -> list[Piece]:
    """A piece that goes on while others begin and end stays one piece."""
    running: list[tuple[int, int, int, Piece]] = []
    found: list[Piece] = []
    goes_on = -1  # the place in `counting` of the piece that was found last
    upcoming = 0
    while upcoming < len(counting) or running:
        now = counting[upcoming].begin_ns if not running else found[-1].end_ns
        while upcoming < len(counting) and counting[upcoming].begin_ns <= now:
            piece = counting[upcoming]
            heapq.heappush(running, (_WEAKNESS[piece.component], piece.rank or 0, upcoming, piece))
            upcoming += 1
        while running and running[0][3].end_ns <= now:
            heapq.heappop(running)
        if not running:
            continue
        until = running[0][3].end_ns
        if upcoming < len(counting):
            until = min(until, counting[upcoming].begin_ns)
        if running[0][2] == goes_on and found[-1].end_ns == now:
            found[-1] = found[-1]._replace(end_ns=until)
        else:
            found.append(running[0][3]._replace(begin_ns=now, end_ns=until))
        goes_on = running[0][2]
    return found
