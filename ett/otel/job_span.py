"""A span as plain data, in normalised time: what tests compare and what the SDK's objects are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ett.otel.trace_ids import SpanPlace

AttributeValue = str | int | float | bool
Attributes = Mapping[str, AttributeValue]


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanEvent:
    name: str
    time_ns: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanLink:
    place: SpanPlace
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpan:
    """[start_ns, end_ns) of a job, for one reason. `parent_id` is None for the root of a trace.

    `attempt` is None for spans of the whole job. `is_open`: the job or the attempt still runs, so a later export of
    the span would differ; whoever sends spans sends finished ones.
    """

    name: str
    place: SpanPlace
    parent_id: int | None
    start_ns: int
    end_ns: int
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()
    attempt: int | None = None
    is_error: bool = False
    is_open: bool = False


def integer(value: object) -> int | None:
    """Return a value of the event log as an OTLP integer (64 bits, signed); None for anything else."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def known(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Return the attributes that have a value."""
    return {name: value for name, value in attributes.items() if value is not None}
