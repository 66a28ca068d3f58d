"""The text that Prometheus scrapes: the fleet's counters, and what the collector says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from ett import metric_names as names
from ett.collector.counter_book import CounterBook, FleetView
from ett.collector.job_figures import ModelState
from ett.event_schema import NS
from ett.site import Site

MOST_JOBS = 200


class FleetCollector(Collector):
    """Gives a registry the book's figures as they are when it is scraped."""

    def __init__(self, book: CounterBook) -> None:
        self._book = book

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        return families(self._book.view(), self._book.cluster, self._book.site)


class JobsCollector(Collector):
    """What `/metrics/jobs` has: the one metric with a job as a label, of a bounded number of jobs."""

    def __init__(self, book: CounterBook) -> None:
        self._book = book

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        seconds = _gauge(names.JOB_COMPONENT_RANK_TIME)
        for job, ns in self._book.running_jobs(MOST_JOBS).items():
            for component in names.METRIC_COMPONENTS:
                seconds.add_metric([self._book.cluster, job, component], ns.get(component, 0) / NS)
        yield seconds


def render(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the exposition in the form that the Accept header asks for, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def families(view: FleetView, cluster: str, site: Site) -> Iterator[Metric]:
    """Yield every family once, those without a series too: what a fleet does not have yet is documented as well."""
    for metric in names.METRICS:
        base = metric.prometheus.removesuffix("_total")
        if metric.instrument == "counter":
            counter = CounterMetricFamily(base, metric.help, labels=metric.labels)
            scale = NS if metric.unit == "s" else 1
            for series, value in view.counters.items():
                if series[0] == metric.prometheus:
                    counter.add_metric(series[1:], value / scale)
            yield counter
        elif metric.instrument == "histogram":
            histogram = HistogramMetricFamily(base, metric.help, labels=metric.labels)
            for series, counts in view.histograms.items():
                if series[0] == metric.prometheus:
                    edges = [*(f"{edge:g}" for edge in metric.buckets), "+Inf"]
                    buckets = list(zip(edges, map(float, accumulate(counts[:-1])), strict=True))
                    histogram.add_metric(series[1:], buckets, counts[-1] / NS)
            yield histogram
    yield from _gauges(view, cluster)
    yield _objectives(site)


def _gauges(view: FleetView, cluster: str) -> Iterator[Metric]:
    jobs = _gauge(names.JOBS)
    for (team, state), count in sorted(view.jobs.items()):
        jobs.add_metric([cluster, team, state], count)
    yield jobs
    last, interval = _gauge(names.LAST_CHECKPOINT), _gauge(names.CHECKPOINT_INTERVAL)
    running, at_risk = _gauge(names.MODEL_RUNNING), _gauge(names.AT_RISK)
    for (team, model), states in sorted(view.models.items()):
        labels = [cluster, team, model]
        running.add_metric(labels, 1)
        at_risk.add_metric(labels, sum(state.at_risk_rank_ns for state in states) / NS)
        if commits := [state.last_commit_ns for state in states if state.last_commit_ns is not None]:
            last.add_metric(labels, min(commits) / NS)
        if gaps := _intervals(states):
            interval.add_metric(labels, max(gaps) / NS)
    yield from (last, interval, running, at_risk)


def _objectives(site: Site) -> GaugeMetricFamily:
    """The site file's [slo], as alerts name them; `ett` is what effective time should reach."""
    family = _gauge(names.SLO_OBJECTIVE)
    for name, ratio in sorted(site.objectives.items()):
        component = "effective" if name == "ett" else name
        owner = next((o for o in (site.owners.get(n) for n in (name, component)) if o), "none")
        family.add_metric([f"ett-{component}-share", component, owner], ratio)
    return family


def _intervals(states: list[ModelState]) -> list[int]:
    return [state.interval_ns for state in states if state.interval_ns is not None]


def _gauge(metric: names.MetricName) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.prometheus, metric.help, labels=metric.labels)
