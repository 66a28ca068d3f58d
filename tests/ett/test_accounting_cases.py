"""Hand-computed timelines: every rule R0 to R20 of the accounting, through `ett report --events DIR --json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ett.report_cli import command

CASES = Path(__file__).parent / "cases"
WriteCase = Callable[[dict[str, Any], Path], list[str]]
Reported = Callable[[dict[str, Any]], dict[str, Any]]


def cases() -> list[Any]:
    found = [case for name in ("handed.json", "ours.json") for case in json.loads((CASES / name).read_text())["cases"]]
    return [pytest.param(case, id=case["id"]) for case in found]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory, write_case: WriteCase) -> Reported:
    """Return what the command reports of a case, asked once for all that is shown of it."""
    data: dict[str, Any] = {}

    def of(case: dict[str, Any]) -> dict[str, Any]:
        if case["id"] not in data:
            folder = tmp_path_factory.mktemp("case")
            flags = write_case(case, folder)
            result = CliRunner().invoke(command, ["--events", str(folder), "--json", *flags], catch_exceptions=False)
            assert result.exit_code == 0
            envelope = json.loads(result.stdout)
            assert envelope["schema"] == "ett.report/v1"
            data[case["id"]] = envelope["data"]
        found: dict[str, Any] = data[case["id"]]
        return found

    return of


@pytest.mark.parametrize("case", cases())
def test_seconds_are_those_computed_by_hand(case: dict[str, Any], reported: Reported) -> None:
    data, expected = reported(case), case["expected"]
    assert data["seconds"] == pytest.approx(expected["seconds"], abs=1e-6)
    assert data["total_s"] == pytest.approx(expected["total_s"], abs=1e-6)
    details = {name: data["detail"].get(name, 0) for name in expected.get("detail", {})}
    assert details == pytest.approx(expected.get("detail", {}), abs=1e-6)
    if "ett_pct" in expected:
        assert data["ett"] * 100 == pytest.approx(expected["ett_pct"], abs=5e-5)


@pytest.mark.parametrize("case", cases())
def test_components_and_reasons_sum_to_the_total(case: dict[str, Any], reported: Reported) -> None:
    data = reported(case)
    assert sum(data["ns"].values()) == data["total_ns"]
    for component, ns in data["ns"].items():
        assert sum(n for name, n in data["detail_ns"].items() if name.startswith(component + ".")) == ns


@pytest.mark.parametrize("case", cases())
def test_counters_and_figures_beside_the_seconds_are_right(case: dict[str, Any], reported: Reported) -> None:
    data, expected = reported(case), case["expected"]
    found = data | data["interruptions"]
    for name in ("failures", "preemptions", "inprocess", "resizes", "state", "ett", "wasted_failure_s", "at_risk_s"):
        if name in expected:
            assert found[name] == expected[name], name
    for name in ("capacity_ett", "ett_from_allocation"):
        if name in expected:
            assert found[name] == pytest.approx(expected[name])
    assert set(expected.get("flags", ())) <= set(data["flags"])


@pytest.mark.parametrize("case", [case for case in cases() if "closed_formula" in case.values[0]["expected"]])
def test_the_closed_formula_differs_by_what_it_cannot_see(case: dict[str, Any], reported: Reported) -> None:
    formula = reported(case)["closed_formula"]
    expected = case["expected"]["closed_formula"]
    by_hand = {
        "tts_s": expected.get("TTS", expected.get("tts_s")),
        "nof": expected.get("NoF", expected.get("nof")),
        "ttr_s": expected.get("TTR", expected.get("ttr_s")),
        "ett": expected["ett_formula_pct"] / 100 if "ett_formula_pct" in expected else expected["ett"],
    }
    assert {name: formula[name] for name in by_hand} == pytest.approx(by_hand, abs=1e-6)


def test_time_lost_outside_every_start_and_recovery_is_flagged(reported: Reported) -> None:
    flagged = set()
    for param in cases():
        case = param.values[0]
        if "closed_formula_residual" in reported(case)["flags"]:
            flagged.add(case["id"])
    # Open steps and silence at the end of C07, O25 and O26; a restore in the middle of O51 that nothing asked for.
    assert {"C07", "O25", "O26", "O51"} == flagged
