"""A job's metrics are the figures of its report, in a form in which counters never fall."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ett.accounting import JobAccount, account
from ett.event_reader import read_folder
from ett.metric_names import (
    COMPONENT_JOB_TIME,
    COMPONENT_RANK_TIME,
    COMPONENT_REVISED,
    RESTARTS,
    WALL_RANK_TIME,
    attribute,
)
from ett.otel.metric_points import HistogramPoint, MetricPoint, NumberPoint, Published, metric_points
from ett.report import build_report

NS = 1_000_000_000
EPOCH_S = 1_900_000_000
CASES = {
    case["id"]: case
    for name in ("handed.json", "ours.json")
    for case in json.loads((Path(__file__).parent / "cases" / name).read_text())["cases"]
    if "events" in case
}
WriteCase = Callable[[Any, Path], list[str]]


def account_of(case: Any, folder: Path, write_case: WriteCase, as_of_s: float | None = None) -> JobAccount:
    write_case(case, folder)
    at = case.get("as_of", as_of_s)
    as_of_ns = round((EPOCH_S + (10**6 if at is None else at)) * NS)
    found = account(read_folder(folder), as_of_ns=as_of_ns, cut_at_as_of=at is not None)
    assert found is not None
    return found


def seconds(points: list[MetricPoint], name: Any) -> dict[str, float]:
    return {
        str(p.attributes.get(attribute("component"), "")): p.value
        for p in points
        if isinstance(p, NumberPoint) and p.metric is name
    }


@pytest.mark.slow
@pytest.mark.parametrize("case_id", sorted(CASES))
def test_component_seconds_are_those_of_the_report(case_id: str, tmp_path: Path, write_case: WriteCase) -> None:
    found = account_of(CASES[case_id], tmp_path, write_case)
    report, points = build_report(found), metric_points(found)
    job = {name: round(value * NS) for name, value in seconds(points, COMPONENT_JOB_TIME).items()}
    assert job["training"] == report.ns["effective"] + report.ns["wasted"]
    assert sum(ns for name, ns in job.items() if name != "wasted") == report.total_ns
    in_flight = report.detail_ns.get("wasted.in_flight", 0)
    assert report.ns["wasted"] - in_flight <= job["wasted"] <= report.ns["wasted"]
    if found.window.is_terminal:
        assert job["wasted"] == report.ns["wasted"]
    rank = {name: round(value * NS) for name, value in seconds(points, COMPONENT_RANK_TIME).items()}
    (wall,) = seconds(points, WALL_RANK_TIME).values()
    assert sum(ns for name, ns in rank.items() if name != "wasted") == round(wall * NS)
    assert all(rank[name] >= job[name] for name in job)


def test_the_failure_that_ended_a_job_is_no_restart(tmp_path: Path, write_case: WriteCase) -> None:
    events = [{"ev": "job_submitted", "t": 0}]
    for number in (1, 2):
        events.append({"ev": "attempt_started", "att": number, "t": 10 * number, "world": 1})
        ended = {"ev": "attempt_ended", "att": number, "t": 10 * number + 5, "reason": "failed", "class": "infra"}
        events.append(ended)
    case = {"id": "j", "events": [*events, {"ev": "job_ended", "t": 26, "status": "failed"}]}
    points = metric_points(account_of(case, tmp_path, write_case))
    found = {p.attributes["error.type"]: p.value for p in points if isinstance(p, NumberPoint) and p.metric is RESTARTS}
    assert found == {"infrastructure_failure": 1}


@pytest.mark.slow
@pytest.mark.parametrize("case_id", sorted(CASES))
def test_a_histogram_has_as_many_values_as_it_says(case_id: str, tmp_path: Path, write_case: WriteCase) -> None:
    found = account_of(CASES[case_id], tmp_path, write_case)
    for point in metric_points(found):
        if isinstance(point, HistogramPoint):
            assert len(point.bucket_counts) == len(point.metric.buckets) + 1
            assert sum(point.bucket_counts) == point.count > 0
            assert point.min * point.count <= point.sum + 1e-6
            assert point.sum <= point.max * point.count + 1e-6


def test_a_step_that_runs_now_is_not_yet_wasted(tmp_path: Path, write_case: WriteCase) -> None:
    events = [
        {"ev": "job_submitted", "t": 0},
        {"ev": "attempt_started", "att": 1, "t": 0, "world": 4},
        {"ev": "steps", "att": 1, "src": "r0", "t0": 10, "n": 5, "dt": 2, "c0": 0, "dc": 1},
        {"ev": "step_begin", "att": 1, "src": "r0", "t": 20, "step": 5},
    ]
    found = account_of({"id": "j", "events": events, "as_of": 26}, tmp_path, write_case)
    assert build_report(found).ns["wasted"] == 6 * NS
    points = metric_points(found)
    assert seconds(points, COMPONENT_JOB_TIME) == {
        "scheduling": 0, "initialization": 10, "compilation": 0, "training": 16, "shutdown": 0, "wasted": 0,
    }  # fmt: skip
    assert seconds(points, COMPONENT_RANK_TIME)["training"] == 64


def test_a_counter_never_falls_and_what_it_said_too_much_is_counted_apart() -> None:
    published = Published()

    def point(value: float) -> list[MetricPoint]:
        return [NumberPoint(metric=COMPONENT_RANK_TIME, attributes={"ett.component": "wasted"}, value=value)]

    said = []
    for value in (5.0, 9.0, 7.0, 8.0, 12.0, 11.0):
        points = published.monotonic(point(value))
        said.append((seconds(points, COMPONENT_RANK_TIME)["wasted"], seconds(points, COMPONENT_REVISED)["wasted"]))
    totals, revised = zip(*said, strict=True)
    assert totals == (5, 9, 9, 10, 14, 14)
    assert revised == (0, 0, 2, 2, 2, 3)
