"""How many layouts give another bit: depths of prefetch, tiers and cache sizes, each with the same batches."""

from __future__ import annotations

import json
from typing import Any

from ett.errors import ThresholdMissed
from ett.figures import Measured
from ett.trainer.bench.bench_ranks import run_ranks

_RANK = "ett.trainer.bench.exactness_rank"


def exactness_figure(workload: dict[str, Any], quick: bool) -> tuple[Measured, dict[str, Any]]:
    """Return depth_and_tier_mismatches: layouts whose losses, rows, states or dense weights differ in a bit.

    Each is compared with depth 0 and all rows in memory, at the same number of ranks.
    Raises: ThresholdMissed: a rank failed, or what should differ (another seed) does not, so equality means nothing.
    """
    settings = workload | {"steps": workload["quick_steps"] if quick else workload["steps"]}
    wrong: list[str] = []
    num_layouts = 0
    for world in workload["worlds"]:
        told = run_ranks(_RANK, [json.dumps(settings)], world, what=f"training at {world} ranks")
        expected, other = told["layouts"][0]["digest"], told["other_seed"]
        if other == expected:
            raise ThresholdMissed(
                f"at {world} ranks another seed gives the same digest {other}", expected="another one"
            )
        wrong += [f"{world} ranks, {each['name']}" for each in told["layouts"] if each["digest"] != expected]
        num_layouts += len(told["layouts"])
    figure = Measured(name="depth_and_tier_mismatches", unit="layouts", samples=[len(wrong)])
    return figure, {"exactness": {"layouts": num_layouts, "steps": settings["steps"], "wrong": wrong}}
