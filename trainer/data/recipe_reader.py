"""The batches of a recipe's [data], of any format, as a training step takes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ett.trainer.data.batch_stream import BatchStream
from ett.trainer.data.columns import Column, Columns, Jagged
from ett.trainer.data.config import DataConfig
from ett.trainer.data.criteo import Batch, CriteoReader
from ett.trainer.data.data_source import DataSource, Order
from ett.trainer.data.parquet_source import ParquetWindow
from ett.trainer.data.pinned import pinned
from ett.trainer.data.sequence import SequenceConfig, sequence_rows

RecipeReader = BatchStream[Batch]


def recipe_reader(
    config: DataConfig, path: str, *, batch_size: int, seed: int, epochs: int, rank: int, world_size: int
) -> RecipeReader:
    """Return this rank's batches of the files at a path. Raises: DataError, ConfigError: they are not of the format."""
    if config.format == "criteo":
        return CriteoReader(
            config, path, batch_size=batch_size, seed=seed, epochs=epochs, rank=rank, world_size=world_size
        )
    columns = SequenceConfig(
        label=config.label, ids=config.ids, histories=config.histories, max_length=config.max_length
    )
    source: DataSource[ParquetWindow] = DataSource(
        sequence_rows(columns, path),
        Order.of(config, seed),
        batch_size=batch_size,
        epochs=epochs,
        max_bad_rows=config.max_bad_lines,
    )
    return BatchStream(
        source,
        _assemble(columns),
        rank=rank,
        world_size=world_size,
        readers=config.readers,
        depth=config.prefetch_batches,
    )


def _assemble(config: SequenceConfig) -> Callable[[Columns, int], Batch]:
    def batch(columns: Columns, global_size: int) -> Batch:
        labels = columns[config.label]
        assert isinstance(labels, np.ndarray)
        features: dict[str, Column] = {name: columns[name] for name in config.ids}
        for name in config.histories:
            history = columns[name]
            assert isinstance(history, Jagged)
            features[name] = history.last(config.max_length) if config.max_length else history
        return Batch(pinned(labels), np.zeros((len(labels), 0), np.float32), features, global_size)

    return batch
