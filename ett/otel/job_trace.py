"""A job's account -> its spans, a pure function: the same log gives the same spans with the same ids, whoever asks.

    train {model}
    +-- attempt                      links to the attempt before
    |   +-- scheduling               the wait for it
    |   +-- initialization           imports, process_group, model_build, restore, …
    |   +-- compilation              compilation.graph
    |   +-- training                 events step_window and stall
    |   |   +-- checkpoint.save      checkpoint.stage, .write, .commit
    |   +-- rollback                 begins in an earlier attempt, with the first step that was lost
    |   +-- shutdown
    +-- scheduling                   after the last attempt

Components tile their attempt, attempts tile the job, and their durations are those of `ett report`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ett.accounting import JobAccount
from ett.attempt_timeline import AttemptTimeline
from ett.event_schema import COMPONENTS, NS
from ett.interruptions import Interruption
from ett.interval_set import Interval, length, without
from ett.job_state import state_of
from ett.job_window import Attempt
from ett.otel import attribute_names as names
from ett.otel.attempt_blocks import Block, attempt_blocks
from ett.otel.attempt_spans import AttemptContext, attempt_spans, run_attributes
from ett.otel.failure_event import failure_event
from ett.otel.job_span import JobSpan, SpanEvent, SpanLink, known
from ett.otel.steps_of_run import global_steps
from ett.otel.trace_ids import (
    SpanPlace,
    TracePerAttempt,
    attempt_place,
    needs_own_trace,
    parse_traceparent,
    span_id,
    trace_id,
)
from ett.report import Report, build_report


def job_spans(account: JobAccount, trace_per_attempt: TracePerAttempt = "auto") -> list[JobSpan]:
    """Return the job's spans, parents before their children.

    Args:
        trace_per_attempt: whether an attempt has a trace of its own, linked to the attempt before; "auto": one that
            was started more than 24 hours after the job's submission, so that no answer changes as a job grows older.
    """
    report = build_report(account)
    kept = without((account.window.start_ns, account.window.end_ns), account.exclusions)
    blocks = attempt_blocks(account)
    stops = _stops_by_attempt(account, blocks)
    root = _root(account, report, kept, stops.get(None, []))
    spans = [root]
    steps = sorted((s for t in account.timelines for s in global_steps(t)), key=lambda step: step.stop_ns)
    previous: SpanPlace | None = None
    before: Attempt | None = None
    for block in blocks:
        timeline = block.timeline
        if timeline is None:
            spans.append(_tail(block, root, account.job, kept))
            continue
        attempt = timeline.attempt
        is_own = has_own_trace(account.window.start_ns, attempt, trace_per_attempt)
        place = attempt_place(account.job, attempt.number, has_own_trace=is_own)
        context = AttemptContext(
            job=account.job,
            place=place,
            parent_id=None if is_own else root.place.span_id,
            previous=previous,
            tier=None if before is None else _tier(before),
            kept=kept,
            stops=stops.get(attempt.number, []),
            past_steps=steps,
        )
        spans += attempt_spans(block, timeline, context)
        previous, before = place, attempt
    return spans


def root_place(job: str) -> SpanPlace:
    return SpanPlace(trace_id(job), span_id(job, "train"))


def has_own_trace(submitted_ns: int, attempt: Attempt, trace_per_attempt: TracePerAttempt) -> bool:
    """Return whether the attempt has a trace to itself: what its supervisor wrote down, else what the option says."""
    for _, record in attempt.records:
        if record.ev == "attempt_started" and isinstance(record.data.get("own_trace"), bool):
            return bool(record.data["own_trace"])
    return needs_own_trace((attempt.start_ns or submitted_ns) - submitted_ns, trace_per_attempt)


def _root(account: JobAccount, report: Report, kept: Sequence[Interval], stops: Sequence[Interruption]) -> JobSpan:
    window = account.window
    submitted = window.submitted.data if window.submitted is not None else {}
    launcher = parse_traceparent(str(submitted.get("traceparent", "")))
    excluded_ns = window.end_ns - window.start_ns - length(kept)
    events = [failure_event(stop, None) for stop in stops]
    clamped = [_clamped(event, window.start_ns, window.end_ns) for event in events]
    return JobSpan(
        name=f"train {submitted.get('model') or 'job'}",
        place=root_place(account.job),
        parent_id=None,
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        attributes=known(
            {
                names.JOB_ID: account.job,
                names.JOB_STATE: state_of(account),
                names.EFFECTIVE_RATIO: report.ett,
                names.EXCLUDED_DURATION: excluded_ns / NS if excluded_ns else None,
            }
        )
        | {names.duration(component): report.ns[component] / NS for component in COMPONENTS},
        events=tuple(clamped),
        links=() if launcher is None else (SpanLink(place=launcher, attributes={names.LINK_KIND: "launched_by"}),),
        is_error=window.state == "FAILED",
        is_open=window.state == "RUNNING",
    )


def _tail(block: Block, root: JobSpan, job: str, kept: Sequence[Interval]) -> JobSpan:
    """What a job waited for after its last attempt: a scheduler, a supervisor, or its own end."""
    return JobSpan(
        name="scheduling",
        place=SpanPlace(root.place.trace_id, span_id(job, "scheduling")),
        parent_id=root.place.span_id,
        start_ns=block.start_ns,
        end_ns=block.end_ns,
        attributes={names.COMPONENT: "scheduling", names.REASON: block.pieces[-1].reason}
        | run_attributes(block.pieces, kept),
        is_open=root.is_open,
    )


def _stops_by_attempt(account: JobAccount, blocks: Sequence[Block]) -> dict[int | None, list[Interruption]]:
    """Interruptions by the number of the attempt that they stopped; None: one without a span."""
    with_span = {block.timeline.attempt.number for block in blocks if block.timeline is not None}
    found: dict[int | None, list[Interruption]] = {}
    for stop in account.interruptions:
        if stop.kind == "resize":
            continue
        number = _attempt_of(stop, account.timelines)
        found.setdefault(number if number in with_span else None, []).append(stop)
    return found


def _attempt_of(stop: Interruption, timelines: Sequence[AttemptTimeline]) -> int | None:
    if stop.record is not None:
        return stop.record.att
    ended = (t.attempt.number for t in timelines if t.attempt.end_ns == stop.time_ns and t.attempt.ended is None)
    return next(ended, None)


def _tier(before: Attempt) -> str:
    """A failed attempt's supervisor starts the next; after any other end, or none, somebody launched the job anew."""
    decided = [r.data.get("restart") for _, r in before.records if r.ev == "restart_decision"]
    return "in_job" if before.reason == "failed" and decided[-1:] != [False] else "reschedule"


def _clamped(event: SpanEvent, start_ns: int, end_ns: int) -> SpanEvent:
    return SpanEvent(name=event.name, time_ns=min(max(event.time_ns, start_ns), end_ns), attributes=event.attributes)
