"""One log, three readers: what OTLP sends, what the collector shows and what `ett report` says are one figure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ett import metric_names as names
from ett.accounting import account
from ett.clock import SystemClock
from ett.collector.counter_book import CounterBook
from ett.collector.exposition import FleetCollector
from ett.collector.site_labels import LabelGate, SiteLabels
from ett.event_line import encode_line
from ett.metric_names import METRICS, attribute
from ett.otel.metric_points import HistogramPoint, NumberPoint, metric_points
from ett.report import Report, build_report
from ett.site import Site
from ett.store import open_store

NS = 1_000_000_000
CASES = {
    case["id"]: case
    for name in ("handed.json", "ours.json")
    for case in json.loads((Path(__file__).parent / "cases" / name).read_text())["cases"]
    if any(event["ev"] == "job_ended" for event in case.get("events", ()))
}
CaseLog = Callable[[dict[str, Any]], Any]
Values = dict[tuple[str, tuple[str, ...]], float]  # by Prometheus' name, and labels that are no job's
OWN = set(names.RESOURCE_LABELS) | {"le"}
EXCEPT = {names.JOBS.prometheus}  # a gauge of states: OTLP says 0 of the others


def sent_by_otlp(found: Any) -> Values:
    values: Values = {}
    for point in metric_points(found):
        labels = tuple(
            str(point.attributes[attribute(label)])
            for label in point.metric.labels
            if label not in names.RESOURCE_LABELS
        )
        name = point.metric.prometheus
        if isinstance(point, NumberPoint):
            values[name, labels] = point.value
        else:
            assert isinstance(point, HistogramPoint)
            values[f"{name}_count", labels], values[f"{name}_sum", labels] = point.count, point.sum
            running = 0
            for edge, count in zip((*point.metric.buckets, float("inf")), point.bucket_counts, strict=True):
                running += count
                values[f"{name}_bucket", (*labels, f"{edge:g}")] = running
    return values


def scraped(case: dict[str, Any], case_log: CaseLog, folder: Path) -> Values:
    with open_store(folder / "ett.db") as store:
        for name, records in case_log(case).files().items():
            store.ingest("j", name, [encode_line(record | {"job": "j"}) for record in records])
        book = CounterBook(store, LabelGate(SiteLabels(cluster="a")), Site(), SystemClock())
        book.refresh()
        registry = CollectorRegistry()
        registry.register(FleetCollector(book))
        page = generate_latest(registry).decode()
    both = {metric.prometheus.removesuffix("_total") for metric in METRICS if metric.otel}
    order = {metric.prometheus.removesuffix("_total"): metric.labels for metric in METRICS}
    values: Values = {}
    for family in text_string_to_metric_families(page):
        if family.name in both:
            for sample in family.samples:
                labels = tuple(sample.labels[label] for label in order[family.name] if label not in OWN)
                edge = (f"{float(sample.labels['le']):g}",) if "le" in sample.labels else ()
                values[sample.name, labels + edge] = sample.value
    return values


@pytest.mark.slow
@pytest.mark.parametrize("case_id", sorted(CASES))
def test_otlp_the_collectors_page_and_the_report_are_one_figure(
    case_id: str, case_log: CaseLog, tmp_path: Path
) -> None:
    from ett.event_reader import merge, parse_file

    case = CASES[case_id]
    log = merge(
        parse_file(name, b"".join(encode_line(record | {"job": "j"}) for record in records))
        for name, records in case_log(case).files().items()
    )
    found = account(log, as_of_ns=SystemClock().wall_ns(), cut_at_as_of=False)
    assert found is not None
    sent, page = sent_by_otlp(found), scraped(case, case_log, tmp_path)
    differing = {
        key: (sent.get(key, 0.0), page.get(key, 0.0))
        for key in sent.keys() | page.keys()
        if key[0] not in EXCEPT and abs(sent.get(key, 0.0) - page.get(key, 0.0)) > 1e-6
    }
    assert not differing, sorted(differing.items())
    assert_is_the_report(sent, build_report(found))


def assert_is_the_report(values: Values, report: Report) -> None:
    job, wasted = names.COMPONENT_JOB_TIME.prometheus, report.ns["wasted"]
    expected = {**report.ns, "training": report.ns["effective"] + wasted}
    for component in names.METRIC_COMPONENTS:
        assert round(values[job, (component,)] * NS) == expected[component]
