"""Span records of one rank in one attempt -> closed intervals, and the component that each is charged to (R10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ett.clock_alignment import Timed
from ett.event_schema import SPAN_COMPONENTS, Component, Record
from ett.step_credit import stop_after

SpanKey = tuple[str, str, int, str, object]


@dataclass(kw_only=True, slots=True)
class Span:
    """[begin_ns, end_ns): from its begin record to its end record, the next fault, or the attempt's end."""

    name: str
    begin_ns: int
    end_ns: int
    is_blocking: bool
    order: int  # position of its begin among the rank's records: the later record wins a tie (R5)
    known_component: Component | None  # its own or an ancestor's; None: it depends on the instant
    record: Record
    was_closed: bool


def rank_spans(records: Iterable[Timed], faults: Sequence[int], end_ns: int) -> list[Span]:
    """Return the spans of one rank by begin. A span that nobody ended, or a fault stopped, ends there (R10)."""
    begins: dict[SpanKey, tuple[str, SpanKey | None]] = {}
    running: dict[SpanKey, Span] = {}
    spans: list[Span] = []
    for order, (time_ns, record) in enumerate(records):
        if record.ev == "span_begin":
            key = _key(record, record.data["id"])
            parent = record.data.get("parent")
            begins[key] = (str(record.data["name"]), None if parent is None else _key(record, parent))
            span = Span(
                name=str(record.data["name"]),
                begin_ns=time_ns,
                end_ns=max(time_ns, stop_after(time_ns, faults, end_ns)),
                is_blocking=record.data.get("blocking") is not False,
                order=order,
                known_component=_component(key, begins),
                record=record,
                was_closed=False,
            )
            running[key] = span
            spans.append(span)
        elif record.ev == "span_end" and (ending := running.pop(_key(record, record.data["id"]), None)):
            ending.was_closed = time_ns <= ending.end_ns
            ending.end_ns = min(ending.end_ns, max(time_ns, ending.begin_ns))
    return spans


def _component(key: SpanKey, begins: Mapping[SpanKey, tuple[str, SpanKey | None]]) -> Component | None:
    seen: set[SpanKey] = set()
    while key in begins and key not in seen:
        seen.add(key)
        name, parent = begins[key]
        if name in SPAN_COMPONENTS:
            return SPAN_COMPONENTS[name]
        if parent is None:
            return None
        key = parent
    return None


def _key(record: Record, span_id: object) -> SpanKey:
    """Ids are unique within the process that wrote them."""
    return (record.host, record.boot, record.pid, record.src, str(span_id))
