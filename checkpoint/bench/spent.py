"""What a part of a benchmark took: seconds, CPU of the process, and bytes that the disk itself gave and took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ett.errors import ThresholdMissed

_LEAST_SHARE = 0.99  # of the bytes asked for, that the disk must have moved


@dataclass(frozen=True, slots=True)
class Spent:
    seconds: float
    cpu_s: float
    read_bytes: int
    written_bytes: int


def spent(work: Callable[[], object]) -> Spent:
    """Do the work and return what it took."""
    cpu, (read, written), began = time.process_time(), _disk_bytes(), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    now_read, now_written = _disk_bytes()
    return Spent(seconds, time.process_time() - cpu, now_read - read, now_written - written)


def check_moved(who: str, moved: int, num_bytes: int) -> None:
    """Raise ThresholdMissed where less went to or came from the disk than was saved: then memory was measured."""
    if moved < _LEAST_SHARE * num_bytes:
        raise ThresholdMissed(
            f"{who}: the disk moved {moved / 1e6:.0f} MB", expected=f"the {num_bytes / 1e6:.0f} MB of the tables"
        )


def _disk_bytes() -> tuple[int, int]:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"]), int(fields["write_bytes"])
