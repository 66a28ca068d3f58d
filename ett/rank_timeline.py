"""One rank of one attempt -> an exact partition of the attempt's time (rules R5 to R8, R10, R12, R13, R20)."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median_high, median_low
from typing import NamedTuple

from ett.clock_alignment import Timed
from ett.event_schema import Component, Record
from ett.rank_spans import Span
from ett.step_credit import Step


class Piece(NamedTuple):
    """[begin_ns, end_ns) charged to one component for one reason, by one rule, on the word of one record.

    `step` is there where the time is a complete step's. `is_covered`: a blocking span or a step ran, rather than none.
    """

    begin_ns: int
    end_ns: int
    component: Component
    reason: str
    rule: str
    rank: int | None = None
    step: Step | None = None
    record: Record | None = None
    is_covered: bool = False


Label = tuple[Component, str, str]  # component, reason, rule


@dataclass(kw_only=True, slots=True)
class RankView:
    """What the rules need to know about one rank of an attempt whose time is [start_ns, end_ns)."""

    rank: int
    start_ns: int
    end_ns: int
    is_clean: bool
    spans: Sequence[Span] = ()
    steps: Sequence[Step] = ()
    faults: Sequence[int] = ()
    started: Record | None = None  # evidence of the attempt's start
    fault_records: Sequence[Record] = ()
    train_end: Timed | None = None
    first_step_ns: int | None = None  # the rank's own first step, else the attempt's
    infer_compile: bool = False
    begins: list[int] = field(default_factory=list)
    train_end_ns: int | None = None
    last_step_end_ns: int | None = None

    def __post_init__(self) -> None:
        self.begins = [step.begin_ns for step in self.steps]
        self.train_end_ns = None if self.train_end is None else self.train_end.time_ns
        self.last_step_end_ns = max((step.stop_ns for step in self.steps), default=None)


def rank_pieces(view: RankView) -> list[Piece]:
    """Return pieces that cover [start_ns, end_ns) without gap or overlap, in order."""
    compiled_until_ns = inferred_compile_end(view.steps) if view.infer_compile else None
    pieces: list[Piece] = []
    for begin_ns, end_ns, winner in _winners(view):
        if isinstance(winner, Span):
            found = _span_pieces(view, winner, begin_ns, end_ns)
        elif winner is not None:
            found = _step_pieces(view, winner, begin_ns, end_ns, compiled_until_ns)
        else:
            found = _uncovered_pieces(view, begin_ns, end_ns)
        pieces += found
    return pieces


def inferred_compile_end(steps: Sequence[Step]) -> int | None:
    """R20: where the first step's excess over the median of at least three later ones ends; None: nothing to infer."""
    if not steps or not steps[0].is_complete or steps[0].is_recovered:
        return None
    later = [s.end_ns - s.begin_ns for s in steps[1:] if s.is_complete and not s.is_recovered]
    if len(later) < 3:
        return None
    median = (median_low(later) + median_high(later)) // 2
    return steps[0].begin_ns + max(0, steps[0].end_ns - steps[0].begin_ns - median)


def _winners(view: RankView) -> list[tuple[int, int, Span | Step | None]]:
    """R5: at each instant the blocking span or step with the latest begin; ties: a span, then the later record."""
    items: list[tuple[int, int, int, int, Span | Step]] = [
        (-span.begin_ns, 0, -span.order, span.end_ns, span) for span in view.spans if span.is_blocking
    ]
    items += [(-step.begin_ns, 1, -index, step.stop_ns, step) for index, step in enumerate(view.steps)]
    items.sort(key=lambda item: -item[0])
    running: list[tuple[int, int, int, int, Span | Step]] = []
    found: list[tuple[int, int, Span | Step | None]] = []
    now, upcoming = view.start_ns, 0
    while now < view.end_ns:
        while upcoming < len(items) and -items[upcoming][0] <= now:
            heapq.heappush(running, items[upcoming])
            upcoming += 1
        while running and running[0][3] <= now:
            heapq.heappop(running)
        until = view.end_ns if upcoming == len(items) else min(view.end_ns, -items[upcoming][0])
        if running:
            until = min(until, running[0][3])
        found.append((now, until, running[0][4] if running else None))
        now = until
    return found


def _span_pieces(view: RankView, span: Span, begin_ns: int, end_ns: int) -> list[Piece]:
    pieces = []
    for b, e in _split(begin_ns, end_ns, (view.train_end_ns, view.first_step_ns)):
        if _is_after(b, view.train_end_ns):
            component: Component = "shutdown"
        elif span.known_component is not None:
            component = span.known_component
        else:
            component = "wasted" if _is_after(b, view.first_step_ns) else "initialization"
        rule = span_rule(component, is_ended=_is_after(b, view.train_end_ns), was_closed=span.was_closed)
        pieces.append(Piece(b, e, component, span.name, rule, view.rank, None, span.record, True))
    return pieces


