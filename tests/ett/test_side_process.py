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
