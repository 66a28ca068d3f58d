"""One leg of the paired benchmark, run in a folder of its own."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ett.errors import ThresholdMissed
from ett.recipe import resolve
from ett.trainer.bench.campaign_job import CampaignJob, Ended
from ett.trainer.bench.paired_account import Row, account_row, mean_loss
from ett.trainer.bench.paired_workload import (
    CACHES,
    PLAIN,
    Campaign,
    JobPlan,
    Leg,
    Shape,
    median_step_s,
    plan_job,
    undisturbed,
)
from ett.trainer.bench.plain_leg import PlainJob
from ett.trainer.data.generated_file import write_criteo, write_sequence

LONGEST = 6  # times its productive time a job may take, and then LONGEST_START_S
LONGEST_START_S = 300.0
_SEED = 7  # of the input


@dataclass(frozen=True, kw_only=True, slots=True)
class LegRunner:
    """Args: scratch: an empty folder, which is left as empty but for the inputs."""

    campaign: Campaign
    scratch: Path

    def pilot(self, shape: Shape) -> JobPlan:
        """Return how long a shape's jobs are, from how fast a short one steps here. Raises: ThresholdMissed."""
        plan = JobPlan(steps=self.campaign.pilot_steps, every=self.campaign.pilot_steps, kills=(0, 0))
        ended = self._optimised(shape, undisturbed(shape.name), plan, self.scratch / "pilot")
        steps = ended.records("step") if ended.code == 0 else []
        spans = [(r.data["b_mono"], r.data["e_mono"]) for r in steps if r.rank == 0]
        if len(spans) < plan.steps:
            raise ThresholdMissed(
                f"the pilot of {shape.name} ended with code {ended.code} after {len(spans)} of {plan.steps} steps",
                do=_said(ended) or f"see {ended.job_dir}",
            )
        shutil.rmtree(self.scratch / "pilot")
        return plan_job(median_step_s(spans), self.campaign.productive_s, self.campaign.interval_s)

    def run(self, shape: Shape, leg: Leg, plan: JobPlan) -> Row:
        """Run a leg and return its row; of one that did not end well how it ended, and its folder is left."""
        folder = self.scratch / str(leg).replace(", ", "-").replace(" ", "-")
        if leg.variant == PLAIN:
            settings = self._settings(shape, leg, plan)
            words = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
            sections = resolve(self._recipe(), words).sections
            job = PlainJob(folder, sections, every=plan.every, compiled=shape.compiled, longest_s=self._longest_s)
            ended = job.run(plan.chaos, self.campaign.poll_s)
        else:
            ended = self._optimised(shape, leg, plan, folder)
        if ended.code != 0:
            return {"code": ended.code, "said": _said(ended)}
        publish_s = 0.0 if leg.variant == PLAIN else self._publish(folder)
        row = account_row(ended.job_dir, ended.command_ns) | {
            "code": ended.code,
            "facts": json.loads(json.dumps(ended.facts)),  # as it will be read back
            "loss": mean_loss(ended.losses),
            "publish_s": round(publish_s, 3),
        }
        shutil.rmtree(folder)
        return row

    @property
    def _longest_s(self) -> float:
        return LONGEST * self.campaign.productive_s + LONGEST_START_S

    def _optimised(self, shape: Shape, leg: Leg, plan: JobPlan, folder: Path) -> Ended:
        job = CampaignJob(folder, self._recipe(), longest_s=self._longest_s)
        chaos = plan.chaos if leg.has_failures else ()
        try:
            return job.run(self._settings(shape, leg, plan), chaos, self.campaign.poll_s)
        except subprocess.TimeoutExpired:
            said = f"ett: it took more than {self._longest_s:.0f} s and was killed"
            return Ended(code=-signal.SIGKILL, err=said, job_dir=job.job_dir)

    def _publish(self, folder: Path) -> float:
        """Export the last commit as the plain leg does inside its job, and return how long that took."""
        job = CampaignJob(folder, self._recipe(), longest_s=self._longest_s)
        begun_s = time.perf_counter()
        if not job.asked("checkpoint", "export", job.job_dir.name, "--to", str(folder / "published")):
            raise ThresholdMissed(f"the checkpoint in {job.job_dir} cannot be exported", do="ett checkpoint verify it")
        return time.perf_counter() - begun_s

    def _settings(self, shape: Shape, leg: Leg, plan: JobPlan) -> Mapping[str, Any]:
        caches = str(self.scratch / "caches" / shape.name)
        settings = {
            name: value.replace(CACHES, caches) if isinstance(value, str) else value
            for name, value in self.campaign.settings(shape, leg).items()
        }
        return settings | {
            "data.path": str(self._input(shape)),
            "train.max_steps": plan.steps,
            "checkpoint.interval": f"{plan.every} steps",
        }

    def _recipe(self) -> Path:
        recipe = self.scratch / "job.toml"
        recipe.touch()  # all of it is in the settings
        return recipe

    def _input(self, shape: Shape) -> Path:
        """Return the input of a shape, which is made where it is not there."""
        made = self.scratch / f"{shape.format}-{shape.rows}.{'tsv' if shape.format == 'criteo' else 'parquet'}"
        if made.exists():
            return made
        if shape.format == "criteo":
            write_criteo(made, shape.rows, _SEED)
        else:
            write_sequence(made, shape.rows, _SEED, max_length=shape.set["data.max_length"])
        return made


def _said(ended: Ended) -> str:
    """Return the last words of a job that failed."""
    lines = [line for line in ended.err.splitlines() if "rror" in line or line.startswith("ett: ")]
    return " / ".join(lines[-3:])[:500]
