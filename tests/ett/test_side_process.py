from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ett.side_process import SideProcess


def test_a_schedulers_notice_to_all_processes_of_a_job_ends_none_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks: list[set[int]] = []

    def start(*_: Any, **__: Any) -> None:
        masks.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ())))

    monkeypatch.setattr(subprocess, "Popen", start)
    SideProcess().start(["ett"], tmp_path / "log", os.environ)
    start()
    assert [{signal.SIGUSR1, signal.SIGUSR2} & mask for mask in masks] == [{signal.SIGUSR1, signal.SIGUSR2}, set()]


class Held:
    """A process that neither ends nor, once killed, goes: the kernel holds it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.stdin = self

    def close(self) -> None:
        self.said.append("told")

    def kill(self) -> None:
        self.said.append("killed")

    def wait(self, timeout_s: float | None = None) -> int:
        assert timeout_s is not None, "waits for ever"
        raise subprocess.TimeoutExpired("held", timeout_s)


def started(process: object) -> SideProcess:
    side = SideProcess()
    side._process = process  # type: ignore[assignment]
    return side


def test_a_process_that_the_kernel_holds_does_not_hold_the_job() -> None:
    process = Held()
    assert started(process).end(0.0) == -signal.SIGKILL
    assert process.said == ["told", "killed"]


def test_senders_are_told_of_the_end_before_one_is_waited_for() -> None:
    process = Held()
    started(process).tell_end()
    assert process.said == ["told"]
    SideProcess().tell_end()  # nothing was started
