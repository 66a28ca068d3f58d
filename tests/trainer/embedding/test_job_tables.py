"""Bags and sequences of tables of unlike widths against flat tables, with ranks as threads.

Gradients, weights and the lengths of MEAN's bags are powers of two or small integers, so that no order of sums rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ett.checkpoint.table import copy_of_rows
from ett.errors import ConfigError, DataError
from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.config import ModelConfig, SparseConfig
from ett.trainer.data.columns import Column, Columns, Jagged, take_rows
from ett.trainer.dense.dlrm import Dlrm
from ett.trainer.embedding.embedding_bag_collection import EmbeddingBagCollection
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.embedding.table_config import EmbeddingBagConfig, PoolingType
from ett.trainer.sparse.hashing import RowInit

OnRanks = Callable[[int, Callable[[Any], Any]], list[Any]]
BATCH, IDS, STEPS, LR = 12, 7, 5, 0.5
TABLES = [
    EmbeddingBagConfig(0, 5, "wide", feature_names=["one", "weighted"]),
    EmbeddingBagConfig(IDS, 2, "narrow", feature_names=["bag", "mean of one"], pooling=PoolingType.MEAN),
    EmbeddingBagConfig(0, 5, "rows", feature_names=["history", "target"], pooling=PoolingType.NONE),
    EmbeddingBagConfig(0, 1, "sum", feature_names=["long"]),
]
POOLED = {"one": 5, "weighted": 5, "bag": 2, "mean of one": 2, "long": 1}  # width


def make(collectives: Any) -> JobTables:
    config = SparseConfig(optimizer="sgd", init_scale=0.5, learning_rate=LR)
    return JobTables(TABLES, config, collectives, seed=1)


def batch_of(step: int) -> tuple[Columns, dict[str, Tensor]]:
    """Return the global batch and the gradient of each output; a sequence's is by position."""
    rng = np.random.default_rng(step)

    def bags(lengths: Any, *, is_weighted: bool = False) -> Jagged:
        count = int(np.sum(lengths))
        weights = rng.choice([0.5, 1.0, 2.0], count).astype(np.float32) if is_weighted else None
        return Jagged(rng.integers(0, IDS, count), np.asarray(lengths), weights)

    columns: dict[str, Column] = {
        "one": rng.integers(0, IDS, BATCH),
        "weighted": bags(rng.integers(0, 4, BATCH), is_weighted=True),
        "bag": bags(rng.choice([0, 1, 2, 4], BATCH)),
        "mean of one": rng.integers(0, IDS, BATCH),
        "history": bags(rng.integers(0, 9, BATCH)),
        "target": rng.integers(0, IDS, BATCH),
        "long": bags(rng.integers(0, 20, BATCH)),
    }
    grads = {
        name: torch.from_numpy(rng.integers(-4, 5, (BATCH, dim)).astype(np.float32)) for name, dim in POOLED.items()
    }
    for name in ("history", "target"):
        column = columns[name]
        count = len(column.values) if isinstance(column, Jagged) else BATCH
        grads[name] = torch.from_numpy(rng.integers(-4, 5, (count, 5)).astype(np.float32))
    return columns, grads


def bags_of(column: Column) -> list[list[tuple[int, float]]]:
    """Return each example's ids with their weights."""
    if not isinstance(column, Jagged):
        return [[(int(i), 1.0)] for i in column]
    weights = np.ones(len(column.values)) if column.weights is None else column.weights
    pairs = list(zip(column.values.tolist(), weights.tolist(), strict=True))
    ends = np.cumsum(column.lengths)
    return [pairs[end - length : end] for end, length in zip(ends.tolist(), column.lengths.tolist(), strict=True)]


def flat_rows() -> dict[str, Tensor]:
    ids = np.arange(IDS)
    inits = {t.name: RowInit(f"embedding_bags.{t.name}", seed=1, dim=t.embedding_dim, scale=0.5) for t in TABLES}
    return {name: torch.from_numpy(init.rows(ids)) for name, init in inits.items()}


