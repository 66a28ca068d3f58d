"""The one definition of ETT: a pure function from an event log to an exact partition of a job's time (docs/ett.md).

Integers in nanoseconds throughout; the pieces cover the job's window without gap or overlap, so they always sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ett.attempt_timeline import AttemptTimeline, attempt_timeline
from ett.clock_alignment import ClockAlignment, Timed, ordered
from ett.column_pieces import Part, clipped, joined, reclassified, unsaved
from ett.column_view import ColumnView
from ett.commits import Commits, find_commits
from ett.event_reader import EventLog
from ett.event_schema import Record, is_number
from ett.interruptions import Interruption, find_interruptions
from ett.job_window import AccountingPolicy, Attempt, JobWindow, attempts_of, job_window
from ett.log_problems import LogProblems
from ett.rank_timeline import Piece
from ett.step_credit import Cursor

DEFAULT_POLICY = AccountingPolicy()


@dataclass(frozen=True, kw_only=True, slots=True)
class JobAccount:
    """A job's finished partition and what the report needs beside it. Everything is in normalised time.

    `pieces` are after R14: of a job that ended, time that was not kept is `wasted.unsaved_tail`.
    `at_risk` are the pieces that a failure now would move: of a RUNNING or LOST job, effective beyond the last commit.
    """

    job: str
    window: JobWindow
    pieces: Sequence[Piece]
    at_risk: Sequence[Piece]
    at_risk_remote: Sequence[Piece]
    timelines: tuple[AttemptTimeline, ...]
    interruptions: tuple[Interruption, ...]
    exclusions: tuple[tuple[int, int], ...]
    clocks: ClockAlignment
    problems: LogProblems
    flags: tuple[str, ...]


def account(
    log: EventLog, *, as_of_ns: int, cut_at_as_of: bool = True, policy: AccountingPolicy = DEFAULT_POLICY
) -> JobAccount | None:
    """Return the partition of the job that `log` tells of, as it was known at `as_of_ns`; None for an empty log.

    Args:
        as_of_ns: now, or the normalised instant that is asked about.
        cut_at_as_of: records after `as_of_ns` are not there yet. False: as_of only tells how old the last record is.
    """
    cut_ns = as_of_ns if cut_at_as_of else None
    if log.columns is not None:
        try:
            return account_view(ColumnView(log.columns, cut_ns), log, as_of_ns=as_of_ns, policy=policy)
        except OverflowError:
            pass  # a number beyond what columns hold: integers of Python have no limit
    return _account(log, ordered(log.records, cut_ns), attempt_timeline, as_of_ns, policy)


def account_view(
    view: ColumnView, log: EventLog, *, as_of_ns: int, policy: AccountingPolicy = DEFAULT_POLICY
) -> JobAccount | None:
    """Return the partition of the log that `view` shows.

    Raises: OverflowError: a number leaves the range of the columns.
    """
    if not view.is_exact:
        raise OverflowError("a time beyond the range of the columns")
    return _account(log, (view.timed, view.clocks), view.attempt_timeline, as_of_ns, policy)


def _account(
    log: EventLog,
    outline: tuple[Sequence[Timed], ClockAlignment],
    sweep: Callable[[Attempt, Cursor, AccountingPolicy], AttemptTimeline],
    as_of_ns: int,
    policy: AccountingPolicy,
) -> JobAccount | None:
    timed, clocks = outline
    if not timed:
        return None
    window = job_window(timed, max(as_of_ns, timed[-1].time_ns), policy)
    timelines: list[AttemptTimeline] = []
    high: Cursor = float("-inf")
    for attempt in attempts_of(timed, window):
        timelines.append(sweep(attempt, high, policy))
        high = timelines[-1].high
    pieces = _cover(window, timelines)
    commits = find_commits(timed, {t.attempt.number: t.unknown for t in timelines})
    kept = _kept_cursor(window, timelines, commits)
    at_risk: Sequence[Piece] = ()
    remote: Sequence[Piece] = ()
    if not window.is_terminal:
        at_risk, remote = unsaved(pieces, commits.highest), unsaved(pieces, commits.highest_remote)
    elif kept is not None:
        pieces = reclassified(pieces, kept)
    return JobAccount(
        job=next((item.record.job for item in timed if item.record.job), ""),
        window=window,
        pieces=pieces,
        at_risk=at_risk,
        at_risk_remote=remote,
        timelines=tuple(timelines),
        interruptions=tuple(find_interruptions(timelines, window)),
        exclusions=tuple(_exclusions(timed)),
        clocks=clocks,
        problems=log.problems,
        flags=tuple(_flags(window, timelines, clocks, log.problems)),
    )


def _kept_cursor(window: JobWindow, timelines: Sequence[AttemptTimeline], commits: Commits) -> Cursor | None:
    """R14: the highest cursor that survives the job; None: all of it does."""
    if window.state == "SUCCEEDED":
        return timelines[-1].last_cursor if timelines else None
    return commits.highest


def _cover(window: JobWindow, timelines: Sequence[AttemptTimeline]) -> Sequence[Piece]:
    """R3, R4: attempts' own pieces, and scheduling or provision wherever no attempt is alive; clipped to the window."""
    started = [t for t in timelines if t.pieces]
    started.sort(key=lambda t: t.pieces[0].begin_ns)
    attempts = [t.attempt for t in timelines]
    parts: list[Part] = []
    now, last = window.start_ns, None
    for timeline in started:
        begin_ns, end_ns = timeline.pieces[0].begin_ns, timeline.pieces[-1].end_ns
        parts.append(_gap(now, min(begin_ns, window.end_ns), last, attempts, window.submitted))
        parts += clipped(timeline.pieces, now, window.end_ns)
        now, last = max(now, end_ns), timeline.attempt
    parts.append(_gap(now, window.end_ns, last, attempts, window.submitted))
    return joined(parts)


