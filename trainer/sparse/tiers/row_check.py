"""A word beside every row that leaves this process's memory: other bytes, another id or another place are found."""

from __future__ import annotations

import numpy as np

from ett.checkpoint.digest import U64, ColumnGroup, TableDigest, Words, mix
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.tiers.row_store import Bytes

CHECK_BYTES = 8


class RowCheck:
    """The row hash of `ett.checkpoint.digest` over (id, place, bytes)."""

    def __init__(self, table: str, row_bytes: int) -> None:
        self._digest = TableDigest(table, (ColumnGroup("row", "uint8", row_bytes),))

    def words(self, ids: Ids, places: Ids, rows: Bytes) -> Words:
        """Return the words of rows (uint8 [N, row_bytes]) written at places (int64 [N], or [1] for all)."""
        placed = ids.view(U64) ^ mix(places.view(U64))
        return self._digest.row_words(placed.view(np.int64), (np.ascontiguousarray(rows),))
