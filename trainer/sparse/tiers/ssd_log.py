"""Rows on the local SSD: an append log in segments, read through mappings, compacted when half of it is dead.

A record is id, check word and row: 16 bytes and the row, padded to 8. Where each id's newest record stands is known in
memory only (24 to 28 bytes a row). Nothing here survives a process: a new one starts with an empty folder and fills
it from the checkpoint. So nothing is ever flushed to the device, no record of an earlier life can be read, and within
one life each is checked at every read against its id, its place and its bytes.
"""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import numpy as np
import torch

from ett.errors import CorruptState, EttError, Unreachable
from ett.os_failure import os_failure
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.id_index import id_index
from ett.trainer.sparse.tiers.arena import Arena
from ett.trainer.sparse.tiers.log_segment import LogSegment
from ett.trainer.sparse.tiers.row_check import CHECK_BYTES, RowCheck
from ett.trainer.sparse.tiers.row_store import Bytes, Mask

log = logging.getLogger(__name__)
_HEADER_BYTES = 8 + CHECK_BYTES
# A segment takes an eighth of the live bytes within these bounds: with dead records below half, a table takes at most
# 2.25 times its rows on disk, and a small table does not hold space for a large one.
SMALLEST_SEGMENT_BYTES, LARGEST_SEGMENT_BYTES = 1 << 18, 1 << 28


