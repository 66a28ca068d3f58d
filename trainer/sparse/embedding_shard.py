"""This rank's rows of one table: weights and optimizer state by slot, reached by id."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ett.checkpoint.table import StateSpec, TableRows
from ett.errors import DataError
from ett.trainer.sparse.hashing import Ids, RowInit, owner_key, row_owner, table_salt
from ett.trainer.sparse.id_index import id_index
from ett.trainer.sparse.row_optimizer import RowOptimizer

_SMALLEST = 64


class EmbeddingShard(nn.Module):
    """Implements `ett.checkpoint.table.TableShard`.

    Its storage is neither parameter nor buffer: it grows, and no rank holds all of it. A row exists from the first
    update on; before, `read` computes its initial value, so looking up for evaluation adds nothing.
    """

    def __init__(
        self, name: str, init: RowInit, optimizer: RowOptimizer, *, dim: int, num_rows: int, rank: int, world_size: int
    ) -> None:
        """Start empty.

        Args:
            name: the table's name in checkpoints, such as "embedding_bags.t_C1".
            dim: elements of a row.
            num_rows: ids must be in [0, num_rows); 0 takes any int64.
            rank, world_size: decide which ids are owned.
        """
        super().__init__()
        self.name = name
        self.dim = dim
        self.weight_dtype = "float32"
        self.states: tuple[StateSpec, ...] = optimizer.states(dim)
        self.num_rows = num_rows
        self.owner_key = owner_key(table_salt(name))
        self._init = init
        self._optimizer = optimizer
        self._rank, self._world_size = rank, world_size
        self.clear()

    def __len__(self) -> int:
        """Return the number of rows that this rank holds."""
        return len(self._index)

    def read(self, ids: Ids, out: Tensor) -> None:
        """Write the rows of ids (int64 [N], unique, owned) to out, float32 [N, dim].

        Raises: DataError: an id outside a fixed table.
        """
        self._check_range(ids)
        slots = self._index.find(ids)
        known = np.flatnonzero(slots >= 0)
        if len(known) == len(ids):
            torch.index_select(self._weights, 0, torch.from_numpy(slots), out=out)
            return
        unknown = np.flatnonzero(slots < 0)
        out[torch.from_numpy(known)] = self._weights[torch.from_numpy(slots[known])]
        out[torch.from_numpy(unknown)] = torch.from_numpy(self._init.rows(ids[unknown]))

    def update(self, ids: Ids, grads: Tensor, learning_rate: float) -> None:
        """Take one optimizer step with the summed gradients of ids: int64 [N] unique and owned, float32 [N, dim]."""
        slots = torch.from_numpy(self._slots(ids))
        weights = self._weights[slots]
        states = {name: state[slots] for name, state in self._states.items()}
        self._optimizer.update(weights, grads, states, learning_rate)
        self._weights.index_copy_(0, slots, weights)
        for name, state in states.items():
            self._states[name].index_copy_(0, slots, state)

    def export_rows(self) -> TableRows:
        ids, slots_of_ids = self._index.items()
        order = np.argsort(ids)
        slots = torch.from_numpy(slots_of_ids[order])
        return TableRows(
            ids=torch.from_numpy(ids[order]),
            weights=self._weights[slots],
            states={name: state[slots] for name, state in self._states.items()},
        )

    def owned(self, ids: Tensor) -> Tensor:
        owners = row_owner(ids.numpy(), self.owner_key, self._world_size)
        return torch.from_numpy(owners == self._rank)

    def clear(self) -> None:
        self._index = id_index()
        self._weights = torch.empty(_SMALLEST, self.dim)
        self._states = {s.name: torch.zeros(_SMALLEST, s.width, dtype=getattr(torch, s.dtype)) for s in self.states}

    def import_rows(self, rows: TableRows) -> None:
        ids = rows.ids.numpy()
        if len(self) and (self._index.find(ids) >= 0).any():
            raise AssertionError(f"{self.name}: an id was imported twice")
        slots = torch.from_numpy(self._index.insert(ids))
        self._reserve(self._index.num_slots)
        self._weights[slots] = rows.weights
        for name, state in rows.states.items():
            self._states[name][slots] = state

    def _slots(self, ids: Ids) -> Ids:
        slots = self._index.find(ids)
        unknown = np.flatnonzero(slots < 0)
        if len(unknown):
            new_ids = ids[unknown]
            slots[unknown] = self._index.insert(new_ids)
            self._reserve(self._index.num_slots)
            self._weights[torch.from_numpy(slots[unknown])] = torch.from_numpy(self._init.rows(new_ids))
        return slots

    def _reserve(self, count: int) -> None:
        capacity = len(self._weights)
        if count <= capacity:
            return
        while capacity < count:
            capacity *= 2
        self._weights = _grown(self._weights, capacity)
        self._states = {name: _grown(state, capacity) for name, state in self._states.items()}

    def _check_range(self, ids: Ids) -> None:
        if not self.num_rows or not len(ids):
            return
        wrong = ids[(ids < 0) | (ids >= self.num_rows)]
        if len(wrong):
            raise DataError(
                f"table {self.name}: id {wrong[0]} is out of range ({len(wrong)} such ids in this batch)",
                expected=f"ids in [0, {self.num_rows})",
                do="raise num_embeddings, or set it to 0 for a table that grows",
            )


def _grown(rows: Tensor, capacity: int) -> Tensor:
    grown = rows.new_zeros((capacity, *rows.shape[1:]))
    grown[: len(rows)] = rows
    return grown
