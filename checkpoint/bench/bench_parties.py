"""Who saves and restores the tables of `ett bench store`: we, and torch.distributed.checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import nn

from ett.checkpoint.bench.bench_disk import drop_from_cache
from ett.checkpoint.bench.bench_run import QuietRun
from ett.checkpoint.bench.bench_tables import tables_of
from ett.checkpoint.bench.dcp import dcp_load, dcp_save
from ett.checkpoint.bench.spent import Spent, spent
from ett.checkpoint.checkpointer import Checkpointer
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.retention import retire
from ett.checkpoint.store import open_store


class Ours:
    name = "ours"

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self._folder, self._model = folder, model
        self._store = open_store(str(folder))
        self._checkpointer = self._new()
        self._step, self._has_saved = 0, False

    def save(self) -> Spent:
        """Save as a job does again and again: what its first save takes for memory is not timed."""
        if not self._has_saved:
            self._save()
        return self._save()

    def restore(self) -> Spent:
        """Restore as a new process does, but for its imports."""
        self._checkpointer = self._new()
        drop_from_cache(self._folder)
        return spent(self._checkpointer.restore)

    def _save(self) -> Spent:
        self._step, self._has_saved = self._step + 1, True
        took = spent(lambda: self._checkpointer.save(self._step, self._step))
        retire(self._store, 1)
        return took

    def _new(self) -> Checkpointer:
        # Every party deletes what it wrote before outside its time: 10 ms a file here, which is the file system's.
        config = CheckpointConfig(uri=str(self._folder), keep_last=1000, policy="full", background=False)
        self._has_saved = False
        return Checkpointer(config, model=self._model, run=QuietRun(), store=self._store)


class Theirs:
    """torch.distributed.checkpoint in one process, with as many threads, files flushed, tensors read in place."""

    name = "dcp"

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self._folder = folder
        self._state = {table.name: table.tensors() for table in tables_of(model)}
        self._number = 0

    def save(self) -> Spent:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._number += 1
        return spent(lambda: dcp_save(self._state, self._folder / str(self._number)))

    def restore(self) -> Spent:
        drop_from_cache(self._folder)
        return spent(lambda: dcp_load(self._state, self._folder / str(self._number)))
