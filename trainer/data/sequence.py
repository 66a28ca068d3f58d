"""Batches of user histories from Parquet, as KeyedJaggedTensor: the same order and cursor as Criteo's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ett.errors import ConfigError, DataError
from ett.trainer.data.batch_stream import BatchStream
from ett.trainer.data.columns import Column, Columns, Jagged
from ett.trainer.data.data_source import DataSource, Order
from ett.trainer.data.input_files import FileFormat, InputFiles
from ett.trainer.data.labelled_parquet import LabelledParquet
from ett.trainer.data.parquet_columns import integers, labels, lists_of_integers
from ett.trainer.data.parquet_source import ColumnRule, ParquetWindow
from ett.trainer.data.pinned import pinned
from ett.trainer.jagged import KeyedJaggedTensor


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceConfig:
    """Which columns are read, and in what order. The defaults are those of `ett data generate sequence`."""

    label: str = "label"
    ids: tuple[str, ...] = ("user_id", "item_id")  # columns of one id a row, none of them null
    histories: tuple[str, ...] = ("history",)  # columns of lists of ids, the latest last; a null is an empty one
    max_length: int = 0  # the latest ids of a longer history are kept; 0 = all
    window_rows: int = 8192  # rows of one file that are shuffled together, in memory with their histories
    lanes: int = 1  # windows read side by side and mixed; with as many as ranks, each rank decodes its own
    shuffle: bool = True
    heldout_share: float = 0.05  # share of the rows that are never trained on
    readers: int = 1  # threads that make batches; changes none
    prefetch_batches: int = 4  # batches ready ahead; 0 reads in step; changes none

    def __post_init__(self) -> None:
        names = self.columns
        if len(set(names)) != len(names) or not self.histories:
            raise ConfigError(
                f"columns {', '.join(names)}", expected="a label and at least one history, each name once"
            )
        for name, least in (
            ("max_length", 0),
            ("window_rows", 1),
            ("lanes", 1),
            ("readers", 1),
            ("prefetch_batches", 0),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}", expected=f"at least {least}")
        if not 0.0 <= self.heldout_share < 1.0:
            raise ConfigError(f"heldout_share is {self.heldout_share}", expected="a share, 0 <= s < 1")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.label, *self.ids, *self.histories)


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """This rank's slice of a global batch: labels float32 [b], and the features of b examples.

    The keys are those of `ids`, each example with one id, then `histories`. `global_size` is the number of samples of
    all ranks, at least 1; b may be 0. Where there is a CUDA device, the tensors lie in pinned memory.
    """

    labels: Tensor
    features: KeyedJaggedTensor
    global_size: int


class SequenceReader(BatchStream[SequenceBatch]):
    """Iterates over this rank's slices of all remaining global batches, `epochs` passes in all.

    Args:
        batch_size: samples of all ranks in a batch.
        seed: of the order.
    Raises: DataError: the files are no Parquet, lack a column, or have one of another type.
    """

    def __init__(
        self,
        config: SequenceConfig,
        path: str,
        *,
        batch_size: int,
        seed: int,
        epochs: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._config = config
        order = Order.of(config, seed)
        source: DataSource[ParquetWindow]
        source = DataSource(sequence_rows(config, path), order, batch_size=batch_size, epochs=epochs)
        super().__init__(
            source,
            self._batch,
            rank=rank,
            world_size=world_size,
            readers=config.readers,
            depth=config.prefetch_batches,
        )

    def _batch(self, columns: Columns, global_size: int) -> SequenceBatch:
        config = self._config
        histories = [_history(columns[name], config.max_length) for name in config.histories]
        ids = [_array(columns[name]) for name in config.ids]
        labels = _array(columns[config.label])
        ones = np.ones(len(labels), np.int64)
        features = KeyedJaggedTensor(
            (*config.ids, *config.histories),
            _tensor([*ids, *(history.values for history in histories)]),
            lengths=_tensor([*(ones for _ in ids), *(history.lengths for history in histories)]),
            stride=len(labels),
        )
        return SequenceBatch(_tensor([labels]), features, global_size)


def sequence_rows(config: SequenceConfig, path: str) -> LabelledParquet:
    """Return the rows of Parquet files at a path. Raises: DataError: they are no Parquet."""
    files = InputFiles(path)
    if files.format is not FileFormat.PARQUET:
        raise DataError(
            f"{files[0].path} is no Parquet file",
            expected="histories in Parquet, as lists of ids",
            do="`ett data generate sequence` writes an example",
        )
    rules: dict[str, ColumnRule] = {config.label: labels()}
    rules |= {name: integers(null=None) for name in config.ids}
    rules |= {name: lists_of_integers() for name in config.histories}
    return LabelledParquet(files, rules, config.label)


def _history(column: Column, max_length: int) -> Jagged:
    assert isinstance(column, Jagged)
    return column.last(max_length) if max_length else column


def _array(column: Column) -> NDArray[Any]:
    assert isinstance(column, np.ndarray)
    return column


def _tensor(parts: Sequence[NDArray[Any]]) -> Tensor:
    return torch.from_numpy(pinned(np.concatenate(parts)))
