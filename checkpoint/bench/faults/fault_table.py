"""A table of a few rows that says what changes, in slots that are used again at once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ett.checkpoint.table import StateSpec, TableRows
from ett.checkpoint.table_lock import TableLock
from ett.checkpoint.tracked_table import NOBODY_TRACKS, RowChanges

Ids = NDArray[np.int64]


class FaultTable(nn.Module):
    """Implements `TableShard` and `TrackedTable` of `ett.checkpoint`."""

    weight_dtype = "float32"
    states = (StateSpec(name="sum", dtype="float32", width=1),)

    def __init__(self, name: str, dim: int) -> None:
        super().__init__()
        self.name, self.dim = name, dim
        self.tracked_by: RowChanges = NOBODY_TRACKS
        self.lock = TableLock()
        self.ids, self.rows = torch.empty(0, dtype=torch.int64), torch.empty(0, dim + 1)
        self._slots: dict[int, int] = {}
        self._free: list[int] = []  # slots without a row, that which is used next at the end

    def set_rows(self, ids: Ids, rows: NDArray[np.float32]) -> None:
        """Go to another state, as training would: every change is told."""
        old_ids, old_rows = self.ids.numpy(), self.rows.numpy()
        gone, new, both = np.setdiff1d(old_ids, ids), np.setdiff1d(ids, old_ids), np.intersect1d(old_ids, ids)
        before, after = old_rows[np.searchsorted(old_ids, both)], rows[np.searchsorted(ids, both)]
        self.tracked_by.evicted(self.slots_of(gone), gone)
        self._free += [self._slots.pop(row_id) for row_id in gone.tolist()]
        num_slots = len(self._slots) + len(self._free)
        self._free = [*range(num_slots, len(self._slots) + len(new)), *self._free]
        self.tracked_by.grow(len(self._slots) + len(self._free))
        self._slots.update({row_id: self._free.pop() for row_id in new.tolist()})
        self.tracked_by.inserted(self.slots_of(new), new)
        changed = both[(before.view(np.uint32) != after.view(np.uint32)).any(axis=1)]
        self.tracked_by.updated(self.slots_of(changed), changed)
        self.ids, self.rows = torch.from_numpy(ids), torch.from_numpy(rows)

    def begin_export(self) -> Tensor:
        return self.ids

    def gather(self, ids: Tensor, out: TableRows) -> None:
        rows = self.rows[torch.searchsorted(self.ids, ids)]
        out.weights.copy_(rows[:, :-1])
        out.states["sum"].copy_(rows[:, -1:])

    def owned(self, ids: Tensor) -> Tensor:
        return torch.ones(len(ids), dtype=torch.bool)

    def begin_import(self, num_rows: int) -> None:
        self._parts = [(torch.empty(0, dtype=torch.int64), torch.empty(0, self.dim + 1))]

    def import_rows(self, rows: TableRows) -> None:
        self._parts.append((rows.ids.clone(), torch.cat([rows.weights, rows.states["sum"]], dim=1)))

    def end_import(self) -> None:
        ids = torch.cat([part for part, _ in self._parts])
        order = torch.argsort(ids)
        self.ids, self.rows = ids[order], torch.cat([part for _, part in self._parts])[order]
        self._slots = {row_id: slot for slot, row_id in enumerate(self.ids.tolist())}
        self._free = []

    def track(self, changes: RowChanges) -> None:
        self.tracked_by = changes
        changes.grow(len(self._slots) + len(self._free))

    def touched(self, ids: Ids | None) -> None:
        mine = self.ids.numpy()
        some = mine if ids is None else np.intersect1d(mine, ids)
        self.tracked_by.touched(self.slots_of(some), some)

    def num_tracked_rows(self) -> int:
        return len(self._slots)

    def ids_of_slots(self, slots: Ids) -> Ids:
        by_slot = np.zeros(1 + max([-1, *self._slots.values(), *slots.tolist()]), np.int64)
        by_slot[list(self._slots.values())] = list(self._slots)
        return by_slot[slots]

    def tracked_ids(self) -> Ids:
        return self.ids.numpy().copy()

    def slots_of(self, ids: Ids) -> Ids:
        return np.array([self._slots.get(row_id, -1) for row_id in ids.tolist()], np.int64)
