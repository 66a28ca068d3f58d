"""One attempt's block -> its spans: the attempt, its components, and what they are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ett.attempt_timeline import AttemptTimeline
from ett.event_schema import NS, SPAN_COMPONENTS
from ett.interruptions import Interruption
from ett.interval_set import Interval, measure
from ett.otel import attribute_names as names
from ett.otel.attempt_blocks import Block, Run, component_runs
from ett.otel.checkpoint_saves import CheckpointSave, checkpoint_saves
from ett.otel.failure_event import error_type, failure_event
from ett.otel.job_span import Attributes, AttributeValue, JobSpan, SpanEvent, SpanLink, integer, known
from ett.otel.rollback import find_rollback
from ett.otel.steps_of_run import global_steps, stall_events, step_attributes, steps_in, window_events
from ett.otel.trace_ids import SpanPlace, span_id
from ett.rank_timeline import Piece
from ett.report import world_of
from ett.step_credit import Step

# Children of `initialization` are named for their reason where that is one of few; a user's own span is a "phase".
_PHASES = {*(name for name, component in SPAN_COMPONENTS.items() if component == "initialization"), "provision"}
_PHASES |= {"inprocess_restart"}
_NO_CHILD = "untracked"
_MAX_CHILDREN = 200  # of one component span; the longest


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptContext:
    """Where an attempt stands in its job."""

    job: str
    place: SpanPlace
    parent_id: int | None
    previous: SpanPlace | None
    tier: str | None  # how it followed the attempt before; None for the first
    kept: Sequence[Interval]  # the job's window less what somebody excluded: what durations are measured on
    stops: Sequence[Interruption]  # those that fall into the attempt
    past_steps: Sequence[Step]  # complete steps of the job up to this attempt's end, by their end


def attempt_spans(block: Block, timeline: AttemptTimeline, context: AttemptContext) -> list[JobSpan]:
    """Return the attempt's span, then its components in order, each followed by its children."""
    builder = _Builder(block, timeline, context)
    spans = [builder.attempt_span()]
    for run in component_runs(block.pieces):
        spans += builder.component_spans(run)
    spans += builder.checkpoint_spans()
    spans += builder.rollback_spans()
    return spans


def run_attributes(pieces: Sequence[Piece], kept: Sequence[Interval]) -> dict[str, AttributeValue]:
    """Return the seconds of each component in `pieces`; those of a span and its neighbours sum to the report's."""
    sums: Counter[str] = Counter()
    for piece in pieces:
        sums[piece.component] += measure(kept, piece.begin_ns, piece.end_ns)
    return {names.duration(component): ns / NS for component, ns in sums.items()}


