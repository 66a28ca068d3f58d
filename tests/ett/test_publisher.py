"""What a job's success begins: a publisher that nobody waits for, and that never changes what became of the job."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
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


@pytest.mark.parametrize("text", ["{", "[]", '{"publish": 3}', '{"publish": {"to": "/served"'])
def test_a_damaged_recipe_does_not_keep_a_job_from_its_success(job: Supervisor, text: str) -> None:
    job.folder.recipe_file.write_text(text)
    begin_publishing(job)
    assert job.told == []
    assert "is damaged" in job.said[0]


def test_a_recipe_that_the_disk_does_not_give_does_not_either(job: Supervisor) -> None:
    job.folder.recipe_file.mkdir()
    begin_publishing(job)
    assert job.told == []
    assert "Is a directory" in job.said[0]


def test_a_password_is_neither_recorded_nor_said(job: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "start_publisher", lambda *_: SimpleNamespace(pid=7))
    recipe(job, to="ftp://user:p@ss@host/x")
    begin_publishing(job)
    assert job.told == [("ftp://host/x", 7)]
    assert "published to ftp://host/x by" in job.said[0]


def test_no_notice_to_the_job_ends_its_publisher(job: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[set[int]] = []

    def start(*_: Any, **__: Any) -> None:
        masks.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ())))

    monkeypatch.setattr(subprocess, "Popen", start)
    start_publisher(job.folder, {})
    assert {signal.SIGUSR1, signal.SIGUSR2} <= masks[0]
