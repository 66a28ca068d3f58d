"""A stopwatch that knows nothing of the event log: which processes of a job live, seen in /proc."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

POLL_S = 0.25


def attempt_of_rank(environ: Mapping[bytes, bytes]) -> int | None:
    """Return the attempt of a rank that `ett launch` started; None: it is none."""
    return int(environ[b"ETT_ATTEMPT"]) if b"RANK" in environ else None


def attempt_of_spare(name: bytes) -> int | None:
    """Return the attempt of a spare that has become a rank, which it has only its name to say; None: it is none."""
    found = re.fullmatch(rb"ett-a(\d+)r\d+", name)
    return int(found[1]) if found else None


@dataclass
class Life:
    first_ns: int  # monotonic, of the first look that saw the process
    last_ns: int  # of the last one


@dataclass
class Observer:
    """Looks every `poll_s` for live processes that carry `ETT_JOB_DIR=<job_dir>` and have an attempt, in a thread."""

    job_dir: str
    poll_s: float = POLL_S
    attempt_of: Callable[[Mapping[bytes, bytes]], int | None] = attempt_of_rank  # from a process's environment
    lives: dict[int, Life] = field(default_factory=dict)  # by attempt
    longest_gap_ns: int = 0  # between two looks: what one poll was on this machine

    def __enter__(self) -> Observer:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        last_ns = time.monotonic_ns()
        while not self._stop.wait(self.poll_s):
            self._look()
            now_ns = time.monotonic_ns()
            self.longest_gap_ns, last_ns = max(self.longest_gap_ns, now_ns - last_ns), now_ns

    def _look(self) -> None:
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    environ = dict(pair.partition(b"=")[::2] for pair in file.read().split(b"\0"))
                with open(f"/proc/{pid}/stat", "rb") as file:
                    name, _, rest = file.read().partition(b"(")[2].rpartition(b")")
            except OSError:
                continue
            if environ.get(b"ETT_JOB_DIR") != os.fsencode(self.job_dir) or rest.split()[0] == b"Z":
                continue
            attempt = self.attempt_of(environ) or attempt_of_spare(name)
            if attempt is not None:
                now_ns = time.monotonic_ns()
                self.lives.setdefault(attempt, Life(now_ns, now_ns)).last_ns = now_ns