class SsdLog:
    """A `RowStore`."""

    def __init__(self, table: str, row_bytes: int, folder: Path, setting: str = "sparse.tier_dir") -> None:
        """Start empty in a folder of its own, which must not exist.

        Args: setting: what names another disk, for errors.
        """
        self.row_bytes = row_bytes
        self._table, self._folder, self._setting = table, folder, setting
        self._record_bytes = _HEADER_BYTES + -(-row_bytes // 8) * 8
        self._check = RowCheck(table, row_bytes)
        try:
            folder.mkdir(parents=True)
        except OSError as err:
            raise self._failure(err, folder) from err
        self._next_number = 0
        self._segments: dict[int, LogSegment] = {}
        self._tail: LogSegment | None = None
        self.clear()

    def __len__(self) -> int:
        return len(self._index)

    @property
    def disk_bytes(self) -> int:
        """Space that the files take."""
        return sum(segment.num_bytes for segment in self._segments.values())

    def read(self, ids: Ids, out: Bytes) -> Mask:
        slots = self._index.find(ids)
        known = slots >= 0
        at = np.flatnonzero(known)
        places = self._places.rows[torch.from_numpy(slots[at]), 0].numpy()
        order = np.argsort(places)
        at, places = at[order], places[order]
        records = self._records_at(places)
        rows = records[:, _HEADER_BYTES : _HEADER_BYTES + self.row_bytes]
        self._verify(ids[at], places, records, rows)
        out[at] = rows
        return known

    def write(self, ids: Ids, rows: Bytes) -> None:
        if not len(ids):
            return
        places = self._append(ids, rows)
        slots = self._index.find(ids)
        is_new = slots < 0
        self._bury(slots[~is_new])
        slots[is_new] = self._index.insert(ids[is_new])
        self._settle(slots, places)
        self._compact()

    def free(self, ids: Ids) -> None:
        slots = self._index.erase(ids)
        self._bury(slots[slots >= 0])
        self._compact()

    def contains(self, ids: Ids) -> Mask:
        return self._index.find(ids) >= 0

    def ids(self) -> Ids:
        return np.sort(self._index.items()[0])

    def clear(self) -> None:
        for segment in self._segments.values():
            segment.drop()
        self._segments, self._tail = {}, None
        self._index = id_index()
        self._places = Arena(1, torch.int64)  # by slot: segment number << 32 | position in it

    def close(self) -> None:
        self.clear()
        self._folder.rmdir()

    def _append(self, ids: Ids, rows: Bytes) -> Ids:
        """Write records at the tail and return their places; they count as live, though nothing refers to them yet."""
        places = np.empty(len(ids), np.int64)
        begin = 0
        try:
            while begin < len(ids):
                begin = self._append_some(ids, rows, begin, places)
        except EttError:
            self._discount(places[:begin])
            raise
        return places

    def _append_some(self, ids: Ids, rows: Bytes, begin: int, places: Ids) -> int:
        """Write what the tail has room for, from row `begin` on; return the row to go on from."""
        tail = self._tail if self._tail is not None and self._tail.room else self._roll(len(ids) - begin)
        part = slice(begin, min(len(ids), begin + tail.room))
        first = tail.number << 32 | tail.used
        places[part] = np.arange(first, first + part.stop - begin)
        records = np.zeros((part.stop - begin, self._record_bytes), np.uint8)
        records[:, :8] = ids[part, None].view(np.uint8)
        records[:, 8:_HEADER_BYTES] = self._check.words(ids[part], places[part], rows[part])[:, None].view(np.uint8)
        records[:, _HEADER_BYTES : _HEADER_BYTES + self.row_bytes] = rows[part]
        try:
            tail.append(records)
        except OSError as err:
            raise self._failure(err, tail.path) from err
        tail.live += len(records)
        return part.stop

    def _roll(self, wanted: int) -> LogSegment:
        """Seal the tail and begin another segment."""
        num_bytes = max(wanted, len(self) // 8) * self._record_bytes
        num_bytes = min(max(num_bytes, SMALLEST_SEGMENT_BYTES), LARGEST_SEGMENT_BYTES)
        number, self._next_number = self._next_number, self._next_number + 1
        path = self._folder / f"{number:010d}.rows"
        try:
            segment = LogSegment(
                path,
                number=number,
                capacity=max(1, num_bytes // self._record_bytes),
                record_bytes=self._record_bytes,
            )
        except OSError as err:
            raise self._failure(err, path) from err
        self._seal_tail()
        self._tail = self._segments[number] = segment
        return segment

    def _seal_tail(self) -> None:
        if self._tail is not None:
            self._tail.seal()
            self._drop_if_dead(self._tail)
        self._tail = None

    def _records_at(self, places: Ids) -> Bytes:
        """Return the records of places (ascending)."""
        records = np.empty((len(places), self._record_bytes), np.uint8)
        numbers = places >> 32
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(places)]
        for begin, end in itertools.pairwise(cuts) if len(places) else ():
            segment = self._segments[int(numbers[begin])]
            try:
                segment.read(places[begin:end] & 0xFFFFFFFF, records[begin:end])
            except OSError as err:
                raise self._lost(f"{segment.path} cannot be read: {(err.strerror or str(err)).lower()}") from err
        return records

    def _verify(self, ids: Ids, places: Ids, records: Bytes, rows: Bytes) -> None:
        words = np.ascontiguousarray(records[:, :_HEADER_BYTES]).view(np.uint64)
        wrong = (words[:, 0].view(np.int64) != ids) | (words[:, 1] != self._check.words(ids, places, rows))
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            number, position = int(places[first]) >> 32, int(places[first]) & 0xFFFFFFFF
            path, offset = self._segments[number].path, position * self._record_bytes
            raise self._lost(
                f"the record of id {ids[first]} at byte {offset} of {path} is not the one that was written"
                f" ({int(wrong.sum())} such of {len(ids)})"
            )

    def _settle(self, slots: Ids, places: Ids) -> None:
        self._places.reserve(self._index.num_slots)
        self._places.rows[torch.from_numpy(slots), 0] = torch.from_numpy(places)

    def _bury(self, slots: Ids) -> None:
        """Count the records of slots as dead."""
        self._discount(self._places.rows[torch.from_numpy(slots), 0].numpy())

    def _discount(self, places: Ids) -> None:
        numbers, counts = np.unique(places >> 32, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            segment = self._segments[number]
            segment.live -= count
            self._drop_if_dead(segment)

    def _drop_if_dead(self, segment: LogSegment) -> None:
        if not segment.live and segment is not self._tail:
            segment.drop()
            self._segments.pop(segment.number, None)

    def _compact(self) -> None:
        """Move live records to the tail until no more are dead than live: each write pays for one move at most."""
        try:
            while self._num_dead > len(self) + SMALLEST_SEGMENT_BYTES // self._record_bytes:
                worst = max(self._segments.values(), key=lambda segment: segment.used - segment.live)
                if worst is self._tail:
                    self._seal_tail()
                if worst.number in self._segments:
                    self._move(worst)
        except Unreachable:
            # No space to move to. Every row is written and read as before; a write that needs space says so itself.
            log.warning("table %s: no space to compact %s", self._table, self._folder)

    @property
    def _num_dead(self) -> int:
        return sum(segment.used - segment.live for segment in self._segments.values())

    def _move(self, segment: LogSegment) -> None:
        positions = np.arange(segment.used)
        records = self._records_at(positions + (segment.number << 32))
        ids = np.ascontiguousarray(records[:, :8]).view(np.int64)[:, 0]
        slots = self._index.find(ids)
        places = positions + (segment.number << 32)
        at = np.flatnonzero(slots >= 0)
        at = at[self._places.rows[torch.from_numpy(slots[at]), 0].numpy() == places[at]]
        if len(at) != segment.live:
            raise self._lost(f"{segment.path} holds {len(at)} of the {segment.live} rows that were written to it")
        rows = records[at, _HEADER_BYTES : _HEADER_BYTES + self.row_bytes]
        self._verify(ids[at], places[at], records[at], rows)
        moved = self._append(ids[at], rows)
        self._bury(slots[at])
        self._settle(slots[at], moved)

    def _failure(self, err: OSError, path: Path) -> EttError:
        failure = os_failure(err, path, elsewhere=self._setting)
        return type(failure)(f"table {self._table}: {failure.fact}", do=failure.do, code=failure.code)

    def _lost(self, fact: str) -> CorruptState:
        return CorruptState(
            f"table {self._table}: {fact}",
            expected="rows of this process, untouched by others",
            do=f"restart: rows come back from the checkpoint; if it happens again, name another disk ({self._setting})",
        )
