"""Metric names follow the conventions of both worlds, and each metric has one name in each."""

from __future__ import annotations

import re

import pytest

from ett.metric_names import METRICS, RESOURCE_LABELS, MetricName, attribute

# Table 6.4 of the specification: what dashboards and rules elsewhere rely on.
AGREED = {
    "ett.component.rank_time": ("counter", "s", "ett_component_rank_seconds_total"),
    "ett.restarts": ("counter", "{restart}", "ett_restarts_total"),
    "ett.attempt.component.duration": ("histogram", "s", "ett_attempt_component_duration_seconds"),
    "ett.recovery.duration": ("histogram", "s", "ett_recovery_duration_seconds"),
    "ett.jobs": ("up_down_counter", "{job}", "ett_jobs"),
    "ett.checkpoint.save.duration": ("histogram", "s", "ett_checkpoint_save_duration_seconds"),
}
UNBOUNDED = {"job", "attempt", "rank", "host", "step", "path", "revision"}
every = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.prometheus)


def test_the_agreed_names_are_there() -> None:
    found = {m.otel: (m.instrument, m.unit, m.prometheus) for m in METRICS}
    assert {name: found[name] for name in AGREED} == AGREED


def test_no_name_stands_for_two_metrics() -> None:
    for names in ([m.prometheus for m in METRICS], [m.otel for m in METRICS if m.otel]):
        assert len(names) == len(set(names))


@every
def test_an_opentelemetry_name_is_dotted_snake_case_without_total(metric: MetricName) -> None:
    if metric.otel:
        assert re.fullmatch(r"ett(\.[a-z][a-z0-9]*(_[a-z0-9]+)*)+", metric.otel)
        assert "total" not in re.split(r"[._]", metric.otel)


@every
def test_a_prometheus_name_ends_as_its_kind_and_unit_say(metric: MetricName) -> None:
    assert re.fullmatch(r"ett(_[a-z0-9]+)+", metric.prometheus)
    assert metric.prometheus.endswith("_total") == (metric.instrument == "counter")
    base = metric.prometheus.removesuffix("_total")
    assert base.endswith("_seconds") == (metric.unit == "s")
    assert bool(metric.buckets) == (metric.instrument == "histogram")


@every
def test_no_label_is_of_unbounded_cardinality(metric: MetricName) -> None:
    assert not UNBOUNDED & set(metric.labels)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", label) for label in metric.labels)


def test_labels_of_the_resource_are_no_attributes_of_a_point() -> None:
    for metric in METRICS:
        assert not {attribute(label) for label in RESOURCE_LABELS} & set(metric.point_attributes)
