"""`ett bench` prints every figure of its table, and its exit code says whether one missed its target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ett import bench
from ett.bench import BenchResult, command
from ett.errors import UsageError
from ett.figures import Measured, load_targets


def test_the_json_has_every_figure_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Measured(name="step_pair_median_us", unit="us", samples=[10.0, 11.0, 12.0, 13.0])
    monkeypatch.setattr(bench, "load", lambda _: lambda quick: BenchResult(figures=[fast], detail={"quick": quick}))
    done = CliRunner().invoke(command, ["telemetry", "--quick", "--json"])
    told = json.loads(done.output)
    assert told["schema"] == "ett.bench/v1"
    assert set(told["data"]) == {"command", "machine", "versions", "commit", "figures", "detail"}
    assert [row["name"] for row in told["data"]["figures"]] == list(load_targets("telemetry", quick=True))
    measured, *others = told["data"]["figures"]
    assert (measured["value"], measured["met"], measured["n"]) == (11.5, True, 4)
    assert all(row["value"] is None and row["met"] is None and row["reason"] for row in others)


def test_without_git_a_run_has_no_commit_and_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(bench, "load", lambda _: lambda quick: BenchResult(figures=[]))
    done = CliRunner().invoke(command, ["telemetry", "--json"])
    assert json.loads(done.output)["data"]["commit"] is None


@pytest.mark.parametrize(("value", "code"), [(5.0, 0), (5000.0, 9)])
def test_a_missed_figure_ends_with_exit_code_9(monkeypatch: pytest.MonkeyPatch, value: float, code: int) -> None:
    figure = Measured(name="step_pair_p99_us", unit="us", samples=[value])
    monkeypatch.setattr(bench, "load", lambda _: lambda quick: BenchResult(figures=[figure]))
    assert command.main(["telemetry"], standalone_mode=False) == code


def test_an_unknown_benchmark_names_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        command.main(["nope"], standalone_mode=False)
    assert "telemetry" in caught.value.expected


def test_a_campaign_is_told_the_file_that_it_goes_on_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[Path | None] = []

    def campaign(quick: bool, resume: Path | None) -> BenchResult:
        told.append(resume)
        return BenchResult(figures=[])

    monkeypatch.setattr(bench, "load", lambda _: campaign)
    assert command.main(["ett", "--resume", str(tmp_path / "done.jsonl")], standalone_mode=False) == 0
    assert command.main(["ett"], standalone_mode=False) == 0
    assert told == [tmp_path / "done.jsonl", None]


def test_a_benchmark_that_is_run_as_a_whole_refuses_to_go_on() -> None:
    with pytest.raises(UsageError, match="run as a whole") as caught:
        command.main(["telemetry", "--resume", "done.jsonl"], standalone_mode=False)
    assert caught.value.expected == "ett"
