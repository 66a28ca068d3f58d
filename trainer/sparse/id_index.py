"""id -> slot for dynamic 64-bit ids: open addressing in numpy, probed for all ids of a batch at once.

Slots are given out in order of insertion, 0, 1, 2, ...; nothing outside a shard may depend on them. A table entry is a
slot; its key is looked up in `_ids`, so a row costs 16 to 24 bytes here. Probing is triangular: with a table size that
is a power of two it visits every entry.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.digest import U64, mix
from ett.trainer.sparse.hashing import Ids

# Differs from the key of `row_owner`, whose low bits are equal for all ids of one rank.
_INDEX_KEY = U64(0xA0761D6478BD642F)
_SMALLEST = 64


class IdIndex:
    """Grows without bound; the load factor stays at or below one half."""

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> Ids:
        """All ids, by slot: int64 [len(self)], a view that the next insert may leave behind."""
        return self._ids[: self._count]

    def clear(self) -> None:
        """Forget all ids."""
        self._count = 0
        self._ids = np.empty(_SMALLEST // 2, np.int64)
        self._entries = np.full(_SMALLEST, -1, np.int64)

    def find(self, ids: Ids) -> Ids:
        """Return the slot of each id, -1 where it is not known: int64 [N]."""
        slots = self._entries[self._home(ids)]
        # Most ids are found in the first entry, so only the others enter the loop with its index arrays.
        active = np.flatnonzero((slots >= 0) & (self._ids[slots] != ids))
        if len(active):
            slots[active] = self._find_by_probing(ids[active])
        return slots

    def insert(self, ids: Ids) -> Ids:
        """Add unknown, unique ids and return their slots: int64 [N], consecutive."""
        slots = np.arange(self._count, self._count + len(ids))
        self._reserve(self._count + len(ids))
        self._ids[slots] = ids
        self._count += len(ids)
        self._place(ids, slots)
        return slots

    def _home(self, ids: Ids) -> Ids:
        bits = len(self._entries).bit_length() - 1
        return (mix(ids.view(U64) ^ _INDEX_KEY) >> U64(64 - bits)).view(np.int64)

    def _find_by_probing(self, ids: Ids) -> Ids:
        found = np.full(len(ids), -1, np.int64)
        active, place, mask = np.arange(len(ids)), self._home(ids), len(self._entries) - 1
        for distance in range(1, len(self._entries) + 1):
            place = (place + distance) & mask
            slots = self._entries[place]
            is_taken = slots >= 0
            is_match = is_taken & (self._ids[slots] == ids)
            found[active[is_match]] = slots[is_match]
            goes_on = is_taken & ~is_match
            active, place, ids = active[goes_on], place[goes_on], ids[goes_on]
            if not len(active):
                return found
        raise AssertionError("no empty entry: the load factor is above one half")

    def _place(self, ids: Ids, slots: Ids) -> None:
        place, mask = self._home(ids), len(self._entries) - 1
        for distance in range(1, len(self._entries) + 1):
            is_free = self._entries[place] < 0
            self._entries[place[is_free]] = slots[is_free]
            goes_on = self._entries[place] != slots  # of several ids that want one entry, one has won
            place, slots = place[goes_on], slots[goes_on]
            if not len(slots):
                return
            place = (place + distance) & mask
        raise AssertionError("no empty entry: the load factor is above one half")

    def _reserve(self, count: int) -> None:
        if count <= len(self._ids):
            return
        size = len(self._entries)
        while size < 2 * count:
            size *= 2
        grown: NDArray[np.int64] = np.empty(size // 2, np.int64)
        grown[: self._count] = self.ids
        self._ids = grown
        self._entries = np.full(size, -1, np.int64)
        self._place(self.ids, np.arange(self._count))
