"""What a job's success begins: a publisher that nobody waits for, and that never changes what became of the job."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ett import publisher
from ett.guardian import Watched, stat_fields
from ett.job_folder import JobFolder
from ett.publisher import begin_publishing, log_of, start_publisher


class Supervisor:
    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.told: list[tuple[str, int | None]] = []
        self.said: list[str] = []

    def tell_publisher(self, to: str, pid: int | None) -> None:
        self.told.append((to, pid))

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def job(tmp_path: Path) -> Supervisor:
    folder = JobFolder(tmp_path / "jobs" / "j")
    folder.path.mkdir(parents=True)
    return Supervisor(folder)


def recipe(job: Supervisor, **publish: Any) -> None:
    job.folder.recipe_file.write_text(json.dumps({"publish": publish}))


def test_nothing_is_started_where_no_recipe_asks_for_it(job: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "start_publisher", lambda *_: pytest.fail("started"))
    begin_publishing(job)
    recipe(job, to="")
    begin_publishing(job)
    assert (job.told, job.said) == ([], [])


def test_a_publisher_that_cannot_be_started_is_told_of(job: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> subprocess.Popen[bytes]:
        raise OSError("no more processes")

    monkeypatch.setattr(publisher, "start_publisher", refuse)
    recipe(job, to="/served")
    begin_publishing(job)
    assert job.told == [("/served", None)]
    assert "`ett publish job j` does it" in job.said[0]


def test_a_publisher_is_a_session_of_its_own_with_a_log(job: Supervisor) -> None:
    recipe(job, to="served")
    of_an_attempt = {"ETT_JOB_DIR": str(job.folder.path), "ETT_ATTEMPT": "1"}
    watched = Watched(str(job.folder.path))
    watched.add_attempt(1)
    started = start_publisher(job.folder, {"PATH": "/usr/bin", **of_an_attempt})
    fields = stat_fields(started.pid)
    assert fields is not None
    assert fields[0] == started.pid  # its session
    assert watched.alive() == []  # so that the guardian leaves it alone
    assert started.wait() == 10  # there is no checkpoint
    assert "no checkpoint under" in log_of(job.folder).read_text()
