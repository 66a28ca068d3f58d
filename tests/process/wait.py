"""The only waiting of the process tests: for something to become true, with a limit that fails the test."""

from __future__ import annotations

import time
from collections.abc import Callable

# Of waits whose length is no claim: what is waited for comes, or the program is broken. A busy machine of two cores
# that runs other tests beside it takes ten times as long as an idle one for a start of some ranks: 5 s there.
LONGEST_S = 300.0
POLL_S, LOOKS_SHARE = 0.02, 4.0  # a look, then a pause of four times as long


def wait_until(is_true: Callable[[], object], what: str = "", *, deadline_s: float = LONGEST_S) -> float:
    """Return the seconds until `is_true()` was; fail the test after `deadline_s`."""
    begin_s = looks_s = time.monotonic()
    while not is_true():
        now_s = time.monotonic()
        assert now_s - begin_s < deadline_s, f"not within {deadline_s} s: {what or is_true}"
        # A look may read a whole log: it leaves the processor to those that it waits for.
        time.sleep(max(POLL_S, LOOKS_SHARE * (now_s - looks_s)))
        looks_s = time.monotonic()
    return time.monotonic() - begin_s


def best_of_three(measure_s: Callable[[], float], limit_s: float) -> float:
    """Return the first time below the limit, or the shortest of three.

    For what a program promises by the clock: others who use the processor delay one run of it, hardly three; a program
    that waits for too long does so each time.
    """
    took_s: list[float] = []
    while len(took_s) < 3 and not (took_s and took_s[-1] < limit_s):
        took_s.append(measure_s())
    return min(took_s)
