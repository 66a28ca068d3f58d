"""What another launch of a job's name may do, and what it must never do silently."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from launched_job import PROGRAMS, LaunchedJob
from wait import LONGEST_S, wait_until

LOOP = str(Path(__file__).parents[2] / "examples" / "own_loop.py")

pytestmark = pytest.mark.process


@pytest.fixture
def failed_job(job: LaunchedJob) -> LaunchedJob:
    """A job of one rank with commits, killed at step 37."""
    assert job.run("--chaos", "kill:rank=0,step=37", LOOP) == 128 + signal.SIGKILL
    return job


def test_a_job_whose_checkpoints_are_gone_does_not_start_over_by_itself(failed_job: LaunchedJob) -> None:
    shutil.rmtree(failed_job.job_dir / "checkpoints")
    assert failed_job.run() == 1  # a script's own exit code: Python's for an error that nobody catches
    assert "this job has committed checkpoints, and there is none under" in failed_job.err
    assert "step 60" not in failed_job.out
    assert failed_job.run("--resume", "never") == 0
    assert "step 60" in failed_job.out


def test_another_program_does_not_take_a_jobs_name(failed_job: LaunchedJob) -> None:
    assert failed_job.run(str(PROGRAMS / "steps.py")) == 7
    assert "choose another --job" in failed_job.err
    assert failed_job.run() == 0  # the kept launch is what it was
    assert "step 60" in failed_job.out


def test_sigterm_ends_a_start_up_that_waits_in_native_code_at_once(job: LaunchedJob) -> None:
    process = job.start("--nproc", "2", "--grace", "600", str(PROGRAMS / "waits_for_peer.py"))
    wait_until(lambda: len(job.records("span_begin")) == 2, "both ranks begin to join")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=LONGEST_S) == 128 + signal.SIGTERM  # half of the grace time