def span_rule(component: Component, *, is_ended: bool, was_closed: bool) -> str:
    if is_ended:
        return "R12"
    if not was_closed:
        return "R10"
    return "R13" if component == "wasted" else "R5"


def _step_pieces(view: RankView, step: Step, begin_ns: int, end_ns: int, compiled_until_ns: int | None) -> list[Piece]:
    pieces = []
    new_from_ns = None if not step.is_complete else step.begin_ns if step.doubt else step.time_at(step.high)
    inferred_ns = compiled_until_ns if step is view.steps[0] else None
    for b, e in _split(begin_ns, end_ns, (view.train_end_ns, new_from_ns, inferred_ns)):
        credit: Step | None = None
        evidence = step.record
        label: Label
        if _is_after(b, view.train_end_ns):
            label = ("shutdown", "step", "R12")
        elif inferred_ns is not None and b < inferred_ns:
            label = ("compilation", "inferred", "R20")
        elif new_from_ns is None:
            label = ("wasted", "in_flight", "R7")
        elif step.doubt is not None:
            label, evidence = ("wasted", "cursor_unknown", "R9"), step.doubt
        elif b < new_from_ns:
            label, credit = ("wasted", "replay", "R8"), step
        else:
            label, credit = ("effective", "new_data", "R11" if step.is_recovered else "R8"), step
        pieces.append(Piece(b, e, label[0], label[1], label[2], view.rank, credit, evidence, True))
    return pieces


def _uncovered_pieces(view: RankView, begin_ns: int, end_ns: int) -> list[Piece]:
    """R6: time in which neither a blocking span nor a step of this rank runs."""
    cuts = [view.train_end_ns, view.last_step_end_ns, *_inside(view.faults, begin_ns, end_ns)]
    cuts += _inside(view.begins, begin_ns, end_ns)
    pieces = []
    for b, e in _split(begin_ns, end_ns, cuts):
        label: Label
        if _is_after(b, view.train_end_ns):
            label = ("shutdown", "untracked", "R12")
        elif _is_restarting(view, b):
            label = ("initialization", "inprocess_restart", "R6")
        elif not view.begins or b < view.begins[0]:
            label = ("initialization", "untracked", "R6")
        elif not _is_after(b, view.last_step_end_ns):
            label = ("wasted", "untracked", "R6")
        elif view.is_clean:
            label = ("shutdown", "untracked", "R6")
        else:
            label = ("wasted", "in_flight", "R6")
        pieces.append(Piece(b, e, label[0], label[1], label[2], view.rank, None, _latest_evidence(view, b)))
    return pieces


def _latest_evidence(view: RankView, time_ns: int) -> Record | None:
    following = bisect_right(view.begins, time_ns)
    last = view.steps[following - 1] if following else None
    faults = [Timed(*fault) for fault in zip(view.faults, view.fault_records, strict=True)]
    return latest_evidence(time_ns, (view.start_ns, view.started), last, faults, view.train_end)


def latest_evidence(
    time_ns: int,
    started: tuple[int, Record | None],
    last_step: Step | None,
    faults: Sequence[Timed],
    train_end: Timed | None,
) -> Record | None:
    """The last thing that is known of a rank at an instant in which nothing runs: why it is charged as it is."""
    if train_end is not None and train_end.time_ns <= time_ns:
        return train_end.record
    found = [started]
    if last_step is not None:
        found.append((last_step.begin_ns, last_step.record))
    if fault := bisect_right(faults, time_ns, key=lambda item: item.time_ns):
        found.append(faults[fault - 1])
    return max(found, key=lambda item: item[0])[1]


def _is_restarting(view: RankView, time_ns: int) -> bool:
    """True from a fault to the rank's next step, or to the attempt's end if there is none."""
    index = bisect_right(view.faults, time_ns) - 1
    if index < 0:
        return False
    following = bisect_left(view.begins, view.faults[index])
    return following == len(view.begins) or view.begins[following] > time_ns


def _is_after(time_ns: int, point_ns: int | None) -> bool:
    return point_ns is not None and time_ns >= point_ns


def _inside(points: Sequence[int], begin_ns: int, end_ns: int) -> Sequence[int]:
    return points[bisect_right(points, begin_ns) : bisect_left(points, end_ns)]


def _split(begin_ns: int, end_ns: int, cuts: Sequence[int | None]) -> list[tuple[int, int]]:
    inside = sorted({cut for cut in cuts if cut is not None and begin_ns < cut < end_ns})
    edges = [begin_ns, *inside, end_ns]
    return list(pairwise(edges))
