"""Tables in the memory of several devices, against one rank; without GPUs: in the host's, with ranks as threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ett.checkpoint.table import TableRows, copy_of_rows
from ett.errors import ConfigError, DataError
from ett.trainer import (
    CacheParams,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbOptimType,
    FusedParams,
    KeyedJaggedTensor,
    PoolingType,
    ShardingType,
    TableSharding,
    table_wise_plan,
)

Run = Callable[[int, Callable[[Any], Any]], list[Any]]
CPU = torch.device("cpu")
KEYS, BATCH, STEPS = ["f1", "f2", "f3", "f4"], 16, 4
TABLES = [
    EmbeddingBagConfig(23, 8, "a", feature_names=["f1", "f3"]),
    EmbeddingBagConfig(9, 4, "b", feature_names=["f2"], pooling=PoolingType.MEAN),
    EmbeddingBagConfig(31, 8, "c", feature_names=["f1", "f4"]),
]
WIDTH = 8 + 8 + 4 + 8 + 8
LIMITS = {"f1": 23, "f3": 23, "f2": 9, "f4": 31}
ROW_WISE = {table.name: TableSharding(ShardingType.ROW_WISE) for table in TABLES}
MIXED = {**ROW_WISE, "c": TableSharding(ShardingType.TABLE_WISE, 1)}


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "ett.trainer.embedding.embedding_bag_collection.is_on_device"
    monkeypatch.setattr(place, lambda device: device is not None)


def plan_of(name: str, world_size: int) -> Any:
    plans = {"row_wise": ROW_WISE, "mixed": MIXED, "table_wise": table_wise_plan(TABLES, world_size)}
    return plans[name] if world_size > 1 else ROW_WISE


def global_batch(seed: int, longest: int, weighted: bool) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (len(KEYS), BATCH), generator=generator)
    counts = lengths.sum(1).tolist()
    ids = [torch.randint(0, LIMITS[key], (n,), generator=generator) for key, n in zip(KEYS, counts, strict=True)]
    joined = torch.cat(ids)
    weights = torch.randint(-3, 4, (len(joined),), generator=generator).float() if weighted else None
    return KeyedJaggedTensor(KEYS, joined, weights, lengths.reshape(-1))


def examples_of(rank: int, world_size: int, uneven: bool) -> Tensor:
    """Consecutive examples; uneven: none on the first rank, all on the last, at 4 ranks one on the second."""
    if not uneven or world_size == 1:
        return torch.arange(BATCH).tensor_split(world_size)[rank]
    return torch.arange(BATCH).tensor_split([0, 1, *[1] * (world_size - 3)][: world_size - 1])[rank]


def make(collectives: Any, plan: str, *, exact: bool = False, **more: Any) -> EmbeddingBagCollection:
    """Make the tables; exact: all rows start at zero and SGD steps by whole gradients."""
    params = FusedParams(learning_rate=0.1)
    tables = TABLES
    if exact:
        params = FusedParams(optimizer=EmbOptimType.EXACT_SGD, learning_rate=1.0)
        tables = [
            EmbeddingBagConfig(
                *(t.num_embeddings, t.embedding_dim, t.name),
                feature_names=t.features,
                pooling=PoolingType.SUM,
                weight_init_min=0.0,
                weight_init_max=0.0,
            )
            for t in TABLES
        ]
    plan_here = plan_of(plan, collectives.world_size)
    return EmbeddingBagCollection(
        tables, device=CPU, fused_params=params, plan=plan_here, collectives=collectives, seed=3, **more
    )


def trained(
    collectives: Any,
    plan: str,
    *,
    longest: int,
    weighted: bool = False,
    uneven: bool = False,
    exact: bool = False,
    depth: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Train a few steps on slices of one global batch. Args: depth: of prefetches; None: none."""
    tables = make(collectives, plan, exact=exact, is_weighted=weighted, **more)
    mine = examples_of(collectives.rank, collectives.world_size, uneven)
    batches = [global_batch(step, longest, weighted).select_examples(mine) for step in range(STEPS)]
    outs = []
    for step, features in enumerate(batches):
        if depth is not None:
            for later in batches[step + depth : step + depth + 1] if step else batches[: depth + 1]:
                tables.prefetch(later)
        generator = torch.Generator().manual_seed(step)
        grads = torch.randint(-3, 4, (BATCH, WIDTH), generator=generator).float()
        grads = grads if exact else grads + torch.rand(BATCH, WIDTH, generator=generator)
        out = tables(features).values()
        out.backward(grads[mine])
        outs.append(out.detach())
        with torch.no_grad():  # scoring in between changes nothing
            tables(global_batch(77, longest, weighted).select_examples(mine))
    tables.check()
    tables.flush()
    return {"outs": outs, "rows": [copy_of_rows(part) for part in tables.embedding_bags.values()]}  # type: ignore[operator]


