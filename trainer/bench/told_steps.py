"""What a step pays for its rows being told of: the same batches announced, updated and passed, told and untold."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ett.checkpoint.policy.table_tracker import TableTracker
from ett.trainer.bench.policy_job import PolicyJob
from ett.trainer.data.criteo import Batch
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import Ids

NUM_BATCHES = 200


def told_steps(told: PolicyJob, untold: PolicyJob, trace: Sequence[Batch]) -> dict[str, Any]:
    """Return medians, in CPU time of the one thread that does it: a batch's rows in tables that tell, and that do not.

    No row changes: gradients are zeros.
    """
    untold.untrack()
    for shard in told.shards:
        shard.track(TableTracker())
    batches = [_ids_by_table(batch, len(told.shards)) for batch in trace[:NUM_BATCHES]]
    seconds: dict[PolicyJob, list[float]] = {told: [], untold: []}
    for number, ids in enumerate(batches):
        for job in (told, untold) if number % 2 else (untold, told):
            seconds[job].append(_seconds(job.shards, ids))
    differences = [mine - theirs for mine, theirs in zip(seconds[told], seconds[untold], strict=True)]
    told.untrack()
    return {
        "ids_of_a_batch": sum(map(len, batches[0])),
        "untold_ms": round(1e3 * statistics.median(seconds[untold]), 4),
        "telling_ms": round(1e3 * statistics.median(differences), 4),
    }


def _ids_by_table(batch: Batch, num_tables: int) -> list[Ids]:
    features = [ids for ids in batch.features.values() if isinstance(ids, np.ndarray)]  # all of this trace
    return [np.unique(np.concatenate(features[number::num_tables])) for number in range(num_tables)]


def _seconds(shards: Sequence[EmbeddingShard], ids_by_table: list[Ids]) -> float:
    grads = [torch.zeros(len(ids), shard.dim) for shard, ids in zip(shards, ids_by_table, strict=True)]
    began = time.thread_time()
    for shard, ids, zeros in zip(shards, ids_by_table, grads, strict=True):
        shard.announced(ids)
        shard.update(ids, zeros, 0.0)
        shard.passed()
    return time.thread_time() - began
