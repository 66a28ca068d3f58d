"""Pooled rows of tables that other ranks have: ids go to the owners, which pool; sums come back, gradients go again.

One lookup is two messages for all tables together: lengths and ids, sums; weights of ids are a third and gradients one
more. A bag whose rows are on several ranks is the sum of their sums in the order of the ranks, and MEAN
divides by the length of the whole bag where the bag is. Of a row-sharded table only bags with an id there are sent. An
owner adds the gradients of a row in the order (feature, rank, bag), which is that of the global batch: given the same
gradients of the bags, no bit of an update depends on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ett.trainer.embedding.bag_lookup import joined_weights
from ett.trainer.embedding.feature_ids import FeatureIds, Slot, starts_of
from ett.trainer.embedding.rank_tables import RankTables
from ett.trainer.embedding.sharding import ShardingType
from ett.trainer.embedding.table_part import FoundRows, Summands, find_rows
from ett.trainer.sparse import row_kernels
from ett.trainer.sparse.hashing import Ids


@dataclass(frozen=True, slots=True)
class _Piece:
    """The bags of one slot as far as one rank has their rows."""

    ids_L: Ids
    weights_L: Tensor | None
    lengths_B: Ids
    bags: Ids | None  # those that are sent; None: all, and none of them is shared with another rank

    @property
    def num_bags(self) -> int:
        return len(self.lengths_B) if self.bags is None else len(self.bags)

    def lengths_sent(self) -> Ids:
        return self.lengths_B if self.bags is None else self.lengths_B[self.bags]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What all ranks asked of one table here: pieces in the order (slot, rank), and where their sums stand."""

    table: int
    pieces: list[_Piece]
    begins: list[int]  # element of the flat message where each piece's sums, and later gradients, begin
    found: FoundRows
    weights_L: Tensor | None


