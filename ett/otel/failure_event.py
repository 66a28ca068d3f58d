"""What stopped an attempt, as a span event with its evidence."""

from __future__ import annotations

from ett.attempt_timeline import AttemptTimeline
from ett.event_schema import Record
from ett.interruptions import Interruption
from ett.metric_names import RESTART_REASONS
from ett.otel import attribute_names as names
from ett.otel.job_span import SpanEvent, integer, known

_DOMAINS = {"user": "workload", "infra": "infrastructure"}


def error_type(stop: Interruption) -> str:
    """Return why a job was interrupted, as one of few words: a value of `RESTART_REASONS`."""
    return RESTART_REASONS["preemption" if stop.kind == "preemption" else stop.failure_class or "unknown"]


def failure_event(stop: Interruption, timeline: AttemptTimeline | None) -> SpanEvent:
    """Return the event of a failure, preemption or in-process restart."""
    record = stop.record
    data = {} if record is None else record.data
    rank = data.get("first_failing_rank", None if record is None else record.rank)
    return SpanEvent(
        name="preemption" if stop.kind == "preemption" else "failure",
        time_ns=stop.time_ns,
        attributes=known(
            {
                names.ERROR_TYPE: error_type(stop),
                names.FAILURE_DOMAIN: _DOMAINS.get(stop.failure_class or "", "unknown") if stop.is_failure else None,
                names.FAILURE_EVIDENCE: "no record of an end" if record is None else record.where,
                names.FAILURE_RANK: integer(rank),
                names.FAILURE_HOST: _host(record, rank, timeline),
                names.FAILURE_SIGNAL: integer(data.get("signal")),
                names.EXIT_CODE: integer(data.get("exit_code")),
            }
        ),
    )


def _host(record: Record | None, rank: object, timeline: AttemptTimeline | None) -> str | None:
    """The host of the rank itself, where it wrote anything; a supervisor's record may speak for a rank elsewhere."""
    if timeline is not None and rank is not None:
        own = (r.host for _, r in timeline.attempt.records if r.rank == rank and not r.is_supervisors)
        if host := next(own, ""):
            return host
    return record.host if record is not None and not record.is_supervisors else None
