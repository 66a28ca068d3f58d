"""A rank that stops making progress: found, its stacks kept, the attempt ended and started again."""

from __future__ import annotations

import sys

import pytest
from launched_job import PROGRAMS, LaunchedJob

pytestmark = pytest.mark.process
HANGS = str(PROGRAMS / "hangs.py")
FLAGS = ("--nproc", "2", "--max-restarts", "1", "--hang-after", "2s")


@pytest.mark.parametrize(
    ("how", "cause", "frame"),
    [
        ("stop", "infra", ""),
        ("silent", "unknown", "in <module>"),
        ("reader", "unknown", "in next_batch"),
        ("native", "unknown", "in <module>"),
    ],
)
def test_a_hanging_rank_is_named_with_everyones_stacks_before_the_restart(
    job: LaunchedJob, how: str, cause: str, frame: str
) -> None:
    assert job.run(*FLAGS, HANGS, how, "1") == 0, job.err
    hung, completed = job.ends()
    assert (hung["reason"], hung["class"], hung["detail"]) == ("failed", cause, "hang")
    assert hung["first_failing_rank"] == 1
    assert "rank 1 made no progress for " in job.err
    assert "after step 5" in job.err
    assert completed["reason"] == "completed"
    stacks = {path: (job.job_dir / path).read_text() for path in hung["stacks"]}
    assert sorted(stacks) == ["logs/1/rank0.stacks", "logs/1/rank1.stacks"]
    assert "torch/distributed" in stacks["logs/1/rank0.stacks"]
    assert frame in stacks["logs/1/rank1.stacks"]
    assert ("is stopped by a signal" in stacks["logs/1/rank1.stacks"]) == (how == "stop")


def test_an_evaluation_of_one_rank_is_no_hang(job: LaunchedJob) -> None:
    assert job.run(*FLAGS, HANGS, "evaluation", "0") == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["completed"]
    assert not list((job.job_dir / "logs" / "1").glob("*.stacks"))


def test_a_program_that_records_nothing_is_not_judged(job: LaunchedJob) -> None:
    program = "import time; time.sleep(3)"
    assert job.run("--hang-after", "1s", "--", sys.executable, "-c", program) == 0, job.err
