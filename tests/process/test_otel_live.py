"""What an OTLP receiver sees of a job while it runs, and what the job sees of the receiver: nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import otlp_receiver as otlp
import pytest
from launched_job import NAME, LaunchedJob, NewJob
from wait import LONGEST_S, best_of_three, wait_until

from ett.otel.job_trace import root_place
from ett.otel.trace_ids import attempt_place, parse_traceparent

pytestmark = pytest.mark.process
# Fails in its first attempt; ends its second when somebody makes the file `go`.
TWICE = """
import os, pathlib, sys, time
if os.environ["ETT_ATTEMPT"] == "1":
    sys.exit(5)
until = time.monotonic() + 300
while not pathlib.Path("go").exists() and time.monotonic() < until:
    time.sleep(0.02)
"""


@pytest.fixture
def receiver() -> Iterator[Any]:
    with otlp.OtlpReceiver() as started:
        yield started


def exports_of(job: LaunchedJob) -> list[int]:
    """Return the pids of the job's live exports."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"ett.otel.live_export" in words and str(job.job_dir).encode() in words:
            found.append(int(path.parent.name))
    return found


def names(receiver: Any) -> list[tuple[str, int]]:
    return sorted((r.span.name, r.attributes.get("ett.attempt.number", 0)) for r in receiver.spans)


def test_an_attempts_spans_arrive_when_it_ends_and_the_jobs_at_its_end(job: LaunchedJob, receiver: Any) -> None:
    settings = {"ETT_TELEMETRY_OTLP_ENDPOINT": receiver.url, "ETT_TELEMETRY_OTLP_INTERVAL": "300ms"}
    settings |= {
        "ETT_TELEMETRY_SHUTDOWN_FLUSH": "300s",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
        "ETT_RECOVERY_BACKOFF_S": "0",
    }
    launched = job.start("--max-restarts", "1", "--model", "m", "--", "python3", "-c", TWICE, **settings)
    wait_until(lambda: ("attempt", 1) in names(receiver), "the first attempt's span")
    wait_until(lambda: len(receiver.metric_requests) > 2, "metrics of a running job")
    assert launched.poll() is None
    assert ("attempt", 2) not in names(receiver)
    (job.folder / "go").touch()
    assert launched.wait(timeout=LONGEST_S) == 0
    assert [n for n, _ in names(receiver)].count("attempt") == 2
    (root,) = [r for r in receiver.spans if r.span.name == "train m"]
    assert root.span.trace_id == root_place(NAME).trace_id.to_bytes(16)
    assert {r.span.trace_id for r in receiver.spans} == {root.span.trace_id}
    first = next(r for r in receiver.spans if r.attributes.get("ett.attempt.number") == 1)
    assert (first.attributes["process.exit.code"], first.span.status.code) == (5, 2)
    assert len({r.span.span_id for r in receiver.spans}) == len(receiver.spans)
    assert exports_of(job) == []
    _check_counters(receiver)


def _check_counters(receiver: Any) -> None:
    last: dict[Any, float] = {}
    for request in receiver.metric_requests:
        for metric in request.resource_metrics[0].scope_metrics[0].metrics:
            if metric.WhichOneof("data") == "sum" and metric.sum.is_monotonic:
                for point in metric.sum.data_points:
                    key = (metric.name, *sorted(otlp.values(point.attributes).items()))
                    value = getattr(point, point.WhichOneof("value"))
                    assert value >= last.get(key, 0)
                    last[key] = value
    assert last[("ett.restarts", ("error.type", "user_error"))] == 1


def test_what_was_sent_is_not_sent_by_the_next_launch(job: LaunchedJob, receiver: Any) -> None:
    settings = {
        "ETT_TELEMETRY_OTLP_ENDPOINT": receiver.url,
        "ETT_TELEMETRY_SHUTDOWN_FLUSH": "300s",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
    }
    program = "import os, sys; sys.exit(5 if os.environ['ETT_ATTEMPT'] == '1' else 0)"
    assert job.run("--", "python3", "-c", program, **settings) == 5
    assert job.run(**settings) == 0
    attempts = [number for name, number in names(receiver) if name == "attempt"]
    assert attempts == [1, 2]