def flat_outputs(rows: dict[str, Tensor], columns: Columns) -> dict[str, Tensor]:
    found = {}
    for table in TABLES:
        for feature in table.features:
            sums = []
            for bag in bags_of(columns[feature]):
                if table.pooling is PoolingType.NONE:
                    sums += [rows[table.name][i] for i, _ in bag]
                    continue
                total = torch.zeros(table.embedding_dim)
                for i, weight in bag:
                    total = total + weight * rows[table.name][i]
                sums.append(total / max(len(bag), 1) if table.pooling is PoolingType.MEAN else total)
            found[feature] = torch.stack(sums) if sums else torch.empty(0, table.embedding_dim)
    return found


def flat_step(rows: dict[str, Tensor], columns: Columns, grads: dict[str, Tensor]) -> None:
    for table in TABLES:
        total = torch.zeros_like(rows[table.name])
        for feature in table.features:
            position = 0
            for example, bag in enumerate(bags_of(columns[feature])):
                for i, weight in bag:
                    at = position if table.pooling is PoolingType.NONE else example
                    mean = len(bag) if table.pooling is PoolingType.MEAN else 1
                    total[i] += weight * grads[feature][at] / mean
                    position += 1
        rows[table.name] -= LR * total


def part_of(rank: int, world_size: int) -> np.ndarray[Any, Any]:
    """Return uneven slices, one of them empty where there are three ranks or more."""
    cuts = {1: [], 2: [4], 4: [3, 3, 9]}[world_size]
    return np.split(np.arange(BATCH), cuts)[rank]


def trained(collectives: Any, depth: int) -> tuple[list[dict[str, list[Any]]], dict[str, Any]]:
    """Return this rank's outputs of every step, and its rows after the last."""
    tables = make(collectives)
    mine = part_of(collectives.rank, collectives.world_size)
    ahead, outputs = [], []
    for step in range(STEPS + depth):
        if step < STEPS:
            columns = take_rows(batch_of(step)[0], mine)
            ahead.append((columns, tables.announce(columns, 0, collectives)))
        if step < depth:
            continue
        columns, announced = ahead.pop(0)
        looked_up = tables.complete(announced, columns)
        pooled = zip(tables.pooled, looked_up.inputs.pooled, strict=True)
        found = {name: sums[:, n] for (_, names), sums in pooled for n, name in enumerate(names)}
        found |= {name: rows.values() for name, rows in looked_up.inputs.sequences.items()}
        outputs.append({name: rows.tolist() for name, rows in found.items()})
        grads = grads_of(step - depth, mine)
        torch.autograd.backward([found[name] for name in found], [grads[name] for name in found])
        looked_up.apply_gradients(1.0)
    rows = {shard.name: copy_of_rows(shard) for shard in tables.shards()}
    return outputs, {name: dict(zip(r.ids.tolist(), r.weights.tolist(), strict=True)) for name, r in rows.items()}


def grads_of(step: int, mine: np.ndarray[Any, Any]) -> dict[str, Tensor]:
    columns, grads = batch_of(step)
    found = {name: grads[name][torch.from_numpy(mine)] for name in [*POOLED, "target"]}
    history = columns["history"]
    assert isinstance(history, Jagged)
    places = Jagged(np.arange(len(history.values)), history.lengths).take(mine).values
    return found | {"history": grads["history"][torch.from_numpy(places)]}


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_outputs_and_rows_are_those_of_flat_tables_to_the_bit(on_ranks: OnRanks, world_size: int, depth: int) -> None:
    by_rank = on_ranks(world_size, lambda collectives: trained(collectives, depth))
    rows = flat_rows()
    for step in range(STEPS):
        columns, grads = batch_of(step)
        for rank in range(world_size):
            mine = take_rows(columns, part_of(rank, world_size))
            expected = {name: found.tolist() for name, found in flat_outputs(rows, mine).items()}
            assert by_rank[rank][0][step] == expected
        flat_step(rows, columns, grads)
    for table in TABLES:
        merged = {i: row for _, tables in by_rank for i, row in tables[f"embedding_bags.{table.name}"].items()}
        assert [merged[i] for i in range(IDS)] == rows[table.name].tolist()


