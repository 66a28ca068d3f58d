"""A log in columns as the rules see it: the few records that decide a job's outline, and attempts swept natively.

The outline of a job (clocks, window, attempts, generations) follows from the earliest and the latest record of each
stream and from what is no plain record, so the same functions find it for columns and for records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import isinf
from typing import Any

from ett.attempt_timeline import AttemptTimeline, records_by_rank, start_record, train_ends
from ett.clock_alignment import Boot, ClockAlignment, Timed, align, order
from ett.column_pieces import ColumnPieces, SweptPieces
from ett.column_steps import ColumnSteps, Evidence
from ett.event_schema import COMPONENTS, SPAN_COMPONENTS, Record, is_number
from ett.job_window import AccountingPolicy, Attempt
from ett.log_columns import NATIVE, LogColumns
from ett.rank_merge import PRECEDENCE, generations
from ett.step_credit import Cursor
from ett.unknown_position import unknown_positions

_MOST_CLOCK = 1 << 62
_COMPONENTS = {name: PRECEDENCE.index(component) for name, component in SPAN_COMPONENTS.items()}
assert set(PRECEDENCE) == set(COMPONENTS)


class ColumnView:
    """`timed` is the outline, in order; `attempt_timeline` sweeps one of its attempts."""

    def __init__(self, columns: LogColumns, as_of_ns: int | None) -> None:
        self.columns = columns
        while True:
            self.streams = self.columns.native.summary()
            self.timed, self.clocks = self._outline()
            if as_of_ns is None or not self._cut(as_of_ns):
                break

    @property
    def is_exact(self) -> bool:
        """False where a time would not fit into the columns' integers."""
        return all(abs(constant) < _MOST_CLOCK for constant in self.clocks.constants.values())

    def attempt_timeline(self, attempt: Attempt, high: Cursor, policy: AccountingPolicy) -> AttemptTimeline:
        """Return what `ett.attempt_timeline.attempt_timeline` returns for the attempt's whole records.

        Raises: OverflowError: a cursor leaves the range of the columns.
        """
        sweep = NATIVE.Attempt(self.columns.native, attempt.number)
        faults = [item for item in attempt.records if item.record.ev == "fault"]
        fault_times = [item.time_ns for item in faults]
        unknown = unknown_positions(attempt.records, fault_times)
        ranks = records_by_rank(attempt.records)
        ends = train_ends(attempt, ranks)
        start_ns = attempt.start_ns if attempt.start_ns is not None else attempt.cut_ns
        facts = {
            "start": start_ns,
            "cut": attempt.cut_ns,
            "end": attempt.end_ns,
            "has_time": attempt.start_ns is not None and attempt.start_ns < attempt.cut_ns,
            "is_clean": attempt.is_clean,
            "infer_compile": policy.infer_compile,
            "high": None if isinstance(high, float) else high,
            "faults": fault_times,
            "unknown": [(_finite(u.begin_ns), _finite(u.end_ns)) for u in unknown],
            "restores": _restores(ranks, fault_times),
            "train_ends": {rank: end.time_ns for rank, end in ends.items() if end is not None},
            "worlds": [
                (w.begin_ns, w.end_ns, w.gen, list(w.ranks)) for w in generations(ranks, {}, start_ns, attempt.cut_ns)
            ],
        }
        started = start_record(attempt)
        evidence = Evidence(started=(start_ns, started), faults=faults, train_ends=ends, unknown=unknown)
        native = sweep.run(facts, list(ranks), self._native_clocks(), _COMPONENTS)
        found = sweep.high()
        timeline = AttemptTimeline(
            attempt=attempt,
            pieces=(),
            steps=ColumnSteps(sweep, self, evidence),
            faults=faults,
            high=float("-inf") if found is None else found,
            unknown=unknown,
        )
        if facts["has_time"]:
            timeline.pieces = ColumnPieces([SweptPieces.whole(native, timeline)])
        return timeline

    def record(self, stream: int, row: int) -> Record:
        return self.columns.record(stream, row, self.streams[stream][0])

    def _outline(self) -> tuple[list[Timed], ClockAlignment]:
        records = list(self.columns.others)
        for stream, (file, kind, *_, earliest, latest, size, _, _) in enumerate(self.streams):
            # Spans are few, and readers of an attempt's records (traces, exports) look for each of them.
            rows = range(size) if NATIVE.KINDS[kind].startswith("span") else sorted({earliest, latest})
            records.extend(self.columns.record(stream, row, file) for row in rows)
        clocks = align(records)
        timed = [Timed(clocks.time_ns(record), record) for record in records]
        timed.sort(key=order)
        return timed, clocks

    def _cut(self, as_of_ns: int) -> bool:
        """Leave out what is later; return whether anything was. Clocks are then aligned again without it."""
        limits = [as_of_ns - self._clock(host, boot) for (_, _, _, _, _, _, host, boot, *_) in self.streams]
        others = [r for r in self.columns.others if self.clocks.time_ns(r) <= as_of_ns]
        latest = [stream[-1] for stream in self.streams]
        if len(others) == len(self.columns.others) and all(n <= limit for n, limit in zip(latest, limits, strict=True)):
            return False
        self.columns = self.columns.until([max(-_MOST_CLOCK, min(_MOST_CLOCK, limit)) for limit in limits], others)
        return True

    def _clock(self, host: int, boot: int) -> int:
        return self.clocks.constants[self._boot(host, boot)]

    def _boot(self, host: int, boot: int) -> Boot:
        text = self.columns.native.text
        return ("" if host < 0 else text(host), "" if boot < 0 else text(boot))

    def _native_clocks(self) -> Mapping[tuple[int, int], int]:
        return {(host, boot): self._clock(host, boot) for (_, _, _, _, _, _, host, boot, *_) in self.streams}


def _finite(time_ns: float) -> int | None:
    return None if isinf(time_ns) else int(time_ns)


def _restores(ranks: Mapping[int, Sequence[Timed]], faults: Sequence[int]) -> dict[int, Any]:
    """The cursor that each stretch between faults was restored to."""
    items = sorted((item for own in ranks.values() for item in own if item.record.ev == "restore"), key=lambda i: i[0])
    return {
        bisect_right(faults, time_ns): record.data["cursor"]
        for time_ns, record in items
        if is_number(record.data.get("cursor"))
    }
