"""Running jobs that are accounted for again and again: each time only what a job got since the last one is read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ett.accounting import JobAccount
from ett.live_account import LiveAccount

MOST_RECORDS = 10_000_000  # of all jobs that are followed: some 300 MiB


@dataclass(kw_only=True, slots=True)
class Taken:
    """How much of a file was taken in: all blocks before `number`, and `num_bytes` from there on."""

    number: int = 0
    num_bytes: int = 0


@dataclass(kw_only=True, slots=True)
class JobFollower:
    """One job; `taken` is by file. Its account is to be read under `lock`: the next one revises it."""

    live: LiveAccount = field(default_factory=LiveAccount)
    taken: dict[int, Taken] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, file_id: int, name: str, blocks: Iterable[tuple[int, bytes]]) -> None:
        """Take in a file's blocks from `taken` on, in order. The last one may grow, and become several."""
        taken = self.taken.setdefault(file_id, Taken())
        skip = taken.num_bytes
        for number, lines in blocks:
            new = lines[skip:]
            if new:
                self.live.add_bytes(name, new)
            taken.number, taken.num_bytes = number, len(lines)
            skip = max(0, skip - len(lines))

    def account(self, as_of_ns: int) -> JobAccount | None:
        return self.live.account(as_of_ns)


class JobFollowers:
    """The jobs that run and were asked for; the one that was asked for longest ago goes first where they are too many.

    Args:
        most_records: kept of all jobs together.
    """

    def __init__(self, most_records: int = MOST_RECORDS) -> None:
        self._most_records = most_records
        self._lock = threading.Lock()
        self._jobs: OrderedDict[int, JobFollower] = OrderedDict()

    @contextmanager
    def follower(self, job_id: int) -> Iterator[JobFollower]:
        """Yield the job's, for this thread alone. One that raised is made anew the next time."""
        with self._lock:
            found = self._jobs.pop(job_id, None) or JobFollower()
            self._jobs[job_id] = found
        with found.lock:
            is_whole = False
            try:
                yield found
                is_whole = True
            finally:
                if not is_whole:
                    self.forget(job_id)
        self._shrink()

    def forget(self, job_id: int) -> None:
        with self._lock:
            self._jobs.pop(job_id, None)

    def num_records(self) -> Mapping[int, int]:
        with self._lock:
            return {job_id: found.live.num_records for job_id, found in self._jobs.items()}

    def _shrink(self) -> None:
        sizes = self.num_records()
        total = sum(sizes.values())
        for job_id, size in sizes.items():
            if total > self._most_records:
                self.forget(job_id)
                total -= size
