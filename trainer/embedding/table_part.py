"""This rank's rows of one table, whatever holds them: look up a list of ids, and update them with summed gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ett.trainer.embedding.dense_rows import DenseRows, PlainRows
from ett.trainer.sparse import row_kernels
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.row_sums import RowSums


@dataclass(frozen=True, slots=True)
class Groups:
    """The U distinct ids of a list of L, ascending, and where each stands."""

    ids_U: Ids
    order_L: Ids  # positions by (id, position)
    starts_U: Ids  # [U + 1], into order_L

    @staticmethod
    def of(ids_L: Ids) -> Groups:
        order_L, starts_U = row_kernels.group_ids(ids_L)
        return Groups(ids_L[order_L[starts_U[:-1]]], order_L, starts_U)

    def group_of_L(self) -> Ids:
        """Return the number of the distinct id at each position: int64 [L]."""
        groups = np.empty(len(self.order_L), np.int64)
        groups[self.order_L] = np.repeat(np.arange(len(self.ids_U)), np.diff(self.starts_U))
        return groups


@dataclass(frozen=True, slots=True)
class Summands:
    """What each position of a list adds to its id's gradient: a row of a buffer, times a weight."""

    source: Tensor
    stride: int
    rows_L: Ids
    weights_L: Tensor | None = None

    def sums(self, groups: Groups, dim: int) -> RowSums:
        """Return the sum for each distinct id, in the order of the positions."""
        weights = None if self.weights_L is None else self.weights_L[torch.from_numpy(groups.order_L)]
        return RowSums(self.source, self.stride, dim, self.rows_L[groups.order_L], groups.starts_U, weights)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows of a list of ids: position j has row rows_L[j] of source, which has adjacent rows."""

    ids_L: Ids
    source: Tensor
    rows_L: Ids
    groups: Groups | None = None  # where finding the rows needed them

    @property
    def dim(self) -> int:
        return self.source.shape[1]

    def pooled(self, starts_S: Ids, begin: int, weights_L: Tensor | None) -> RowSums:
        """Return sums of the positions from `begin` on, cut at starts_S."""
        part = slice(begin, begin + int(starts_S[-1]))
        weights = None if weights_L is None else weights_L[part]
        return RowSums(self.source, self.dim, self.dim, self.rows_L[part], starts_S, weights)


def find_rows(part: nn.Module, ids_L: Ids) -> FoundRows:
    """Return the rows of ids that this rank has and that were checked to be in range."""
    if isinstance(part, PlainRows):
        return FoundRows(ids_L, part.weight.detach(), ids_L - part.ids.start if part.ids.start else ids_L)
    assert isinstance(part, EmbeddingShard)
    groups = Groups.of(ids_L)
    rows_UD = torch.empty(len(groups.ids_U), part.dim)
    part.read(groups.ids_U, rows_UD)
    return FoundRows(ids_L, rows_UD, groups.group_of_L(), groups)


def update_rows(part: nn.Module, found: FoundRows, summands: Summands, learning_rate: float) -> None:
    """Take one optimizer step with each distinct id's summed gradients."""
    groups = found.groups or Groups.of(found.ids_L)
    update_groups(part, groups.ids_U, summands.sums(groups, found.dim), learning_rate)


def update_groups(part: nn.Module, ids_U: Ids, sums: RowSums, learning_rate: float) -> None:
    """Take one optimizer step: distinct ids of this rank, and the sum of gradients for each."""
    if isinstance(part, DenseRows):
        part.update(ids_U, sums, learning_rate)
        return
    assert isinstance(part, EmbeddingShard)
    part.update(ids_U, summed(sums), learning_rate)


def summed(sums: RowSums) -> Tensor:
    """Return float32 [S, dim]."""
    total = torch.empty(sums.count, sums.dim)
    row_kernels.sum_rows(sums, total, threads=torch.get_num_threads())
    return total
