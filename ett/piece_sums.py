"""Sums over a partition: by reason, by attempt, of new data; from columns where the pieces lie in columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ett.attempt_timeline import AttemptTimeline
from ett.column_pieces import Reason, SweptPieces, parts_of
from ett.interval_set import Interval, measure, overlaps
from ett.rank_timeline import Piece


def measure_by_reason(pieces: Sequence[Piece], kept: Sequence[Interval]) -> dict[Reason, int]:
    """Return the time inside `kept`, which is sorted and disjoint, by component and reason; none that is 0."""
    sums: Counter[Reason] = Counter()
    for part in parts_of(pieces):
        if isinstance(part, SweptPieces):
            sums.update(part.measure(kept))
        else:
            for piece in part:
                sums[piece.component, piece.reason] += measure(kept, piece.begin_ns, piece.end_ns)
    return {reason: ns for reason, ns in sums.items() if ns}


def next_new_data(pieces: Sequence[Piece], kept: Sequence[Interval], time_ns: int, end_ns: int) -> int:
    """Return the first instant at or after `time_ns` inside `kept` at which new data is consumed; else `end_ns`."""
    for part in parts_of(pieces):
        if isinstance(part, SweptPieces):
            inside = overlaps(kept, max(part.begin_ns, time_ns), part.end_ns)
            found = part.native.next_new_data(inside, time_ns)
            if found is not None:
                return int(found)
            continue
        for piece in part:
            if piece.end_ns > time_ns and is_new_data(piece.component, piece.reason):
                for begin_ns, _ in overlaps(kept, max(piece.begin_ns, time_ns), piece.end_ns):
                    return begin_ns
    return end_ns


def is_new_data(component: str, reason: str) -> bool:
    return component == "effective" or reason == "unsaved_tail"


def effective_rank_ns(
    pieces: Sequence[Piece],
    timelines: Sequence[AttemptTimeline],
    world_of: Callable[[AttemptTimeline], int],
    kept: Sequence[Interval],
) -> int:
    """Return the effective time inside `kept`, each attempt's times its world size."""
    total = 0
    worlds: dict[int, int] = {}
    for part in parts_of(pieces):
        if isinstance(part, SweptPieces):
            sums = part.measure(kept)
            total += world_of(part.timeline) * sum(ns for (c, _), ns in sums.items() if c == "effective")
            continue
        for piece in part:
            if piece.component == "effective" and piece.step is not None:
                worlds = worlds or {t.attempt.number: world_of(t) for t in timelines}
                total += worlds[piece.step.record.att] * measure(kept, piece.begin_ns, piece.end_ns)
    return total


def num_replayed_steps(pieces: Sequence[Piece], kept: Sequence[Interval]) -> int:
    """Return how many steps, each counted once for all ranks, were run again inside `kept`."""
    number = 0
    replayed: set[tuple[int, int, float]] = set()
    for part in parts_of(pieces):
        if isinstance(part, SweptPieces):
            number += part.native.num_replayed(overlaps(kept, part.begin_ns, part.end_ns))
            continue
        for piece in part:
            step = piece.step
            if piece.reason == "replay" and step is not None and measure(kept, piece.begin_ns, piece.end_ns):
                replayed.add((step.record.att, step.gen, step.number))
    return number + len(replayed)
