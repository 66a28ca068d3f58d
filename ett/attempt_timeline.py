"""One attempt's records -> its pieces, steps and faults (rules R5 to R13 and R15, joined)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ett.clock_alignment import Timed
from ett.column_steps import ColumnSteps
from ett.event_schema import Record, is_number
from ett.job_window import AccountingPolicy, Attempt
from ett.rank_merge import generations, merge_ranks
from ett.rank_spans import rank_spans
from ett.rank_timeline import Piece, RankView, rank_pieces
from ett.step_credit import Cursor, Step, StepMark, doubt_steps, rank_steps, set_high_water
from ett.unknown_position import UnknownPosition, unknown_positions

# What hooks write of a program that says nothing itself (docs/zero_code.md).
INFERRED_BY_HOOKS = frozenset({"span_begin", "train_end", "ckpt_commit", "restore"})


@dataclass(kw_only=True, slots=True)
class AttemptTimeline:
    """`pieces` cover the attempt's [start_ns, cut_ns); `steps` are all ranks' by begin; `high` is the mark after it.

    `unknown` is where its position is unknown (R9).
    """

    attempt: Attempt
    pieces: Sequence[Piece]
    steps: Sequence[Step]
    faults: list[Timed]
    high: Cursor
    unknown: list[UnknownPosition]

    def records(self) -> Sequence[Timed]:
        """Return what of the attempt's records is not a step or heartbeat, and each writer's last; every span.

        `attempt.records` of a log in columns has but those that decide its outline: no span that nothing else needs.
        """
        if isinstance(self.steps, ColumnSteps):
            return self.steps.attempt_records(self.attempt)
        return self.attempt.records

    @property
    def has_inferred_record(self) -> bool:
        """True where a hook, not the program, said what the rules used of the attempt (docs/zero_code.md)."""
        if any(r.data.get("inferred") and r.ev in INFERRED_BY_HOOKS for _, r in self.attempt.records):
            return True
        return isinstance(self.steps, ColumnSteps) and self.steps.has_inferred_span(self.attempt)

    @property
    def last_cursor(self) -> Cursor | None:
        """What the attempt reached: its last complete step's c1, else its restore's cursor, else None."""
        reached = self._reached()
        if reached is not None:
            return reached
        restores = [r.data["cursor"] for _, r in self.attempt.records if r.ev == "restore"]
        known: list[Cursor] = [cursor for cursor in restores if is_number(cursor)]
        return known[-1] if known else None

    @property
    def has_recovered_step(self) -> bool:
        if isinstance(self.steps, ColumnSteps):
            return bool(self.steps.sweep.has_recovered())
        return any(s.is_recovered and s.is_complete for s in self.steps)

    @property
    def has_doubted_step(self) -> bool:
        """True where a complete step's position is unknown (R9)."""
        if isinstance(self.steps, ColumnSteps):
            return bool(self.steps.sweep.has_doubted())
        return any(s.doubt is not None and s.is_complete for s in self.steps)

    @property
    def has_inferred_samples(self) -> bool:
        """True where a hook, not the program, said how many samples a step had."""
        if isinstance(self.steps, ColumnSteps):
            return bool(self.steps.sweep.has_inferred_samples())
        return any(s.record.data.get("samples_inferred") for s in self.steps)

    def step_marks(self) -> Iterator[StepMark]:
        """Yield all ranks' steps by begin, without what only their records have."""
        if isinstance(self.steps, ColumnSteps):
            return self.steps.marks()
        return (
            StepMark(s.rank, s.number, s.begin_ns, s.end_ns, s.stop_ns, s.c0, s.c1, s.is_complete) for s in self.steps
        )

    def last_stops(self, times: Sequence[int]) -> list[int | None]:
        """Return for each time where the last complete step stopped by then; None before the first."""
        if isinstance(self.steps, ColumnSteps):
            return list(self.steps.sweep.last_stops(list(times)))
        stops = sorted(s.stop_ns for s in self.steps if s.is_complete)
        places = [bisect_right(stops, time_ns) for time_ns in times]
        return [stops[place - 1] if place else None for place in places]

    def first_begins(self, times: Sequence[int]) -> list[int | None]:
        """Return for each time where the first step at or after it begins."""
        if isinstance(self.steps, ColumnSteps):
            return list(self.steps.sweep.first_begins(list(times)))
        begins = sorted(s.begin_ns for s in self.steps)
        places = [bisect_left(begins, time_ns) for time_ns in times]
        return [begins[place] if place < len(begins) else None for place in places]

    def step_worlds(self) -> Iterator[tuple[int, object, Record]]:
        """Yield (begin, world, record) of steps that ended, by begin; not those that say what the one before said."""
        if isinstance(self.steps, ColumnSteps):
            for begin_ns, world, stream, row in self.steps.sweep.worlds():
                yield begin_ns, world, self.steps.record(stream, row)
            return
        last: object = None
        for step in self.steps:
            world = step.record.data.get("world")
            if not step.is_open and world is not None and world != last:
                yield step.begin_ns, world, step.record
                last = world

    def _reached(self) -> Cursor | None:
        if isinstance(self.steps, ColumnSteps):
            found: Cursor | None = self.steps.sweep.last_cursor()
            return found
        complete = [s for s in self.steps if s.is_complete and s.c1 is not None and s.doubt is None]
        return max(complete, key=lambda s: (s.end_ns, s.c1)).c1 if complete else None


