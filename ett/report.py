"""A finished partition, clipped to a window -> the figures of `ett report` (rules R14, R17, R18, R19)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ett.accounting import JobAccount
from ett.attempt_timeline import AttemptTimeline
from ett.closed_formula import ClosedFormula, closed_formula
from ett.event_schema import COMPONENTS, NS, Component
from ett.interruptions import FailureClass, Interruption, Kind
from ett.interval_set import Interval, length, measure, overlaps, without
from ett.job_state import state_of
from ett.piece_sums import effective_rank_ns, measure_by_reason, num_replayed_steps
from ett.rank_timeline import Piece
from ett.recompilations import Recompilations, recompilations, recompilations_json

# A running job's step in progress is always outside: only a share that matters is worth a line.
WORTH_A_WARNING = 0.01
WASTED_BY_FAILURE = ("wasted.replay", "wasted.in_flight", "wasted.unsaved_tail")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Where every nanosecond of [begin_ns, end_ns) less its exclusions went; sums are exact.

    `ns` has all six components, `detail_ns` "component.reason" of what is not 0; both sum to `total_ns`.
    """

    job: str
    state: str
    state_word: str  # what people are told: a preempted job is queued or suspended, not running or lost
    begin_ns: int
    end_ns: int
    total_ns: int
    ns: dict[Component, int]
    detail_ns: dict[str, int]
    ett_from_allocation: float | None
    capacity_ett: float | None
    interruptions: tuple[Interruption, ...]
    formula: ClosedFormula
    at_risk_ns: int
    at_risk_remote_ns: int
    num_replayed_steps: int
    recompilations: Recompilations
    num_attempts: int
    num_ranks: int
    clock_uncertainty_ns: int | None
    flags: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def ett(self) -> float | None:
        return _ratio(self.ns["effective"], self.total_ns)

    @property
    def wasted_failure_ns(self) -> int:
        """What failures cost in lost work: the reliability objective looks at this, not at all of `wasted`."""
        return sum(self.detail_ns.get(name, 0) for name in WASTED_BY_FAILURE)

    def count(self, *kinds: Kind) -> int:
        return sum(i.kind in kinds for i in self.interruptions)

    def num_failures_of(self, failure_class: FailureClass) -> int:
        return sum(i.is_failure and i.failure_class == failure_class for i in self.interruptions)


def build_report(account: JobAccount, window: Interval | None = None, exclude: Iterable[Interval] = ()) -> Report:
    """Clip the finished partition to `window` (the whole job where None) less `exclude`; normalised nanoseconds."""
    whole = (account.window.start_ns, account.window.end_ns)
    asked = whole if window is None else (max(whole[0], window[0]), min(whole[1], window[1]))
    kept = without(asked, [*exclude, *account.exclusions])
    detail = _detail(account.pieces, kept)
    stops = tuple(i for i in account.interruptions if _lies_in(i.time_ns, window or whole, whole))
    breaks = [i for i in stops if i.kind != "resize"]
    formula = closed_formula(account.pieces, _since(account, breaks), breaks, kept)
    flags = set(account.flags)
    warnings = account.problems.warnings()
    if formula.unexplained_ns:
        flags.add("closed_formula_residual")
        if formula.unexplained_ns > formula.total_ns * WORTH_A_WARNING:
            warnings.append(
                f"{formula.unexplained_ns / NS:.1f} s lost outside every start and recovery: a hang, or a job taken "
                "back to an older step"
            )
    return Report(
        job=account.job,
        state=account.window.state,
        state_word=state_of(account),
        begin_ns=asked[0],
        end_ns=max(asked),
        total_ns=length(kept),
        ns={c: sum(ns for name, ns in detail.items() if name.startswith(f"{c}.")) for c in COMPONENTS},
        detail_ns=detail,
        ett_from_allocation=_ett_from_allocation(account, kept),
        capacity_ett=_capacity_ett(account, kept),
        interruptions=stops,
        formula=formula,
        at_risk_ns=sum(measure_by_reason(account.at_risk, kept).values()),
        at_risk_remote_ns=sum(measure_by_reason(account.at_risk_remote, kept).values()),
        num_replayed_steps=num_replayed_steps(account.pieces, kept),
        recompilations=recompilations(account, kept),
        num_attempts=sum(t.attempt.start_ns is not None for t in account.timelines),
        num_ranks=max((world_of(t) for t in account.timelines), default=0),
        clock_uncertainty_ns=account.clocks.uncertainty_ns,
        flags=tuple(sorted(flags)),
        warnings=tuple(warnings),
    )


def empty_report() -> Report:
    """The report of a log without records: total 0, so ETT is null rather than 0 or 100 % (R0)."""
    return Report(
        job="",
        state="RUNNING",
        state_word="queued",
        begin_ns=0,
        end_ns=0,
        total_ns=0,
        ns=dict.fromkeys(COMPONENTS, 0),
        detail_ns={},
        ett_from_allocation=None,
        capacity_ett=None,
        interruptions=(),
        formula=closed_formula((), (), (), ()),
        at_risk_ns=0,
        at_risk_remote_ns=0,
        num_replayed_steps=0,
        recompilations=Recompilations(),
        num_attempts=0,
        num_ranks=0,
        clock_uncertainty_ns=0,
        flags=(),
        warnings=("the log has no records",),
    )


