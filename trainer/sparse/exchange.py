"""Bring rows from their owners to the ranks that need them, and gradients back.

One lookup is three messages for all tables together, whatever the widths of their rows: counts and a control word, ids,
rows; gradients are a fourth. Every rank sends each distinct (table, id) once; the owner de-duplicates again, reads or
updates each row once, and adds gradients in the order (sending rank, position). Nothing depends on slots, so the bits
depend on the batch, the rows and the world size alone.

A batch may be announced while earlier ones are in flight: announced and not yet applied. A row of it is *exclusive*, in
no batch in flight, and comes at once; or *colliding*, and comes when the batch is completed, after those updates. Which
is which its owner knows, and says in one byte a row, so the bits are those of one batch after the other.

The rows of a batch that another one waits for are updated first, and that one may be completed before the others are
updated, too. No bit depends on it: each row is updated once, from its own gradients and state, and the rows that a
completed batch reads are among the first. Between the two nothing is announced, so no batch comes to wait for a row
that is still to be updated. Tables where an update says which rows go, or may go, are updated whole, at first.

Shapes and lists by width as in row_route.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from ett.trainer.sparse.row_sums import RowSums
from ett.trainer.sparse.rows_gate import RowsGate

STOP = 1  # a bit of the control word: this rank was asked to stop
# Rows of a table whose update costs less than a second call: 20 us each at 16 elements, one thread.
_FEW = 512


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows of the tables of one width: position j, table after table, has row rows_L[j] of source."""

    source: Tensor  # float32 [U, D]
    rows_L: Ids


@dataclass(eq=False, slots=True)
class _InFlight:
    """A batch from its announcement, or its lookup, until its rows are updated."""

    route: Route
    is_awaited_O: list[Mask]  # which of its pairs a later batch waits for
    is_released: bool = False  # those are updated


class Lookup:
    """The rows of one batch, by width; `start_update` may be called once."""

    def __init__(self, exchange: RowExchange, batch: _InFlight, found: list[FoundRows], control: int) -> None:
        self.found = found
        self.control = control  # bitwise or of all ranks' control words
        self._exchange, self._batch = exchange, batch

    def start_update(self, grads: Sequence[PositionGradients], rates_T: Sequence[float]) -> Callable[[], None]:
        """Sum the positions' gradients at the rows' owners and take one optimizer step on rows that a batch waits for.

        Args:
            grads: by width.
            rates_T: each table's learning rate.
        Returns: what takes the step on the other rows. Any thread must call it, once, and soon: until then nothing
            else reads or writes rows but `RowExchange.complete`.
        """
        return self._exchange.start_update(self._batch, grads, rates_T)

    def drop(self) -> None:
        """Say that no gradients will come: the rows stay as they are."""
        self._exchange.drop(self._batch)


