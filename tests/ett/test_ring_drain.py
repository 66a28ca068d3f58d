"""The drain moves every line to its place in the file once, whatever dies or fails in between."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from drained_job import COMMON, in_files, numbers, writer
from file_size_limit import file_size_limit

from ett import ring_drain
from ett.event_reader import read_folder
from ett.ring import TAIL, Ring
from ett.ring_drain import RingDrain, drain_leftovers
from ett.ring_folder import make_ring_folder, ring_folder, ring_paths
from ett.ring_writer import RingWriter

pytestmark = pytest.mark.usefixtures("form")


def test_what_a_rank_emits_is_in_its_file_in_order(job_dir: Path, drain: RingDrain) -> None:
    rank = writer(job_dir)
    assert all(rank.emit("note", n=n) for n in range(100))
    assert drain.flush()
    log = in_files(job_dir)
    assert numbers(log) == list(range(100))
    assert [record.seq for record in log.records] == list(range(100))
    assert not log.problems.flags()
    rank.close()


def test_a_file_is_named_as_one_that_a_rank_writes_itself(job_dir: Path, drain: RingDrain) -> None:
    rank = writer(job_dir)
    rank.emit("note", n=1)
    drain.flush()
    (record,) = in_files(job_dir).records
    assert record.file == f"1/r0-{record.host}-{os.getpid()}-{record.boot[:8]}.jsonl"
    rank.close()


def test_an_ended_ranks_ring_is_taken_away(job_dir: Path, drain: RingDrain) -> None:
    rank = writer(job_dir)
    rank.emit("note", n=1)
    rank.close()
    drain.flush()
    assert not ring_paths(ring_folder(job_dir))
    assert numbers(in_files(job_dir)) == [1]


def test_more_than_the_ring_holds_passes_through_it(job_dir: Path, drain: RingDrain) -> None:
    rank = writer(job_dir, capacity=8192)
    for n in range(500):
        rank.emit("note", n=n)
        if n % 10 == 9:
            drain.flush()
    rank.close()
    drain.flush()
    assert numbers(in_files(job_dir)) == list(range(500))


def test_a_rank_that_never_told_what_it_dropped_is_told_of(job_dir: Path) -> None:
    rank = writer(job_dir, capacity=4096)
    written = [n for n in range(50) if rank.emit("note", n=n)]
    rank.close()
    assert drain_leftovers(job_dir) == 0
    log = in_files(job_dir)
    assert numbers(log) == written
    assert log.problems.dropped_records == log.problems.lost_records == rank.dropped > 0


def test_a_drain_that_died_before_it_could_mark_writes_the_same_bytes_again(job_dir: Path) -> None:
    rank = writer(job_dir)
    for n in range(10):
        rank.emit("note", n=n)
    ring = Ring.open(ring_paths(ring_folder(job_dir))[0])
    drain = RingDrain(job_dir)
    drain.start()
    drain.flush()
    before = (file,) = list(job_dir.rglob("*.jsonl"))
    content = file.read_bytes()
    ring.words[TAIL] = content.index(b"\n") + 1  # as if it had been killed between the write and the mark
    rank.emit("note", n=10)
    rank.close()
    drain.stop()
    assert list(job_dir.rglob("*.jsonl")) == before
    assert file.read_bytes().startswith(content)
    log = in_files(job_dir)
    assert numbers(log) == list(range(11))
    assert log.problems.duplicate_record == 0
    ring.close()


def test_a_process_id_that_comes_round_again_gets_a_file_of_its_own(job_dir: Path, drain: RingDrain) -> None:
    for n in range(3):
        rank = writer(job_dir)
        rank.emit("note", n=n)
        rank.close()
        drain.flush()
    assert sorted(record.data["n"] for record in in_files(job_dir).records) == [0, 1, 2]
    assert len(list(job_dir.rglob("*.jsonl"))) == 3


def test_a_full_disk_keeps_records_in_the_ring_until_there_is_room(
    job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_drain, "RETRY_S", 0.0)
    rank = writer(job_dir)
    for n in range(20):
        rank.emit("note", n=n)
    drain = RingDrain(job_dir)
    with file_size_limit(1500):
        drain.start()
        assert not drain.flush()
        assert drain.state.num_refused > 0
    assert drain.flush()
    assert numbers(in_files(job_dir)) == list(range(20))
    rank.close()
    drain.stop()


def test_a_stuck_disk_holds_up_nobody_and_loses_nothing(job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, asked = threading.Event(), threading.Event()
    write = os.pwrite

    def stuck(fd: int, data: bytes, offset: int) -> int:
        asked.set()
        answer.wait(timeout=3000)
        return write(fd, data, offset)

    rank = writer(job_dir)
    drain = RingDrain(job_dir)
    monkeypatch.setattr(os, "pwrite", stuck)
    drain.start()
    assert rank.emit("note", n=0)
    assert asked.wait(timeout=300)
    assert rank.emit("ckpt_commit", cursor=1)  # wants the disk, gets 30 ms of waiting and its place in the ring
    assert rank.emit("note", n=1)
    assert not drain.flush(wait_s=0.01)
    rank.close()
    assert drain.stop(wait_s=0.01) == 1
    answer.set()
    assert drain.stop() == 0
    log = in_files(job_dir)
    assert [record.ev for record in log.records] == ["note", "ckpt_commit", "note"]


@pytest.mark.slow
def test_a_job_whose_folder_is_gone_is_not_made_again(job_dir: Path) -> None:
    rank = writer(job_dir)
    rank.emit("note", n=1)
    rank.close()
    job_dir.rmdir()
    drain = RingDrain(job_dir)
    drain.start()
    drain.flush()
    assert drain.stop(wait_s=0.5) == 0
    assert not job_dir.exists()


def test_a_ring_of_another_job_is_left_alone(job_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    folder = make_ring_folder(job_dir)
    rank = RingWriter(folder, other, 1, "r0", COMMON)
    rank.emit("note", n=1)
    drain = RingDrain(job_dir)
    drain.start()
    drain.flush()
    assert list(drain.state.unusable) == ring_paths(folder)
    assert not list(tmp_path.rglob("*.jsonl"))
    rank.close()
    ring_paths(folder)[0].unlink()
    drain.stop()


def test_a_reader_sees_what_no_file_has_yet(job_dir: Path) -> None:
    rank = writer(job_dir)
    (job_dir / "events").mkdir()
    for n in range(3):
        rank.emit("note", n=n)
    assert numbers(read_folder(job_dir)) == [0, 1, 2]
    assert not list(job_dir.rglob("*.jsonl"))
    drain = RingDrain(job_dir)
    drain.start()
    drain.flush()
    assert numbers(read_folder(job_dir)) == numbers(in_files(job_dir)) == [0, 1, 2]
    rank.close()
    drain.stop()


@pytest.mark.slow
def test_a_reader_completes_a_file_that_the_disk_took_half_of(job_dir: Path) -> None:
    rank = writer(job_dir)
    for n in range(20):
        rank.emit("note", n=n)
    drain = RingDrain(job_dir)
    with file_size_limit(1500):
        drain.start()
        drain.flush()
        log, disk = read_folder(job_dir), in_files(job_dir)
    rank.close()
    drain.stop()
    assert (numbers(log), log.problems.torn_tail, log.problems.duplicate_record) == (list(range(20)), 0, 0)
    assert (len(disk.records) < 20, disk.problems.torn_tail) == (True, 1)


def test_what_may_wait_is_written_beside_the_caller(job_dir: Path) -> None:
    drain = RingDrain(job_dir)
    drain.start()
    begun, go_on = threading.Event(), threading.Event()
    assert drain.later(lambda: (begun.set(), go_on.wait(timeout=3000)))
    assert begun.wait(timeout=300)
    assert not drain.later(lambda: None)
    go_on.set()
    assert drain.flush()
    assert drain.later(lambda: None)
    drain.stop()