def _gap(
    begin_ns: int, end_ns: int, last: Attempt | None, attempts: Sequence[Attempt], submitted: Record | None
) -> list[Piece]:
    if begin_ns >= end_ns:
        return []
    held = [(a.allocated_ns, _released_ns(a), a) for a in attempts if a.allocated_ns is not None]
    edges = sorted({begin_ns, end_ns, *(t for h in held for t in h[:2] if begin_ns < t < end_ns)})
    pieces = []
    for b, e in pairwise(edges):
        holder = next((a for allocated, released, a in held if allocated <= b < released), None)
        if holder is None:
            pieces.append(
                Piece(b, e, "scheduling", _waiting_reason(last), "R3", record=submitted if last is None else last.ended)
            )
        else:
            allocated = next(i.record for i in holder.records if i.record.ev == "allocated")
            pieces.append(Piece(b, e, "initialization", "provision", "R4", record=allocated))
    return pieces


def _released_ns(attempt: Attempt) -> int:
    """An allocation counts until its own attempt starts; of one that never started, until it ended or another began."""
    return attempt.cut_ns if attempt.start_ns is None else attempt.start_ns


def _waiting_reason(last: Attempt | None) -> str:
    if last is None:
        return "queue"
    known = {"completed": "job_end", "preempted": "preempted", "suspended": "suspended"}
    return known.get(last.reason or "", "restart")


def _exclusions(timed: Sequence[Timed]) -> list[tuple[int, int]]:
    """Windows [begin, end] in Unix seconds that somebody with the right to do so took out of the account."""
    found = []
    for _, record in timed:
        span = record.data.get("window")
        if record.ev == "exclude" and isinstance(span, list) and len(span) == 2 and all(map(is_number, span)):
            found.append((round(span[0] * 10**9), round(span[1] * 10**9)))
    return found


def _flags(
    window: JobWindow, timelines: Sequence[AttemptTimeline], clocks: ClockAlignment, problems: LogProblems
) -> list[str]:
    flags = set(problems.flags())
    if window.submitted is None:
        flags.add("no_job_submitted")
    if any(t.attempt.is_inferred_start for t in timelines):
        flags.add("inferred_start")
    if any(t.attempt.is_inferred_end for t in timelines):
        flags.add("inferred_end")
    if any(t.has_recovered_step for t in timelines):
        flags.add("recovered_step")
    if any(t.has_doubted_step for t in timelines):
        flags.add("cursor_unknown")
    if any(t.has_inferred_samples for t in timelines):
        flags.add("samples_inferred")
    if any(t.has_inferred_record for t in timelines):
        flags.add("inferred_by_hooks")
    if clocks.unsynced:
        flags.add("clock_unsynced")
    return sorted(flags)
