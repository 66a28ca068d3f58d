"""Pieces that lie in columns, as the sequence of `Piece` that they stand for; sums are taken from the columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from operator import eq
from typing import TYPE_CHECKING, Any, Union, cast, overload

from ett.event_schema import Component
from ett.interval_set import Interval, overlaps
from ett.log_columns import NATIVE
from ett.rank_merge import PRECEDENCE
from ett.rank_timeline import Label, Piece, span_rule

if TYPE_CHECKING:
    from ett.attempt_timeline import AttemptTimeline
    from ett.column_steps import ColumnSteps
    from ett.step_credit import Cursor, Step

# In the order of Label in _rank_sweep.hpp.
LABELS: tuple[Label, ...] = (
    ("effective", "new_data", "R8"),
    ("effective", "new_data", "R11"),
    ("wasted", "replay", "R8"),
    ("wasted", "in_flight", "R7"),
    ("wasted", "cursor_unknown", "R9"),
    ("compilation", "inferred", "R20"),
    ("shutdown", "step", "R12"),
    ("shutdown", "untracked", "R12"),
    ("initialization", "inprocess_restart", "R6"),
    ("initialization", "untracked", "R6"),
    ("wasted", "untracked", "R6"),
    ("shutdown", "untracked", "R6"),
    ("wasted", "in_flight", "R6"),
    ("wasted", "unsaved_tail", "R14"),
)
_CREDITED, _CURSOR_UNKNOWN, _UNSAVED, _AFTER_END, _LAST_OF_STEPS = (0, 1, 2, 13), 4, 13, 6, 6
_ROWS_AT_ONCE = 4096
Reason = tuple[Component, str]
Part = Union["SweptPieces", list[Piece]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SweptPieces:
    """The pieces of one attempt that lie in [begin_ns, end_ns), the two at its edges cut there."""

    native: Any
    timeline: AttemptTimeline
    begin_ns: int
    end_ns: int
    first: int
    last: int  # one past
    only_unsaved: bool = False

    @classmethod
    def whole(cls, native: Any, timeline: AttemptTimeline) -> SweptPieces:
        start_ns = timeline.attempt.start_ns or 0
        return cls(
            native=native,
            timeline=timeline,
            begin_ns=start_ns,
            end_ns=timeline.attempt.cut_ns,
            first=0,
            last=len(native),
        )

    def clipped(self, begin_ns: int, end_ns: int) -> SweptPieces | None:
        begin_ns, end_ns = max(begin_ns, self.begin_ns), min(end_ns, self.end_ns)
        if begin_ns >= end_ns:
            return None
        first, last = self.native.find(begin_ns), min(self.native.find(end_ns - 1) + 1, len(self.native))
        return replace(self, begin_ns=begin_ns, end_ns=end_ns, first=first, last=last)

    def reclassified(self, kept: Cursor, *, only_unsaved: bool = False) -> SweptPieces:
        """R14: effective time whose data lies above `kept` is unsaved; only that where asked."""
        native = self.native.reclassified(None if isinstance(kept, float) else kept, only_unsaved)
        whole = replace(self, native=native, first=0, last=len(native), only_unsaved=only_unsaved)
        found = whole.clipped(self.begin_ns, self.end_ns)
        assert found is not None, "the same interval"
        return found

    def measure(self, kept: Sequence[Interval]) -> dict[Reason, int]:
        """Return the time inside `kept` by component and reason."""
        sums: Counter[Reason] = Counter()
        for label, ns in self.native.measure(overlaps(kept, self.begin_ns, self.end_ns)).items():
            if not self.only_unsaved or label == _UNSAVED:
                sums[self._reason(label)] += ns
        return sums

    def __iter__(self) -> Iterator[Piece]:
        return self.rows(self.first, self.last)

    def begins(self) -> Iterator[int]:
        """Yield where each piece begins; not of `only_unsaved`, whose pieces do not follow each other."""
        for at in range(self.first, self.last, _ROWS_AT_ONCE):
            column = self.native.arrays(at, min(self.last, at + _ROWS_AT_ONCE))[0]
            yield from (max(begin_ns, self.begin_ns) for begin_ns in column.tolist())

    def rows(self, first: int, last: int) -> Iterator[Piece]:
        for at in range(first, last, _ROWS_AT_ONCE):
            columns = self.native.arrays(at, min(last, at + _ROWS_AT_ONCE))
            begins, ends, labels, refs, ranks = (column.tolist() for column in columns)
            has_step = [label < NATIVE.FIRST_SPAN_LABEL and ref >= 0 for label, ref in zip(labels, refs, strict=True)]
            steps = iter(self._steps.of_pieces(list(compress(refs, has_step)), list(compress(ranks, has_step))))
            for index, row in enumerate(zip(begins, ends, labels, refs, ranks, strict=True)):
                step = next(steps) if has_step[index] else None
                if not self.only_unsaved or row[2] == _UNSAVED:
                    yield self._piece(*row, step)

    def _reason(self, label: int) -> Reason:
        if label < NATIVE.FIRST_SPAN_LABEL:
            return LABELS[label][:2]
        name, component = divmod(label - NATIVE.FIRST_SPAN_LABEL, NATIVE.LABELS_OF_SPAN)
        return ("shutdown" if component == _AFTER_END else PRECEDENCE[component], self._text(name))

    def _piece(  # noqa: PLR0917 - a row of the columns, and the step that it refers to
        self, begin_ns: int, end_ns: int, label: int, ref: int, rank: int, step: Step | None
    ) -> Piece:
        begin_ns, end_ns = max(begin_ns, self.begin_ns), min(end_ns, self.end_ns)
        steps = self._steps
        if label >= NATIVE.FIRST_SPAN_LABEL:
            component, reason = self._reason(label)
            _, was_closed, stream, row = steps.sweep.span(rank, ref & ~NATIVE.SPAN)
            is_ended = (label - NATIVE.FIRST_SPAN_LABEL) % NATIVE.LABELS_OF_SPAN == _AFTER_END
            rule = span_rule(component, is_ended=is_ended, was_closed=was_closed)
            return Piece(begin_ns, end_ns, component, reason, rule, rank, None, steps.record(stream, row), True)
        component, reason, rule = LABELS[label]
        if label > _LAST_OF_STEPS and label != _UNSAVED:
            evidence = steps.latest_evidence(begin_ns, step, rank)
            return Piece(begin_ns, end_ns, component, reason, rule, rank, None, evidence)
        assert step is not None, "a step's label"
        evidence = step.doubt if label == _CURSOR_UNKNOWN else step.record
        return Piece(
            begin_ns, end_ns, component, reason, rule, rank, step if label in _CREDITED else None, evidence, True
        )

    def _text(self, name: int) -> str:
        return str(self._steps.text(name))

    @property
    def _steps(self) -> ColumnSteps:
        return cast("ColumnSteps", self.timeline.steps)


class ColumnPieces(Sequence[Piece]):
    """Pieces in order: those of swept attempts, and lists of those between them."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = [part for part in parts if not isinstance(part, list) or part]
        self._made: list[Piece] | None = None

    def __len__(self) -> int:
        if any(isinstance(part, SweptPieces) and part.only_unsaved for part in self.parts):
            return sum(1 for _ in self)
        return sum(len(part) if isinstance(part, list) else part.last - part.first for part in self.parts)

    def __iter__(self) -> Iterator[Piece]:
        for part in self.parts:
            yield from part

    @overload
    def __getitem__(self, index: int) -> Piece: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Piece]: ...
    def __getitem__(self, index: int | slice) -> Piece | Sequence[Piece]:
        edge = self.parts[0 if index == 0 else -1] if index in (0, -1) and self.parts else None
        if isinstance(edge, list):
            return edge[cast("int", index)]
        if isinstance(edge, SweptPieces) and not edge.only_unsaved:
            at = edge.first if index == 0 else edge.last - 1
            return next(edge.rows(at, at + 1))
        if self._made is None:
            self._made = list(self)
        return self._made[index]

    def __eq__(self, other: object) -> bool:
        """Equal to any sequence of equal pieces, as the tuple is that it stands for."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]


def joined(parts: Sequence[Part]) -> Sequence[Piece]:
    """Return the pieces of all parts as one sequence: a tuple, or columns where some of them are."""
    if any(isinstance(part, SweptPieces) for part in parts):
        return ColumnPieces(parts)
    return tuple(piece for part in parts for piece in part)


def parts_of(pieces: Sequence[Piece]) -> Sequence[Part]:
    return pieces.parts if isinstance(pieces, ColumnPieces) else [list(pieces)]


def clipped(pieces: Sequence[Piece], begin_ns: int, end_ns: int) -> list[Part]:
    """Return what of the pieces lies in [begin_ns, end_ns), cut at its edges."""
    found: list[Part] = []
    for part in parts_of(pieces):
        if isinstance(part, SweptPieces):
            inside = part.clipped(begin_ns, end_ns)
            if inside is not None:
                found.append(inside)
        else:
            edges = ((piece, max(piece.begin_ns, begin_ns), min(piece.end_ns, end_ns)) for piece in part)
            found.append([piece._replace(begin_ns=b, end_ns=e) for piece, b, e in edges if b < e])
    return found


def reclassified(pieces: Sequence[Piece], kept: Cursor) -> Sequence[Piece]:
    """R14: effective time whose data lies above `kept` is unsaved; a step that straddles it pro-rata, kept first."""
    parts = parts_of(pieces)
    return joined([p.reclassified(kept) if isinstance(p, SweptPieces) else _reclassified(p, kept) for p in parts])


def unsaved(pieces: Sequence[Piece], kept: Cursor) -> Sequence[Piece]:
    """Return the pieces that `reclassified` would call unsaved."""
    parts: list[Part] = []
    for part in parts_of(pieces):
        if isinstance(part, SweptPieces):
            parts.append(part.reclassified(kept, only_unsaved=True))
        else:
            parts.append([piece for piece in _reclassified(part, kept) if piece.reason == "unsaved_tail"])
    return joined(parts)


def _reclassified(pieces: Sequence[Piece], kept: Cursor) -> list[Piece]:
    """R14: effective time whose data lies above `kept` is unsaved; a step that straddles it pro-rata, kept first."""
    found: list[Piece] = []
    for piece in pieces:
        if piece.component != "effective" or piece.step is None:
            found.append(piece)
            continue
        lost_from_ns = min(max(piece.step.time_at(kept), piece.begin_ns), piece.end_ns)
        if lost_from_ns == piece.end_ns:
            found.append(piece)
            continue
        if lost_from_ns > piece.begin_ns:
            found.append(piece._replace(end_ns=lost_from_ns))
        found.append(piece._replace(begin_ns=lost_from_ns, component="wasted", reason="unsaved_tail", rule="R14"))
    return found
