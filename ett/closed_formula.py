"""The paper's closed formula beside the exact partition, as a cross-check: 1 - (TTS + NoF * TTR) / total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ett.interruptions import Interruption
from ett.interval_set import Interval, length, overlaps, union, without
from ett.piece_sums import measure_by_reason, next_new_data
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
    pieces: Sequence[Piece], since: Sequence[int | None], stops: Sequence[Interruption], kept: Sequence[Interval]
) -> ClosedFormula:
    """Return the formula over the time in `kept`.

    Args:
        pieces: the job's whole partition, in order.
        since: where the last complete step before each stop ended; None: there was none.
        stops: the interruptions that lie in the window, resizes left out.
        kept: what window and exclusions leave, sorted and disjoint.
    """
    if not kept:
        return ClosedFormula(tts_ns=0, nof=len(stops), lost_ns=0, total_ns=0, unexplained_ns=0)
    begin_ns, end_ns = kept[0][0], kept[-1][1]
    start = (begin_ns, next_new_data(pieces, kept, begin_ns, end_ns))
    recoveries = [
        (begin_ns if last_ns is None else last_ns, next_new_data(pieces, kept, stop.time_ns, end_ns))
        for last_ns, stop in zip(since, stops, strict=True)
    ]
    covered = union(part for interval in (start, *recoveries) for part in overlaps(kept, *interval))
    outside = [part for interval in kept for part in without(interval, covered)]
    sums = measure_by_reason(pieces, outside)
    unexplained = sum(ns for (component, reason), ns in sums.items() if not _is_explained(component, reason))
    return ClosedFormula(
        tts_ns=length(overlaps(kept, *start)),
        nof=len(stops),
        lost_ns=length(covered),
        total_ns=length(kept),
        unexplained_ns=unexplained,
    )


def _is_explained(component: str, reason: str) -> bool:
    if component == "wasted":
        return reason not in _FAILURES_OWN
    return component in _OVERHEAD or reason in _KNOWN_WAITS
