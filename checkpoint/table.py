"""What a sparse table shows to the checkpoint: rows keyed by id, never by slot; imports torch only to copy a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSpec:
    """One optimizer state of every row, such as StateSpec(name="adagrad.sum", dtype="float32", width=1)."""

    name: str
    dtype: str
    width: int  # elements per row


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRows:
    """Some rows of a table: weights and every optimizer state under one id list.

    ids: int64 [N], strictly ascending. weights: [N, dim] of the table's weight dtype. states: name -> [N, width].
    """

    ids: Tensor
    weights: Tensor
    states: dict[str, Tensor]


@runtime_checkable
class TableShard(Protocol):
    """This rank's part of one table.

    While it is saved or restored nobody else touches it. Several threads may be in `gather` at a time, with other ids
    each, and likewise in `import_rows`. A rank that only has copies of rows, which another rank saves, has `is_copy`.
    """

    name: str
    dim: int
    weight_dtype: str
    states: tuple[StateSpec, ...]

    def begin_export(self) -> Tensor:
        """Return the ids of all rows that this rank saves, int64 [N], strictly ascending; no id is on two ranks."""

    def gather(self, ids: Tensor, out: TableRows) -> None:
        """Copy rows that `begin_export` named to out.weights and out.states: contiguous host tensors of len(ids) rows.

        Args: ids: int64 [M], ascending: the ids that `out` has, too.
        """

    def owned(self, ids: Tensor) -> Tensor:
        """Return bool [M]: which of ids (int64 [M]) belong to this rank under the current world size."""

    def begin_import(self, num_rows: int) -> None:
        """Forget all rows, and be ready for up to num_rows: all of the table's, of which this rank may own few."""

    def import_rows(self, rows: TableRows) -> None:
        """Add owned rows; called several times after one begin_import(), each id once, ids ascending within a call.

        What is kept must be copied: the memory of `rows` is used for other rows afterwards.
        """

    def end_import(self) -> None:
        """All rows are there: those of a fixed table that none was imported for have their initial values."""


def is_copy(shard: TableShard) -> bool:
    """Return whether this rank's rows are copies of those that another rank has and saves."""
    return bool(getattr(shard, "is_copy", False))


def copy_of_rows(shard: TableShard) -> TableRows:
    """Return all rows of a shard in memory of their own: for small tables, tests and comparisons."""
    import torch

    ids = shard.begin_export()
    rows = TableRows(
        ids=ids,
        weights=torch.empty(len(ids), shard.dim, dtype=getattr(torch, shard.weight_dtype)),
        states={s.name: torch.empty(len(ids), s.width, dtype=getattr(torch, s.dtype)) for s in shard.states},
    )
    shard.gather(ids, rows)
    return rows
