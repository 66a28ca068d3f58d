"""Pooled rows of one batch on this rank, and their gradients: the slots whose tables every rank has in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ett.trainer.embedding.feature_ids import FeatureIds, Slot
from ett.trainer.embedding.rank_tables import RankTables
from ett.trainer.embedding.table_part import FoundRows, Summands, find_rows
from ett.trainer.sparse import row_kernels
from ett.trainer.sparse.hashing import Ids


@dataclass(frozen=True, slots=True)
class LocalBags:
    """The bags of one table: those of its features after each other."""

    table: int
    slots: list[Slot]
    features: list[FeatureIds]
    found: FoundRows
    weights_L: Tensor | None

    @staticmethod
    def pooled_into(
        tables: RankTables, table: int, slots: list[Slot], features: list[FeatureIds], out_BC: Tensor
    ) -> LocalBags:
        """Write the pooled rows to the slots' columns of out, float32 [B, C]; bags without ids are zero."""
        found = find_rows(tables.parts[table], _joined([feature.ids_L for feature in features]))
        weights = joined_weights([feature.weights_L for feature in features])
        begin = 0
        for slot, feature in zip(slots, features, strict=True):
            columns = out_BC[:, slot.column : slot.column + slot.dim]
            sums = found.pooled(feature.starts_B, begin, weights)
            row_kernels.sum_rows(sums, columns, mean=slot.is_mean, threads=torch.get_num_threads())
            begin += len(feature.ids_L)
        return LocalBags(table, slots, features, found, weights)

    def summands(self, grads_BC: Tensor) -> Summands:
        """Return what each position adds to its row's gradient; grads are contiguous, those of MEAN divided before."""
        width = grads_BC.shape[1]
        pairs = zip(self.slots, self.features, strict=True)
        return Summands(grads_BC, 1, _joined([f.bag_of_L() * width + s.column for s, f in pairs]), self.weights_L)

    def weight_gradients(self, grads_BC: Tensor) -> list[Tensor]:
        """Return the gradient of each slot's weights, float32 [L]; before the rows are updated."""
        rows_LD = self.found.source[torch.from_numpy(self.found.rows_L)]
        parts = torch.split(rows_LD, [len(feature.ids_L) for feature in self.features])
        return [
            (rows * grads_BC[torch.from_numpy(feature.bag_of_L()), slot.column : slot.column + slot.dim]).sum(1)
            for rows, slot, feature in zip(parts, self.slots, self.features, strict=True)
        ]


def divide_by_lengths(values_BC: Tensor, slots: Sequence[Slot], features: Sequence[FeatureIds]) -> None:
    """Divide the columns of MEAN slots by the lengths of the whole bags, in place."""
    for slot, feature in zip(slots, features, strict=True):
        if slot.is_mean:
            lengths = np.maximum(feature.lengths_B, 1).astype(np.float32)
            values_BC[:, slot.column : slot.column + slot.dim] /= torch.from_numpy(lengths)[:, None]


def joined_weights(weights: Sequence[Tensor | None]) -> Tensor | None:
    """Return the weights of several slots after each other, None where they have none."""
    given = [part for part in weights if part is not None]
    if not given:
        return None
    return given[0] if len(given) == 1 else torch.cat(given)


def _joined(parts: Sequence[Ids]) -> Ids:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
