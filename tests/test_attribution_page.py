"""docs/attribution.md shows what its commands print, and its picture is that of `make pictures`."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ett.cli import cli

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "attribution.md").read_text()
EXAMPLE = "docs/attribution-example"
SHOWN = re.findall(r"```console\n\$ ett ([^\n]*)\n(.*?)\n```", PAGE, re.DOTALL)


def printed(arguments: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return CliRunner().invoke(cli, shlex.split(arguments), catch_exceptions=False).output


@pytest.mark.parametrize(("arguments", "shown"), SHOWN, ids=[arguments for arguments, _ in SHOWN])
def test_every_line_that_the_page_shows_is_printed(arguments: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([line.rstrip() for line in printed(arguments, monkeypatch).splitlines()])
    missing = [line for line in shown.splitlines() if line not in found]  # `in` consumes: the order is the printed one
    assert not missing


def test_the_page_s_table_sums_to_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.loads(printed(f"report --events {EXAMPLE} --json", monkeypatch))["data"]
    rows = {row["reason"]: row for row in data["as_caused"] if row["cause"] == "interruption"}
    sums = [sum(map(int, re.findall(r"\d+", row.split("|")[2]))) for row in re.findall(r"^\| .*\d \|.*$", PAGE, re.M)]
    host = rows["host_failure"]
    assert sums == [host["lost_ns"] // 10**9, host["again_ns"] // 10**9, rows["exit_3"]["ns"] // 10**9, 43]
    assert sum(sums) + data["ns"]["effective"] // 10**9 == data["total_s"]


def test_the_pages_picture_is_that_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = tmp_path / "drawn.svg"
    printed(f"timeline --events {EXAMPLE} --svg {drawn}", monkeypatch)
    assert drawn.read_text() == (ROOT / "docs" / "img" / "attribution-example.svg").read_text()


def test_the_commands_for_many_jobs_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines():
        found = CliRunner().invoke(cli, shlex.split(line, comments=True)[1:])
        assert found.exit_code == 1  # the runner's code for our error: an empty home has no such job
        assert "has any time to" in str(found.exception)
