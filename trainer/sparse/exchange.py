"""Bring rows from their owners to the ranks that need them, and gradients back.

One lookup is three messages for all tables together, whatever the widths of their rows: counts and a control word, ids,
rows; gradients are a fourth. Every rank sends each distinct (table, id) once; the owner de-duplicates again, reads or
updates each row once, and adds gradients in the order (sending rank, position). Nothing depends on slots, so the bits
depend on the batch, the rows and the world size alone.

A batch may be announced while earlier ones are in flight: announced and not yet applied. A row of it is *exclusive*, in
no batch in flight, and comes at once; or *colliding*, and comes when the batch is completed, after those updates. Which
is which its owner knows, and says in one byte a row, so the bits are those of one batch after the other.

Shapes and lists by width as in row_route.py.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ett.trainer.comm.collectives import Collectives
from ett.trainer.sparse.deduplicate import PositionGradients
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.row_route import (
    Mask,
    Route,
    Share,
    Width,
    WidthRoute,
    exchange_joined,
    find_route,
    send_gradients,
    send_rows,
)

STOP = 1  # a bit of the control word: this rank was asked to stop


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows of the tables of one width: position j, table after table, has row rows_L[j] of source."""

    source: Tensor  # float32 [U, D]
    rows_L: Ids


class Lookup:
    """The rows of one batch, by width; `apply_gradients` may be called once."""

    def __init__(self, exchange: RowExchange, route: Route, found: list[FoundRows], control: int) -> None:
        self.found = found
        self.control = control  # bitwise or of all ranks' control words
        self._exchange, self._route = exchange, route

    def apply_gradients(self, grads: Sequence[PositionGradients], rates_T: Sequence[float]) -> None:
        """Sum the positions' gradients at the rows' owners and take one optimizer step there.

        Args:
            grads: by width.
            rates_T: each table's learning rate.
        """
        self._exchange.apply(self._route, grads, rates_T)

    def drop(self) -> None:
        """Say that no gradients will come: the rows stay as they are."""
        self._exchange.drop(self._route)


@dataclass(frozen=True, slots=True)
class Announced:
    """A batch whose ids are at their owners and whose exclusive rows are here; lists by width."""

    route: Route
    control: int
    is_late_O: list[Mask]  # which pairs asked of this rank collide
    is_late_U: list[Mask]  # which of this rank's own do, by send_order_U
    early_UD: list[Tensor]  # float32: the rows of the others, by send_order_U


