"""Bring rows from their owners to the examples that need them, and gradients back.

One lookup is three messages for all tables together: counts and a control word, ids, rows; gradients are a fourth.
Every rank sends each distinct (table, id) once; the owner de-duplicates again, reads or updates each row once, and adds
gradients in the order (sending rank, position). Nothing depends on slots, so the bits depend on the batch, the rows and
the world size alone.

Shapes as in deduplicate.py; R = pairs that this rank was asked for, over all ranks; O = the distinct ones among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ett.trainer.comm.collectives import Collectives
from ett.trainer.sparse.deduplicate import DistinctIds, distinct_in_batch, distinct_pairs
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import Ids, row_owner

STOP = 1  # a bit of the control word: this rank was asked to stop


@dataclass(frozen=True, slots=True)
class _Route:
    """Which distinct pairs of this rank go where, and which came from where."""

    local: DistinctIds
    send_order_U: Ids  # pairs of `local` by (owner, table, id)
    send_counts: list[int]  # by rank
    recv_counts: list[int]  # by rank
    asked: DistinctIds  # the pairs asked of this rank; its positions are (sending rank, table, id)


class Lookup:
    """The rows of one batch; `apply_gradients` may be called once."""

    def __init__(self, exchange: RowExchange, route: _Route, rows_LD: Tensor, control: int) -> None:
        self.rows_LD = rows_LD  # float32 [L, D]: the row of every position
        self.control = control  # bitwise or of all ranks' control words
        self._exchange, self._route = exchange, route

    def apply_gradients(self, grads_LD: Tensor, learning_rate: float) -> None:
        """Sum the positions' gradients (float32 [L, D]) at the rows' owners and take one optimizer step there."""
        self._exchange.apply(self._route, grads_LD, learning_rate)


class RowExchange:
    def __init__(self, shards: Sequence[EmbeddingShard], collectives: Collectives) -> None:
        """Tables are numbered as in shards, which all have rows of one width."""
        self._shards = list(shards)
        self._collectives = collectives
        self._dim = shards[0].dim
        self._owner_keys = np.array([shard.owner_key for shard in shards])

    def look_up(self, ids_FB: Ids, control: int = 0) -> Lookup:
        """Return the row of every position; every rank calls, with a batch that may be empty.

        Args:
            ids_FB: int64 [F, B], one id an example and table.
            control: bits that all ranks get or-ed, in the message that carries the counts.
        """
        route, control = self._route(distinct_in_batch(ids_FB), control)
        rows_OD = torch.empty(len(route.asked.ids_U), self._dim)
        for shard, part in self._by_table(route.asked):
            shard.read(route.asked.ids_U[part], rows_OD[part])
        rows_RD = rows_OD.index_select(0, torch.from_numpy(route.asked.pair_of_L))
        rows_UD = self._collectives.all_to_all(rows_RD, route.recv_counts, route.send_counts)
        arrived_at_U = np.empty_like(route.send_order_U)
        arrived_at_U[route.send_order_U] = np.arange(len(arrived_at_U))
        rows_LD = rows_UD.index_select(0, torch.from_numpy(arrived_at_U[route.local.pair_of_L]))
        return Lookup(self, route, rows_LD, control)

    def apply(self, route: _Route, grads_LD: Tensor, learning_rate: float) -> None:
        """See `Lookup.apply_gradients`."""
        grads_UD = route.local.sum_duplicates(grads_LD)
        grads_UD = grads_UD.index_select(0, torch.from_numpy(route.send_order_U))
        grads_RD = self._collectives.all_to_all(grads_UD, route.send_counts, route.recv_counts)
        grads_OD = route.asked.sum_duplicates(grads_RD)
        for shard, part in self._by_table(route.asked):
            shard.update(route.asked.ids_U[part], grads_OD[part], learning_rate)

    def _route(self, local: DistinctIds, control: int) -> tuple[_Route, int]:
        world_size, num_tables = self._collectives.world_size, len(self._shards)
        owners_U = row_owner(local.ids_U, self._owner_keys[local.tables_U], world_size)
        send_order_U = np.argsort(owners_U, kind="stable")
        counts = np.bincount(owners_U * num_tables + local.tables_U, minlength=world_size * num_tables)
        words = np.full((world_size, num_tables + 1), control)
        words[:, :-1] = counts.reshape(world_size, num_tables)
        received = self._collectives.exchange_words(torch.from_numpy(words)).numpy()
        send_counts, recv_counts = words[:, :-1].sum(axis=1).tolist(), received[:, :-1].sum(axis=1).tolist()
        send_ids = torch.from_numpy(local.ids_U[send_order_U])
        ids_R = self._collectives.all_to_all(send_ids, send_counts, recv_counts).numpy()
        tables_R = np.repeat(np.tile(np.arange(num_tables), world_size), received[:, :-1].ravel())
        route = _Route(local, send_order_U, send_counts, recv_counts, distinct_pairs(tables_R, ids_R))
        return route, int(np.bitwise_or.reduce(received[:, -1]))

    def _by_table(self, distinct: DistinctIds) -> list[tuple[EmbeddingShard, slice]]:
        ends = np.searchsorted(distinct.tables_U, np.arange(len(self._shards) + 1)).tolist()
        parts = [slice(start, end) for start, end in itertools.pairwise(ends)]
        return [(shard, part) for shard, part in zip(self._shards, parts, strict=True) if part.start < part.stop]
