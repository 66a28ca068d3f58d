"""Rings of real ranks: what kills of the rank, of the supervisor and of both leave, and what a frozen disk holds up."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched_job import LaunchedJob
from wait import LONGEST_S, wait_until

from ett.event_reader import read_folder
from ett.ring_drain import RingDrain
from ett.ring_folder import ring_folder, ring_paths

pytestmark = pytest.mark.process
EMIT = """
import mmap, struct, sys, time
import ett

run = ett.init()
if run.attempt > 1:
    sys.exit(0)
file = open(sys.argv[1], "r+b")
counter = mmap.mmap(file.fileno(), 8)
number = 0
while True:
    run.emit("mark", number=number)
    number += 1
    counter[:8] = struct.pack("<q", number)
    if number % 10 == 0:
        time.sleep(0.001)  # the ring holds some seconds of these: a drain that a busy host holds up costs no record
"""
TIMED_STEPS = """
import json, os, sys, time
import ett

run = ett.init()
open(sys.argv[1] + ".ready", "w").close()
while not os.path.exists(sys.argv[1] + ".go"):
    time.sleep(0.01)

def waited_s():  # the time so far in which this thread neither had a processor nor was ready for one
    with open("/proc/thread-self/schedstat") as file:
        ran_ns, ready_ns, _ = map(int, file.read().split())
    return time.perf_counter() - (ran_ns + ready_ns) / 1e9

longest_s = 0.0
for number in range(3000):
    begin_s = waited_s()
    with run.step(samples=1):
        pass
    longest_s = max(longest_s, waited_s() - begin_s)
begin_s = waited_s()
run.committed(1, 1, "file:///x")
commit_s = waited_s() - begin_s
with open(sys.argv[1] + ".new", "w") as file:
    json.dump({"step_s": longest_s, "commit_s": commit_s, "dropped": run.dropped}, file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""
# Of waiting, not of a busy host that gives the processor to others. The ring itself waits 30 ms at most, for a lock and
# for the disk; a disk or a drain that held the rank up would do so for as long as this test lets it stand.
HELD_UP_S = 0.5


def returned(path: Path) -> int:
    return int.from_bytes(path.read_bytes(), "little")


def marks(job_dir: Path) -> list[int]:
    return sorted(record.data["number"] for record in read_folder(job_dir).records if record.ev == "mark")


def start_rank(job_dir: Path, drain: RingDrain, *program: str) -> subprocess.Popen[str]:
    inside = {"ETT_JOB": "j", "ETT_JOB_DIR": str(job_dir), "ETT_ATTEMPT": "1", "RANK": "0", **drain.environ}
    return subprocess.Popen(
        [sys.executable, *program], env=os.environ | inside, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_killed_rank_loses_no_record_whose_emit_had_returned(tmp_path: Path, seed: int) -> None:
    counter = tmp_path / "counter"
    counter.write_bytes(bytes(8))
    job_dir = tmp_path / "j"
    job_dir.mkdir()
    drain = RingDrain(job_dir)
    drain.start()
    rank = start_rank(job_dir, drain, "-c", EMIT, str(counter))
    wait_until(lambda: returned(counter) > random.Random(seed).randrange(8_000))
    rank.kill()
    rank.communicate()
    assert drain.stop() == 0
    log = read_folder(job_dir)
    found = marks(job_dir)
    assert found == list(range(len(found)))
    assert len(found) >= returned(counter)
    assert log.problems.lost_records == log.problems.corrupt_record == log.problems.torn_tail == 0
    assert not ring_folder(job_dir).exists()


@pytest.mark.parametrize("victims", ["rank", "supervisor", "both"])
def test_a_resumed_job_has_every_record_of_the_killed_one(job: LaunchedJob, victims: str) -> None:
    counter, program = job.folder / "counter", job.folder / "emit.py"
    counter.write_bytes(bytes(8))
    program.write_text(EMIT)
    supervisor = job.start(str(program), str(counter))
    wait_until(lambda: returned(counter) > 3000)
    ranks = job.processes(1)
    if victims != "rank":
        supervisor.kill()
    if victims != "supervisor":
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
    supervisor.wait(timeout=LONGEST_S)
    wait_until(lambda: not job.processes(1), "the ranks end with their supervisor")
    num_returned = returned(counter)
    assert bool(ring_paths(ring_folder(job.job_dir))) == (victims != "rank")
    assert job.run() == 0
    found = marks(job.job_dir)
    assert found == list(range(len(found)))
    assert len(found) >= num_returned
    assert not read_folder(job.job_dir).problems.lost_records
    assert not ring_folder(job.job_dir).exists()


def test_a_stopped_drain_holds_up_no_rank(job: LaunchedJob) -> None:
    program, result = job.folder / "steps.py", job.folder / "result"
    program.write_text(TIMED_STEPS)
    supervisor = job.start(str(program), str(result))
    wait_until(lambda: result.with_name("result.ready").exists())
    supervisor.send_signal(signal.SIGSTOP)
    result.with_name("result.go").touch()
    wait_until(result.exists)
    supervisor.send_signal(signal.SIGCONT)
    assert supervisor.wait(timeout=LONGEST_S) == 0
    took = json.loads(result.read_text())
    assert took["step_s"] < HELD_UP_S
    assert took["commit_s"] < HELD_UP_S
    assert len(job.records("step")) == 3000 - took["dropped"] == 3000
    assert not ring_folder(job.job_dir).exists()


@pytest.fixture
def freezable(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that the test may freeze; thawed and gone afterwards."""
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    tools = all(shutil.which(tool) for tool in ("mkfs.ext4", "mount", "fsfreeze"))
    if os.geteuid() != 0 or not tools:
        pytest.skip("freezing a file system takes root, mkfs.ext4 and fsfreeze")
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine mounts no loop devices")
    yield mount
    subprocess.run(["fsfreeze", "--unfreeze", mount], capture_output=True, check=False)
    subprocess.run(["umount", mount], check=True)


def test_a_frozen_disk_holds_up_no_rank_and_costs_no_record(freezable: Path, tmp_path: Path) -> None:
    job_dir, result = freezable / "j", tmp_path / "result"
    job_dir.mkdir()
    drain = RingDrain(job_dir)
    drain.start()
    rank = start_rank(job_dir, drain, "-c", TIMED_STEPS, str(result))
    wait_until(lambda: result.with_name("result.ready").exists())
    subprocess.run(["fsfreeze", "--freeze", freezable], check=True)
    try:
        result.with_name("result.go").touch()
        wait_until(result.exists)
        rank.communicate(timeout=LONGEST_S)
        assert not drain.flush(wait_s=0.2), "the disk is not frozen"
        assert drain.stop(wait_s=0.2) == 1
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", freezable], check=True)
    assert drain.stop(wait_s=30) == 0
    took = json.loads(result.read_text())
    assert took["step_s"] < HELD_UP_S
    assert took["commit_s"] < HELD_UP_S
    kinds = [record.ev for record in read_folder(job_dir).records]
    assert (kinds.count("step"), kinds.count("ckpt_commit"), took["dropped"]) == (3000, 1, 0)
    assert not ring_folder(job_dir).exists()
