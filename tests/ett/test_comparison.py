"""`ett compare`: differences are exact, points of components cancel, and what differs in the launch is named."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ett.accounting import JobAccount, account
from ett.cli import run
from ett.comparison import Align, changed_values, compare, signed
from ett.event_reader import read_folder

WriteCase = Callable[[dict[str, Any], Path], list[str]]
CASES = [
    case
    for name in ("handed.json", "ours.json")
    for case in json.loads((Path(__file__).parent / "cases" / name).read_text())["cases"]
]
ALIGNS: tuple[Align, ...] = ("attempt", "step", "wall")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_case: WriteCase) -> Path:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    by_id = {case["id"]: case for case in CASES}
    for name, case in (("ctr-aaaa", "C02"), ("ctr-bbbb", "C08")):
        write_case(by_id[case] | {"id": name}, tmp_path / "jobs" / name)
    return tmp_path


def data(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["data"]


@pytest.mark.slow
@pytest.mark.parametrize("align", ALIGNS)
def test_points_of_all_components_cancel_for_every_pair_of_cases(
    align: Align, tmp_path: Path, write_case: WriteCase
) -> None:
    accounts: list[JobAccount] = []
    for case in CASES:
        write_case(case, tmp_path / case["id"])
        found = account(read_folder(tmp_path / case["id"]), as_of_ns=2 * 10**18)
        accounts += [found] if found is not None else []
    for a, b in itertools.pairwise(accounts):
        found_pair = compare(a, b, align)
        for side, total in (("a_ns", found_pair.a.total_ns), ("b_ns", found_pair.b.total_ns)):
            assert sum(getattr(d, side) for d in found_pair.components) == total
            assert sum(getattr(d, side) for d in found_pair.reasons) == total
        if found_pair.a.total_ns and found_pair.b.total_ns:
            assert sum(d.points for d in found_pair.components) == pytest.approx(0, abs=1e-9)
            (effective,) = [d for d in found_pair.components if d.name == "effective"]
            ratios = (found_pair.a.ett or 0, found_pair.b.ett or 0)
            assert effective.points == pytest.approx((ratios[1] - ratios[0]) * 100)


def test_a_job_compared_with_itself_differs_in_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, "compare", "ctr-aaaa", "ctr-aaaa")
    assert {d["delta_ns"] for d in found["reasons"]} == {0}
    assert "have the same ETT" in found["verdict"]


def test_the_verdict_names_the_component_and_the_reason(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = data(capsys, "compare", "ctr-aaaa", "ctr-bbbb")["verdict"]
    assert verdict.startswith("B (ctr-bbbb, failed) is better than A (ctr-aaaa, succeeded): ETT 60.0 % against 46.2 %")
    assert "wasted took 25.8 points more (most of it wasted.unsaved_tail, +1m 20s)" in verdict


def test_aligned_by_step_both_have_learned_the_same(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, "compare", "ctr-aaaa", "ctr-bbbb", "--align", "step")
    assert found["a"]["ns"]["effective"] == found["b"]["ns"]["effective"] == 120 * 10**9


def test_the_table_says_what_was_aligned_and_which_sign_is_worse(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "ctr-aaaa", "ctr-bbbb", "--align", "step"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^compared: each until it had learned from \d+ samples$", shown, re.MULTILINE)
    a_ns, b_ns = (data(capsys, "compare", "ctr-aaaa", "ctr-bbbb", "--align", "step")[k]["total_ns"] for k in "ab")
    (total,) = (line for line in shown.splitlines() if line.startswith("total "))
    assert total.split()[-1] == signed(b_ns - a_ns).split()[-1]
    assert "more of anything but effective is worse" in shown


def test_aligned_by_wall_both_are_equally_long(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, "compare", "ctr-aaaa", "ctr-bbbb", "--align", "wall")
    assert found["a"]["total_ns"] == found["b"]["total_ns"] == 200 * 10**9


def test_values_that_differ_are_named_by_their_key() -> None:
    a = {"versions": {"torch": "2.11", "ett": "1"}, "nproc": 2}
    b = {"versions": {"torch": "2.13", "ett": "1"}, "extra": None, "new": [1]}
    found = {(c.key, c.a, str(c.b)) for c in changed_values(a, b)}
    assert found == {("versions.torch", "2.11", "2.13"), ("nproc", 2, "None"), ("new", None, "[1]")}


def test_a_command_line_never_leaves_the_jobs_folder(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch = {"kind": "script", "argv": ["train.py", "--token=hunter2"], "args": ["hunter2"], "nproc": 3}
    (home / "jobs" / "ctr-aaaa" / "launch.json").write_text(json.dumps(launch))
    assert run(["compare", "ctr-aaaa", "ctr-bbbb"]) == 0
    assert run(["export", "ctr-aaaa", "-o", "-"]) == 0
    assert run(["ingest", "--all"]) == 0
    assert run(["compare", "ctr-aaaa", "ctr-bbbb", "--store", str(home / "ett.db"), "--json"]) == 0
    out = capsys.readouterr().out
    assert "hunter2" not in out
    assert '"nproc"' in out
    assert b"hunter2" not in (home / "ett.db").read_bytes()


def test_from_the_store_the_answer_is_the_same(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from_folders = data(capsys, "compare", "ctr-aaaa", "ctr-bbbb")
    assert run(["ingest", "--all"]) == 0
    capsys.readouterr()
    assert data(capsys, "compare", "ctr-aaaa", "ctr-bbbb", "--store", str(home / "ett.db")) == from_folders


def test_a_path_is_compared_as_a_log(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "ctr-aaaa", str(home / "jobs" / "ctr-bbbb")]) == 0
    assert "ctr-bbbb" in capsys.readouterr().out
