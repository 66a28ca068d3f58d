from __future__ import annotations

import os
from pathlib import Path

import pytest

from ett import hang_watch
from ett.hang_watch import HangWatch
from ett.job_folder import JobFolder
from ett.process_identity import ProcessIdentity
from ett.recovery.config import RecoveryConfig
from ett.tracker import Run, RunIdentity


class FrozenTime:
    """Stands in for the module `time` where the watch looks at the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FrozenTime:
    frozen = FrozenTime()
    monkeypatch.setattr(hang_watch, "time", frozen)
    return frozen


def test_nobody_is_judged_while_the_disk_keeps_the_records_back(tmp_path: Path, time: FrozenTime) -> None:
    folder = JobFolder(tmp_path)
    folder.logs(1).mkdir(parents=True)
    run = Run(RunIdentity(job="j", attempt=1, job_dir=tmp_path))
    for _ in range(3):
        with run.step(samples=1):
            pass
    watch = HangWatch(folder, 1, RecoveryConfig(hang_after="10s"))
    me = {0: ProcessIdentity.of(os.getpid())}
    for _ in range(4):
        time.now_s += 4
        assert watch.poll(me, lambda: False) is None
    time.now_s += 4
    hang = watch.poll(me, lambda: True)
    assert hang is not None
    assert (hang.rank, hang.last_step, hang.stacks) == (0, 3, ("logs/1/rank0.stacks",))
