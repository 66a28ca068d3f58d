"""When and how often each row was updated: what eviction from a table goes by, saved with the rows.

An update of the table on this rank is one tick. The clock is the newest row's, so a restored table goes on with the
ticks of the one that was saved, and evicts what that one would have.
"""

from __future__ import annotations

from threading import Lock

import numpy as np
import torch

from ett.checkpoint.table import StateSpec
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.id_index import id_index
from ett.trainer.sparse.row_rules import RowRules, lowest
from ett.trainer.sparse.tiers.arena import Arena
from ett.trainer.sparse.tiers.row_layout import Columns

LAST, COUNT = "row_last_update", "row_updates"


class RowLedger:
    states = (StateSpec(name=LAST, dtype="int64", width=1), StateSpec(name=COUNT, dtype="int64", width=1))

    def __init__(self, rules: RowRules) -> None:
        self._rules = rules
        self._filling = Lock()  # a restore fills with several threads
        self._tick = 0
        self.clear()

    def too_old(self, keep: Ids) -> Ids:
        """Return the ids that go before the update that is about to come, `keep` being those that it touches."""
        if not self._rules.is_sweep(self._tick + 1):
            return np.empty(0, np.int64)
        ids, last, _ = self._others(keep)
        return np.sort(ids[last < self._tick + 1 - self._rules.ttl_updates])

    def victims(self, num_excess: int, keep: Ids) -> Ids:
        """Return at least num_excess ids, none of `keep`; fewer where there are no more."""
        ids, last, count = self._others(keep)
        num_victims = self._rules.num_victims(num_excess)
        keys = (last, count) if self._rules.when_full == "lru" else (count, last)
        return np.sort(ids[lowest(*keys, ids, num_victims)])

    def touch(self, ids: Ids) -> None:
        """Count an update of ids, new ones included."""
        self._tick += 1
        slots = self._index.find(ids)
        new = slots < 0
        slots[new] = self._index.insert(ids[new])
        self._reserve()
        self._last.rows[torch.from_numpy(slots), 0] = self._tick
        self._count.rows[torch.from_numpy(slots[new]), 0] = 0
        self._count.rows[torch.from_numpy(slots), 0] += 1

    def free(self, ids: Ids) -> None:
        self._index.erase(ids)

    def gather(self, ids: Ids, out: Columns) -> None:
        """Copy last updates and numbers of updates of ids to the two columns of `out`."""
        slots = torch.from_numpy(self._index.find(ids))
        for name, arena in ((LAST, self._last), (COUNT, self._count)):
            torch.index_select(arena.rows, 0, slots, out=out[name])

    def fill(self, ids: Ids, states: Columns) -> None:
        with self._filling:
            slots = torch.from_numpy(self._index.insert(ids))
            self._reserve()
            self._last.rows[slots], self._count.rows[slots] = states[LAST], states[COUNT]
            if len(ids):
                self._tick = max(self._tick, int(states[LAST].max()))

    def clear(self) -> None:
        self._index = id_index()
        self._last, self._count = Arena(1, torch.int64), Arena(1, torch.int64)
        self._tick = 0

    def _reserve(self) -> None:
        self._last.reserve(self._index.num_slots)
        self._count.reserve(self._index.num_slots)

    def _others(self, keep: Ids) -> tuple[Ids, Ids, Ids]:
        """Return ids, last updates and numbers of updates of the rows but `keep`."""
        ids, slots = self._index.items()
        kept = np.zeros(self._index.num_slots, np.bool_)
        kept_slots = self._index.find(keep)
        kept[kept_slots[kept_slots >= 0]] = True
        is_other = ~kept[slots]
        slots = slots[is_other]
        return ids[is_other], self._last.rows.numpy()[slots, 0], self._count.rows.numpy()[slots, 0]
