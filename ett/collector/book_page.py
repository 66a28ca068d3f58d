"""What a job has added to the fleet's counters so far: turned by new figures, and never taken back.

An amount that grew is added. One that shrank is added to the counter of revisions beside it where it has one, so that
counter - revisions is always the account's figure; where it has none, the counter waits until the amount passes it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from ett import metric_names as names
from ett.collector.job_figures import JobFigures, Key
from ett.event_schema import NS

Series = tuple[str, ...]  # a metric's Prometheus name, then the values of all its labels
VERSION = 1
METRIC = {metric.prometheus: metric for metric in names.METRICS}
REVISED_BY = {
    names.COMPONENT_RANK_TIME.prometheus: names.COMPONENT_REVISED.prometheus,
    names.COMPONENT_JOB_TIME.prometheus: names.JOB_TIME_REVISED.prometheus,
    names.WALL_RANK_TIME.prometheus: names.WALL_REVISED.prometheus,
    names.SUBCOMPONENT_RANK_TIME.prometheus: names.SUBCOMPONENT_REVISED.prometheus,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    cluster: str
    team: str
    model: str


@dataclass(kw_only=True, slots=True)
class BookPage:
    """`amounts` as they were last seen; `booked` and `points` are what the job is in the counters and histograms.

    A histogram's points are counts by bucket, the last for all beyond, then the sum in nanoseconds.
    """

    generation: int = -1
    team: str = ""  # as labels, at last
    model: str = ""
    state: str = "queued"
    is_open: bool = True
    amounts: dict[Key, int] = field(default_factory=dict)
    booked: dict[Series, int] = field(default_factory=dict)
    points: dict[Series, list[int]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)  # how many moments of a kind were observed

    def turned(self, figures: JobFigures, labels: Labels, generation: int) -> BookPage:
        """Return the page after these figures; this one stays as it is."""
        page = BookPage(
            generation=generation,
            team=labels.team,
            model=labels.model,
            state=figures.state,
            is_open=figures.is_open,
            amounts=dict(self.amounts),
            booked=dict(self.booked),
            points={series: list(counts) for series, counts in self.points.items()},
            seen=dict(self.seen),
        )
        for key in self.amounts.keys() | figures.amounts.keys():
            page._follow(key, figures.amounts.get(key, 0), labels)
        for kind, moments in figures.moments.items():
            for moment in moments[page.seen.get(kind, 0) :]:
                page._observe(series_of(moment.metric, moment.labels, labels), moment.value)
            page.seen[kind] = max(len(moments), page.seen.get(kind, 0))
        return page

    def _follow(self, key: Key, value: int, labels: Labels) -> None:
        before = self.amounts.get(key, 0)
        revised = REVISED_BY.get(key[0])
        metric, change = (key[0], value - before)
        if change < 0 and revised is None:
            return  # `amounts` keeps the highest
        if change < 0 and revised is not None:
            metric, change = revised, -change
        if change:
            self.amounts[key] = value
            series = series_of(metric, key[1:], labels)
            self.booked[series] = self.booked.get(series, 0) + change

    def _observe(self, series: Series, value: int) -> None:
        buckets = METRIC[series[0]].buckets
        if not buckets:
            self.booked[series] = self.booked.get(series, 0) + value
            return
        counts = self.points.setdefault(series, [0] * (len(buckets) + 2))
        counts[bisect_left(buckets, value / NS)] += 1
        counts[-1] += value

    def text(self) -> str:
        return json.dumps(
            {
                "v": VERSION,
                "generation": self.generation,
                "team": self.team,
                "model": self.model,
                "state": self.state,
                "open": self.is_open,
                "amounts": [[*key, value] for key, value in sorted(self.amounts.items())],
                "booked": [[*series, value] for series, value in sorted(self.booked.items())],
                "points": [[list(series), counts] for series, counts in sorted(self.points.items())],
                "seen": self.seen,
            },
            separators=(",", ":"),
        )


def read_page(text: str | None) -> BookPage:
    """Return the page that was kept; a fresh one where there is none, or one of another version."""
    plain = {} if text is None else json.loads(text)
    if plain.get("v") != VERSION:
        return BookPage()
    return BookPage(
        generation=plain["generation"],
        team=plain["team"],
        model=plain["model"],
        state=plain["state"],
        is_open=plain["open"],
        amounts={tuple(row[:-1]): row[-1] for row in plain["amounts"]},
        booked={tuple(row[:-1]): row[-1] for row in plain["booked"]},
        points={tuple(series): counts for series, counts in plain["points"]},
        seen=plain["seen"],
    )


def series_of(metric: str, own: tuple[str, ...], labels: Labels) -> Series:
    """Return the series of a metric: the job's labels where the metric has them, its own values for the others."""
    common: Mapping[str, str] = {"cluster": labels.cluster, "team": labels.team, "model": labels.model}
    values = iter(own)
    return (metric, *(common[label] if label in common else next(values) for label in METRIC[metric].labels))