def test_a_receiver_that_is_gone_changes_neither_exit_code_nor_the_jobs_end(job: LaunchedJob) -> None:
    with otlp.OtlpReceiver() as gone:
        url = gone.url
    assert job.run("--", "python3", "-c", "raise SystemExit(7)", ETT_TELEMETRY_OTLP_ENDPOINT=url) == 7
    assert [record.data["status"] for record in job.records("job_ended")] == ["failed"]
    assert exports_of(job) == []
    assert "Traceback" not in job.err


def test_a_receiver_that_never_answers_holds_the_end_for_the_flush_alone(new_job: NewJob, receiver: Any) -> None:
    hold = threading.Event()
    receiver.answers = [otlp.Answer(hold=hold)] * 99

    def held_s() -> float:
        job = new_job()
        settings = {"ETT_TELEMETRY_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_TIMEOUT": "60"}
        launched = job.start("--", "python3", "-c", "", **settings)
        wait_until(lambda: job.records("job_ended"), "the job's end")
        ended_s = time.monotonic()
        assert launched.wait(timeout=LONGEST_S) == 0
        assert exports_of(job) == []
        return time.monotonic() - ended_s

    try:
        assert best_of_three(held_s, 30.0) < 30.0  # flush 2 s, grace 1 s; the request alone would last 60 s
    finally:
        hold.set()


def test_a_killed_supervisor_leaves_no_export_behind(job: LaunchedJob, receiver: Any) -> None:
    launched = job.start("--", "sleep", "600", ETT_TELEMETRY_OTLP_ENDPOINT=receiver.url)
    wait_until(lambda: exports_of(job) and job.records("attempt_started"), "the export and the attempt")
    launched.send_signal(signal.SIGKILL)
    launched.wait()
    wait_until(lambda: not exports_of(job), "the export's end")


def test_ranks_have_the_attempts_place_in_their_environment(job: LaunchedJob) -> None:
    program = "import os; print('place', os.environ['TRACEPARENT'])"
    launcher = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert job.run("--", "python3", "-c", program, TRACEPARENT=launcher) == 0
    (text,) = [line.split()[-1] for line in job.out.splitlines() if "place" in line]
    place = parse_traceparent(text)
    assert place == attempt_place(NAME, 1, has_own_trace=False)
    assert place is not None
    assert place.trace_id == root_place(NAME).trace_id
    (submitted,) = job.records("job_submitted")
    assert submitted.data["traceparent"] == launcher


def test_an_attempt_with_a_trace_of_its_own_says_so_to_its_ranks_and_its_log(job: LaunchedJob) -> None:
    program = "import os; print('place', os.environ['TRACEPARENT'])"
    assert job.run("--", "python3", "-c", program, ETT_TELEMETRY_TRACE_PER_ATTEMPT="always") == 0
    (text,) = [line.split()[-1] for line in job.out.splitlines() if "place" in line]
    assert parse_traceparent(text) == attempt_place(NAME, 1, has_own_trace=True)
    (started,) = job.records("attempt_started")
    assert started.data["own_trace"] is True


def test_the_standard_variable_names_the_receiver_where_the_configuration_asks_for_it(
    job: LaunchedJob, receiver: Any
) -> None:
    asked = {"ETT_TELEMETRY_OTLP": "true", "ETT_TELEMETRY_SHUTDOWN_FLUSH": "300s", "OTEL_EXPORTER_OTLP_TIMEOUT": "60"}
    assert job.run("--", "python3", "-c", "", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, **asked) == 0
    assert ("attempt", 1) in names(receiver)
    assert (job.job_dir / "otel" / "export.log").read_text().count("spans sent") == 2


def test_nothing_is_exported_unless_it_is_asked_for(job: LaunchedJob, receiver: Any) -> None:
    assert job.run("--", "python3", "-c", "", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) == 0
    assert receiver.paths == []
    assert not os.path.exists(job.job_dir / "otel")
