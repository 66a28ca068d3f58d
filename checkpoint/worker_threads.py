"""A few threads that take work from one list: what a save writes and a restore reads at once."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

from ett.raised import raised_by

Job = TypeVar("Job")
Item = TypeVar("Item")
Result = TypeVar("Result")
NUM_CORES = len(os.sched_getaffinity(0))
# Two a core and one more: some work while the others wait for the disk (docs/adr/0003-checkpoint-io.md).
MOST_THREADS = 5
# Held while rows are gathered and hashed: those that write need little of the processor, but at once.
CORES = threading.BoundedSemaphore(NUM_CORES)


def num_io_threads() -> int:
    """Return how many threads a rank reads and writes checkpoints with."""
    return min(MOST_THREADS, 2 * NUM_CORES + 1)


def num_work_threads() -> int:
    """Return how many threads a rank works with that wait for no disk."""
    return min(MOST_THREADS, NUM_CORES)


def together(works: Sequence[Callable[[], object]], stop: Callable[[], object]) -> None:
    """Do all works, in a thread each, and return when all have ended.

    Args: stop: has them begin nothing more; called where the wait for them is interrupted, and when all have ended.
    Raises: what the first of them, in order, raised.
    """
    threads: list[_Thread[object]] = []
    try:
        for work in works:
            threads.append(_Thread(work))
        for thread in threads:
            thread.wait()
    finally:
        stop()
        for thread in threads:
            thread.wait()  # also where the wait for one was interrupted; a second interrupt ends it
    for thread in threads:
        thread.result()


def in_threads(jobs: Iterable[Job], work: Callable[[Job], Result], threads: int) -> list[Result]:
    """Do all jobs, taken one by one as threads become free, and return the results in the order of the jobs.

    Raises: what a job raised, when no job runs any more; after the first that fails no job is begun.
    """
    crew = _Crew(jobs, work)
    together([crew.run] * threads, crew.stop)
    return [crew.results[number] for number in range(len(crew.results))]


class BrokenOffError(Exception):
    """What a thread was at is not wanted any more. Ends it; no user meets it."""


@contextmanager
def beside(work: Callable[[], Result], stop: Callable[[], object]) -> Iterator[Callable[[], Result]]:
    """Do a work in a thread while the body runs; give what waits for its result, or raises what it raised.

    Args: stop: has the work end early; called where the body raises, as by Ctrl-C.
    """
    thread = _Thread(work)
    is_done = False
    try:
        yield thread.result
        is_done = True
    finally:
        if not is_done:
            stop()
        thread.wait()


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield items; a thread makes the next one while the caller works on one."""
    wanted: SimpleQueue[bool] = SimpleQueue()
    made: SimpleQueue[tuple[list[Item], BaseException | None]] = SimpleQueue()

    def make() -> None:
        while wanted.get():
            item: list[Item] = []
            failure = raised_by(partial(_extend, item, items))
            made.put((item, failure))

    thread = Thread(target=make, name="ett-checkpoint-ahead", daemon=True)
    thread.start()
    try:
        wanted.put(True)
        while True:
            item, failure = made.get()
            if failure is not None:
                raise failure
            if not item:
                return
            wanted.put(True)
            yield item[0]
    finally:
        wanted.put(False)
        thread.join()


@dataclass(frozen=True, slots=True)
class Parts(Generic[Job]):
    """What a job turns out to be: other jobs, which any thread may take, before jobs that nobody has begun."""

    jobs: Sequence[Job]


def in_pipeline(
    jobs: Iterable[Job], read: Callable[[Job], Item | Parts[Job]], work: Callable[[Item], Result], readers: int
) -> list[Result]:
    """Do `work` with what `read` returns for the jobs, and return the results in no order.

    Some threads read, a job each at a time, and others work, one a core, so that the disk does not wait for them. No
    more items exist at once than there are threads, and one.
    Raises: what was raised first, when nothing runs any more.
    """
    line: _Pipeline[Job, Item, Result] = _Pipeline(jobs, read, work, readers, num_work_threads())
    together([line.run_reader] * readers + [line.run_worker] * line.workers, line.stop)
    if line.failures:
        raise line.failures[0]
    return line.results


