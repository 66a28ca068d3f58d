"""Waits before another attempt: random, so that ranks do not come back at once, from a generator of their own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenacity import RetryCallState

# Python's own generator is the training program's: a save holds its state, and a retry must not move it.
_OWN = random.Random()


def random_wait(first_s: float, longest_s: float) -> Callable[[RetryCallState], float]:
    """Return waits in seconds, uniform below a bound that doubles from `first_s` to `longest_s`."""
    return lambda state: _OWN.uniform(0, min(longest_s, first_s * 2.0 ** min(state.attempt_number - 1, 60)))
