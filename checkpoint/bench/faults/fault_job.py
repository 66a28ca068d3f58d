"""A training job of a few rows that saves and restores through the code that real jobs use, in milliseconds."""

from __future__ import annotations

import random
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from ett.checkpoint.bench.bench_run import QuietRun
from ett.checkpoint.bench.faults.chain_save import save_delta
from ett.checkpoint.bench.faults.fault_table import FaultTable
from ett.checkpoint.bench.faults.oracle import SAMPLES_PER_STEP, TABLES, JobState, Oracle, image_of
from ett.checkpoint.checkpointer import Checkpointer, RestoredPosition
from ett.checkpoint.commit import Commit
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.ranks import SoloRanks
from ett.checkpoint.store import Store
from ett.clock import Clock

Policy = Literal["full", "adaptive", "incremental", "differential", "check_n_run"]


class _Loader:
    """What a reader keeps: where it is."""

    def __init__(self) -> None:
        self.cursor = 0

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cursor = state["cursor"]


class StillClock:
    """A `Clock` that stands, so that equal faults write equal bytes."""

    late_threads = ()

    def wall_ns(self) -> int:
        return 1_700_000_000_000_000_000

    def mono_ns(self) -> int:
        return 0


class FaultJob:
    """One life of the job: a model, and a checkpointer over a store.

    saves_full: every save has all rows, or what `policy` decides; else the job continues a chain of base, hot and cold
    files by hand.
    """

    def __init__(
        self,
        oracle: Oracle,
        store: Store,
        *,
        saves_full: bool = True,
        keep_last: int = 2,
        clock: Clock | None = None,
        buffer_dir: str = "",
        policy: Policy = "full",
    ) -> None:
        self.oracle, self.store, self.saves_full, self.keep_last = oracle, store, saves_full, keep_last
        self._model = nn.Module()
        self._model.tables = nn.ModuleList([FaultTable(name, dim) for name, dim in TABLES.items()])
        self._model.register_buffer("dense", torch.zeros(8))
        self._loader, self._is_buffered = _Loader(), bool(buffer_dir)
        config = CheckpointConfig(
            uri=store.uri, keep_last=keep_last, buffer_dir=buffer_dir, policy=policy, background=False
        )
        self.checkpointer = Checkpointer(
            config,
            model=self._model,
            loader=self._loader,
            run=QuietRun(),
            ranks=SoloRanks(),
            store=store,
            clock=clock or StillClock(),
        )
        self.step = 0
        _seed_all(0)

    def restore(self, resume: str = "auto") -> RestoredPosition | None:
        position = self.checkpointer.restore(resume)
        self.step = position.step if position else 0
        return position

    def train_to(self, step: int) -> None:
        """Set the job to the state of a step."""
        self._set(self.oracle.state(step))
        self.step = step

    def save(self) -> Commit:
        if self.saves_full:
            commit = self.checkpointer.save(self.step, self._loader.cursor)
            if not self._is_buffered:
                self.checkpointer.close()  # what retention deletes in its thread is of this save's operations
            return commit
        return save_delta(self.checkpointer, self.oracle, self.step, self._loader.cursor, self.keep_last)

    def image(self) -> bytes:
        """Return every bit of the state, the random generators' included where they are not those of the step."""
        tables = {
            table.name: (table.ids.numpy(), table.rows[:, :-1].numpy(), table.rows[:, -1:].numpy())
            for table in self._tables()
        }
        dense = self._model.get_buffer("dense").numpy()
        return image_of(self.step, tables, dense, self._loader.cursor) + _draws_beside(self.step)

    def _set(self, state: JobState) -> None:
        for table in self._tables():
            rows = state.tables[table.name]
            table.set_rows(rows.ids, rows.rows)
        self._model.get_buffer("dense").copy_(torch.from_numpy(state.dense))
        self._loader.cursor = state.step * SAMPLES_PER_STEP
        _seed_all(state.step)

    def _tables(self) -> list[FaultTable]:
        return [module for module in self._model.modules() if isinstance(module, FaultTable)]


def _seed_all(step: int) -> None:
    torch.default_generator.manual_seed(step)  # of no device: that takes milliseconds
    np.random.seed(step)
    random.seed(step)


def _draws_beside(step: int) -> bytes:
    """Return b"" if the process's generators stand where `_seed_all(step)` puts them, else what they draw instead."""
    found = _draws()
    _seed_all(step)
    expected = _draws()
    return b"" if found == expected else repr(found).encode()


def _draws() -> tuple[int, int, int]:
    return int(torch.randint(2**31, (1,))), int(np.random.randint(2**31)), random.getrandbits(31)
