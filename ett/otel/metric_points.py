"""A job's account -> its metrics, cumulative since the submission: the same figures as the spans and the report."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ett.accounting import JobAccount
from ett.collector.job_moments import moments_of
from ett.event_schema import NS
from ett.interruptions import Interruption
from ett.interval_set import Interval, measure, without
from ett.job_state import STATES, state_of
from ett.metric_names import (
    COMPONENT_JOB_TIME,
    COMPONENT_RANK_TIME,
    COMPONENT_REVISED,
    JOBS,
    METRIC_COMPONENTS,
    METRICS,
    RESOURCE_LABELS,
    RESTART_REASONS,
    RESTARTS,
    WALL_RANK_TIME,
    MetricName,
    attribute,
)
from ett.otel.attempt_blocks import Block, attempt_blocks, lane_of
from ett.otel.failure_event import error_type
from ett.otel.job_span import Attributes
from ett.rank_timeline import Piece
from ett.report import world_of


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberPoint:
    """One value of a counter or up-down counter; seconds where the metric's unit is "s"."""

    metric: MetricName
    attributes: Attributes
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HistogramPoint:
    """One histogram. `bucket_counts` has one more than the metric's buckets: what lies above the last."""

    metric: MetricName
    attributes: Attributes
    bucket_counts: tuple[int, ...]
    count: int
    sum: float
    min: float
    max: float


MetricPoint = NumberPoint | HistogramPoint


def metric_points(account: JobAccount) -> list[MetricPoint]:
    """Return every point of the job that is known by now; a histogram without a value has none."""
    kept = without((account.window.start_ns, account.window.end_ns), account.exclusions)
    blocks = attempt_blocks(account)
    booked = _booked_pieces(account)
    rank_ns = _component_ns(booked, kept, _ranks_of(blocks))
    job_ns = _component_ns(booked, kept, {})
    stops = [stop for stop in account.interruptions if stop.kind != "resize"]
    points: list[MetricPoint] = [
        *(_number(COMPONENT_RANK_TIME, {"component": c}, rank_ns[c] / NS) for c in METRIC_COMPONENTS),
        *(_number(COMPONENT_JOB_TIME, {"component": c}, job_ns[c] / NS) for c in METRIC_COMPONENTS),
        _number(WALL_RANK_TIME, {}, sum(ns for c, ns in rank_ns.items() if c != "wasted") / NS),
    ]
    reasons = Counter(error_type(stop) for stop in stops if _came_back(account, stop))
    points += [_number(RESTARTS, {"reason": r}, reasons[r]) for r in RESTART_REASONS.values() if reasons[r]]
    state = state_of(account)
    points += [_number(JOBS, {"state": s}, int(s == state)) for s in STATES]
    points += _histograms(account)
    return points


def _came_back(account: JobAccount, stop: Interruption) -> bool:
    """A job's last failure is no restart: nothing was started after it."""
    starts = (t.attempt.start_ns for t in account.timelines if t.attempt.start_ns is not None)
    return stop.kind == "inprocess" or any(start_ns >= stop.time_ns for start_ns in starts)


def _booked_pieces(account: JobAccount) -> list[Piece]:
    """The partition with what runs at this instant as training: whether it is lost is known when it ends (R7)."""
    alive = {t.attempt.number for t in account.timelines if t.attempt.is_alive}
    if not alive:
        return list(account.pieces)
    pieces = list(account.pieces)
    for index in range(len(pieces) - 1, -1, -1):
        if pieces[index].component != "wasted" or pieces[index].reason != "in_flight":
            break
        pieces[index] = pieces[index]._replace(component="effective")
    return pieces


def _ranks_of(blocks: Iterable[Block]) -> dict[int, int]:
    """Begin of each piece -> the ranks that its time is counted for; 1 where it is not there.

    Time that a job waits is counted for as many ranks as the attempt has that it waits for: they could have trained.
    """
    ranks: dict[int, int] = {}
    world = 1
    for block in blocks:
        world = world if block.timeline is None else world_of(block.timeline)
        for piece in block.pieces:
            ranks[piece.begin_ns] = world
    return ranks


def _component_ns(pieces: Iterable[Piece], kept: Sequence[Interval], ranks: Mapping[int, int]) -> dict[str, int]:
    """Nanoseconds of each of METRIC_COMPONENTS, each piece as often as it has ranks."""
    sums = dict.fromkeys(METRIC_COMPONENTS, 0)
    for piece in pieces:
        ns = measure(kept, piece.begin_ns, piece.end_ns) * ranks.get(piece.begin_ns, 1)
        sums[lane_of(piece.component)] += ns
        if piece.component == "wasted":
            sums["wasted"] += ns
    return sums


def _histograms(account: JobAccount) -> list[HistogramPoint]:
    """What happened once, as the collector observes it: one definition for both."""
    by_prometheus = {metric.prometheus: metric for metric in METRICS if metric.otel and metric.buckets}
    values: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for moments in moments_of(account, account.window.end_ns).values():
        for moment in moments:
            if moment.metric in by_prometheus:
                values.setdefault((moment.metric, moment.labels), []).append(moment.value)
    found = []
    for (name, labels), own in sorted(values.items()):
        metric = by_prometheus[name]
        names = [label for label in metric.labels if label not in RESOURCE_LABELS]
        found.append(_histogram(metric, dict(zip(names, labels, strict=True)), own))
    return found


def _number(metric: MetricName, labels: Mapping[str, str], value: float) -> NumberPoint:
    return NumberPoint(metric=metric, attributes=_attributes(labels), value=value)


def _histogram(metric: MetricName, labels: Mapping[str, str], values_ns: Sequence[int]) -> HistogramPoint:
    seconds = [ns / NS for ns in values_ns]
    counts = [0] * (len(metric.buckets) + 1)
    for value in seconds:
        counts[bisect_left(metric.buckets, value)] += 1  # a bucket holds its upper bound
    return HistogramPoint(
        metric=metric,
        attributes=_attributes(labels),
        bucket_counts=tuple(counts),
        count=len(seconds),
        sum=sum(values_ns) / NS,
        min=min(seconds),
        max=max(seconds),
    )


def _attributes(labels: Mapping[str, str]) -> Attributes:
    return {attribute(label): value for label, value in labels.items()}


class Published:
    """What was said already. A counter never falls: it grows by what a value grew, and what a value fell is counted
    apart, so that a component's rank-seconds are always `COMPONENT_RANK_TIME` less `COMPONENT_REVISED`."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}
        self._grown: dict[tuple[str, str], float] = defaultdict(float)
        self._fallen: dict[tuple[str, str], float] = defaultdict(float)

    def monotonic(self, points: Iterable[MetricPoint]) -> list[MetricPoint]:
        """Return the points with counters that never fall."""
        found: list[MetricPoint] = []
        for point in points:
            if not isinstance(point, NumberPoint) or point.metric.instrument != "counter":
                found.append(point)
                continue
            key = (point.metric.otel, str(sorted(point.attributes.items())))
            change = point.value - self._last.get(key, 0)
            self._last[key] = point.value
            (self._grown if change > 0 else self._fallen)[key] += abs(change)
            found.append(replace(point, value=self._grown[key]))
            if point.metric is COMPONENT_RANK_TIME:
                found.append(replace(point, metric=COMPONENT_REVISED, value=self._fallen[key]))
        return found
