"""A log in columns as the rules see it: the few records that decide a job's outline, and attempts swept natively.

The outline of a job (clocks, window, attempts, generations) follows from the earliest and the latest record of each
stream and from what is no plain record, so the same functions find it for columns and for records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any

from ett.attempt_timeline import AttemptTimeline, records_by_rank, start_record, train_ends
from ett.clock_alignment import Boot, ClockAlignment, Timed, align, order
from ett.column_pieces import ColumnPieces, SweptPieces
from ett.column_steps import ColumnSteps, Evidence
from ett.event_schema import COMPONENTS, NS, SPAN_COMPONENTS, is_number
from ett.job_window import AccountingPolicy, Attempt
from ett.log_columns import NATIVE, LogColumns, num_cores
from ett.rank_merge import PRECEDENCE, generations
from ett.step_credit import Cursor
from ett.unknown_position import unknown_positions

_MOST_CLOCK = 1 << 62
_COMPONENTS = {name: PRECEDENCE.index(component) for name, component in SPAN_COMPONENTS.items()}
assert set(PRECEDENCE) == set(COMPONENTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepEffort:
    """How an attempt is swept; it decides nothing but the time that it takes."""

    threads: int = 1
    threads_from_records: int = 1 << 14  # fewer are done before a thread has started
    block: int | None = None  # pieces of a rank held at once; None: some MiB of all ranks

    def of(self, num_ranks: int) -> tuple[int, int, int]:
        block = self.block or max(16, min(4096, (1 << 16) // num_ranks))
        return self.threads, self.threads_from_records, block


class ColumnView:
    """`timed` is the outline, in order; `attempt_timeline` sweeps one of its attempts.

    Args:
        settle_s: of a log that grows: what is older than this beside the slowest rank is swept once (`LiveAccount`).
        effort: None: threads as there are cores. The answer is always the same.
    """

    def __init__(
        self,
        columns: LogColumns,
        as_of_ns: int | None = None,
        *,
        settle_s: float | None = None,
        effort: SweepEffort | None = None,
    ) -> None:
        self.columns = columns
        self._effort = effort or SweepEffort(threads=num_cores())
        self._settle_ns = None if settle_s is None else round(settle_s * NS)
        self._sweeps: dict[int, Any] = {}
        self._outline_of: object = None
        self._outline: list[Timed] = []
        self.refresh()
        while as_of_ns is not None and self._cut(as_of_ns):
            self.refresh()

    def refresh(self) -> None:
        """Look at what was added since."""
        native = self.columns.native
        version = (native.outline, len(self.columns.others))
        if version != self._outline_of:
            self._outline_of = version
            records = [*self.columns.others, *(self.columns.record(*place) for place in native.outline_rows())]
            self.clocks: ClockAlignment = align(records)
            self._outline = sorted((Timed(self.clocks.time_ns(record), record) for record in records), key=order)
            self._clock_numbers = {place: self._clock(*place) for place in native.clocks()}
        if not self.is_exact:
            self.timed = self._outline
            return
        latest = [self.columns.record(*place) for place in native.latest_rows(self._clock_numbers)]
        self.timed = sorted(
            [*self._outline, *(Timed(self.clocks.time_ns(record), record) for record in latest)], key=order
        )

    @property
    def is_exact(self) -> bool:
        """False where a time would not fit into the columns' integers."""
        return all(abs(constant) < _MOST_CLOCK for constant in self.clocks.constants.values())

    def attempt_timeline(self, attempt: Attempt, high: Cursor, policy: AccountingPolicy) -> AttemptTimeline:
        """Return what `ett.attempt_timeline.attempt_timeline` returns for the attempt's whole records.

        Raises: OverflowError: a cursor leaves the range of the columns.
        """
        sweep = self._sweeps.get(attempt.number)
        if sweep is None:
            sweep = self._sweeps[attempt.number] = NATIVE.Attempt(self.columns.native, attempt.number)
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
        native = sweep.run(
            facts, list(ranks), self._clock_numbers, _COMPONENTS, self._settle_ns, self._effort.of(len(ranks))
        )
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

    def attempt_records(self, attempt: Attempt) -> list[Timed]:
        found = {(item.record.file, item.record.seq): item for item in attempt.records}
        for place in self.columns.native.span_and_latest_rows(attempt.number):
            record = self.columns.record(*place)
            found.setdefault((record.file, record.seq), Timed(self.clocks.time_ns(record), record))
        return sorted(found.values(), key=order)

    def _cut(self, as_of_ns: int) -> bool:
        """Leave out what is later; return whether anything was. Clocks are then aligned again without it."""
        streams = self.columns.native.summary()
        limits = [as_of_ns - self._clock(host, boot) for (_, _, _, _, _, _, host, boot, *_) in streams]
        others = [r for r in self.columns.others if self.clocks.time_ns(r) <= as_of_ns]
        latest = [stream[-1] for stream in streams]
        if len(others) == len(self.columns.others) and all(n <= limit for n, limit in zip(latest, limits, strict=True)):
            return False
        self.columns = self.columns.until([max(-_MOST_CLOCK, min(_MOST_CLOCK, limit)) for limit in limits], others)
        return True

    def _clock(self, host: int, boot: int) -> int:
        return self.clocks.constants[self._boot(host, boot)]

    def _boot(self, host: int, boot: int) -> Boot:
        text = self.columns.native.text
        return ("" if host < 0 else text(host), "" if boot < 0 else text(boot))


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
