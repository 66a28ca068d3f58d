"""`ett bench ett`: each model trained plain and optimised with the same failures, and where the difference lies.

A campaign of legs (trainer/bench/paired_workload.py), each of which is checked before it counts (`wrongs`). With
`--resume FILE` what is done is kept there, and a campaign that was killed goes on.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ett.bench import BenchResult, commit_here, machine_here
from ett.errors import ThresholdMissed
from ett.event_schema import NS
from ett.figures import FIGURES
from ett.recipe import resolve
from ett.trainer.bench.paired_account import wrongs
from ett.trainer.bench.paired_figures import ett, figures_of, shape_detail
from ett.trainer.bench.paired_leg import LegRunner
from ett.trainer.bench.paired_lines import shape_lines
from ett.trainer.bench.paired_results import ResultsFile, Row
from ett.trainer.bench.paired_workload import Campaign, JobPlan, Leg, Shape, undisturbed
from ett.versions import version_of

WORKLOAD = FIGURES.parent / "workloads" / "ett.toml"


def run(quick: bool, resume: Path | None = None, path: Path = WORKLOAD) -> BenchResult:
    """Measure the table [ett] of figures.toml, on the disk of the current folder.

    Args: resume: the file that finished legs are kept in; None: they are gone with this process.
    Raises: ThresholdMissed: a leg did not end as it must, or did not learn what it had to.
    """
    campaign = Campaign.read(path, resolve(os.devnull).sections, quick=quick)
    results = ResultsFile(resume, _origin(campaign, quick=quick))
    scratch = Path(tempfile.mkdtemp(prefix=".ett-bench-paired-", dir=".")).absolute()
    plans = run_campaign(campaign, LegRunner(campaign=campaign, scratch=scratch), results)
    shutil.rmtree(scratch)  # not where a leg failed: its folder says why
    shapes = {shape.name: shape_detail(campaign, results.rows, shape.name) for shape in campaign.shapes}
    detail = {
        "shapes": shapes,
        "plans": {name: asdict(plan) for name, plan in plans.items()},
        "switches": [switch.name for switch in campaign.switches],
        "absent_switches": list(campaign.absent),
        "legs": [row for key, row in results.rows.items() if not key.startswith(_plan_key(""))],
    }
    lines = [line for name, told in shapes.items() for line in shape_lines(name, told)]
    return BenchResult(figures=figures_of(campaign, results.rows), detail=detail, table=lines)


def run_campaign(campaign: Campaign, runner: LegRunner, results: ResultsFile) -> dict[str, JobPlan]:
    """Run what `results` does not have yet, and return the plan of each shape's jobs."""
    shapes = {shape.name: shape for shape in campaign.shapes}
    plans: dict[str, JobPlan] = {}
    planned = {name for name in shapes if _plan_key(name) in results.rows}
    for leg in campaign.legs():
        shape = shapes[leg.shape]
        if leg.shape not in plans:
            plans[leg.shape] = _plan(runner, shape, results)
        if str(leg) not in results.rows:
            if leg.shape in planned and campaign.shares_caches(shape):
                runner.pilot(shape)  # what that of an earlier process left in them is gone with its folder
                planned.remove(leg.shape)
            whole = results.rows.get(str(undisturbed(leg.shape)))
            results.add(str(leg), _checked(runner, shape, leg, plans[leg.shape], whole))
    return plans


def _plan(runner: LegRunner, shape: Shape, results: ResultsFile) -> JobPlan:
    key = _plan_key(shape.name)
    row = results.rows.get(key) or results.add(key, asdict(runner.pilot(shape)))
    plan = JobPlan(steps=row["steps"], every=row["every"], kills=tuple(row["kills"]))
    _say(f"{shape.name}: {plan.steps} steps, a checkpoint every {plan.every}, a rank killed at {plan.kills}")
    return plan


def _plan_key(shape: str) -> str:
    return f"plan {shape}"


def _checked(runner: LegRunner, shape: Shape, leg: Leg, plan: JobPlan, whole: Mapping[str, Any] | None) -> Row:
    """Run a leg. Raises: ThresholdMissed: it is no half of a pair; its folder is left to look at."""
    row = runner.run(shape, leg, plan)
    found = wrongs(leg, row, plan, whole)
    if found:
        raise ThresholdMissed(
            f"{leg}: {'; '.join(found)}",
            expected="a leg that trains what the others do",
            do=f"look at it in {runner.scratch}",
        )
    _say(f"{leg}: {row['wall_ns'] / NS:.1f} s, ETT {ett(row):.1%}")
    return row


def _origin(campaign: Campaign, *, quick: bool) -> dict[str, Any]:
    """Return what every leg of one campaign must have in common."""
    machine = machine_here()
    return {
        "workload": campaign.fingerprint,
        "quick": quick,
        "commit": commit_here(),
        "machine": f"{machine['cpu']}, {machine['cores']} cores",
        "python": platform.python_version(),
        "torch": version_of("torch"),
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
