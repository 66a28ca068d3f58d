"""Anybody may write an event log, or send one to a collector: its text steers no terminal and breaks no file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ett.cli import run

HOSTILE = "<b>|\x1b]0;owned\x07\x1b[31m\u202e\x9b2J\r\n# two"
CASE = next(
    case
    for case in json.loads((Path(__file__).parent / "cases" / "handed.json").read_text())["cases"]
    if case["id"] == "C02"
)
SAID = {
    "job_submitted": {"team": HOSTILE, "owner": HOSTILE, "model": HOSTILE},
    "attempt_ended": {"cause": HOSTILE, "reason": HOSTILE},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_case: Callable[[Any, Path], list[str]]) -> Path:
    """A home with a job of which every text is hostile."""
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    span = {"ev": "span", "att": 2, "src": "r0", "name": HOSTILE, "b": 197, "e": 200}
    events = [event | SAID.get(event["ev"], {}) for event in CASE["events"]]
    write_case(CASE | {"id": "ctr-aaaa", "events": [*events[:8], span, *events[8:]]}, tmp_path / "jobs" / "ctr-aaaa")
    return tmp_path


@pytest.mark.parametrize("colours", ["", "1"])
@pytest.mark.parametrize(
    "argv",
    [
        ["ls"], ["report", "ctr"], ["report", "ctr", "--md"], ["report", "--fleet", "--by", "owner"],
        ["report", "--fleet", "--by", "reason"], ["report", "--fleet", "--by", "model", "--view", "as-caused", "--md"],
        ["report", "--team", HOSTILE], ["explain", "ctr"], ["timeline", "ctr"], ["whatif", "ctr"],
        ["whatif", "ctr", "--remove", "failures"], ["whatif", "ctr", "--set", f"{HOSTILE}=1s"],
        ["whatif", "ctr", "--remove", "nothing"], ["compare", "ctr", "ctr"], ["report", HOSTILE],
    ],
)  # fmt: skip
def test_no_command_passes_a_logs_control_characters_on(
    argv: list[str], colours: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", colours)
    run(argv)
    told = capsys.readouterr()
    text = told.out + told.err
    assert len(text) > 40
    assert not [c for c in ("\x07", "\x9b", "\u202e", "\r", "\x1b]", "\x1b[31m\u202e") if c in text]
    assert colours or "\x1b" not in text


def test_a_row_of_a_list_stays_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_files_stay_well_formed(home: Path) -> None:
    for verb, option, name in (("timeline", "--svg", "job.svg"), ("report", "--html", "job.html")):
        assert run([verb, "ctr", option, str(home / name)]) == 0
        text = (home / name).read_text(encoding="utf-8")
        assert "<b>" not in text
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)
    ElementTree.parse(home / "job.svg")
