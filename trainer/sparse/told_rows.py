"""Which rows of a shard change, told by slots: of the storage's index where rows stay in theirs, else of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ett.checkpoint.tracked_table import RowChanges
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.id_index import IdIndex, id_index
from ett.trainer.sparse.tiers.table_storage import OpenRows, TableStorage


class ToldRows:
    """One caller at a time: the shard's, within its lock. Ids of a call are distinct."""

    def __init__(self, changes: RowChanges, storage: TableStorage, num_ahead: int) -> None:
        """Args: storage: has the rows that there are, which `changes` knows. num_ahead: batches announced to nobody."""
        self._changes = changes
        self._num_untold = num_ahead
        self._id_of_slot = np.empty(0, np.int64)
        self._index: IdIndex = id_index() if storage.index is None else storage.index
        self._is_own = storage.index is None
        ids, slots = (storage.ids(), None) if self._is_own else self._index.items()
        self._place(ids, slots)
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

    @contextmanager
    def updating(self, ids: Ids, rows: OpenRows) -> Iterator[None]:
        """Tell of rows that are open and about to change, of new ones first; where the body raises, these have gone."""
        slots, new = rows.slots, ids[rows.new]
        if len(new):  # the storage's index has them, and whoever waits in `updated` lets others look into it
            came = self._place(new, None if slots is None else slots[rows.new])
            self._changes.grow(self._index.num_slots)
            self._changes.inserted(came, new)
            is_old = np.ones(len(ids), np.bool_)
            is_old[rows.new] = False
            ids, slots = ids[is_old], None if slots is None else slots[is_old]
        is_done = False
        try:
            self._changes.updated(self._index.find(ids) if slots is None else slots, ids)
            yield
            is_done = True
        finally:
            if not is_done and len(new):
                self.evicted(new)

    def touched(self, ids: Ids | None) -> None:
        """Tell of rows that have changed, in any order. Args: ids: those without a row are passed over; None: all."""
        ids = self.ids() if ids is None else np.unique(ids)
        slots = self._index.find(ids)
        self._changes.touched(slots[slots >= 0], ids[slots >= 0])

    def evicted(self, ids: Ids) -> None:
        """Tell of rows that are about to go."""
        self._changes.evicted(self._index.find(ids), ids.copy())
        if self._is_own:
            self._index.erase(ids)

    def ids(self) -> Ids:
        return self._index.items()[0]

    def slots_of(self, ids: Ids) -> Ids:
        return self._index.find(ids)

    def ids_of_slots(self, slots: Ids) -> Ids:
        return self._id_of_slot[slots]

    def _place(self, ids: Ids, slots: Ids | None) -> Ids:
        """Learn of rows, and return their slots. Args: slots: where the storage has put them."""
        if slots is None:
            slots = self._index.insert(ids)
        if self._index.num_slots > len(self._id_of_slot):
            grown = np.zeros(max(64, self._index.num_slots, 2 * len(self._id_of_slot)), np.int64)
            grown[: len(self._id_of_slot)] = self._id_of_slot
            self._id_of_slot = grown
        self._id_of_slot[slots] = ids
        return slots
