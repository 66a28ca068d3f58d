"""Checkpoints of the plain leg of `ett bench ett`: a rank's whole state by torch.distributed.checkpoint, in the way.

A folder a step; the file beside them that names the newest whole one is replaced last. Rows are copied out of the
tables into tensors under names of their rank: a table here has as many rows as it has seen ids.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ett.checkpoint.bench.dcp import State, dcp_lengths, dcp_load_by_ranks, dcp_save_by_ranks
from ett.checkpoint.table import TableRows, copy_of_rows
from ett.trainer.loop import TrainingStep
from ett.trainer.pipeline.prefetched_batches import PrefetchedBatches
from ett.trainer.sparse.embedding_shard import EmbeddingShard

_NEWEST = "newest.json"


class PlainCheckpoints:
    """Saves and loads one rank's model, optimizer and place in the data; every rank calls.

    Args: folder: of all ranks.
    """

    def __init__(self, folder: Path, step: TrainingStep, batches: PrefetchedBatches, rank: int) -> None:
        self._folder, self._step, self._batches, self._rank = folder, step, batches, rank
        self._shards = step.model.ebc.shards()

    def save(self, step: int, cursor: int) -> Path:
        """Return the folder once every rank's state is in it."""
        target = self._folder / str(step)
        with self._step.model.ebc.exchange.rows:  # an update may still be under way beside the main thread
            state = self._dense() | self._own({shard.name: copy_of_rows(shard) for shard in self._shards})
        state[f"rank{self._rank}"]["loader"] = _as_tensor(self._batches.state_dict())
        dcp_save_by_ranks(state, target)
        if self._rank == 0:
            before = self._newest()
            _replace(self._folder / _NEWEST, {"step": step, "cursor": cursor})
            self._drop_all_but(step, before)
        return target

    def load(self) -> tuple[int, int]:
        """Return step and cursor of the newest checkpoint, which is loaded; 0, 0 without one."""
        newest = self._newest()
        if newest is None:
            return 0, 0
        folder = self._folder / str(newest["step"])
        lengths = dcp_lengths(folder)
        own = f"rank{self._rank}"
        rows = {shard.name: self._room_for(shard, lengths) for shard in self._shards}
        state = self._dense() | self._own(rows)
        state[own]["loader"] = torch.empty(lengths[f"{own}.loader"], dtype=torch.uint8)
        dcp_load_by_ranks(state, folder)
        for shard in self._shards:
            shard.begin_import(len(rows[shard.name].ids))
            shard.import_rows(rows[shard.name])
            shard.end_import()
        # Parameters and the optimizer's moments were loaded in place; how many steps it took is not a tensor.
        self._step.optimizer.load_state_dict(self._step.optimizer.state_dict() | {"step": int(state["num_steps"])})
        self._batches.load_state_dict(_from_tensor(state[own]["loader"]))
        return newest["step"], newest["cursor"]

    def _dense(self) -> State:
        optimizer = self._step.optimizer.state_dict()
        moments = {name: optimizer[name] for name in ("exp_avg", "exp_avg_sq")}
        return {
            "model": _dense_parameters(self._step.model),
            "optimizer": moments,
            "num_steps": torch.tensor(optimizer["step"]),
        }

    def _own(self, tables: Mapping[str, TableRows]) -> State:
        named = {
            name: {"ids": rows.ids, "weights": rows.weights, "states": dict(rows.states)}
            for name, rows in tables.items()
        }
        return {f"rank{self._rank}": {"tables": named}}

    def _room_for(self, shard: EmbeddingShard, lengths: Mapping[str, int]) -> TableRows:
        num_rows = lengths[f"rank{self._rank}.tables.{shard.name}.ids"]
        return TableRows(
            ids=torch.empty(num_rows, dtype=torch.int64),
            weights=torch.empty(num_rows, shard.dim),
            states={s.name: torch.empty(num_rows, s.width, dtype=getattr(torch, s.dtype)) for s in shard.states},
        )

    def _newest(self) -> dict[str, int] | None:
        path = self._folder / _NEWEST
        return json.loads(path.read_text()) if path.exists() else None

    def _drop_all_but(self, step: int, before: Mapping[str, int] | None) -> None:
        kept = {str(step), str(before["step"]) if before else ""}
        for old in self._folder.iterdir():
            if old.is_dir() and old.name not in kept:
                shutil.rmtree(old)


def _dense_parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _as_tensor(state: Mapping[str, Any]) -> Tensor:
    return torch.from_numpy(np.frombuffer(json.dumps(state).encode(), np.uint8).copy())


def _from_tensor(data: Tensor) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(data.numpy().tobytes())
    return state


def _replace(path: Path, value: Mapping[str, int]) -> None:
    replacement = path.with_suffix(".tmp")
    replacement.write_text(json.dumps(value))
    replacement.replace(path)
