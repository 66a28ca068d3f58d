"""Where rows stand in staging memory, by id: natively a few nanoseconds an id, else a dict."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ett.native import native

Ids = NDArray[np.int64]
NATIVE = native("ett.checkpoint.capture._staged_ids")


class StagedIds:
    """Each id once, and for good. One thread at a time puts, and none finds meanwhile."""

    def __init__(self) -> None:
        self._native = NATIVE.StagedIds() if NATIVE is not None else None
        self._places: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._places) if self._native is None else int(self._native.size())

    def put(self, ids: Ids, first: int) -> None:
        """Args: ids: int64 [N], none of which was put before: they stand at first, first + 1, …"""
        ids = np.ascontiguousarray(ids, np.int64)
        if self._native is not None:
            self._native.put(ids.ctypes.data, len(ids), first)
        else:
            self._places.update(zip(ids.tolist(), range(first, first + len(ids)), strict=True))

    def find(self, ids: Ids) -> Ids:
        """Return where ids, int64 [N], stand: int64 [N], -1 where one was not put."""
        ids = np.ascontiguousarray(ids, np.int64)
        if self._native is None:
            return np.array([self._places.get(row_id, -1) for row_id in ids.tolist()], np.int64)
        found = np.empty(len(ids), np.int64)
        self._native.find(ids.ctypes.data, len(ids), found.ctypes.data)
        return found
