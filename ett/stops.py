"""What cut a job into lives: every failure, preemption, in-process restart and planned end that another start followed.

A life is the time between two stops; whatever is paid again in it is paid because of the stop before it.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Literal

from ett.accounting import JobAccount
from ett.attempt_timeline import AttemptTimeline
from ett.event_schema import Record
from ett.interruptions import Interruption, find_interruptions
from ett.rank_timeline import Piece
from ett.step_credit import Cursor

CauseClass = Literal["infra", "user", "unknown", "preempted", "planned"]
StopKind = Literal["failure", "inprocess", "preemption", "planned"]
_SLUG = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """One end of a life, at `at_ns` in normalised time.

    `kind` planned: the attempt was suspended, or completed and then started again; R19 counts neither.
    `fatal_from_ns` is the attempt's first fault that no step followed, else `at_ns`: from there on it only died.
    """

    at_ns: int
    attempt: int
    kind: StopKind
    cause_class: CauseClass
    reason: str

    fatal_from_ns: int

    @property
    def is_failure(self) -> bool:
        return self.kind in ("failure", "inprocess")


def find_stops(account: JobAccount) -> list[Stop]:
    """Return the stops of a job in order; the end of a job that was not interrupted is none."""
    found: list[Stop] = []
    for index, timeline in enumerate(account.timelines):
        stops = [i for i in find_interruptions([timeline], account.window) if i.kind != "resize"]
        ends = [i for i in stops if i.kind != "inprocess"]
        found += [_inprocess(timeline, stop) for stop in stops if stop.kind == "inprocess"]
        if ends:
            found.append(_end(timeline, ends[0]))
        elif index + 1 < len(account.timelines):
            found.append(_planned(timeline))
    return sorted(found, key=lambda stop: (stop.at_ns, stop.attempt))


def _inprocess(timeline: AttemptTimeline, stop: Interruption) -> Stop:
    return Stop(
        at_ns=stop.time_ns,
        attempt=timeline.attempt.number,
        kind="inprocess",
        cause_class=stop.failure_class or "unknown",
        reason=reason_of(stop.record, stop.failure_class or "unknown"),
        fatal_from_ns=stop.time_ns,
    )


def _end(timeline: AttemptTimeline, stop: Interruption) -> Stop:
    cause: CauseClass = "preempted" if stop.kind == "preemption" else (stop.failure_class or "unknown")
    # The partition stops where a newer attempt began, if that was before this one's end.
    at_ns = timeline.attempt.cut_ns
    return Stop(
        at_ns=at_ns,
        attempt=timeline.attempt.number,
        kind="preemption" if stop.kind == "preemption" else "failure",
        cause_class=cause,
        reason=reason_of(stop.record, cause),
        fatal_from_ns=_fatal_fault_ns(timeline, at_ns),
    )


def _planned(timeline: AttemptTimeline) -> Stop:
    reason = timeline.attempt.reason or ""
    return Stop(
        at_ns=timeline.attempt.cut_ns,
        attempt=timeline.attempt.number,
        kind="planned",
        cause_class="planned",
        reason=reason if reason in ("suspended", "completed") else "ended",
        fatal_from_ns=timeline.attempt.cut_ns,
    )


def _fatal_fault_ns(timeline: AttemptTimeline, at_ns: int) -> int:
    following = timeline.first_begins([time_ns for time_ns, _ in timeline.faults])
    for (time_ns, _), begin_ns in zip(timeline.faults, following, strict=True):
        if begin_ns is None:
            return min(time_ns, at_ns)
    return at_ns


class FirstNewStep:
    """Tells when a life's first step over new data is done: what it compiles inside that step is start-up still."""

    def __init__(self) -> None:
        self.is_done = False
        self._number: Cursor | None = None

    def see(self, piece: Piece) -> None:
        """Take note of a life's next piece."""
        step = piece.step
        if self.is_done or step is None or piece.reason == "replay":
            return
        self._number = step.number if self._number is None else self._number
        self.is_done = step.number != self._number or piece.end_ns >= step.stop_ns


def reason_of(record: Record | None, cause_class: str) -> str:
    """Return the most exact name that the log has: its `cause` or `detail`, else signal, exit code, class."""
    data = {} if record is None else record.data
    for name in ("cause", "detail"):
        cause = data.get(name)
        if isinstance(cause, str) and _SLUG.fullmatch(cause):
            return cause
    if cause_class == "preempted":
        return "preempted"
    number = data.get("signal")
    if type(number) is int and number > 0:
        try:
            return signal.Signals(number).name.lower()
        except ValueError:
            return f"signal_{number}"
    if isinstance(number, str) and _SLUG.fullmatch(number.lower()):
        return number.lower()
    code = data.get("exit_code")
    return f"exit_{code}" if type(code) is int else cause_class
