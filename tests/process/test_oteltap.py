"""A receiver that others wrote (oteltap, in Rust) takes and prints what ett sends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from wait import wait_until

from ett.accounting import account
from ett.event_reader import read_folder
from ett.otel.job_trace import job_spans
from ett.otel.metric_points import metric_points

pytestmark = pytest.mark.process
EXAMPLE = Path(__file__).parents[2] / "docs" / "worked-example"
pytest.importorskip("oteltap")
PATIENT = os.environ | {"OTEL_EXPORTER_OTLP_TIMEOUT": "60"}


def test_every_span_and_metric_of_the_worked_example_is_understood(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = tmp_path / "out"
    with out.open("wb") as file:
        tap = subprocess.Popen([sys.executable, "-u", "-m", "oteltap", "--port", str(port)], stdout=file, stderr=file)
    try:
        wait_until(lambda: b"Listening" in out.read_bytes(), "oteltap")
        command = [sys.executable, "-m", "ett", "timeline", "--events", str(EXAMPLE), "--metrics"]
        subprocess.run([*command, "--otlp", f"http://127.0.0.1:{port}"], check=True, env=PATIENT)
        found = account(read_folder(EXAMPLE), as_of_ns=0, cut_at_as_of=False)
        assert found is not None
        names = {p.metric.otel for p in metric_points(found)}
        wait_until(lambda: {r["name"] for r in received(out)} >= names, "the metrics")
    finally:
        tap.kill()
        tap.wait()
    expected = [(s.name, f"{s.place.span_id:016x}", s.start_ns, s.end_ns) for s in job_spans(found)]
    spans = [r for r in received(out) if "spanId" in r]
    got = [(r["name"], r["spanId"], int(r["startTimeUnixNano"]), int(r["endTimeUnixNano"])) for r in spans]
    assert sorted(got) == sorted(expected)


def received(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
