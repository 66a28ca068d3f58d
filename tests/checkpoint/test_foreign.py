"""A job resumes by itself only from its own commits; a step, or a setting, goes on from another's."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from checkpoint_world import Meeting, Rank, ThreadRanks

from ett.checkpoint.checkpointer import RestoredPosition
from ett.errors import ConfigError


def of_job(folder: Path, job: str, **config: bool) -> Rank:
    rank = Rank(folder, ThreadRanks(0, 1, Meeting(1)), **config)
    rank.run.job = job
    return rank


def restored(folder: Path, job: str, resume: str = "auto", **config: bool) -> RestoredPosition | None:
    return of_job(folder, job, **config).checkpointer.restore(resume)


@pytest.fixture
def of_a(tmp_path: Path) -> Path:
    """A folder with a commit of step 7 that job a has made."""
    rank = of_job(tmp_path, "a")
    rank.checkpointer.restore()
    rank.fill(7)
    rank.checkpointer.save(7, 70)
    return tmp_path


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_another_jobs_commits_are_neither_resumed_from_nor_buried(of_a: Path, resume: str) -> None:
    records = sorted((of_a / "commits").iterdir())
    with pytest.raises(ConfigError, match="made by job a; this is job b") as raised:
        restored(of_a, "b", resume)
    assert "--resume 7" in raised.value.do
    assert "checkpoint.allow_foreign" in raised.value.do
    assert sorted((of_a / "commits").iterdir()) == records


def test_another_job_that_has_saved_nothing_yet_is_not_fenced_off(tmp_path: Path) -> None:
    first = of_job(tmp_path, "a")
    first.checkpointer.restore()
    with pytest.raises(ConfigError, match="job a"):
        restored(tmp_path, "b")
    first.fill(1)
    assert first.checkpointer.save(1, 10).step == 1


@pytest.mark.parametrize(("resume", "allow_foreign"), [("7", False), ("auto", True)])
def test_what_is_asked_for_is_resumed_from_said_and_ones_own_afterwards(
    of_a: Path, resume: str, allow_foreign: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        position = restored(of_a, "b", resume, allow_foreign=allow_foreign)
    assert position is not None
    assert position.step == 7
    assert "made by job a; this is job b" in caplog.text
    again = restored(of_a, "b")
    assert again is not None
    assert again.step == 7


@pytest.mark.parametrize("job", ["a", ""])
def test_the_job_itself_and_a_process_of_no_job_need_no_permission(of_a: Path, job: str) -> None:
    position = restored(of_a, job)
    assert position is not None
    assert position.step == 7
