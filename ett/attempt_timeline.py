"""One attempt's records -> its pieces, steps and faults (rules R5 to R13 and R15, joined)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ett.clock_alignment import Timed
from ett.event_schema import Record, is_number
from ett.job_window import AccountingPolicy, Attempt
from ett.rank_merge import generations, merge_ranks
from ett.rank_spans import rank_spans
from ett.rank_timeline import Piece, RankView, rank_pieces
from ett.step_credit import Cursor, Step, doubt_steps, rank_steps, set_high_water
from ett.unknown_position import UnknownPosition, unknown_positions


@dataclass(kw_only=True, slots=True)
class AttemptTimeline:
    """`pieces` cover the attempt's [start_ns, cut_ns); `steps` are all ranks' by begin; `high` is the mark after it.

    `unknown` is where its position is unknown (R9).
    """

    attempt: Attempt
    pieces: list[Piece]
    steps: list[Step]
    faults: list[Timed]
    high: Cursor
    unknown: list[UnknownPosition]

    @property
    def last_cursor(self) -> Cursor | None:
        """What the attempt reached: its last complete step's c1, else its restore's cursor, else None."""
        complete = [s for s in self.steps if s.is_complete and s.c1 is not None and s.doubt is None]
        if complete:
            return max(complete, key=lambda s: (s.end_ns, s.c1)).c1
        restores = [r.data["cursor"] for _, r in self.attempt.records if r.ev == "restore"]
        known: list[Cursor] = [cursor for cursor in restores if is_number(cursor)]
        return known[-1] if known else None


def attempt_timeline(attempt: Attempt, high: Cursor, policy: AccountingPolicy) -> AttemptTimeline:
    """Return the attempt's exact partition. `high` is the high-water mark of all earlier attempts."""
    faults = [item for item in attempt.records if item.record.ev == "fault"]
    fault_times = [item.time_ns for item in faults]
    ranks = _by_rank(attempt.records)
    spans = {rank: rank_spans(records, fault_times, attempt.end_ns) for rank, records in ranks.items()}
    busy = {rank: [(s.begin_ns, s.end_ns) for s in own if s.is_blocking] for rank, own in spans.items()}
    steps = rank_steps(ranks, fault_times, attempt.end_ns, busy)
    unknown = unknown_positions(attempt.records, fault_times)
    doubt_steps(steps, unknown)
    high = set_high_water(steps, high)
    all_steps = sorted((step for own in steps.values() for step in own), key=lambda s: (s.begin_ns, s.rank))
    pieces: list[Piece] = []
    if attempt.start_ns is not None and attempt.start_ns < attempt.cut_ns:
        views = [
            RankView(
                rank=rank,
                start_ns=attempt.start_ns,
                end_ns=attempt.cut_ns,
                is_clean=attempt.is_clean,
                spans=spans[rank],
                steps=steps[rank],
                started=_start_record(attempt),
                faults=fault_times,
                fault_records=[item.record for item in faults],
                train_end=train_end,
                first_step_ns=min((s.begin_ns for s in steps[rank] or all_steps), default=None),
                infer_compile=policy.infer_compile,
            )
            for rank, train_end in _train_ends(attempt, ranks).items()
        ]
        worlds = generations(ranks, steps, attempt.start_ns, attempt.cut_ns)
        pieces = merge_ranks({view.rank: rank_pieces(view) for view in views}, worlds)
    return AttemptTimeline(attempt=attempt, pieces=pieces, steps=all_steps, faults=faults, high=high, unknown=unknown)


def _by_rank(records: Sequence[Timed]) -> dict[int, list[Timed]]:
    """What each rank wrote itself. An attempt of which no rank wrote anything is one silent rank."""
    ranks: dict[int, list[Timed]] = {}
    for item in records:
        if item.record.rank is not None and not item.record.is_supervisors:
            ranks.setdefault(item.record.rank, []).append(item)
    return ranks or {0: []}


def _start_record(attempt: Attempt) -> Record:
    records = [item.record for item in attempt.records]
    return next((record for record in records if record.ev == "attempt_started"), records[0])


def _train_ends(attempt: Attempt, ranks: dict[int, list[Timed]]) -> dict[int, Timed | None]:
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
