"""What stopped a job, each once (rule R19), and how long it took to come back (the closed formula)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from ett.attempt_timeline import AttemptTimeline
from ett.event_schema import Record
from ett.job_window import JobWindow

Kind = Literal["failure", "inprocess", "preemption", "resize"]
FailureClass = Literal["infra", "user", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruption:
    """An in-process restart is a failure too; a resize interrupts nothing by itself and is only counted."""

    kind: Kind
    time_ns: int
    failure_class: FailureClass | None = None
    record: Record | None = None

    @property
    def is_failure(self) -> bool:
        return self.kind in ("failure", "inprocess")


def find_interruptions(timelines: Sequence[AttemptTimeline], window: JobWindow) -> list[Interruption]:
    """Return every interruption of a job by time."""
    found: list[Interruption] = []
    for timeline in timelines:
        found += _inprocess_restarts(timeline)
        found += _attempt_end(timeline)
    found += _resizes(timelines)
    return sorted((i for i in found if i.time_ns <= window.end_ns), key=lambda i: (i.time_ns, i.kind))


def _inprocess_restarts(timeline: AttemptTimeline) -> list[Interruption]:
    """The faults before one and the same next step are one; faults without a later step belong to the attempt's end."""
    following = timeline.first_begins([time_ns for time_ns, _ in timeline.faults])
    found: dict[int, Interruption] = {}
    for (time_ns, record), begin_ns in zip(timeline.faults, following, strict=True):
        if begin_ns is not None and begin_ns not in found:
            cause = _class(record)
            found[begin_ns] = Interruption(kind="inprocess", time_ns=time_ns, failure_class=cause, record=record)
    return list(found.values())


def _attempt_end(timeline: AttemptTimeline) -> list[Interruption]:
    attempt = timeline.attempt
    if attempt.is_alive:
        return []
    if attempt.reason == "preempted":
        return [Interruption(kind="preemption", time_ns=attempt.end_ns, record=attempt.ended)]
    if attempt.reason == "failed" or (attempt.is_inferred_end and attempt.ended is None):
        cause = _class(attempt.ended)
        return [Interruption(kind="failure", time_ns=attempt.end_ns, failure_class=cause, record=attempt.ended)]
    return []


def _resizes(timelines: Sequence[AttemptTimeline]) -> list[Interruption]:
    """Each change of world size, between attempts or within one."""
    found: list[Interruption] = []
    world: object = None
    for timeline in timelines:
        if timeline.attempt.start_ns is None:
            continue
        sizes = [(timeline.attempt.start_ns, timeline.attempt.world, None)]
        for time_ns, size, record in chain(sizes, timeline.step_worlds()):
            if size is None or size == world:
                continue
            if world is not None:
                found.append(Interruption(kind="resize", time_ns=time_ns, record=record))
            world = size
    return found


def _class(record: Record | None) -> FailureClass:
    cause = None if record is None else record.data.get("class")
    return cause if cause in ("infra", "user") else "unknown"
