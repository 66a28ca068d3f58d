"""Sharded over ranks (threads) against one rank: equal bits wherever no sum is taken apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ett.checkpoint.table import copy_of_rows
from ett.errors import ConfigError
from ett.trainer import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    EmbOptimType,
    FusedParams,
    KeyedJaggedTensor,
    PoolingType,
    ShardingType,
    TableSharding,
    row_wise_plan,
    table_wise_plan,
)

Run = Callable[[int, Callable[[Any], Any]], list[Any]]
KEYS, BATCH, STEPS = ["f1", "f2", "f3", "f4"], 16, 4
BAG_TABLES = [
    EmbeddingBagConfig(23, 8, "a", feature_names=["f1", "f3"]),
    EmbeddingBagConfig(9, 4, "b", feature_names=["f2"], pooling=PoolingType.MEAN),
    EmbeddingBagConfig(31, 5, "c", feature_names=["f4"]),
]
WIDTH = 8 + 8 + 4 + 5
ROW_TABLES = [EmbeddingConfig(t.num_embeddings, t.embedding_dim, t.name, feature_names=t.features) for t in BAG_TABLES]
LIMITS = {"f1": 23, "f3": 23, "f2": 9, "f4": 31}
ALL = {
    kind.value: {table.name: TableSharding(kind) for table in BAG_TABLES}
    for kind in (ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE, ShardingType.ROW_WISE_HASH)
}
MIXED = {
    "a": TableSharding(ShardingType.ROW_WISE_HASH),
    "b": TableSharding(ShardingType.DATA_PARALLEL),
    "c": TableSharding(ShardingType.TABLE_WISE, 0),
}


def plans(name: str, world_size: int) -> Any:
    return {**ALL, "mixed": MIXED, "table_wise": table_wise_plan(BAG_TABLES, world_size)}[name]


def global_batch(seed: int, longest: int, weighted: bool) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (len(KEYS), BATCH), generator=generator)
    values = [
        torch.randint(0, LIMITS[k], (int(n.sum()),), generator=generator) for k, n in zip(KEYS, lengths, strict=True)
    ]
    joined = torch.cat(values)
    weights = torch.randn(len(joined), generator=generator) if weighted else None
    return KeyedJaggedTensor(KEYS, joined, weights, lengths.reshape(-1))


def examples_of(rank: int, world_size: int, uneven: bool) -> Tensor:
    """Consecutive examples; uneven: none on the first rank, all on the last, at 4 ranks one on the second."""
    if not uneven or world_size == 1:
        return torch.arange(BATCH).tensor_split(world_size)[rank]
    return torch.arange(BATCH).tensor_split([0, 1, *[1] * (world_size - 3)][: world_size - 1])[rank]


def trained_bags(
    collectives: Any, plan: str, *, longest: int, weighted: bool = False, uneven: bool = False, exact: bool = False
) -> dict[str, Any]:
    """Train a few steps on slices of one global batch; return outputs and rows. All integers if exact."""
    rank, world_size = collectives.rank, collectives.world_size
    params = FusedParams(optimizer=EmbOptimType.EXACT_SGD, learning_rate=1.0 if exact else 0.1)
    if not exact:
        params = FusedParams(learning_rate=0.1)
    tables = BAG_TABLES
    if exact:
        tables = [
            EmbeddingBagConfig(
                t.num_embeddings,
                t.embedding_dim,
                t.name,
                feature_names=t.features,
                weight_init_min=0.0,
                weight_init_max=0.0,
            )
            for t in BAG_TABLES
        ]
    ebc = EmbeddingBagCollection(
        tables, weighted, fused_params=params, plan=plans(plan, world_size), collectives=collectives, seed=3
    )
    outs = []
    for step in range(STEPS):
        mine = examples_of(rank, world_size, uneven)
        generator = torch.Generator().manual_seed(step)
        grads = torch.randint(-3, 4, (BATCH, WIDTH), generator=generator).float()
        if not exact:
            grads = torch.randn(BATCH, WIDTH, generator=generator)
        out = ebc(global_batch(step, longest, weighted).select_examples(mine)).values()
        out.backward(grads[mine])
        outs.append(out.detach())
    return {"outs": outs, "rows": [copy_of_rows(part) for part in ebc.embedding_bags.values()]}  # type: ignore[operator]


def whole(by_rank: list[dict[str, Any]]) -> list[Tensor]:
    """Return outputs of all steps in the order of the examples, then each table's rows and states by id."""
    found = [torch.cat(parts) for parts in zip(*(rank["outs"] for rank in by_rank), strict=True)]
    for table in zip(*(rank["rows"] for rank in by_rank), strict=True):
        ids = torch.cat([rows.ids for rows in table])
        assert len(ids.unique()) == len(ids)
        order = ids.argsort()
        found += [torch.cat([rows.weights for rows in table])[order]]
        found += [torch.cat([rows.states[name] for rows in table])[order] for name in table[0].states]
    return found


def equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(left, right, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("world_size", [2, 4])
def test_table_wise_training_has_the_bits_of_one_rank(
    on_ranks: Run, world_size: int, weighted: bool, uneven: bool
) -> None:
    def body(collectives: Any) -> Any:
        return trained_bags(collectives, "table_wise", longest=6, weighted=weighted, uneven=uneven)

    assert equal(whole(on_ranks(world_size, body)), whole(on_ranks(1, body)))


@pytest.mark.slow
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("plan", ["row_wise", "row_wise_hash"])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_row_wise_training_of_single_ids_has_the_bits_of_one_rank(
    on_ranks: Run, world_size: int, plan: str, uneven: bool
) -> None:
    def body(collectives: Any) -> Any:
        return trained_bags(collectives, plan, longest=1, uneven=uneven)

    assert equal(whole(on_ranks(world_size, body)), whole(on_ranks(1, body)))


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["row_wise", "row_wise_hash", "data_parallel", "mixed", "table_wise"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_sums_that_are_exact_are_equal_under_every_plan(on_ranks: Run, world_size: int, plan: str) -> None:
    """Integers far below 2^24 (MEAN's quotients aside, which only table b has): no order changes a bit."""

    def body(collectives: Any) -> Any:
        return trained_bags(collectives, plan, longest=6, exact=True)

    ours, theirs = whole(on_ranks(world_size, body)), whole(on_ranks(1, body))
    tables = theirs[STEPS:]
    for mine, other in zip(ours[:STEPS], theirs[:STEPS], strict=True):
        assert torch.equal(mine[:, :16], other[:, :16]) and torch.equal(mine[:, 20:], other[:, 20:])
        torch.testing.assert_close(mine[:, 16:20], other[:, 16:20], rtol=0, atol=2**-16)
    assert torch.equal(ours[STEPS], tables[0])
    torch.testing.assert_close(ours[STEPS + 1], tables[1], rtol=0, atol=2**-16)
    assert torch.equal(ours[STEPS + 2], tables[2])


@pytest.mark.slow
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("plan", ["row_wise", "row_wise_hash", "data_parallel", "mixed"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_sums_that_are_taken_apart_differ_by_roundings(
    on_ranks: Run, world_size: int, plan: str, weighted: bool, uneven: bool
) -> None:
    """Pooled sums of up to 6 products and gradients of up to 96, below 64 in all: at most 96 * 64 * 2^-24 a step."""

    def body(collectives: Any) -> Any:
        return trained_bags(collectives, plan, longest=6, weighted=weighted, uneven=uneven)

    for mine, theirs in zip(whole(on_ranks(world_size, body)), whole(on_ranks(1, body)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=STEPS * 96 * 64 * 2**-24)


def trained_rows(collectives: Any, plan: str, *, exact: bool = False, uneven: bool = False) -> dict[str, Any]:
    rank, world_size = collectives.rank, collectives.world_size
    params = FusedParams(optimizer=EmbOptimType.EXACT_ADAGRAD, learning_rate=0.1)
    ec = EmbeddingCollection(
        ROW_TABLES, fused_params=params, plan=plans(plan, world_size), collectives=collectives, seed=3
    )
    outs = []
    for step in range(STEPS):
        kjt = global_batch(step, 5, False)
        mine = kjt.select_examples(examples_of(rank, world_size, uneven))
        found = ec(mine)
        loss = torch.zeros(())
        for key, part in found.items():
            # A gradient that depends on the id alone is the same wherever the position is.
            scale = (mine[key].values() % 5 - 2).float()[:, None]
            loss = loss + (part.values() * scale).sum()
        loss.backward()
        outs.append(torch.stack([part.to_padded_dense(5).sum(2) for part in found.values()], 1).detach())
    return {"outs": outs, "rows": [copy_of_rows(part) for part in ec.embeddings.values()]}  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("plan", ["row_wise", "row_wise_hash", "data_parallel", "mixed", "table_wise"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_rows_of_positions_have_the_bits_of_one_rank_where_gradients_are_integers(
    on_ranks: Run, world_size: int, plan: str, uneven: bool
) -> None:
    def body(collectives: Any) -> Any:
        return trained_rows(collectives, plan, uneven=uneven)

    ours, theirs = whole(on_ranks(world_size, body)), whole(on_ranks(1, body))
    assert equal(ours, theirs)


def test_a_checkpoint_moves_between_a_range_and_a_hash(on_ranks: Run) -> None:
    """Rows of a hash-sharded table, which has only those that were updated, fill a table that has all of them."""

    def body(collectives: Any, plan: str) -> Any:
        return trained_bags(collectives, plan, longest=1)["rows"]

    by_range, by_hash = (on_ranks(1, lambda c, plan=plan: body(c, plan))[0] for plan in ("row_wise", "row_wise_hash"))
    ebc = EmbeddingBagCollection(BAG_TABLES, fused_params=FusedParams(learning_rate=0.1), seed=3)
    for part, rows, expected in zip(ebc.embedding_bags.values(), by_hash, by_range, strict=True):
        with torch.no_grad():
            part.weight.fill_(torch.nan)  # type: ignore[operator,union-attr]
        part.begin_import(0)  # type: ignore[operator]
        part.import_rows(rows)  # type: ignore[operator]
        part.end_import()  # type: ignore[operator]
        got = copy_of_rows(part)  # type: ignore[operator]
        assert torch.equal(got.weights, expected.weights)
        assert torch.equal(got.states["momentum1"], expected.states["momentum1"])


def test_a_plan_that_does_not_fit_is_refused() -> None:
    table = EmbeddingBagConfig(0, 4, "d")
    with pytest.raises(ConfigError, match="table d grows and is planned row_wise"):
        EmbeddingBagCollection([table], fused_params=FusedParams(), plan={"d": TableSharding(ShardingType.ROW_WISE)})
    with pytest.raises(ConfigError, match="the plan is for"):
        EmbeddingBagCollection([table], fused_params=FusedParams(), plan={})
    with pytest.raises(ConfigError, match="planned for rank 7"):
        EmbeddingBagCollection(
            [table], fused_params=FusedParams(), plan={"d": TableSharding(ShardingType.ROW_WISE_HASH, 7)}
        )


def test_sharded_rows_without_a_fused_optimizer_are_refused(on_ranks: Run) -> None:
    def body(collectives: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            EmbeddingBagCollection(BAG_TABLES, collectives=collectives)
        return caught.value.fact

    assert on_ranks(2, body) == ["2 ranks share the rows, and no fused_params are given"] * 2


def test_plans_spread_tables_and_rows() -> None:
    assert [sharding.rank for _, sharding in sorted(table_wise_plan(BAG_TABLES, 2).items())] == [0, 1, 1]
    assert row_wise_plan([EmbeddingConfig(0, 2, "d"), EmbeddingConfig(5, 2, "e")]) == {
        "d": TableSharding(ShardingType.ROW_WISE_HASH),
        "e": TableSharding(ShardingType.ROW_WISE),
    }