def attempt_timeline(attempt: Attempt, high: Cursor, policy: AccountingPolicy) -> AttemptTimeline:
    """Return the attempt's exact partition. `high` is the high-water mark of all earlier attempts."""
    faults = [item for item in attempt.records if item.record.ev == "fault"]
    fault_times = [item.time_ns for item in faults]
    ranks = records_by_rank(attempt.records)
    spans = {rank: rank_spans(records, fault_times, attempt.end_ns) for rank, records in ranks.items()}
    busy = {rank: [(s.begin_ns, s.end_ns) for s in own if s.is_blocking] for rank, own in spans.items()}
    steps = rank_steps(ranks, fault_times, attempt.end_ns, busy)
    unknown = unknown_positions(attempt.records, fault_times)
    doubt_steps(steps, unknown)
    high = set_high_water(steps, high)
    all_steps = sorted((step for own in steps.values() for step in own), key=lambda s: (s.begin_ns, s.rank))
    pieces: Sequence[Piece] = ()
    if attempt.start_ns is not None and attempt.start_ns < attempt.cut_ns:
        views = [
            RankView(
                rank=rank,
                start_ns=attempt.start_ns,
                end_ns=attempt.cut_ns,
                is_clean=attempt.is_clean,
                spans=spans[rank],
                steps=steps[rank],
                started=start_record(attempt),
                faults=fault_times,
                fault_records=[item.record for item in faults],
                train_end=train_end,
                first_step_ns=min((s.begin_ns for s in steps[rank] or all_steps), default=None),
                infer_compile=policy.infer_compile,
            )
            for rank, train_end in train_ends(attempt, ranks).items()
        ]
        worlds = generations(ranks, steps, attempt.start_ns, attempt.cut_ns)
        pieces = merge_ranks({view.rank: rank_pieces(view) for view in views}, worlds)
    return AttemptTimeline(attempt=attempt, pieces=pieces, steps=all_steps, faults=faults, high=high, unknown=unknown)


def records_by_rank(records: Sequence[Timed]) -> dict[int, list[Timed]]:
    """What each rank wrote itself. An attempt of which no rank wrote anything is one silent rank."""
    ranks: dict[int, list[Timed]] = {}
    for item in records:
        if item.record.rank is not None and not item.record.is_supervisors:
            ranks.setdefault(item.record.rank, []).append(item)
    return ranks or {0: []}


def start_record(attempt: Attempt) -> Record:
    records = [item.record for item in attempt.records]
    return next((record for record in records if record.ev == "attempt_started"), records[0])


def train_ends(attempt: Attempt, ranks: dict[int, list[Timed]]) -> dict[int, Timed | None]:
    """R12: each rank's own train_end; for a rank that wrote none, the attempt's first.

    An inferred one is written by a process that ends and cannot know its exit code: it counts where that was good.
    """
    own: dict[int, Timed] = {}
    first: Timed | None = None
    for item in attempt.records:
        if item.record.ev == "train_end" and (attempt.is_clean or not item.record.data.get("inferred")):
            first = first or item
            if item.record.rank is not None:
                own.setdefault(item.record.rank, item)
    return {rank: own.get(rank, first) for rank in ranks}