def whole(by_rank: list[dict[str, Any]]) -> list[Tensor]:
    """Return outputs of all steps in the order of the examples, then each table's rows and states by id."""
    found = [torch.cat(parts) for parts in zip(*(rank["outs"] for rank in by_rank), strict=True)]
    for table in zip(*(rank["rows"] for rank in by_rank), strict=True):
        ids = torch.cat([rows.ids for rows in table])
        order = ids.argsort()
        assert ids[order].tolist() == list(range(len(ids)))
        found.append(torch.cat([rows.weights for rows in table])[order])
        found += [torch.cat([rows.states[name] for rows in table])[order] for name in table[0].states]
    return found


def assert_equal(left: list[Tensor], right: list[Tensor]) -> None:
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(left, right, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("world_size", "uneven"), [(2, False), (4, True)])
def test_table_wise_training_has_the_bits_of_one_rank(
    on_ranks: Run, world_size: int, weighted: bool, uneven: bool
) -> None:
    def body(collectives: Any) -> Any:
        return trained(collectives, "table_wise", longest=6, weighted=weighted, uneven=uneven)

    assert_equal(whole(on_ranks(world_size, body)), whole(on_ranks(1, body)))


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["row_wise", "mixed"])
@pytest.mark.parametrize(("world_size", "uneven"), [(2, True), (3, False), (4, True)])
def test_row_wise_training_of_single_ids_has_the_bits_of_one_rank(
    on_ranks: Run, plan: str, world_size: int, uneven: bool
) -> None:
    def body(collectives: Any) -> Any:
        return trained(collectives, plan, longest=1, uneven=uneven)

    assert_equal(whole(on_ranks(world_size, body)), whole(on_ranks(1, body)))


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("plan", ["row_wise", "mixed"])
def test_bags_over_ranks_are_exact_where_sums_are(on_ranks: Run, plan: str, weighted: bool) -> None:
    def body(collectives: Any) -> Any:
        return trained(collectives, plan, longest=6, weighted=weighted, exact=True, uneven=True)

    assert_equal(whole(on_ranks(4, body)), whole(on_ranks(1, body)))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [None, 0, 1, 3])
def test_a_cache_of_any_depth_changes_no_bit(on_ranks: Run, depth: int | None) -> None:
    def body(collectives: Any, **more: Any) -> Any:
        return trained(collectives, "mixed", longest=2, uneven=True, **more)

    cached = on_ranks(3, lambda c: body(c, depth=depth, cache_params=CacheParams(load_factor=0.99)))
    assert_equal(whole(cached), whole(on_ranks(3, body)))


@pytest.mark.slow
def test_the_mean_of_a_bag_over_ranks_divides_by_its_whole_length(on_ranks: Run) -> None:
    def body(collectives: Any) -> Tensor:
        tables = make(collectives, "row_wise")
        ids = torch.tensor([0, 3, 8]) if collectives.rank == 0 else torch.tensor([], dtype=torch.int64)
        lengths = torch.tensor([0, 3, 0, 0]) if collectives.rank == 0 else torch.zeros(4, dtype=torch.int64)
        return tables(KeyedJaggedTensor(KEYS, ids, None, lengths)).values()[:, 16:20].detach()

    found, one = on_ranks(3, body)[0], on_ranks(1, body)[0]
    # Three summands, in another order: two roundings of a half unit of the last place each, on both sides.
    assert torch.allclose(found, one, rtol=0, atol=4 * 2**-24 * float(one.abs().max()) * 3)


