"""A pair of the paired benchmark, too small to measure anything: both legs are killed twice and train the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ett.errors import ThresholdMissed
from ett.recipe import resolve
from ett.trainer.bench.bench_ett import run_campaign
from ett.trainer.bench.paired_figures import figures_of
from ett.trainer.bench.paired_leg import LegRunner
from ett.trainer.bench.paired_results import ResultsFile
from ett.trainer.bench.paired_workload import OPTIMISED, PLAIN, Campaign, JobPlan, Leg

pytestmark = [pytest.mark.process, pytest.mark.slow]
TINY = """
poll_s = 0.1
pilot_steps = 4
plain_ett = [0.0, 1.0]

[quick]
repeats = 1
productive_s = 100.0
interval_s = 1.0
leave_out = false

[[switch]]
name = "in-process restart"
on = { "recovery.restart" = "inprocess" }
off = { "recovery.restart" = "attempt" }

[job]
"launch.nproc" = 2
"train.epochs" = 100
"eval.enabled" = false

[[shape]]
name = "small"
quick = true
format = "criteo"
rows = 4000
compiled = "top"
[shape.set]
"model.embedding_dim" = 4
"model.bottom_mlp" = [8]
"model.top_mlp" = [8]
"train.batch_size" = 128
"checkpoint.stall_budget_s" = 300
"""
PLAN = JobPlan(steps=24, every=4, kills=(11, 19))


def test_both_legs_of_a_pair_survive_the_same_two_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    campaign = Campaign.read(tmp_path / "tiny.toml", resolve(os.devnull).sections, quick=True)
    runner = LegRunner(campaign=campaign, scratch=tmp_path)
    monkeypatch.setattr(LegRunner, "pilot", lambda self, shape: PLAN)
    results = ResultsFile(tmp_path / "campaign.jsonl", {})
    try:
        run_campaign(campaign, runner, results)  # raises where a leg is not as the others
    except ThresholdMissed as err:
        pytest.fail(str(err) + "".join(path.read_text()[-2000:] for path in tmp_path.glob("*/err")))
    plain, optimised = (results.rows[str(Leg("small", variant, 1))] for variant in (PLAIN, OPTIMISED))
    assert plain["faults"] == optimised["faults"] == [11, 19]
    assert min(plain["ns"][name] for name in ("effective", "wasted", "initialization", "compilation", "shutdown")) > 0
    assert optimised["detail_ns"]["initialization.inprocess_restart"] > 0
    assert [figure.value is None for figure in figures_of(campaign, results.rows)] == [False] * 3