class BagExchange:
    """The slots of a collection whose tables are sharded."""

    def __init__(self, tables: RankTables, slots: Sequence[Slot]) -> None:
        self._tables, self._slots = tables, list(slots)
        world = range(tables.collectives.world_size)
        # Of each rank: the numbers of the slots of which it has rows.
        self._slots_on = [[n for n, slot in enumerate(self._slots) if self._has_rows(rank, slot)] for rank in world]

    def look_up(self, features: Sequence[FeatureIds], num_bags: int, out_BC: Tensor) -> ExchangedBags:
        """Write sums (of MEAN slots too) to the slots' columns of out; every rank calls, maybe with no bags."""
        collectives = self._tables.collectives
        sent = [self._pieces(slot, feature) for slot, feature in zip(self._slots, features, strict=True)]
        received = self._exchange_ids(sent, num_bags)
        asked, answer, counts = self._pooled(received)
        wanted = [sum(sent[n][rank].num_bags * self._slots[n].dim for n in on) for rank, on in self._by_rank()]
        sums = collectives.all_to_all(answer, counts, wanted)
        lookup = ExchangedBags(self, sent, asked, counts, wanted)
        lookup.deliver(sums, out_BC)
        return lookup

    def blocks(self, sent: list[dict[int, _Piece]]) -> list[tuple[Slot, _Piece, int]]:
        """Return the pieces in the order of the message to or from the owners, with each one's first element."""
        found, begin = [], 0
        for rank, on in self._by_rank():
            for n in on:
                found.append((self._slots[n], sent[n][rank], begin))
                begin += sent[n][rank].num_bags * self._slots[n].dim
        return found

    def update(self, asked: Sequence[_Asked], grads: Tensor, wanted: list[int], counts: list[int]) -> None:
        received = self._tables.collectives.all_to_all(grads, wanted, counts)
        for part in asked:
            dim = part.found.dim
            rows = [
                np.repeat(begin + dim * np.arange(piece.num_bags), piece.lengths_sent())
                for piece, begin in zip(part.pieces, part.begins, strict=True)
            ]
            summands = Summands(received, 1, np.concatenate(rows), part.weights_L)
            self._tables.update(part.table, part.found, summands)

    def _by_rank(self) -> list[tuple[int, list[int]]]:
        return list(enumerate(self._slots_on))

    def _has_rows(self, rank: int, slot: Slot) -> bool:
        sharding = self._tables.owners[slot.table].sharding
        return sharding.sharding_type is not ShardingType.TABLE_WISE or sharding.rank == rank

    def _pieces(self, slot: Slot, feature: FeatureIds) -> dict[int, _Piece]:
        """Return a slot's bags by the rank that has the rows; the order within a bag stays."""
        owners = self._tables.owners[slot.table]
        if owners.sharding.sharding_type is ShardingType.TABLE_WISE:
            return {owners.sharding.rank: _Piece(feature.ids_L, feature.weights_L, feature.lengths_B, None)}
        world_size, num_bags = self._tables.collectives.world_size, len(feature.lengths_B)
        owner_L = owners.owners(feature.ids_L)
        lengths = np.bincount(owner_L * num_bags + feature.bag_of_L(), minlength=world_size * num_bags)
        lengths_WB = lengths.reshape(world_size, num_bags)
        order = np.argsort(owner_L.astype(np.min_scalar_type(world_size)), kind="stable")
        ends = starts_of(lengths_WB.sum(axis=1))
        pieces = {}
        for rank, (begin, end) in enumerate(pairwise(ends.tolist())):
            part = order[begin:end]
            weights = None if feature.weights_L is None else feature.weights_L[torch.from_numpy(part)]
            bags = np.flatnonzero(lengths_WB[rank])
            pieces[rank] = _Piece(feature.ids_L[part], weights, lengths_WB[rank], bags)
        return pieces

    def _exchange_ids(self, sent: list[dict[int, _Piece]], num_bags: int) -> list[dict[int, _Piece]]:
        """Return what each rank asks of this one: by rank, pieces by slot."""
        collectives = self._tables.collectives
        to_rank = [[sent[n][rank] for n in on] for rank, on in self._by_rank()]
        stride = np.array([num_bags])
        parts = [[stride, *(p.lengths_B for p in pieces), *(p.ids_L for p in pieces)] for pieces in to_rank]
        send = [sum(len(part) for part in rank) for rank in parts]
        message = torch.from_numpy(np.concatenate([part for rank in parts for part in rank]))
        numbers, counts = collectives.all_to_all_uneven(message, send)
        by_rank = np.split(numbers.numpy(), np.cumsum(counts)[:-1])
        weights: list[Tensor] | None = None
        if self._is_weighted(sent):
            mine = joined_weights([piece.weights_L for pieces in to_rank for piece in pieces])
            num_ids = [sum(len(piece.ids_L) for piece in pieces) for pieces in to_rank]
            flat, sizes = collectives.all_to_all_uneven(torch.empty(0) if mine is None else mine, num_ids)
            weights = list(torch.split(flat, sizes))
        return [self._parsed(part, None if weights is None else weights[r]) for r, part in enumerate(by_rank)]

    @staticmethod
    def _is_weighted(sent: list[dict[int, _Piece]]) -> bool:
        return any(piece.weights_L is not None for pieces in sent for piece in pieces.values())

    def _parsed(self, numbers: Ids, weights: Tensor | None) -> dict[int, _Piece]:
        """Return what one rank asks: its message is the number of bags, the lengths of each slot here, ids."""
        here, stride = self._slots_on[self._tables.collectives.rank], int(numbers[0])
        lengths_SB = numbers[1 : 1 + len(here) * stride].reshape(len(here), stride)
        ids = numbers[1 + len(here) * stride :]
        ends = starts_of(lengths_SB.sum(axis=1)).tolist()
        pieces = {}
        for n, lengths, (begin, end) in zip(here, lengths_SB, pairwise(ends), strict=True):
            is_whole = self._tables.owners[self._slots[n].table].sharding.sharding_type is ShardingType.TABLE_WISE
            own = None if weights is None else weights[begin:end]
            pieces[n] = _Piece(ids[begin:end], own, lengths, None if is_whole else np.flatnonzero(lengths))
        return pieces

    def _pooled(self, received: list[dict[int, _Piece]]) -> tuple[list[_Asked], Tensor, list[int]]:
        """Return what was asked by table, the sums for all ranks as one message, and its parts' lengths."""
        here, begins, end = self._slots_on[self._tables.collectives.rank], {}, 0
        counts = []
        for rank, pieces in enumerate(received):
            first = end
            for n in here:
                begins[rank, n] = end
                end += pieces[n].num_bags * self._slots[n].dim
            counts.append(end - first)
        answer = torch.empty(end)
        asked = []
        for table in dict.fromkeys(self._slots[n].table for n in here):
            keys = [(rank, n) for n in here if self._slots[n].table == table for rank in range(len(received))]
            pieces_of = [received[rank][n] for rank, n in keys]
            weights = joined_weights([piece.weights_L for piece in pieces_of])
            found = find_rows(self._tables.parts[table], np.concatenate([piece.ids_L for piece in pieces_of]))
            at = 0
            for piece, key in zip(pieces_of, keys, strict=True):
                sums = found.pooled(starts_of(piece.lengths_sent()), at, weights)
                block = answer[begins[key] : begins[key] + sums.count * sums.dim].view(sums.count, sums.dim)
                row_kernels.sum_rows(sums, block, threads=torch.get_num_threads())
                at += len(piece.ids_L)
            asked.append(_Asked(table, pieces_of, [begins[key] for key in keys], found, weights))
        return asked, answer, counts


@dataclass(frozen=True, slots=True)
class ExchangedBags:
    """One lookup; `apply_gradients` may be called once."""

    exchange: BagExchange
    sent: list[dict[int, _Piece]]
    asked: list[_Asked]
    counts: list[int]  # elements of this rank's answers, by rank
    wanted: list[int]  # elements of the answers to this rank, by rank

    def deliver(self, sums: Tensor, out_BC: Tensor) -> None:
        """Put the owners' sums into the slots' columns; the first part of a shared bag is added to zero."""
        blocks = self.exchange.blocks(self.sent)
        for slot in {slot.column: slot for slot, piece, _ in blocks if piece.bags is not None}.values():
            out_BC[:, slot.column : slot.column + slot.dim] = 0.0
        for slot, piece, begin in blocks:
            columns = out_BC[:, slot.column : slot.column + slot.dim]
            rows = sums[begin : begin + piece.num_bags * slot.dim].view(piece.num_bags, slot.dim)
            if piece.bags is None:
                row_kernels.copy_rows(rows, None, columns, None)
            else:
                row_kernels.add_rows(columns, piece.bags, rows)

    def apply_gradients(self, grads_BC: Tensor) -> None:
        """Send the bags' gradients (those of MEAN slots divided by the bags' lengths) and update the rows there."""
        flat = torch.empty(sum(self.wanted))
        for slot, piece, begin in self.exchange.blocks(self.sent):
            columns = grads_BC[:, slot.column : slot.column + slot.dim]
            rows = flat[begin : begin + piece.num_bags * slot.dim].view(piece.num_bags, slot.dim)
            row_kernels.copy_rows(columns, piece.bags, rows, None)
        self.exchange.update(self.asked, flat, self.wanted, self.counts)
