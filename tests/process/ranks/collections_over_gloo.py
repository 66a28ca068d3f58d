"""One rank: argv = rank, world size, store file, output folder. Trains collections over gloo, and host memory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from ett.checkpoint.table import copy_of_rows
from ett.trainer import (
    CacheParams,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    FusedParams,
    KeyedJaggedTensor,
    PoolingType,
    ShardingType,
    TableSharding,
)
from ett.trainer.comm.collectives import Collectives, GroupCollectives, LocalCollectives
from ett.trainer.comm.host_memory import HostMemoryCollectives, share_host_memory
from ett.trainer.embedding import embedding_bag_collection

embedding_bag_collection.is_on_device = lambda device: device is not None

BATCH, ROWS, DIM = 24, 50, 16
PLAN = {"a": TableSharding(ShardingType.TABLE_WISE, 0), "b": TableSharding(ShardingType.ROW_WISE)}


def batch(step: int) -> KeyedJaggedTensor:
    """Up to 5 ids a bag of the table-wise table; at most one of the row-wise table, so that no sum is taken apart."""
    generator = torch.Generator().manual_seed(step)
    lengths = torch.cat([torch.randint(0, high, (BATCH,), generator=generator) for high in (6, 2)])
    return KeyedJaggedTensor(
        ["a", "b"], torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator), None, lengths
    )


def train(collectives: Collectives) -> list[np.ndarray]:
    """Return every table's rows by id, and this rank's outputs. Only the second rank of several has few examples."""
    fused, shared = FusedParams(learning_rate=0.1), {"fused_params": FusedParams(learning_rate=0.1), "plan": PLAN}
    bags = EmbeddingBagCollection(
        [EmbeddingBagConfig(ROWS, DIM, "a"), EmbeddingBagConfig(ROWS, DIM, "b", pooling=PoolingType.MEAN)],
        fused_params=fused,
        plan=PLAN,
        collectives=collectives,
    )
    on_device = EmbeddingBagCollection(  # on the host, by the code for a device
        [EmbeddingBagConfig(ROWS, DIM, "a"), EmbeddingBagConfig(ROWS, DIM, "b", pooling=PoolingType.MEAN)],
        device=torch.device("cpu"),
        fused_params=fused,
        plan=PLAN,
        collectives=collectives,
        cache_params=CacheParams(load_factor=0.99),
    )
    rows = EmbeddingCollection(
        [EmbeddingConfig(ROWS, 4, name) for name in "ab"],
        **shared,
        collectives=collectives,  # type: ignore[arg-type]
    )
    mine = torch.arange(BATCH).tensor_split([1, *range(2, collectives.world_size)][: collectives.world_size - 1])
    for step in range(5):
        part = batch(step).select_examples(mine[collectives.rank])
        grads = torch.randn(BATCH, 2 * DIM, generator=torch.Generator().manual_seed(step))
        for tables in (bags, on_device):
            tables(part).values().backward(grads[mine[collectives.rank]])
        # Integer gradients: their sums are the same in any order.
        scales = {key: (part[key].values() % 3 - 1).float()[:, None] for key in "ab"}
        sum((out.values() * scales[key]).sum() for key, out in rows(part).items()).backward()  # type: ignore[union-attr]
    merged = []
    on_device.check()
    for table in (*bags.embedding_bags.values(), *on_device.embedding_bags.values(), *rows.embeddings.values()):
        found = copy_of_rows(table)  # type: ignore[operator]
        ids, weights = torch.cat(collectives.gather(found.ids)), torch.cat(collectives.gather(found.weights))
        merged.append(weights[ids.argsort()].numpy())
    return merged


def large_messages(collectives: Collectives) -> np.ndarray:
    """Return what messages of 0 bytes to 24 MB bring: the memory grows while others read what went before."""
    rank, world_size = collectives.rank, collectives.world_size
    got = []
    for size in (0, 5, 300_000, 3_000_000, 7, 3_000_000):
        counts = [size // (1 + (rank + peer) % 2) for peer in range(world_size)]
        rows = torch.arange(sum(counts)) + 10_000_000 * rank
        received, received_counts = collectives.all_to_all_uneven(rows, counts)
        assert received_counts == [size // (1 + (rank + peer) % 2) for peer in range(world_size)]
        got.append(received.sum().reshape(1))
    return torch.cat(got).numpy()


def main(rank: int, world_size: int, store: str, out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size)
    group = GroupCollectives()
    host = share_host_memory(group)
    if world_size > 1:
        assert isinstance(host, HostMemoryCollectives)
    for name, collectives in (("gloo", group), ("host", host)):
        np.savez(out / f"{name}{rank}.npz", *train(collectives), large=large_messages(collectives))
    if rank == 0:
        np.savez(out / "alone.npz", *train(LocalCollectives()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
