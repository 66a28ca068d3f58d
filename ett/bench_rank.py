"""The rank of `ett bench telemetry`: `python -m ett.bench_rank MODE NUMBER COUNTER`, in the environment of a launch.

steps N    time N steps, and print their nanoseconds
marks N    emit N marks, 5 ms apart
stuck N    N steps and N commits, 5 ms apart, while every call that touches a disk hangs; print their nanoseconds
endless    emit marks until killed; COUNTER is a file of 8 bytes that says how many emits have returned
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ett.tracker import Run, RunIdentity

PAUSE_S = 0.005
HANG_S = 600.0
_DISK_CALLS = ("fdatasync", "fsync", "ftruncate", "link", "mkdir", "open", "pwrite", "rename", "write")


def main(mode: str, number: int, counter: str) -> None:
    run = Run(RunIdentity.from_environ(os.environ))
    if mode == "endless":
        _emit_until_killed(run, counter)
    if mode == "marks":
        for mark in range(number):
            run.emit("mark", number=mark)
            time.sleep(PAUSE_S)
    if mode == "steps":
        print(json.dumps([_timed(partial(_step, run)) for _ in range(number)]))
    if mode == "stuck":
        print(json.dumps(_stuck(run, number)))
    run.close()


def hang_on_disks(free: str) -> None:
    """Make every call of this process that writes to a file hang, but for files below the folder `free`.

    A file system that the kernel has frozen does just that (tests/process/test_ring_kill.py freezes a real one).
    """
    for name in _DISK_CALLS:
        setattr(os, name, _hanging(getattr(os, name), free))


def _hanging(call: Callable[..., Any], free: str) -> Callable[..., Any]:
    readlink = os.readlink

    def hang(target: Any, *args: Any, **kwargs: Any) -> Any:
        path = readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fspath(target)
        if not str(path).startswith((free, "pipe:")):
            time.sleep(HANG_S)
        return call(target, *args, **kwargs)

    return hang


def _stuck(run: Run, number: int) -> dict[str, list[int]]:
    schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    hang_on_disks(os.environ["ETT_RING"])
    took_ns: dict[str, list[int]] = {"step": [], "commit": [], "commit_queued": []}
    for count in range(number):
        took_ns["step"].append(_timed(partial(_step, run)))
        queued_ns = _queued_ns(schedstat)
        took_ns["commit"].append(_timed(partial(run.committed, count, count, "file:///x")))
        took_ns["commit_queued"].append(_queued_ns(schedstat) - queued_ns)
        time.sleep(PAUSE_S)
    return took_ns


def _queued_ns(schedstat: int) -> int:
    """Return how long this thread has been ready to run while others had the processors."""
    return int(os.pread(schedstat, 128, 0).split()[1])


def _emit_until_killed(run: Run, counter: str) -> None:
    with open(counter, "r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
        number = 0
        while True:
            run.emit("mark", number=number)
            number += 1
            shared[:8] = number.to_bytes(8, "little")  # after the emit returned: this record must be in the log


def _step(run: Run) -> None:
    with run.step(global_samples=1):
        pass


def _timed(call: Callable[[], object]) -> int:
    begin_ns = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - begin_ns


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
