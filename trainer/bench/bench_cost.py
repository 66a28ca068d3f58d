"""What a batch costs: linear in its distinct ids; of the table's size only what the processor's caches make of it."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch

from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import Ids, RowInit
from ett.trainer.sparse.row_optimizer import RowWiseAdagrad


def cost_detail(workload: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Return microseconds of CPU time an id, of looking it up and updating its row, by batch and by table."""
    rows = workload["quick_table_rows" if quick else "table_rows"]
    tables = {num_rows: _filled(num_rows, workload["dim"]) for num_rows in rows}
    by_batch = {str(size): _us_per_id(tables[rows[-1]], rows[-1], size, workload) for size in workload["batches"]}
    largest = workload["batches"][-1]
    by_table = {str(num_rows): _us_per_id(table, num_rows, largest, workload) for num_rows, table in tables.items()}
    return {"us_per_id_by_batch": by_batch, "us_per_id_by_table_rows": by_table}


def _filled(num_rows: int, dim: int) -> EmbeddingShard:
    shard = EmbeddingShard(
        "t", RowInit("t", seed=1, dim=dim, scale=0.01), RowWiseAdagrad(1e-8), dim=dim, num_rows=0, rank=0, world_size=1
    )
    for begin in range(0, num_rows, 100_000):
        ids = np.arange(begin, min(begin + 100_000, num_rows))
        shard.update(ids, torch.zeros(len(ids), dim), 0.1)
    return shard


def _us_per_id(shard: EmbeddingShard, num_rows: int, size: int, workload: dict[str, Any]) -> float:
    random = np.random.default_rng(size)
    times, out, grads = [], torch.empty(size, shard.dim), torch.full((size, shard.dim), 1e-3)
    for _ in range(workload["repeats"]):
        ids: Ids = np.unique(random.integers(0, num_rows, size))
        begun = time.thread_time()
        shard.read(ids, out[: len(ids)])
        shard.update(ids, grads[: len(ids)], 0.1)
        times.append((time.thread_time() - begun) / len(ids) * 1e6)
    return round(statistics.median(times), 4)
