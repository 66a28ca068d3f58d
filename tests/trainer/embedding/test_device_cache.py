"""Rows in host memory below a cache in device memory, against tables without one; without a GPU all is on the host."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
import torch

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
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TABLES = [
    EmbeddingBagConfig(90, 8, "a", feature_names=["f1", "f3"]),
    EmbeddingBagConfig(70, 4, "b", feature_names=["f2"], pooling=PoolingType.MEAN),
    EmbeddingBagConfig(60, 8, "c", feature_names=["f1"], weight_init_min=0.5, weight_init_max=1.0),
]
NUM_ROWS = {8: 150, 4: 70}  # of the blocks
KEYS, LIMITS = ["f2", "f1", "f3"], {"f1": 60, "f2": 70, "f3": 90}


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        place = "ett.trainer.embedding.embedding_bag_collection.is_on_device"
        monkeypatch.setattr(place, lambda device: device is not None)


def collection(optimizer: EmbOptimType = EmbOptimType.EXACT_ADAGRAD, **more: Any) -> EmbeddingBagCollection:
    fused = FusedParams(optimizer=optimizer, learning_rate=0.1)
    made = EmbeddingBagCollection(TABLES, device=DEVICE, fused_params=fused, seed=3, **more)
    for block in made.blocks:
        for part in [] if block.cache is None else block.cache._parts:
            for rows in part.rows.values():  # a slot that nothing was brought to shows
                rows.fill_(float("nan") if rows.is_floating_point() else -(2**40))
    return made


def cached(num_rows: int, **more: Any) -> EmbeddingBagCollection:
    """The larger block has slots for num_rows rows."""
    return collection(cache_params=CacheParams(load_factor=(num_rows - 0.5) / NUM_ROWS[8]), **more)


def batch(seed: int, size: int = 4) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(KEYS), size), generator=generator)
    counts = lengths.sum(1).tolist()
    ids = [torch.randint(0, LIMITS[key], (n,), generator=generator) for key, n in zip(KEYS, counts, strict=True)]
    return KeyedJaggedTensor(KEYS, torch.cat(ids), None, lengths.reshape(-1)).to(DEVICE)


def num_distinct(batches: list[KeyedJaggedTensor]) -> int:
    """Return the rows of the larger block that they use."""
    rows = {("a", id_) for each in batches for key in ("f1", "f3") for id_ in each[key].values().tolist()}
    return len(rows | {("c", id_) for each in batches for id_ in each["f1"].values().tolist()})


def train(tables: EmbeddingBagCollection, features: KeyedJaggedTensor) -> torch.Tensor:
    values = tables(features).values()
    (values * torch.linspace(-1, 1, values.numel(), device=DEVICE).view(values.shape)).sum().backward()
    return values.detach()


def load(part: Any, rows: TableRows) -> None:
    part.begin_import(len(rows.ids))
    for some in (slice(0, 30), slice(33, None)):  # a few rows do not come
        states = {name: state[some] for name, state in rows.states.items()}
        part.import_rows(TableRows(ids=rows.ids[some], weights=rows.weights[some], states=states))
    part.end_import()


def rows_of(tables: EmbeddingBagCollection) -> dict[str, torch.Tensor]:
    found = {name: rows.cpu().clone() for name, rows in tables.state_dict().items()}
    return found | {name: rows.cpu().clone() for name, rows in tables.fused_state().items()}


def assert_equal(ours: EmbeddingBagCollection, theirs: EmbeddingBagCollection) -> None:
    found, expected = rows_of(ours), rows_of(theirs)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], rows) for name, rows in expected.items())


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", list(EmbOptimType))
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_the_smallest_cache_gives_the_bits_of_all_rows_on_the_device(optimizer: EmbOptimType, depth: int) -> None:
    batches = [batch(seed) for seed in range(9)]
    smallest = max(num_distinct(batches[n : n + depth + 1]) for n in range(len(batches)))
    ours, theirs = cached(smallest, optimizer=optimizer), collection(optimizer)
    for n, features in enumerate(batches):
        for later in batches[n + depth : n + depth + 1] if n else batches[: depth + 1]:
            ours.prefetch(later)
        assert torch.equal(train(ours, features), train(theirs, features))
    ours.check()
    assert_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_calls_gives_the_bits_of_all_rows_on_the_device(seed: int) -> None:
    rng = random.Random(seed)
    optimizer = rng.choice(list(EmbOptimType))
    depth, ahead = rng.choice([0, 1, 4]), deque[KeyedJaggedTensor]()
    states = rng.choice([None, 0.5, 0.9, 1.0])
    # Without a state factor of their own states are as many as rows; 150 rows at most for six batches in flight.
    params = CacheParams(load_factor=rng.choice([0.6, 0.8]), state_load_factor=states and max(states, 0.6))
    ours, theirs = collection(optimizer, cache_params=params), collection(optimizer)
    number = 100 * seed
    for _ in range(40):
        match rng.choice(["train", "train", "train", "prefetch", "prefetch", "score", "flush", "look", "drop", "load"]):
            case "prefetch" if len(ahead) < depth:
                ahead.append(batch(number, size=rng.choice([0, 1, 2, 3])))
                ours.prefetch(ahead[-1])
            case "train" | "prefetch":
                features = ahead.popleft() if ahead else batch(number, size=2)
                assert torch.equal(train(ours, features), train(theirs, features))
            case "score":
                with torch.no_grad():
                    features = batch(number, size=20)
                    assert torch.equal(ours(features).values(), theirs(features).values())
            case "flush":
                ours.flush()
            case "look":
                assert_equal(ours, theirs)
            case "drop":  # its rows stay, and nothing keeps them
                ours(ahead.popleft() if ahead else batch(number, size=2))
            case "load":
                for mine, other in zip(ours.embedding_bags.values(), theirs.embedding_bags.values(), strict=True):
                    rows = copy_of_rows(other)  # type: ignore[arg-type]
                    rows.weights.mul_(0.5)
                    for part in (mine, other):
                        load(part, rows)
        number += 1
    ours.check()
    assert_equal(ours, theirs)


@pytest.mark.slow
def test_a_cache_that_is_too_small_is_an_error_that_names_tables_and_sizes() -> None:
    batches = [batch(seed) for seed in range(2)]
    both = num_distinct(batches)
    ours = cached(both - 1)
    ours.prefetch(batches[0])
    ours.prefetch(batches[1])
    alone = collection()
    for features in batches:
        train(ours, features)
    message = rf"tables a, c: their cache of {both - 1} rows is 1 too small for a batch beside those in flight"
    with pytest.raises(ConfigError, match=message):
        ours.check()
    train(alone, batches[0])
    assert_equal(ours, alone)
    for tables in (ours, alone):
        train(tables, batches[1])
    assert_equal(ours, alone)


def test_a_wrong_batch_changes_no_row_of_a_cache() -> None:
    ours, theirs = cached(60), collection()
    wrong = KeyedJaggedTensor(KEYS, torch.tensor([1, 2, -7]), None, torch.ones(3, dtype=torch.int64)).to(DEVICE)
    ours.prefetch(wrong)
    train(ours, wrong)
    with pytest.raises(DataError, match="table a: id -7 of feature f3"):
        ours.check()
    for tables in (ours, theirs):
        train(tables, batch(1))
    assert_equal(ours, theirs)


def test_another_batch_than_the_prefetched_one_is_refused() -> None:
    ours = cached(120)
    first, second = batch(1), batch(2)
    ours.prefetch(first)
    with pytest.raises(ConfigError, match="another one is looked up"):
        ours(second)
    train(ours, first)
    train(ours, second)


def test_a_second_backward_is_refused() -> None:
    pooled = cached(60)(batch(1)).values()
    pooled.sum().backward(retain_graph=True)
    with pytest.raises(ConfigError, match="twice for a batch"):
        pooled.sum().backward()


@pytest.mark.slow
def test_rows_that_are_loaded_replace_those_of_a_batch_on_its_way() -> None:
    ours, theirs, other = cached(120), collection(), collection()
    for seed in range(3):
        train(other, batch(seed))
    train(ours, batch(5))
    features = batch(6)
    ours.prefetch(features)
    for tables in (ours, theirs):
        tables.load_state_dict(other.state_dict())
    assert torch.equal(ours(features).values(), theirs(features).values())


def test_moving_the_model_leaves_rows_below_a_cache_where_they_are() -> None:
    ours = cached(60)
    before = ours.embedding_bags["a"].weight
    assert ours.to("meta").embedding_bags["a"].weight is before and before.device.type == "cpu"


def test_settings_of_a_cache_are_checked() -> None:
    for wrong in (0.0, 1.5, -1.0):
        with pytest.raises(ConfigError, match=r"cache_params\.load_factor"):
            CacheParams(load_factor=wrong)
    with pytest.raises(ConfigError, match=r"cache_params\.state_load_factor"):
        CacheParams(load_factor=0.5, state_load_factor=2.0)
    fused = FusedParams()
    with pytest.raises(ConfigError, match="cache_params are given, and device is None"):
        EmbeddingBagCollection(TABLES, fused_params=fused, cache_params=CacheParams(load_factor=0.5))


@pytest.mark.parametrize(("optimizer", "is_cached"), [("exact_row_wise_adagrad", False), ("exact_adagrad", True)])
def test_the_state_of_row_wise_adagrad_is_on_the_device_alone(optimizer: str, is_cached: bool) -> None:
    made = collection(EmbOptimType(optimizer), cache_params=CacheParams(load_factor=0.5))
    caches = [block.cache for block in made.blocks]
    assert all(cache is not None and (cache.states is not None) is is_cached for cache in caches)
