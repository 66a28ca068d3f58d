"""Which rows of a block on a device change, and how a checkpoint gets them as they were at a step boundary.

On the device, in the order of the stream that trains, an update first marks its rows, and puts those that a checkpoint
wants into a ring (`ett.trainer.kernels.kept_rows`). A thread takes them to staging memory on the host. Those that save
read the other rows by streams of their own, and find there what they did not get. Training waits for room in the ring,
and for nothing else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ett.checkpoint.capture.boundary_rows import Bits, DeviceStaging
from ett.checkpoint.capture.staged_rows import StagedRows
from ett.checkpoint.stall_budget import Patience, over_budget
from ett.checkpoint.table_segments import Bytes
from ett.errors import ConfigError, CorruptState, EttError
from ett.raised import raised_by
from ett.trainer.embedding.device_lanes import Lane, Lanes
from ett.trainer.kernels import kept_rows
from ett.trainer.kernels.kept_rows import KEPT, Ring, RowBits, Updated
from ett.trainer.kernels.segments import Segments

_BOUNCED_BYTES = 16 << 20  # that cross the link at once
_TOLD = 1024  # launches whose numbers of rows are not asked for yet, at most
_LEAST_ROWS = 64  # of a ring
_WAIT_S = 0.05
Rows = NDArray[np.int64]  # of the block


@dataclass(slots=True)
class _Launch:
    number: int
    most_rows: int
    event: torch.cuda.Event | None


@dataclass(slots=True)
class Snapshot:
    """Which rows of the block had changed at a boundary."""

    words: Tensor
    passed: torch.cuda.Event | None
    tables: set[range] = field(default_factory=set)  # that have asked for it
    on_host: Bits | None = None
    asking: threading.Lock = field(default_factory=threading.Lock)


def _done(launches: list[_Launch]) -> list[_Launch]:
    """Wait for the first; return it and those after it that are done."""
    num_done = 1
    if launches[0].event is not None:
        launches[0].event.synchronize()
    for launch in launches[1:]:
        if launch.event is not None and not launch.event.query():  # type: ignore[no-untyped-call]
            break
        num_done += 1
    return launches[:num_done]


class BlockCapture:
    """Of one block, whose tables' checkpoints begin together and end one by one."""

    def __init__(self, num_rows: int, columns: Sequence[Tensor], row_of_slot: Tensor | None) -> None:
        """Args: columns: what an update changes, [slots, W] of the weights and of each state, on the device."""
        self.device = columns[0].device
        self._num_rows, self._columns = num_rows, tuple(map(kept_rows.as_words, columns))
        self._row_bytes = 8 + 4 * sum(column.shape[1] for column in self._columns)  # of the ring
        self._row_of_slot = row_of_slot
        self.bits = RowBits(kept_rows.words_of(num_rows, self.device), kept_rows.words_of(num_rows, self.device))
        self.lanes = Lanes(self.device)
        self._tracked: frozenset[range] = frozenset()  # tables whose changes somebody wants to know: their rows
        self.stream = torch.cuda.current_stream(self.device) if self.is_cuda else None  # that trains
        self.waited_s = 0.0  # by training, for room, since the last boundary
        self.failure: EttError | None = None
        self._snapshot: Snapshot | None = None  # None: rows have changed since
        self._open: frozenset[range] = frozenset()  # tables that are kept: their rows
        self._ring: Ring | None = None
        self._patience = Patience(0.0)
        self._told = torch.empty(0, dtype=torch.int64)  # the rows that were kept by the end of a launch
        self._staged: StagedRows | None = None
        self._staging = threading.Lock()  # of _staged
        self._num_waiting = 0  # that save
        self._changed = threading.Condition()  # what follows
        self._launches: deque[_Launch] = deque()
        self._launched = self._drained_launch = self._drained = 0
        self._thread: threading.Thread | None = None

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def num_bytes(self) -> int:
        """Return how much of the device's memory this takes."""
        tensors = [self.bits.changed, self.bits.wanted]
        if self._ring is not None:
            tensors += [self._ring.rows, *self._ring.columns]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    # By the thread that trains.

    def track(self, rows: range, *, is_tracked: bool) -> None:
        """Mark rows of a table that change from now on, or do not."""
        self._tracked = self._tracked | {rows} if is_tracked else self._tracked - {rows}
        kept_rows.bits_of(self.bits.changed, rows.start, len(rows)).zero_()

    def at_boundary(self, rows: range, staging: DeviceStaging | None, patience: Patience) -> Snapshot:
        """Return what has changed, and keep the rows of a table from now on if there is staging memory.

        Raises: ConfigError: the device has no room for the ring.
        """
        self._follow_stream()
        if self._snapshot is None or rows in self._snapshot.tables:
            self._end_snapshot()
            self._snapshot = self._take_snapshot(is_kept=staging is not None)
        if staging is not None:
            self._make_room(rows, staging, patience)
        self._snapshot.tables.add(rows)
        if staging is not None:
            with self._changed:
                self._open |= {rows}
            if self._thread is None:
                self._thread = threading.Thread(target=self._drain, name="ckpt-drain", daemon=True)
                self._thread.start()
        return self._snapshot

    def before_update(self, segments: Segments, wrong: Tensor | None) -> None:
        """Mark rows that the next kernel in the current stream changes, and keep those that are wanted.

        Args: wrong: words of which each must be 0, or it changes none.
        """
        if not self._tracked:
            return
        self._follow_stream()
        self._end_snapshot()
        length, ring = len(segments.slots_L), self._ring if self._open else None
        at_once = length if ring is None else max(1, ring.capacity // 2)
        for begin in range(0, length, max(1, at_once)):
            end = min(length, begin + at_once)
            updated = Updated(segments, self._columns, self._row_of_slot, begin, end, wrong)
            if ring is None or not self._reserve(updated.end - begin):
                kept_rows.note_update(updated, self.bits, None, launch=0)
            else:
                self._keep(updated, ring)

    def _take_snapshot(self, *, is_kept: bool) -> Snapshot:
        words, passed = self.bits.changed.clone(), None
        self.bits.changed.zero_()
        if is_kept:
            self._begin_ring()
            self.bits.wanted.fill_(-1)
        if self.is_cuda:
            passed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            passed.record()
        return Snapshot(words, passed)

    def _end_snapshot(self) -> None:
        """Have the rows of tables that did not come to the boundary counted as changed still: no save has them."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            return
        for rows in self._tracked - snapshot.tables:
            self.put_back(snapshot, rows)

    def _begin_ring(self) -> None:
        assert not self._open, "one checkpoint at a time"
        if self._thread is not None:
            self._thread.join()  # it has ended, or does at once: nobody wants anything
            self._thread = None
        self.waited_s, self.failure, self._staged = 0.0, None, None
        self._launches.clear()
        self._launched = self._drained_launch = self._drained = 0
        if self._ring is not None:
            self._ring.words.zero_()

    def _make_room(self, rows: range, staging: DeviceStaging, patience: Patience) -> None:
        """Have staging memory, and a ring as large as all tables together want it; nothing is in it yet.

        Args: staging: of the table with these rows; the others' is in proportion to theirs.
        Raises: ConfigError: the device has no room for the ring.
        """
        if self._staged is not None:
            return
        self._patience = patience
        self._have_ring(staging.device_bytes * self._num_rows // len(rows))
        self._staged = StagedRows([4 * column.shape[1] for column in self._columns], staging.pool)

    def _have_ring(self, num_bytes: int) -> None:
        capacity = max(_LEAST_ROWS, num_bytes // self._row_bytes)
        if self._ring is not None and self._ring.capacity >= capacity:
            return
        self._ring = None  # before there is another
        try:
            kept = [torch.empty(capacity, c.shape[1], dtype=torch.int32, device=self.device) for c in self._columns]
            of_block = torch.empty(capacity, dtype=torch.int64, device=self.device)
            self._ring = Ring(of_block, tuple(kept), torch.zeros(2, dtype=torch.int64, device=self.device))
        except torch.OutOfMemoryError as err:
            num_bytes = capacity * self._row_bytes
            raise ConfigError(
                f"{self.device} has no room for {num_bytes} bytes in which rows are kept for a save",
                expected="that much memory beside what trains",
                do="lower checkpoint.device_staging_bytes, or make tables or batches smaller",
            ) from err
        self._told = torch.zeros(_TOLD, dtype=torch.int64, pin_memory=self.is_cuda)

    def _keep(self, updated: Updated, ring: Ring) -> None:
        number = self._launched = self._launched + 1  # before it begins: who finds a row kept by it waits for it
        event = torch.cuda.Event(blocking=True) if self.is_cuda else None  # type: ignore[no-untyped-call]

        def launch() -> None:
            kept_rows.note_update(updated, self.bits, ring, launch=number)
            self._told[number % _TOLD].copy_(ring.words[KEPT], non_blocking=True)
            if event is not None:
                event.record(self.stream)

        failure = raised_by(launch)
        if failure is not None:  # whoever waits for what this launch keeps would never hear of it
            self.give_up(CorruptState(f"rows on {self.device} could not be kept before an update: {failure!r}"))
            raise failure
        with self._changed:
            self._launches.append(_Launch(number, updated.end - updated.begin, event))
            self._changed.notify_all()

    def _reserve(self, num_rows: int) -> bool:
        """Wait until the ring has room for rows; return whether anybody wants them still.

        While staging memory is beyond its limit, which happens where a writer waits for rows of the ring, the ring
        gets no more.
        """
        ring, staged = self._ring, self._staged
        assert ring is not None and staged is not None
        if self._has_room(num_rows) and not staged.pool.is_overdrawn:
            return bool(self._open)
        began_s = now_s = time.monotonic()
        while self._open and (staged.pool.is_overdrawn or not self._has_room(num_rows)):
            if now_s - began_s >= self._patience.left_s:
                self.give_up(
                    over_budget(f"training waited {now_s - began_s:.1f} s for memory to keep rows of {self.device}")
                )
                break
            if staged.pool.is_overdrawn:
                staged.pool.wait(_WAIT_S)
            else:
                with self._changed:
                    self._changed.wait_for(lambda: self._has_room(num_rows) or not self._open, _WAIT_S)
            now_s = time.monotonic()
        self.waited_s += now_s - began_s
        self._patience.left_s -= now_s - began_s
        return bool(self._open)

    def _has_room(self, num_rows: int) -> bool:
        ring = self._ring
        assert ring is not None
        with self._changed:
            expected = sum(launch.most_rows for launch in self._launches)
            return expected + num_rows <= ring.capacity and len(self._launches) < _TOLD - 1

    def _follow_stream(self) -> None:
        if self.stream is not None:
            now = torch.cuda.current_stream(self.device)
            if now != self.stream:
                now.wait_stream(self.stream)
                self.stream = now

    # By those that save, and by whoever gives a save up.

    def give_up(self, err: EttError) -> None:
        """Keep nothing any more, of any table; what was kept stays until they are closed."""
        with self._changed:
            self.failure, self._open = self.failure or err, frozenset()
            self._changed.notify_all()

    def put_back(self, snapshot: Snapshot, rows: range) -> None:
        """Have rows of a table that had changed counted as changed again."""
        lane = self.lane(snapshot)
        with lane.here():
            part = kept_rows.bits_of(self.bits.changed, rows.start, len(rows))
            kept_rows.widen(part, kept_rows.bits_of(snapshot.words, rows.start, len(rows)))
        lane.wait()

    def changed(self, snapshot: Snapshot, rows: range) -> Bits:
        """Return a table's part of a snapshot."""
        with snapshot.asking:
            if snapshot.on_host is None:
                lane = self.lane(snapshot)
                snapshot.on_host = lane.to_host([snapshot.words])[0].reshape(-1).copy()
        return snapshot.on_host[rows.start // 8 : -(-rows.stop // 32) * 4]

    def lane(self, snapshot: Snapshot) -> Lane:
        """Return this thread's lane, which sees what was done up to the boundary."""
        lane = self.lanes.mine()
        if lane.stream is not None and snapshot.passed is not None:
            lane.stream.wait_event(snapshot.passed)
        return lane

    def claim(self, lane: Lane, rows_N: Tensor) -> Tensor:
        """Have rows that were read and are still wanted. Args, returns: on the device, see `kept_rows.claim`."""
        assert self._ring is not None
        with lane.here():
            claimed = torch.empty(len(rows_N) + 1, dtype=torch.int64, device=self.device)
            kept_rows.claim(rows_N, self.bits.wanted, self._ring.words, claimed)
        return claimed

    def take_kept(self, rows: Rows, at: Rows, columns: tuple[Bytes, ...], began: int) -> None:
        """Copy rows that were kept to their places in columns.

        Args: began: the launch that had begun last when they were found to be kept: it kept them, or one before, or
            rarely the next.
        Raises: CorruptState: they were lost. Unreachable: the save was given up.
        """
        staged = self._staged
        assert staged is not None
        places = self._kept_by(staged, rows, began)
        if (places < 0).any():
            places = self._kept_by(staged, rows, began + 1)
        if (places < 0).any():
            raise CorruptState(
                f"{int((places < 0).sum())} rows of a table on {self.device} were neither read nor kept",
                do="report this: it is a defect; the checkpoint before this one is whole",
            )
        staged.take(at, places, columns)

    def _kept_by(self, staged: StagedRows, rows: Rows, launch: int) -> Rows:
        """Return where rows stand in staging memory when a launch's rows are there."""
        with self._staging:
            self._num_waiting += 1
        with self._changed:
            self._changed.wait_for(lambda: self._drained_launch >= min(launch, self._launched) or not self._open)
        with self._staging:
            self._num_waiting -= 1
            if self.failure is not None:
                raise self.failure
            return staged.find(rows)

    def close(self, rows: range) -> None:
        """Keep the rows of a table no more."""
        with self._changed:
            self._open -= {rows}
            is_last = not self._open
            self._changed.notify_all()
        if is_last and self._staged is not None:
            with self._staging:
                self._staged.close()

    # By the thread that takes rows from the ring.

    def _drain(self) -> None:
        if (err := raised_by(self._take_all)) is not None:
            self.give_up(CorruptState(f"rows that were kept on {self.device} could not be brought to the host: {err}"))

    def _take_all(self) -> None:
        lane = Lane(self.device)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._launches or not self._open)
                if not self._open:
                    return
                waiting = list(self._launches)
            launches = _done(waiting)
            last = launches[-1]
            self._take(lane, int(self._told[last.number % _TOLD]))
            with self._changed:
                for _ in launches:
                    self._launches.popleft()
                self._drained_launch = last.number
                self._changed.notify_all()

    def _take(self, lane: Lane, kept: int) -> None:
        ring = self._ring
        assert ring is not None
        at_once = max(1, _BOUNCED_BYTES // self._row_bytes)
        while self._drained < kept:
            first = self._drained % ring.capacity
            part = slice(first, min(first + at_once, first + kept - self._drained, ring.capacity))
            rows, *columns = lane.to_host([tensor[part] for tensor in (ring.rows, *ring.columns)])
            self._put(rows.view(np.int64).reshape(-1), columns)
            self._drained += part.stop - part.start

    def _put(self, rows: Rows, columns: list[Bytes]) -> None:
        """Wait for room where staging memory is full, unless a writer waits for what comes."""
        done = 0
        while done < len(rows) and self._open:
            num_put = self._put_some(rows[done:], [column[done:] for column in columns])
            done += num_put
            if not num_put and self._staged is not None:
                self._staged.pool.wait(_WAIT_S)

    def _put_some(self, rows: Rows, columns: list[Bytes]) -> int:
        """Put the first rows, as many as there is room for; return how many."""

        def fill(staged: tuple[Bytes, ...]) -> None:
            for there, here in zip(staged, columns, strict=True):
                there[:] = here[: len(there)]

        staged = self._staged
        assert staged is not None
        with self._staging:
            room = min(len(rows), staged.room(is_urgent=self._num_waiting > 0)) if self._open else 0
            if room:
                staged.put(rows[:room], fill)
        return room
