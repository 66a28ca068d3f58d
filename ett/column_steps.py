"""Steps of an attempt that lie in columns, as the sequence of `Step` that they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import TYPE_CHECKING, Any, cast, overload

from ett.clock_alignment import Timed
from ett.event_schema import Record
from ett.job_window import Attempt
from ett.rank_timeline import latest_evidence
from ett.step_credit import Step, StepMark
from ett.unknown_position import UnknownPosition, doubt_at

if TYPE_CHECKING:
    from ett.column_view import ColumnView


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What of an attempt is not in columns."""

    started: tuple[int, Record | None]
    faults: Sequence[Timed]
    train_ends: Mapping[int, Timed | None]
    unknown: Sequence[UnknownPosition]


class ColumnSteps(Sequence[Step]):
    """All ranks' steps by begin. What the report asks of them is answered without making them."""

    def __init__(self, sweep: Any, view: ColumnView, evidence: Evidence) -> None:
        self.sweep, self._view, self._evidence = sweep, view, evidence
        self._made: list[Step] | None = None

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[Step]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        return self._all()[index]

    def of_pieces(self, refs: Sequence[int], ranks: Sequence[int]) -> list[Step]:
        """Return the step that each piece refers to; pieces of one step one after the other share it."""
        is_new = [i == 0 or (refs[i], ranks[i]) != (refs[i - 1], ranks[i - 1]) for i in range(len(refs))]
        made = self._steps(self.sweep.steps_at(list(compress(refs, is_new)), list(compress(ranks, is_new))))
        return [made[place - 1] for place in accumulate(is_new)]

    def marks(self) -> Iterator[StepMark]:
        """Yield what there is to say of each step without its record: many times as fast."""
        for rank, _, _, number, begin, end, stop, c0, c1, complete, *_ in self.sweep.steps():
            yield StepMark(rank, float("inf") if number is None else number, begin, end, stop, c0, c1, complete)

    def record(self, stream: int, row: int) -> Record:
        return self._view.columns.record(stream, row)

    def attempt_records(self, attempt: Attempt) -> list[Timed]:
        """Return the attempt's records in order: those of the outline, all spans, and the last of each stream."""
        return self._view.attempt_records(attempt)

    def has_inferred_span(self, attempt: Attempt) -> bool:
        return bool(self._view.columns.native.has_inferred_span(attempt.number))

    def text(self, number: int) -> str:
        return str(self._view.columns.native.text(number))

    def latest_evidence(self, time_ns: int, last_step: Step | None, rank: int) -> Record | None:
        """Why an instant in which nothing of the rank ran is charged as it is."""
        evidence = self._evidence
        return latest_evidence(time_ns, evidence.started, last_step, evidence.faults, evidence.train_ends.get(rank))

    def _all(self) -> list[Step]:
        if self._made is None:
            self._made = self._steps(self.sweep.steps())
        return self._made

    def _steps(self, found: Sequence[tuple[Any, ...]]) -> list[Step]:
        by_stream: dict[int, list[int]] = {}
        for index, values in enumerate(found):
            by_stream.setdefault(values[-2], []).append(index)
        steps: list[Step | None] = [None] * len(found)
        for stream, indices in by_stream.items():
            records = self._view.columns.records_at(stream, [found[index][-1] for index in indices])
            for index, record in zip(indices, records, strict=True):
                steps[index] = self._step(found[index], record)
        return cast("list[Step]", steps)

    def _step(self, values: tuple[Any, ...], record: Record) -> Step:
        rank, gen, stretch, number, begin, end, stop, c0, c1, complete, is_open, recovered, _, _ = values
        return Step(
            rank=rank,
            gen=gen,
            stretch=stretch,
            number=float("inf") if number is None else number,
            begin_ns=begin,
            end_ns=end,
            stop_ns=stop,
            record=record,
            c0=c0,
            c1=c1,
            is_complete=complete,
            is_open=is_open,
            is_recovered=recovered,
            doubt=doubt_at(begin, self._evidence.unknown) if self._evidence.unknown else None,
        )
