"""A few threads that take work from one list: what a save writes and a restore reads at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")
# Two a core keep a core busy while a write waits; from four to eight threads, two cores and one disk were no faster
# (docs/adr/0003-checkpoint-io.md), and each takes a buffer.
MOST_THREADS = 4


def num_io_threads() -> int:
    """Return how many threads a rank reads and writes checkpoints with."""
    return min(MOST_THREADS, 2 * len(os.sched_getaffinity(0)))


def in_threads(jobs: Iterable[Job], work: Callable[[Job], Result], threads: int) -> list[Result]:
    """Do all jobs, taken one by one as threads become free, and return the results in the order of the jobs.

    The caller's thread is one of the threads. Raises: what the first failing job raised, when no job runs any more;
    jobs that had not begun by then are not begun.
    """
    crew = _Crew(jobs, work)
    others = [threading.Thread(target=crew.run, name="ett-checkpoint-io", daemon=True) for _ in range(threads - 1)]
    for thread in others:
        thread.start()
    crew.run()
    for thread in others:
        thread.join()
    if crew.failure is not None:
        raise crew.failure
    return [crew.results[number] for number in range(len(crew.results))]


class _Crew(Generic[Job, Result]):
    def __init__(self, jobs: Iterable[Job], work: Callable[[Job], Result]) -> None:
        self.failure: BaseException | None = None
        self.results: dict[int, Result] = {}
        self._jobs: Iterator[tuple[int, Job]] = enumerate(jobs)
        self._work = work
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            while True:
                with self._lock:
                    taken = None if self.failure else next(self._jobs, None)
                if taken is None:
                    return
                number, job = taken
                self.results[number] = self._work(job)
        except BaseException as err:  # noqa: BLE001 - it is raised by the thread that waits for all of them
            with self._lock:
                self.failure = self.failure or err
