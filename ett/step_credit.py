"""Step records of one attempt -> steps with cursors, completeness and credit (rules R7, R8, R11 and section 1).

A step is global: it is complete when every rank that writes steps has ended it. Ranks run steps in order, so a rank
that ended step n has ended every earlier one of the same stretch between two faults, whatever records were lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from ett.clock_alignment import Timed
from ett.event_schema import Record, has_global_cursor, is_number
from ett.unknown_position import UnknownPosition, doubt_at

Cursor = int | float
Interval = tuple[int, int]


@dataclass(kw_only=True, slots=True)
class Step:
    """One step of one rank in normalised time; open: it began, and its rank ended none before it was stopped.

    `end_ns` is where it ended, `stop_ns` the fault or attempt end that stopped it, if that came first. `stretch`
    counts the faults before it. `high` is the job's high-water mark before it (R8). `doubt` is the record by which
    the step's position is unknown: it earns nothing and raises no mark (R9).
    """

    rank: int
    gen: int
    stretch: int
    number: Cursor
    begin_ns: int
    end_ns: int
    stop_ns: int
    record: Record
    c0: Cursor | None = None
    c1: Cursor | None = None
    is_complete: bool = False
    is_open: bool = False
    is_recovered: bool = False
    high: Cursor = 0
    doubt: Record | None = None

    def time_at(self, cursor: Cursor) -> int:
        """The instant at which the step, at a constant rate, had consumed up to `cursor`; inside [begin, end]."""
        if self.c0 is None or self.c1 is None or cursor >= self.c1:
            return self.end_ns
        if cursor <= self.c0:
            return self.begin_ns
        share = Fraction(cursor - self.c0) / Fraction(self.c1 - self.c0)
        return self.begin_ns + int((self.end_ns - self.begin_ns) * share)


class StepMark(NamedTuple):
    """A step without its record."""

    rank: int
    number: Cursor
    begin_ns: int
    end_ns: int
    stop_ns: int
    c0: Cursor | None
    c1: Cursor | None
    is_complete: bool


def rank_steps(
    ranks: Mapping[int, Sequence[Timed]], faults: Sequence[int], end_ns: int, busy: Mapping[int, Sequence[Interval]]
) -> dict[int, list[Step]]:
    """Return every rank's steps by begin: complete, ended by this rank alone, recovered and open.

    Args:
        ranks: the attempt's records by rank, in order.
        faults: sorted times of the attempt's faults; each stops every rank.
        end_ns: where the attempt ends.
        busy: each rank's blocking spans, which tell a lost step from a busy rank (R11).
    """
    steps = {rank: _ended(rank, records, faults) for rank, records in ranks.items()}
    _fill_cursors([step for own in steps.values() for step in own], _restores(ranks.values(), faults))
    for rank, own in steps.items():
        own.extend(_recovered(own, busy.get(rank, ())))
        own.extend(_open(rank, ranks[rank], own, faults, end_ns))
        own.sort(key=lambda step: (step.begin_ns, step.end_ns, step.number))
    _mark_complete([step for own in steps.values() for step in own])
    return steps


def doubt_steps(steps: Mapping[int, Sequence[Step]], unknown: Sequence[UnknownPosition]) -> None:
    """R9: mark the steps that began while the attempt's position was unknown."""
    if unknown:
        for own in steps.values():
            for step in own:
                step.doubt = doubt_at(step.begin_ns, unknown)


def set_high_water(steps: Mapping[int, Sequence[Step]], high: Cursor) -> Cursor:
    """R8: set each step's high-water mark from `high`, that of all earlier attempts; return the mark after this one."""
    highest = high
    for own in steps.values():
        own_high = high
        for step in own:
            step.high = own_high
            if step.is_complete and step.c1 is not None and step.doubt is None:
                own_high = max(own_high, step.c1)
        highest = max(highest, own_high)
    return highest


def stop_after(begin_ns: int, faults: Sequence[int], end_ns: int) -> int:
    """Where something that began at `begin_ns` is stopped at the latest: the next fault, else `end_ns` (R10)."""
    index = bisect_right(faults, begin_ns)
    return faults[index] if index < len(faults) and faults[index] < end_ns else end_ns


def _ended(rank: int, records: Iterable[Timed], faults: Sequence[int]) -> list[Step]:
    found = []
    for time_ns, record in records:
        if record.ev != "step":
            continue
        data, shift = record.data, time_ns - record.mono_ns
        begin_ns = data["b_mono"] + shift
        end_ns = max(begin_ns, data["e_mono"] + shift)
        number = data["step"] if is_number(data.get("step")) else data["c0"]
        step = Step(
            rank=rank,
            gen=record.gen,
            stretch=bisect_right(faults, begin_ns),
            number=number,
            begin_ns=begin_ns,
            end_ns=end_ns,
            stop_ns=stop_after(begin_ns, faults, end_ns),
            record=record,
        )
        if has_global_cursor(data):
            step.c0, step.c1 = data["c0"], data["c1"]
        found.append(step)
    found.sort(key=lambda step: (step.begin_ns, step.end_ns, step.number))
    return found


