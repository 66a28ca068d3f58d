"""Work done ahead of its use by threads, handed out in order.

Threads, not processes: parsing, unpacking and decoding hold no GIL, and a thread ends with its process, whatever ended
that, and leaves no file, socket or shared memory behind.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from ett.raised import raised_by

T = TypeVar("T")
R = TypeVar("R")
_NAME = "ett-read"


class _Planner(threading.Thread, Generic[T, R]):
    """Takes tasks from a generator, at most `depth` ahead, and hands them to a pool."""

    def __init__(self, tasks: Generator[T, None, None], work: Callable[[T], R], threads: int, depth: int) -> None:
        super().__init__(name=f"{_NAME}-plan", daemon=True)
        self._tasks, self._work, self._threads = tasks, work, threads
        self._free, self._ready = threading.Semaphore(depth), threading.Semaphore(0)
        self._begun: deque[Future[R] | BaseException | None] = deque()
        self._is_stopped = False

    def run(self) -> None:
        self._put(raised_by(self._hand_out_all))

    def next(self) -> Future[R] | None:
        """Return the next task's result to come, or None at the end. Raises: what the generator raised."""
        self._ready.acquire()
        found = self._begun.popleft()
        if isinstance(found, BaseException):
            raise found
        self._free.release()
        return found

    def stop(self) -> None:
        self._is_stopped = True
        self._free.release()
        self.join()

    def _hand_out_all(self) -> None:
        with ThreadPoolExecutor(self._threads, thread_name_prefix=_NAME) as pool:
            self._hand_out(pool)

    def _hand_out(self, pool: ThreadPoolExecutor) -> None:
        # The generator is closed by the thread that runs it.
        try:
            while True:
                self._free.acquire()
                if self._is_stopped:
                    pool.shutdown(wait=False, cancel_futures=True)
                    return
                try:
                    task = next(self._tasks)
                except StopIteration:
                    return
                self._put(pool.submit(self._work, task))
        finally:
            self._tasks.close()

    def _put(self, what: Future[R] | BaseException | None) -> None:
        self._begun.append(what)
        self._ready.release()


def read_ahead(
    tasks: Generator[T, None, None], work: Callable[[T], R], *, threads: int, depth: int
) -> Generator[tuple[T, R], None, None]:
    """Yield (task, work(task)) in the order of the tasks.

    Args:
        threads: how many do the work at once, beside the one that takes the tasks.
        depth: results that are kept or made ahead of their use; 0 does everything in the caller's thread.
    Raises: what the tasks or the work raise, where the result would have come.
    """
    if not depth:
        try:
            for task in tasks:
                yield task, work(task)
        finally:
            tasks.close()
        return
    planner = _Planner(tasks, lambda task: (task, work(task)), threads, depth)
    planner.start()
    try:
        while (ahead := planner.next()) is not None:
            yield ahead.result()
    finally:
        planner.stop()
