"""The main job as `make demo` and a user see it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launched_job import LaunchedJob
from wait import LONGEST_S, wait_until

from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.publication_log import PublicationLog
from ett.guardian import stat_fields

pytestmark = [pytest.mark.process, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
SAMPLE = ROOT.parent / "shared" / "data" / "criteo_kaggle_sample.tsv"
SMALLER = ("--set", "data.generate.rows=20000", "--set", "train.batch_size=256", "--set", "optimizer.decay_steps=60")


def auc_of(job: LaunchedJob, *flags: str) -> float:
    recipe = job.folder / "copied" / "criteo.toml"
    recipe.parent.mkdir()
    recipe.write_text((ROOT / "examples" / "criteo.toml").read_text())
    assert job.run("--nproc", "1", *SMALLER, *flags, str(recipe)) == 0, job.err
    score: float = json.loads((job.job_dir / "result.json").read_text())["auc"]
    return score


def test_the_copied_example_learns_from_the_ids(job: LaunchedJob) -> None:
    assert auc_of(job) > 0.70


def test_dcn_v2_learns_as_well(job: LaunchedJob) -> None:
    assert auc_of(job, "--set", "model.kind=dcn_v2") > 0.70


def test_with_frozen_embeddings_there_is_little_to_learn(job: LaunchedJob) -> None:
    assert auc_of(job, "--set", "train.freeze_embeddings=true") < 0.60


@pytest.mark.parametrize(("last", "saved", "to"), [(10, [5, 10], ""), (12, [5, 10, 12], "served")])
def test_the_last_step_is_saved_once(job: LaunchedJob, last: int, saved: list[int], to: str) -> None:
    settings = (
        f"train.max_steps={last}",
        "checkpoint.interval=5 steps",
        "checkpoint.stall_budget_s=300",
        "eval.enabled=false",
        f"publish.to={to}",
    )
    steps = [word for setting in settings for word in ("--set", setting)]
    assert job.run("--nproc", "2", *SMALLER, *steps, str(ROOT / "examples" / "criteo.toml")) == 0, job.err
    assert [record.data["step"] for record in job.records("ckpt_commit")] == saved
    assert json.loads((job.job_dir / "result.json").read_text())["step"] == last
    started = job.records("publish_started")
    assert [record.data["to"] for record in started] == [to] * bool(to)
    if to:  # by a process that the launch did not wait for
        log = PublicationLog(LocalStore(job.folder / to))
        wait_until(log.numbers, "the job's publication")
        (publication,) = log.read_all()[0]
        assert (publication.lineage.job, publication.lineage.step) == ("j", last)
        wait_until(lambda: stat_fields(started[0].data["publisher_pid"]) is None, "the publisher's end")


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample of real data is not beside the repository")
def test_the_demo_runs_on_real_data_killed_and_restored(tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("ETT_")}
    command = [sys.executable, "-m", "ett.trainer.demo", "--data", str(SAMPLE)]
    environ |= {"ETT_HOME": str(tmp_path / "home with a space"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    assert done.returncode == 0, done.stderr
    for shown in ("2 attempts", "1 failure (1 infra)", "replayed 1 step ", "AUC 0."):
        assert shown in done.stdout
