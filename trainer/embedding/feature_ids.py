"""The ids of one feature for one table, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ett.errors import ConfigError, DataError
from ett.trainer.embedding.table_config import EmbeddingConfig
from ett.trainer.jagged import KeyedJaggedTensor
from ett.trainer.sparse.hashing import Ids


@dataclass(frozen=True, slots=True)
class Slot:
    """One (table, feature) of a collection: a block of columns of its output, or one of its outputs."""

    table: int
    feature: str
    column: int  # first column in the pooled output
    dim: int
    is_mean: bool


@dataclass(frozen=True, slots=True)
class FeatureIds:
    """L ids in B bags."""

    ids_L: Ids
    lengths_B: Ids
    weights_L: Tensor | None  # float32, contiguous

    @property
    def starts_B(self) -> Ids:
        return starts_of(self.lengths_B)

    def bag_of_L(self) -> Ids:
        return np.repeat(np.arange(len(self.lengths_B)), self.lengths_B)


def starts_of(lengths: Ids) -> Ids:
    """Return int64 [N + 1], from 0 to the sum."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def slots_of(tables: Sequence[EmbeddingConfig], is_mean: Sequence[bool]) -> list[Slot]:
    """Return the slots in the order of the output: by table, then by the table's features."""
    slots, column = [], 0
    for number, table in enumerate(tables):
        for feature in table.features:
            slots.append(Slot(number, feature, column, table.embedding_dim, is_mean[number]))
            column += table.embedding_dim
    return slots


def whole_ids(batch: KeyedJaggedTensor) -> Tensor:
    """Return the ids as int64. Raises: DataError: they are of a type that another id could be rounded to."""
    values = batch.values()
    if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype is torch.bool:
        raise DataError(f"the ids of the batch are {values.dtype}", expected="int64, or another type of integers")
    return values.long()


def ids_of_slots(
    batch: KeyedJaggedTensor, slots: Sequence[Slot], tables: Sequence[EmbeddingConfig], *, is_weighted: bool
) -> list[FeatureIds]:
    """Return each slot's ids.

    Raises: ConfigError: a feature is not in the batch, or the batch is of a kind that is not supported.
        DataError: an id is out of its table's range.
    """
    if batch.variable_stride_per_key():
        raise ConfigError("a batch of variable size (VBE) was given", expected="as many examples for every key")
    if batch.values().device.type != "cpu":
        raise ConfigError(f"the batch is on {batch.values().device}", expected="a batch in host memory")
    weights = batch.weights().detach().float().contiguous() if is_weighted else None
    values, lengths = whole_ids(batch).numpy(), batch.lengths().numpy()
    places = batch.index_per_key()
    segments = list(pairwise(batch.offset_per_key()))
    stride = batch.stride()
    found = []
    for slot in slots:
        if slot.feature not in places:
            raise ConfigError(
                f"table {tables[slot.table].name}: the batch has no feature {slot.feature!r}",
                expected=f"a KeyedJaggedTensor with it; this one has {batch.keys()}",
            )
        key = places[slot.feature]
        part = slice(*segments[key])
        ids_L = values[part]
        _check_range(ids_L, tables[slot.table], slot.feature)
        weights_L = None if weights is None else weights[part]
        found.append(FeatureIds(ids_L, lengths[key * stride : (key + 1) * stride], weights_L))
    return found


def _check_range(ids: Ids, table: EmbeddingConfig, feature: str) -> None:
    if table.is_dynamic or not len(ids) or (ids.min() >= 0 and ids.max() < table.num_embeddings):
        return
    wrong = ids[(ids < 0) | (ids >= table.num_embeddings)]
    raise DataError(
        f"table {table.name}: id {wrong[0]} of feature {feature} is out of range ({len(wrong)} such ids in this batch)",
        expected=f"ids in [0, {table.num_embeddings})",
        do="raise num_embeddings, or set it to 0 for a table that grows",
    )
