"""A program may close every number that it does not know, and use the numbers again: its files are never touched."""

from __future__ import annotations

import os
from pathlib import Path

from ett.event_log import EventWriter
from ett.own_descriptor import OwnDescriptor
from ett.ring import Ring, RingHeader


def taken_over(number: int, path: Path) -> int:
    """Close a number as a daemon does, and give it to a file of the program's own."""
    os.close(number)
    opened = os.open(path, os.O_RDWR | os.O_CREAT)
    os.dup2(opened, number)
    if opened != number:
        os.close(opened)
    return number


def test_a_number_that_a_program_took_over_stays_open(tmp_path: Path) -> None:
    ours = OwnDescriptor(os.open(tmp_path / "ours", os.O_RDWR | os.O_CREAT))
    theirs = taken_over(ours.fd, tmp_path / "theirs")
    assert not ours.is_ours
    ours.close()
    os.write(theirs, b"kept")
    os.close(theirs)
    assert (tmp_path / "theirs").read_bytes() == b"kept"


def test_a_number_that_is_closed_already_is_no_error(tmp_path: Path) -> None:
    ours = OwnDescriptor(os.open(tmp_path / "ours", os.O_RDWR | os.O_CREAT))
    os.close(ours.fd)
    ours.close()


def test_it_is_closed_once(tmp_path: Path) -> None:
    ours = OwnDescriptor(os.open(tmp_path / "ours", os.O_RDWR | os.O_CREAT))
    ours.close()
    same = os.open(tmp_path / "ours", os.O_RDWR)
    ours.close()
    os.fstat(same)
    os.close(same)


def test_a_ring_leaves_a_programs_file_open(tmp_path: Path) -> None:
    header = RingHeader(job_dir="/jobs/j", file="1/r0-h-1-b", common={"job": "j", "pid": 1}, start_ticks=5)
    ring = Ring.create(tmp_path / "a.ring", header, 4096)
    theirs = taken_over(ring.fd, tmp_path / "theirs")
    ring.close()
    os.write(theirs, b"kept")
    os.close(theirs)


def test_no_record_is_written_into_a_programs_file(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "events", "r0", {"job": "j"})
    assert writer.emit("note", n=1)
    (log,) = (tmp_path / "events").iterdir()
    number = next(int(fd) for fd in os.listdir("/proc/self/fd") if _target(fd) == str(log))
    theirs = taken_over(number, tmp_path / "theirs")
    assert not writer.emit("note", n=2)
    assert writer.dropped == 1
    writer.close()
    os.write(theirs, b"kept")
    os.close(theirs)
    assert (tmp_path / "theirs").read_bytes() == b"kept"


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
