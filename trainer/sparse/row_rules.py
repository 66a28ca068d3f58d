"""Which ids become rows of a table, and which rows go: pure choices, the same whatever holds the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ett.trainer.config import SparseConfig
from ett.trainer.sparse.hashing import Ids

_SWEEPS_PER_TTL = 8
# Of the bound, evicted at once when a table is full: each new row then pays for looking at 16.
_SHARE_EVICTED = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRules:
    admit_after: int = 1  # batches with an id until it becomes a row
    max_rows: int = 0  # of a table on a rank; 0: no bound
    when_full: Literal["error", "lru", "lfu"] = "error"
    ttl_updates: int = 0  # a row that so many updates of its table left alone goes; 0: never

    @property
    def has_ledger(self) -> bool:
        """Whether rows' last and number of updates must be known."""
        return bool(self.ttl_updates) or (bool(self.max_rows) and self.when_full != "error")

    def is_sweep(self, tick: int) -> bool:
        """Return whether rows that are too old go before the table's update number `tick`."""
        return bool(self.ttl_updates) and tick % max(1, self.ttl_updates // _SWEEPS_PER_TTL) == 0

    def num_victims(self, num_excess: int) -> int:
        """Return how many rows go where num_excess must."""
        return max(num_excess, self.max_rows // _SHARE_EVICTED)


UNBOUNDED = RowRules()


def row_rules(config: SparseConfig) -> RowRules:
    """Return the rules that a recipe's [sparse] names."""
    return RowRules(
        admit_after=config.admit_after,
        max_rows=config.max_rows,
        when_full=config.when_full,
        ttl_updates=config.ttl_updates,
    )


def lowest(primary: Ids, secondary: Ids, ids: Ids, count: int) -> NDArray[np.intp]:
    """Return where the `count` lowest of (primary, secondary, id) stand, in no particular order; linear in N."""
    if count <= 0:
        return np.empty(0, np.intp)
    if count >= len(ids):
        return np.arange(len(ids))
    bound = np.partition(primary, count - 1)[count - 1]
    below, ties = np.flatnonzero(primary < bound), np.flatnonzero(primary == bound)
    order = np.lexsort((ids[ties], secondary[ties]))
    return np.concatenate([below, ties[order[: count - len(below)]]])
