"""A rank's records go into a ring in memory (`ett/ring.py`): no call to the kernel, so no disk can hold training up.

The supervisor drains the ring into the event log (`ett/ring_drain.py`). Only an emit of a kind that must be on the disk
before it returns wakes the drain and waits for it, for 30 ms at most.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ett.clock import Clock, LateClock, SystemClock
from ett.event_line import MAX_FORMATS, LineEncoder
from ett.event_log import ROTATE_BYTES, SYNC_KINDS, Writer
from ett.own_descriptor import OwnDescriptor
from ett.process_identity import ProcessIdentity
from ett.ring import (
    CAPACITY_BYTES,
    CLOSED,
    DROPPED,
    DROPPED_TOLD,
    HEAD,
    NEXT_SEQ,
    SKIPPED,
    SYNCED,
    TAIL,
    Ring,
    RingHeader,
)
from ett.ring_folder import RING_SUFFIX, WAKE

WAIT_S = 0.03  # for the lock, room and the disk together: an emit may take 50 ms, and a busy host adds some
ASK_INTERVAL_S = 0.0005
_UNSEEN = object()
_HALF_FULL = 2  # what `_ring.Appender.write` returns


class RingWriter:
    """Appends records to rings, one a file of the log; a new file follows at 64 MiB. Thread safe.

    Args:
        rings: the job's folder of rings, which its supervisor made.
        job_dir, attempt: the job's folder, and which of its attempts this is.
        source: "r<rank>".
        common: fields of every record (job, rank, att, …); they win over a record's own fields.
    Raises: OSError: there is no room for a ring, or no such folder; the caller writes to the file instead.
    """

    def __init__(
        self,
        rings: Path,
        job_dir: Path,
        attempt: int,
        source: str,
        common: Mapping[str, Any],
        *,
        clock: Clock | None = None,
        wait_s: float = WAIT_S,
        capacity: int = CAPACITY_BYTES,
        rotate_bytes: int = ROTATE_BYTES,
    ) -> None:
        self._clock = clock or SystemClock()
        self._rings, self._job_dir, self._attempt = rings, job_dir, attempt
        self._wait_s, self._capacity, self._rotate_bytes = wait_s, capacity, rotate_bytes
        self._writer = Writer.here(source, common)
        self._encoder = LineEncoder(self._writer.common)
        self._start_ticks = ProcessIdentity.of(os.getpid()).start_ticks
        self._lock, self._count_lock = threading.RLock(), threading.RLock()
        self._is_writing = self._is_closed = False
        self._interrupting: list[tuple[str, dict[str, Any]]] = []
        self._file_number = 0
        self._rotate_at = rotate_bytes
        self.dropped = 0  # records that found no room, or whose turn did not come in time
        self._num_skipped = 0  # of these, how many seq has jumped over
        self._woken_at = (
            self._stuck_at
        ) = -1  # where the drain was when it was woken, and when it was waited for in vain
        # For reading, too: a pipe without a reader would raise SIGPIPE here once the supervisor is gone.
        self._waker = OwnDescriptor(os.open(rings / WAKE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        # Of each kind of record that was seen: its native form, or None where Python has to write it.
        self._forms: dict[tuple[str, ...], Any] = {}
        # Threads for which the clock shows another time than the system's; None: it is some other clock.
        self._late_threads = self._clock.late_threads if isinstance(self._clock, SystemClock | LateClock) else None
        try:
            self._ring = self._new_ring()
        except OSError:
            self._waker.close()
            raise
        self._appender = self._new_appender()

    def emit(self, ev: str, **fields: Any) -> bool:
        """Write one record and return whether there was room for it; never raises."""
        if self._appender is not None:
            form = self._forms.get((ev, *fields), _UNSEEN)
            if form is _UNSEEN:
                self._learn(ev, fields)
            elif form is not None and not self._late_threads and (written := self._appender.write(form, fields)):
                if written == _HALF_FULL:
                    self._wake_for_room(self._ring)
                return True
        is_sync = ev in SYNC_KINDS
        until_s = time.monotonic() + self._wait_s if is_sync else 0.0
        if not self._lock.acquire(timeout=self._wait_s):
            return self._drop()
        try:
            if self._is_writing:  # a signal handler interrupted an emit of this thread, which writes this one as well
                self._interrupting.append((ev, fields))
                return True
            place = self._write_all(ev, fields)
        except Exception:  # noqa: BLE001 - the event sink: an odd value must not end a training job
            return self._drop()
        finally:
            self._lock.release()
        if is_sync and place is not None:
            self._wait_for_disk(*place, until_s)
        return place is not None

    def close(self) -> None:
        """Say that nothing more comes, so that the drain takes the ring away once it is empty."""
        with self._lock:
            if not self._is_closed:
                self._is_closed, self._appender = True, None
                self._let_go(self._ring)
                self._wake()
                self._waker.close()

    def abandon(self) -> None:
        """Let go of the ring in a process that was forked: the lock on it must end with the writer's own process."""
        if not self._is_closed:
            self._is_closed, self._appender = True, None
            self._ring.descriptor.close()
            self._waker.close()

    def _learn(self, ev: str, fields: Mapping[str, Any]) -> None:
        if len(self._forms) < MAX_FORMATS:
            is_plain = ev not in SYNC_KINDS and ev != "heartbeat"  # these touch more of the ring than its data
            self._forms[(ev, *fields)] = self._encoder.number_format(ev, fields) if is_plain else None

    def _write_all(self, ev: str, fields: dict[str, Any]) -> tuple[Ring, int] | None:
        appender = self._appender
        self._is_writing = True
        if appender is not None:
            appender.is_busy = True
        try:
            place = self._write(ev, fields)
            while self._interrupting:
                self._write(*self._interrupting.pop(0))
        finally:
            self._is_writing = False
            if appender is not None:
                appender.is_busy = False
        return place

    def _write(self, ev: str, fields: dict[str, Any]) -> tuple[Ring, int] | None:
        """Return the ring and the position in it at which the record ends; None where it was dropped."""
        if self._is_closed:
            self._drop()
            return None
        # Every dropped record is a gap in seq: a reader learns of it from the next line, whatever that is.
        num_dropped = self.dropped
        ring = self._ring
        seq = ring.words[NEXT_SEQ] + num_dropped - self._num_skipped
        wall_ns, mono_ns = self._clock.wall_ns(), self._clock.mono_ns()
        told = fields.get("dropped") if ev == "heartbeat" else None
        line = self._encoder.encode(ev, fields, seq=seq, wall_ns=wall_ns, mono_ns=mono_ns)
        is_sync = ev in SYNC_KINDS
        if not ring.append(line, is_sync=is_sync) and not (self._has_room(line) and ring.append(line, is_sync=is_sync)):
            self._drop()
            return None
        ring.words[NEXT_SEQ] = seq + 1
        ring.words[SKIPPED] = self._num_skipped = num_dropped
        if told is not None:
            ring.words[DROPPED_TOLD] = told
        end = ring.words[HEAD]
        self._wake_for_room(ring)
        if end >= self._rotate_at:
            self._rotate()
        return ring, end

    def _wake_for_room(self, ring: Ring) -> None:
        """Wake the drain where the ring is more than half full; once for each place that it stands at."""
        tail = ring.words[TAIL]
        if ring.words[HEAD] - tail > ring.capacity // 2 and tail != self._woken_at:
            self._woken_at = tail
            self._wake()

    def _has_room(self, line: bytes) -> bool:
        """Wait for the drain to make room for a line; but once in vain, not again before it has moved."""
        words, full_at = self._ring.words, self._ring.words[TAIL]
        if full_at == self._stuck_at:
            return False
        self._wake()
        until_s = time.monotonic() + self._wait_s
        while words[HEAD] + len(line) - words[TAIL] > self._ring.capacity:
            if time.monotonic() >= until_s:
                self._stuck_at = words[TAIL]
                return False
            time.sleep(ASK_INTERVAL_S)
        return True

    def _drop(self) -> Literal[False]:
        with self._count_lock:
            self.dropped += 1
            if not self._is_closed:
                self._ring.words[DROPPED] = self.dropped
        return False

    def _rotate(self) -> None:
        full = self._ring
        try:
            self._ring = self._new_ring(self._file_number + 1)
        except OSError:
            self._rotate_at += self._capacity  # a longer file is better than none
            if self._appender is not None:
                self._appender.rotate_at = self._rotate_at
            return
        self._woken_at = self._stuck_at = -1
        for word in (DROPPED, DROPPED_TOLD, SKIPPED):
            self._ring.words[word] = full.words[word]
        full.words[DROPPED_TOLD] = full.words[DROPPED]  # the next file tells it
        self._let_go(full)
        self._file_number, self._rotate_at = self._file_number + 1, self._rotate_bytes
        self._appender = self._new_appender()

    def _new_ring(self, number: int = 0) -> Ring:
        stem = self._writer.file_stem(number)
        header = RingHeader(
            job_dir=str(self._job_dir),
            file=f"{self._attempt}/{stem}",
            common=self._writer.common,
            start_ticks=self._start_ticks,
        )
        # The time tells apart two lives of one process id, and two programs that one process ran one after another.
        name = f"{self._attempt}-{stem}.{time.monotonic_ns()}{RING_SUFFIX}"
        return Ring.create(self._rings / name, header, self._capacity)

    def _new_appender(self) -> Any:
        """Return what writes records of whole numbers natively, with the system's clocks; None where nothing does."""
        appender = None if self._late_threads is None else self._ring.appender()
        if appender is not None:
            appender.rotate_at = self._rotate_at
        return appender

    def _let_go(self, ring: Ring) -> None:
        ring.words[CLOSED] = 1
        ring.close()

    def _wait_for_disk(self, ring: Ring, end: int, until_s: float) -> None:
        self._wake()
        # The ring is closed by another thread's rotation or close: its words are released, and the drain goes on.
        with contextlib.suppress(ValueError):
            while ring.words[SYNCED] < end and time.monotonic() < until_s:
                time.sleep(ASK_INTERVAL_S)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # a full pipe wakes it just as well
            if self._waker.is_ours:
                os.write(self._waker.fd, b"w")
