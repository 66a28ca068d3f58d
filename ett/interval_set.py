"""Unions of half-open integer intervals: sorted, disjoint lists of (begin, end)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same points as `intervals`, sorted and disjoint, without empty ones."""
    found: list[Interval] = []
    for begin, end in sorted(i for i in intervals if i[0] < i[1]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def without(within: Interval, holes: Iterable[Interval]) -> list[Interval]:
    """Return `within` less the points of `holes`."""
    found: list[Interval] = []
    now = within[0]
    for begin, end in union(holes):
        if begin >= within[1]:
            break
        if begin > now:
            found.append((now, begin))
        now = max(now, end)
    if now < within[1]:
        found.append((now, within[1]))
    return found


def overlaps(kept: Sequence[Interval], begin: int, end: int) -> list[Interval]:
    """Return the parts of [begin, end) inside `kept`, which is sorted and disjoint."""
    index = max(0, bisect_right(kept, (begin, begin)) - 1)
    found: list[Interval] = []
    while index < len(kept) and kept[index][0] < end:
        part = (max(begin, kept[index][0]), min(end, kept[index][1]))
        if part[0] < part[1]:
            found.append(part)
        index += 1
    return found


def measure(kept: Sequence[Interval], begin: int, end: int) -> int:
    """Return how much of [begin, end) lies inside `kept`, which is sorted and disjoint."""
    if len(kept) == 1:  # no exclusion: by far the most common, and asked for every piece
        return max(0, min(end, kept[0][1]) - max(begin, kept[0][0]))
    return sum(e - b for b, e in overlaps(kept, begin, end))


def length(intervals: Iterable[Interval]) -> int:
    return sum(end - begin for begin, end in intervals)
