"""Rows in the host's memory: the tier below a cache where memory is enough, and the reference of the others."""

from __future__ import annotations

import numpy as np
import torch

from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.id_index import id_index
from ett.trainer.sparse.tiers.arena import Arena
from ett.trainer.sparse.tiers.row_store import Bytes, Mask


class HostRows:
    """A `RowStore`."""

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.clear()

    def __len__(self) -> int:
        return len(self._index)

    def read(self, ids: Ids, out: Bytes) -> Mask:
        slots = self._index.find(ids)
        known = slots >= 0
        out[known] = self._arena.rows[torch.from_numpy(slots[known])].numpy()
        return known

    def write(self, ids: Ids, rows: Bytes) -> None:
        slots = self._index.find(ids)
        new = slots < 0
        slots[new] = self._index.insert(ids[new])
        self._arena.reserve(self._index.num_slots)
        self._arena.rows[torch.from_numpy(slots)] = torch.from_numpy(rows)

    def free(self, ids: Ids) -> None:
        self._index.erase(ids)

    def contains(self, ids: Ids) -> Mask:
        return self._index.find(ids) >= 0

    def ids(self) -> Ids:
        return np.sort(self._index.items()[0])

    def clear(self) -> None:
        self._index = id_index()
        self._arena = Arena(self.row_bytes, torch.uint8)

    def close(self) -> None:
        self.clear()
