"""Who may touch a table's rows: training goes first, and a checkpoint that is captured beside it lets it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TableLock:
    """A lock that a thread may take again; `with lock:` waits for at most one holder of `lock.patiently()`."""

    def __init__(self) -> None:
        self._held, self._next, self._patient = threading.Lock(), threading.Lock(), threading.Lock()
        self._owner, self._depth = 0, 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner != me:
            with self._next:  # whoever holds it meanwhile cannot take it again before us
                self._held.acquire()
            self._owner = me
        self._depth += 1

    def __exit__(self, *raised: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            self._held.release()

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """Hold it after everybody who waits for it in a `with lock`."""
        with self._patient, self:
            yield

    @contextmanager
    def let_go(self) -> Iterator[None]:
        """Let others in while the body runs; this thread holds it."""
        depth, self._depth, self._owner = self._depth, 0, 0
        self._held.release()
        try:
            yield
        finally:
            with self:
                self._depth = depth + 1
