"""The part of `ett bench recovery` on starts: as a graph, and one node after the other, in turn."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ett.errors import ThresholdMissed
from ett.event_schema import NS
from ett.figures import Measured
from ett.trainer.bench.campaign_job import NAME, CampaignJob, Ended

Say = Callable[[str], None]
MODES = ("parallel", "serial")
_KINDS = ("fresh", "restored")  # a job's two attempts: the second follows a kill


def startup_figures(workload: Mapping[str, Any], quick: bool, say: Say) -> tuple[Sequence[Measured], dict[str, Any]]:
    """Start a job in both modes, in turn; each is killed once, so that it starts from a checkpoint, too.

    No figure of the table is about this: all of it is detail.
    Raises: ThresholdMissed: a job did not end, or one mode trained other bits than the other.
    """
    plan = workload["startup"]
    rounds = plan["quick_rounds" if quick else "rounds"]
    seconds: dict[str, dict[str, list[float]]] = {mode: {kind: [] for kind in _KINDS} for mode in MODES}
    facts: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix=".ett-bench-startup-", dir=".") as made:
        for number in range(rounds):
            for mode in MODES[:: -1 if number % 2 else 1]:
                job = _job(Path(made).absolute() / f"{mode}-{number}")
                ended = job.run(plan["job"] | {"recovery.startup": mode}, plan["chaos"], plan["poll_s"])
                facts.append(_facts_of(ended, mode, facts))
                for kind, took_s in starts_s(job.asked("report", NAME, "--startup")).items():
                    seconds[mode][kind].append(round(took_s, 3))
    medians = {mode: {kind: statistics.median(seconds[mode][kind]) for kind in _KINDS} for mode in MODES}
    for kind in _KINDS:
        say(
            f"a {kind} start to its first step: {medians['parallel'][kind]:.2f} s as a graph, "
            f"{medians['serial'][kind]:.2f} s one node after the other (medians of {rounds})"
        )
    return [], {"startup": {"median_s": medians, "all_s": seconds}}


def starts_s(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds from the spawn to the first step of the slowest rank, of each of a job's two attempts.

    Args: report: of `ett report JOB --startup`. Raises: ThresholdMissed: an attempt has not come to a step.
    """
    found = {}
    for attempt, kind in enumerate(_KINDS, start=1):
        took = [start["total_ns"] for start in report.get("starts", ()) if start["attempt"] == attempt]
        if not took or None in took:
            raise ThresholdMissed(f"attempt {attempt} has not come to its first step on every rank")
        found[kind] = max(took) / NS
    return found


def _facts_of(ended: Ended, mode: str, before: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if ended.code or not ended.facts:
        raise ThresholdMissed(f"the {mode} job ended with {ended.code}: {ended.err[-500:]}")
    if before and ended.facts != before[0]:
        raise ThresholdMissed(f"the {mode} job has other bits than the first one")
    return ended.facts


def _job(home: Path) -> CampaignJob:
    home.mkdir()
    recipe = home / "job.toml"
    recipe.touch()  # all of it is in the settings
    return CampaignJob(home, recipe)
