"""`ett launch --from` as a user types it: killed before its first save the new job begins as it began."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launched_job import LaunchedJob
from wait import LONGEST_S

pytestmark = pytest.mark.process

RECIPE = """
[job]
model = "small"
[data.generate]
rows = 1500
[train]
batch_size = 128
max_steps = 3
[eval]
enabled = false
"""


def test_a_new_job_goes_on_from_anothers_commit_with_its_lineage(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    job = LaunchedJob(tmp_path)
    assert job.start_ett("launch", "--job", "old", "recipe.toml").wait(LONGEST_S) == 0, job.err
    args = ("--from", "old", "--max-restarts", "1", "--chaos", "kill:rank=0,step=5", "--set", "train.max_steps=6")
    assert job.run(*args, "--checkpoint-interval", "100 steps", "recipe.toml") == 0, job.err
    assert job.out.count("begins with step 3 of job old") == 2
    (submitted,) = [record.data for record in job.records("job_submitted")]
    assert (submitted["source"]["job"], submitted["source"]["step"]) == ("old", 3)
    assert json.loads((job.job_dir / "launch.json").read_text())["source"] == submitted["source"] | {"uri": ""}
    result = json.loads((job.job_dir / "result.json").read_text())
    assert (result["step"], result["cursor"]) == (6, 6 * 128)
    restores = [(record.att, record.data["cursor"]) for record in job.records("restore")]
    assert restores == [(1, 3 * 128), (2, 3 * 128)]
