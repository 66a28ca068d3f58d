"""Where a table's rows lie on this rank: all in the host's memory, or some of them, above a tier that has all.

Weights are needed from the forward pass on, optimizer state only at the update, so a tiered table has two caches, sized
apart; any of the four combinations of what is cached may come to an update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ett.checkpoint.table import StateSpec
from ett.errors import CorruptState
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.id_index import IdIndex, id_index
from ett.trainer.sparse.row_kernels import copy_rows
from ett.trainer.sparse.tiers.arena import Arena
from ett.trainer.sparse.tiers.row_cache import Pinned, RowCache
from ett.trainer.sparse.tiers.row_layout import Columns, RowLayout
from ett.trainer.sparse.tiers.row_store import Mask, RowStore

WEIGHT = "weight"
_ROWS_AT_ONCE = 1 << 16
InitialRows = Callable[[Ids], Tensor]


@dataclass(frozen=True, slots=True)
class OpenRows:
    """Rows that an update may write in place: row i is weights[weight_slots[i]], states[name][state_slots[i]]."""

    weights: Tensor
    weight_slots: Tensor
    states: Columns
    state_slots: Tensor
    new: Ids  # places, ascending, of the rows that did not exist
    slots: Ids | None = None  # where weights and states, of as many rows, lie at the same slots: these


class TableStorage(Protocol):
    """Ids of one call are distinct."""

    @property
    def index(self) -> IdIndex | None:
        """Where rows lie, if that stays so while they exist: `OpenRows.slots` are its slots. Read it, nothing else."""

    def __len__(self) -> int: ...

    def ids(self) -> Ids:
        """Return all ids, ascending."""

    def contains(self, ids: Ids) -> Mask: ...

    def read(self, ids: Ids, out: Tensor) -> Mask:
        """Copy weights to out, float32 [N, dim]; return which rows exist, and leave the others."""

    def opened(self, ids: Ids, initial: InitialRows) -> AbstractContextManager[OpenRows]:
        """Have rows to write to; those that did not exist start as `initial` says, with states of zeros.

        Where the body raises, rows that it did not write to are as before, and new ones are none.
        """

    def gather(self, ids: Ids, weights: Tensor, states: Columns) -> None:
        """Copy rows that exist to weights, [N, dim], and to the states that the storage has; by several threads."""

    def reserve(self, num_rows: int) -> None:
        """Have room for num_rows rows in all."""

    def fill(self, ids: Ids, weights: Tensor, states: Columns) -> None:
        """Add rows, none of which exists; by several threads where room for them is reserved."""

    def free(self, ids: Ids) -> None:
        """Forget rows that exist."""

    def clear(self) -> None: ...

    def close(self) -> None: ...


class HostStorage:
    """All rows in memory, weights and states at the same slot."""

    def __init__(self, dim: int, states: Sequence[StateSpec]) -> None:
        self._dim, self._specs = dim, tuple(states)
        self._filling = Lock()
        self.clear()

    @property
    def index(self) -> IdIndex | None:
        return self._index

    def __len__(self) -> int:
        return len(self._index)

    def ids(self) -> Ids:
        return np.sort(self._index.items()[0])

    def contains(self, ids: Ids) -> Mask:
        return self._index.find(ids) >= 0

    def read(self, ids: Ids, out: Tensor) -> Mask:
        slots = self._index.find(ids)
        known = slots >= 0
        if known.all():
            torch.index_select(self._weights.rows, 0, torch.from_numpy(slots), out=out)
        else:
            out[torch.from_numpy(known)] = self._weights.rows[torch.from_numpy(slots[known])]
        return known

    @contextmanager
    def opened(self, ids: Ids, initial: InitialRows) -> Iterator[OpenRows]:
        slots = self._index.find(ids)
        new = np.flatnonzero(slots < 0)
        if len(new):
            slots[new] = self._add(ids[new], initial(ids[new]))
        at = torch.from_numpy(slots)
        is_done = False
        try:
            yield OpenRows(
                self._weights.rows, at, {name: arena.rows for name, arena in self._states.items()}, at, new, slots
            )
            is_done = True
        finally:
            if not is_done:
                self.free(ids[new])

    def gather(self, ids: Ids, weights: Tensor, states: Columns) -> None:
        slots = self._index.find(ids)
        _take(self._weights.rows, slots, weights)
        for name, arena in self._states.items():
            _take(arena.rows, slots, states[name])

    def reserve(self, num_rows: int) -> None:
        for arena in (self._weights, *self._states.values()):
            arena.reserve(num_rows)

    def fill(self, ids: Ids, weights: Tensor, states: Columns) -> None:
        with self._filling:
            slots = self._index.insert(ids)
            self.reserve(self._index.num_slots)  # moves nothing that another thread writes to: there is room
        _put(self._weights.rows, slots, weights)
        for name, state in states.items():
            _put(self._states[name].rows, slots, state)

    def free(self, ids: Ids) -> None:
        slots = torch.from_numpy(self._index.erase(ids))
        for arena in self._states.values():
            arena.rows[slots] = 0  # the next row there finds zeros

    def clear(self) -> None:
        self._index = id_index()
        self._weights = Arena(self._dim, torch.float32)
        self._states = {s.name: Arena(s.width, getattr(torch, s.dtype)) for s in self._specs}

    def close(self) -> None:
        self.clear()

    def _add(self, ids: Ids, weights: Tensor) -> Ids:
        slots = self._index.insert(ids)
        self.reserve(self._index.num_slots)
        self._weights.rows[torch.from_numpy(slots)] = weights
        return slots


class TieredStorage:
    """A cache for weights and one for states, each over a `RowStore` that has all rows."""

    def __init__(self, table: str, weights: RowCache, states: RowCache | None) -> None:
        """Args: states: None where the optimizer has none."""
        self._table, self._weights, self._states = table, weights, states
        self._caches = [weights] if states is None else [weights, states]
        self._one_at_a_time = Lock()  # the stores below have one connection, or one end of a log

    @property
    def index(self) -> IdIndex | None:
        return None

    def __len__(self) -> int:
        return len(self._weights)

    def ids(self) -> Ids:
        return self._weights.ids()

    def contains(self, ids: Ids) -> Mask:
        return self._weights.contains(ids)

    def read(self, ids: Ids, out: Tensor) -> Mask:
        if self._weights.has_room(len(ids)):
            with self._weights.pinned(ids) as held:
                slots = torch.from_numpy(held.slots[held.existed])
                out[torch.from_numpy(held.existed)] = self._weights.columns[WEIGHT][slots]
            return held.existed
        # More than the cache holds, as when held-out rows are scored: they pass it by.
        rows = np.empty((len(ids), self._weights.row_bytes), np.uint8)
        known = self._weights.peek(ids, rows)
        out[torch.from_numpy(known)] = self._weights.layout.unpack(rows[known])[WEIGHT]
        return known

    @contextmanager
    def opened(self, ids: Ids, initial: InitialRows) -> Iterator[OpenRows]:
        with ExitStack() as stack:
            held = [stack.enter_context(cache.pinned(ids, create=True)) for cache in self._caches]
            weights, states = held[0], held[-1]
            self._check_together(ids, weights, states)
            new = ~weights.existed
            slots = torch.from_numpy(weights.slots)
            at_new = torch.from_numpy(states.slots[new])
            if new.any():
                self._weights.columns[WEIGHT][slots[torch.from_numpy(new)]] = initial(ids[new])
            columns: Columns = {} if self._states is None else self._states.columns
            for column in columns.values():
                column[at_new] = 0
            at = torch.from_numpy(states.slots)
            yield OpenRows(self._weights.columns[WEIGHT], slots, columns, at, np.flatnonzero(new))

    def gather(self, ids: Ids, weights: Tensor, states: Columns) -> None:
        columns = {WEIGHT: weights, **states}
        with self._one_at_a_time:
            for cache in self._caches:
                for begin in range(0, len(ids), _ROWS_AT_ONCE):
                    part = slice(begin, begin + _ROWS_AT_ONCE)
                    rows = np.empty((len(ids[part]), cache.row_bytes), np.uint8)
                    known = cache.peek(ids[part], rows)
                    if not known.all():
                        raise self._apart(ids[part][~known][0])
                    for name, column in cache.layout.unpack(rows).items():
                        columns[name][part] = column

    def reserve(self, num_rows: int) -> None:
        """The tier below takes room as rows come."""

    def fill(self, ids: Ids, weights: Tensor, states: Columns) -> None:
        columns = {WEIGHT: weights, **states}
        with self._one_at_a_time:
            if self.contains(ids).any():
                raise ValueError(f"table {self._table}: an id is filled that has a row")
            for cache in self._caches:
                cache.fill(ids, cache.layout.pack(columns))

    def free(self, ids: Ids) -> None:
        for cache in self._caches:
            cache.free(ids)

    def clear(self) -> None:
        for cache in self._caches:
            cache.clear()

    def close(self) -> None:
        for cache in self._caches:
            cache.close()

    def _check_together(self, ids: Ids, weights: Pinned, states: Pinned) -> None:
        apart = weights.existed != states.existed
        if apart.any():
            raise self._apart(ids[apart][0])

    def _apart(self, row_id: int) -> CorruptState:
        return CorruptState(
            f"table {self._table}: id {row_id} has weights without optimizer state, or state without weights",
            expected="both or neither",
            do="restart: rows come back from the checkpoint",
        )


def _take(source: Tensor, slots: Ids, out: Tensor) -> None:
    if source.dtype == torch.float32:
        copy_rows(source, slots, out, None)  # it fetches ahead: slots are in no order
    else:
        # By numpy: torch would start threads of its own in each of those that save.
        np.take(source.view(torch.uint8).numpy(), slots, axis=0, out=out.view(torch.uint8).numpy(), mode="clip")


def _put(target: Tensor, slots: Ids, rows: Tensor) -> None:
    if target.dtype == torch.float32:
        copy_rows(rows, None, target, slots)
    else:
        target[torch.from_numpy(slots)] = rows


def tiered_storage(
    table: str,
    dim: int,
    states: Sequence[StateSpec],
    lower: Callable[[str, int], RowStore],
    *,
    cache_rows: int,
    state_cache_rows: int,
) -> TieredStorage:
    """Return the storage of a table whose rows lie in `lower(part, row_bytes)`, part being "weights" or "states"."""
    layout = RowLayout([StateSpec(name=WEIGHT, dtype="float32", width=dim)])
    weights = RowCache(table, layout, lower("weights", layout.row_bytes), cache_rows, "sparse.cache_rows")
    if not states:
        return TieredStorage(table, weights, None)
    layout = RowLayout(states)
    below = lower("states", layout.row_bytes)
    return TieredStorage(table, weights, RowCache(table, layout, below, state_cache_rows, "sparse.state_cache_rows"))
