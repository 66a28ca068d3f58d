"""Rows of a table, or of a block of tables, in staging memory: one thread puts, those that write take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.capture.staged_ids import NATIVE, StagedIds
from ett.checkpoint.capture.staging_pool import BLOCK_BYTES, StagingPool
from ett.checkpoint.table_segments import Bytes, Ids, TableSpec

_ALIGNED = 64  # bytes, of each column of a block
Places = NDArray[np.int64]


def can_be_staged(spec: TableSpec) -> bool:
    """Return whether a row fits into a block."""
    return rows_of_block(spec.group_bytes) > 0


def rows_of_block(widths: Sequence[int], block_bytes: int = 0) -> int:
    """Args: widths: bytes of a row in each column."""
    return ((block_bytes or BLOCK_BYTES) - _ALIGNED * len(widths)) // sum(widths)


def copy_rows(blocks: Bytes, places: Places, column: Bytes, at: Places) -> None:
    """Copy rows to where they are wanted.

    Args: blocks: uint8 [blocks, rows of a block, row_bytes], rows without gaps. places: int64 [N], numbers of rows, on
        through the blocks. column: uint8 [M, row_bytes], at: int64 [N]: where they go.
    """
    _, num_rows, width = blocks.shape
    if NATIVE is None or not column.flags.c_contiguous:
        column[at] = blocks[np.divmod(places, num_rows)]
        return
    places, at = np.ascontiguousarray(places, np.int64), np.ascontiguousarray(at, np.int64)
    addresses = places.ctypes.data, at.ctypes.data, len(at), column.ctypes.data
    NATIVE.take(blocks.ctypes.data, blocks.strides[0], num_rows, width, *addresses)


class StagedRows:
    """Each row once. One thread at a time puts, and none finds meanwhile; any number take."""

    def __init__(self, widths: Sequence[int], pool: StagingPool) -> None:
        """Args: widths: bytes of a row in each column."""
        self.pool = pool
        self._widths = tuple(widths)
        self._ids = StagedIds()
        self._block_rows = rows_of_block(widths, pool.block_bytes)
        self._open, self._filled = -1, 0  # the block that rows go to, and how many it has
        self._unread: dict[int, int] = {}  # rows that the writer has not taken, of each block
        self._counting = threading.Lock()  # of _unread

    def room(self, *, is_urgent: bool = False) -> int:
        """Return how many rows can be put now, at once. Args: is_urgent: see `StagingPool.take`."""
        if self._open >= 0 and self._filled < self._block_rows:
            return self._block_rows - self._filled
        number = self.pool.take(is_urgent=is_urgent)
        if number is None:
            return 0
        with self._counting:
            full, self._open, self._filled = self._open, number, 0
            is_empty = full >= 0 and not self._unread[full]
            if is_empty:
                del self._unread[full]
            self._unread[number] = 0
        self.pool.give_back([full] if is_empty else [])
        return self._block_rows

    def put(self, ids: Ids, fill: Callable[[tuple[Bytes, ...]], None]) -> None:
        """Put rows, as many as there is room for at most. Args: fill: writes their columns, uint8 [N, row_bytes] each.

        Raises: what `fill` raises; nothing is put then.
        """
        rows = slice(self._filled, self._filled + len(ids))
        fill(tuple(staged[self._open, rows] for staged in self._columns()))
        self._ids.put(ids, self._open * self._block_rows + self._filled)
        self._filled += len(ids)
        with self._counting:
            self._unread[self._open] += len(ids)

    def find(self, ids: Ids) -> Places:
        """Return where rows stand, int64 [N], -1 where one was not put."""
        return self._ids.find(ids)

    def take(self, at: Ids, places: Places, columns: tuple[Bytes, ...]) -> None:
        """Copy rows to where they are wanted, at places in columns; their memory is free afterwards."""
        for column, staged in zip(columns, self._columns(), strict=True):
            copy_rows(staged, places, column, at)
        blocks = places // self._block_rows
        numbers, taken = np.unique(blocks, return_counts=True)
        empty = []
        with self._counting:
            for number, count in zip(numbers.tolist(), taken.tolist(), strict=True):
                self._unread[number] -= count
                if not self._unread[number] and number != self._open:
                    del self._unread[number]
                    empty.append(number)
        self.pool.give_back(empty)

    def close(self) -> None:
        """Give back what is left."""
        with self._counting:
            blocks, self._unread = list(self._unread), {}
        self.pool.give_back(blocks)

    def _columns(self) -> list[Bytes]:
        """Return the pool's memory as rows of this table: uint8 [blocks, rows of a block, row_bytes] a column."""
        found, begin, blocks = [], 0, self.pool.blocks
        for width in self._widths:
            size = self._block_rows * width
            part = blocks[:, begin : begin + size]
            shape, strides = (len(blocks), self._block_rows, width), (blocks.strides[0], width, 1)
            found.append(np.lib.stride_tricks.as_strided(part, shape, strides))
            begin += -(-size // _ALIGNED) * _ALIGNED
        return found