def _extend(item: list[Item], items: Iterator[Item]) -> None:
    item.extend(islice(items, 1))


class _Thread(Generic[Result]):
    """A work under way in a thread.

    It is a daemon: a program whose store does not answer any more can end all the same. One that ends in order waits
    for whoever waits here (at_exit.py).
    """

    def __init__(self, work: Callable[[], Result]) -> None:
        self._results: list[Result] = []
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._thread = Thread(target=self._run, args=(work,), name="ett-checkpoint-io", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        self._ended.wait()  # CPython 3.11: a join() that was interrupted makes the thread look ended
        self._thread.join()

    def result(self) -> Result:
        self.wait()
        if self._failure is not None:
            raise self._failure
        return self._results[0]

    def _run(self, work: Callable[[], Result]) -> None:
        self._failure = raised_by(lambda: self._results.append(work()))
        self._ended.set()


class _Pipeline(Generic[Job, Item, Result]):
    def __init__(
        self,
        jobs: Iterable[Job],
        read: Callable[[Job], Item | Parts[Job]],
        work: Callable[[Item], Result],
        readers: int,
        workers: int,
    ) -> None:
        self.workers = workers
        self.results: list[Result] = []
        self.failures: list[BaseException] = []
        self._jobs, self._read, self._work = iter(jobs), read, work
        self._parts: deque[Job] = deque()
        self._room, self._changed = threading.Semaphore(workers + 1), threading.Condition()
        self._readers = readers  # that have not ended
        self._num_reading = 0
        self._is_over = False
        self._items: SimpleQueue[Item | None] = SimpleQueue()

    def run_reader(self) -> None:
        self._note(raised_by(self._read_all))
        with self._changed:
            self._readers -= 1
            is_last = not self._readers
        if is_last:
            self._end_workers()

    def run_worker(self) -> None:
        while (item := self._items.get()) is not None:
            if not self.failures:
                self._note(raised_by(partial(self._do, item)))
            self._room.release()

    def stop(self) -> None:
        """Have all threads end: what was read is worked on, no more is read."""
        with self._changed:
            self._is_over = True
            self._end_workers()
            self._changed.notify_all()
            self._room.release(max(1, self._readers))  # of workers that may never have begun

    def _read_all(self) -> None:
        while (job := self._next()) is not None:
            found = self._read(job)
            self._has_read(found.jobs if isinstance(found, Parts) else ())
            if isinstance(found, Parts):
                continue
            self._room.acquire()
            with self._changed:
                if not (self.failures or self._is_over):
                    self._items.put(found)
                    continue
            self._room.release()  # to another reader that waits for it
            return

    def _end_workers(self) -> None:
        for _ in range(self.workers):
            self._items.put(None)

    def _do(self, item: Item) -> None:
        self.results.append(self._work(item))

    def _next(self) -> Job | None:
        """Return a job; None when there are none, and nobody reads one that may have parts."""
        with self._changed:
            while not (self.failures or self._is_over):
                job = self._parts.popleft() if self._parts else next(self._jobs, None)
                if job is not None:
                    self._num_reading += 1
                    return job
                if not self._num_reading:
                    break
                self._changed.wait()
            return None

    def _has_read(self, parts: Sequence[Job]) -> None:
        with self._changed:
            self._num_reading -= 1
            self._parts.extend(parts)
            self._changed.notify_all()

    def _note(self, failure: BaseException | None) -> None:
        if failure is None:
            return
        with self._changed:
            self.failures.append(failure)
            self._changed.notify_all()


class _Crew(Generic[Job, Result]):
    def __init__(self, jobs: Iterable[Job], work: Callable[[Job], Result]) -> None:
        self.results: dict[int, Result] = {}
        self._jobs = enumerate(jobs)
        self._work = work
        self._lock = threading.Lock()
        self._is_over = False

    def stop(self) -> None:
        self._is_over = True

    def run(self) -> None:
        is_done = False
        try:
            while (taken := self._next()) is not None:
                number, job = taken
                self.results[number] = self._work(job)
            is_done = True
        finally:
            if not is_done:
                self.stop()

    def _next(self) -> tuple[int, Job] | None:
        with self._lock:
            return None if self._is_over else next(self._jobs, None)
