"""Two jobs' accounts beside each other: which component and reason made the difference, in seconds and in points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ett.accounting import JobAccount
from ett.event_schema import COMPONENTS
from ett.interval_set import Interval
from ett.report import Report, build_report
from ett.report_text import count, duration, share

Align = Literal["attempt", "step", "wall"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What A and B spent on one component or "component.reason". `points` is B's share less A's, times 100."""

    name: str
    a_ns: int
    b_ns: int
    points: float

    @property
    def delta_ns(self) -> int:
        return self.b_ns - self.a_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptPair:
    """Attempt n of both; None where a job has no such attempt. ETT is of the attempt alone."""

    number: int
    a: Report | None
    b: Report | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """`aligned` says which part of each job was compared. The components' points sum to the difference of ETT and 0."""

    a: Report
    b: Report
    aligned: str
    components: tuple[Difference, ...]
    reasons: tuple[Difference, ...]  # largest difference first
    attempts: tuple[AttemptPair, ...]
    verdict: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """A value of launch.json or recipe.json that differs; None: the job has no such value."""

    key: str
    a: object
    b: object


def compare(a: JobAccount, b: JobAccount, align: Align) -> Comparison:
    """Compare the whole jobs (attempt), both until the lesser reach of the two (step), or equal times (wall)."""
    windows, aligned = _windows(a, b, align)
    first, second = build_report(a, windows[0]), build_report(b, windows[1])
    components = tuple(_difference(c, first, second, first.ns[c], second.ns[c]) for c in COMPONENTS)
    names = sorted({*first.detail_ns, *second.detail_ns})
    reasons = [_difference(n, first, second, first.detail_ns.get(n, 0), second.detail_ns.get(n, 0)) for n in names]
    reasons.sort(key=lambda d: (-abs(d.delta_ns), d.name))
    return Comparison(
        a=first,
        b=second,
        aligned=aligned,
        components=components,
        reasons=tuple(reasons),
        attempts=_attempt_pairs(a, b, windows),
        verdict=_verdict(first, second, components, reasons),
    )


def changed_values(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Changed]:
    """Return the leaves of two JSON objects that differ, by their dotted key."""
    before, after = dict(_leaves(a)), dict(_leaves(b))
    return [
        Changed(key=key, a=before.get(key), b=after.get(key))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


def _windows(a: JobAccount, b: JobAccount, align: Align) -> tuple[tuple[Interval | None, Interval | None], str]:
    starts = (a.window.start_ns, b.window.start_ns)
    if align == "wall":
        length_ns = min(a.window.end_ns - starts[0], b.window.end_ns - starts[1])
        return _from(starts, (length_ns, length_ns)), f"the first {duration(length_ns)} of each"
    if align == "step":
        reached = [_reach(a), _reach(b)]
        known = [cursor for cursor in reached if cursor is not None]
        if len(known) == 2:
            target = min(known)
            times = (_time_of(a, target), _time_of(b, target))
            return _from(starts, (times[0] - starts[0], times[1] - starts[1])), _until(target)
        return (None, None), "the whole jobs: one of them completed no step"
    return (None, None), "the whole jobs"


def _until(cursor: float) -> str:
    return f"each until it had learned from {count(int(cursor), 'sample')}"


def _from(starts: tuple[int, int], lengths: tuple[int, int]) -> tuple[Interval, Interval]:
    return (starts[0], starts[0] + lengths[0]), (starts[1], starts[1] + lengths[1])


def _reach(account: JobAccount) -> float | None:
    return max((s.c1 for t in account.timelines for s in t.steps if s.is_complete and s.c1 is not None), default=None)


def _time_of(account: JobAccount, cursor: float) -> int:
    """The instant at which the job had first learned up to `cursor`, which it did reach."""
    return min(
        s.time_at(cursor)
        for t in account.timelines
        for s in t.steps
        if s.is_complete and s.c1 is not None and s.c1 >= cursor
    )


def _difference(name: str, a: Report, b: Report, a_ns: int, b_ns: int) -> Difference:
    shares = (a_ns / a.total_ns if a.total_ns else 0.0, b_ns / b.total_ns if b.total_ns else 0.0)
    return Difference(name=name, a_ns=a_ns, b_ns=b_ns, points=(shares[1] - shares[0]) * 100)


def _attempt_pairs(
    a: JobAccount, b: JobAccount, windows: tuple[Interval | None, Interval | None]
) -> tuple[AttemptPair, ...]:
    own = [_attempt_reports(account, window) for account, window in zip((a, b), windows, strict=True)]
    return tuple(AttemptPair(number=n, a=own[0].get(n), b=own[1].get(n)) for n in sorted({*own[0], *own[1]}))


def _attempt_reports(account: JobAccount, window: Interval | None) -> dict[int, Report]:
    begin_ns, end_ns = window or (account.window.start_ns, account.window.end_ns)
    reports: dict[int, Report] = {}
    for timeline in account.timelines:
        if timeline.attempt.start_ns is None:
            continue
        own = (max(begin_ns, timeline.attempt.start_ns), min(end_ns, timeline.attempt.cut_ns))
        if own[0] < own[1]:
            reports[timeline.attempt.number] = build_report(account, own)
    return reports


def _verdict(a: Report, b: Report, components: tuple[Difference, ...], reasons: list[Difference]) -> str:
    if a.ett is None or b.ett is None:
        return "nothing to compare: one of the jobs has no time yet"
    points = (b.ett - a.ett) * 100
    if abs(points) < 0.05:
        head = f"B ({b.job}) and A ({a.job}) have the same ETT, {share(a.ett)}"
    else:
        word = "better" if points > 0 else "worse"
        head = f"B ({b.job}, {b.state_word}) is {word} than A ({a.job}, {a.state_word}): "
        head += f"ETT {share(b.ett)} against {share(a.ett)}, {points:+.1f} points"
    by_name = {d.name: d for d in reasons}
    moved = [d for d in components if d.name != "effective" and abs(d.points) >= 0.05]
    moved.sort(key=lambda d: -abs(d.points))
    parts = []
    for component in moved[:2]:
        own = [d for d in by_name.values() if d.name.startswith(f"{component.name}.")]
        most = max(own, key=lambda d: abs(d.delta_ns))
        word = "more" if component.points > 0 else "less"
        took = f"{component.name} took {abs(component.points):.1f} points {word}"
        parts.append(f"{took} (most of it {most.name}, {signed(most.delta_ns)})")
    failures = b.count("failure", "inprocess") - a.count("failure", "inprocess")
    parts += [f"{count(abs(failures), 'failure')} {'more' if failures > 0 else 'fewer'}"] if failures else []
    return f"{head}; {'; '.join(parts)}" if parts else head


def signed(ns: int) -> str:
    """Return a difference of times: +3m 02s, -12.0s, 0s."""
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{duration(abs(ns))}"


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + str(key), value
