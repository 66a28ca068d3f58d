"""Time comes from a Clock, so that tests own it. `wall` may jump; `mono` never does but means nothing across boots."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may step in either direction."""

    def mono_ns(self) -> int:
        """Nanoseconds since an arbitrary point of this boot; never falls, shared by all processes of the host."""


class SystemClock:
    late_threads: Collection[int] = ()

    def wall_ns(self) -> int:
        return time.time_ns()

    def mono_ns(self) -> int:
        return time.monotonic_ns()


class LateClock:
    """The system's clock, except that a thread may say when something happened that it noticed only later."""

    def __init__(self) -> None:
        self._late = _Lateness()
        self.late_threads: set[int] = set()  # while this is empty the clock is the system's

    def wall_ns(self) -> int:
        return time.time_ns() - self._late.ns

    def mono_ns(self) -> int:
        late = self._late
        return time.monotonic_ns() if late.instant_ns is None else late.instant_ns

    @contextmanager
    def at(self, mono_ns: int) -> Iterator[None]:
        """For this thread time stands at `mono_ns` inside the `with`."""
        late = self._late
        late.instant_ns, late.ns = mono_ns, time.monotonic_ns() - mono_ns
        self.late_threads.add(threading.get_ident())
        try:
            yield
        finally:
            self.late_threads.discard(threading.get_ident())
            late.instant_ns, late.ns = None, 0


class _Lateness(threading.local):
    instant_ns: int | None = None
    ns = 0


def boot_id() -> str:
    """Return the id of this host's boot, 32 hex characters; a new random one where the kernel gives none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    except OSError:
        return uuid.uuid4().hex
