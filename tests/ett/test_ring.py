"""A ring gives back whole lines only, in order, whatever moment its writer is killed at."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ett.event_line import encode_line
from ett.ring import HEAD, HEADER_BYTES, TAIL, Ring, RingHeader, read_waiting
from ett.ring_folder import BASE, make_ring_folder, remove_ring_folder, ring_folder

HEADER = RingHeader(job_dir="/jobs/j", file="1/r0-h-1-b", common={"job": "j", "pid": 1}, start_ticks=5)
LINES = st.lists(st.integers(0, 600).map(lambda size: encode_line({"text": "x" * size})), max_size=30)


def made(tmp_path: Path, capacity: int = 4096) -> Ring:
    return Ring.create(tmp_path / "a.ring", HEADER, capacity)


def drained(ring: Ring) -> bytes:
    end = ring.whole_end()
    lines = ring.peek(ring.words[TAIL], end)
    ring.words[TAIL] = end
    return lines


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(LINES, st.lists(st.booleans(), min_size=30, max_size=30))
def test_lines_come_back_in_order_around_the_end_of_the_ring(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], drains: list[bool]
) -> None:
    ring = made(tmp_path_factory.mktemp("ring"), capacity=2048)
    accepted = read = b""
    for line, drain in zip(lines, drains, strict=False):
        if ring.append(line):
            accepted += line
        else:
            assert len(accepted) - len(read) + len(line) > 2048
        if drain:
            read += drained(ring)
    assert read + drained(ring) == accepted
    ring.close()


def test_what_a_killed_writer_half_copied_is_never_seen(tmp_path: Path) -> None:
    ring = made(tmp_path)
    ring.append(encode_line({"n": 1}))
    begin = HEADER_BYTES + ring.words[HEAD]
    ring._map[begin : begin + 9] = b'{"n":2}\t0'  # the copy began, `head` was not raised
    again = Ring.open(tmp_path / "a.ring")
    assert drained(again) == encode_line({"n": 1})


def test_a_last_line_whose_bytes_have_not_arrived_waits(tmp_path: Path) -> None:
    ring = made(tmp_path)
    first, second = encode_line({"n": 1}), encode_line({"n": 2})
    ring.append(first)
    ring.append(second)
    place = HEADER_BYTES + len(first) + 3
    kept = ring._map[place : place + 2]
    ring._map[place : place + 2] = b"\0\0"  # as a processor with weak ordering may show it
    assert ring.whole_end() == len(first)
    ring._map[place : place + 2] = kept
    assert ring.whole_end() == len(first) + len(second)


def test_a_ring_is_its_owners_alone(tmp_path: Path) -> None:
    ring = made(tmp_path)
    assert stat.S_IMODE(ring.path.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["a.ring"]


def test_a_ring_for_which_there_is_no_room_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no ring at"):
        made(tmp_path, capacity=1 << 50)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"x" * 10, b"x" * 9000, b"ETTRING1" + bytes(9000)])
def test_a_file_that_is_no_ring_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.ring").write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        Ring.open(tmp_path / "a.ring")
    assert read_waiting(tmp_path / "a.ring") is None


def test_a_reader_sees_what_waits_and_changes_nothing(tmp_path: Path) -> None:
    ring = made(tmp_path, capacity=512)
    lines = [encode_line({"n": number, "text": "x" * 100}) for number in range(6)]
    for line in lines[:4]:
        ring.append(line)
        drained(ring)
    ring.append(lines[4])
    ring.append(lines[5])
    found = read_waiting(ring.path)
    assert found is not None
    header, life, tail, waiting = found
    assert (header, life, tail, waiting) == (HEADER, 0, sum(map(len, lines[:4])), lines[4] + lines[5])
    assert ring.words[TAIL] == tail


@pytest.fixture
def job_dir(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "j").mkdir()
    yield tmp_path / "j"
    remove_ring_folder(ring_folder(tmp_path / "j"))


def test_the_folder_of_rings_is_private_and_found_by_the_jobs_folder(job_dir: Path) -> None:
    folder = make_ring_folder(job_dir)
    assert folder == ring_folder(job_dir) == make_ring_folder(job_dir)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.parent == BASE


def test_a_folder_that_somebody_else_could_write_to_is_refused(job_dir: Path) -> None:
    ring_folder(job_dir).mkdir()
    ring_folder(job_dir).chmod(0o777)
    with pytest.raises(OSError, match="own folder"):
        make_ring_folder(job_dir)


def test_a_link_in_the_folders_place_is_refused(job_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    ring_folder(job_dir).symlink_to(tmp_path / "elsewhere")
    try:
        with pytest.raises(OSError, match="own folder"):
            make_ring_folder(job_dir)
    finally:
        ring_folder(job_dir).unlink()


def test_a_disk_is_no_place_for_rings(job_dir: Path) -> None:
    with pytest.raises(OSError, match="no tmpfs"):
        make_ring_folder(job_dir, Path("/proc"))


def rings_of_a_job_that_is_gone(tmp_path: Path) -> Ring:
    gone = tmp_path / "gone"
    gone.mkdir()
    folder = make_ring_folder(gone)
    gone.rmdir()
    os.utime(folder / "job", (1, 1))
    return Ring.create(folder / "1.ring", HEADER, 4096)


def test_the_memory_of_a_job_whose_folder_is_gone_is_freed(job_dir: Path, tmp_path: Path) -> None:
    ring = rings_of_a_job_that_is_gone(tmp_path)
    ring.close()
    make_ring_folder(job_dir)
    assert not ring.path.parent.exists()


def test_a_ring_that_a_process_writes_to_is_never_freed(job_dir: Path, tmp_path: Path) -> None:
    ring = rings_of_a_job_that_is_gone(tmp_path)
    make_ring_folder(job_dir)
    assert ring.path.exists()
    ring.close()
    make_ring_folder(job_dir)
    assert not ring.path.parent.exists()