@dataclass(slots=True)
class _Builder:
    block: Block
    timeline: AttemptTimeline
    context: AttemptContext
    numbers: Counter[str] = field(default_factory=Counter)
    training: list[JobSpan] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    commits: list[tuple[int, int]] = field(default_factory=list)  # when, and of which step

    def __post_init__(self) -> None:
        self.steps = global_steps(self.timeline)
        for time_ns, record in self.timeline.attempt.records:
            if record.ev == "ckpt_commit" and (step := integer(record.data.get("step"))) is not None:
                self.commits.append((time_ns, step))

    @property
    def number(self) -> int:
        return self.timeline.attempt.number

    def attempt_span(self) -> JobSpan:
        attempt, context = self.timeline.attempt, self.context
        ended = {} if attempt.ended is None else attempt.ended.data
        failures = [stop for stop in context.stops if stop.kind in ("failure", "preemption")]
        links = [] if context.previous is None else [context.previous]
        return JobSpan(
            name="attempt",
            place=context.place,
            parent_id=context.parent_id,
            start_ns=self.block.start_ns,
            end_ns=self.block.end_ns,
            attributes=known(
                {
                    names.JOB_ID: context.job,
                    names.ATTEMPT_NUMBER: self.number,
                    names.ATTEMPT_OUTCOME: "running" if attempt.is_alive else attempt.reason or "unknown",
                    names.WORLD_SIZE: world_of(self.timeline),
                    names.RESTART_TIER: context.tier,
                    names.ERROR_TYPE: error_type(failures[-1]) if failures else None,
                    names.EXIT_CODE: integer(ended.get("exit_code")),
                }
            ),
            events=tuple(self._event(stop) for stop in context.stops),
            links=tuple(SpanLink(place=p, attributes={names.LINK_KIND: "previous_attempt"}) for p in links),
            attempt=self.number,
            is_error=any(stop.kind == "failure" for stop in context.stops),
            is_open=attempt.is_alive,
        )

    def component_spans(self, run: Run) -> list[JobSpan]:
        attributes = {names.COMPONENT: run.lane} | run_attributes(run.pieces, self.context.kept)
        events: list[SpanEvent] = []
        children: list[JobSpan] = []
        if run.lane == "scheduling":
            attributes[names.REASON] = run.pieces[-1].reason
        elif run.lane == "training":
            extra, events = self._training(run)
            attributes |= extra
        elif run.lane == "shutdown":
            attributes[names.SHUTDOWN_PLANNED] = any(p.rule == "R12" for p in run.pieces) or (
                self.timeline.attempt.is_clean
            )
        place, number = self._place(run.lane)
        if run.lane == "initialization":
            children = self._phases(run, place, number)
        elif run.lane == "compilation":
            children = self._graphs(run, place, number)
        times = (run.start_ns, run.end_ns)
        span = self._span(run.lane, place, self.context.place, times, attributes=attributes, events=events)
        if run.lane == "training":
            self.training.append(span)
        return [span, *children]

    def checkpoint_spans(self) -> list[JobSpan]:
        """Saves may outlast the training beside which they ran: those belong to the attempt."""
        spans: list[JobSpan] = []
        for save in checkpoint_saves(self.timeline.records(), self.block.end_ns):
            if save.start_ns < self.block.start_ns:
                continue
            inside = (s for s in self.training if s.start_ns <= save.start_ns and save.end_ns <= s.end_ns)
            parent = next((span.place for span in inside), self.context.place)
            spans += self._save_spans(save, parent)
        return spans

    def rollback_spans(self) -> list[JobSpan]:
        found = find_rollback(self.block.pieces, self.timeline, self.context.past_steps)
        if found is None:
            return []
        attributes = known(
            {
                names.ROLLBACK_FROM: integer(found.from_step),
                names.ROLLBACK_TO: integer(found.to_step),
                names.duration("wasted"): found.wasted_ns / NS,
            }
        )
        place, _ = self._place("rollback")
        times = (found.start_ns, found.end_ns)
        return [self._span("rollback", place, self.context.place, times, attributes=attributes)]

    def _training(self, run: Run) -> tuple[dict[str, AttributeValue], list[SpanEvent]]:
        steps = steps_in(self.steps, run)
        stalls, num_stalls = stall_events(run)
        durable = max((step for time_ns, step in self.commits if time_ns <= run.end_ns), default=None)
        attributes = step_attributes(steps) | known({names.STEP_DURABLE: durable})
        if num_stalls:
            attributes[names.STALL_COUNT] = num_stalls
        events = sorted([*window_events(steps, run), *stalls], key=lambda event: event.time_ns)
        return attributes, events

    def _phases(self, run: Run, parent: SpanPlace, number: int) -> list[JobSpan]:
        """One child for each stretch of one reason; time that nothing explains has none."""
        restore = next((record for _, record in self.timeline.attempt.records if record.ev == "restore"), None)
        children: list[JobSpan] = []
        for reason, pieces in _stretches(run, lambda piece: piece.reason):
            if reason == _NO_CHILD:
                continue
            attributes: dict[str, AttributeValue] = {names.REASON: reason}
            if reason == "restore" and restore is not None:
                attributes |= known(
                    {
                        names.CHECKPOINT_ID: None if restore.data.get("id") is None else str(restore.data["id"]),
                        names.CHECKPOINT_STEP: integer(restore.data.get("step")),
                        names.CHECKPOINT_VERIFIED: restore.data.get("verified") is True,
                    }
                )
            name = reason if reason in _PHASES else "phase"
            place = self._child(f"initialization.{reason}", number, len(children))
            times = (pieces[0].begin_ns, pieces[-1].end_ns)
            children.append(self._span(name, place, parent, times, attributes=attributes))
        return _longest(children)

    def _graphs(self, run: Run, parent: SpanPlace, number: int) -> list[JobSpan]:
        children: list[JobSpan] = []
        for _, pieces in _stretches(run, lambda piece: id(piece.record)):
            record = pieces[0].record
            cache = None if record is None else record.data.get("cache")
            attributes = known({names.CACHE_RESULT: str(cache) if cache in ("hit", "miss") else None})
            place = self._child("compilation.graph", number, len(children))
            times = (pieces[0].begin_ns, pieces[-1].end_ns)
            children.append(self._span("compilation.graph", place, parent, times, attributes=attributes))
        return _longest(children)

    def _save_spans(self, save: CheckpointSave, parent: SpanPlace) -> list[JobSpan]:
        waited_ns = save.blocking_ns
        attributes = known(
            {
                names.CHECKPOINT_ID: save.id,
                names.CHECKPOINT_STEP: integer(save.step),
                names.CHECKPOINT_BYTES: integer(save.bytes),
                names.CHECKPOINT_TIER: save.tier,
                names.CHECKPOINT_BLOCKING: 0 < waited_ns >= save.end_ns - save.start_ns,
                names.CHECKPOINT_RESULT: save.result,
            }
        )
        place, number = self._place("checkpoint.save")
        is_error = save.result == "abandoned"
        times = (save.start_ns, save.end_ns)
        spans = [self._span("checkpoint.save", place, parent, times, attributes=attributes, is_error=is_error)]
        staged_ns = save.start_ns + waited_ns
        parts = [("stage", save.start_ns, staged_ns), ("write", staged_ns, save.end_ns)]
        if save.result == "committed":
            parts.append(("commit", save.end_ns, save.end_ns))
        for name, start_ns, end_ns in parts:
            if start_ns < end_ns or name == "commit":
                child = self._child(f"checkpoint.{name}", number, 0)
                spans.append(self._span(f"checkpoint.{name}", child, place, (start_ns, end_ns), attributes={}))
        return spans

    def _event(self, stop: Interruption) -> SpanEvent:
        event = failure_event(stop, self.timeline)
        time_ns = min(max(event.time_ns, self.block.start_ns), self.block.end_ns)
        return SpanEvent(name=event.name, time_ns=time_ns, attributes=event.attributes)

    def _place(self, kind: str) -> tuple[SpanPlace, int]:
        number = self.numbers[kind]
        self.numbers[kind] += 1
        return self._child(kind, number, 0), number

    def _child(self, kind: str, number: int, index: int) -> SpanPlace:
        return SpanPlace(
            self.context.place.trace_id, span_id(self.context.job, "attempt", self.number, kind, number, index)
        )

    def _span(
        self,
        name: str,
        place: SpanPlace,
        parent: SpanPlace,
        times: Interval,
        *,
        attributes: Attributes,
        events: Sequence[SpanEvent] = (),
        is_error: bool = False,
    ) -> JobSpan:
        return JobSpan(
            name=name,
            place=place,
            parent_id=parent.span_id,
            start_ns=times[0],
            end_ns=times[1],
            attributes=attributes,
            events=tuple(events),
            attempt=self.number,
            is_error=is_error,
            is_open=self.timeline.attempt.is_alive,
        )


def _stretches(run: Run, key: Callable[[Piece], object]) -> list[tuple[str, Sequence[Piece]]]:
    """Adjacent pieces of one component and one key, with their reason; a run may hold short pieces of others."""
    own = [piece for piece in run.pieces if piece.component == run.lane]
    groups = [list(group) for _, group in groupby(own, key=key)]
    found: list[tuple[str, Sequence[Piece]]] = []
    for group in groups:
        begin = 0
        for index in range(1, len(group) + 1):
            if index == len(group) or group[index - 1].end_ns != group[index].begin_ns:
                found.append((group[begin].reason, group[begin:index]))
                begin = index
    return found


def _longest(children: list[JobSpan]) -> list[JobSpan]:
    """Bounded: a loop that compiles in every step would give a span for each."""
    if len(children) <= _MAX_CHILDREN:
        return children
    kept = sorted(children, key=lambda span: span.start_ns - span.end_ns)[:_MAX_CHILDREN]
    return sorted(kept, key=lambda span: span.start_ns)
