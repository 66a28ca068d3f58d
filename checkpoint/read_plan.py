"""What a restore reads of a file, found from its index and its ids alone: pure, so that every case can be tried.

Of a table's files the one with the highest seq has a row (`newest_rows.py`); a block without such a row is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.buffer_pool import PAGE_BYTES
from ett.checkpoint.store import Store
from ett.store_uri import is_local

Blocks = NDArray[np.void]
Mask = NDArray[np.bool_]
# Between two groups of a piece: fewer bytes are read with them, since a request more takes longer. At 100 MB/s and
# 10 ms a request, the two cost the same.
LARGEST_GAP_BYTES = 1 << 20
DISK_READERS = 3  # keep a local disk busy; more only take the processor from those that work on what was read
REMOTE_READS = 32  # where nobody says another number


def reads_at_once(store: Store, remote_reads: int = REMOTE_READS) -> int:
    """Return how many requests are to be under way: few at a disk, many where each connection has a limit."""
    return min(DISK_READERS, remote_reads) if is_local(store.uri) else remote_reads


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes of a file that are read at once. groups: (begin, end) in the file of each group of columns in it."""

    groups: tuple[tuple[int, int], ...]

    @property
    def offset(self) -> int:
        return self.groups[0][0]

    @property
    def length(self) -> int:
        return self.groups[-1][1] - self.offset

    @property
    def room_bytes(self) -> int:
        """Return `length` up to whole pages, so that a local disk is read past the page cache."""
        return self.length + -self.length % PAGE_BYTES


def requests_for(blocks: Sequence[Blocks], largest_gap: int = LARGEST_GAP_BYTES) -> list[Request]:
    """Return how the same blocks of each group are read: those near each other in the file in one request.

    Args: blocks: index records of each group, which follow each other; groups in the order of the file.
    """
    groups = [(int(of[0]["offset"]), int(of[-1]["offset"]) + int(of[-1]["length"])) for of in blocks]
    together = [[groups[0]]]
    for group in groups[1:]:
        if group[0] - together[-1][-1][1] <= largest_gap:
            together[-1].append(group)
        else:
            together.append([group])
    return [Request(tuple(near)) for near in together]


def wanted_runs(mask: Mask, ends: NDArray[np.int64], longest: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of blocks that follow each other and have a wanted row each, of no more than `longest`.

    Args: mask: bool [N], of rows. ends: int64 [blocks + 1], where blocks begin in it, and its end.
    """
    flags = np.logical_or.reduceat(mask, ends[:-1]).tolist()
    begin = 0
    for at, flag in enumerate([*flags, False]):
        if begin < at and (not flag or at - begin == longest):
            yield begin, at
            begin = at
        if not flag:
            begin = at + 1
