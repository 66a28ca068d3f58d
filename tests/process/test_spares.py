"""Processes that wait to be a rank, without torch: who they become, and that none is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.api import LogsDest, SubprocessContext
from wait import wait_until

from ett import spares
from ett.elastic_agent import taking_spares
from ett.guardian import stat_fields
from ett.spares import Spare, Spares

pytestmark = pytest.mark.process
# As ett.spare_process, but that nothing is imported, and that the rank says who it is.
PROGRAM = """
import os, sys
from ett.spare_process import read_role
role = read_role(int(sys.argv[1]))
if role is None:
    sys.exit(7)
role.take_on()
print(os.environ["RANK"], os.environ.get("ETT_ATTEMPT"), os.environ.get("GONE"), flush=True)
sys.stderr.write("said\\n")
"""


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares, "PROGRAM", (sys.executable, "-c", PROGRAM))
    monkeypatch.setattr(spares, "LOOK_INTERVAL_S", 0.0)
    monkeypatch.setenv("ETT_ATTEMPT", "1")


class Pool(Spares):
    """Spares, and what was said of them."""

    def __init__(self, count: int, log: Path) -> None:
        self.said: list[str] = []
        super().__init__(count, log, self.said.append)

    def pids(self) -> list[int]:
        return [spare.proc.pid for spare in self._waiting]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(1, tmp_path / "spares.log")
    yield made
    made.close()


def is_alive(pid: int) -> bool:
    return stat_fields(pid) is not None


def test_a_spare_becomes_the_rank_of_the_environment_that_it_is_given(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GONE", "1")
    pool.tend(lambda: True)
    monkeypatch.delenv("GONE")
    monkeypatch.setenv("ETT_ATTEMPT", "2")
    out, err = tmp_path / "rank1.log", tmp_path / "rank1.err"
    out.write_text("of the lost rank\n")
    (pid,) = pool.pids()
    rank = pool.take({"RANK": "1"}, str(out), str(err))
    assert rank is not None
    assert (rank.proc.pid, rank.proc.wait()) == (pid, 0)
    assert out.read_text() == "of the lost rank\n1 2 None\n"
    assert err.read_text() == "said\n"


def test_a_spare_belongs_to_no_rank_and_to_no_attempt(pool: Pool) -> None:
    pool.tend(lambda: True)
    (pid,) = pool.pids()
    wait_until(lambda: b"-c" in Path(f"/proc/{pid}/cmdline").read_bytes(), "the spare's own program")
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert not [pair for pair in environ if pair.startswith((b"RANK=", b"LOCAL_RANK=", b"ETT_ATTEMPT="))]


def test_none_is_started_before_the_job_trains(pool: Pool) -> None:
    pool.tend(lambda: False)
    assert pool.pids() == []
    assert pool.take({}, os.devnull, os.devnull) is None


def test_one_that_was_used_is_replaced(pool: Pool) -> None:
    pool.tend(lambda: True)
    first = pool.take({"RANK": "0"}, os.devnull, os.devnull)
    pool.tend(lambda: True)
    second = pool.take({"RANK": "1"}, os.devnull, os.devnull)
    assert first is not None
    assert second is not None
    assert (first.proc.wait(), second.proc.wait()) == (0, 0)
    assert first.proc.pid != second.proc.pid


def test_one_that_ended_is_no_rank_and_after_three_there_are_no_more(pool: Pool) -> None:
    for _ in range(spares.MOST_LOST + 1):
        pool.tend(lambda: True)
        for spare in pool._waiting:
            spare.proc.kill()
            spare.proc.wait()
    assert pool.take({}, os.devnull, os.devnull) is None
    assert pool.pids() == []
    assert len(pool.said) == spares.MOST_LOST
    assert "exit code -9" in pool.said[0]
    assert "no more are started" in pool.said[-1]


def test_a_pipe_that_takes_no_role_makes_no_rank(pool: Pool, tmp_path: Path) -> None:
    """A role longer than the pipe is written in part: a spare must not wait for the rest."""
    pool.tend(lambda: True)
    (pid,) = pool.pids()
    assert pool.take({"RANK": "1", "LONG": "x" * (1 << 20)}, os.devnull, os.devnull) is None
    assert not is_alive(pid)


def test_a_spare_ends_where_its_pipe_does(tmp_path: Path) -> None:
    spare = Spare(tmp_path / "log")
    spare._pipe.close()
    assert spare.proc.wait() == 7
    spare.end()


def test_torch_takes_spares_for_the_ranks_of_a_new_attempt_as_far_as_they_go(pool: Pool, tmp_path: Path) -> None:
    pool.tend(lambda: True)
    (pid,) = pool.pids()
    files = {rank: str(tmp_path / f"rank{rank}.log") for rank in (0, 1)}
    logs = SimpleNamespace(
        reify=lambda envs: LogsDest(
            stdouts=files, stderrs=files, tee_stdouts={}, tee_stderrs={}, error_files=dict.fromkeys(files, "")
        )
    )
    code = "import os; print(os.environ['RANK'], 'anew')"
    context: Any = SubprocessContext(
        "test",
        sys.executable,
        args=dict.fromkeys(files, ("-c", code)),
        envs={rank: {"RANK": str(rank)} for rank in files},
        logs_specs=logs,  # type: ignore[arg-type]
    )
    with taking_spares(pool):
        context.start()
    assert context.pids()[0] == pid
    assert context.wait(60).is_failed() is False
    assert [Path(file).read_text() for file in files.values()] == ["0 1 None\nsaid\n", "1 anew\n"]
    assert not is_alive(pid)


def test_a_spare_dies_with_its_supervisor(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from ett import spares; "
        "spares.PROGRAM = (sys.executable, '-c', 'import time; time.sleep(600)'); "
        "print(spares.Spare(Path(sys.argv[1])).proc.pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        # From then on the kernel knows: before, the spare sees for itself that its parent is another one.
        wait_until(lambda: b"time.sleep" in Path(f"/proc/{pid}/cmdline").read_bytes(), "the spare's own program")
        supervisor.kill()
    wait_until(lambda: not is_alive(pid), "the spare's end")


def test_none_is_left_when_the_job_is_over(pool: Pool, tmp_path: Path) -> None:
    pool.tend(lambda: True)
    (pid,) = pool.pids()
    pool.close()
    assert not is_alive(pid)
    assert not (tmp_path / "spares.log").exists()  # it had nothing to say
    pool.tend(lambda: True)
    assert pool.pids() == []