class RowExchange:
    def __init__(self, shards: Sequence[EmbeddingShard], collectives: Collectives) -> None:
        """Tables are numbered as in shards, which stand by the widths of their rows."""
        self._shards = list(shards)
        self._collectives = collectives
        self.widths = Width.of([shard.dim for shard in shards])
        self._owner_keys = np.array([shard.owner_key for shard in shards])
        self._in_flight: list[Route] = []  # announced and not yet applied, in order
        # Held while rows are read or written: one thread announces while another one trains.
        self.rows_lock = threading.Lock()

    def look_up(self, ids_T: Sequence[Ids], control: int = 0) -> Lookup:
        """Return the row of every position, as they are now; every rank calls, with a batch that may be empty.

        Args:
            ids_T: int64 [L], the ids of each table.
            control: bits that all ranks get or-ed, in the message that carries the counts.
        """
        route, control = find_route(ids_T, self._owner_keys, self.widths, control, self._collectives)
        with self.rows_lock:
            rows_OD = self._read(route, [np.ones(len(r.asked.ids_U), np.bool_) for r in route])
        rows_UD = send_rows(rows_OD, [Share.whole(r) for r in route], self._collectives)
        return self._lookup(route, rows_UD, control)

    def announce(self, ids_T: Sequence[Ids], control: int, collectives: Collectives) -> Announced:
        """Send ids to their owners and fetch the exclusive rows; every rank announces the same batches in one order.

        Args: collectives: others than the training thread's, which goes on meanwhile.
        """
        route, control = find_route(ids_T, self._owner_keys, self.widths, control, collectives)
        with self.rows_lock:
            is_late_O = self._colliding(route)
            rows_OD = self._read(route, [~is_late for is_late in is_late_O])
            self._in_flight.append(route)
        is_late_R = [is_late[r.asked.pair_of_L] for is_late, r in zip(is_late_O, route, strict=True)]
        flags = [torch.from_numpy(is_late.view(np.uint8)) for is_late in is_late_R]
        came = exchange_joined(flags, [(r.recv_counts, r.send_counts) for r in route], collectives)
        is_late_U = [flags.numpy().astype(np.bool_) for flags in came]
        shares = [Share.of(r, ~at_R, ~at_U) for r, at_R, at_U in zip(route, is_late_R, is_late_U, strict=True)]
        return Announced(route, control, is_late_O, is_late_U, send_rows(rows_OD, shares, collectives))

    def complete(self, announced: Announced) -> Lookup:
        """Fetch the colliding rows; every batch announced before has been applied or dropped."""
        route, is_late_O, is_late_U = announced.route, announced.is_late_O, announced.is_late_U
        with self.rows_lock:
            assert route is self._in_flight[0], "a batch announced before is still in flight"
            rows_OD = self._read(route, is_late_O)
        shares = [
            Share.of(r, at_O[r.asked.pair_of_L], at_U)
            for r, at_O, at_U in zip(route, is_late_O, is_late_U, strict=True)
        ]
        rows_UD = []
        late_UD = send_rows(rows_OD, shares, self._collectives)
        for is_late, late, early in zip(is_late_U, late_UD, announced.early_UD, strict=True):
            rows = torch.empty(len(is_late), early.shape[1])
            rows[torch.from_numpy(is_late)] = late
            rows[torch.from_numpy(~is_late)] = early
            rows_UD.append(rows)
        return self._lookup(route, rows_UD, announced.control)

    def apply(self, route: Route, grads: Sequence[PositionGradients], rates_T: Sequence[float]) -> None:
        """See `Lookup.apply_gradients`."""
        grads_UD = [r.local.sum_duplicates(each) for r, each in zip(route, grads, strict=True)]
        grads_OD = send_gradients(route, grads_UD, self._collectives)
        with self.rows_lock:
            for width, r, grads_of_width in zip(self.widths, route, grads_OD, strict=True):
                for number, shard, part in self._by_table(width, r):
                    shard.update(r.asked.ids_U[part], grads_of_width[part], rates_T[number])
        self.drop(route)

    def drop(self, route: Route) -> None:
        """See `Lookup.drop`."""
        with self.rows_lock:
            self._in_flight = [other for other in self._in_flight if other is not route]

    def _lookup(self, route: Route, rows_UD: Sequence[Tensor], control: int) -> Lookup:
        found = [FoundRows(rows, r.arrived_at_L()) for rows, r in zip(rows_UD, route, strict=True)]
        return Lookup(self, route, found, control)

    def _colliding(self, route: Route) -> list[Mask]:
        """Return which pairs a batch in flight may change: those that it has, too; all of a table that evicts."""
        is_late_O = [np.zeros(len(r.asked.ids_U), np.bool_) for r in route]
        for other in self._in_flight:
            for width, mine, theirs, is_late in zip(self.widths, route, other, is_late_O, strict=True):
                for number, shard, part in self._by_table(width, mine):
                    ids = theirs.asked.ids_U[theirs.asked.parts_T[number - width.tables.start]]
                    is_late[part] |= shard.evicts or _is_in_sorted(mine.asked.ids_U[part], ids)
        return is_late_O

    def _read(self, route: Route, wanted_O: Sequence[Mask]) -> list[Tensor]:
        """Return float32 [O, D] with the rows wanted; the others are undefined."""
        rows_OD = []
        for width, r, wanted in zip(self.widths, route, wanted_O, strict=True):
            rows = torch.empty(len(r.asked.ids_U), width.dim)
            for _, shard, part in self._by_table(width, r):
                some = wanted[part]
                if some.all():
                    shard.read(r.asked.ids_U[part], rows[part])
                elif some.any():
                    few = torch.empty(int(some.sum()), width.dim)
                    shard.read(r.asked.ids_U[part][some], few)
                    rows[part][torch.from_numpy(some)] = few
            rows_OD.append(rows)
        return rows_OD

    def _by_table(self, width: Width, route: WidthRoute) -> list[tuple[int, EmbeddingShard, slice]]:
        """Return number, shard and asked pairs of each table that has some."""
        tables = enumerate(route.asked.parts_T, start=width.tables.start)
        return [(number, self._shards[number], part) for number, part in tables if part.start < part.stop]


def _is_in_sorted(ids: Ids, among: Ids) -> Mask:
    """Return which ids are among others, both ascending and distinct."""
    if not len(among):
        return np.zeros(len(ids), np.bool_)
    at = np.minimum(np.searchsorted(among, ids), len(among) - 1)
    found: Mask = among[at] == ids
    return found
