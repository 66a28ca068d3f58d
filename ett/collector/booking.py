"""Keeps the counters near the store: one thread refreshes the book, on its own and when a scrape asks for it."""

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
SCRAPE_WAIT_S = 2.0  # of a scrape for what is new: it shows what there is then, and rollup_lag says how old that is
END_WAIT_S = 3.0  # for a job that is being counted; a page that was not kept is turned by the next collector


class Booking:
    def __init__(self, store: Store, book: CounterBook, figures: OwnFigures) -> None:
        self._store, self._book, self._figures = store, book, figures
        self._changed = threading.Condition()
        self._asked = self._done = 0  # refreshes that were asked for, and the newest ask that one has answered
        self._is_ended = False
        self._thread = threading.Thread(target=self._run, name="ett-booking", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._book.stop()
        self._thread.join(END_WAIT_S)

    def before_scrape(self) -> None:
        with self._changed:
            self._asked += 1
            asked = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= asked or self._is_ended, SCRAPE_WAIT_S)
        self._figures.rollup_lag.set(self._book.lag_s())
        for label, count in self._book.num_refused.items():
            self._figures.labels_refused.labels(label=label).set(count)
        self._figures.store_bytes.set(_size(self._store.name))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_ended or self._asked > self._done, INTERVAL_S)
                if self._is_ended:
                    return
                asked = self._asked
            try:
                self._book.refresh()
            except EttError as err:  # the store is away: the counters stay where they are until it is back
                log.warning("the counters wait for the store: %s", err)
            with self._changed:
                self._done = asked
                self._changed.notify_all()


def _size(name: str) -> int:
    """The bytes of a SQLite store with its write-ahead log; 0 of a store that is no file."""
    paths = [name, f"{name}-wal"] if "://" not in name else []
    return sum(os.stat(path).st_size for path in paths if os.path.exists(path))
