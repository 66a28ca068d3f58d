"""Which process a fault is of, and when, where its plan says only how often: drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ett.recovery.fault import ANY, Fault


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultPlace:
    """The process that may fail."""

    rank: int
    world_size: int = 1
    attempt: int = 1
    gen: int = 0


@dataclass(frozen=True, slots=True)
class Draw:
    after: float  # seconds, or steps, since the process began
    rank: int  # or EACH


def draws(fault: Fault, place: FaultPlace) -> Iterator[Draw]:
    """Yield when a fault with a mean happens in this generation: exponential waits, one after the other.

    Every rank draws the same. A mean of time counts the time since a rank's own start, which differs by what ranks take
    for it.
    """
    assert fault.mean is not None
    mean = fault.mean.seconds if fault.mean.kind == "time" else float(fault.mean.steps)
    chance, after = _chance(fault, place), 0.0
    while True:
        after += chance.expovariate(1.0 / mean)
        yield Draw(after, chance.randrange(place.world_size) if fault.rank == ANY else fault.rank)


def drawn_rank(fault: Fault, place: FaultPlace) -> int:
    """Return the rank of a fault at a place; EACH for all."""
    return _chance(fault, place).randrange(place.world_size) if fault.rank == ANY else fault.rank


def _chance(fault: Fault, place: FaultPlace) -> random.Random:
    return random.Random(f"{fault} in {place.attempt}.{place.gen} of {place.world_size}")
