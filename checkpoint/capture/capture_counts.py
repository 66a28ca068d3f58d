"""What a save's captures have to tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureCounts:
    """Rows by the way that their values went, and for how long training waited for staging memory."""

    prefetch: int = 0
    guard: int = 0  # of a table in device memory: every row that an update's kernel kept; nobody waits for that
    sweep: int = 0
    waited_s: float = 0.0
    staged_bytes: int = 0  # of staging memory, lent at once at most since training began


def sum_of(counts: Iterable[CaptureCounts]) -> CaptureCounts:
    sums = {f.name: 0 for f in fields(CaptureCounts)}
    for each in counts:
        sums = {name: value + getattr(each, name) for name, value in sums.items()}
    return CaptureCounts(**sums)
