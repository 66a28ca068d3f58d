"""One rank of `bench_exactness`: argv = the workload as JSON. Rank 0 prints a digest of what each layout trained."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ett.checkpoint.table import copy_of_rows
from ett.trainer.bench.zipf_ids import ZipfIds
from ett.trainer.comm.collectives import Collectives
from ett.trainer.comm.process_group import join_process_group, leave_process_group
from ett.trainer.config import DenseConfig, ModelConfig, SparseConfig, TrainConfig, TrainerConfig
from ett.trainer.data.criteo import Batch
from ett.trainer.data.criteo_text import CATEGORIES
from ett.trainer.loop import TrainingStep
from ett.trainer.pipeline.prefetched_batches import PrefetchedBatches
from ett.trainer.pipeline.stage_clock import StageClock
from ett.trainer.rank_start import CRITEO, build_model
from ett.trainer.sparse.tiers.tiers import RankPlace, open_tiers

_FEW_IDS = 20  # of the batches that collide with their neighbours in nearly every row


class _Batches:
    """This rank's slices of global batches that follow from the workload alone; uneven, some without a sample."""

    def __init__(self, workload: dict[str, Any], rank: int, world_size: int) -> None:
        self._workload, self._rank, self._world_size = workload, rank, world_size
        self._taken = 0

    def __iter__(self) -> Iterator[Batch]:
        size, zipf = self._workload["batch"], ZipfIds(self._workload["rows"], self._workload["zipf"], seed=1)
        random = np.random.default_rng(2)
        for step in range(self._workload["steps"]):
            cuts = np.sort(random.integers(0, size + 1, self._world_size - 1))
            mine = np.split(np.arange(size), cuts)[self._rank]
            ids = zipf.draw(len(CATEGORIES) * size).reshape(len(CATEGORIES), size)
            ids = ids % _FEW_IDS if step % 2 else ids
            dense = random.standard_normal((size, CRITEO.num_dense)).astype(np.float32)
            labels = (random.random(size) < 0.4).astype(np.float32)
            self._taken = step + 1
            yield Batch(labels[mine], dense[mine], dict(zip(CATEGORIES, ids[:, mine], strict=True)), size)

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self._taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._taken = state["taken"]


def main(workload: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    collectives, _ = join_process_group(os.environ, timeout_s=120)
    try:
        ahead = collectives.beside()
        layouts = [
            {
                "name": f"depth {depth}, {cache or 'all'} rows in memory",
                "digest": _trained(workload, depth, cache, pair),
            }
            for cache in workload["caches"]
            for depth in workload["depths"]
            for pair in [(collectives, ahead)]
        ]
        other = _trained(workload, 0, 0, (collectives, ahead), seed=2)
        if collectives.rank == 0:
            print(json.dumps({"layouts": layouts, "other_seed": other}))
    finally:
        leave_process_group()


def _trained(
    workload: dict[str, Any], depth: int, cache_rows: int, pair: tuple[Collectives, Collectives], seed: int = 1
) -> str:
    """Return a digest of all ranks' losses, rows, optimizer states and dense weights after training."""
    collectives, ahead = pair
    tier: dict[str, Any] = {"tier": "ssd", "cache_rows": cache_rows} if cache_rows else {}
    config = TrainerConfig(
        model=ModelConfig(embedding_dim=workload["dim"], bottom_mlp=(16,), top_mlp=(16,), dropout=workload["dropout"]),
        sparse=SparseConfig(optimizer=workload["optimizer"], **tier),
        dense=DenseConfig(bucket_bytes=4096),
        train=TrainConfig(batch_size=workload["batch"], seed=seed),
    )
    found = hashlib.sha256()
    with tempfile.TemporaryDirectory(prefix="ett-bench-") as folder:
        place = RankPlace(job_dir=Path(folder), rank=collectives.rank, world_size=collectives.world_size)
        with open_tiers(config.sparse, place) as tiers:
            step = TrainingStep(config, build_model(config, collectives, tiers), collectives)
            reader, clock = _Batches(workload, collectives.rank, collectives.world_size), StageClock(depth)
            with PrefetchedBatches(reader, step.model.ebc, ahead, clock, lambda: False) as batches:
                for ready in batches:
                    found.update(step.take(ready.number, ready, clock)[0].hex().encode())
            for shard in step.model.ebc.shards():
                rows = copy_of_rows(shard)
                for part in (rows.ids, rows.weights, *(rows.states[name] for name in sorted(rows.states))):
                    found.update(part.contiguous().numpy().tobytes())
            for parameter in step.model.parameters():
                found.update(parameter.detach().numpy().tobytes())
    mine = torch.from_numpy(np.frombuffer(found.digest(), np.uint8).copy())
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in collectives.gather(mine))).hexdigest()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
