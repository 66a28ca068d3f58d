"""Sums of rows: what pooling is forward, and what gradients of duplicates are backward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ett.trainer.sparse.hashing import Ids


@dataclass(frozen=True, slots=True)
class RowSums:
    """S sums of L rows: sum s is that of the rows [starts_S[s], starts_S[s + 1]) of the list, added in its order to +0.

    Rows are addressed by element, so that a list may name rows of several blocks of one buffer. They must be inside the
    memory of `source`: whoever makes the list has checked its ids.
    """

    source: Tensor  # float32; its columns are adjacent
    stride: int  # row r begins stride * r elements after the first element of source
    dim: int
    rows_L: Ids
    starts_S: Ids  # [S + 1], from 0 to L
    weights_L: Tensor | None = None  # float32 [L], contiguous: factors of the rows

    def __post_init__(self) -> None:
        assert self.source.dtype == torch.float32
        assert self.source.shape[-1] <= 1 or not self.source.numel() or self.source.stride(-1) == 1
        assert self.rows_L.dtype == self.starts_S.dtype == np.int64
        assert self.rows_L.flags.c_contiguous and self.starts_S.flags.c_contiguous
        assert self.weights_L is None or (
            self.weights_L.dtype == torch.float32
            and self.weights_L.is_contiguous()
            and len(self.weights_L) == len(self.rows_L)
        )

    @property
    def count(self) -> int:
        return len(self.starts_S) - 1

    def between(self, begin: int, end: int) -> RowSums:
        """Return consecutive sums."""
        first, last = int(self.starts_S[begin]), int(self.starts_S[end])
        weights = None if self.weights_L is None else self.weights_L[first:last]
        starts = self.starts_S[begin : end + 1] - first
        return RowSums(self.source, self.stride, self.dim, self.rows_L[first:last], starts, weights)

    def at(self, numbers: Ids) -> RowSums:
        """Return the sums of the given numbers, in their order."""
        lengths = np.diff(self.starts_S)[numbers]
        starts = np.zeros(len(numbers) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        places = np.arange(starts[-1]) + np.repeat(self.starts_S[:-1][numbers] - starts[:-1], lengths)
        weights = None if self.weights_L is None else self.weights_L[torch.from_numpy(places)]
        return RowSums(self.source, self.stride, self.dim, self.rows_L[places], starts, weights)


def each_row(rows: Tensor) -> RowSums:
    """Return the rows of float32 [N, D] as sums of one row each."""
    numbers = np.arange(len(rows) + 1)
    return RowSums(rows, rows.stride(0), rows.shape[1], numbers[:-1], numbers)
