"""Batches in order, each with its rows on their way: read, announced and fetched while earlier ones train.

A thread's collectives come in the order of the batches, and how many batches are announced follows from how many were
taken: `depth` more. So ranks that take the same batches announce the same ones, and no rank waits for another's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from ett.raised import raised_by
from ett.trainer.comm.collectives import Collectives
from ett.trainer.data.criteo import Batch
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.pipeline.stage_clock import PipelineClosedError, StageClock
from ett.trainer.sparse.exchange import STOP, Announced

SampleExchange = Callable[[Batch, Collectives], Batch]


def keep_samples(batch: Batch, collectives: Collectives) -> Batch:
    return batch


class BatchReader(Protocol):
    def __iter__(self) -> Iterator[Batch]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    number: int  # from 1
    batch: Batch
    control: int  # this rank's control word
    announced: Announced | None  # None where nothing is done ahead


class PrefetchedBatches:
    """A reader's batches, to iterate over within a `with`, once.

    Args:
        collectives: of the thread that runs ahead, used by nobody else meanwhile.
        stop_requested: asked when a batch is announced; all ranks learn it with that batch.
        exchange_samples: gives this rank's slice of a global batch as other samples of it; every rank calls.

    Attributes:
        before_read: told a batch's number by the thread that is about to read it.
    """

    def __init__(
        self,
        reader: BatchReader,
        tables: JobTables,
        collectives: Collectives,
        clock: StageClock,
        stop_requested: Callable[[], bool],
        *,
        exchange_samples: SampleExchange = keep_samples,
    ) -> None:
        self.clock = clock
        self._reader, self._tables, self._collectives = reader, tables, collectives
        self._stop_requested, self._exchange_samples = stop_requested, exchange_samples
        self.before_read: Callable[[int], None] = lambda number: None
        self._ready: deque[tuple[ReadyBatch, dict[str, Any]] | BaseException | None] = deque()
        self._num_ready = threading.Semaphore(0)
        self._state: dict[str, Any] | None = None  # the reader's, when the batch that was taken last was read
        self._thread = threading.Thread(target=self._run_ahead, name="ett-ahead", daemon=True)

    def __enter__(self) -> Self:
        self._start()
        return self

    def await_first(self) -> None:
        """Begin, and return once the first batch is ready, or what is wrong with it; then the `with` must follow."""
        if self.clock.depth:
            self._start()
            self._num_ready.acquire()
            self._num_ready.release()

    def _start(self) -> None:
        if self.clock.depth and not self._thread.ident:
            self._stop_requested()  # the first question, which only the main thread can make a signal's handler of
            self._state = self._reader.state_dict()
            self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        # Ranks that end in order have announced the same batches; the last of them may still be under way.
        self.clock.finish(abort=kind is not None)
        if self._thread.is_alive():
            self._thread.join()

    def __iter__(self) -> Iterator[ReadyBatch]:
        if not self.clock.depth:
            yield from self._read()
            return
        while True:
            self._num_ready.acquire()
            found = self._ready.popleft()
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            ready, state = found
            with self.clock.run("take", ready.number):
                self._state = state
            yield ready

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the batch that was taken last, however many were read."""
        return self._reader.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._reader.load_state_dict(state)

    def _read(self) -> Iterator[ReadyBatch]:
        batches, number = iter(self._reader), 1
        while True:
            with self.clock.run("read", number):
                self.before_read(number)
                batch = next(batches, None)
            if batch is None:
                return
            with self.clock.run("exchange_samples", number):
                batch = self._exchange_samples(batch, self._collectives)
            yield ReadyBatch(number, batch, STOP if self._stop_requested() else 0, None)
            number += 1

    def _run_ahead(self) -> None:
        end = raised_by(self._announce_all)
        if not isinstance(end, PipelineClosedError):
            self._put(end)

    def _announce_all(self) -> None:
        for read in self._read():
            with self.clock.run("announce", read.number):
                announced = self._tables.announce(read.batch.features, read.control, self._collectives)
            ready = ReadyBatch(read.number, read.batch, read.control, announced)
            self._put((ready, self._reader.state_dict()))

    def _put(self, what: tuple[ReadyBatch, dict[str, Any]] | BaseException | None) -> None:
        self._ready.append(what)
        self._num_ready.release()
