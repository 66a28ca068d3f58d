"""Which distinct rows of a batch go between which ranks: one message for all tables, whatever the widths of their rows.

Tables are numbered by the widths of their rows, so those of one width are a range, and everything here is a list by
width. A message to a rank holds the first width's part, then the next one's.

Shapes as in deduplicate.py, of the tables of one width; R = pairs that this rank was asked for, over all ranks; O = the
distinct ones among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ett.trainer.comm.collectives import Collectives
from ett.trainer.sparse.deduplicate import DistinctIds, PositionGradients, distinct_pairs
from ett.trainer.sparse.hashing import Ids, row_owner
from ett.trainer.sparse.row_sums import RowSums

Mask = NDArray[np.bool_]
Sizes = tuple[list[int], list[int]]  # entries that go to each rank, and that come from each


@dataclass(frozen=True, slots=True)
class Width:
    """The tables whose rows have `dim` elements."""

    dim: int
    tables: slice

    @staticmethod
    def of(dims: Sequence[int]) -> list[Width]:
        """Args: dims: of each table, ascending."""
        assert list(dims) == sorted(dims), dims
        ends = [0, *(i for i in range(1, len(dims)) if dims[i] != dims[i - 1]), len(dims)]
        return [Width(dims[begin], slice(begin, end)) for begin, end in itertools.pairwise(ends)]


@dataclass(frozen=True, eq=False, slots=True)
class WidthRoute:
    """Which distinct pairs of this rank go where, and which came from where."""

    local: DistinctIds
    send_order_U: Ids  # pairs of `local` by (owner, table, id)
    send_counts: list[int]  # by rank
    recv_counts: list[int]  # by rank
    asked: DistinctIds  # the pairs asked of this rank; its positions are (sending rank, table, id)

    def arrived_at_L(self) -> Ids:
        """Return where the row of each position stands among those that came, by send_order_U."""
        arrived_at_U = np.empty_like(self.send_order_U)
        arrived_at_U[self.send_order_U] = np.arange(len(arrived_at_U))
        return arrived_at_U[self.local.pair_of_L]


Route = list[WidthRoute]  # by width


@dataclass(frozen=True, slots=True)
class Share:
    """Some of the rows that a route moves: where they stand at their owner, and how many go between which ranks."""

    pair_of_R: Ids
    recv_counts: list[int]  # asked of this rank, by rank
    send_counts: list[int]  # of this rank's own, by rank

    @staticmethod
    def whole(route: WidthRoute) -> Share:
        return Share(route.asked.pair_of_L, route.recv_counts, route.send_counts)

    @staticmethod
    def of(route: WidthRoute, some_R: Mask, some_U: Mask) -> Share:
        return Share(
            route.asked.pair_of_L[some_R],
            _counts_by_rank(some_R, route.recv_counts),
            _counts_by_rank(some_U, route.send_counts),
        )


def find_route(
    ids_T: Sequence[Ids],
    owner_keys_T: NDArray[np.uint64],
    widths: Sequence[Width],
    control: int,
    collectives: Collectives,
) -> tuple[Route, int]:
    """Send the distinct ids of each table to their owners; return also the bitwise or of all ranks' control words."""
    world_size, num_tables = collectives.world_size, len(ids_T)
    words = np.full((world_size, num_tables + 1), control)
    own: list[tuple[DistinctIds, Ids]] = []
    for width in widths:
        ids = ids_T[width.tables]
        local = distinct_pairs(np.concatenate(ids), np.array([[len(part) for part in ids]]))
        tables_U = local.by_pair(np.arange(len(ids)))
        owners_U = row_owner(local.ids_U, owner_keys_T[width.tables][tables_U], world_size)
        counts = np.bincount(owners_U * len(ids) + tables_U, minlength=world_size * len(ids))
        words[:, width.tables] = counts.reshape(world_size, len(ids))
        own.append((local, np.argsort(owners_U.astype(np.uint16), kind="stable")))
    received = collectives.exchange_words(torch.from_numpy(words)).numpy()
    sizes: list[Sizes] = [(words[:, w.tables].sum(1).tolist(), received[:, w.tables].sum(1).tolist()) for w in widths]
    ids_UW = [torch.from_numpy(local.ids_U[order]) for local, order in own]
    ids_RW = exchange_joined(ids_UW, sizes, collectives)
    route = [
        WidthRoute(local, order, sent, came, distinct_pairs(ids_R.numpy(), received[:, width.tables]))
        for width, (local, order), (sent, came), ids_R in zip(widths, own, sizes, ids_RW, strict=True)
    ]
    return route, int(np.bitwise_or.reduce(received[:, -1]))


def exchange_joined(parts: Sequence[Tensor], counts: Sequence[Sizes], collectives: Collectives) -> list[Tensor]:
    """Send entries of several lists, which may differ in width, in one message to each rank; return those received.

    Args:
        parts: [n] or [n, D] each, of one dtype; the entries of each by receiving rank.
        counts: of each, how many go to which rank, and how many come from it.
    """
    if len(parts) == 1:
        return [collectives.all_to_all(parts[0], *counts[0])]
    widths = [1 if part.dim() == 1 else part.shape[1] for part in parts]
    ranks = range(collectives.world_size)
    each = list(zip(parts, widths, counts, strict=True))
    pieces = [torch.split(part.reshape(-1), [width * count for count in sent]) for part, width, (sent, _) in each]
    message = torch.cat([piece[rank] for rank in ranks for piece in pieces])
    send_sizes, recv_sizes = (
        [sum(width * both[side][rank] for _, width, both in each) for rank in ranks] for side in (0, 1)
    )
    came = collectives.all_to_all(message, send_sizes, recv_sizes)
    blocks = torch.split(came, [width * recv[rank] for rank in ranks for _, width, (_, recv) in each])
    joined = [torch.cat(blocks[number :: len(parts)]) for number in range(len(parts))]
    return [flat.view(-1, *part.shape[1:]) for flat, part in zip(joined, parts, strict=True)]


def send_rows(rows_OD: Sequence[Tensor], shares: Sequence[Share], collectives: Collectives) -> list[Tensor]:
    """Send rows to whoever asked for them; return those that came, by send_order_U."""
    rows_RD = [rows.index_select(0, torch.from_numpy(s.pair_of_R)) for rows, s in zip(rows_OD, shares, strict=True)]
    return exchange_joined(rows_RD, [(s.recv_counts, s.send_counts) for s in shares], collectives)


def send_gradients(route: Route, grads_UD: Sequence[Tensor], collectives: Collectives) -> list[RowSums]:
    """Send the gradients of this rank's pairs to the owners; return the sum of each pair asked of this rank."""
    parts = [g.index_select(0, torch.from_numpy(r.send_order_U)) for g, r in zip(grads_UD, route, strict=True)]
    came = exchange_joined(parts, [(r.send_counts, r.recv_counts) for r in route], collectives)
    return [r.asked.sums(PositionGradients(rows)) for r, rows in zip(route, came, strict=True)]


def _counts_by_rank(some: Mask, counts: Sequence[int]) -> list[int]:
    """Return how many are some of each rank's counts[k] consecutive entries."""
    ends = np.cumsum(np.concatenate([[0], counts])).astype(np.int64)
    before = np.concatenate([[0], np.cumsum(some)])
    by_rank: list[int] = np.diff(before[ends]).tolist()
    return by_rank
