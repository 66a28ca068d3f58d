"""One rank: argv = rank, world size, store file, output folder. Trains tables over gloo and sums a bucket twice."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from ett.checkpoint.table import copy_of_rows
from ett.trainer.comm.collectives import Collectives, GroupCollectives, LocalCollectives
from ett.trainer.config import SparseConfig
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.embedding.table_config import EmbeddingBagConfig

TABLES, DIM, BATCH = 3, 4, 20


def train_tables(collectives: Collectives) -> list[np.ndarray]:
    """Return ids and weights of every table; integer gradients, so that no order of sums changes a bit."""
    tables = [EmbeddingBagConfig(0, name=f"t{i}", embedding_dim=DIM) for i in range(TABLES)]
    ebc = JobTables(tables, SparseConfig(optimizer="adagrad", learning_rate=0.1), collectives, seed=1)
    rng = np.random.default_rng(7)
    for _ in range(5):
        ids, grads = rng.integers(0, 30, (TABLES, BATCH)), rng.integers(-4, 5, (BATCH, TABLES, DIM)).astype(np.float32)
        mine = np.array_split(np.arange(BATCH), collectives.world_size)[collectives.rank]
        looked_up = ebc.look_up({f"t{i}": of_table for i, of_table in enumerate(ids[:, mine])})
        looked_up.inputs.pooled[0].backward(torch.from_numpy(grads[mine]))
        looked_up.apply_gradients(1.0)
    rows = [copy_of_rows(shard) for shard in ebc.shards()]
    gathered = [(collectives.gather(table.ids), collectives.gather(table.weights)) for table in rows]
    merged = [(torch.cat(ids), torch.cat(weights)) for ids, weights in gathered]
    return [part.numpy() for ids, weights in merged for part in (ids[ids.argsort()], weights[ids.argsort()])]


def sums(collectives: Collectives, seed: int) -> np.ndarray:
    """Return the sum over ranks of 10,007 random numbers of each."""
    generator = torch.Generator().manual_seed(seed * 100 + collectives.rank)
    flat = torch.randn(10_007, generator=generator)
    collectives.sum_in_place(flat)()
    return flat.numpy()


def main(rank: int, world_size: int, store: str, out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size)
    collectives = GroupCollectives()
    first = sums(collectives, 1)
    tables = train_tables(collectives)
    again = sums(collectives, 1)
    np.savez(out / f"{rank}.npz", *tables, first=first, again=again)
    if rank == 0:
        np.savez(out / "alone.npz", *train_tables(LocalCollectives()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
