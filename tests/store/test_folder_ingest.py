"""Folders to the store: only new bytes are read, a torn end waits, a cut or replaced file is noticed and said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ett.cli import run
from ett.event_reader import read_folder
from ett.store import Store, open_store
from ett.store import folder_ingest as subject
from ett.store.folder_ingest import ingest_folder

StepLine = Callable[..., bytes]
NAME = "1/r0-h-7-b.jsonl"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job" / "events" / NAME
    path.parent.mkdir(parents=True)
    return path


def stored(store: Store) -> bytes:
    return dict(store.files("job")).get(NAME, b"")


def test_only_the_bytes_that_are_new_are_read(
    store: Store, log: Path, step_line: StepLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_bytes(b"".join(map(step_line, range(100))))
    assert ingest_folder(store, "job", log.parents[2]).accepted == 100
    checked: list[bytes] = []
    real = subject.read_lines
    monkeypatch.setattr(subject, "read_lines", lambda data: (checked.append(data), real(data))[1])
    with log.open("ab") as file:
        file.write(step_line(100))
    result = ingest_folder(store, "job", log.parents[2])
    assert (result.accepted, result.duplicate) == (1, 0)
    assert b"".join(checked) == step_line(100)


def test_a_torn_end_waits_for_the_rest_of_its_line(store: Store, log: Path, step_line: StepLine) -> None:
    log.write_bytes(step_line(0) + step_line(1)[:50])
    ingest_folder(store, "job", log.parents[2])
    assert stored(store) == step_line(0)
    assert store.event_log("job").problems.torn_tail == 1
    log.write_bytes(step_line(0) + step_line(1))
    assert ingest_folder(store, "job", log.parents[2]).accepted == 1
    assert store.event_log("job").problems.torn_tail == 0


def test_a_last_line_whose_end_was_lost_is_torn_until_another_follows(
    store: Store, log: Path, step_line: StepLine
) -> None:
    for more, expected in ((b"", (1, 0)), (step_line(2), (0, 1))):
        log.write_bytes(step_line(0) + step_line(1)[:50] + b"\n" + more)
        ingest_folder(store, "job", log.parents[2])
        problems = store.event_log("job").problems
        assert (problems.torn_tail, problems.corrupt_record) == expected
        assert problems == read_folder(log.parents[2]).problems


def test_a_file_that_was_cut_is_noticed(store: Store, log: Path, step_line: StepLine) -> None:
    log.write_bytes(b"".join(map(step_line, range(10))))
    ingest_folder(store, "job", log.parents[2])
    log.write_bytes(b"".join(map(step_line, range(4))))
    result = ingest_folder(store, "job", log.parents[2])
    assert (result.duplicate, result.rejected) == (4, ())
    assert "was cut" in result.notes[0]
    assert stored(store) == b"".join(map(step_line, range(10)))
    assert ingest_folder(store, "job", log.parents[2]).notes == ()


def test_a_file_that_was_replaced_is_noticed_and_never_overwrites(store: Store, log: Path, step_line: StepLine) -> None:
    log.write_bytes(b"".join(map(step_line, range(10))))
    ingest_folder(store, "job", log.parents[2])
    log.write_bytes(b"".join(step_line(i, c1=i + 2) for i in range(12)))
    result = ingest_folder(store, "job", log.parents[2])
    assert "was replaced" in result.notes[0]
    assert [code for code, _ in result.rejected] == 10 * ["conflict"]
    assert stored(store).startswith(b"".join(map(step_line, range(10))))


def test_pieces_of_a_large_file_are_committed_one_by_one(
    store: Store, log: Path, step_line: StepLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "PIECE_BYTES", 1000)
    lines = [step_line(i) for i in range(50)] + [step_line(50, note="x" * 3000), b"bad\n", step_line(51)]
    log.write_bytes(b"".join(lines))
    result = ingest_folder(store, "job", log.parents[2])
    assert (result.accepted, len(result.rejected)) == (52, 1)
    assert store.event_log("job").problems == read_folder(log.parents[2]).problems


def test_a_file_that_did_not_change_costs_no_write(store: Store, log: Path, step_line: StepLine) -> None:
    log.write_bytes(step_line(0) + b"half")
    ingest_folder(store, "job", log.parents[2])
    before = store.jobs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "ingest_lines", None)
        result = ingest_folder(store, "job", log.parents[2])
    assert (result.accepted, result.files, len(before)) == (0, 1, 1)


@pytest.mark.slow
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(cuts=st.lists(st.integers(0, 3000), max_size=8), seqs=st.permutations(range(12)))
def test_a_log_that_grows_by_any_bytes_ends_as_if_read_at_once(
    cuts: list[int], seqs: list[int], tmp_path_factory: pytest.TempPathFactory, step_line: StepLine
) -> None:
    home = tmp_path_factory.mktemp("home")
    path = home / "job" / "events" / NAME
    path.parent.mkdir(parents=True)
    whole = b"".join([*map(step_line, seqs[:6]), b"bad\n", *map(step_line, seqs[4:])])
    with open_store(home / "ett.db") as store:
        for cut in [*sorted(cuts), len(whole)]:
            path.write_bytes(whole[:cut])
            ingest_folder(store, "job", home / "job")
            assert store.event_log("job").problems.flags() == read_folder(home / "job").problems.flags()
        log, expected = store.event_log("job"), read_folder(home / "job")
        assert sorted(log.records) == sorted(expected.records)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case_log: Callable[[Any], Any]) -> Path:
    """Two jobs, one without records yet."""
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    cases = json.loads((Path(__file__).parents[1] / "ett" / "cases" / "handed.json").read_text())["cases"]
    case_log(cases[1] | {"id": "ctr-aaaa"}).write(tmp_path / "jobs" / "ctr-aaaa")
    (tmp_path / "jobs" / "new-dddd").mkdir()
    return tmp_path


def test_ingest_all_takes_every_job_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for _ in range(2):
        assert run(["ingest", "--all", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["data"]["jobs"]
        counts.append({row["job"]: row["accepted"] for row in rows})
    assert counts[0]["ctr-aaaa"] > 0
    assert counts == [counts[0], {"ctr-aaaa": 0, "new-dddd": 0}]
    assert (home / "ett.db").is_file()


@pytest.mark.parametrize("argv", [[], ["a", "--all"], ["--all", "--events", "x"], ["a", "b", "--events", "x"]])
def test_a_wrong_ingest_command_is_a_usage_error(home: Path, argv: list[str]) -> None:
    assert run(["ingest", *argv]) == 2


def test_a_conflicting_record_ends_in_its_own_code(
    home: Path, step_line: StepLine, capsys: pytest.CaptureFixture[str]
) -> None:
    for end in (1, 2):
        path = home / f"log{end}" / "events" / NAME
        path.parent.mkdir(parents=True)
        path.write_bytes(step_line(0, c1=end))
        code = run(["ingest", "mine", "--events", str(home / f"log{end}")])
    assert code == 8
    assert "error[ETT-C009]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["ls", "--json"], ["ls"], ["report", "ctr-a", "--json"], ["explain", "ctr-aaaa"], ["timeline", "ctr-aaaa"]]
)
def test_verbs_say_the_same_from_the_store_as_from_the_folders(
    home: Path, store_url: str, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == 0
    from_folders = capsys.readouterr().out
    assert run(["ingest", "--all", "--store", store_url]) == 0
    capsys.readouterr()
    assert run([*argv, "--store", store_url]) == 0
    assert capsys.readouterr().out == from_folders
