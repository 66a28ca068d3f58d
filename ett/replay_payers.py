"""Which stop lost the work that a replay does again: the first one after its data was last learned from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from ett.rank_timeline import Piece
from ett.step_credit import Cursor, Step


class _Range(NamedTuple):
    """Samples (lo, hi] were last processed in this life."""

    lo: Cursor
    hi: Cursor
    life: int


class ReplayPayers:
    """Follows a job's steps in order. A replay may be due to a stop that lies several lives back: attempt 2 dies in
    its start-up, attempt 3 replays what attempt 1 had learned, and the stop of attempt 1 pays for that."""

    def __init__(self) -> None:
        self._ranges: list[_Range] = []  # of finished lives: disjoint, sorted
        self._own: list[tuple[Cursor, Cursor]] = []  # of the present life, joined where they touch
        self._last: dict[
            int, tuple[Cursor, int, Cursor, Cursor]
        ] = {}  # rank -> number, begin, high before it, and after

    def learn(self, step: Step) -> None:
        """Take note of a complete step of the present life; again for each piece of it."""
        if step.c0 is None or step.c1 is None:
            return
        _, high = self._highs(step)
        self._last[step.rank] = (step.number, step.begin_ns, high, max(high, step.c1))
        if self._own and self._own[-1][0] <= step.c0 <= self._own[-1][1]:
            self._own[-1] = (self._own[-1][0], max(self._own[-1][1], step.c1))
        else:
            self._own.append((step.c0, step.c1))

    def end_life(self, life: int) -> None:
        """What the present life processed was lost or kept by stop number `life`; the next life begins."""
        for lo, hi in self._own:
            around = [part for old in self._ranges for part in _outside(old, lo, hi)]
            self._ranges = sorted([*around, _Range(lo, hi, life)])
        self._own, self._last = [], {}

    def split(self, piece: Piece, life: int) -> Iterator[tuple[int, int, int | None]]:
        """Yield the parts of a replay's piece with the stop that pays for each.

        None: nobody does, its data was read twice without a stop. Where the log does not show who processed the data
        before, the stop that began this life pays.
        """
        step = piece.step
        if step is None or step.c0 is None or step.c1 is None or not step.c0 < step.c1:
            yield piece.begin_ns, piece.end_ns, life - 1 if life else None
            return
        high, _ = self._highs(step)
        cuts = {step.c0, step.c1, *(c for c in (high, *self._edges()) if step.c0 < c < step.c1)}
        for lo, hi in pairwise(sorted(cuts)):
            begin_ns, end_ns = max(piece.begin_ns, step.time_at(lo)), min(piece.end_ns, step.time_at(hi))
            if begin_ns < end_ns:
                yield begin_ns, end_ns, self._payer(lo, hi, high, life)

    def _payer(self, lo: Cursor, hi: Cursor, high: Cursor, life: int) -> int | None:
        if hi <= high or not life:
            return None
        return next((known.life for known in self._ranges if known.lo <= lo and hi <= known.hi), life - 1)

    def _highs(self, step: Step) -> tuple[Cursor, Cursor]:
        """The highest cursor that the step's rank reached in this life before the step, and before any next one."""
        number, begin_ns, before, after = self._last.get(step.rank, (-1, -1, float("-inf"), float("-inf")))
        is_same = (number, begin_ns) == (step.number, step.begin_ns)
        return (before, before) if is_same else (after, after)

    def _edges(self) -> Iterator[Cursor]:
        for known in self._ranges:
            yield known.lo
            yield known.hi


def _outside(old: _Range, lo: Cursor, hi: Cursor) -> Iterator[_Range]:
    if old.lo < lo:
        yield old._replace(hi=min(old.hi, lo))
    if old.hi > hi:
        yield old._replace(lo=max(old.lo, hi))