@dataclass(frozen=True, slots=True)
class Announced:
    """A batch whose ids are at their owners and whose exclusive rows are here; lists by width."""

    batch: _InFlight
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
        self._in_flight: list[_InFlight] = []  # announced and not yet applied, in order
        self.rows = RowsGate()  # closed while a step's update is under way; whoever saves holds it

    def look_up(self, ids_T: Sequence[Ids], control: int = 0) -> Lookup:
        """Return the row of every position, as they are now; every rank calls, with a batch that may be empty.

        Args:
            ids_T: int64 [L], the ids of each table.
            control: bits that all ranks get or-ed, in the message that carries the counts.
        """
        route, control = find_route(ids_T, self._owner_keys, self.widths, control, self._collectives)
        with self.rows:
            rows_OD = self._read(route, [np.ones(len(r.asked.ids_U), np.bool_) for r in route])
        rows_UD = send_rows(rows_OD, [Share.whole(r) for r in route], self._collectives)
        return self._lookup(_InFlight(route, _nothing_of(route)), rows_UD, control)

    def announce(self, ids_T: Sequence[Ids], control: int, collectives: Collectives) -> Announced:
        """Send ids to their owners and fetch the exclusive rows; every rank announces the same batches in one order.

        Args: collectives: others than the training thread's, which goes on meanwhile.
        """
        route, control = find_route(ids_T, self._owner_keys, self.widths, control, collectives)
        with self.rows:
            self._tell_announced(route)
            is_late_O = self._colliding(route)
            rows_OD = self._read(route, [~is_late for is_late in is_late_O])
            batch = _InFlight(route, _nothing_of(route))
            self._in_flight.append(batch)
        is_late_R = [is_late[r.asked.pair_of_L] for is_late, r in zip(is_late_O, route, strict=True)]
        flags = [torch.from_numpy(is_late.view(np.uint8)) for is_late in is_late_R]
        came = exchange_joined(flags, [(r.recv_counts, r.send_counts) for r in route], collectives)
        is_late_U = [flags.numpy().astype(np.bool_) for flags in came]
        shares = [Share.of(r, ~at_R, ~at_U) for r, at_R, at_U in zip(route, is_late_R, is_late_U, strict=True)]
        return Announced(batch, control, is_late_O, is_late_U, send_rows(rows_OD, shares, collectives))

    def complete(self, announced: Announced) -> Lookup:
        """Fetch the colliding rows; the update of every batch announced before has been started, or it was dropped."""
        batch, is_late_O, is_late_U = announced.batch, announced.is_late_O, announced.is_late_U
        in_flight = self._in_flight
        is_next = all(other.is_released for other in in_flight[: in_flight.index(batch)])
        assert is_next, "the update of a batch announced before has not been started"
        route = batch.route
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
        return self._lookup(batch, rows_UD, announced.control)

    def start_update(
        self, batch: _InFlight, grads: Sequence[PositionGradients], rates_T: Sequence[float]
    ) -> Callable[[], None]:
        """See `Lookup.start_update`."""
        route = batch.route
        grads_UD = [r.local.sum_duplicates(each) for r, each in zip(route, grads, strict=True)]
        sums_O = send_gradients(route, grads_UD, self._collectives)
        self.rows.close()
        with self.rows.open_on_error():
            later: list[_Update] = []
            for width, r, sums, is_awaited in zip(self.widths, route, sums_O, batch.is_awaited_O, strict=True):
                for update, is_first in self._updates(width, r, sums, is_awaited, rates_T):
                    if is_first:
                        update.take()
                    else:
                        later.append(update)
            batch.is_released = True

        def update_others() -> None:
            with self.rows.open_on_error():
                for update in later:
                    update.take()
                self._forget(batch)
            self.rows.open()

        return update_others

    def _updates(
        self, width: Width, route: WidthRoute, sums: RowSums, is_awaited: Mask, rates_T: Sequence[float]
    ) -> list[tuple[_Update, bool]]:
        """Return the updates of a width's tables, and which come first: those of rows that are waited for."""
        is_later = ~is_awaited
        tables = self._by_table(width, route)
        for _, shard, part in tables:
            if shard.updates_whole or int(is_later[part].sum()) < _FEW:
                is_later[part] = False
        ids = route.asked.ids_U
        if is_later.any():
            keys = route.asked.by_pair(np.arange(0, 2 * len(route.asked.parts_T), 2)) + is_later
            order = np.argsort(keys.astype(np.uint16), kind="stable")  # by table, those that come first before others
            ids, sums = ids[order], sums.at(order)
        found = []
        for number, shard, part in tables:
            middle = part.stop - int(is_later[part].sum())
            for begin, end, is_first in ((part.start, middle, True), (middle, part.stop, False)):
                if begin < end:
                    update = _Update(shard, ids[begin:end], sums.between(begin, end), rates_T[number])
                    found.append((update, is_first))
        return found

    def drop(self, batch: _InFlight) -> None:
        """See `Lookup.drop`."""
        with self.rows:
            self._forget(batch)

    def _forget(self, batch: _InFlight) -> None:
        left = [other for other in self._in_flight if other is not batch]
        if len(left) < len(self._in_flight):
            for width, r in zip(self.widths, batch.route, strict=True):
                for _, shard, _ in self._by_table(width, r):
                    shard.passed()
        self._in_flight = left

    def _lookup(self, batch: _InFlight, rows_UD: Sequence[Tensor], control: int) -> Lookup:
        found = [FoundRows(rows, r.arrived_at_L()) for rows, r in zip(rows_UD, batch.route, strict=True)]
        return Lookup(self, batch, found, control)

    def _tell_announced(self, route: Route) -> None:
        for width, r in zip(self.widths, route, strict=True):
            for _, shard, part in self._by_table(width, r):
                shard.announced(r.asked.ids_U[part])

    def _colliding(self, route: Route) -> list[Mask]:
        """Return which pairs a batch in flight may change: those that it has, too; all of a table that evicts.

        The batches in flight learn which of their pairs are waited for.
        """
        is_late_O = _nothing_of(route)
        for other in self._in_flight:
            pairs = zip(self.widths, route, other.route, is_late_O, other.is_awaited_O, strict=True)
            for width, mine, theirs, is_late, is_awaited in pairs:
                for number, shard, part in self._by_table(width, mine):
                    their_part = theirs.asked.parts_T[number - width.tables.start]
                    at = _places_in_sorted(mine.asked.ids_U[part], theirs.asked.ids_U[their_part])
                    is_late[part] |= shard.evicts or at >= 0
                    is_awaited[their_part][at[at >= 0]] = True
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


@dataclass(frozen=True, slots=True)
class _Update:
    """One optimizer step on some rows of a table."""

    shard: EmbeddingShard
    ids: Ids
    sums: RowSums
    rate: float

    def take(self) -> None:
        self.shard.update_sums(self.ids, self.sums, self.rate)


def _nothing_of(route: Route) -> list[Mask]:
    return [np.zeros(len(r.asked.ids_U), np.bool_) for r in route]


def _places_in_sorted(ids: Ids, among: Ids) -> Ids:
    """Return where ids stand among others, both ascending and distinct; -1 where they do not."""
    if not len(among):
        return np.full(len(ids), -1)
    at = np.minimum(np.searchsorted(among, ids), len(among) - 1)
    return np.where(among[at] == ids, at, -1)
