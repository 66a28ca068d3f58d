"""The sharded lookup and update against one flat table per feature, with ranks as threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ett.checkpoint.table import TableRows, copy_of_rows
from ett.trainer.config import SparseConfig
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.embedding.table_config import EmbeddingBagConfig
from ett.trainer.sparse.hashing import RowInit

TABLES, DIM, BATCH, LR = 5, 4, 24, 0.5
Run = Callable[[int, Callable[[Any], Any]], list[Any]]


def collection(collectives: Any) -> JobTables:
    tables = [EmbeddingBagConfig(0, name=f"t{i}", embedding_dim=DIM) for i in range(TABLES)]
    return JobTables(tables, SparseConfig(optimizer="sgd", init_scale=0.5, learning_rate=LR), collectives, seed=1)


def columns(ids: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {f"t{f}": of_table for f, of_table in enumerate(ids)}


def global_batch(step: int) -> tuple[np.ndarray[Any, Any], Tensor]:
    rng = np.random.default_rng(step)
    ids = rng.integers(0, 9, (TABLES, BATCH)) - 3
    return ids, torch.from_numpy(rng.standard_normal((BATCH, TABLES, DIM), np.float32))


def bounds(rank: int, world_size: int, uneven: bool) -> slice:
    """Equal slices, or: the first rank has all but one sample, the last one that, ranks between nothing."""
    if not uneven:
        return slice(rank * BATCH // world_size, (rank + 1) * BATCH // world_size)
    return [slice(0, BATCH - 1), *[slice(0, 0)] * (world_size - 2), slice(BATCH - 1, BATCH)][rank]


def flat_tables(num_steps: int, world_size: int) -> Tensor:
    """Return [TABLES, 9, DIM] after num_steps of SGD; each rank's gradients are summed before the ranks'."""
    ids = np.arange(9) - 3
    rows = [RowInit(f"embedding_bags.t{f}", seed=1, dim=DIM, scale=0.5).rows(ids) for f in range(TABLES)]
    tables = torch.from_numpy(np.stack(rows))
    for step in range(num_steps):
        batch_ids, grads = global_batch(step)
        total = torch.zeros_like(tables)
        for rank in range(world_size):
            part, mine = bounds(rank, world_size, False), torch.zeros_like(tables)
            for f in range(TABLES):
                mine[f].index_add_(0, torch.from_numpy(batch_ids[f, part] + 3), grads[part, f])
            total += mine
        tables -= LR * total
    return tables


def trained(collectives: Any, num_steps: int, uneven: bool = False) -> list[TableRows]:
    ebc = collection(collectives)
    for step in range(num_steps):
        ids, grads = global_batch(step)
        part = bounds(collectives.rank, collectives.world_size, uneven)
        looked_up = ebc.look_up(columns(ids[:, part]))
        looked_up.inputs.pooled[0].backward(grads[part])
        looked_up.apply_gradients(1.0)
    return [copy_of_rows(shard) for shard in ebc.shards()]


def merged(by_rank: list[list[TableRows]]) -> Tensor:
    tables = []
    for f in range(TABLES):
        ids = torch.cat([rows[f].ids for rows in by_rank])
        assert ids.sort().values.tolist() == list(range(-3, 6))
        tables.append(torch.cat([rows[f].weights for rows in by_rank])[ids.argsort()])
    return torch.stack(tables)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_sharded_training_equals_flat_tables_to_the_bit(on_ranks: Run, world_size: int) -> None:
    by_rank = on_ranks(world_size, lambda collectives: trained(collectives, 6))
    assert torch.equal(merged(by_rank), flat_tables(6, world_size))


@pytest.mark.parametrize("world_size", [2, 4])
def test_uneven_ranks_train_what_even_ones_do(on_ranks: Run, world_size: int) -> None:
    by_rank = on_ranks(world_size, lambda collectives: trained(collectives, 6, uneven=True))
    # Sums of up to 24 gradients in another order: each step differs by a few units of 2^-24 of values below 16.
    torch.testing.assert_close(merged(by_rank), flat_tables(6, 1), rtol=0, atol=6 * 24 * 2**-20)


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_position_gets_its_row(on_ranks: Run, world_size: int) -> None:
    def body(collectives: Any) -> bool:
        ids, _ = global_batch(collectives.rank)
        ebc = collection(collectives)
        rows = ebc.look_up(columns(ids)).inputs.pooled[0]
        inits = [RowInit(f"embedding_bags.t{f}", seed=1, dim=DIM, scale=0.5).rows(ids[f]) for f in range(TABLES)]
        return torch.equal(rows.detach(), torch.from_numpy(np.stack(inits, axis=1)))

    assert all(on_ranks(world_size, body))


def test_control_words_are_ored_over_ranks(on_ranks: Run) -> None:
    def body(collectives: Any) -> int:
        ids, _ = global_batch(0)
        return collection(collectives).look_up(columns(ids), control=1 if collectives.rank == 2 else 4).control

    assert on_ranks(3, body) == [5, 5, 5]


def test_a_batch_without_samples_on_any_rank_changes_nothing(on_ranks: Run) -> None:
    def body(collectives: Any) -> int:
        ebc = collection(collectives)
        ebc.look_up(columns(np.empty((TABLES, 0), np.int64))).apply_gradients(1.0)
        return sum(len(shard) for shard in ebc.shards())

    assert on_ranks(2, body) == [0, 0]
