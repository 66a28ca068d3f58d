"""What a run of training did, minute by minute: a span event for each minute and each stall, never a span per step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby

from ett.attempt_timeline import AttemptTimeline
from ett.event_schema import NS
from ett.otel import attribute_names as names
from ett.otel.attempt_blocks import Run
from ett.otel.job_span import AttributeValue, SpanEvent, integer, known
from ett.step_credit import Cursor, Step

WINDOW_NS = 60 * NS
MAX_WINDOWS = 1_440  # a day of minutes; a longer run has wider windows, whole minutes still
STALL_NS = NS
MAX_STALLS = 100
_NO_STALLS = ("replay", "unsaved_tail", "cursor_unknown", "new_data")  # steps ran


def global_steps(timeline: AttemptTimeline) -> list[Step]:
    """Return the attempt's complete steps once each, by the time at which the last rank ended them."""
    last: dict[tuple[int, Cursor], Step] = {}
    for step in timeline.steps:
        if step.is_complete:
            key = (step.stretch, step.number)
            if key not in last or last[key].stop_ns < step.stop_ns:
                last[key] = step
    return sorted(last.values(), key=lambda step: step.stop_ns)


def steps_in(steps: Sequence[Step], run: Run) -> Sequence[Step]:
    """Return those of `steps`, which are in order of their end, that ended in (start, end] of the run."""
    first, after = (bisect_right(steps, t, key=lambda step: step.stop_ns) for t in (run.start_ns, run.end_ns))
    return steps[first:after]


def step_attributes(steps: Sequence[Step]) -> dict[str, AttributeValue]:
    """Return first and last number, count and new examples of some steps; only the count where there are none."""
    if not steps:
        return {names.STEP_COUNT: 0}
    examples = sum(_new_examples(step) for step in steps)
    return known(
        {
            names.STEP_FIRST: integer(steps[0].number),
            names.STEP_LAST: integer(steps[-1].number),
            names.STEP_COUNT: len(steps),
            names.EXAMPLES: integer(round(examples)),
        }
    )


def window_events(steps: Sequence[Step], run: Run) -> list[SpanEvent]:
    """Return an event for each minute in which steps ended, at the end of the last of them."""
    length_ns = run.end_ns - run.start_ns
    window_ns = WINDOW_NS * max(1, -(-length_ns // (WINDOW_NS * MAX_WINDOWS)))
    events = []
    for _, group in groupby(steps, key=lambda step: (step.stop_ns - run.start_ns - 1) // window_ns):
        own = list(group)
        events.append(SpanEvent(name="step_window", time_ns=own[-1].stop_ns, attributes=step_attributes(own)))
    return events


def stall_events(run: Run) -> tuple[list[SpanEvent], int]:
    """Return the longest stalls in order of time, and how many of a second or more there were."""
    stalls = []
    for reason, group in groupby(run.pieces, key=lambda piece: piece.reason if piece.component == "wasted" else ""):
        pieces = list(group)
        length_ns = pieces[-1].end_ns - pieces[0].begin_ns
        if reason and reason not in _NO_STALLS and length_ns >= STALL_NS:
            stalls.append((length_ns, pieces[0].begin_ns, reason))
    kept = sorted(sorted(stalls, reverse=True)[:MAX_STALLS], key=lambda stall: stall[1])
    events = [
        SpanEvent(
            name="stall",
            time_ns=begin_ns,
            attributes={names.REASON: reason, names.STALL_DURATION: length_ns / NS},
        )
        for length_ns, begin_ns, reason in kept
    ]
    return events, len(stalls)


def _new_examples(step: Step) -> Cursor:
    if step.c0 is None or step.c1 is None:
        return 0
    return max(0, step.c1 - max(step.c0, step.high))
