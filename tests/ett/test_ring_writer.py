"""What a rank emits gets into its ring in order, once or counted as lost: beside threads, forks and signal handlers."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from drained_job import COMMON, in_files, numbers, writer
from rank_program import CHILD_THAT_ASKS, run_program

from ett.clock import LateClock
from ett.own_descriptor import OwnDescriptor
from ett.ring_drain import RingDrain, drain_leftovers
from ett.ring_folder import make_ring_folder, ring_folder, ring_paths
from ett.ring_writer import RingWriter

pytestmark = pytest.mark.usefixtures("form")


@pytest.mark.slow
def test_a_burst_waits_for_the_drain_rather_than_losing_records(job_dir: Path, drain: RingDrain) -> None:
    rank = RingWriter(make_ring_folder(job_dir), job_dir, 1, "r0", COMMON, capacity=8192, wait_s=30.0)
    assert all(rank.emit("note", n=n) for n in range(3000))
    rank.close()
    drain.flush()
    assert numbers(in_files(job_dir)) == list(range(3000))


def test_a_full_ring_is_waited_for_once_in_vain_and_no_more(job_dir: Path) -> None:
    rank = RingWriter(make_ring_folder(job_dir), job_dir, 1, "r0", COMMON, capacity=4096, wait_s=0.2)
    begin_s = time.monotonic()
    assert [rank.emit("note", n=n) for n in range(200)].count(False) == rank.dropped > 100
    assert time.monotonic() - begin_s < 100 * 0.2 / 2  # each of those that were dropped would have waited
    rank.close()
    drain_leftovers(job_dir)


def test_a_full_ring_drops_and_every_drop_is_counted(job_dir: Path) -> None:
    rank = writer(job_dir, capacity=4096)
    written = [n for n in range(50) if rank.emit("note", n=n)]
    assert 0 < len(written) == 50 - rank.dropped
    drain = RingDrain(job_dir)
    drain.start()
    assert drain.flush()
    assert rank.emit("note", n=99)
    assert rank.emit("heartbeat", dropped=rank.dropped)
    rank.close()
    assert drain.stop() == 0
    log = in_files(job_dir)
    assert numbers(log) == [*written, 99]
    assert log.problems.dropped_records == log.problems.lost_records == rank.dropped


def test_a_new_file_follows_at_the_limit_and_counts_from_zero(job_dir: Path, drain: RingDrain) -> None:
    rank = writer(job_dir, rotate_bytes=2000)
    for n in range(40):
        assert rank.emit("note", n=n)
    rank.close()
    drain.flush()
    log = in_files(job_dir)
    assert sorted(record.data["n"] for record in log.records) == list(range(40))
    assert len({record.file for record in log.records}) > 3
    assert log.problems.lost_records == 0


def test_a_sync_record_is_on_the_disk_before_its_emit_returns(
    job_dir: Path, drain: RingDrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}").encode()))
    monkeypatch.setattr("ett.ring_writer.WAIT_S", 30.0)
    folder = make_ring_folder(job_dir)
    rank = RingWriter(folder, job_dir, 1, "r0", COMMON, wait_s=30.0)
    rank.emit("note", n=1)
    drain.flush()
    assert not synced
    assert rank.emit("ckpt_commit", cursor=1)
    assert [record.ev for record in in_files(job_dir).records] == ["note", "ckpt_commit"]
    assert len(synced) == 1
    rank.close()


def test_a_rank_that_closes_every_descriptor_is_not_taken_for_gone(job_dir: Path, drain: RingDrain) -> None:
    rank = writer(job_dir)
    os.close(rank._ring.fd)  # gives up its lock
    drain.flush()
    assert rank.emit("note", n=1)
    drain.flush()
    assert numbers(in_files(job_dir)) == [1]
    # The number may stand for the drain's own descriptor of the ring by now, which is in this process in a test only.
    rank._ring.descriptor = OwnDescriptor(os.open("/dev/null", os.O_RDONLY))
    rank.close()


def test_an_emit_in_a_signal_handler_that_interrupts_an_emit_is_written_after_it(
    job_dir: Path, drain: RingDrain
) -> None:
    rank = writer(job_dir)
    append = rank._encoder.encode

    def interrupted(*args: object, **stamps: int) -> bytes:
        monkey.undo()
        assert rank.emit("note", n=2)
        return append(*args, **stamps)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(rank._encoder, "encode", interrupted)
        assert rank.emit("note", n=1)
    rank.close()
    drain.flush()
    assert numbers(in_files(job_dir)) == [1, 2]


def test_a_native_record_is_stamped_as_pythons_are(form: str, job_dir: Path, drain: RingDrain) -> None:
    rank = writer(job_dir)
    before = time.time_ns(), time.monotonic_ns()
    for n in range(3):
        rank.emit("note", n=n)
        rank.emit("note", n="text")  # always Python's
    after = time.time_ns(), time.monotonic_ns()
    assert any(known is not None for known in rank._forms.values()) == (form == "native")
    rank.close()
    drain.flush()
    records = sorted(in_files(job_dir).records, key=lambda record: record.seq)
    assert [record.data["n"] for record in records] == [0, "text", 1, "text", 2, "text"]
    assert [record.seq for record in records] == list(range(6))
    assert before[0] <= records[0].wall_ns <= records[-1].wall_ns <= after[0]
    assert before[1] <= records[0].mono_ns <= records[-1].mono_ns <= after[1]


def test_a_record_that_is_noticed_late_keeps_its_time(job_dir: Path, drain: RingDrain) -> None:
    clock = LateClock()
    rank = RingWriter(make_ring_folder(job_dir), job_dir, 1, "r0", COMMON, clock=clock)
    for n in range(3):
        with clock.at(1_000 + n):
            rank.emit("note", n=n)
    rank.close()
    drain.flush()
    assert [record.mono_ns for record in in_files(job_dir).records] == [1_000, 1_001, 1_002]


def test_threads_leave_no_gap(job_dir: Path, drain: RingDrain) -> None:
    rank = RingWriter(make_ring_folder(job_dir), job_dir, 1, "r0", COMMON, wait_s=10)
    threads = [threading.Thread(target=lambda: [rank.emit("note", n=1) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rank.close()
    drain.flush()
    assert sorted(record.seq for record in in_files(job_dir).records) == list(range(800))


def test_a_lock_that_another_thread_holds_costs_a_counted_record(job_dir: Path, drain: RingDrain) -> None:
    rank = RingWriter(make_ring_folder(job_dir), job_dir, 1, "r0", COMMON, wait_s=0.01)
    results: list[bool] = []
    with rank._lock:
        thread = threading.Thread(target=lambda: results.append(rank.emit("note", n=1)))
        thread.start()
        thread.join(timeout=3000)
    assert (results, rank.dropped) == ([False], 1)
    rank.emit("note", n=2)
    rank.close()
    drain.flush()
    assert in_files(job_dir).problems.lost_records == 1


def kinds(job_dir: Path) -> list[str]:
    return sorted(record.ev for record in in_files(job_dir).records)


def kinds_told(text: str, job_dir: Path, drain: RingDrain) -> list[str]:
    """Run a program as a rank to its end; return the kinds of all that its processes recorded."""
    done = run_program(text, job_dir, **drain.environ)
    assert done.returncode == 0, done.stderr
    drain.flush()
    return kinds(job_dir)


@pytest.mark.slow
def test_a_forked_child_writes_nothing_into_its_parents_ring(job_dir: Path, drain: RingDrain) -> None:
    told = kinds_told(
        "import os, ett\n"
        "run = ett.init()\n"
        "if os.fork() == 0:\n"
        "    with run.step(samples=1): pass\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "run.emit('after')\n",
        job_dir,
        drain,
    )
    assert told == ["after", "proc_start"]


@pytest.mark.slow
def test_a_forked_child_that_outlives_its_parent_does_not_keep_the_ring(job_dir: Path, drain: RingDrain) -> None:
    text = (
        "import os, signal, sys, ett\n"
        "run = ett.init()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    [os.close(fd) for fd in (0, 1, 2)]\n"
        "    signal.pause()\n"
        "print(child)\n"
    )
    child = int(run_program(text, job_dir, **drain.environ).stdout)
    try:
        drain.flush()
        assert not ring_paths(ring_folder(job_dir))
    finally:
        os.kill(child, 9)


@pytest.mark.slow
def test_a_forked_child_that_asks_gets_a_ring_of_its_own(job_dir: Path, drain: RingDrain) -> None:
    assert kinds_told(CHILD_THAT_ASKS, job_dir, drain) == ["child", "parent", "proc_start", "proc_start"]
    assert len({record.file for record in in_files(job_dir).records}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("ring", ["", "/nowhere/ett-j", "/proc/self"])
def test_without_a_usable_ring_a_rank_writes_its_file_itself(job_dir: Path, ring: str) -> None:
    text = "import ett\nrun = ett.init()\nrun.emit('note')\nprint(run.dropped)"
    done = run_program(text, job_dir, ETT_RING=ring)
    assert (done.returncode, done.stdout.strip(), kinds(job_dir)) == (0, "0", ["note", "proc_start"])


@pytest.mark.slow
def test_a_compiled_function_that_records_says_each_thing_once(job_dir: Path, drain: RingDrain) -> None:
    told = kinds_told(
        "import torch, ett\n"
        "run = ett.init()\n"
        "@torch.compile(backend='eager')\n"
        "def train(x):\n"
        "    with run.step(samples=1):\n"
        "        y = x * 2\n"
        "    run.emit('note', n=1)\n"
        "    return y + 1\n"
        "assert train(torch.ones(2)).tolist() == train(torch.ones(2)).tolist() == [3, 3]\n",
        job_dir,
        drain,
    )
    # Compiling may take long enough for heartbeats, and for a second step that says that it begins.
    said = [kind for kind in told if kind not in ("heartbeat", "step_begin")]
    assert said == ["note", "note", "proc_start", "step", "step"]
