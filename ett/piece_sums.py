"""Sums over a partition: by reason, by attempt, of new data; from columns where the pieces lie in columns."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from ett.attempt_timeline import AttemptTimeline
from ett.column_pieces import ColumnPieces, Reason, SweptPieces, parts_of
from ett.interval_set import Interval, measure, overlaps
from ett.rank_timeline import Piece


def measure_by_reason(pieces: Sequence[Piece], kept: Sequence[Interval]) -> dict[Reason, int]:
    """Return the time inside `kept`, which is sorted and disjoint, by component and reason; none that is 0."""
    sums: Counter[Reason] = Counter()
    for part in parts_of(pieces):
        if isinstance(part, SweptPieces):
            sums.update(part.measure(kept))
        else:
            for piece in _within(part, kept):
                sums[piece.component, piece.reason] += measure(kept, piece.begin_ns, piece.end_ns)
    return {reason: ns for reason, ns in sums.items() if ns}


def measure_each(pieces: Sequence[Piece], intervals: Sequence[Interval]) -> list[dict[Reason, int]]:
    """Return the time inside each interval by component and reason; every piece is looked at in those that it meets."""
    whole = ColumnPieces(parts_of(pieces))
    return [measure_by_reason(whole, [interval]) for interval in intervals]


def begins(pieces: Sequence[Piece]) -> Iterator[int]:
    """Yield where each piece begins."""
    for part in parts_of(pieces):
        yield from part.begins() if isinstance(part, SweptPieces) else map(_begin, part)


def _within(part: list[Piece], kept: Sequence[Interval]) -> Sequence[Piece]:
    """Return the pieces that may meet `kept`; pieces follow each other, and those of a list are as it has them."""
    if not kept:
        return ()
    first = max(0, bisect_right(part, kept[0][0], key=_begin) - 1)
    return part[first : bisect_left(part, kept[-1][1], key=_begin)]


_begin = attrgetter("begin_ns")


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
