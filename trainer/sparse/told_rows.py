"""Which rows of a shard change, told by slots of an index of its own: rows may lie in tiers, at no fixed place."""

from __future__ import annotations

import numpy as np

from ett.checkpoint.tracked_table import RowChanges
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.id_index import id_index


class ToldRows:
    """One caller at a time; `ids_of_slots` beside the others."""

    def __init__(self, changes: RowChanges, ids: Ids) -> None:
        """Args: ids: of the rows that there are, which `changes` knows."""
        self._changes, self._index = changes, id_index()
        self._index.insert(ids)
        changes.grow(self._index.num_slots)

    def updated(self, ids: Ids) -> None:
        """Tell of rows that have changed, those that are new among them; ids are distinct."""
        slots = self._index.find(ids)
        is_new = slots < 0
        if is_new.any():
            new = ids[is_new]
            at = self._index.insert(new)
            self._changes.grow(self._index.num_slots)
            self._changes.inserted(at, new)
            slots = slots[~is_new]
        self._changes.updated(slots)

    def touched(self, ids: Ids | None) -> None:
        """Tell of rows that have changed, in any order. Args: ids: those without a row are passed over; None: all."""
        slots = self._index.items()[1] if ids is None else self._index.find(ids)
        self._changes.updated(slots[slots >= 0])

    def evicted(self, ids: Ids) -> None:
        """Tell of rows that are about to go."""
        self._changes.evicted(self._index.erase(ids), ids.copy())

    def ids_of_slots(self, slots: Ids) -> Ids:
        ids, at = self._index.items()
        by_slot = np.zeros(self._index.num_slots, np.int64)
        by_slot[at] = ids
        return by_slot[slots]
