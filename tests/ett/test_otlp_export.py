"""`ett timeline JOB --otlp URL` against an OTLP receiver over HTTP: what arrives, and what happens if nothing can."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ett.accounting import JobAccount, account
from ett.cli import run
from ett.event_reader import read_folder
from ett.metric_names import METRICS, attribute
from ett.otel import otlp_export
from ett.otel.job_trace import job_spans
from ett.otel.metric_points import metric_points
from ett.report import build_report

CASES = {
    case["id"]: case
    for name in ("handed.json", "ours.json")
    for case in json.loads((Path(__file__).parent / "cases" / name).read_text())["cases"]
    if "events" in case
}
NS = 1_000_000_000
WriteCase = Callable[[Any, Path], list[str]]


@pytest.fixture
def receiver(otlp: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("ENDPOINT", "HEADERS", "TIMEOUT", "PROTOCOL", "TRACES_ENDPOINT"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")  # the most: a busy machine is no claim of these tests
    with otlp.OtlpReceiver() as started:
        yield started


@pytest.fixture
def ended_job(tmp_path: Path, write_case: WriteCase) -> Path:
    write_case(CASES["C02"], tmp_path)
    return tmp_path


def account_of(folder: Path, as_of_s: float | None = None) -> JobAccount:
    as_of_ns = 0 if as_of_s is None else round((1_900_000_000 + as_of_s) * NS)
    found = account(read_folder(folder), as_of_ns=as_of_ns, cut_at_as_of=as_of_s is not None)
    assert found is not None
    return found


def exported(folder: Path, *args: str) -> tuple[int, str]:
    """Return the exit code and what was printed, as of long after the case."""
    runner = CliRunner()
    with runner.isolation() as (out, err, _):
        code = run(["timeline", "--events", str(folder), *args])
        return code, out.getvalue().decode() + err.getvalue().decode()


@pytest.mark.slow
@pytest.mark.parametrize("case_id", sorted(CASES))
def test_every_span_of_every_case_arrives_as_it_is(
    case_id: str, receiver: Any, tmp_path: Path, write_case: WriteCase, otlp: Any
) -> None:
    case = CASES[case_id]
    write_case(case, tmp_path)
    as_of = ["--as-of", str(1_900_000_000 + case["as_of"])] if "as_of" in case else []
    code, said = exported(tmp_path, *as_of, "--otlp", receiver.url, "--metrics")
    assert code == 0, said
    job = account_of(tmp_path, case.get("as_of"))
    expected = {s.place.span_id.to_bytes(8): s for s in job_spans(job) if not s.is_open}
    found = receiver.by_id()
    assert found.keys() == expected.keys()
    assert len(receiver.spans) == len(expected)
    for span_id, span in expected.items():
        got = found[span_id].span
        assert (got.name, got.trace_id) == (span.name, span.place.trace_id.to_bytes(16))
        assert got.parent_span_id == (b"" if span.parent_id is None else span.parent_id.to_bytes(8))
        assert (got.start_time_unix_nano, got.end_time_unix_nano) == (span.start_ns, span.end_ns)
        assert otlp.values(got.attributes) == dict(span.attributes)
        events = [(e.name, e.time_unix_nano, otlp.values(e.attributes)) for e in got.events]
        assert events == [(e.name, e.time_ns, dict(e.attributes)) for e in span.events]
        links = [(link.trace_id, link.span_id) for link in got.links]
        assert links == [(x.place.trace_id.to_bytes(16), x.place.span_id.to_bytes(8)) for x in span.links]
        assert (got.kind, got.status.code) == (1, 2 if span.is_error else 0)
        assert found[span_id].resource["service.name"] == "ett-trainer"
        assert "ett.job.id" not in found[span_id].resource
    points = metric_points(job)
    got = [(m.name, *sorted(otlp.values(p.attributes).items())) for m, _ in receiver.metrics() for p in _points(m)]
    assert sorted(got) == sorted((p.metric.otel, *sorted(p.attributes.items())) for p in points)


def _points(metric: Any) -> Any:
    return metric.histogram.data_points if metric.WhichOneof("data") == "histogram" else metric.sum.data_points


def test_a_second_export_sends_the_same_spans(receiver: Any, ended_job: Path) -> None:
    exported(ended_job, "--otlp", receiver.url)
    first, receiver.spans = list(receiver.spans), []
    exported(ended_job, "--otlp", receiver.url)
    assert [r.span for r in receiver.spans] == [r.span for r in first]
    assert first


def test_metrics_have_the_names_units_and_values_of_the_table(receiver: Any, ended_job: Path, otlp: Any) -> None:
    assert exported(ended_job, "--otlp", receiver.url, "--metrics")[0] == 0
    job = account_of(ended_job)
    report = build_report(job)
    table = {m.otel: m for m in METRICS}
    found = {metric.name: metric for metric, _ in receiver.metrics()}
    assert {"ett.component.rank_time", "ett.restarts", "ett.attempt.component.duration", "ett.jobs"} <= found.keys()
    for name, metric in found.items():
        assert (metric.unit, metric.description) == (table[name].unit, table[name].help)
        kind = {"counter": "sum", "up_down_counter": "sum", "histogram": "histogram"}[table[name].instrument]
        assert metric.WhichOneof("data") == kind
        data = getattr(metric, kind)
        assert data.aggregation_temporality == 2  # cumulative
        if kind == "sum":
            assert data.is_monotonic == (table[name].instrument == "counter")
        for point in data.data_points:
            assert set(otlp.values(point.attributes)) == set(table[name].point_attributes)
            times = (point.start_time_unix_nano, point.time_unix_nano)
            assert times == (job.window.start_ns, job.window.end_ns)
    seconds = {
        otlp.values(p.attributes)[attribute("component")]: p.as_double
        for p in found["ett.component.job_time"].sum.data_points
    }
    assert seconds["training"] * NS == report.ns["effective"] + report.ns["wasted"]
    assert seconds["wasted"] * NS == report.ns["wasted"]
    assert sum(value for name, value in seconds.items() if name != "wasted") * NS == report.total_ns
    (restarts,) = found["ett.restarts"].sum.data_points
    assert restarts.as_int == len(report.interruptions)
    assert all("ett.job.id" not in resource for _, resource in receiver.metrics())


def test_the_environment_names_receiver_headers_and_resource(
    receiver: Any, ended_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url + "/")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret,x-tenant=ads")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod,k8s.pod.name=p")
    code, said = exported(ended_job, "--otlp")
    assert code == 0, said
    assert receiver.paths == ["/v1/traces"]
    assert receiver.headers[0]["authorization"] == "Bearer s3cret"
    assert receiver.headers[0]["x-tenant"] == "ads"
    assert receiver.headers[0]["content-type"] == "application/x-protobuf"
    resource = receiver.spans[0].resource
    assert (resource["deployment.environment.name"], resource["k8s.pod.name"]) == ("prod", "p")
    assert resource["service.namespace"] == "ett"
    assert resource["host.name"] == "host-0"
    assert resource["telemetry.sdk.language"] == "python"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_an_answer_that_asks_for_patience_is_tried_again(
    status: int, receiver: Any, ended_job: Path, otlp: Any
) -> None:
    receiver.answers = [otlp.Answer(status=status, headers={"Retry-After": "0"})] * 2
    code, said = exported(ended_job, "--otlp", receiver.url)
    assert code == 0, said
    assert receiver.paths == ["/v1/traces"] * 3
    assert receiver.spans


@pytest.mark.parametrize(
    ("status", "ends_as"),
    [(400, "6 S006"), (401, "5 P002"), (403, "5 P002"), (404, "6 S006"), (500, "6 S006"), (302, "6 S006")],
)
def test_any_other_answer_is_an_error_at_once(
    status: int, ends_as: str, receiver: Any, ended_job: Path, otlp: Any
) -> None:
    receiver.answers = [otlp.Answer(status=status, headers={"Location": "http://127.0.0.1:1/"})]
    code, said = exported(ended_job, "--otlp", receiver.url)
    exit_code, error = ends_as.split()
    assert (str(code), len(receiver.paths)) == (exit_code, 1)
    assert f"error[ETT-{error}]" in said
    assert f"answered {status}" in said
    assert "Traceback" not in said


def test_a_receiver_that_asks_for_more_patience_than_there_is_is_an_error(
    receiver: Any, ended_job: Path, otlp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    receiver.answers = [otlp.Answer(status=429, headers={"Retry-After": "3600"})]
    code, said = exported(ended_job, "--otlp", receiver.url)
    assert code == 6
    assert "answered 429" in said


def test_a_receiver_that_is_not_there_is_an_error(
    ended_job: Path, receiver: Any, otlp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with otlp.OtlpReceiver() as gone:
        url = gone.url
    code, said = exported(ended_job, "--otlp", url)
    assert code == 6
    assert "error[ETT-S006]" in said
    assert "no connection could be made" in said
    assert "Traceback" not in said


def test_a_receiver_that_never_answers_holds_nobody(
    ended_job: Path, receiver: Any, otlp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    hold = threading.Event()
    receiver.answers = [otlp.Answer(hold=hold)] * 9
    code, said = exported(ended_job, "--otlp", receiver.url)
    hold.set()
    assert code == 6
    assert "did not answer in time" in said


@pytest.mark.slow
def test_a_receiver_that_drips_bytes_holds_nobody_beyond_one_timeout(
    ended_job: Path, receiver: Any, otlp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")  # of a socket: a byte every 0.05 s never lets it run out
    until = threading.Event()
    receiver.answers = [otlp.Answer(drip=until)] * 9
    begun_s = time.monotonic()
    code, said = exported(ended_job, "--otlp", receiver.url)
    until.set()
    assert code == 6
    assert "did not take everything within 0.5 s" in said
    assert time.monotonic() - begun_s < 60  # bytes come until this test ends


def test_a_partial_success_is_said(receiver: Any, ended_job: Path, otlp: Any) -> None:
    receiver.answers = [otlp.Answer(body=otlp.partial_traces(2, "too \x1b[31mold"))]
    code, said = exported(ended_job, "--otlp", receiver.url)
    assert code == 0
    assert "accepted, 2 rejected (too  [31mold)" in said
    assert len(receiver.paths) == 1


def test_a_success_that_rejected_everything_is_an_error(receiver: Any, ended_job: Path, otlp: Any) -> None:
    receiver.answers = [otlp.Answer(body=otlp.partial_traces(10**6, "no such tenant"))]
    code, said = exported(ended_job, "--otlp", receiver.url)
    assert code == 6
    assert "no such tenant" in said


def test_a_proxys_page_instead_of_an_answer_is_taken_as_its_status(receiver: Any, ended_job: Path, otlp: Any) -> None:
    receiver.answers = [otlp.Answer(body=b"<html>" + b"x" * 200_000)]
    assert exported(ended_job, "--otlp", receiver.url)[0] == 0


def test_headers_are_never_printed_or_logged(
    ended_job: Path, receiver: Any, otlp: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret")
    receiver.answers = [otlp.Answer(status=500)]
    code, said = exported(ended_job, "--otlp", receiver.url)
    assert code == 6
    assert "s3cret" not in said + caplog.text


@pytest.mark.parametrize(
    "url", ["http://u:pw@127.0.0.1:4318", "ftp://u:pw@x", "127.0.0.1:4318", "http://u:pw@h:99999", "http://["]
)
def test_a_url_of_no_receiver_is_refused_without_its_secret(url: str, ended_job: Path, receiver: Any) -> None:
    code, said = exported(ended_job, "--otlp", url)
    assert code == 3
    assert "pw" not in said


def test_no_receiver_named_is_a_usage_error(ended_job: Path, receiver: Any) -> None:
    code, said = exported(ended_job, "--otlp")
    assert code == 2
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in said


def test_without_the_extra_the_command_says_what_to_install(
    ended_job: Path, receiver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Without("opentelemetry"), *sys.meta_path])
    code, said = exported(ended_job, "--otlp", receiver.url)
    assert code == 3
    assert "pip install 'ett[otel]'" in said
    assert receiver.paths == []


class _Without:
    """An importer that knows that a package is not there."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self._package:
            raise ModuleNotFoundError(name=name)


def test_what_still_runs_is_left_to_a_later_export(receiver: Any, tmp_path: Path, write_case: WriteCase) -> None:
    events = [e for e in CASES["C02"]["events"] if e["ev"] != "job_ended"]
    alive = [e for e in events if not (e["ev"] == "attempt_ended" and e["att"] == 2)]
    write_case({"id": "c02", "events": alive}, tmp_path)
    last = max(e.get("t", e.get("e", 0)) for e in alive)
    code, said = exported(tmp_path, "--as-of", str(1_900_000_000 + last + 1), "--otlp", receiver.url)
    assert code == 0
    assert "left to a later export: attempt 2" in said
    assert {r.span.name for r in receiver.spans} >= {"attempt", "training"}
    assert not [r for r in receiver.spans if r.span.name.startswith("train ")]


def test_a_large_export_is_sent_in_bounded_requests(
    receiver: Any, ended_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_export, "_MAX_ITEMS_PER_REQUEST", 4)
    assert exported(ended_job, "--otlp", receiver.url)[0] == 0
    assert len(receiver.paths) > 2
    job = account_of(ended_job)
    assert len(receiver.by_id()) == len(job_spans(job))
