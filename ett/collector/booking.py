"""Keeps the counters near the store: a thread that refreshes the book, and every scrape refreshes it as well."""

from __future__ import annotations

import logging
import os
import threading

from ett.collector.counter_book import CounterBook
from ett.collector.own_figures import OwnFigures
from ett.errors import EttError
from ett.store import Store

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
SCRAPE_LIMIT_S = 2.0  # of a scrape: what it does not reach is counted by the thread


class Booking:
    def __init__(self, store: Store, book: CounterBook, figures: OwnFigures) -> None:
        self._store, self._book, self._figures = store, book, figures
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ett-booking", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._refresh(limit_s=SCRAPE_LIMIT_S)

    def before_scrape(self) -> None:
        self._refresh(limit_s=SCRAPE_LIMIT_S)
        self._figures.rollup_lag.set(self._book.lag_s())
        for label, count in self._book.num_refused.items():
            self._figures.labels_refused.labels(label=label).set(count)
        self._figures.store_bytes.set(_size(self._store.name))

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._refresh(limit_s=60.0)

    def _refresh(self, limit_s: float) -> None:
        try:
            self._book.refresh(limit_s, wait_s=SCRAPE_LIMIT_S)
        except EttError as err:  # the store is away: the counters stay where they are until it is back
            log.warning("the counters wait for the store: %s", err)


def _size(name: str) -> int:
    """The bytes of a SQLite store with its write-ahead log; 0 of a store that is no file."""
    paths = [name, f"{name}-wal"] if "://" not in name else []
    return sum(os.stat(path).st_size for path in paths if os.path.exists(path))
