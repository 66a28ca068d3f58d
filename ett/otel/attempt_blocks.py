"""The partition of a job, cut into one block for each attempt and each block into runs of one component."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ett.accounting import JobAccount
from ett.attempt_timeline import AttemptTimeline
from ett.event_schema import Component
from ett.rank_timeline import Piece

# A recompile in every step would cut training in as many spans: beyond so many runs the shortest join their neighbour.
MAX_RUNS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Adjacent pieces that become one span; `lane` is its component, `training` for effective and wasted."""

    lane: str
    pieces: Sequence[Piece]

    @property
    def start_ns(self) -> int:
        return self.pieces[0].begin_ns

    @property
    def end_ns(self) -> int:
        return self.pieces[-1].end_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """What a job paid for one attempt: its wait, its start-up and its life. `timeline` is None after the last one."""

    timeline: AttemptTimeline | None
    pieces: Sequence[Piece]

    @property
    def start_ns(self) -> int:
        return self.pieces[0].begin_ns

    @property
    def end_ns(self) -> int:
        return self.pieces[-1].end_ns


def lane_of(component: Component) -> str:
    return "training" if component in ("effective", "wasted") else component


def attempt_blocks(account: JobAccount) -> list[Block]:
    """Return blocks that cover the job's window in order, at most one an attempt.

    Time in which no attempt is alive belongs to the attempt that it leads to; after the last one, to none.
    """
    alive = sorted((t.pieces[0].begin_ns, t.pieces[-1].end_ns, t) for t in account.timelines if t.pieces)
    begins = [begin for begin, _, _ in alive]
    by_number = {t.attempt.number: t for t in account.timelines}
    blocks: list[Block] = []
    owner: AttemptTimeline | None = None
    own: list[Piece] = []
    closed: set[int] = set()
    for piece in reversed(account.pieces):
        index = bisect_right(begins, piece.begin_ns) - 1
        of_piece = owner
        if index >= 0 and piece.begin_ns < alive[index][1]:
            of_piece = alive[index][2]
        elif piece.rule == "R4" and piece.record is not None:
            of_piece = by_number.get(piece.record.att, owner)
        # An allocation that a later attempt held before an earlier one ran does not tear its block apart.
        if of_piece is not owner and id(of_piece) not in closed:
            if own:
                blocks.append(Block(timeline=owner, pieces=own[::-1]))
            closed.add(id(owner))
            owner, own = of_piece, []
        own.append(piece)
    if own:
        blocks.append(Block(timeline=owner, pieces=own[::-1]))
    return blocks[::-1]


def component_runs(pieces: Sequence[Piece], max_runs: int = MAX_RUNS) -> list[Run]:
    """Return runs that cover `pieces` in order: adjacent ones of one lane are one run."""
    runs = _joined((lane_of(piece.component), [piece]) for piece in pieces)
    if len(runs) > max_runs:
        lengths = sorted((run.end_ns - run.start_ns for run in runs), reverse=True)
        runs = _absorbed(runs, lengths[max_runs])
    return runs


def _joined(parts: Iterable[tuple[str, Sequence[Piece]]]) -> list[Run]:
    return [
        Run(lane=lane, pieces=[piece for _, pieces in group for piece in pieces])
        for lane, group in groupby(parts, key=lambda part: part[0])
    ]


def _absorbed(runs: Sequence[Run], up_to_ns: int) -> list[Run]:
    """Give every run of at most `up_to_ns` to the run before it; the first ones to the first that is longer."""
    parts: list[tuple[str, Sequence[Piece]]] = []
    lane = next((run.lane for run in runs if run.end_ns - run.start_ns > up_to_ns), runs[0].lane)
    for run in runs:
        if run.end_ns - run.start_ns > up_to_ns:
            lane = run.lane
        parts.append((lane, run.pieces))
    return _joined(parts)
