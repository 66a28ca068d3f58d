"""Ids that depend on the job's name alone: exported twice, or by two processes, a span is the same span."""

from __future__ import annotations

import hashlib
import re
from typing import Literal, NamedTuple

TracePerAttempt = Literal["auto", "always", "never"]
OWN_TRACE_AFTER_NS = 24 * 3_600 * 10**9
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


class SpanPlace(NamedTuple):
    """A span of some trace. Neither id is 0."""

    trace_id: int
    span_id: int

    @property
    def traceparent(self) -> str:
        """Return the W3C header that makes other spans children of this one; always sampled."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-01"


def trace_id(job: str, attempt: int | None = None) -> int:
    """Return the trace of a job, or the one that an attempt has to itself."""
    return _digest(16, "trace", job, *(() if attempt is None else (attempt,)))


def span_id(job: str, *path: object) -> int:
    """Return the id of the span at `path` in the job's tree, such as ("attempt", 2, "training", 0)."""
    return _digest(8, "span", job, *path)


def attempt_place(job: str, attempt: int, *, has_own_trace: bool) -> SpanPlace:
    """Return where an attempt's span is, known before the attempt begins."""
    return SpanPlace(trace_id(job, attempt if has_own_trace else None), span_id(job, "attempt", attempt))


def needs_own_trace(since_submit_ns: int, trace_per_attempt: TracePerAttempt) -> bool:
    """Return whether an attempt that starts so long after its job's submission has a trace to itself."""
    if trace_per_attempt == "auto":
        return since_submit_ns > OWN_TRACE_AFTER_NS
    return trace_per_attempt == "always"


def parse_traceparent(text: str) -> SpanPlace | None:
    """Return the place that a W3C traceparent names; None for one that is not valid."""
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None or (found[3] and text.startswith("00")):
        return None
    place = SpanPlace(int(found[1], 16), int(found[2], 16))
    return place if all(place) else None


def _digest(size: int, *path: object) -> int:
    text = "\0".join(("ett", *map(str, path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size]) or 1
