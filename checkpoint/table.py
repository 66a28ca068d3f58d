"""What a sparse table shows to the checkpoint: rows keyed by id, never by slot; imports no torch at run time."""

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
    """This rank's part of one table."""

    name: str
    dim: int
    weight_dtype: str
    states: tuple[StateSpec, ...]

    def export_rows(self) -> TableRows:
        """Return all rows of this rank, sorted by id; no id is on two ranks."""

    def owned(self, ids: Tensor) -> Tensor:
        """Return bool [M]: which of ids (int64 [M]) belong to this rank under the current world size."""

    def clear(self) -> None:
        """Forget all rows."""

    def import_rows(self, rows: TableRows) -> None:
        """Add owned rows; called several times after one clear(), each id once, ids ascending within a call."""
