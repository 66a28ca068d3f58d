"""A table in device memory as of a step boundary: implements `ett.checkpoint.capture.boundary_rows.BoundaryRows`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ett.checkpoint.capture.boundary_rows import Bits, DeviceStaging
from ett.checkpoint.capture.capture_counts import CaptureCounts
from ett.checkpoint.capture.staged_rows import copy_rows
from ett.checkpoint.stall_budget import Patience
from ett.checkpoint.table_segments import Bytes
from ett.checkpoint.tracked_table import Slots
from ett.errors import EttError
from ett.trainer.embedding.block_capture import BlockCapture
from ett.trainer.embedding.device_cache import RowsCache
from ett.trainer.embedding.device_lanes import Lane
from ett.trainer.kernels import kept_rows


@dataclass(frozen=True, slots=True)
class Column:
    """Where a column of a block's rows is: on the device, or in slots of a cache and below it."""

    rows: Tensor  # [R, W] on the device, or all of them below the cache
    cache: RowsCache | None = None
    name: str = ""  # in the cache


class DeviceBoundary:
    def __init__(
        self,
        capture: BlockCapture,
        rows: range,
        columns: Sequence[Column],
        staging: DeviceStaging | None,
        patience: Patience,
    ) -> None:
        """Args: rows: of the block, the table's. staging, patience: see `SelfKeepingTable.at_boundary`."""
        self._capture, self._rows, self._columns = capture, rows, columns
        self._snapshot = capture.at_boundary(rows, staging, patience)
        self._counting = threading.Lock()
        self._num_read = self._num_kept = 0

    @property
    def counts(self) -> CaptureCounts:
        return CaptureCounts(guard=self._num_kept, sweep=self._num_read, waited_s=self._waited_s)

    def changed(self) -> Bits:
        return self._capture.changed(self._snapshot, self._rows)

    def put_back(self) -> None:
        self._capture.put_back(self._snapshot, self._rows)

    def want_only(self, wanted: Bits) -> None:
        lane, part = self._lane(), kept_rows.bits_of(self._capture.bits.wanted, self._rows.start, len(self._rows))
        words = np.zeros(4 * len(part), np.uint8)
        size = min(len(words), len(wanted))
        words[:size] = wanted[:size]
        to = lane.to_device(words.view(np.int32))
        with lane.here():
            kept_rows.narrow(part, to)

    def read(self, slots: Slots, columns: tuple[Bytes, ...]) -> None:
        if not len(slots):
            return
        lane, rows = self._lane(), slots + self._rows.start
        rows_N = lane.to_device(rows)
        _read_cached(lane, list(zip(self._columns, columns, strict=True)), rows, rows_N)
        on_device = [number for number, column in enumerate(self._columns) if column.cache is None]
        found = [_gathered(lane, self._columns[number], rows_N) for number in on_device]
        # After the rows have been read: whoever claims one has it as it was.
        *found_NW, claimed = lane.to_host([*found, self._capture.claim(lane, rows_N)])
        for number, of_column in zip(on_device, found_NW, strict=True):
            columns[number][:] = of_column
        claimed_N = claimed.view(np.int64).reshape(-1)
        is_here, began = claimed_N[:-1] != 0, int(claimed_N[-1])
        left = np.flatnonzero(~is_here)
        if len(left):
            self._capture.take_kept(rows[left], left, columns, began)
        with self._counting:
            self._num_kept += len(left)
            self._num_read += len(slots) - len(left)

    def give_up(self, err: EttError) -> None:
        self._capture.give_up(err)

    def close(self) -> None:
        self._capture.close(self._rows)

    @property
    def failure(self) -> EttError | None:
        return self._capture.failure

    @property
    def _waited_s(self) -> float:
        """Return this table's share of what training has waited for its block."""
        return self._capture.waited_s / max(1, len(self._snapshot.tables))

    def _lane(self) -> Lane:
        return self._capture.lane(self._snapshot)


def _gathered(lane: Lane, column: Column, rows_N: Tensor) -> Tensor:
    with lane.here():
        found_NW = _empty(rows_N, _width(column.rows))
        kept_rows.gather_words(kept_rows.as_words(column.rows), rows_N, found_NW)
    return found_NW


def _read_cached(lane: Lane, columns: Sequence[tuple[Column, Bytes]], rows: Slots, rows_N: Tensor) -> None:
    """Copy rows from where they are; one that comes, goes or changes meanwhile has been kept before it changed.

    A row that is still wanted afterwards was not updated, so a copy of it that was written down meanwhile had the bits
    of the one below.
    """
    caches = {id(column.cache): column.cache for column, _ in columns if column.cache is not None}
    for cache in caches.values():
        mine = [(column, out) for column, out in columns if column.cache is cache]
        with lane.here():
            found = {column.name: _empty(rows_N, _width(column.rows)) for column, _ in mine}
            places_N = torch.empty(len(rows_N), dtype=torch.int32, device=rows_N.device)
        cache.peek(rows_N, found, places_N, lane)
        places, *in_slots = lane.to_host([places_N, *found.values()])
        at = np.flatnonzero(places.view(np.int32).reshape(-1) < 0)
        for (column, out), slots in zip(mine, in_slots, strict=True):
            out[:] = slots
            if len(at):
                below = column.rows.view(torch.uint8).numpy()
                copy_rows(below[np.newaxis], rows[at], out, at)


def _empty(rows_N: Tensor, width: int) -> Tensor:
    return torch.empty(len(rows_N), width, dtype=torch.int32, device=rows_N.device)


def _width(rows_RW: Tensor) -> int:
    return rows_RW.shape[1] * rows_RW.element_size() // 4


class NoRows:
    """Of a table whose rows are all on other ranks."""

    counts, failure = CaptureCounts(), None

    def changed(self) -> Bits:
        return np.empty(0, np.uint8)

    def put_back(self) -> None:
        return None

    def want_only(self, wanted: Bits) -> None:
        return None

    def read(self, slots: Slots, columns: tuple[Bytes, ...]) -> None:
        return None

    def give_up(self, err: EttError) -> None:
        return None

    def close(self) -> None:
        return None