@pytest.mark.parametrize("wrong_id", [-5, 23, 10**9])
def test_a_wrong_id_of_one_rank_is_an_error_of_all_and_changes_no_row(on_ranks: Run, wrong_id: int) -> None:
    def body(collectives: Any) -> Any:
        tables = make(collectives, "row_wise")
        before = [copy_of_rows(part) for part in tables.embedding_bags.values()]  # type: ignore[arg-type]
        ids = torch.tensor([1, 2, wrong_id if collectives.rank == 1 else 3, 4])
        tables(KeyedJaggedTensor(KEYS, ids, None, torch.tensor([1, 1, 1, 1]))).values().sum().backward()
        with pytest.raises(DataError) as caught:
            tables.check()
        after = [copy_of_rows(part) for part in tables.embedding_bags.values()]  # type: ignore[arg-type]
        assert all(torch.equal(a.weights, b.weights) for a, b in zip(before, after, strict=True))
        return str(caught.value)

    said = on_ranks(3, body)
    named = [text for text in said if f"table a: id {wrong_id} of feature f3" in text]
    assert len(named) == 1 and "expected: ids in [0, 23)" in named[0]
    assert len([text for text in said if "on another rank" in text]) == 2


@pytest.mark.parametrize("told_by", ["look_up", "prefetch"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_what_told_of_a_wrong_batch_may_be_called_again(on_ranks: Run, world_size: int, told_by: str) -> None:
    def body(collectives: Any) -> None:
        tables = make(collectives, "row_wise", cache_params=CacheParams(load_factor=0.99))
        wrong = KeyedJaggedTensor(KEYS, torch.tensor([1, 2, 99, 4]), None, torch.tensor([1, 1, 1, 1]))
        second, third = (global_batch(seed, 1, False) for seed in (1, 2))
        tables.prefetch(wrong)
        if told_by == "look_up":
            tables.prefetch(second)
        tables(wrong).values().sum().backward()
        with pytest.raises(DataError):
            tables(second) if told_by == "look_up" else tables.prefetch(second)
        if told_by == "prefetch":
            tables.prefetch(second)
        for features, later in ((second, [third]), (third, [])):
            for each in later:
                tables.prefetch(each)
            tables(features).values().sum().backward()
        tables.check()

    on_ranks(world_size, body)


def test_gradients_that_are_not_finite_change_no_row_on_any_rank(on_ranks: Run) -> None:
    def body(collectives: Any) -> None:
        tables = make(collectives, "table_wise")
        before = [copy_of_rows(part).weights for part in tables.embedding_bags.values()]  # type: ignore[arg-type]
        out = tables(global_batch(1, 3, False)).values()
        factor = float("nan") if collectives.rank == 2 else 1.0
        (out[:, :1] * factor).sum().backward()  # the first column: of one table
        with pytest.raises(DataError):
            tables.check()
        after = [copy_of_rows(part).weights for part in tables.embedding_bags.values()]  # type: ignore[arg-type]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))

    on_ranks(4, body)  # more ranks than tables


def test_rows_move_between_numbers_of_ranks(on_ranks: Run) -> None:
    saved = on_ranks(3, lambda c: trained(c, "mixed", longest=3))

    def body(collectives: Any) -> Any:
        tables = make(collectives, "table_wise")
        for number, part in enumerate(tables.embedding_bags.values()):
            rows = [rank["rows"][number] for rank in saved]
            part.begin_import(sum(len(each.ids) for each in rows))  # type: ignore[operator]
            for each in rows:
                here = part.owned(each.ids)  # type: ignore[operator]
                states = {name: state[here] for name, state in each.states.items()}
                part.import_rows(TableRows(ids=each.ids[here], weights=each.weights[here], states=states))  # type: ignore[operator]
            part.end_import()  # type: ignore[operator]
        return {"outs": [], "rows": [copy_of_rows(part) for part in tables.embedding_bags.values()]}  # type: ignore[arg-type]

    assert_equal(whole(on_ranks(2, body)), whole([{"outs": [], "rows": rank["rows"]} for rank in saved]))


def test_plans_that_need_host_memory_are_refused(on_ranks: Run) -> None:
    def body(collectives: Any) -> None:
        for kind in (ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE_HASH):
            plan = {**ROW_WISE, "b": TableSharding(kind)}
            with pytest.raises(ConfigError, match="table b is planned"):
                EmbeddingBagCollection(
                    TABLES, device=CPU, fused_params=FusedParams(), plan=plan, collectives=collectives
                )

    on_ranks(2, body)


def test_a_tables_own_first_rows_are_drawn_on_a_device_too() -> None:
    table = EmbeddingBagConfig(5, 4, "a", init_fn=lambda weight: weight.fill_(7.0))
    for cache in (None, CacheParams(load_factor=0.9)):
        tables = EmbeddingBagCollection([table], device=CPU, fused_params=FusedParams(), cache_params=cache)
        assert bool((tables.state_dict()["embedding_bags.a.weight"] == 7.0).all())
