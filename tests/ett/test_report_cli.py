"""`ett report`, `ett explain` and `ett ls` on a home folder, as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ett.cli import run
from ett.report import Report, empty_report, roll_up

WriteCase = Callable[[dict[str, Any], Path], list[str]]
CASES = {
    case["id"]: case for case in json.loads((Path(__file__).parent / "cases" / "handed.json").read_text())["cases"]
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_case: WriteCase) -> Path:
    """A home with two jobs that ended, one that was lost, and one without records yet."""
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    for name, case in (("ctr-aaaa", "C02"), ("ctr-bbbb", "C08"), ("ads-cccc", "C07")):
        events = [e | {"team": "ads", "owner": "lee", "model": "ctr"} if e["ev"] == "job_submitted" else e
                  for e in CASES[case]["events"]]  # fmt: skip
        write_case(CASES[case] | {"id": name, "events": events}, tmp_path / "jobs" / name)
    (tmp_path / "jobs" / "new-dddd").mkdir()
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run(list(argv)) == 0
    return json.loads(capsys.readouterr().out)


def test_a_unique_prefix_names_a_job(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "report", "ctr-a", "--json")["data"]["job"] == "ctr-aaaa"


def test_an_ambiguous_prefix_lists_the_candidates(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "ctr"]) == 4
    message = capsys.readouterr().err
    assert "ctr-aaaa" in message
    assert "ctr-bbbb" in message


def test_an_unknown_job_is_not_found(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "nobody"]) == 4
    assert "ctr-aaaa" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["ctr-aaaa", "--events", "x"], ["ctr-aaaa", "--as-of", "noon"]])
def test_a_wrong_command_line_is_a_usage_error(home: Path, argv: list[str]) -> None:
    assert run(["report", *argv]) == 2


def test_a_missing_folder_is_exit_code_4(tmp_path: Path) -> None:
    assert run(["report", "--events", str(tmp_path / "none")]) == 4


def test_an_empty_log_has_no_ett(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    envelope = answer(capsys, "report", "--events", str(tmp_path), "--json")
    assert envelope["data"]["ett"] is None
    assert envelope["warnings"] == ["the log has no records"]


@pytest.mark.parametrize("verb", ["report", "explain", "whatif", "timeline"])
def test_a_folder_of_other_things_is_no_empty_log(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "passwd").write_text("")
    assert run([verb, "--events", str(tmp_path)]) == 4
    assert "no event log under" in capsys.readouterr().err


def test_a_state_that_does_not_exist_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--state", "nonsense"]) == 2
    assert "suspended" in capsys.readouterr().err


def test_a_log_that_is_to_be_taken_in_needs_a_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["--all"], ["a", "b"]):
        assert run(["ingest", *argv, "--events", str(home)]) == 2
        assert f"`ett ingest NAME --events {home}`" in capsys.readouterr().err


def test_a_store_in_a_folder_that_does_not_exist_is_not_made(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for verb in (["ingest", "--all"], ["collect", "--bind", "127.0.0.1:0"]):
        assert run([*verb, "--store", str(home / "no" / "such" / "ett.db")]) == 4
        assert "mkdir -p" in capsys.readouterr().err
    assert not (home / "no").exists()
    monkeypatch.setenv("ETT_HOME", str(home / "new"))  # one's own home is made, as by a launch
    assert run(["ingest", "--all"]) == 0


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999", ":9480", "[]:1", "127.0.0.1:٣"])
def test_an_address_without_a_meaning_is_told_so_before_anything_else(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["collect", "--bind", address]) == 2
    error = capsys.readouterr().err
    assert f"--bind {address!r}" in error
    assert "HOST:PORT" in error


def test_json_has_the_documented_keys(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    envelope = answer(capsys, "report", "ctr-aaaa", "--json")
    assert set(envelope) == {"schema", "data", "warnings"}
    documented = {
        "job", "state", "total_ns", "ns", "total_s", "ett", "ett_from_allocation", "seconds", "detail",
        "interruptions", "closed_formula", "at_risk_s", "capacity_ett", "flags",
    }  # fmt: skip
    assert documented <= set(envelope["data"])
    assert list(envelope["data"]["interruptions"]) == ["failures", "preemptions", "inprocess", "resizes"]
    assert {"tts_s", "nof", "ttr_s", "ett"} <= set(envelope["data"]["closed_formula"])


def test_a_person_reads_where_the_time_went(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "ctr-aaaa"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0] == "ctr-aaaa   succeeded   1 rank   2 attempts   wall 4m 20s   ETT 46.2 %"
    assert len(lines[1]) == 64
    assert "▓ wasted              37.0s    14.2 %  replay 30.0s, in_flight 7.0s" in lines
    assert "replayed 3 steps (30.0s) over data already learned from" in lines
    assert "\x1b" not in shown


def test_a_lost_job_shows_what_is_at_risk(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "ads-cccc", "--as-of", "1900010000"]) == 0
    assert "at risk 1m 40s" in capsys.readouterr().out


@pytest.mark.parametrize(("ratio", "code"), [("0.46", 0), ("0.47", 9)])
def test_fail_under_is_exit_code_9(home: Path, capsys: pytest.CaptureFixture[str], ratio: str, code: int) -> None:
    assert run(["report", "ctr-aaaa", "--json", "--fail-under", ratio]) == code
    assert json.loads(capsys.readouterr().out)["data"]["job"] == "ctr-aaaa"


@pytest.mark.parametrize(
    "argv",
    [["--fail-under", "nan"], ["--window", "5", "1"], ["--exclude", "5", "4"], ["--window", "1e300", "1e301"],
     ["--as-of", "1e400"]],
)  # fmt: skip
def test_a_value_that_means_nothing_is_refused(home: Path, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "ctr-aaaa", *argv]) == 2
    assert argv[0] in capsys.readouterr().err


def test_a_job_that_is_named_twice_counts_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = answer(capsys, "report", "ctr-aaaa", "--json", "--by", "component")
    assert answer(capsys, "report", "ctr-aaaa", "ctr-a", "--json", "--by", "component") == once


def test_fractions_of_a_second_are_exact(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("report", "ctr-aaaa", "--json", "--window", "1900000120.000000001", "1900000120.000000004")
    assert answer(capsys, *argv)["data"]["total_ns"] == 3


def test_explain_names_rule_and_evidence(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "explain", "ctr-a", "--json")["data"]
    verdicts = [
        (f"{i['component']}.{i['reason']}", i["rule"], (i["end_ns"] - i["begin_ns"]) // 10**9, i["evidence"][:15])
        for i in found["intervals"]
    ]
    assert verdicts == [
        ("scheduling.queue", "R3", 10, "job_submitted 0"),
        ("initialization.untracked", "R6", 40, "attempt_started"),
        ("effective.new_data", "R8", 80, "step 1/r0-host-"),
        ("wasted.in_flight", "R7", 7, "step_begin 1/r0"),
        ("scheduling.restart", "R3", 20, "attempt_ended 0"),
        ("initialization.restore", "R5", 30, "span_begin 2/r0"),
        ("wasted.replay", "R8", 30, "step 2/r0-host-"),
        ("effective.new_data", "R8", 40, "step 2/r0-host-"),
        ("shutdown.untracked", "R12", 3, "train_end 2/r0-"),
    ]
    assert set(found["rules"]) == {"R3", "R5", "R6", "R7", "R8", "R12"}


def test_explain_prints_one_line_an_interval(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "ctr-a"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "wasted.in_flight" in lines[4]
    assert "step_begin 1/r0-host-0-1000-boot0000.jsonl seq 9" in lines[4]


def test_explain_folds_the_loop_s_microseconds_into_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write_case: WriteCase
) -> None:
    loop = [{"ev": "step", "att": 1, "src": "r0", "b": 10 * n, "e": 10 * n + 9, "c0": n, "c1": n + 1} for n in range(5)]
    started = [{"ev": "job_submitted", "t": 0}, {"ev": "attempt_started", "att": 1, "t": 0}]
    ended = [
        {"ev": "attempt_ended", "att": 1, "t": 49, "reason": "completed"},
        {"ev": "job_ended", "t": 49, "status": "succeeded"},
    ]
    write_case({"id": "f", "events": [*started, *loop, *ended]}, tmp_path)
    assert run(["explain", "--events", str(tmp_path)]) == 0
    rows = [line.split()[1:4] for line in capsys.readouterr().out.splitlines()[1:3]]
    assert rows == [["45.0s", "5", "effective.new_data"], ["4.0s", "4", "wasted.untracked"]]
    assert run(["explain", "--events", str(tmp_path), "--every-step"]) == 0
    assert capsys.readouterr().out.count("effective.new_data") == 5


def test_ls_lists_every_job_newest_first(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = answer(capsys, "ls", "--json")["data"]["jobs"]
    assert [set(job) for job in jobs] == 4 * [{"job", "team", "owner", "model", "state", "attempts", "ett", "started"}]
    by_name = {job["job"]: job for job in jobs}
    assert by_name["ctr-aaaa"]["state"] == "succeeded"
    assert by_name["ctr-aaaa"]["ett"] == pytest.approx(120 / 260)
    assert by_name["ctr-bbbb"]["state"] == "failed"
    assert by_name["new-dddd"]["state"] == "queued"
    assert (by_name["ctr-aaaa"]["team"], by_name["ctr-aaaa"]["started"]) == ("ads", "2030-03-17T17:46:40Z")
    assert [job["started"] for job in jobs] == sorted((job["started"] for job in jobs), reverse=True)


def test_ls_is_a_plain_table(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["job", "team", "owner", "model", "state", "attempts", "ett", "started"]
    assert len(lines) == 5


def test_a_flag_is_explained_where_people_read_it(
    tmp_path: Path, write_case: WriteCase, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = write_case(CASES["C06"], tmp_path)
    assert run(["report", "--events", str(tmp_path), *flags]) == 0
    assert "flagged inferred_end: nobody wrote the end of an attempt" in capsys.readouterr().out


def test_several_jobs_are_rolled_up_by_seconds_never_by_mean_of_shares() -> None:
    def job(total_s: int, effective_s: int) -> Report:
        return replace(empty_report(), total_ns=total_s, ns=empty_report().ns | {"effective": effective_s})

    assert roll_up([job(1000, 900), job(100, 10)]) == pytest.approx(910 / 1100)  # C26
    assert roll_up([]) is None


def test_json_says_who_spent_and_who_caused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "ett.toml").write_text('[owners]\nunknown = "oncall"\ninitialization.restore = "storage"\n')
    data = answer(capsys, "report", "ctr-aaaa", "--json")["data"]
    for view in ("as_spent", "as_caused"):
        assert sum(row["ns"] for row in data[view]) == data["total_ns"]
    (stop,) = [row for row in data["as_caused"] if row["cause"] == "interruption"]
    assert (stop["owner"], stop["count"], stop["ns"]) == ("oncall", 1, 87 * 10**9)
    owners = {f"{row['component']}.{row['reason']}": row["owner"] for row in data["as_spent"]}
    assert (owners["effective.new_data"], owners["initialization.restore"]) == ("lee", "storage")


@pytest.mark.parametrize("line", ["[slo]\nwatsed = 0.1", "[slo]\nwasted = 2", "[owners]\nwasted = 7"])
def test_a_wrong_site_file_names_its_line(home: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    (home / "ett.toml").write_text(line)
    assert run(["report", "ctr-aaaa"]) == 3
    assert "ett.toml:2" in capsys.readouterr().err
