"""`ett restore` launches a job again from a checkpoint."""

from __future__ import annotations

import pytest
from launched_job import PROGRAMS, LaunchedJob
from wait import LONGEST_S

pytestmark = pytest.mark.process


def test_a_job_goes_on_from_the_chosen_step_with_its_kept_launch(job: LaunchedJob) -> None:
    assert job.run(str(PROGRAMS / "checkpointed.py")) == 0
    assert job.start_ett("restore", "j", "--step", "5", "--yes").wait(timeout=LONGEST_S) == 0
    assert job.out.count("began at 0") == job.out.count("began at 5") == 1
    assert [record.data["step"] for record in job.records("restore")] == [5]
    assert [end["reason"] for end in job.ends()] == ["completed", "completed"]
    assert "no saved step" not in job.out


@pytest.mark.slow
@pytest.mark.parametrize(("point", "begins_at"), [("ckpt_before_commit", 5), ("ckpt_after_commit", 10)])
def test_a_kill_around_a_commit_resumes_from_what_is_committed(job: LaunchedJob, point: str, begins_at: int) -> None:
    chaos = f"kill:rank=0,step=10,point={point}"
    assert job.run("--max-restarts", "1", "--chaos", chaos, str(PROGRAMS / "checkpointed.py")) == 0
    assert [line for line in job.out.splitlines() if line.startswith("began")] == [
        "began at 0",
        f"began at {begins_at}",
    ]
