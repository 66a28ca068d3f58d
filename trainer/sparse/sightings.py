"""How often ids were seen that are no rows yet: a table of its own in checkpoints, so that a restart admits alike."""

from __future__ import annotations

from threading import Lock

import numpy as np
import torch
from torch import Tensor, nn

from ett.checkpoint.table import StateSpec, TableRows
from ett.trainer.sparse.hashing import Ids, row_owner
from ett.trainer.sparse.id_index import id_index
from ett.trainer.sparse.tiers.arena import Arena
from ett.trainer.sparse.tiers.row_store import Mask


class Sightings(nn.Module):
    """Implements `ett.checkpoint.table.TableShard`, with the count as the weight; 24 to 28 bytes an id."""

    dim = 1
    weight_dtype = "int64"
    states: tuple[StateSpec, ...] = ()

    def __init__(self, name: str, admit_after: int, *, owner_key: np.uint64, rank: int, world_size: int) -> None:
        """Args: owner_key, rank, world_size: of the table that ids are admitted to: counts stay with its rows."""
        super().__init__()
        self.name = name
        self._admit_after, self._owner_key = admit_after, owner_key
        self._rank, self._world_size = rank, world_size
        self._filling = Lock()  # a restore fills with several threads
        self.begin_import(0)

    def __len__(self) -> int:
        return len(self._index)

    def admit(self, ids: Ids) -> Mask:
        """Count one sighting of each id, and return which have been seen often enough; those are forgotten here."""
        slots = self._index.find(ids)
        new = slots < 0
        slots[new] = self._index.insert(ids[new])
        self._counts.reserve(self._index.num_slots)
        counts = self._counts.rows.numpy()[:, 0]
        counts[slots[new]] = 0
        counts[slots] += 1
        is_admitted: Mask = counts[slots] >= self._admit_after
        self._index.erase(ids[is_admitted])
        return is_admitted

    def begin_export(self) -> Tensor:
        return torch.from_numpy(np.sort(self._index.items()[0]))

    def gather(self, ids: Tensor, out: TableRows) -> None:
        slots = torch.from_numpy(self._index.find(ids.numpy()))
        torch.index_select(self._counts.rows, 0, slots, out=out.weights)

    def owned(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(row_owner(ids.numpy(), self._owner_key, self._world_size) == self._rank)

    def begin_import(self, num_rows: int) -> None:
        self._index = id_index()
        self._counts = Arena(1, torch.int64)

    def import_rows(self, rows: TableRows) -> None:
        with self._filling:
            slots = self._index.insert(rows.ids.numpy())
            self._counts.reserve(self._index.num_slots)
            self._counts.rows[torch.from_numpy(slots)] = rows.weights

    def end_import(self) -> None:
        """Nothing is left to do."""
