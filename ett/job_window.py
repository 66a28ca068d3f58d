"""Ordered records -> the job's window and its attempts (rules R1 to R4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ett.clock_alignment import Timed
from ett.event_schema import NS, Record

State = Literal["RUNNING", "LOST", "SUCCEEDED", "FAILED", "CANCELLED"]
_CLEAN = {"completed", "preempted", "suspended"}
# A record of a dead attempt that somebody else wrote later: it says nothing about how long the attempt lived.
_WRITTEN_ABOUT_THE_DEAD = {"restart_decision"}


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountingPolicy:
    """The choices that the rules leave open."""

    stale_after_s: float = 90.0  # silence after which a job without an end is LOST (D5)
    infer_compile: bool = False  # R20: book the first step's excess over later ones as compilation


@dataclass(frozen=True, kw_only=True, slots=True)
class JobWindow:
    """[start_ns, end_ns) in normalised time. `end` is the job_ended record of a job that ended."""

    start_ns: int
    end_ns: int
    state: State
    submitted: Record | None
    ended: Record | None

    @property
    def is_terminal(self) -> bool:
        return self.state not in ("RUNNING", "LOST")


@dataclass(kw_only=True, slots=True)
class Attempt:
    """One attempt: its records in order, and its interval [start_ns, end_ns).

    `allocated_ns` is None where nobody wrote it. `start_ns` is None for one that was allocated and never started.
    """

    number: int
    records: list[Timed] = field(default_factory=list)
    allocated_ns: int | None = None
    start_ns: int | None = None
    end_ns: int = 0
    cut_ns: int = 0  # where a newer attempt began, if it began before this one's end: the partition stops there
    ended: Record | None = None
    is_inferred_start: bool = False
    is_inferred_end: bool = False
    is_alive: bool = False
    world: int | None = None

    @property
    def reason(self) -> str | None:
        return None if self.ended is None else str(self.ended.data.get("reason"))

    @property
    def is_clean(self) -> bool:
        return self.reason in _CLEAN


def job_window(timed: Sequence[Timed], as_of_ns: int, policy: AccountingPolicy) -> JobWindow:
    """R1. `timed` is not empty, ordered, and holds nothing after `as_of_ns`."""
    submitted = next((item for item in timed if item.record.ev == "job_submitted"), None)
    start_ns = submitted.time_ns if submitted else timed[0].time_ns
    ended = _job_ended(timed)
    if ended is not None:
        status = str(ended.record.data.get("status"))
        states: dict[str, State] = {"succeeded": "SUCCEEDED", "cancelled": "CANCELLED"}
        end_ns, state = ended.time_ns, states.get(status, "FAILED")
    elif as_of_ns - timed[-1].time_ns > policy.stale_after_s * NS:
        end_ns, state = timed[-1].time_ns, "LOST"
    else:
        end_ns, state = as_of_ns, "RUNNING"
    return JobWindow(
        start_ns=start_ns,
        end_ns=max(start_ns, end_ns),
        state=state,
        submitted=submitted.record if submitted else None,
        ended=ended.record if ended else None,
    )


def _job_ended(timed: Sequence[Timed]) -> Timed | None:
    """The first job_ended after the last start: a job that was resumed after its end is not over."""
    ended = None
    for item in timed:
        if item.record.ev in ("job_submitted", "allocated", "attempt_started"):
            ended = None
        elif item.record.ev == "job_ended" and ended is None:
            ended = item
    return ended


def attempts_of(timed: Sequence[Timed], window: JobWindow) -> list[Attempt]:
    """R2: the attempts by number; at each instant at most one of them is inside [start_ns, cut_ns)."""
    by_number: dict[int, Attempt] = {}
    for item in timed:
        if item.record.att > 0:
            by_number.setdefault(item.record.att, Attempt(number=item.record.att)).records.append(item)
    attempts = [by_number[number] for number in sorted(by_number)]
    for attempt in attempts:
        _find_start(attempt)
    # Heartbeats alone make no attempt.
    attempts = [a for a in attempts if a.start_ns is not None or a.allocated_ns is not None]
    for attempt in attempts:
        _find_end(attempt, is_last=attempt is attempts[-1], window=window)
    newer_start = window.end_ns
    for attempt in reversed(attempts):
        attempt.cut_ns = min(attempt.end_ns, newer_start)
        if attempt.start_ns is not None:
            newer_start = min(newer_start, attempt.start_ns)
    return attempts


def _find_start(attempt: Attempt) -> None:
    for time_ns, record in attempt.records:
        if record.ev == "attempt_started" and attempt.start_ns is None:
            attempt.start_ns = time_ns
            attempt.world = _world(record) or attempt.world
        elif record.ev == "allocated" and attempt.allocated_ns is None:
            attempt.allocated_ns = time_ns
            attempt.world = attempt.world or _world(record)
    if attempt.start_ns is None:
        ranks = (item.time_ns for item in attempt.records if _is_proof_of_a_start(item.record))
        attempt.start_ns = next(ranks, None)
        attempt.is_inferred_start = attempt.start_ns is not None


def _is_proof_of_a_start(record: Record) -> bool:
    return not record.is_supervisors and record.ev != "heartbeat"


def _find_end(attempt: Attempt, *, is_last: bool, window: JobWindow) -> None:
    ends = [item for item in attempt.records if item.record.ev == "attempt_ended"]
    observed = next((item for item in ends if not item.record.data.get("inferred")), None)
    if observed is not None:
        attempt.ended, attempt.end_ns = observed.record, observed.time_ns
    else:
        attempt.ended = ends[0].record if ends else None
        attempt.is_alive = is_last and not ends and not window.is_terminal
        if attempt.is_alive or (attempt.start_ns is None and not ends):
            # Hardware of an attempt that never started is held until somebody says that the attempt ended.
            attempt.end_ns = window.end_ns
        else:
            # Whoever inferred the end wrote later than it: that record never gives the time.
            alive = (t for t, r in attempt.records if r.ev != "attempt_ended" and r.ev not in _WRITTEN_ABOUT_THE_DEAD)
            attempt.end_ns = max(alive)  # it was allocated or started
            attempt.is_inferred_end = True
    attempt.end_ns = max(attempt.end_ns, attempt.start_ns or attempt.end_ns)


def _world(record: Record) -> int | None:
    world = record.data.get("world")
    return world if type(world) is int and world > 0 else None
