"""Some rows of a slower tier in memory, by slot: fixed size, written back late, never evicted while in use.

A row exists where the lower tier has it or the cache holds a version of it that is not there yet ("dirty"). Pins count
the batches that use a slot; a slot without pins may be given to another row once what is dirty in it is written down.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from ett.errors import ConfigError
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.id_index import id_index
from ett.trainer.sparse.tiers.row_layout import Columns, RowLayout
from ett.trainer.sparse.tiers.row_store import Bytes, Mask, RowStore

# Evicting ahead, so that the search for the least recently used rows is paid for by several batches.
_EVICTED_AHEAD = 64


@dataclass(frozen=True, slots=True)
class Pinned:
    """Slots that stay where they are until `RowCache.unpin`."""

    slots: Ids  # -1 where the row does not exist and was not to be made
    existed: Mask


class RowCache:
    """A `RowStore` over another one; `pin` reaches its rows without a copy."""

    def __init__(self, table: str, layout: RowLayout, lower: RowStore, capacity: int, setting: str) -> None:
        """Hold up to `capacity` rows. Args: setting: what sizes it, for errors."""
        assert layout.row_bytes == lower.row_bytes
        self.row_bytes = layout.row_bytes
        self.capacity = capacity
        self.columns: Columns = layout.empty(capacity)
        self.layout = layout
        self._table, self._lower, self._setting = table, lower, setting
        self._reset()

    def __len__(self) -> int:
        return len(self._lower) + int((self._is_dirty & ~self._is_below).sum())

    @property
    def lower(self) -> RowStore:
        return self._lower

    def pin(self, ids: Ids, *, create: bool = False) -> Pinned:
        """Have the rows of ids in slots until `unpin`.

        Args: create: give slots to rows that do not exist, too; they come to exist when unpinned as changed, and hold
            whatever was there until the caller has written.
        Raises: ConfigError: the rows in use at once are more than the cache holds. What the lower tier raises.
        """
        slots = self._index.find(ids)
        hits = slots[slots >= 0]
        self._pins[hits] += 1
        is_fetched = False
        try:
            missing = np.flatnonzero(slots < 0)
            if len(missing):
                slots[missing] = self._fetch(ids[missing], len(ids), create=create)
            is_fetched = True
        finally:
            if not is_fetched:
                self._pins[hits] -= 1
        held = slots[slots >= 0]
        self._clock += 1
        self._last_used[held] = self._clock
        existed = slots >= 0
        existed[existed] = (self._is_below | self._is_dirty)[held]
        if not create:  # a row that another batch is about to make
            self._pins[slots[(slots >= 0) & ~existed]] -= 1
            slots[~existed] = -1
        return Pinned(slots, existed)

    def unpin(self, pinned: Pinned, *, changed: bool = False) -> None:
        """Give the slots back. Args: changed: the caller has written to all of them."""
        slots = pinned.slots[pinned.slots >= 0]
        if changed:
            self._is_dirty[slots] = True
        self._pins[slots] -= 1
        # A row that was to be made and was not, or was freed meanwhile.
        unborn = slots[(self._pins[slots] == 0) & ~self._is_below[slots] & ~self._is_dirty[slots]]
        self._index.erase(self._ids[unborn])

    @contextmanager
    def pinned(self, ids: Ids, *, create: bool = False) -> Iterator[Pinned]:
        """`pin` and `unpin`; what was created or written counts as changed unless the body raises."""
        held = self.pin(ids, create=create)
        is_done = False
        try:
            yield held
            is_done = True
        finally:
            self.unpin(held, changed=create and is_done)

    def read(self, ids: Ids, out: Bytes) -> Mask:
        """See `RowStore.read`; rows come to the cache where they fit, and pass it by where they do not."""
        if not self.has_room(len(ids)):
            return self.peek(ids, out)
        with self.pinned(ids) as held:
            slots = torch.from_numpy(held.slots[held.existed])
            out[held.existed] = self.layout.pack({name: rows[slots] for name, rows in self.columns.items()})
        return held.existed

    def has_room(self, num_rows: int) -> bool:
        """Return whether any num_rows rows can be pinned beside those that are."""
        return num_rows <= self.capacity - self._num_pinned()

    def peek(self, ids: Ids, out: Bytes) -> Mask:
        """Read without a change to what is cached."""
        slots = self._index.find(ids)
        known = slots >= 0
        known[known] = (self._is_below | self._is_dirty)[slots[known]]
        at = torch.from_numpy(slots[known])
        out[known] = self.layout.pack({name: rows[at] for name, rows in self.columns.items()})
        below = np.flatnonzero(slots < 0)
        if len(below):
            rows = np.empty((len(below), self.row_bytes), np.uint8)
            known[below] = self._lower.read(ids[below], rows)
            out[below[known[below]]] = rows[known[below]]
        return known

    def write(self, ids: Ids, rows: Bytes) -> None:
        piece = max(1, min(len(ids), self.capacity - self._num_pinned()))
        for begin in range(0, len(ids), piece):
            part = slice(begin, begin + piece)
            with self.pinned(ids[part], create=True) as held:
                for name, column in self.layout.unpack(rows[part]).items():
                    self.columns[name][torch.from_numpy(held.slots)] = column

    def fill(self, ids: Ids, rows: Bytes) -> None:
        """Add rows below the cache, as a restore does, which must hold none of them."""
        self._lower.write(ids, rows)

    def free(self, ids: Ids) -> None:
        self._lower.free(ids)
        slots = self._index.find(ids)
        slots = slots[slots >= 0]
        self._is_below[slots] = self._is_dirty[slots] = False
        self._index.erase(self._ids[slots[self._pins[slots] == 0]])

    def contains(self, ids: Ids) -> Mask:
        slots = self._index.find(ids)
        known = slots >= 0
        known[known] = (self._is_below | self._is_dirty)[slots[known]]
        below = np.flatnonzero(slots < 0)
        known[below] = self._lower.contains(ids[below])
        return known

    def ids(self) -> Ids:
        only_here = self._is_dirty & ~self._is_below
        return np.sort(np.concatenate([self._lower.ids(), self._ids[only_here]]))

    def flush(self) -> None:
        """Write every dirty row down."""
        self._write_back(np.flatnonzero(self._is_dirty))

    def clear(self) -> None:
        assert not self._num_pinned(), "a batch in flight would lose its slots"
        self._lower.clear()
        self._reset()

    def close(self) -> None:
        self._lower.close()

    def _reset(self) -> None:
        self._index = id_index()
        self._ids = np.zeros(self.capacity, np.int64)  # by slot, as all below
        self._pins = np.zeros(self.capacity, np.int64)
        self._last_used = np.zeros(self.capacity, np.int64)
        self._is_dirty = np.zeros(self.capacity, np.bool_)
        self._is_below = np.zeros(self.capacity, np.bool_)  # the lower tier has a row of that id, maybe an older one
        self._clock = 0

    def _num_pinned(self) -> int:
        return int((self._pins > 0).sum())

    def _fetch(self, ids: Ids, num_wanted: int, *, create: bool) -> Ids:
        """Return pinned slots with the rows of ids, none of which is in one; -1 where there is no row."""
        is_below = self._lower.contains(ids)
        wanted = np.flatnonzero(is_below | create)
        self._make_room(len(wanted), num_wanted)
        below = np.flatnonzero(is_below)
        rows = np.empty((len(below), self.row_bytes), np.uint8)
        was_read = self._lower.read(ids[below], rows)
        assert was_read.all(), "a lower tier has lost a row that it said it has"
        slots = np.full(len(ids), -1)
        slots[wanted] = self._index.insert(ids[wanted])
        for name, column in self.layout.unpack(rows).items():
            self.columns[name][torch.from_numpy(slots[below])] = column
        taken = slots[wanted]
        self._ids[taken], self._pins[taken] = ids[wanted], 1
        self._is_dirty[taken], self._is_below[taken] = False, is_below[wanted]
        return slots

    def _make_room(self, num_rows: int, num_wanted: int) -> None:
        num_short = num_rows - (self.capacity - len(self._index))
        if num_short <= 0:
            return
        slots = self._index.items()[1]
        idle = slots[self._pins[slots] == 0]
        if num_short > len(idle):
            raise ConfigError(
                f"table {self._table}: a batch uses {num_wanted} rows at once, and the cache of {self.capacity} holds "
                f"{self._num_pinned()} that are in use",
                expected="a cache of at least the distinct rows of the batches in flight",
                do=f"raise {self._setting}, or lower train.batch_size",
            )
        num_victims = min(len(idle), max(num_short, self.capacity // _EVICTED_AHEAD))
        victims = idle[np.argpartition(self._last_used[idle], num_victims - 1)[:num_victims]]
        self._write_back(victims[self._is_dirty[victims]])
        self._index.erase(self._ids[victims])
        self._is_dirty[victims] = self._is_below[victims] = False

    def _write_back(self, slots: Ids) -> None:
        if not len(slots):
            return
        at = torch.from_numpy(slots)
        self._lower.write(self._ids[slots], self.layout.pack({name: rows[at] for name, rows in self.columns.items()}))
        self._is_dirty[slots] = False
        self._is_below[slots] = True
