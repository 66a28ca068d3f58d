"""Which rows of a shard change, told by slots of an index of its own: rows may lie in tiers, at no fixed place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ett.checkpoint.tracked_table import RowChanges
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.id_index import id_index


class ToldRows:
    """One caller at a time: the shard's, within its lock. Ids of a call are distinct."""

    def __init__(self, changes: RowChanges, ids: Ids, num_ahead: int) -> None:
        """Args: ids: of the rows that there are, which `changes` knows. num_ahead: batches announced to nobody."""
        self._changes, self._index = changes, id_index()
        self._num_untold = num_ahead
        self._id_of_slot = np.empty(0, np.int64)
        self._insert(ids)
        changes.grow(self._index.num_slots)

    def announced(self, ids: Ids) -> None:
        """Tell of ids that a batch will look up."""
        self._changes.announced(ids, self._index.find)

    def passed(self) -> None:
        """Tell that the first of the announced batches has been trained, or was dropped."""
        if self._num_untold:
            self._num_untold -= 1
        else:
            self._changes.passed()

    def about_to_update(self, ids: Ids) -> Ids:
        """Tell of rows that are about to change, and return the ids that are no rows yet."""
        return self._tell_known(ids, self._changes.updated)

    def came(self, new: Ids) -> None:
        """Tell of rows that are there now."""
        if len(new):
            slots = self._insert(new)
            self._changes.grow(self._index.num_slots)
            self._changes.inserted(slots, new)

    def touched(self, ids: Ids | None) -> None:
        """Tell of rows that have changed, in any order. Args: ids: those without a row are passed over; None: all."""
        self._tell_known(self.ids() if ids is None else np.unique(ids), self._changes.touched)

    def evicted(self, ids: Ids) -> None:
        """Tell of rows that are about to go."""
        self._changes.evicted(self._index.find(ids), ids.copy())
        self._index.erase(ids)

    def ids(self) -> Ids:
        return self._index.items()[0]

    def slots_of(self, ids: Ids) -> Ids:
        return self._index.find(ids)

    def ids_of_slots(self, slots: Ids) -> Ids:
        return self._id_of_slot[slots]

    def _tell_known(self, ids: Ids, tell: Callable[[Ids, Ids], None]) -> Ids:
        slots = self._index.find(ids)
        is_known = slots >= 0
        if is_known.all():
            tell(slots, ids)
            return ids[:0]
        tell(slots[is_known], ids[is_known])
        return ids[~is_known]

    def _insert(self, ids: Ids) -> Ids:
        slots = self._index.insert(ids)
        if self._index.num_slots > len(self._id_of_slot):
            grown = np.zeros(max(64, self._index.num_slots, 2 * len(self._id_of_slot)), np.int64)
            grown[: len(self._id_of_slot)] = self._id_of_slot
            self._id_of_slot = grown
        self._id_of_slot[slots] = ids
        return slots
