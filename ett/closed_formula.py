"""The paper's closed formula beside the exact partition, as a cross-check: 1 - (TTS + NoF * TTR) / total."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ett.interruptions import Interruption
from ett.interval_set import Interval, length, overlaps, union
from ett.rank_timeline import Piece

# What may separate the formula from the partition; any other time outside its intervals is one that
# it cannot see, a hang for instance.
_OVERHEAD = ("shutdown", "compilation", "effective")
_FAILURES_OWN = ("replay", "in_flight")
_KNOWN_WAITS = ("suspended", "job_end")  # scheduling that follows no interruption


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedFormula:
    """`ttr_ns` is a mean; time in several intervals counts once, so tts + nof * ttr is the length of their union.

    `unexplained_ns` is lost time that no start or recovery covers and no overhead explains, a hang for instance.
    """

    tts_ns: int
    nof: int
    lost_ns: int
    total_ns: int
    unexplained_ns: int

    @property
    def ttr_ns(self) -> float:
        return (self.lost_ns - self.tts_ns) / self.nof if self.nof else 0.0

    @property
    def ett(self) -> float | None:
        return (self.total_ns - self.lost_ns) / self.total_ns if self.total_ns else None


def closed_formula(
    pieces: Sequence[Piece], step_ends: Sequence[int], stops: Sequence[Interruption], kept: Sequence[Interval]
) -> ClosedFormula:
    """Return the formula over the time in `kept`.

    Args:
        pieces: the job's whole partition, in order.
        step_ends: sorted ends of its complete steps.
        stops: the interruptions that lie in the window, resizes left out.
        kept: what window and exclusions leave, sorted and disjoint.
    """
    if not kept:
        return ClosedFormula(tts_ns=0, nof=len(stops), lost_ns=0, total_ns=0, unexplained_ns=0)
    begin_ns, end_ns = kept[0][0], kept[-1][1]
    new_data = union(part for p in pieces if _is_new_data(p) for part in overlaps(kept, p.begin_ns, p.end_ns))
    start = (begin_ns, _next_new(new_data, begin_ns, end_ns))
    recoveries = []
    for stop in stops:
        before = bisect_right(step_ends, stop.time_ns)
        since_ns = step_ends[before - 1] if before else begin_ns
        recoveries.append((since_ns, _next_new(new_data, stop.time_ns, end_ns)))
    covered = union(part for interval in (start, *recoveries) for part in overlaps(kept, *interval))
    unexplained = 0
    for piece in pieces:
        if not _is_explained(piece):
            inside = overlaps(kept, piece.begin_ns, piece.end_ns)
            unexplained += sum(e - b - length(overlaps(covered, b, e)) for b, e in inside)
    return ClosedFormula(
        tts_ns=length(overlaps(kept, *start)),
        nof=len(stops),
        lost_ns=length(covered),
        total_ns=length(kept),
        unexplained_ns=unexplained,
    )


def _next_new(new_data: Sequence[Interval], time_ns: int, end_ns: int) -> int:
    """The first instant at or after `time_ns` at which new data is consumed; `end_ns` if there is none."""
    index = bisect_left(new_data, (time_ns, time_ns))
    if index and new_data[index - 1][1] > time_ns:
        return time_ns
    return new_data[index][0] if index < len(new_data) else end_ns


def _is_new_data(piece: Piece) -> bool:
    return piece.component == "effective" or piece.reason == "unsaved_tail"


def _is_explained(piece: Piece) -> bool:
    if piece.component == "wasted":
        return piece.reason not in _FAILURES_OWN
    return piece.component in _OVERHEAD or piece.reason in _KNOWN_WAITS
