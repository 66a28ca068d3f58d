"""Who may read and write rows while a step's update is under way: nobody but who knows which rows are done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType


class RowsGate:
    """A lock over all tables of a rank. One thread may close it and another one open it again.

    What failed half-way leaves rows of two steps: then whoever comes gets the same error, and no such rows.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def close(self) -> None:
        """Wait until it is open, and close it. Raises: what failed behind it before."""
        self._lock.acquire()
        if self._failure is not None:
            self._lock.release()
            raise self._failure

    def open(self) -> None:
        self._lock.release()

    @contextmanager
    def open_on_error(self) -> Iterator[None]:
        """Open a closed gate if the body raises, and let nobody through any more."""
        with ExitStack() as stack:
            stack.push(self._failed)
            yield

    def _failed(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        if err is not None:
            self._failure = err
            self._lock.release()

    def __enter__(self) -> None:
        self.close()

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self.open()
