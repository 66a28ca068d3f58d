"""Time comes from a Clock, so that tests own it. `wall` may jump; `mono` never does but means nothing across boots."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may step in either direction."""

    def mono_ns(self) -> int:
        """Nanoseconds since an arbitrary point of this boot; never falls, shared by all processes of the host."""


class SystemClock:
    def wall_ns(self) -> int:
        return time.time_ns()

    def mono_ns(self) -> int:
        return time.monotonic_ns()


def boot_id() -> str:
    """Return the id of this host's boot, 32 hex characters; a new random one where the kernel gives none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    except OSError:
        return uuid.uuid4().hex