def _restores(ranks: Iterable[Iterable[Timed]], faults: Sequence[int]) -> dict[int, Cursor]:
    """The cursor that each stretch between faults was restored to; stretches without a restore are absent."""
    items = sorted((item for records in ranks for item in records if item.record.ev == "restore"), key=lambda i: i[0])
    return {
        bisect_right(faults, time_ns): record.data["cursor"]
        for time_ns, record in items
        if is_number(record.data.get("cursor"))
    }


def _fill_cursors(steps: Sequence[Step], restores: Mapping[int, Cursor]) -> None:
    """Give steps that know only their rank's samples a global range: sums over ranks by step number (section 1)."""
    if all(step.c0 is not None for step in steps):
        return
    cursor: Cursor = 0
    widths: dict[Cursor, dict[int, Cursor]] = {}
    known: dict[Cursor, tuple[Cursor, Cursor]] = {}
    for stretch in sorted({step.stretch for step in steps} | set(restores)):
        own = [step for step in steps if step.stretch == stretch]
        if stretch in restores:
            cursor, widths, known = restores[stretch], {}, {}
        elif own:
            # Survivors of a fault that nobody restored run on, or repeat steps from the first number seen now.
            first = min(step.number for step in own)
            widths = {number: samples for number, samples in widths.items() if number < first}
            known = {number: ends for number, ends in known.items() if number < first}
        for step in own:
            if step.c0 is not None and step.c1 is not None:
                known[step.number] = (step.c0, step.c1)
            else:
                widths.setdefault(step.number, {})[step.rank] = step.record.data["samples"]
        ranges = _ranges(cursor, widths, known)
        for step in own:
            step.c0, step.c1 = ranges[step.number]


def _ranges(
    start: Cursor, widths: Mapping[Cursor, Mapping[int, Cursor]], known: Mapping[Cursor, tuple[Cursor, Cursor]]
) -> dict[Cursor, tuple[Cursor, Cursor]]:
    cursor, ranges = start, {}
    for number in sorted(widths.keys() | known.keys()):
        ranges[number] = known.get(number) or (cursor, cursor + sum(widths[number].values()))
        cursor = ranges[number][1]
    return ranges


def _recovered(own: Sequence[Step], busy: Sequence[Interval]) -> list[Step]:
    """R11: one step for each hole in time and cursor that no fault or blocking span explains."""
    found = []
    for last, following in pairwise(own):
        if last.c1 is None or following.c0 is None or following.c0 <= last.c1 or following.stretch != last.stretch:
            continue
        hole = (last.end_ns, following.begin_ns)
        if hole[0] >= hole[1] or any(begin < hole[1] and end > hole[0] for begin, end in busy):
            continue
        found.append(
            Step(
                rank=last.rank,
                gen=following.gen,
                stretch=last.stretch,
                number=following.number - 1,
                begin_ns=hole[0],
                end_ns=hole[1],
                stop_ns=hole[1],
                record=following.record,
                c0=last.c1,
                c1=following.c0,
                is_recovered=True,
            )
        )
    return found


def _open(rank: int, records: Iterable[Timed], ended: Sequence[Step], faults: Sequence[int], end_ns: int) -> list[Step]:
    """R7: a step_begin whose rank ends no step between it and the next fault."""
    stops = sorted(step.stop_ns for step in ended)
    found = []
    for written_ns, record in records:
        if record.ev != "step_begin":
            continue
        begin_mono = record.data.get("b_mono")
        time_ns = written_ns + (begin_mono - record.mono_ns if type(begin_mono) is int else 0)
        index = bisect_right(stops, time_ns)
        fault = stop_after(time_ns, faults, max(end_ns, stops[-1] if stops else end_ns))
        if index < len(stops) and stops[index] <= fault:
            continue
        number = record.data["step"] if is_number(record.data.get("step")) else float("inf")
        stop_ns = max(time_ns, stop_after(time_ns, faults, end_ns))
        found.append(
            Step(
                rank=rank,
                gen=record.gen,
                stretch=bisect_right(faults, time_ns),
                number=number,
                begin_ns=time_ns,
                end_ns=stop_ns,
                stop_ns=stop_ns,
                record=record,
                is_open=True,
            )
        )
    return found


def _mark_complete(steps: Sequence[Step]) -> None:
    writers: dict[int, set[int]] = {}
    ended_up_to: dict[tuple[int, int, int], Cursor] = {}
    for step in steps:
        writers.setdefault(step.gen, set()).add(step.rank)
        if not step.is_open:
            key = (step.gen, step.stretch, step.rank)
            ended_up_to[key] = max(step.number, ended_up_to.get(key, step.number))
    frontiers: dict[tuple[int, int], Cursor] = {}
    for gen, stretch in {(step.gen, step.stretch) for step in steps}:
        ends = (ended_up_to.get((gen, stretch, rank), float("-inf")) for rank in writers[gen])
        frontiers[gen, stretch] = min(ends)
    for step in steps:
        step.is_complete = not step.is_open and step.number <= frontiers[step.gen, step.stretch]
