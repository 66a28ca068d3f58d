"""The only waiting of the process tests: for something to become true, with a limit that fails the test."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_true: Callable[[], object], deadline_s: float, what: str = "") -> float:
    """Return the seconds until `is_true()` was; fail the test after `deadline_s`."""
    begin_s = time.monotonic()
    while not is_true():
        waited_s = time.monotonic() - begin_s
        assert waited_s < deadline_s, f"not within {deadline_s} s: {what or is_true}"
        time.sleep(0.02)
    return time.monotonic() - begin_s
