"""`ett restore` launches a job again from a checkpoint."""

from __future__ import annotations

import pytest
from launched_job import PROGRAMS, LaunchedJob

pytestmark = pytest.mark.process


def test_a_job_goes_on_from_the_chosen_step_with_its_kept_launch(job: LaunchedJob) -> None:
    assert job.run(str(PROGRAMS / "checkpointed.py")) == 0
    assert job.start_ett("restore", "j", "--step", "5", "--yes").wait(timeout=90) == 0
    assert job.out.count("began at 0") == job.out.count("began at 5") == 1
    assert [record.data["step"] for record in job.records("restore")] == [5]
    assert [end["reason"] for end in job.ends()] == ["completed", "completed"]
    assert "no saved step" not in job.out
