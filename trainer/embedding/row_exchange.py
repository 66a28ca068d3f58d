"""Rows of tables that other ranks have, one for each position: distinct ids go to the owners, rows come back.

A rank sends each distinct id of a table once; the owner groups them again over the ranks. Gradients of an id are summed
on its rank in the order of its positions, and at the owner in the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ett.trainer.embedding.feature_ids import starts_of
from ett.trainer.embedding.rank_tables import RankTables
from ett.trainer.embedding.table_part import FoundRows, Groups, Summands, find_rows, summed
from ett.trainer.sparse import row_kernels
from ett.trainer.sparse.hashing import Ids


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The distinct ids of one table on this rank, by owner."""

    groups: Groups
    order_U: Ids  # distinct ids by (owner, id)
    ends_W: list[int]  # where each owner's ids begin in order_U, and the end


@dataclass(frozen=True, slots=True)
class _Block:
    """The rows of one table that went to, or come from, one rank, as they stand in the flat message."""

    table: int  # number among the exchanged ones
    begin: int
    count: int


class TableRowExchange:
    """The tables of a collection that are sharded; they are numbered here by their place in `numbers`."""

    def __init__(self, tables: RankTables, numbers: Sequence[int]) -> None:
        self._tables, self.numbers = tables, list(numbers)
        self._dims = [tables.configs[number].embedding_dim for number in numbers]

    def look_up(self, ids_of_tables: Sequence[Ids]) -> ExchangedRows:
        """Return the rows of each table's ids; every rank calls, and lists may be empty."""
        collectives, world_size = self._tables.collectives, self._tables.collectives.world_size
        wanted = [self._wanted(n, ids) for n, ids in zip(self.numbers, ids_of_tables, strict=True)]
        counts = np.stack([np.diff(w.ends_W) for w in wanted], axis=1)  # [W, T]
        parts = [w.groups.ids_U[w.order_U[begin:end]] for w, begin, end, _ in self._by_owner(wanted)]
        num_tables = len(self.numbers)
        for rank in reversed(range(world_size)):  # each rank's message begins with how many ids of each table it has
            parts.insert(rank * num_tables, counts[rank])
        message = torch.from_numpy(np.concatenate(parts))
        numbers, sizes = collectives.all_to_all_uneven(message, (counts.sum(1) + num_tables).tolist())
        by_rank = np.split(numbers.numpy(), np.cumsum(sizes)[:-1])
        asked = np.stack([part[:num_tables] for part in by_rank])
        received = np.concatenate([part[num_tables:] for part in by_rank])
        blocks = _blocks(asked, self._dims)
        ends = starts_of(asked.ravel()).reshape(-1)
        found = []
        answer = torch.empty(int((asked * self._dims).sum()))
        for t, number in enumerate(self.numbers):
            places = [rank * len(self.numbers) + t for rank in range(world_size)]
            parts = [received[ends[place] : ends[place + 1]] for place in places]
            rows = find_rows(self._tables.parts[number], np.concatenate(parts))
            at = 0
            for block in (b for b in blocks if b.table == t):
                out = answer[block.begin : block.begin + block.count * rows.dim].view(block.count, rows.dim)
                row_kernels.copy_rows(rows.source, rows.rows_L[at : at + block.count], out, None)
                at += block.count
            found.append(rows)
        wanted_sizes, asked_sizes = (counts * self._dims).sum(1).tolist(), (asked * self._dims).sum(1).tolist()
        rows_here = collectives.all_to_all(answer, asked_sizes, wanted_sizes)
        return ExchangedRows(
            self, wanted, found, blocks, asked_sizes, wanted_sizes, self._placed(wanted, counts, rows_here)
        )

    def send_gradients(self, lookup: ExchangedRows, grads_UD: Sequence[Tensor]) -> None:
        parts = [(grads_UD[t], w.order_U[begin:end]) for w, begin, end, t in self._by_owner(lookup.wanted)]
        flat = torch.empty(sum(lookup.sizes))
        at = 0
        for grads, order in parts:
            size = len(order) * grads.shape[1]
            row_kernels.copy_rows(grads, order, flat[at : at + size].view(len(order), grads.shape[1]), None)
            at += size
        received = self._tables.collectives.all_to_all(flat, lookup.sizes, lookup.asked_sizes)
        for t, number in enumerate(self.numbers):
            rows = [b.begin + self._dims[t] * np.arange(b.count) for b in lookup.blocks if b.table == t]
            self._tables.update(number, lookup.found[t], Summands(received, 1, np.concatenate(rows)))

    def _wanted(self, number: int, ids_L: Ids) -> _Wanted:
        groups = Groups.of(ids_L)
        owners_U = self._tables.owners[number].owners(groups.ids_U)
        order_U = np.argsort(owners_U.astype(np.uint16), kind="stable")
        counts = np.bincount(owners_U, minlength=self._tables.collectives.world_size)
        return _Wanted(groups, order_U, starts_of(counts).tolist())

    def _by_owner(self, wanted: Sequence[_Wanted]) -> list[tuple[_Wanted, int, int, int]]:
        """Return (table's ids, first, end, table) in the order of a message: by owner, then by table."""
        ranks = range(self._tables.collectives.world_size)
        return [(w, w.ends_W[rank], w.ends_W[rank + 1], t) for rank in ranks for t, w in enumerate(wanted)]

    def _placed(self, wanted: Sequence[_Wanted], counts: Ids, rows: Tensor) -> list[Tensor]:
        """Return each table's rows in the order of its distinct ids."""
        placed = [torch.empty(len(w.groups.ids_U), dim) for w, dim in zip(wanted, self._dims, strict=True)]
        blocks = _blocks(counts, self._dims)
        for block, (w, begin, end, t) in zip(blocks, self._by_owner(wanted), strict=True):
            part = rows[block.begin : block.begin + block.count * self._dims[t]].view(block.count, self._dims[t])
            row_kernels.copy_rows(part, None, placed[t], w.order_U[begin:end])
        return placed


@dataclass(frozen=True, slots=True)
class ExchangedRows:
    """One lookup; `apply_gradients` may be called once."""

    exchange: TableRowExchange
    wanted: list[_Wanted]
    found: list[FoundRows]
    blocks: list[_Block]
    asked_sizes: list[int]
    sizes: list[int]
    rows_UD: list[Tensor]  # of each table

    def rows_of(self, table: int) -> FoundRows:
        """Return the rows of each position of a table's list."""
        groups = self.wanted[table].groups
        return FoundRows(groups.ids_U, self.rows_UD[table], groups.group_of_L(), groups)

    def apply_gradients(self, grads_LD: Sequence[Tensor]) -> None:
        """Sum each table's gradients, float32 [L, D], by id, and update the rows at their owners."""
        sums = []
        for w, grads in zip(self.wanted, grads_LD, strict=True):
            every_row = Summands(grads, grads.shape[1], np.arange(len(grads)))
            sums.append(summed(every_row.sums(w.groups, grads.shape[1])))
        self.exchange.send_gradients(self, sums)


def _blocks(counts_WT: Ids, dims: Sequence[int]) -> list[_Block]:
    """Return the blocks of a message, by rank, then by table."""
    begin, blocks = 0, []
    for counts in counts_WT.tolist():
        for table, count in enumerate(counts):
            blocks.append(_Block(table, begin, count))
            begin += count * dims[table]
    return blocks
