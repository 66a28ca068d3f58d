"""A job as a sequence of lives that can be edited and played again: what was paid, in order, and where in its data.

A life lies between two stops (ett/stops.py). Its items sum to its recorded time exactly; nothing is estimated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median_low
from typing import NamedTuple

from ett.accounting import JobAccount
from ett.attribution import RanksHeld, kept_time
from ett.event_schema import Component
from ett.interval_set import Interval, measure
from ett.rank_timeline import Piece
from ett.step_credit import Cursor, Step, StepMark
from ett.stops import FirstNewStep, Stop, find_stops

Place = int | float | Fraction
_START_UP = ("scheduling", "initialization", "compilation")


class Item(NamedTuple):
    """Some time of one component and reason at a place of the data.

    A step's item covers the samples (lo, hi]; `number` is there on the item that completes the step. Any other item
    stands where the samples up to `hi` were done: lo == hi. `ranks` were held meanwhile (R18).
    """

    component: Component
    reason: str
    ns: int
    lo: Place
    hi: Place
    is_step: bool = False
    number: Cursor | None = None
    ranks: int = 0


class Commit(NamedTuple):
    """`time_ns` in normalised time: when the record was written."""

    time_ns: int
    cursor: Cursor


@dataclass(frozen=True, kw_only=True, slots=True)
class Life:
    """What was paid between two stops. `waited`: until its attempt started; `start`: all start-up until new data;
    `work`: steps and what the loop did between them; `death`: what ran after that until the stop, or the shutdown.

    `num_before_loop` items of `start` came before the first step began; the others, a compilation for instance, ran in
    the loop. `stop` is None for the last life of a job that nothing interrupted. `committed` is the cursor that a save
    in the shutdown kept, None where there was none; `commits` are those of its loop.
    """

    waited: tuple[Item, ...] = ()
    start: tuple[Item, ...] = ()
    work: tuple[Item, ...] = ()
    death: tuple[Item, ...] = ()
    num_before_loop: int = 0
    stop: Stop | None = None
    committed: Cursor | None = None
    commits: tuple[Commit, ...] = ()

    @property
    def begins(self) -> Place | None:
        """Where its first step began: the place that it resumed at; None: it died before it completed any."""
        return next((item.lo for item in self.work if item.is_step), None)

    @property
    def reach(self) -> Place | None:
        """The highest place that its steps got to; None: it died before it completed any."""
        return max((item.hi for item in self.work if item.is_step), default=None)

    def items(self) -> Iterable[Item]:
        yield from self.waited
        yield from self.start
        yield from self.work
        yield from self.death


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedJob:
    """A job's lives, and what a replay must know beside them.

    `keeps_tail`: the job succeeded or still runs, so commits do not decide what it kept. `commit_lag_ns`: from the end
    of a saved step to its commit record, the median; None without commits. `first_number`: of the job's first step.
    """

    job: str
    lives: tuple[Life, ...]
    keeps_tail: bool
    commit_lag_ns: int | None
    first_number: Cursor


def cut_from(item: Item, place: Place) -> Item:
    """Return the part of a step's item above `place`, pro-rata; the whole of one that lies above it."""
    if item.lo >= place:
        return item
    share = Fraction(item.hi - place) / Fraction(item.hi - item.lo)
    return item._replace(ns=int(item.ns * share), lo=place)


def cut_at(item: Item, place: Place) -> tuple[Item, ...]:
    """Return a step's item as its parts below and above `place`: they sum to it exactly."""
    if item.hi <= place or item.lo >= place:
        return (item,)
    above = cut_from(item, place)
    return (item._replace(ns=item.ns - above.ns, hi=place, number=None), above)


def recorded_job(account: JobAccount) -> RecordedJob:
    """Return the lives of a job as they were recorded, its exclusions left out."""
    kept, held = kept_time(account, None, ()), RanksHeld(account)
    commits = _commits(account)
    lives: list[Life] = []
    own: list[Piece] = []
    stops = find_stops(account)
    for piece in account.pieces:
        while len(lives) < len(stops) and stops[len(lives)].at_ns <= piece.begin_ns:
            lives.append(_life(own, stops[len(lives)], kept, held, commits))
            own = []
        own.append(piece)
    for stop in (*stops[len(lives) :], None):
        lives.append(_life(own, stop, kept, held, commits))
        own = []
    steps = [mark for timeline in account.timelines for mark in timeline.step_marks()]
    return RecordedJob(
        job=account.job,
        lives=tuple(lives),
        keeps_tail=account.window.state in ("SUCCEEDED", "RUNNING", "LOST"),
        commit_lag_ns=_commit_lag_ns([commit for life in lives for commit in life.commits], steps),
        first_number=min((step.number for step in steps), default=1),
    )


