"""What a model gets of the tables whose rows have one width: sums of bags and sequences of rows, as one leaf.

The lookup stands outside autograd, so that pooling and updates can happen elsewhere: a leaf of rows, and its gradient
back to the positions that it came from.

Shapes: B examples, F pooled features, L positions (table after table, feature after feature), N = B * F rows of sums,
then the rows of the sequences, D elements of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ett.trainer.data.columns import Column, Columns, Jagged
from ett.trainer.dense.device import CPU, moved
from ett.trainer.embedding.feature_ids import starts_of
from ett.trainer.embedding.table_config import PoolingType
from ett.trainer.jagged import JaggedTensor
from ett.trainer.sparse import row_kernels
from ett.trainer.sparse.deduplicate import PositionGradients
from ett.trainer.sparse.exchange import FoundRows
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.row_sums import RowSums


@dataclass(frozen=True, slots=True)
class Slot:
    """One feature of one table."""

    feature: str
    pooling: PoolingType

    @property
    def is_pooled(self) -> bool:
        return self.pooling is not PoolingType.NONE


@dataclass(frozen=True, slots=True)
class _Placed:
    """A slot's positions in a batch, and the row of the leaf that each adds to."""

    slot: Slot
    column: Column
    positions: slice
    rows: Ids

    @property
    def bags(self) -> Jagged | None:
        """Return the bags that are summed; None where each position is a row of its own."""
        return self.column if self.slot.is_pooled and isinstance(self.column, Jagged) else None


@dataclass(frozen=True, slots=True)
class SparseInputs:
    """What a model gets of some examples.

    `pooled` has float32 [B, F, D] for each width of rows in ascending order, of the features that `JobTables.pooled`
    names; `sequences` has the rows of each feature of a table with pooling NONE.
    """

    pooled: list[Tensor]
    sequences: dict[str, JaggedTensor]

    @property
    def num_examples(self) -> int:
        return len(self.pooled[0]) if self.pooled else len(next(iter(self.sequences.values())).lengths())

    def values(self) -> list[Tensor]:
        """Return all that wants a gradient."""
        return [*self.pooled, *(rows.values() for rows in self.sequences.values())]

    def leaves(self, examples: slice, device: torch.device = CPU) -> SparseInputs:
        """Return those of consecutive examples as leaves of their own, on a device."""
        return SparseInputs(
            [moved(sums.detach()[examples], device).requires_grad_() for sums in self.pooled],
            {name: _leaf(rows, examples, device) for name, rows in self.sequences.items()},
        )


