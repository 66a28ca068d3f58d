"""The thread that keeps the counters near the store: neither a scrape nor the end waits for a job that takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")

from ett.collector import booking as booking_module
from ett.collector.booking import Booking
from ett.collector.counter_book import CounterBook
from ett.collector.own_figures import OwnFigures
from ett.collector.site_labels import LabelGate, SiteLabels
from ett.errors import Conflict
from ett.site import Site
from ett.store import Store, open_store


class SlowBook(CounterBook):
    """A book whose refresh lasts until it is let go, or fails."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, LabelGate(SiteLabels()), Site())
        self.go = threading.Event()
        self.trouble: Conflict | None = None
        self.refreshes = 0

    def refresh(self) -> None:
        self.go.wait(300)
        self.refreshes += 1
        if self.trouble is not None:
            raise self.trouble


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "ett.db") as store:
        yield store


def test_a_scrape_shows_what_is_new_when_that_is_quick(store: Store) -> None:
    book = SlowBook(store)
    book.go.set()
    booking = Booking(store, book, OwnFigures())
    booking.begin()
    booking.before_scrape()
    assert book.refreshes >= 1
    booking.end()


def test_neither_a_scrape_nor_the_end_waits_for_a_slow_job(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(booking_module, "SCRAPE_WAIT_S", 0.05)
    monkeypatch.setattr(booking_module, "END_WAIT_S", 0.05)
    book = SlowBook(store)
    booking = Booking(store, book, OwnFigures())
    booking.begin()
    begin_s = time.monotonic()
    booking.before_scrape()
    booking.end()
    assert time.monotonic() - begin_s < 60  # the job is slow for 300 s
    book.go.set()


def test_a_store_that_is_away_ends_no_booking(store: Store) -> None:
    book = SlowBook(store)
    book.go.set()
    book.trouble = Conflict("locked")
    booking = Booking(store, book, OwnFigures())
    booking.begin()
    booking.before_scrape()
    booking.before_scrape()
    assert book.refreshes >= 2
    booking.end()


def test_the_stores_size_is_measured(store: Store) -> None:
    figures = OwnFigures()
    book = SlowBook(store)
    book.go.set()
    booking = Booking(store, book, figures)
    booking.begin()
    booking.before_scrape()
    booking.end()
    assert figures.registry.get_sample_value("ett_collector_store_bytes") > 0  # type: ignore[operator]
