"""What `ett bench checkpoint` trains: the product's model and pipeline, in one process, on one trace of batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ett.checkpoint.table import StateSpec, TableRows, copy_of_rows
from ett.checkpoint.tracked_table import NOBODY_TRACKS
from ett.trainer.bench.zipf_ids import ZipfIds
from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.config import ModelConfig, SparseConfig, TableConfig, TrainConfig, TrainerConfig
from ett.trainer.data.criteo import Batch
from ett.trainer.loop import TrainingStep
from ett.trainer.pipeline.prefetched_batches import PrefetchedBatches, ReadyBatch
from ett.trainer.pipeline.stage_clock import StageClock
from ett.trainer.rank_start import CRITEO, build_model
from ett.trainer.sparse.tiers.table_storage import HostStorage, TableStorage

_ROWS_AT_ONCE = 1 << 16


class PolicyJob:
    """A model whose tables have all their rows; `begin` a part of training, `train` some steps of it, `end` it."""

    def __init__(self, workload: Mapping[str, Any], trace: Sequence[Batch]) -> None:
        """Args: workload: [live] with its `rows`. trace: what every part of training begins with."""
        self._config, self._trace, self._num_rows = job_config(workload), trace, workload["rows"]
        self._storages = _Kept()
        self._step = TrainingStep(
            self._config, build_model(self._config, LocalCollectives(), self._storages), LocalCollectives()
        )
        self.model, self.optimizer = self._step.model, self._step.optimizer
        self.rows = self.model.ebc.exchange.rows  # to be held while a checkpoint is taken
        self.shards = self.model.ebc.shards()
        self._batches: PrefetchedBatches | None = None
        self._ready: Iterator[ReadyBatch] = iter(())
        for shard in self.shards:
            for first in range(0, self._num_rows, _ROWS_AT_ONCE):
                ids = np.arange(first, min(first + _ROWS_AT_ONCE, self._num_rows))
                shard.update(ids, torch.zeros(len(ids), shard.dim), 0.0)

    def begin(self, num_steps: int) -> None:
        """Begin the trace anew, for so many steps in all: what is read ahead must be trained."""
        reader, clock = _TraceReader(self._trace, num_steps), StageClock(self._config.train.prefetch_depth)
        self._batches = PrefetchedBatches(reader, self.model.ebc, LocalCollectives(), clock, lambda: False)
        self._batches.__enter__()
        self._ready = iter(self._batches)

    def train(self, num_steps: int) -> None:
        """Train, until the rows of the last step are updated, too."""
        assert self._batches is not None
        for _ in range(num_steps):
            ready = next(self._ready)
            self._step.take(ready.number, ready, self._batches.clock)
        with self.rows:
            return

    def end(self) -> None:
        if self._batches is not None:
            batches, self._batches = self._batches, None
            batches.__exit__(None, None, None)

    def untrack(self) -> None:
        """Tell nobody of changes, as a job without checkpoints."""
        for shard in self.shards:
            shard.track(NOBODY_TRACKS)

    def copy(self) -> tuple[list[TableRows], dict[str, Tensor]]:
        """Return copies of all rows and of the dense weights."""
        with self.rows:
            dense = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
            return [copy_of_rows(shard) for shard in self.shards], dense

    @property
    def num_table_bytes(self) -> int:
        tables = self._storages.tensors().values()
        return sum(column.numel() * column.element_size() for table in tables for column in table.values())

    def tensors(self) -> dict[str, Any]:
        """Return the live state as dense tensors, for those who save such: rows as they lie, without their ids."""
        state: dict[str, Any] = {"model": dict(self.model.named_parameters()), "optimizer": self.optimizer.state_dict()}
        return state | {f"tables.{name}": rows for name, rows in self._storages.tensors().items()}


class _Kept:
    """Tiers in memory, whose rows can be reached as whole tensors."""

    def __init__(self) -> None:
        self._of_table: dict[str, TableStorage] = {}

    def storage(self, table: str, dim: int, states: Sequence[StateSpec]) -> TableStorage:
        self._of_table[table] = HostStorage(dim, states)
        return self._of_table[table]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        found = {}
        for name, storage in self._of_table.items():
            with storage.opened(np.empty(0, np.int64), _none) as rows:
                columns = {"weight": rows.weights, **rows.states}
                found[name] = {column: _whole(memory[: len(storage)]) for column, memory in columns.items()}
        return found


def _none(ids: Any) -> Tensor:
    return torch.empty(0)


def _whole(rows: Tensor) -> Tensor:
    """Return the same memory as a tensor that is all of its storage: DCP copies what is a part of one."""
    return torch.from_numpy(rows.numpy())


class _TraceReader:
    def __init__(self, trace: Sequence[Batch], num_batches: int) -> None:
        self._trace, self._num_batches, self._taken = trace, num_batches, 0

    def __iter__(self) -> Iterator[Batch]:
        while self._taken < self._num_batches:
            self._taken += 1
            yield self._trace[(self._taken - 1) % len(self._trace)]

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self._taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._taken = state["taken"]


def job_config(workload: Mapping[str, Any]) -> TrainerConfig:
    """Return the recipe: the features of Criteo, divided over a few tables."""
    features, num_tables = CRITEO.id_features, workload["tables"]
    tables = {
        f"table{number}": TableConfig(features=features[number::num_tables], num_embeddings=workload["rows"])
        for number in range(num_tables)
    }
    return TrainerConfig(
        model=ModelConfig(
            embedding_dim=workload["dim"],
            bottom_mlp=tuple(workload["bottom_mlp"]),
            top_mlp=tuple(workload["top_mlp"]),
        ),
        sparse=SparseConfig(optimizer=workload["optimizer"], tables=tables),
        train=TrainConfig(batch_size=workload["batch"], prefetch_depth=workload["prefetch_depth"]),
    )


def make_trace(workload: Mapping[str, Any]) -> list[Batch]:
    """Return the batches: ids of each table from one Zipf distribution, dense features and labels at random."""
    features, num_tables, size = CRITEO.id_features, workload["tables"], workload["batch"]
    zipfs = [ZipfIds(workload["rows"], workload["zipf"], seed=number) for number in range(num_tables)]
    random = np.random.default_rng(1)
    return [
        Batch(
            labels=(random.random(size) < 0.3).astype(np.float32),
            dense=random.standard_normal((size, CRITEO.num_dense)).astype(np.float32),
            features={name: zipfs[number % num_tables].draw(size) for number, name in enumerate(features)},
            global_size=size,
        )
        for _ in range(workload["trace_batches"])
    ]
