"""Training under policies, at sizes that measure nothing; commits that are not their boundaries are refused."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from ett.checkpoint.bench.spent import Spent
from ett.checkpoint.capture.row_capture import RowCapture
from ett.checkpoint.save_facts import SaveFacts
from ett.errors import ThresholdMissed, UsageError
from ett.figures import judge, load_targets
from ett.trainer.bench import bench_policies
from ett.trainer.bench.bench_policies import live_figures
from ett.trainer.bench.policy_blocks import LEAST_TRIGGERS, Block, Measured
from ett.trainer.bench.policy_check import check_commits
from ett.trainer.bench.policy_curve import main as draw
from ett.trainer.bench.policy_job import PolicyJob, make_trace
from ett.trainer.bench.policy_lines import order_of

ROOT = Path(__file__).parents[3]
WORKLOAD = tomllib.loads((ROOT / "benchmarks" / "workloads" / "checkpoint.toml").read_text())["live"]
SMALL = WORKLOAD | {
    "quick_rows": 2000,
    "rows": 2000,
    "dim": 4,
    "batch": 16,
    "bottom_mlp": [8],
    "top_mlp": [8],
    "trace_batches": 30,
    "warm_up": 1,
    "checked_saves": 2,
    "disk_bytes": 1 << 20,
    "quick": [
        {"batches": 100, "triggers": 1, "blocks": 1, "none": 4},
        {"batches": 3, "triggers": 2, "blocks": 2, "none": 2},
    ],
}
POLICIES = ["dcp_sync", "dcp_async", "full", "check_n_run", "incremental", "adaptive_sync", "adaptive"]
NAMES = ["lost_pct_at_100_cpu", "guard_share_of_captures", *bench_policies._OF_DEVICE]


@pytest.fixture(autouse=True)
def as_many_threads_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def no_words(line: str) -> None:
    return None


def pair_of_jobs() -> tuple[PolicyJob, PolicyJob]:
    trace = make_trace(SMALL)
    return PolicyJob(SMALL, trace), PolicyJob(SMALL, trace)


@pytest.mark.slow
def test_every_policy_is_measured_at_every_interval(tmp_path: Path) -> None:
    said: list[str] = []
    figures, lines, detail = live_figures(SMALL, True, said.append)
    assert [figure.name for figure in figures] == NAMES
    assert all((figure.value is None) == (figure.name in bench_policies._OF_DEVICE) for figure in figures)
    assert set(NAMES) <= load_targets("checkpoint", quick=True).keys()
    assert list(tmp_path.iterdir()) == []
    told = json.loads(json.dumps(detail))
    assert list(told["intervals"]) == ["100", "3"] and all(list(of) == POLICIES for of in told["intervals"].values())
    for name, found in told["intervals"]["3"].items():
        assert found["stall_ms"]["triggers"] == 4 and found["stall_ms"]["p99"] is None
        assert len(found["lost_pct_blocks"]) == 2 and found["saved_bytes"] > 0 and found["restore_s"] > 0
        assert ("sweep_rows" in found) is (name == "adaptive")
    full, adaptive = (told["intervals"]["3"][name] for name in ("full", "adaptive"))
    assert full["saved_bytes"] > told["table_bytes"] > adaptive["saved_bytes"]
    assert adaptive["prefetch_rows"] + adaptive["sweep_rows"] > 0 < adaptive["staged_bytes"]
    assert sorted(told["order"]["3"]) == sorted(POLICIES)
    assert len([line for line in lines if "adaptive_sync" in line]) == 4  # of each interval: its own, and the order
    assert len(said) == 1 + 7 * 3

    (tmp_path / "results.json").write_text(json.dumps({"data": {"detail": {"live": told}}}))
    draw([str(tmp_path / "results.json"), str(tmp_path / "curve.svg")])
    words = [each.text for each in ElementTree.parse(tmp_path / "curve.svg").iter() if each.text]
    assert set(POLICIES) < set(words) and {"3", "100"} < set(words)


@pytest.mark.slow
def test_a_commit_is_the_state_of_its_boundary(tmp_path: Path) -> None:
    checked = check_commits(*pair_of_jobs(), tmp_path, 2)
    assert checked["saves"] == 2 and checked["rows_kept"] > 0 and checked["rows_compared"] == 2 * 4 * 2000


@pytest.mark.slow
def test_rows_that_are_not_kept_are_found_and_no_figure_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = RowCapture._stage

    def stage_other_bits(self: RowCapture, slots: Any, ids: Any) -> None:
        stage(self, slots, ids)
        staged = self._staged
        staged._columns()[0][staged._open, staged._filled - 1, 0] ^= 1

    monkeypatch.setattr(RowCapture, "_stage", stage_other_bits)
    with pytest.raises(ThresholdMissed, match=r"rows of embedding_bags\.t_table0 other than they were at its boundary"):
        live_figures(SMALL, True, no_words)


@pytest.mark.slow
def test_a_save_that_keeps_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowCapture, "keep", lambda self, slots, ids, path: None)
    with pytest.raises(ThresholdMissed, match="kept 0 rows"):
        live_figures(SMALL, True, no_words)


@pytest.mark.slow
def test_rows_that_only_the_count_says_were_kept_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_only(self: RowCapture, slots: Any, ids: Any, path: str) -> None:
        self._num[path] += len(ids)

    monkeypatch.setattr(RowCapture, "keep", count_only)
    with pytest.raises(ThresholdMissed, match="other than they were at its boundary"):
        live_figures(SMALL, True, no_words)


def measured(num_stalls: int, none_s: float = 0.01) -> Measured:
    facts = [SaveFacts(stall_s=0, write_s=1, prefetch_rows=600, sweep_rows=399, guard_rows=1, staged_bytes=1 << 20)]
    block = Block(100, 1.25, 2.0, [n / 1000 for n in range(num_stalls)], facts)
    spent = Spent(seconds=1, cpu_s=1, read_bytes=1, written_bytes=0)
    return Measured([block], [none_s], [none_s], [500.0], [spent])


def test_what_is_lost_is_the_share_of_the_throughput_without_saves() -> None:
    """100 steps of 10 ms each took 1.25 s: a fifth of the throughput is lost."""
    assert measured(1).lost_pct == [pytest.approx(20.0)]
    assert measured(1).guard_share() == 1 / 1000


def test_a_99th_percentile_needs_a_hundred_triggers() -> None:
    assert measured(LEAST_TRIGGERS - 1).p99_stall_s() is None
    assert measured(LEAST_TRIGGERS).p99_stall_s() == pytest.approx(np.quantile(np.arange(100) / 1000, 0.99), abs=1e-3)


def test_the_policy_that_loses_least_comes_first() -> None:
    results = {100: {"slow": measured(1, none_s=0.001), "fast": measured(1)}}
    assert order_of(results) == {100: ["fast", "slow"]}


def test_figures_of_a_device_say_why_they_are_not_there() -> None:
    figures = bench_policies._figures({100: {"adaptive": measured(LEAST_TRIGGERS)}})
    rows = {row["name"]: row for row in judge(load_targets("checkpoint", quick=False), figures, "h200")}
    for name in bench_policies._OF_DEVICE:
        assert (
            rows[name]["value"] is rows[name]["met"] is None and "needs a machine of kind h200" in rows[name]["reason"]
        )
    assert "of 100 triggers" in rows["stall_p99_steps"]["reason"]
    assert rows["guard_share_of_captures"]["met"] and rows["lost_pct_at_100_cpu"]["met"] is False


def test_a_picture_needs_results_and_a_place() -> None:
    with pytest.raises(UsageError, match="two arguments"):
        draw(["one"])
