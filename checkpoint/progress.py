"""How far long work is, drawn on a terminal: bytes read of those that will be, rate, and time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

from ett.checkpoint.buffered_store import BufferedStore
from ett.checkpoint.store import ObjectReader, Store

Watch = Callable[[Store, str, int], AbstractContextManager[Store]]


@contextmanager
def unwatched(store: Store, what: str, num_bytes: int) -> Iterator[Store]:
    yield store


@contextmanager
def watched(store: Store, what: str, num_bytes: int) -> Iterator[Store]:
    """Give a store of which reading is drawn on stderr, where that is a terminal.

    Args: num_bytes: about as many will be read.
    """
    if not sys.stderr.isatty():
        yield store
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=max(1, num_bytes))
        yield _counted(store, lambda count: bar.advance(task, count))


def progress(as_json: bool) -> Watch:
    """Return how a command shows its progress: not at all where it prints JSON."""
    return unwatched if as_json else watched


def _counted(store: Store, advance: Callable[[int], None]) -> Store:
    if isinstance(store, BufferedStore):  # whose two sides others look at
        local, remote = _counted(store.local, advance), _counted(store.remote, advance)
        return BufferedStore(cast(Any, local), remote, has_local_commits=store.has_local_commits)
    return cast(Store, _CountedStore(store, advance))


class _CountedStore:
    """A store whose readers tell how much they have read; all else is the store's own."""

    def __init__(self, store: Store, advance: Callable[[int], None]) -> None:
        self._store, self._advance = store, advance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def open(self, name: str) -> Iterator[ObjectReader]:
        with self._store.open(name) as reader:
            yield _CountedReader(reader, reader.size, self._advance)


@dataclass(slots=True)
class _CountedReader:
    reader: ObjectReader
    size: int
    advance: Callable[[int], None]

    def read_into(self, offset: int, target: memoryview) -> int:
        count = self.reader.read_into(offset, target)
        self.advance(count)
        return count