def test_outputs_say_which_feature_stands_where() -> None:
    tables = make(LocalCollectives())
    assert tables.pooled == [(1, ["long"]), (2, ["bag", "mean of one"]), (5, ["one", "weighted"])]
    assert tables.sequences == {"history": 5, "target": 5}
    looked_up = tables.look_up(batch_of(0)[0])
    assert [list(sums.shape) for sums in looked_up.inputs.pooled] == [[BATCH, 1, 1], [BATCH, 2, 2], [BATCH, 2, 5]]
    assert looked_up.inputs.sequences["target"].lengths().tolist() == [1] * BATCH


def test_outputs_that_no_loss_uses_leave_rows_as_they_are() -> None:
    tables = make(LocalCollectives())
    columns, _ = batch_of(0)
    before = [sums.tolist() for sums in tables.look_up(columns).inputs.pooled]
    tables.look_up(columns).apply_gradients(1.0)
    assert [sums.tolist() for sums in tables.look_up(columns).inputs.pooled] == before


def test_an_id_out_of_range_names_its_table() -> None:
    columns = dict(batch_of(0)[0]) | {"mean of one": np.full(BATCH, IDS)}
    with pytest.raises(DataError, match=r"table embedding_bags\.narrow: id 7 is out of range"):
        make(LocalCollectives()).look_up(columns)


def test_one_table_of_each_has_its_own_optimizer_and_rate() -> None:
    tables = [EmbeddingBagConfig(0, 2, name) for name in ("a", "b")]
    rates = {"a": SparseConfig(optimizer="sgd", learning_rate=1.0), "b": SparseConfig(optimizer="adam")}
    job = JobTables(tables, rates, LocalCollectives(), seed=1)
    columns = {name: np.array([3]) for name in ("a", "b")}
    first = job.look_up(columns).inputs.pooled[0].detach().clone()
    looked_up = job.look_up(columns)
    looked_up.inputs.pooled[0].backward(torch.ones(1, 2, 2))
    looked_up.apply_gradients(0.5)
    moved = first - job.look_up(columns).inputs.pooled[0].detach()
    torch.testing.assert_close(moved, torch.tensor([[[0.5, 0.5], [0.025, 0.025]]]))  # Adam's first step: the rate
    assert [sorted(copy_of_rows(shard).states) for shard in job.shards()] == [[], ["exp_avg", "exp_avg_sq", "step"]]


def test_dlrm_projects_widths_that_are_not_its_own() -> None:
    tables = [EmbeddingBagConfig(0, dim, f"t{dim}{n}") for dim in (4, 6, 9) for n in (0, 1)]
    config = ModelConfig(embedding_dim=6, bottom_mlp=(8,), top_mlp=(9,))
    job = JobTables(tables, SparseConfig(init_scale=0.5), LocalCollectives(), seed=1)
    model = Dlrm(config, job, num_dense=3, seed=1)
    looked_up, dense = job.look_up({table.name: np.arange(5) for table in tables}), torch.randn(5, 3)
    logits = model(dense, looked_up.inputs)
    weights = model.state_dict()
    vectors = [model.bottom(dense)]
    for n, (dim, sums) in enumerate(zip((4, 6, 9), looked_up.inputs.pooled, strict=True)):
        for feature in (0, 1):
            row = sums[:, feature]
            vectors.append(row if dim == 6 else row @ weights[f"projections.{n}.weight"][feature])
    dots = [(vectors[i] * vectors[j]).sum(1) for i in range(7) for j in range(i)]
    expected = model.top(torch.cat([vectors[0], torch.stack(dots, 1)], 1)).squeeze(1)
    torch.testing.assert_close(logits, expected)
    torch.autograd.backward(logits.sum())
    assert model.projections[0].weight.grad.abs().min() > 0


def test_dlrm_refuses_rows_that_are_not_pooled() -> None:
    job = JobTables(
        [EmbeddingBagConfig(0, 4, "t", pooling=PoolingType.NONE)], SparseConfig(), LocalCollectives(), seed=1
    )
    with pytest.raises(ConfigError, match="the rows of t are not pooled"):
        Dlrm(ModelConfig(embedding_dim=4), job, num_dense=3, seed=1)


def test_a_bag_collection_refuses_tables_without_pooling() -> None:
    with pytest.raises(ConfigError, match="table t: pooling is NONE"):
        EmbeddingBagCollection([EmbeddingBagConfig(5, 4, "t", pooling=PoolingType.NONE)])