class TableOutputs:
    """The outputs of one width; their gradients are in the leaf after the backward pass."""

    def __init__(self, slots: Sequence[Slot], columns: Columns, found: FoundRows) -> None:
        self._num_pooled = sum(slot.is_pooled for slot in slots)
        self._num_examples = len(columns[slots[0].feature])
        self._placed = _place(slots, columns, self._num_examples, self._num_pooled)
        self._leaf_ND = self._rows_and_sums(found).requires_grad_()

    @property
    def _num_sums(self) -> int:
        return self._num_examples * self._num_pooled

    def outputs(self) -> tuple[Tensor | None, dict[str, JaggedTensor]]:
        """Return the pooled features, float32 [B, F, D] in the order of the slots, None without one; and sequences."""
        sequences = [placed for placed in self._placed if not placed.slot.is_pooled]
        sums = self._leaf_ND
        found: dict[str, JaggedTensor] = {}
        if sequences:
            sums, *rows = torch.split(self._leaf_ND, [self._num_sums, *(len(placed.rows) for placed in sequences)])
            found = {p.slot.feature: _sequence(part, p.column) for p, part in zip(sequences, rows, strict=True)}
        if not self._num_pooled:
            return None, found
        return sums.view(self._num_examples, self._num_pooled, self._leaf_ND.shape[1]), found

    def gradients(self) -> PositionGradients:
        """Return what each position adds to its row's gradient; call once."""
        grads_ND = self._leaf_ND.grad
        if grads_ND is None:  # the model has not used this width
            grads_ND = torch.zeros_like(self._leaf_ND)
        number = 0
        for placed in self._placed:
            if placed.bags is not None and placed.slot.pooling is PoolingType.MEAN:
                lengths = np.maximum(placed.bags.lengths, 1).astype(np.float32)
                grads_ND[number : self._num_sums : self._num_pooled] /= torch.from_numpy(lengths)[:, None]
            number += placed.slot.is_pooled
        rows_L = np.concatenate([placed.rows for placed in self._placed])
        return PositionGradients(grads_ND, rows_L, self._weights())

    def _weights(self) -> Tensor | None:
        """Return the factor of each position, float32 [L]; None where all are one."""
        weights = [None if placed.bags is None else placed.bags.weights for placed in self._placed]
        if all(part is None for part in weights):
            return None
        parts = zip(weights, self._placed, strict=True)
        of_L = [np.ones(len(placed.rows), np.float32) if part is None else part for part, placed in parts]
        return torch.from_numpy(np.concatenate(of_L))

    def _rows_and_sums(self, found: FoundRows) -> Tensor:
        num_rows = self._num_sums + sum(len(p.rows) for p in self._placed if not p.slot.is_pooled)
        if all(placed.bags is None for placed in self._placed):  # each row of the leaf is one of the table
            source_of_N = np.empty(num_rows, np.int64)
            source_of_N[np.concatenate([placed.rows for placed in self._placed])] = found.rows_L
            return found.source.index_select(0, torch.from_numpy(source_of_N))
        dim = found.source.shape[1]
        leaf_ND = torch.empty(num_rows, dim)
        sums_BFD = leaf_ND[: self._num_sums].view(self._num_examples, self._num_pooled, dim)
        number = 0
        for placed in self._placed:
            rows_L = found.rows_L[placed.positions]
            if placed.bags is None:
                row_kernels.copy_rows(found.source, rows_L, leaf_ND, placed.rows)
            else:
                weights = None if placed.bags.weights is None else torch.from_numpy(placed.bags.weights)
                sums = RowSums(found.source, dim, dim, rows_L, starts_of(placed.bags.lengths), weights)
                row_kernels.sum_rows(
                    sums,
                    sums_BFD[:, number],
                    mean=placed.slot.pooling is PoolingType.MEAN,
                    threads=torch.get_num_threads(),
                )
            number += placed.slot.is_pooled
        return leaf_ND


def _leaf(rows: JaggedTensor, examples: slice, device: torch.device) -> JaggedTensor:
    offsets = rows.offsets()
    part = slice(int(offsets[examples.start]), int(offsets[examples.stop]))
    values = moved(rows.values().detach()[part], device).requires_grad_()
    return JaggedTensor(values, lengths=moved(rows.lengths()[examples], device))


def ids_of(column: Column) -> Ids:
    """Return a feature's ids, bag after bag: int64 [L]."""
    ids: Ids = column.values if isinstance(column, Jagged) else column
    return ids


def _place(slots: Sequence[Slot], columns: Columns, num_examples: int, num_pooled: int) -> list[_Placed]:
    first_row_B = np.arange(num_examples) * num_pooled
    position, number, sequence_row = 0, 0, num_examples * num_pooled
    placed = []
    for slot in slots:
        column = columns[slot.feature]
        count = len(ids_of(column))
        if not slot.is_pooled:
            rows = np.arange(sequence_row, sequence_row + count)
            sequence_row += count
        else:
            rows = first_row_B + number
            rows = np.repeat(rows, column.lengths) if isinstance(column, Jagged) else rows
            number += 1
        placed.append(_Placed(slot, column, slice(position, position + count), rows))
        position += count
    return placed


def _sequence(rows_LD: Tensor, column: Column) -> JaggedTensor:
    lengths = column.lengths if isinstance(column, Jagged) else np.ones(len(column), np.int64)
    return JaggedTensor(rows_LD, lengths=torch.from_numpy(lengths))