def _life(
    pieces: Sequence[Piece],
    stop: Stop | None,
    kept: Sequence[Interval],
    held: RanksHeld,
    commits: Sequence[Commit],
) -> Life:
    waited: list[Item] = []
    start: list[Item] = []
    loop: list[Item] = []
    num_before_loop: int | None = None
    num_lasting = 0  # items of the loop up to the last one after which the life went on
    place: Place = float("-inf")
    has_started, first_new = False, FirstNewStep()
    last_step: tuple[int, Step] | None = None
    committed: Cursor | None = None
    own = _within(commits, pieces)
    for piece in pieces:
        ranks = held.ranks(piece.component, piece.begin_ns)
        item = _item(piece, measure(kept, piece.begin_ns, piece.end_ns), place, ranks)
        place = item.hi
        has_started = has_started or not (item.component == "scheduling" or item.reason == "provision")
        if not has_started:
            waited.append(item)
            continue
        if item.component in _START_UP and not first_new.is_done and not _is_dying(piece, stop):
            start.append(item)
            continue
        if item.is_step and piece.step is not None:
            num_before_loop = len(start) if num_before_loop is None else num_before_loop
            if last_step is not None and last_step[1].number != piece.step.number:
                _complete(loop, *last_step)
            last_step = len(loop), piece.step
        first_new.see(piece)
        loop.append(item)
        if not _ends_a_life(piece, stop):
            num_lasting = len(loop)
        elif piece.rule == "R7" and loop[:-1] and loop[-2].reason == "untracked":
            num_lasting = len(loop) - 1  # what led to the next step is the loop, though that step was cut
        elif item.component == "shutdown":
            late = [c for c in own if piece.begin_ns < c.time_ns <= piece.end_ns]
            committed = max((c.cursor for c in late), default=committed)
            own = [c for c in own if c not in late]
    if last_step is not None:
        _complete(loop, *last_step)
    return Life(
        waited=tuple(waited),
        start=tuple(start),
        work=tuple(loop[:num_lasting]),
        death=tuple(loop[num_lasting:]),
        num_before_loop=len(start) if num_before_loop is None else num_before_loop,
        stop=stop,
        committed=committed,
        commits=tuple(own),
    )


def _within(commits: Sequence[Commit], pieces: Sequence[Piece]) -> list[Commit]:
    return [c for c in commits if pieces and pieces[0].begin_ns < c.time_ns <= pieces[-1].end_ns]


def _item(piece: Piece, ns: int, place: Place, ranks: int) -> Item:
    step = piece.step
    if step is None or step.c0 is None or step.c1 is None:
        return Item(piece.component, piece.reason, ns, place, place, ranks=ranks)
    lo, hi = _cursor(step, piece.begin_ns), _cursor(step, piece.end_ns)
    return Item(piece.component, piece.reason, ns, lo, hi, is_step=True, ranks=ranks)


def _cursor(step: Step, time_ns: int) -> Place:
    """The inverse of Step.time_at."""
    assert step.c0 is not None
    assert step.c1 is not None
    if time_ns >= step.end_ns:
        return step.c1
    done = Fraction(time_ns - step.begin_ns, step.end_ns - step.begin_ns)
    return step.c0 + done * Fraction(step.c1 - step.c0) if done else step.c0


def _complete(loop: list[Item], index: int, step: Step) -> None:
    """Mark the last item of a step: its very end may lie behind something of another rank."""
    hi = loop[index].hi if step.c1 is None else step.c1
    loop[index] = loop[index]._replace(number=step.number, hi=hi)


def _is_dying(piece: Piece, stop: Stop | None) -> bool:
    return stop is not None and piece.begin_ns >= stop.fatal_from_ns


def _ends_a_life(piece: Piece, stop: Stop | None) -> bool:
    """True for what a life may end in: a cut step or span, loop time that led to a fault, the shutdown."""
    if piece.step is not None:
        return False
    if piece.component in ("shutdown", "scheduling") or piece.reason == "in_flight" or piece.rule == "R10":
        return True
    if stop is None:
        return False
    return _is_dying(piece, stop) or (stop.kind == "inprocess" and piece.reason == "untracked")


def _commits(account: JobAccount) -> list[Commit]:
    return [
        Commit(time_ns, record.data["cursor"])
        for timeline in account.timelines
        for time_ns, record in timeline.attempt.records
        if record.ev == "ckpt_commit"
    ]


def _commit_lag_ns(commits: Sequence[Commit], steps: Iterable[StepMark]) -> int | None:
    """The median time from the end of a step to the commit record of its cursor."""
    ends: dict[Cursor, list[int]] = {commit.cursor: [] for commit in commits}
    for step in steps:
        if step.is_complete and step.c1 in ends:
            ends[step.c1].append(step.end_ns)
    lags = [time_ns - max(before) for time_ns, c in commits if (before := [e for e in ends[c] if e <= time_ns])]
    return median_low(lags) if lags else None
