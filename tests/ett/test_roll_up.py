"""Many jobs in one report: sums of seconds and of rank-seconds, never means; HTML that nothing can enter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_job import Failure, Plan, simulated
from test_accounting_properties import account_of, jobs

from ett.cli import run
from ett.report_markdown import escaped
from ett.roll_up import job_part, roll_up
from ett.site import Site

Case = dict[str, Any]
WriteCase = Callable[[Case, Path], list[str]]
CaseLog = Callable[[Case], Any]
NASTY = "<script>alert(1)</script>|`x`"
SITE = """
[slo]
wasted = 0.025
scheduling = 0.9
ett = 0.95
[owners]
scheduling = "scheduler"
host_failure = "fleet-health"
"""
quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_case: WriteCase) -> Path:
    """Two teams, three jobs; one of a model whose name is an attack, one that met a host failure and a preemption."""
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    failures = (
        Failure(after_step=20, into_s=1, cause="host_failure"),
        Failure(after_step=30, into_s=0.5, cause="quota", how="preempted"),
    )
    plans = {
        "ads-1": (Plan(failures=failures), {"team": "ads", "model": "ctr", "owner": "lee"}),
        "ads-2": (Plan(num_steps=30), {"team": "ads", "model": NASTY, "owner": "kim"}),
        "feed-1": (Plan(num_steps=60), {"team": "feed", "model": "rank", "owner": "lee"}),
    }
    for name, (plan, fields) in plans.items():
        case = simulated(plan)[0]
        events = [e | fields if e["ev"] == "job_submitted" else e for e in case["events"]]
        write_case({"id": name, "events": events}, tmp_path / "jobs" / name)
    (tmp_path / "ett.toml").write_text(SITE)
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run(["report", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@quick
@given(cases=st.lists(jobs(), min_size=1, max_size=3))
def test_every_roll_up_sums_to_its_jobs(cases: list[Case], case_log: CaseLog) -> None:
    accounts = [account_of(case, case_log(case).files()) for case in cases]
    parts = [job_part(account, Site(), by_attempt=True) for account in accounts]
    for by in ("component", "owner", "reason", "model"):
        for view in ("as-spent", "as-caused"):
            by_job, by_rank = (roll_up(parts, by=by, weight=w, view=view) for w in ("job", "rank"))  # type: ignore[arg-type]
            assert sum(row.ns for row in by_job.rows) == by_job.total_ns == sum(p.report.total_ns for p in parts)
            assert sum(row.ns for row in by_rank.rows) == by_rank.total_ns
            assert by_job.ns["effective"] == sum(row.effective_ns for row in by_job.rows)
    # An attempt's row has its wait too; a job that nothing was started for has no row.
    rows = roll_up(parts, by="attempt", weight="job", view="as-spent").rows
    started = [p for p in parts if p.attempts]
    assert sum(row.ns for row in rows) == sum(p.report.total_ns for p in started)


def test_a_fleet_is_the_ratio_of_sums(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    singles = [answer(capsys, name)["data"] for name in ("ads-1", "ads-2", "feed-1")]
    fleet = answer(capsys, "--fleet", "--weight", "job")["data"]
    assert fleet["total_ns"] == sum(job["total_ns"] for job in singles)
    assert fleet["ett"] == sum(j["ns"]["effective"] for j in singles) / fleet["total_ns"]
    assert sum(row["ns"] for row in fleet["rows"]) == fleet["total_ns"]
    by_rank = answer(capsys, "--fleet")["data"]
    assert by_rank["ns"]["scheduling"] == 0
    assert by_rank["weights"]["job"]["total_ns"] == fleet["total_ns"]


@pytest.mark.parametrize("by", ["component", "owner", "reason", "attempt"])
def test_a_terminal_of_80_columns_has_one_line_for_each_row(
    by: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    rows = answer(capsys, "--fleet", "--by", by)["data"]["rows"]
    assert run(["report", "--fleet", "--by", by]) == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).split("─")[-1]
    lines = [line for line in shown.splitlines() if line.strip()]
    assert len(lines) == len(rows) + 1  # and the total
    assert lines[-1].split()[0] == "total"


def test_the_total_of_models_has_the_fleets_ett(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--fleet", "--by", "model"]) == 0
    total = capsys.readouterr().out.splitlines()[-1]
    ett = answer(capsys, "--fleet")["data"]["ett"]
    assert total.split("\t")[3] == f"{ett * 100:.1f} %"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--team", "ads"], ["ads-1", "ads-2"]),
        (["--owner", "lee"], ["ads-1", "feed-1"]),
        (["--owner", "lee", "--team", "feed"], ["feed-1"]),
        (["--model", "ctr"], ["ads-1"]),
        (["ads-1", "feed"], ["ads-1", "feed-1"]),
        (["--by", "reason", "ads-2"], ["ads-2"]),
    ],
)
def test_a_scope_names_its_jobs(
    home: Path, capsys: pytest.CaptureFixture[str], argv: list[str], expected: list[str]
) -> None:
    assert answer(capsys, *argv)["data"]["scope"]["jobs"] == expected


def test_seconds_move_to_whoever_caused_them(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spent = answer(capsys, "--team", "ads", "--by", "owner", "--weight", "job")["data"]
    caused = answer(capsys, "--team", "ads", "--by", "owner", "--weight", "job", "--view", "as-caused")["data"]
    assert spent["total_ns"] == caused["total_ns"]
    names = {view: {row["name"] for row in found["rows"]} for view, found in (("s", spent), ("c", caused))}
    assert "fleet-health" in names["c"] - names["s"]
    scheduler = {row["name"]: row["count"] for row in caused["rows"]}
    assert scheduler["scheduler"] == 1  # a preemption is the scheduler's, where nobody else is named


def test_since_counts_only_what_is_recent(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = answer(capsys, "ads-1")["data"]
    end_s = 1_900_000_000 + round(whole["total_s"])
    window = ["--window", str(end_s - 20), str(end_s), "--as-of", str(end_s), "--weight", "job"]
    assert answer(capsys, "ads-1", *window)["data"]["total_ns"] == pytest.approx(20 * 10**9, abs=10**9)
    assert run(["report", "--fleet", "--since", "7d", "--window", "1", "2"]) == 2


@pytest.mark.parametrize("argv", [["--team", "nobody"], ["--fleet", "--since", "1s", "--as-of", "1000"]])
def test_a_scope_without_any_time_is_not_found(home: Path, argv: list[str]) -> None:
    assert run(["report", *argv]) == 4


@pytest.mark.parametrize(
    "argv", [["--fleet", "ads-1"], ["--by", "owner"], ["ads-1", "--json", "--md"], ["--fleet", "--exclude", "1", "2"]]
)
def test_what_cannot_be_meant_is_a_usage_error(home: Path, argv: list[str]) -> None:
    assert run(["report", *argv]) == 2


@pytest.mark.parametrize(("ratio", "code"), [("0.1", 0), ("0.99", 9)])
def test_a_team_can_miss_its_threshold(home: Path, ratio: str, code: int) -> None:
    assert run(["report", "--team", "ads", "--fail-under", ratio]) == code


def test_without_a_terminal_a_table_is_tabs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--fleet", "--by", "model"]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(index for index, line in enumerate(lines) if line.startswith("model\t"))
    assert lines[head].split("\t") == ["model", "rank-time", "share", "ETT", "top reasons"]
    assert {line.split("\t")[0] for line in lines[head + 1 :]} == {"ctr", NASTY, "rank", "total"}
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_no_color_is_obeyed(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(["report", "--fleet"]) == 0
    drawn = capsys.readouterr().out
    assert "\x1b[" in drawn
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in drawn.splitlines()) <= 60
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(["report", "--fleet"]) == 0
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", capsys.readouterr().out)


def test_one_job_shows_budgets_causes_and_fixes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "ads-1"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0].endswith("(objective 95.0 %)")
    (wasted,) = [line for line in lines if line.startswith("▓ wasted")]
    assert "2.5 % !" in wasted
    (scheduling,) = [line for line in lines if line.startswith("░ scheduling")]
    assert "scheduler" in scheduling
    assert "90.0 % " in scheduling
    (host,) = [line for line in lines if line.startswith("as caused: 1 host_failure (infra)")]
    assert "paid again" in host
    (fix,) = [line for line in lines if line.startswith("if you …")]
    assert "had no failure: +" in fix
    assert "all: +" in fix


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


@pytest.mark.parametrize("argv", [["ads-1"], ["--fleet", "--by", "model"]])
def test_html_is_one_file_that_runs_and_loads_nothing(home: Path, argv: list[str]) -> None:
    file = home / "report.html"
    assert run(["report", *argv, "--html", str(file)]) == 0
    text = file.read_text()
    found = _Tags(text)
    assert not found.tags & {"script", "link", "img", "iframe", "object", "form", "base", "foreignobject"}
    assert not {name for name in found.attributes if name.startswith("on")} | (
        found.attributes & {"style", "src", "href"}
    )
    assert "://" not in text
    assert "default-src 'none'; style-src 'sha256-" in text
    assert "prefers-color-scheme:dark" in text
    assert "<script" not in text


def test_markdown_shows_a_name_as_it_is(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--fleet", "--by", "model", "--md"]) == 0
    shown = capsys.readouterr().out
    assert escaped(NASTY) in shown
    assert "<script>" not in shown
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in shown.splitlines() if line.startswith("|")]
    assert set(cells) == {6}
