"""Where nobody knows which data an attempt trains on: `cursor_unknown` records, until a restore says it (rule R9).

A restarted script that loads its state by a way that is not seen starts from a position that only it knows. What it
does there may be new or replayed; it is shown as neither.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ett.clock_alignment import Timed
from ett.event_schema import Record, is_number


class UnknownPosition(NamedTuple):
    """[begin_ns, end_ns) of an attempt, and the record that says so; -inf and inf where it is the attempt's edge."""

    begin_ns: float
    end_ns: float
    record: Record


def unknown_positions(records: Sequence[Timed], faults: Sequence[int]) -> list[UnknownPosition]:
    """Return the intervals of one attempt in which its position is unknown, in order and disjoint.

    Ranks write at different moments and share one position, so within a stretch between two faults order decides
    nothing: the first restore of any rank makes the position known from there on, also where another rank's
    `cursor_unknown` came later. A stretch in which nobody says anything goes on as the one before it ended.

    Args:
        records: the attempt's, in order.
        faults: sorted times of its faults.
    """
    doubts: dict[int, Record] = {}
    restores: dict[int, int] = {}
    for time_ns, record in records:
        stretch = bisect_right(faults, time_ns)
        if record.ev == "cursor_unknown" and record.att > 1:
            doubts.setdefault(stretch, record)
        elif record.ev == "restore" and is_number(record.data.get("cursor")):
            restores.setdefault(stretch, time_ns)
    if not doubts:
        return []
    edges = [float("-inf"), *faults, float("inf")]
    doubt: Record | None = None
    found: list[UnknownPosition] = []
    for stretch in range(len(faults) + 1):
        doubt = doubts.get(stretch, doubt)
        if doubt is not None:
            found.append(UnknownPosition(edges[stretch], restores.get(stretch, edges[stretch + 1]), doubt))
        if stretch in restores:
            doubt = None
    return found


def doubt_at(time_ns: int, unknown: Sequence[UnknownPosition]) -> Record | None:
    """Return the record by which the position at `time_ns` is unknown; None where it is known."""
    return next((u.record for u in unknown if u.begin_ns <= time_ns < u.end_ns), None)
