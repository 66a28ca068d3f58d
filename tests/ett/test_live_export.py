"""The live export sends what became final once, says a failure once, and asks for it in the configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ett.errors import ConfigError
from ett.live_account import LiveAccount
from ett.otel.live_export import EndWatch, LiveConfig, LiveExport, run
from ett.otel.otlp_settings import otlp_settings
from ett.recipe_sections import TelemetryConfig

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parent / "cases" / "handed.json").read_text())["cases"]
    if "events" in case
}
WriteCase = Callable[[Any, Path], list[str]]


@pytest.fixture
def receiver(otlp: Any) -> Iterator[Any]:
    with otlp.OtlpReceiver() as started:
        yield started


@pytest.fixture
def job_dir(tmp_path: Path, write_case: WriteCase) -> Path:
    write_case(CASES["C02"], tmp_path)
    (tmp_path / "otel").mkdir()
    return tmp_path


def live_export(folder: Path, receiver: Any, said: list[str]) -> LiveExport:
    return LiveExport(folder, otlp_settings(receiver.url, {}), LiveConfig(), said.append)


@pytest.mark.slow
def test_a_span_is_sent_once_even_by_another_process(job_dir: Path, receiver: Any) -> None:
    said: list[str] = []
    assert live_export(job_dir, receiver, said).send(spans=True, metrics=False)
    num_spans = len(receiver.spans)
    assert [line.split(":")[0] for line in said] == ["job 1900000260000000000", "attempt 1", "attempt 2"]
    assert live_export(job_dir, receiver, said).send(spans=True, metrics=False)
    assert len(receiver.spans) == num_spans > 10


def test_a_failure_is_said_once_and_what_was_not_sent_is_tried_again(job_dir: Path, receiver: Any, otlp: Any) -> None:
    said: list[str] = []
    live = live_export(job_dir, receiver, said)
    receiver.answers = [otlp.Answer(status=500)] * 2
    assert not live.send(spans=True, metrics=False)
    assert not live.send(spans=True, metrics=False)
    assert [line for line in said if "500" in line] == said
    assert len(said) == 1
    assert live.send(spans=True, metrics=False)
    assert len(receiver.by_id()) == len(receiver.spans) > 10


def test_a_folder_that_is_gone_is_a_failure_like_another(job_dir: Path, receiver: Any) -> None:
    said: list[str] = []
    live = live_export(job_dir, receiver, said)
    job_dir.rename(job_dir.with_name("gone"))
    assert not live.send(spans=True, metrics=True)
    assert len(said) == 1


def test_everything_is_sent_at_the_end(job_dir: Path, receiver: Any) -> None:
    looks: list[float] = []

    def is_over(wait_s: float) -> bool:
        looks.append(wait_s)
        return len(looks) == 1

    run(live_export(job_dir, receiver, []), EndWatch(job_dir / "events"), LiveConfig(), is_over)
    assert sorted(set(receiver.paths)) == ["/v1/metrics", "/v1/traces"]


def test_an_end_is_seen_once_and_only_when_its_line_is_whole(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    log = tmp_path / "0" / "sup-h-1-b.jsonl"
    log.write_bytes(b'{"ev":"heartbeat"}\tcrc\n{"ev":"attempt_ended"')
    watch = EndWatch(tmp_path)
    assert not watch.has_new_end()
    with log.open("ab") as file:
        file.write(b"}\tcrc\n")
    assert watch.has_new_end()
    assert not watch.has_new_end()


@pytest.mark.parametrize(
    "wrong",
    [
        {"otlp_endpoint": "http://u:secret@h"},
        {"otlp_endpoint": "h:4318"},
        {"otlp_interval": "0s"},
        {"otlp_interval": "x"},
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        TelemetryConfig(**wrong)
    assert f"telemetry.{next(iter(wrong))}" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "exports"),
    [
        ({}, False),
        ({"otlp": True}, True),
        ({"otlp_endpoint": "http://h:4318"}, True),
        ({"otlp": True, "mode": "off"}, False),
    ],
)
def test_an_export_is_asked_for(asked: dict[str, Any], exports: bool) -> None:
    assert TelemetryConfig(**asked).exports_otlp is exports


def test_a_second_look_reads_what_was_appended(job_dir: Path, receiver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    real = LiveAccount.add_bytes
    monkeypatch.setattr(
        LiveAccount, "add_bytes", lambda live, name, data: taken.append(len(data)) or real(live, name, data)
    )
    live = live_export(job_dir, receiver, [])
    assert live.send(spans=False, metrics=True)
    assert sum(taken) == sum(path.stat().st_size for path in job_dir.rglob("*.jsonl"))
    taken.clear()
    assert live.send(spans=True, metrics=True)
    assert not taken
