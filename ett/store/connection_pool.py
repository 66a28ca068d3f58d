"""Connections that threads take turns with: as many as are in use at once, however many threads come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Connection(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Connection)


class ConnectionPool(Generic[C]):
    """`is_usable` says whether a connection that comes back may be lent again; one that may not is dropped."""

    def __init__(self, connect: Callable[[], C], is_usable: Callable[[C], bool]) -> None:
        self._connect, self._is_usable = connect, is_usable
        self._idle: list[C] = []
        self._is_closed = False
        self._held = threading.local()

    @contextmanager
    def lent(self) -> Iterator[C]:
        """A connection for one statement; inside `held`, the thread's own."""
        own: C | None = getattr(self._held, "connection", None)
        if own is not None:
            yield own
            return
        try:
            connection = self._idle.pop()  # atomic: no other thread gets this one
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        finally:
            if not self._is_closed and self._is_usable(connection):
                self._idle.append(connection)
            else:
                connection.close()

    @contextmanager
    def held(self) -> Iterator[C]:
        """A connection that is this thread's until the block ends: a transaction has several statements."""
        with self.lent() as connection:
            self._held.connection = connection
            try:
                yield connection
            finally:
                self._held.connection = None

    def close(self) -> None:
        """Close the idle connections now, and each of the others when it comes back."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()
