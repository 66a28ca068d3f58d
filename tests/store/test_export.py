"""Exports: JSONL loses nothing, a trace nests and stays within its size, Parquet holds every record."""

from __future__ import annotations

import gzip
import json
import os
import stat
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ett.accounting import account
from ett.cli import run
from ett.event_line import encode_line
from ett.event_reader import read_folder
from ett.store import open_store
from ett.store.export_trace import trace_of

StepLine = Callable[..., bytes]
CaseLog = Callable[[Any], Any]
CASES = Path(__file__).parents[1] / "ett" / "cases"
NS = 10**9


def all_cases() -> list[Any]:
    files = (CASES / name for name in ("handed.json", "ours.json"))
    found = [case for file in files for case in json.loads(file.read_text())["cases"]]
    return [pytest.param(case, id=case["id"]) for case in found]


def checked_trace(data: bytes) -> list[dict[str, Any]]:
    """Return the slices of a trace after checking what Perfetto needs: known tracks, and perfect nesting in each."""
    trace = json.loads(data, parse_float=Decimal)
    events = trace["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} <= {"M", "X"}
    assert {(e["pid"], e["tid"]) for e in slices} <= named
    open_ends: dict[tuple[int, int], list[Decimal]] = {}
    for e in sorted(slices, key=lambda e: (e["pid"], e["tid"], e["ts"], -e["dur"])):
        ends = open_ends.setdefault((e["pid"], e["tid"]), [])
        assert e["ts"] >= 0
        assert e["dur"] >= 0
        while ends and ends[-1] <= e["ts"]:
            ends.pop()
        assert not ends or e["ts"] + e["dur"] <= ends[-1], f"{e['name']} crosses the end of what holds it"
        ends.append(e["ts"] + e["dur"])
    return slices


@pytest.mark.slow
@pytest.mark.parametrize("case", all_cases())
def test_a_report_of_an_export_is_the_report_of_the_log(
    case: dict[str, Any], tmp_path: Path, case_log: CaseLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log = case_log(case)
    log.write(tmp_path / "log")
    assert run(["export", "--events", str(tmp_path / "log"), "-o", str(tmp_path / "job.jsonl")]) == 0
    capsys.readouterr()
    answers = []
    for events in (tmp_path / "log", tmp_path / "job.jsonl"):
        assert run(["report", "--events", str(events), "--json", *log.flags()]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]


def test_an_export_that_is_ingested_gives_the_same_bytes_again(
    tmp_path: Path, step_line: StepLine, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    job = tmp_path / "jobs" / "ctr-aaaa"
    (job / "events" / "1").mkdir(parents=True)
    (job / "launch.json").write_text('{"kind": "script", "target": "train.py"}')
    for name in ("r0-h-7-b.jsonl", "r1-h-8-b.jsonl"):
        lines = [*map(step_line, range(3)), b"bad\n", b"worse\n", encode_line({"v": 1}), step_line(5, note="\u00e9")]
        (job / "events" / "1" / name).write_bytes(b"".join(lines) + b"torn")
    for suffix in (".jsonl", ".jsonl.gz"):
        url = store_url if suffix == ".jsonl" else str(tmp_path / "second.db")
        assert run(["export", "ctr-aaaa", "-o", str(tmp_path / f"a{suffix}")]) == 0
        assert run(["ingest", "--events", str(tmp_path / f"a{suffix}"), "--store", url]) == 0
        assert run(["export", "ctr-aaaa", "--store", url, "-o", str(tmp_path / "b.jsonl")]) == 0
        assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()
        assert run(["ingest", "ctr-aaaa", "--store", url]) == 0
        with open_store(url) as store:
            assert store.event_log("ctr-aaaa").problems == read_folder(job).problems


def test_records_of_an_export_are_plain_json_in_order_of_time(
    tmp_path: Path, case_log: CaseLog, capsys: pytest.CaptureFixture[str]
) -> None:
    case = json.loads((CASES / "handed.json").read_text())["cases"][3]
    case_log(case).write(tmp_path)
    assert run(["export", "--events", str(tmp_path), "-o", "-"]) == 0
    header, *records = map(json.loads, capsys.readouterr().out.splitlines())
    assert header["schema"] == "ett.export/v1"
    assert len(records) == len(read_folder(tmp_path).records)
    assert [r["wall_ns"] for r in records] == sorted(r["wall_ns"] for r in records)


@pytest.mark.parametrize("text", ["x\n", "{}\n", '{"_file":"1/a","v":1}\n', '{"schema":"ett.export/v1"}\n'])
def test_a_file_that_is_no_export_is_a_clear_error(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    assert run(["report", "--events", str(tmp_path / "x.jsonl")]) == 3
    assert "x.jsonl:1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("case", all_cases())
def test_every_case_makes_a_trace_that_nests(case: dict[str, Any], tmp_path: Path, case_log: CaseLog) -> None:
    case_log(case).write(tmp_path)
    found = account(read_folder(tmp_path), as_of_ns=2_000_000_000 * NS)
    if found is None:
        return
    slices = checked_trace(b"".join(trace_of([found], 50_000_000).lines))
    where = [e for e in slices if e["cat"] in ("scheduling", "effective", "wasted") and "rule" in e["args"]]
    for component in ("scheduling", "effective"):
        spent = sum(p.end_ns - p.begin_ns for p in found.pieces if p.component == component)
        assert sum(e["dur"] for e in where if e["cat"] == component) * 1000 == spent


def many_steps(folder: Path, step_line: StepLine, num: int) -> Path:
    path = folder / "events" / "1" / "r0-h-7-b.jsonl"
    path.parent.mkdir(parents=True)
    span = {"id": 1, "name": "ckpt_save", "blocking": False}
    begin = step_line(num, ev="span_begin", wall_ns=10**18, mono_ns=5 * NS, **span)
    end = step_line(num + 1, ev="span_end", wall_ns=10**18 + 90 * NS, mono_ns=90 * NS, **span)
    path.write_bytes(b"".join([*map(step_line, range(num)), begin, end]))
    return folder


@pytest.mark.slow
def test_a_trace_is_bounded_and_says_what_was_merged(
    tmp_path: Path, step_line: StepLine, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = many_steps(tmp_path / "log", step_line, 5000), tmp_path / "out.json"
    argv = ["export", "--events", str(log), "--format", "trace", "-o", str(out)]
    assert run(argv) == 0
    whole = checked_trace(out.read_bytes())
    assert sum(e["cat"] == "step" for e in whole) == 5000
    assert run([*argv, "--max-bytes", "60kB"]) == 0
    assert out.stat().st_size <= 60_000
    small = checked_trace(out.read_bytes())
    assert "neighbouring steps became one" in capsys.readouterr().err
    steps = [e for e in small if e["cat"] == "step"]
    assert sum(e["args"]["merged"] for e in steps) == 5000
    assert sum(e["dur"] for e in steps) == sum(e["dur"] for e in whole if e["cat"] == "step")


def test_asynchronous_work_has_a_track_of_its_own(tmp_path: Path, step_line: StepLine) -> None:
    log, out = many_steps(tmp_path / "log", step_line, 200), tmp_path / "out.json.gz"
    assert run(["timeline", "--events", str(log), "--trace", str(out)]) == 0
    trace = json.loads(gzip.decompress(out.read_bytes()))
    threads = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    (save,) = [e for e in trace["traceEvents"] if e["name"] == "ckpt_save"]
    assert threads[save["tid"]] == "rank 0 beside training"


def test_parquet_holds_every_record_with_typed_columns(
    tmp_path: Path, step_line: StepLine, capsys: pytest.CaptureFixture[str]
) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    log = many_steps(tmp_path / "log", step_line, 50)
    (log / "events" / "1" / "r1-h-8-b.jsonl").write_bytes(step_line(0, c1=0.5, step=10**30, note=["x"]))
    assert run(["export", "--events", str(log), "--format", "parquet", "-o", str(tmp_path / "out.parquet")]) == 0
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert len(rows) == 53
    steps = [row for row in rows if row["ev"] == "step" and row["file"] == "1/r0-h-7-b.jsonl"]
    assert [(row["c0"], row["b_mono"], row["rank"]) for row in steps] == [(i, i * NS, 0) for i in range(50)]
    assert json.loads(rows[-1]["data"]) == {"c1": 0.5, "job": "j", "note": ["x"], "step": 10**30}


def test_a_file_that_cannot_be_finished_is_not_left_behind(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    out = tmp_path / "out.json"
    assert run(["export", "--events", str(tmp_path), "--format", "trace", "-o", str(out)]) == 4
    assert not list(tmp_path.glob("out*"))


def test_what_is_no_regular_file_is_written_into_and_not_replaced(
    tmp_path: Path, step_line: StepLine, capsys: pytest.CaptureFixture[str]
) -> None:
    log = many_steps(tmp_path / "log", step_line, 3)
    named = tmp_path / "pipe"
    os.mkfifo(named)
    reader = os.open(named, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run(["export", "--events", str(log), "-o", str(named)]) == 0
        assert stat.S_ISFIFO(named.stat().st_mode)
        assert os.read(reader, 1 << 16).startswith(b'{"')
    finally:
        os.close(reader)
    assert run(["export", "--events", str(log), "-o", "/dev/full"]) == 6
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert "no space left for /dev/full" in capsys.readouterr().err


def test_a_link_stays_a_link_and_what_it_names_is_written(tmp_path: Path, step_line: StepLine) -> None:
    log, link = many_steps(tmp_path / "log", step_line, 3), tmp_path / "newest.jsonl"
    link.symlink_to(tmp_path / "today.jsonl")
    assert run(["export", "--events", str(log), "-o", str(link)]) == 0
    assert link.is_symlink()
    assert (tmp_path / "today.jsonl").read_bytes()


@pytest.mark.parametrize(
    "argv",
    [["export", "-o"], ["export", "--format", "trace", "-o"], ["report", "--html"], ["timeline", "--svg"],
     ["timeline", "--trace"]],
)  # fmt: skip
def test_a_folder_that_does_not_exist_is_the_users_mistake(
    argv: list[str], tmp_path: Path, step_line: StepLine, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *options = argv
    log = many_steps(tmp_path / "log", step_line, 3)
    assert run([verb, "--events", str(log), *options, str(tmp_path / "none" / "out")]) == 4
    assert f"folder {tmp_path / 'none'} does not exist" in capsys.readouterr().err
    assert run([verb, "--events", str(log), *options, str(tmp_path)]) == 2
