"""A job whose rows are updated by Zipf's law and saved as a policy decides, and single commits of it, copied out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn

from ett.checkpoint.bench.access_traces import trace_of
from ett.checkpoint.bench.bench_run import QuietRun
from ett.checkpoint.checkpointer import Checkpointer
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.export import export_commit
from ett.checkpoint.store import open_store
from ett.checkpoint.training_state import TrainingState

Image = dict[str, str]  # a hash of every tensor


class QuickClock:
    """The system's, but for the time that is let pass."""

    def __init__(self) -> None:
        self._passed_ns = 0

    def pass_s(self, seconds: float) -> None:
        self._passed_ns += int(seconds * 1e9)

    def mono_ns(self) -> int:
        return time.monotonic_ns() + self._passed_ns

    def wall_ns(self) -> int:
        return time.time_ns() + self._passed_ns


class ZipfModel:
    """Embeddings of torch with the rows of their optimizer, and a dense layer."""

    def __init__(self, recipe: Mapping[str, Any], num_rows: int) -> None:
        """Args: recipe: [restore] of the workload."""
        tables = {
            f"t{number}": nn.Embedding(num_rows, recipe["dim"], sparse=True) for number in range(recipe["tables"])
        }
        self.module = nn.Module()
        self.module.tables = nn.ModuleDict(tables)
        self.module.dense = nn.Linear(64, 64)
        self.tables = list(tables.values())
        self.optimizer = torch.optim.Adagrad(self.module.parameters(), lr=0.05)

    def image(self) -> Image:
        return {name: _hash(tensor) for name, tensor in self._tensors()}

    def forget(self) -> None:
        """Overwrite everything, so that what a restore did not bring is seen."""
        with torch.no_grad():
            for _, tensor in self._tensors():
                tensor.fill_(-1)

    def state(self) -> TrainingState:
        return TrainingState(self.module, [self.optimizer], is_tracked=True)

    @property
    def num_table_bytes(self) -> int:
        return sum(2 * table.weight.nbytes for table in self.tables)

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.module.named_parameters():
            yield name, parameter
            for key, value in self.optimizer.state[parameter].items():
                yield f"{name}.{key}", value


@dataclass(frozen=True, slots=True)
class HeldCommit:
    """One commit in a folder of its own, and what a restore of it must bring."""

    folder: Path
    commit: Commit
    image: Image

    @property
    def num_table_bytes(self) -> int:
        return sum(table.num_bytes for table in self.commit.tables)


class ZipfJob:
    """`length` checkpoints can be made: the updates are drawn before."""

    def __init__(
        self, folder: Path, recipe: Mapping[str, Any], num_rows: int, length: int, policy: Mapping[str, Any]
    ) -> None:
        """Args: recipe: [restore] of the workload. policy: fields of CheckpointConfig."""
        torch.manual_seed(0)
        self.model = ZipfModel(recipe, num_rows)
        self._folder, self._recipe, self._step = folder, recipe, 0
        self._clock = QuickClock()
        config = CheckpointConfig(uri=str(folder), keep_last=3, **policy)
        self._checkpointer = Checkpointer(
            config,
            model=self.model.module,
            optimizer=[self.model.optimizer],
            run=QuietRun(),
            clock=self._clock,
        )
        self._checkpointer.restore()
        self._updates = [
            iter(trace_of("zipf", recipe["zipf"], num_rows=num_rows, num_intervals=length, seed=seed))
            for seed in range(recipe["tables"])
        ]

    def checkpoint(self) -> Commit:
        """Update rows, let an interval pass, save."""
        for table, updates in zip(self.model.tables, self._updates, strict=True):
            ids = torch.from_numpy(next(updates))
            values = torch.rand(len(ids), table.embedding_dim)
            size = tuple(table.weight.shape)
            table.weight.grad = torch.sparse_coo_tensor(
                ids[None], values, size, is_coalesced=True, check_invariants=False
            )
        self.model.optimizer.step()
        self.model.optimizer.zero_grad()
        self._step += 1
        self._clock.pass_s(self._recipe["interval_s"])
        return self._checkpointer.save(self._step, self._step)

    def hold(self, to: Path) -> HeldCommit:
        """Copy the newest commit out."""
        exported = export_commit(open_store(str(self._folder)), self._step, to)
        return HeldCommit(to, CommitLog(open_store(str(to))).read(exported.seq), self.model.image())

    def close(self) -> None:
        self._checkpointer.close()


def _hash(tensor: torch.Tensor) -> str:
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(tensor.detach().numpy()).reshape(-1).view(np.uint8).data)
