"""Ingest is idempotent, loses nothing for one bad line, and a stored log means exactly what its files mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ett.accounting import account
from ett.errors import CorruptState, NotFound, UsageError
from ett.event_line import encode_line
from ett.event_reader import read_folder
from ett.report import build_report, report_json
from ett.store import Store, open_store
from ett.store.folder_ingest import ingest_folder

CASES = Path(__file__).parents[1] / "ett" / "cases"
FILE = "1/r0-h-7-b.jsonl"
NOW_NS = 1_900_000_000 * 10**9 + 10**15
StepLine = Callable[..., bytes]


def all_cases() -> list[Any]:
    files = (CASES / name for name in ("handed.json", "ours.json"))
    return [case for file in files for case in json.loads(file.read_text())["cases"]]


def answer(log: Any) -> Any:
    found = account(log, as_of_ns=NOW_NS)
    return None if found is None else report_json(build_report(found))


@pytest.mark.slow
def test_the_account_of_every_case_is_that_of_its_files(
    store: Store, case_log: Callable[[Any], Any], tmp_path: Path
) -> None:
    for case in all_cases():
        folder, job = tmp_path / case["id"], f"case-{case['id']}".lower()
        case_log(case).write(folder)
        ingest_folder(store, job, folder)
        assert answer(store.event_log(job)) == answer(read_folder(folder)), case["id"]


def test_lines_that_come_again_are_duplicates(store: Store, step_line: StepLine) -> None:
    lines = [step_line(seq) for seq in range(100)]
    assert store.ingest("j", FILE, lines[:60]).accepted == 60
    again = store.ingest("j", FILE, lines)
    assert (again.accepted, again.duplicate, again.rejected) == (40, 60, ())
    assert dict(store.files("j")) == {FILE: b"".join(lines)}


def test_a_bad_line_never_loses_the_others(store: Store, step_line: StepLine) -> None:
    bad = [b"", b"garbage", step_line(1)[:-2] + b"x\n", encode_line({"v": 1}), encode_line({"v": 2, "seq": 3})]
    result = store.ingest("j", FILE, [step_line(0), *bad, step_line(7)])
    codes = [(r.line_index, r.code) for r in result.rejected]
    kinds = ["bad_checksum", "bad_checksum", "bad_checksum", "malformed", "version"]
    assert codes == list(enumerate(kinds, start=1))
    assert result.accepted == 2


def test_what_was_rejected_counts_once_in_the_account(store: Store, step_line: StepLine) -> None:
    for _ in range(3):
        store.ingest("j", FILE, [step_line(0), b"garbage", encode_line({"v": 1}), step_line(1)])
    problems = store.event_log("j").problems
    assert (problems.corrupt_record, problems.malformed_record, problems.torn_tail) == (1, 1, 0)


def test_a_record_of_another_schema_version_makes_no_silent_answer(store: Store, step_line: StepLine) -> None:
    store.ingest("j", FILE, [step_line(0), step_line(1, v=2)])
    with pytest.raises(CorruptState, match="schema version 2"):
        store.event_log("j")


def test_other_bytes_under_a_stored_key_are_rejected_and_the_first_are_kept(store: Store, step_line: StepLine) -> None:
    store.ingest("j", FILE, [step_line(0), step_line(1)])
    result = store.ingest("j", FILE, [step_line(1, c1=999), step_line(2), step_line(2, c1=999)])
    assert [(r.line_index, r.code) for r in result.rejected] == [(0, "conflict"), (2, "conflict")]
    assert dict(store.files("j"))[FILE] == step_line(0) + step_line(1) + step_line(2)


def test_files_and_jobs_have_key_spaces_of_their_own(store: Store, step_line: StepLine) -> None:
    for job, file in (("j", FILE), ("j", "2/r0-h-7-b.jsonl"), ("k", FILE)):
        assert store.ingest(job, file, [step_line(0)]).accepted == 1


def test_an_lf_inside_a_line_makes_no_two_lines_of_it(store: Store, step_line: StepLine) -> None:
    result = store.ingest("j", FILE, [step_line(0) + step_line(1), step_line(2)])
    assert [(r.line_index, r.code) for r in result.rejected] == [(0, "bad_checksum")]


@pytest.mark.parametrize("job", ["", "../x", "a/b", "x" * 64, "-x", "a\n"])
def test_a_job_name_that_no_folder_has_is_refused(store: Store, job: str, step_line: StepLine) -> None:
    with pytest.raises(UsageError):
        store.ingest(job, FILE, [step_line(0)])


@pytest.mark.parametrize("file", ["", "x.jsonl", "1/../x", "../x", "1/", "/x", "1/a\0b", "1/a\nb", "1/.."])
def test_a_file_name_that_no_event_file_has_is_refused(store: Store, file: str, step_line: StepLine) -> None:
    with pytest.raises(UsageError):
        store.ingest("j", file, [step_line(0)])


def test_text_from_a_log_is_stored_as_it_is_whatever_it_holds(store: Store) -> None:
    team = "x'); DROP TABLE job; --\0\ud800"
    submitted = {"v": 1, "src": "sup", "seq": 0, "wall_ns": 10**18, "mono_ns": 0, "ev": "job_submitted", "team": team}
    store.ingest("j", "0/sup.jsonl", [encode_line(submitted)])
    (row,) = store.jobs()
    assert row.team == "x'); DROP TABLE job; --\N{REPLACEMENT CHARACTER}?"
    assert [found.job for found in store.jobs(team=team)] == ["j"]


def test_integers_of_any_size_are_taken(store: Store, step_line: StepLine) -> None:
    lines = [step_line(0, seq=10**30), step_line(1, wall_ns=10**30), step_line(2, seq=-5)]
    assert store.ingest("j", FILE, lines).accepted == 3
    assert store.ingest("j", FILE, lines).duplicate == 3
    assert len(store.jobs()) == 1


def test_a_job_that_is_not_there_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        store.event_log("nobody")


def test_small_values_are_kept_under_their_key(store: Store) -> None:
    assert store.get_meta("counters") is None
    store.set_meta("counters", "1")
    store.set_meta("counters", '{"a": 2}')
    assert store.get_meta("counters") == '{"a": 2}'


def test_a_store_that_is_opened_again_knows_what_it_knew(store_url: str, step_line: StepLine) -> None:
    with open_store(store_url) as first:
        first.ingest("j", FILE, [step_line(seq) for seq in range(5)])
    with open_store(store_url) as again:
        assert again.ingest("j", FILE, [step_line(4)]).duplicate == 1
        assert len(again.event_log("j").records) == 5


@pytest.mark.slow
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(batches=st.lists(st.lists(st.integers(0, 60), max_size=25), min_size=1, max_size=6))
def test_any_order_of_any_batches_keeps_each_record_once(
    batches: list[list[int]], tmp_path_factory: pytest.TempPathFactory, step_line: StepLine
) -> None:
    with open_store(tmp_path_factory.mktemp("store") / "ett.db") as store:
        results = [store.ingest("j", FILE, [step_line(seq) for seq in batch]) for batch in batches]
        wanted = {seq for batch in batches for seq in batch}
        assert sum(r.accepted for r in results) == len(wanted)
        assert sum(r.duplicate for r in results) == sum(map(len, batches)) - len(wanted)
        assert sorted(dict(store.files("j"))[FILE].splitlines(keepends=True)) == sorted(map(step_line, wanted))
