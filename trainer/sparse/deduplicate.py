"""Find the distinct (table, id) pairs of a batch, and sum gradients over their duplicates in a fixed order.

Shapes: T tables, L positions, each an id of a table, U distinct pairs, D elements of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ett.trainer.sparse import row_kernels
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.row_sums import RowSums


@dataclass(frozen=True, slots=True)
class PositionGradients:
    """The gradient of each position: a row of `source`, float32 [N, D] and contiguous, times a weight."""

    source: Tensor
    rows_L: Ids | None = None  # None: row j for position j
    weights_L: Tensor | None = None  # None: all are one


@dataclass(frozen=True, slots=True)
class DistinctIds:
    """The distinct pairs of some positions, ascending by (table, id)."""

    ids_U: Ids
    parts_T: list[slice]  # the pairs of each table
    order_L: Ids  # positions by (table, id, position): those of pair u are order_L[starts_U[u]:starts_U[u + 1]]
    starts_U: Ids  # [U + 1]
    pair_of_L: Ids  # the pair of each position

    def sums(self, grads: PositionGradients) -> RowSums:
        """Return the sum for each pair: its gradients added to +0 in the order of their positions."""
        dim = grads.source.shape[1]
        rows = self.order_L if grads.rows_L is None else grads.rows_L[self.order_L]
        weights = None if grads.weights_L is None else grads.weights_L[torch.from_numpy(self.order_L)]
        return RowSums(grads.source, dim, dim, rows, self.starts_U, weights)

    def sum_duplicates(self, grads: PositionGradients) -> Tensor:
        """Return `sums` as float32 [U, D]."""
        total = torch.empty(len(self.ids_U), grads.source.shape[1])
        row_kernels.sum_rows(self.sums(grads), total, threads=torch.get_num_threads())
        return total

    def by_pair(self, of_tables: Ids) -> Ids:
        """Return each pair's value of one for each table."""
        return np.repeat(of_tables, [part.stop - part.start for part in self.parts_T])


def distinct_pairs(ids_L: Ids, counts_KT: Ids) -> DistinctIds:
    """Return the distinct pairs of ids that stand in blocks: counts_KT[0, 0] of table 0, then [0, 1] of table 1, …"""
    num_tables = counts_KT.shape[1]
    by_table = None  # positions by (table, position); None: they stand so already
    if len(counts_KT) > 1:
        tables_L = np.repeat(np.tile(np.arange(num_tables, dtype=np.uint16), len(counts_KT)), counts_KT.ravel())
        by_table = np.argsort(tables_L, kind="stable")
    sorted_L = ids_L if by_table is None else ids_L[by_table]
    orders, starts, parts, begin, first = [], [], [], 0, 0
    for count in counts_KT.sum(0).tolist():
        order, starts_of_table = row_kernels.group_ids(sorted_L[begin : begin + count])
        orders.append(order + begin)
        starts.append(starts_of_table[:-1] + begin)
        parts.append(slice(first, first + len(starts_of_table) - 1))
        begin, first = begin + count, parts[-1].stop
    order_L, starts_U = np.concatenate(orders), np.concatenate([*starts, [len(ids_L)]])
    if by_table is not None:
        order_L = by_table[order_L]
    pair_of_L = np.empty(len(order_L), np.int64)
    pair_of_L[order_L] = np.repeat(np.arange(first), np.diff(starts_U))
    return DistinctIds(ids_L[order_L[starts_U[:-1]]], parts, order_L, starts_U, pair_of_L)
