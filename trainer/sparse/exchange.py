"""Bring rows from their owners to the examples that need them, and gradients back.

One lookup is three messages for all tables together: counts and a control word, ids, rows; gradients are a fourth.
Every rank sends each distinct (table, id) once; the owner de-duplicates again, reads or updates each row once, and adds
gradients in the order (sending rank, position). Nothing depends on slots, so the bits depend on the batch, the rows and
the world size alone.

A batch may be announced while earlier ones are in flight: announced and not yet applied. A row of it is *exclusive*, in
no batch in flight, and comes at once; or *colliding*, and comes when the batch is completed, after those updates. Which
is which its owner knows, and says in one byte a row, so the bits are those of one batch after the other.

Shapes as in deduplicate.py; R = pairs that this rank was asked for, over all ranks; O = the distinct ones among them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ett.trainer.comm.collectives import Collectives
from ett.trainer.sparse.deduplicate import DistinctIds, distinct_in_batch, distinct_pairs
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import Ids, row_owner

STOP = 1  # a bit of the control word: this rank was asked to stop


@dataclass(frozen=True, eq=False, slots=True)
class _Route:
    """Which distinct pairs of this rank go where, and which came from where."""

    local: DistinctIds
    send_order_U: Ids  # pairs of `local` by (owner, table, id)
    send_counts: list[int]  # by rank
    recv_counts: list[int]  # by rank
    asked: DistinctIds  # the pairs asked of this rank; its positions are (sending rank, table, id)


@dataclass(frozen=True, slots=True)
class _Share:
    """Some of the rows that a route moves: where they stand at their owner, and how many go between which ranks."""

    pair_of_R: Ids
    recv_counts: list[int]  # asked of this rank, by rank
    send_counts: list[int]  # of this rank's own, by rank

    @staticmethod
    def of(route: _Route, some_R: NDArray[np.bool_], some_U: NDArray[np.bool_]) -> _Share:
        return _Share(
            route.asked.pair_of_L[some_R],
            _counts_by_rank(some_R, route.recv_counts),
            _counts_by_rank(some_U, route.send_counts),
        )


class Lookup:
    """The rows of one batch; `apply_gradients` may be called once."""

    def __init__(self, exchange: RowExchange, route: _Route, rows_LD: Tensor, control: int) -> None:
        self.rows_LD = rows_LD  # float32 [L, D]: the row of every position
        self.control = control  # bitwise or of all ranks' control words
        self._exchange, self._route = exchange, route

    def apply_gradients(self, grads_LD: Tensor, learning_rate: float) -> None:
        """Sum the positions' gradients (float32 [L, D]) at the rows' owners and take one optimizer step there."""
        self._exchange.apply(self._route, grads_LD, learning_rate)

    def drop(self) -> None:
        """Say that no gradients will come: the rows stay as they are."""
        self._exchange.drop(self._route)


@dataclass(frozen=True, slots=True)
class Announced:
    """A batch whose ids are at their owners and whose exclusive rows are here."""

    route: _Route
    control: int
    is_late_O: NDArray[np.bool_]  # which pairs asked of this rank collide
    is_late_U: NDArray[np.bool_]  # which of this rank's own do, by send_order_U
    early_UD: Tensor  # float32: the rows of the others, by send_order_U

    @property
    def num_asked(self) -> int:
        """Return how many distinct rows are asked of this rank."""
        return len(self.is_late_O)

    @property
    def num_colliding(self) -> int:
        """Return how many of them are in a batch in flight."""
        return int(self.is_late_O.sum())


class RowExchange:
    def __init__(self, shards: Sequence[EmbeddingShard], collectives: Collectives) -> None:
        """Tables are numbered as in shards, which all have rows of one width."""
        self._shards = list(shards)
        self._collectives = collectives
        self._dim = shards[0].dim
        self._owner_keys = np.array([shard.owner_key for shard in shards])
        self._in_flight: list[_Route] = []  # announced and not yet applied, in order
        # Held while rows are read or written: one thread announces while another one trains.
        self.rows_lock = threading.Lock()

    def look_up(self, ids_FB: Ids, control: int = 0) -> Lookup:
        """Return the row of every position, as they are now; every rank calls, with a batch that may be empty.

        Args:
            ids_FB: int64 [F, B], one id an example and table.
            control: bits that all ranks get or-ed, in the message that carries the counts.
        """
        route, control = self._route(distinct_in_batch(ids_FB), control, self._collectives)
        with self.rows_lock:
            rows_OD = self._read(route.asked, np.ones(len(route.asked.ids_U), np.bool_))
        share = _Share(route.asked.pair_of_L, route.recv_counts, route.send_counts)
        return self._lookup(route, _send(rows_OD, share, self._collectives), control)

    def announce(self, ids_FB: Ids, control: int, collectives: Collectives) -> Announced:
        """Send ids to their owners and fetch the exclusive rows; every rank announces the same batches in one order.

        Args: collectives: others than the training thread's, which goes on meanwhile.
        """
        route, control = self._route(distinct_in_batch(ids_FB), control, collectives)
        with self.rows_lock:
            is_late_O = self._colliding(route.asked)
            rows_OD = self._read(route.asked, ~is_late_O)
            self._in_flight.append(route)
        is_late_R = is_late_O[route.asked.pair_of_L]
        flags = torch.from_numpy(is_late_R.view(np.uint8))
        is_late_U = collectives.all_to_all(flags, route.recv_counts, route.send_counts).numpy().astype(np.bool_)
        early_UD = _send(rows_OD, _Share.of(route, ~is_late_R, ~is_late_U), collectives)
        return Announced(route, control, is_late_O, is_late_U, early_UD)

    def complete(self, announced: Announced) -> Lookup:
        """Fetch the colliding rows; every batch announced before has been applied or dropped."""
        route, is_late_O, is_late_U = announced.route, announced.is_late_O, announced.is_late_U
        with self.rows_lock:
            assert route is self._in_flight[0], "a batch announced before is still in flight"
            rows_OD = self._read(route.asked, is_late_O)
        share = _Share.of(route, is_late_O[route.asked.pair_of_L], is_late_U)
        rows_UD = torch.empty(len(is_late_U), self._dim)
        rows_UD[torch.from_numpy(is_late_U)] = _send(rows_OD, share, self._collectives)
        rows_UD[torch.from_numpy(~is_late_U)] = announced.early_UD
        return self._lookup(route, rows_UD, announced.control)

    def apply(self, route: _Route, grads_LD: Tensor, learning_rate: float) -> None:
        """See `Lookup.apply_gradients`."""
        grads_UD = route.local.sum_duplicates(grads_LD)
        grads_UD = grads_UD.index_select(0, torch.from_numpy(route.send_order_U))
        grads_RD = self._collectives.all_to_all(grads_UD, route.send_counts, route.recv_counts)
        grads_OD = route.asked.sum_duplicates(grads_RD)
        with self.rows_lock:
            for shard, part in self._by_table(route.asked):
                shard.update(route.asked.ids_U[part], grads_OD[part], learning_rate)
        self.drop(route)

    def drop(self, route: _Route) -> None:
        """See `Lookup.drop`."""
        with self.rows_lock:
            self._in_flight = [other for other in self._in_flight if other is not route]

    def _lookup(self, route: _Route, rows_UD: Tensor, control: int) -> Lookup:
        arrived_at_U = np.empty_like(route.send_order_U)
        arrived_at_U[route.send_order_U] = np.arange(len(arrived_at_U))
        rows_LD = rows_UD.index_select(0, torch.from_numpy(arrived_at_U[route.local.pair_of_L]))
        return Lookup(self, route, rows_LD, control)

    def _colliding(self, asked: DistinctIds) -> NDArray[np.bool_]:
        """Return which pairs a batch in flight may change: those that it has, too; all of a table that evicts."""
        is_late = np.zeros(len(asked.ids_U), np.bool_)
        for others in [route.asked for route in self._in_flight]:
            for shard, mine, theirs in zip(self._shards, self._parts(asked), self._parts(others), strict=True):
                is_late[mine] |= shard.evicts or _is_in_sorted(asked.ids_U[mine], others.ids_U[theirs])
        return is_late

    def _read(self, asked: DistinctIds, wanted_O: NDArray[np.bool_]) -> Tensor:
        """Return float32 [O, D] with the rows wanted; the others are undefined."""
        rows_OD = torch.empty(len(asked.ids_U), self._dim)
        for shard, part in self._by_table(asked):
            some = wanted_O[part]
            if some.all():
                shard.read(asked.ids_U[part], rows_OD[part])
            elif some.any():
                rows = torch.empty(int(some.sum()), self._dim)
                shard.read(asked.ids_U[part][some], rows)
                rows_OD[part][torch.from_numpy(some)] = rows
        return rows_OD

    def _route(self, local: DistinctIds, control: int, collectives: Collectives) -> tuple[_Route, int]:
        world_size, num_tables = collectives.world_size, len(self._shards)
        owners_U = row_owner(local.ids_U, self._owner_keys[local.tables_U], world_size)
        send_order_U = np.argsort(owners_U, kind="stable")
        counts = np.bincount(owners_U * num_tables + local.tables_U, minlength=world_size * num_tables)
        words = np.full((world_size, num_tables + 1), control)
        words[:, :-1] = counts.reshape(world_size, num_tables)
        received = collectives.exchange_words(torch.from_numpy(words)).numpy()
        send_counts, recv_counts = words[:, :-1].sum(axis=1).tolist(), received[:, :-1].sum(axis=1).tolist()
        send_ids = torch.from_numpy(local.ids_U[send_order_U])
        ids_R = collectives.all_to_all(send_ids, send_counts, recv_counts).numpy()
        tables_R = np.repeat(np.tile(np.arange(num_tables), world_size), received[:, :-1].ravel())
        route = _Route(local, send_order_U, send_counts, recv_counts, distinct_pairs(tables_R, ids_R))
        return route, int(np.bitwise_or.reduce(received[:, -1]))

    def _by_table(self, distinct: DistinctIds) -> list[tuple[EmbeddingShard, slice]]:
        parts = zip(self._shards, self._parts(distinct), strict=True)
        return [(shard, part) for shard, part in parts if part.start < part.stop]

    def _parts(self, distinct: DistinctIds) -> list[slice]:
        """Return where the pairs of each table stand."""
        ends = np.searchsorted(distinct.tables_U, np.arange(len(self._shards) + 1)).tolist()
        return [slice(start, end) for start, end in itertools.pairwise(ends)]


def _send(rows_OD: Tensor, share: _Share, collectives: Collectives) -> Tensor:
    """Send rows to whoever asked for them; return those that came, by send_order_U."""
    rows_RD = rows_OD.index_select(0, torch.from_numpy(share.pair_of_R))
    return collectives.all_to_all(rows_RD, share.recv_counts, share.send_counts)


def _counts_by_rank(some: NDArray[np.bool_], counts: Sequence[int]) -> list[int]:
    """Return how many are some of each rank's counts[k] consecutive entries."""
    ends = np.cumsum(np.concatenate([[0], counts])).astype(np.int64)
    before = np.concatenate([[0], np.cumsum(some)])
    by_rank: list[int] = np.diff(before[ends]).tolist()
    return by_rank


def _is_in_sorted(ids: Ids, among: Ids) -> NDArray[np.bool_]:
    """Return which ids are among others, both ascending and distinct."""
    if not len(among):
        return np.zeros(len(ids), np.bool_)
    at = np.searchsorted(among, ids)
    is_in: NDArray[np.bool_] = among[np.minimum(at, len(among) - 1)] == ids
    return is_in
