"""A row as bytes: its columns behind each other, little-endian, each where its elements may be read in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ett.checkpoint.table import StateSpec
from ett.trainer.sparse.tiers.row_store import Bytes

Columns = dict[str, Tensor]


class RowLayout:
    """Columns [N, width] to rows of bytes and back."""

    def __init__(self, columns: Sequence[StateSpec]) -> None:
        self.columns = tuple(columns)
        self.dtypes: dict[str, torch.dtype] = {c.name: getattr(torch, c.dtype) for c in columns}
        widths = [self.dtypes[c.name].itemsize * c.width for c in columns]
        self._ends = np.cumsum(widths).tolist()
        self.row_bytes: int = self._ends[-1] if self._ends else 0

    def pack(self, columns: Mapping[str, Tensor]) -> Bytes:
        """Return the columns of N rows as uint8 [N, row_bytes]."""
        parts = [columns[c.name].contiguous().view(torch.uint8).numpy() for c in self.columns]
        return np.ascontiguousarray(parts[0]) if len(parts) == 1 else np.concatenate(parts, axis=1)

    def unpack(self, rows: Bytes) -> Columns:
        """Return the columns of rows, uint8 [N, row_bytes], in memory of their own."""
        columns: Columns = {}
        start = 0
        for column, end in zip(self.columns, self._ends, strict=True):
            values = torch.empty(len(rows), column.width, dtype=self.dtypes[column.name])
            values.view(torch.uint8).numpy()[:] = rows[:, start:end]
            columns[column.name] = values
            start = end
        return columns

    def empty(self, num_rows: int) -> Columns:
        """Return columns of num_rows rows of zeros."""
        return {c.name: torch.zeros(num_rows, c.width, dtype=self.dtypes[c.name]) for c in self.columns}
