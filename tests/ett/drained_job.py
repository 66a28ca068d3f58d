"""A job's folder of which a drain moves what ranks emit to its files."""

from __future__ import annotations

from pathlib import Path

from ett.event_reader import EventLog, merge, parse_file
from ett.ring_folder import make_ring_folder
from ett.ring_writer import RingWriter

COMMON = {"job": "j", "att": 1, "rank": 0}


def writer(job_dir: Path, capacity: int = 1 << 16, rotate_bytes: int = 1 << 30) -> RingWriter:
    folder = make_ring_folder(job_dir)
    return RingWriter(folder, job_dir, 1, "r0", COMMON, capacity=capacity, rotate_bytes=rotate_bytes)


def in_files(job_dir: Path) -> EventLog:
    """Return what is on the disk; `read_folder` would read the rings as well."""
    paths = sorted(job_dir.rglob("*.jsonl"))
    return merge(parse_file(f"{path.parent.name}/{path.name}", path.read_bytes()) for path in paths)


def numbers(log: EventLog) -> list[int]:
    return [record.data["n"] for record in sorted(log.records, key=lambda r: (r.file, r.seq)) if record.ev == "note"]
