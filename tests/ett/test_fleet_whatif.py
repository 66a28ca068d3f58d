"""`ett whatif --fleet`: every job played again, and sums of seconds and of rank-seconds, never means."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_job import Failure, Plan, simulated

from ett.cli import run

Case = dict[str, Any]
WriteCase = Callable[[Case, Path], list[str]]
HOST = Failure(after_step=20, into_s=1, cause="host_failure")
PLANS = {
    "ads-1": (Plan(failures=(HOST,)), 1, {"team": "ads", "model": "ctr", "owner": "lee"}),
    "ads-2": (Plan(num_steps=30), 8, {"team": "ads", "model": "cvr", "owner": "kim"}),
    "feed-1": (Plan(num_steps=60, compile_s=40, failures=(replace(HOST, after_step=31),)), 4, {"team": "feed"}),
}
FIXES = ("--set", "compilation=-75%", "--remove", "host_failure", "--checkpoint-interval", "5 steps")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_case: WriteCase) -> Path:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    for name, (plan, world, fields) in PLANS.items():
        events = []
        for event in simulated(plan)[0]["events"]:
            more = fields if event["ev"] == "job_submitted" else {}
            more |= {"world": world} if event["ev"] == "attempt_started" else {}
            events.append(event | more)
        write_case({"id": name, "events": events}, tmp_path / "jobs" / name)
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["data"]


def test_before_is_the_fleets_report_by_either_weight(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, report = answer(capsys, "whatif", "--fleet", *FIXES), answer(capsys, "report", "--fleet")
    for weight in ("job", "rank"):
        assert found["weights"][weight]["before"]["ns"] == report["weights"][weight]["ns"]
    assert found["weights"]["rank"]["before"]["ett"] == report["ett"]
    assert found["scope"]["jobs"] == list(PLANS)


def test_gains_are_the_sums_of_the_jobs_own(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = answer(capsys, "whatif", "--fleet", *FIXES)["weights"]["job"]
    met = [job for job in PLANS if PLANS[job][0].failures]
    singles = [answer(capsys, "whatif", job, *FIXES) for job in met]
    singles.append(answer(capsys, "whatif", "ads-2", *FIXES[:2], *FIXES[4:]))  # nothing that could be removed
    assert fleet["gain_ns"] == sum(single["gain_ns"] for single in singles)
    assert fleet["overlap_ns"] == sum(single["overlap_ns"] for single in singles)
    compile_ns, remove_ns = (sum(single["edits"][i]["gain_ns"] for single in singles[:2]) for i in (0, 1))
    assert fleet["edits"][1]["gain_ns"] == remove_ns
    assert fleet["edits"][0]["gain_ns"] == compile_ns + singles[2]["edits"][0]["gain_ns"]
    assert sum(edit["shapley_ns"] for edit in fleet["edits"]) == pytest.approx(fleet["gain_ns"])
    assert fleet["bracket"]["lower"] == pytest.approx(fleet["delta_ett"])
    assert fleet["bracket"]["upper"] >= fleet["bracket"]["lower"]


def test_rank_seconds_count_a_second_once_for_each_rank(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit = ("--set", "compilation=-100%")
    ranks = answer(capsys, "whatif", "--fleet", *edit)["weights"]["rank"]["gain_ns"]
    singles = {job: answer(capsys, "whatif", job, *edit)["gain_ns"] for job in PLANS}
    assert ranks == sum(ns * PLANS[job][1] for job, ns in singles.items())
    # Waiting holds no ranks: the same fix is worth nothing by rank-seconds.
    waits = answer(capsys, "whatif", "--fleet", "--set", "scheduling=-100%")["weights"]
    assert (waits["rank"]["gain_ns"], waits["job"]["gain_ns"] > 0) == (0, True)


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("team", {"ads": 2, "feed": 1}),
        ("model", {"ctr": 1, "cvr": 1, "(no model)": 1}),
        ("owner", {"lee": 1, "kim": 1, "(no owner)": 1}),
    ],
)
def test_rows_sum_to_the_whole(by: str, rows: dict[str, int], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "whatif", "--fleet", "--by", by, *FIXES)
    assert {row["name"]: row["jobs"] for row in found["rows"]} == rows
    for weight in ("job", "rank"):
        for side in ("before", "after"):
            totals = [row["weights"][weight][side]["total_ns"] for row in found["rows"]]
            assert sum(totals) == found["weights"][weight][side]["total_ns"]


def test_a_scope_leaves_the_others_out(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "whatif", "--team", "ads", *FIXES)["scope"]["jobs"] == ["ads-1", "ads-2"]
    assert run(["whatif", "--owner", "nobody", *FIXES]) == 4


def test_the_text_shows_overlap_and_a_row_for_each_team(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["whatif", "--fleet", "--weight", "job", *FIXES]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("fleet   3 jobs played again with 3 edits   weighted by seconds\n")
    assert "overlap " in shown
    assert [line.split()[:2] for line in shown.splitlines() if line.startswith(("ads", "feed"))] == [
        ["feed", "1"],
        ["ads", "2"],
    ]


@pytest.mark.parametrize(
    "argv",
    [
        ["--fleet", "--set", "compilation.warm=-5%"],  # of a component that is paid, but nobody paid that
        ["--fleet", "--set", "compilatoin=-5%"],
        ["--fleet", "--remove", "cosmic_rays"],
        ["--fleet", "ads-1"],
        ["ads-1", "--team", "ads"],
        ["ads-1", "--by", "team"],
    ],
)
def test_what_no_job_met_is_refused(argv: list[str], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["whatif", *argv]) == 2
    assert "expected" in capsys.readouterr().err


def test_a_job_that_cannot_be_read_is_a_warning(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = home / "jobs" / "broken" / "events" / "0" / "sup-h-1-00000000.jsonl"
    broken.parent.mkdir(parents=True)
    for path in (home / "jobs" / "ads-1" / "events").rglob("sup-*.jsonl"):
        from zlib import crc32

        body = path.read_bytes().splitlines()[0].split(b"\t")[0].replace(b'"v":1', b'"v":99')
        broken.write_bytes(body + b"\t%08x\n" % crc32(body))
    assert run(["whatif", "--fleet", *FIXES]) == 0
    assert "warning: broken: " in capsys.readouterr().err
