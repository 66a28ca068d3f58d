"""The order between what is done for a batch ahead of its training, and the training of those before it.

On a CUDA device the former has a stream of its own. A batch's work there begins after all that the training stream had
been given, so it sees the updates of every batch that is not in flight, and frees no memory that is still read; the
training stream waits for it where the batch is taken.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Flight:
    """A batch from its announcement to its update; one that is dropped before ends there."""

    def __init__(self, number: int, oldest: int, ready: torch.cuda.Event | None) -> None:
        self.number, self.oldest = number, oldest  # oldest: the first one in flight at its announcement
        self.is_done = False
        self.epoch = 0  # of the caches, when it was announced
        self._ready = ready

    def take(self) -> None:
        """Have the current stream wait for what was done ahead."""
        if self._ready is not None:
            torch.cuda.current_stream().wait_event(self._ready)


class BatchesAhead:
    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._number = 0
        self._flights: list[weakref.ref[Flight]] = []

    @contextmanager
    def announced(self) -> Iterator[Flight]:
        """Within it, work for the next batch goes to the stream of its own."""
        self._number += 1
        others = [flight for ref in self._flights if (flight := ref()) is not None and not flight.is_done]
        oldest = min((flight.number for flight in others), default=self._number)
        ready = None if self._stream is None else torch.cuda.Event()  # type: ignore[no-untyped-call]
        flight = Flight(self._number, oldest, ready)
        self._flights = [weakref.ref(each) for each in (*others, flight)]
        if self._stream is None or ready is None:
            yield flight
            return
        before = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(before)
        torch.cuda.set_stream(self._stream)
        try:
            yield flight
            ready.record(self._stream)
        finally:
            torch.cuda.set_stream(before)

    @property
    def stream(self) -> torch.cuda.Stream | None:
        return self._stream

    def join(self) -> None:
        """Have the current stream wait for everything that was done ahead."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
