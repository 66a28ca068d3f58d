"""Hundreds of updates, the same bits wherever the rows lie and however few of them are cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from redis_process import RedisProcess
from tier_stores import OpenStore, cached, host, redis, ssd

from ett.checkpoint.digest import ColumnGroup, TableDigest
from ett.checkpoint.table import StateSpec, TableRows, copy_of_rows
from ett.checkpoint.tensor_bytes import tensor_bytes
from ett.trainer.config import SparseConfig
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_optimizer import row_optimizer
from ett.trainer.sparse.row_rules import RowRules
from ett.trainer.sparse.tiers.table_storage import HostStorage, TableStorage, tiered_storage

pytestmark = pytest.mark.slow
DIM, BATCH, STEPS = 4, 64, 240
OPTIMIZER = row_optimizer(SparseConfig(optimizer="adam"))
RULES = [
    RowRules(),
    RowRules(max_rows=300, when_full="lfu", admit_after=2),
    RowRules(max_rows=300, when_full="lru", ttl_updates=40),
]


class Over:
    """Implements `Tiers`: caches of so many rows over a store; 0 rows: all in memory."""

    def __init__(self, store: OpenStore, cache_rows: int, state_cache_rows: int) -> None:
        self._store, self._sizes = store, (cache_rows, state_cache_rows)

    def storage(self, table: str, dim: int, states: Sequence[StateSpec]) -> TableStorage:
        cache_rows, state_cache_rows = self._sizes
        if not cache_rows:
            return HostStorage(dim, states)
        return tiered_storage(table, dim, states, self._store, cache_rows=cache_rows, state_cache_rows=state_cache_rows)


def make(tiers: Over, rules: RowRules) -> EmbeddingShard:
    init = RowInit("t", seed=1, dim=DIM, scale=0.1)
    return EmbeddingShard("t", init, OPTIMIZER, dim=DIM, num_rows=0, rank=0, world_size=1, rules=rules, tiers=tiers)


def train(shard: EmbeddingShard, first: int, end: int) -> list[float]:
    """Return a value of every step that depends on every row that the step read."""
    losses = []
    for step in range(first, end):
        rng = np.random.default_rng(step)
        ids = np.unique(rng.zipf(1.2, BATCH) % 5000)
        rows = torch.full((len(ids), DIM), float("nan"))
        shard.read(ids, rows)
        losses.append(rows.square().sum().item())
        shard.update(ids, rows * 0.5 + torch.from_numpy(rng.normal(size=rows.shape).astype(np.float32)), 0.1)
    return losses


def digest(shard: EmbeddingShard) -> str:
    """As `ett checkpoint show` has it."""
    rows = copy_of_rows(shard)
    tensors = [rows.weights, *(rows.states[s.name] for s in shard.states)]
    groups = [ColumnGroup("weight", "float32", DIM), *(ColumnGroup(s.name, s.dtype, s.width) for s in shard.states)]
    total = TableDigest("t", groups)
    columns = [
        tensor_bytes(t).reshape(len(rows.ids), group.row_bytes) for t, group in zip(tensors, groups, strict=True)
    ]
    total.add(rows.ids.numpy(), columns)
    return total.hex


@pytest.fixture(scope="module", params=RULES, ids=["unbounded", "lfu", "lru and ttl"])
def flat(request: pytest.FixtureRequest) -> tuple[RowRules, list[float], str, TableRows]:
    shard = make(Over(host, 0, 0), request.param)
    losses = train(shard, 0, STEPS)
    return request.param, losses, digest(shard), copy_of_rows(shard)


def assert_same(shard: EmbeddingShard, losses: list[float], flat: tuple[RowRules, list[float], str, TableRows]) -> None:
    _, expected_losses, expected_digest, expected = flat
    assert losses == expected_losses
    assert digest(shard) == expected_digest
    rows = copy_of_rows(shard)
    assert torch.equal(rows.ids, expected.ids)
    assert torch.equal(rows.weights, expected.weights)
    assert all(torch.equal(rows.states[name], state) for name, state in expected.states.items())


def stores(tmp_path: Path) -> dict[str, OpenStore]:
    return {"host": host, "ssd": ssd(tmp_path), "cache over ssd": cached(ssd(tmp_path), 100)}


@pytest.mark.parametrize(
    ("below", "sizes"),
    [
        ("host", (BATCH, BATCH)),
        ("ssd", (BATCH, BATCH)),
        ("ssd", (BATCH, 1000)),
        ("ssd", (5000, BATCH)),
        ("cache over ssd", (BATCH, BATCH)),
    ],
    ids=str,
)
def test_every_layout_and_cache_size_trains_the_same_bits(
    tmp_path: Path, flat: tuple[RowRules, list[float], str, TableRows], below: str, sizes: tuple[int, int]
) -> None:
    shard = make(Over(stores(tmp_path)[below], *sizes), flat[0])
    assert_same(shard, train(shard, 0, STEPS), flat)


@pytest.mark.process
def test_redis_trains_the_same_bits(
    start_redis: Callable[..., RedisProcess], flat: tuple[RowRules, list[float], str, TableRows]
) -> None:
    shard = make(Over(redis(start_redis().url), BATCH, BATCH), flat[0])
    assert_same(shard, train(shard, 0, STEPS), flat)


@pytest.mark.parametrize("second", ["memory", "ssd"])
def test_a_table_restored_into_another_layout_goes_on_to_the_same_bits(
    tmp_path: Path, flat: tuple[RowRules, list[float], str, TableRows], second: str
) -> None:
    tiers = [Over(ssd(tmp_path), BATCH, BATCH), Over(host, 0, 0)]
    if second == "ssd":
        tiers.reverse()
    before, after = (make(one, flat[0]) for one in tiers)
    losses = train(before, 0, STEPS // 2)
    after.begin_import(0)
    after.import_rows(copy_of_rows(before))
    if before.sightings is not None and after.sightings is not None:
        after.sightings.import_rows(copy_of_rows(before.sightings))
    assert_same(after, losses + train(after, STEPS // 2, STEPS), flat)


def test_scoring_more_rows_than_the_cache_holds_changes_nothing(
    tmp_path: Path, flat: tuple[RowRules, list[float], str, TableRows]
) -> None:
    shard, whole = make(Over(ssd(tmp_path), BATCH, BATCH), flat[0]), make(Over(host, 0, 0), flat[0])
    ids = np.arange(5000)
    scored, expected = torch.empty(len(ids), DIM), torch.empty(len(ids), DIM)
    losses: list[float] = []
    for first in range(0, STEPS, 60):
        losses += train(shard, first, first + 60)
        train(whole, first, first + 60)
        shard.read(ids, scored)
        whole.read(ids, expected)
        assert torch.equal(scored, expected)
    assert_same(shard, losses, flat)
