"""Find the distinct (table, id) pairs of a batch, and sum gradients over their duplicates in a fixed order.

Shapes: F tables, B examples, L = B * F positions (position b * F + f is example b in table f), U distinct pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from ett.trainer.sparse.hashing import Ids


@dataclass(frozen=True, slots=True)
class DistinctIds:
    """The distinct pairs of some positions, ascending by (table, id)."""

    tables_U: Ids
    ids_U: Ids
    order_L: Ids  # positions by (table, id, position): those of pair u start at starts_U[u]
    starts_U: Ids
    pair_of_L: Ids  # the pair of each position

    def sum_duplicates(self, grads_LD: Tensor) -> Tensor:
        """Return float32 [U, D]: each pair's gradients added up in the order of their positions."""
        if not len(self.ids_U):
            return grads_LD.new_zeros((0, grads_LD.shape[1]))
        order, starts = torch.from_numpy(self.order_L), torch.from_numpy(self.starts_U)
        return embedding_bag(order, grads_LD, starts, mode="sum")


def distinct_in_batch(ids_FB: Ids) -> DistinctIds:
    """Return the distinct pairs of a batch with one id an example and table: int64 [F, B]."""
    num_tables, batch_size = ids_FB.shape
    examples_FB = np.argsort(ids_FB, axis=1, kind="stable")
    sorted_FB = np.take_along_axis(ids_FB, examples_FB, axis=1)
    is_first_FB = np.ones(ids_FB.shape, np.bool_)
    np.not_equal(sorted_FB[:, 1:], sorted_FB[:, :-1], out=is_first_FB[:, 1:])
    order_L = (examples_FB * num_tables + np.arange(num_tables)[:, None]).ravel()
    tables_L = np.repeat(np.arange(num_tables), batch_size)
    return _distinct(tables_L, sorted_FB.ravel(), order_L, is_first_FB.ravel())


def distinct_pairs(tables_L: Ids, ids_L: Ids) -> DistinctIds:
    """Return the distinct pairs of two parallel lists, int64 [L]."""
    order_L = np.lexsort((ids_L, tables_L))
    tables, ids = tables_L[order_L], ids_L[order_L]
    is_first = np.ones(len(ids), np.bool_)
    is_first[1:] = (ids[1:] != ids[:-1]) | (tables[1:] != tables[:-1])
    return _distinct(tables, ids, order_L, is_first)


def _distinct(tables_L: Ids, ids_L: Ids, order_L: Ids, is_first_L: NDArray[np.bool_]) -> DistinctIds:
    starts_U = np.flatnonzero(is_first_L)
    pair_of_L = np.empty(len(order_L), np.int64)
    pair_of_L[order_L] = np.cumsum(is_first_L) - 1
    return DistinctIds(tables_L[starts_U], ids_L[starts_U], order_L, starts_U, pair_of_L)
