"""A few threads that take work from one list: what a save writes and a restore reads at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")
# Two a core and one more: some work while the others wait for the disk. Measured with 1, 2, 4, 5, 6 and 8
# (docs/adr/0003-checkpoint-io.md); each takes a buffer of a segment.
MOST_THREADS = 5
# Held while rows are gathered and hashed: without it all threads do that at once, and then all wait for the disk.
CORES = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))


def num_io_threads() -> int:
    """Return how many threads a rank reads and writes checkpoints with."""
    return min(MOST_THREADS, 2 * len(os.sched_getaffinity(0)) + 1)


def in_threads(jobs: Iterable[Job], work: Callable[[Job], Result], threads: int) -> list[Result]:
    """Do all jobs, taken one by one as threads become free, and return the results in the order of the jobs.

    Raises: what a job raised, when no job runs any more; after the first that fails no job is begun.
    """
    crew = _Crew(jobs, work)
    with ThreadPoolExecutor(threads, thread_name_prefix="ett-checkpoint-io") as pool:
        runs = [pool.submit(crew.run) for _ in range(threads)]
    for run in runs:
        run.result()
    return [crew.results[number] for number in range(len(crew.results))]


class _Crew(Generic[Job, Result]):
    def __init__(self, jobs: Iterable[Job], work: Callable[[Job], Result]) -> None:
        self.results: dict[int, Result] = {}
        self._jobs = enumerate(jobs)
        self._work = work
        self._lock = threading.Lock()
        self._has_failed = False

    def run(self) -> None:
        is_done = False
        try:
            while (taken := self._next()) is not None:
                number, job = taken
                self.results[number] = self._work(job)
            is_done = True
        finally:
            if not is_done:
                self._has_failed = True

    def _next(self) -> tuple[int, Job] | None:
        with self._lock:
            return None if self._has_failed else next(self._jobs, None)