def roll_up(reports: Iterable[Report]) -> float | None:
    """R18: the ETT of several jobs is the ratio of their summed seconds, never a mean of ratios."""
    effective_ns = total_ns = 0
    for report in reports:
        effective_ns += report.ns["effective"]
        total_ns += report.total_ns
    return _ratio(effective_ns, total_ns)


def report_json(report: Report) -> dict[str, Any]:
    """Return the `ett.report/v1` object: exact integers, and rounded seconds and ratios beside them."""
    formula = report.formula
    residual = None if formula.ett is None or report.ett is None else formula.ett - report.ett
    uncertainty_ns = report.clock_uncertainty_ns
    data = {
        "job": report.job,
        "state": report.state,
        "total_ns": report.total_ns,
        "ns": report.ns,
        "detail_ns": report.detail_ns,
        "total_s": report.total_ns / NS,
        "ett": report.ett,
        "ett_from_allocation": report.ett_from_allocation,
        "capacity_ett": report.capacity_ett,
        "seconds": {name: ns / NS for name, ns in report.ns.items()},
        "detail": {name: ns / NS for name, ns in report.detail_ns.items()},
        "wasted_failure_s": report.wasted_failure_ns / NS,
        "interruptions": {
            "failures": report.count("failure", "inprocess"),
            "preemptions": report.count("preemption"),
            "inprocess": report.count("inprocess"),
            "resizes": report.count("resize"),
        },
        "failure_classes": {
            "infra": report.num_failures_of("infra"),
            "user": report.num_failures_of("user"),
            "unknown": report.num_failures_of("unknown"),
        },
        "closed_formula": {
            "tts_s": formula.tts_ns / NS,
            "nof": formula.nof,
            "ttr_s": formula.ttr_ns / NS,
            "ett": formula.ett,
            "residual": residual,
        },
        "at_risk_s": report.at_risk_ns / NS,
        "at_risk_remote_s": report.at_risk_remote_ns / NS,
        "clock_uncertainty_s": None if uncertainty_ns is None else uncertainty_ns / NS,
        "recompilations": recompilations_json(report.recompilations),
        "flags": list(report.flags),
    }
    return {"schema": "ett.report/v1", "data": data, "warnings": list(report.warnings)}


def _detail(pieces: Sequence[Piece], kept: Sequence[Interval]) -> dict[str, int]:
    sums = measure_by_reason(pieces, kept)
    return dict(sorted((f"{component}.{reason}", ns) for (component, reason), ns in sums.items()))


def _lies_in(time_ns: int, window: Interval, whole: Interval) -> bool:
    """Half-open, so that adjacent windows count an interruption once; the job's end is in the window before."""
    if time_ns == whole[1]:
        return window[0] < time_ns <= window[1] or window[0] <= time_ns == whole[0] <= window[1]
    return window[0] <= time_ns < window[1]


def _since(account: JobAccount, stops: Sequence[Interruption]) -> list[int | None]:
    """Where the last complete step before each stop ended."""
    found = [timeline.last_stops([stop.time_ns for stop in stops]) for timeline in account.timelines]
    return [max((ns for ns in ends if ns is not None), default=None) for ends in zip(*found, strict=True)]


def _ett_from_allocation(account: JobAccount, kept: Sequence[Interval]) -> float | None:
    """D1: the figure of a window that opens at the first `allocated`, else at the first `attempt_started`."""
    attempts = [t.attempt for t in account.timelines]
    allocated = [a.allocated_ns for a in attempts if a.allocated_ns is not None]
    started = [a.start_ns for a in attempts if a.start_ns is not None]
    opens_ns = min(allocated or started, default=None)
    if opens_ns is None:
        return None
    end_ns = account.window.end_ns
    sums = measure_by_reason(account.pieces, overlaps(kept, opens_ns, end_ns))
    effective_ns = sum(ns for (component, _), ns in sums.items() if component == "effective")
    return _ratio(effective_ns, measure(kept, opens_ns, end_ns))


def _capacity_ett(account: JobAccount, kept: Sequence[Interval]) -> float | None:
    """R18: rank-seconds of an attempt are its world times its time from allocation, else start, to its end."""
    held_ns = 0
    for timeline in account.timelines:
        attempt = timeline.attempt
        since_ns = attempt.allocated_ns if attempt.allocated_ns is not None else attempt.start_ns
        if since_ns is not None:
            held_ns += world_of(timeline) * measure(kept, since_ns, attempt.end_ns)
    effective_ns = effective_rank_ns(account.pieces, account.timelines, world_of, kept)
    return _ratio(effective_ns, held_ns)


def world_of(timeline: AttemptTimeline) -> int:
    """The attempt's world size; where the supervisor did not write it, that of its first step, else 1."""
    if timeline.attempt.world is not None:
        return int(timeline.attempt.world)
    worlds = (world for _, world, _ in timeline.step_worlds())
    return next((w for w in worlds if type(w) is int and w > 0), 1)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
