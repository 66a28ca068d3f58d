"""Which spares are made a rank, without processes; those are in tests/process/test_spares.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ett import spares
from ett.spare_process import Role
from ett.spares import Spare

NO_PROCESS = 2**22 + 1  # above the largest pid of Linux


class Process:
    """One that runs until it is killed, if it can be."""

    def __init__(self, read_fd: int, *, holds: bool = False) -> None:
        self.pid, self.returncode, self.read_fd = NO_PROCESS, None, os.dup(read_fd)  # type: int, int | None, int
        self.holds = holds

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.holds:
            assert timeout is not None, "waits without end for a process that the kernel holds"
            raise subprocess.TimeoutExpired("spare", timeout)
        return self.returncode or -9


@pytest.fixture
def spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spare]:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **given: Process(given["pass_fds"][0]))
    made = Spare(tmp_path / "log")
    yield made
    os.close(made.proc.read_fd)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("told", "age_s", "expected"),
    [
        (("ett-spare", "S"), 9999.0, True),
        (("ett-spare", "D"), 0.0, False),  # it only waits for its pipe: the kernel holds it
        (("ett-spare", "T"), 0.0, False),
        (("ett-importing", "D"), 1.0, True),  # reads a file
        (("ett-importing", "S"), 61.0, False),
        (("ett-importing", "T"), 1.0, False),
    ],
)
def test_a_spare_that_would_not_read_its_role_is_none(
    told: tuple[str, str], age_s: float, expected: bool, spare: Spare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "_name_and_state", lambda pid: told)
    now_s = time.monotonic() + age_s
    monkeypatch.setattr(spares, "time", SimpleNamespace(monotonic=lambda: now_s))
    assert spare.become({"RANK": "1"}, os.devnull, os.devnull) == expected


def test_the_kernel_names_a_process_and_its_state() -> None:
    name, state = spares._name_and_state(os.getpid())
    assert (name, state) == (Path("/proc/self/comm").read_text().strip(), "R")
    assert spares._name_and_state(NO_PROCESS) == ("", "")


@pytest.mark.parametrize(("code", "killed"), [(None, [NO_PROCESS]), (0, [])])
def test_only_a_spare_that_runs_is_killed(
    code: int | None, killed: list[int], spare: Spare, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, signum: groups.append(pid))
    spare.proc.returncode = code
    spare.end()
    assert groups == killed


def test_one_that_the_kernel_holds_holds_nobody_up(spare: Spare) -> None:
    process: Any = spare.proc
    process.holds = True
    spare.end()
    assert spare.proc.returncode is None


FAILS = """
import sys
from ett import spare_process
def fail():
    raise ImportError("a library is gone")
spare_process.load = lambda seam: fail
spare_process.main(sys.argv)
"""


@pytest.mark.parametrize("is_told", [True, False])
def test_a_rank_whose_imports_fail_says_so_in_its_own_output(tmp_path: Path, is_told: bool) -> None:
    read_fd, write_fd = os.pipe()
    err = tmp_path / "rank0.err"
    if is_told:
        os.write(write_fd, Role(environ={"RANK": "0"}, out=str(tmp_path / "rank0.log"), err=str(err)).line())
    command = [sys.executable, "-c", FAILS, str(read_fd)]
    ended = subprocess.run(command, pass_fds=(read_fd,), capture_output=True, text=True, check=False)
    for fd in (read_fd, write_fd):
        os.close(fd)
    assert ended.returncode == 1
    said = err.read_text() if is_told else ended.stderr
    assert "ImportError: a library is gone" in said
    assert bool(ended.stderr) is not is_told
