"""Batches of Criteo rows from text, gzip or Parquet: this rank's slices of the global batches, with an exact cursor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ett.trainer.data.batch_stream import BatchStream
from ett.trainer.data.columns import Column, Columns
from ett.trainer.data.config import DataConfig
from ett.trainer.data.criteo_lines import dense_features
from ett.trainer.data.criteo_parquet import CriteoParquet
from ett.trainer.data.criteo_text import CATEGORIES, COUNTS, LABEL, CriteoText
from ett.trainer.data.data_source import DataSource, Order
from ett.trainer.data.input_files import FileFormat, InputFiles
from ett.trainer.data.pinned import pinned
from ett.trainer.data.row_source import RowSource


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's slice of a global batch: labels float32 [b], dense float32 [b, 13], the categories' ids int64 [b].

    `global_size` is the number of samples of all ranks, at least 1; b may be 0. Where there is a CUDA device, the
    arrays lie in pinned memory.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    features: Columns
    global_size: int


class CriteoReader(BatchStream[Batch]):
    """Iterates over this rank's slices of all remaining global batches, `epochs` passes in all.

    Args:
        config: what to read.
        path: where it is (config.path, or the generated file).
        batch_size: samples of all ranks in a batch.
        seed: of the order.
        epochs: passes over the training rows.
    """

    def __init__(
        self,
        config: DataConfig,
        path: str,
        *,
        batch_size: int,
        seed: int,
        epochs: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        order = Order.of(config, seed)
        source = DataSource(
            criteo_rows(path), order, batch_size=batch_size, epochs=epochs, max_bad_rows=config.max_bad_lines
        )
        super().__init__(
            source, _batch, rank=rank, world_size=world_size, readers=config.readers, depth=config.prefetch_batches
        )


def criteo_rows(path: str) -> RowSource[Any]:
    """Return the rows of the files at a path: of Parquet, or of text, plain or gzip; their content says which."""
    files = InputFiles(path)
    return CriteoParquet(files) if files.format is FileFormat.PARQUET else CriteoText(files)


def _batch(columns: Columns, global_size: int) -> Batch:
    counts = np.stack([_array(columns[name]) for name in COUNTS], axis=1)
    ids = np.stack([_array(columns[name]) for name in CATEGORIES])
    return Batch(
        labels=pinned(_array(columns[LABEL])),
        dense=pinned(dense_features(counts)),
        features=dict(zip(CATEGORIES, pinned(ids), strict=True)),
        global_size=global_size,
    )


def _array(column: Column) -> NDArray[Any]:
    assert isinstance(column, np.ndarray)
    return column
