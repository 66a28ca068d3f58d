"""What `ett bench compile` makes of its processes' words, without compiling anything."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from ett.errors import ThresholdMissed
from ett.figures import load_targets
from ett.trainer.bench import bench_compile
from ett.trainer.bench.bench_compile import WORKLOAD, run

COLD_S = {"mlp": 10.0, "dlrm": 20.0, "sequence": 100.0}
WARM_S = {"mlp": 5.0, "dlrm": 2.0, "sequence": 4.0}


def told(name: str, compile_s: float, result: str, **changed: Any) -> dict[str, Any]:
    seconds = {"fetch": 0.1, "imports": 1.0, "first_step": compile_s, "second_step": 0.01}
    counted = {"graphs_found": 2 if result == "hit" else 0, "graphs_compiled": 0 if result == "hit" else 2}
    return {"result": result, "compile_s": compile_s, "seconds": seconds, "digest": name, **counted, **changed}


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Return what warm processes of a model say otherwise than they should."""
    changed: dict[str, dict[str, Any]] = {}

    def start(self: Any, home: str, uri: str = "", environ: object = None) -> dict[str, Any]:
        self.num_started += 1
        is_cold = not environ and self.num_started == 1
        if is_cold:
            return told(self.name, COLD_S[self.name], "miss")
        return told(self.name, WARM_S[self.name], "hit") | changed.get(self.name, {})

    monkeypatch.setattr(bench_compile._Places, "start", start)
    return changed


def figures() -> dict[str, tuple[float | None, str]]:
    result = run(quick=True)
    assert len(result.table) == 1 + 3 * len(COLD_S)
    return {figure.name: (figure.value, figure.reason) for figure in result.figures}


@pytest.mark.slow
def test_figures_are_of_the_model_that_gains_least(words: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    found = figures()
    assert found["warm_cut_where_cold_60s"][0] == pytest.approx(0.96)
    assert found["warm_cut_where_cold_15s"][0] == pytest.approx(0.90)  # of the DLRM; the MLP takes less than 15 s
    assert found["unchanged_recipe_hit_rate"][0] == 1.0
    assert found["false_hits"] == (0.0, "")
    assert set(found) == set(load_targets("compile", quick=True))


@pytest.mark.slow
def test_a_machine_on_which_nothing_takes_a_minute_says_so(
    words: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COLD_S, "sequence", 30.0)
    assert figures()["warm_cut_where_cold_60s"] == (None, "no model takes 60 s cold here: the longest 30.0 s")


@pytest.mark.slow
def test_a_start_that_compiles_is_no_hit(words: dict[str, dict[str, Any]]) -> None:
    words["mlp"] = {"graphs_compiled": 1}
    assert figures()["unchanged_recipe_hit_rate"][0] == pytest.approx(2 / 3)


@pytest.mark.slow
def test_other_bits_are_no_figure(words: dict[str, dict[str, Any]]) -> None:
    words["dlrm"] = {"digest": "other"}
    with pytest.raises(ThresholdMissed, match="dlrm: 2 different results"):
        run(quick=True)


def test_a_change_that_leaves_the_key_and_should_not_is_a_false_hit() -> None:
    workload = tomllib.loads(WORKLOAD.read_text())
    workload["mutations"] = {"must_change": ["train.seed=9"], "must_not_change": []}
    assert bench_compile._mutated(workload) == (0, ["train.seed=9"])


def test_a_key_that_changes_and_should_not_ends_the_benchmark() -> None:
    workload = tomllib.loads(WORKLOAD.read_text())
    workload["mutations"] = {"must_change": [], "must_not_change": ["dense.threads=2"]}
    with pytest.raises(ThresholdMissed, match=r"dense\.threads=2"):
        bench_compile._mutated(workload)
