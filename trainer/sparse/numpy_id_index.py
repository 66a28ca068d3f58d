"""The reference of `_index.cpp`, and what a source tree without a compiler uses: open addressing, in numpy.

A table entry is a slot, whose key is in `_id_of_slot`. Probing is triangular: with a table size that is a power of two
it visits every entry.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.digest import U64, mix
from ett.trainer.sparse.hashing import Ids

# Differs from the key of `row_owner`, whose low bits are equal for all ids of one rank.
_INDEX_KEY = U64(0xA0761D6478BD642F)
_SMALLEST = 64
_EMPTY, _ERASED = -1, -2


class NumpyIdIndex:
    """Implements `ett.trainer.sparse.id_index.IdIndex`; at most half of the entries are in use."""

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return self.num_slots - len(self._free)

    @property
    def num_slots(self) -> int:
        return self._num_slots

    @property
    def bytes(self) -> int:
        return self._id_of_slot.nbytes + self._entries.nbytes + 8 * len(self._free)

    def clear(self) -> None:
        self._num_slots = self._num_used = 0  # used: entries that are not empty
        self._free: list[int] = []
        self._id_of_slot = np.empty(_SMALLEST // 2, np.int64)
        self._entries = np.full(_SMALLEST, _EMPTY, np.int64)

    def find(self, ids: Ids) -> Ids:
        entries = self._entries[self._entry_of(ids)]
        return np.where(entries < 0, -1, entries)

    def insert(self, ids: Ids) -> Ids:
        known = np.flatnonzero(self.find(ids) >= 0)
        _, first = np.unique(ids, return_index=True)
        repeated = np.setdiff1d(np.arange(len(ids)), first)
        if len(wrong := np.concatenate((known, repeated))):
            raise ValueError(f"id {ids[wrong.min()]} is in the index, or in this batch, already")
        reused = min(len(ids), len(self._free))
        fresh = range(self._num_slots, self._num_slots + len(ids) - reused)
        slots = np.array([*self._free[: -reused - 1 : -1], *fresh], np.int64)
        del self._free[len(self._free) - reused :]
        self._num_slots += len(fresh)
        self._reserve(len(ids))
        self._id_of_slot[slots] = ids
        self._place(ids, slots)
        return slots

    def erase(self, ids: Ids) -> Ids:
        erased = np.full(len(ids), -1, np.int64)
        places = self._entry_of(ids)
        _, first = np.unique(places, return_index=True)
        for i in np.sort(first):  # an id that comes twice is there once
            if self._entries[places[i]] >= 0:
                erased[i] = self._entries[places[i]]
                self._entries[places[i]] = _ERASED
                self._free.append(int(erased[i]))
        return erased

    def items(self) -> tuple[Ids, Ids]:
        slots = self._entries[self._entries >= 0]
        return self._id_of_slot[slots], slots

    def _home(self, ids: Ids) -> Ids:
        bits = len(self._entries).bit_length() - 1
        return (mix(ids.view(U64) ^ _INDEX_KEY) >> U64(64 - bits)).view(np.int64)

    def _entry_of(self, ids: Ids) -> Ids:
        """Return the entry that holds each id, or the empty one where its probing ends."""
        place, mask = self._home(ids), len(self._entries) - 1
        entry = place.copy()
        active = np.arange(len(ids))
        for distance in range(1, len(self._entries) + 1):
            slots = self._entries[place]
            is_match = (slots >= 0) & (self._id_of_slot[slots] == ids)
            goes_on = (slots != _EMPTY) & ~is_match
            entry[active] = place
            active, place, ids = active[goes_on], place[goes_on], ids[goes_on]
            if not len(active):
                return entry
            place = (place + distance) & mask
        raise AssertionError("no empty entry: the load factor is above one half")

    def _place(self, ids: Ids, slots: Ids) -> None:
        place, mask = self._home(ids), len(self._entries) - 1
        for distance in range(1, len(self._entries) + 1):
            is_empty = self._entries[place] == _EMPTY
            self._entries[place[is_empty]] = slots[is_empty]
            goes_on = self._entries[place] != slots  # of several ids that want one entry, one has won
            place, slots = place[goes_on], slots[goes_on]
            if not len(slots):
                return
            place = (place + distance) & mask
        raise AssertionError("no empty entry: the load factor is above one half")

    def _reserve(self, num_new: int) -> None:
        """Make room for entries and slots; erased entries are dropped on the way."""
        if self._num_slots > len(self._id_of_slot):
            grown: NDArray[np.int64] = np.empty(max(self._num_slots, 2 * len(self._id_of_slot)), np.int64)
            grown[: len(self._id_of_slot)] = self._id_of_slot
            self._id_of_slot = grown
        self._num_used += num_new
        if 2 * self._num_used <= len(self._entries):
            return
        ids, slots = self.items()
        self._num_used = len(ids) + num_new
        size = _SMALLEST
        while size < 2 * self._num_used:
            size *= 2
        self._entries = np.full(size, _EMPTY, np.int64)
        self._place(ids, slots)
