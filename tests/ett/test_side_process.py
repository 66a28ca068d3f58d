from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ett import side_process
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
        self.waits: list[float] = []
        self.stdin = self

    def close(self) -> None:
        self.said.append("told")

    def kill(self) -> None:
        self.said.append("killed")

    def wait(self, timeout_s: float | None = None) -> int:
        assert timeout_s is not None, "waits for ever"
        self.waits.append(timeout_s)
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


@pytest.mark.parametrize(("waited_s", "left_s"), [(2.0, 1.0), (5.0, 0.0)])
def test_what_was_waited_for_another_sender_is_not_waited_again(
    monkeypatch: pytest.MonkeyPatch, waited_s: float, left_s: float
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(side_process, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    process = Held()
    side = started(process)
    side.tell_end()
    now_s[0] += waited_s
    side.end(3.0)
    assert process.waits == [left_s, side_process.KILLED_S]
