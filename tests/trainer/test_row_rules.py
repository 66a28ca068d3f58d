from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ett.checkpoint.table import TableShard, copy_of_rows
from ett.errors import ConfigError
from ett.trainer.config import SparseConfig
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_optimizer import row_optimizer
from ett.trainer.sparse.row_rules import lowest, row_rules

DIM = 2


def table(**sparse: Any) -> EmbeddingShard:
    config = SparseConfig(optimizer="sgd", init_scale=0.5, **sparse)
    init = RowInit("t", seed=1, dim=DIM, scale=0.5)
    optimizer, rules = row_optimizer(config), row_rules(config)
    return EmbeddingShard("t", init, optimizer, dim=DIM, num_rows=0, rank=0, world_size=1, rules=rules)


def train(shard: EmbeddingShard, *ids: int) -> None:
    shard.update(np.array(sorted(ids)), torch.ones(len(ids), DIM), 0.1)


def rows(shard: EmbeddingShard) -> list[int]:
    ids: list[int] = copy_of_rows(shard).ids.tolist()
    return ids


def values(shard: EmbeddingShard, *ids: int) -> torch.Tensor:
    out = torch.full((len(ids), DIM), float("nan"))
    shard.read(np.array(ids), out)
    return out


def test_the_lowest_are_those_of_a_sort() -> None:
    rng = np.random.default_rng(1)
    for size in (0, 1, 7, 200):
        primary, secondary = rng.integers(0, 4, size), rng.integers(0, 4, size)
        ids = rng.permutation(size)
        expected = sorted(range(size), key=lambda n: (primary[n], secondary[n], ids[n]))
        for count in (0, 1, size // 2, size, size + 1):
            assert set(lowest(primary, secondary, ids, count).tolist()) == set(expected[: max(0, count)])


def test_an_id_becomes_a_row_with_the_nth_batch_and_is_never_zero_before() -> None:
    shard, initial = table(admit_after=3), values(table(), 7)
    for _ in range(2):
        train(shard, 7)
        assert len(shard) == 0
        assert torch.equal(values(shard, 7), initial)
    train(shard, 7)
    assert rows(shard) == [7]
    assert torch.equal(values(shard, 7), initial - 0.1)


def test_sightings_are_a_table_of_the_checkpoint() -> None:
    shard = table(admit_after=3)
    train(shard, 7, 9)
    train(shard, 9)
    assert isinstance(shard.sightings, TableShard)
    seen = copy_of_rows(shard.sightings)
    assert (seen.ids.tolist(), seen.weights.tolist()) == ([7, 9], [[1], [2]])
    assert shard.sightings.name == "t.sightings"


def test_lru_evicts_what_was_updated_longest_ago() -> None:
    shard = table(max_rows=3, when_full="lru")
    for i in (1, 2, 3, 1, 4):
        train(shard, i)
    assert shard.take_tombstones().tolist() == [2]
    assert rows(shard) == [1, 3, 4]


def test_lfu_evicts_what_was_updated_least_often() -> None:
    shard = table(max_rows=3, when_full="lfu")
    for i in (1, 1, 2, 2, 3, 4):
        train(shard, i)
    assert rows(shard) == [1, 2, 4]


def test_reading_is_no_use() -> None:
    shard = table(max_rows=2, when_full="lru")
    for i in (1, 2):
        train(shard, i)
    values(shard, 1)
    train(shard, 3)
    assert rows(shard) == [2, 3]


def test_a_row_left_alone_for_its_time_goes() -> None:
    shard = table(ttl_updates=4)
    train(shard, 1, 2)
    for _ in range(4):
        train(shard, 2)
    assert rows(shard) == [1, 2]
    train(shard, 2)
    assert rows(shard) == [2]


def test_an_evicted_row_begins_anew() -> None:
    shard = table(max_rows=1, when_full="lru")
    train(shard, 1)
    train(shard, 2)
    assert torch.equal(values(shard, 1), values(table(), 1))
    train(shard, 1)
    assert torch.equal(values(shard, 1), values(table(), 1) - 0.1)
    assert shard.take_tombstones().tolist() == [2]


def test_a_save_starts_the_list_of_the_evicted_anew() -> None:
    shard = table(max_rows=1, when_full="lru")
    train(shard, 1)
    train(shard, 2)
    copy_of_rows(shard)
    assert shard.take_tombstones().tolist() == []


def test_rows_of_the_batch_are_not_evicted_for_it() -> None:
    shard = table(max_rows=3, when_full="lru")
    for batch in ((1, 2, 3), (4,), (1, 5)):
        train(shard, *batch)
    assert rows(shard) == [1, 4, 5]


@pytest.mark.parametrize(
    ("rules", "batch"),
    [({"max_rows": 3}, [5, 6]), ({"max_rows": 3, "when_full": "lru"}, [5, 6, 7, 8])],
    ids=["no policy", "a batch above the bound"],
)
def test_a_full_table_is_an_error_that_names_table_and_sizes(rules: dict[str, Any], batch: list[int]) -> None:
    shard = table(**rules)
    train(shard, 1, 2)
    message = rf"table t is full: it holds 2 rows on rank 0, and a batch of {len(batch)} ids brings {len(batch)} new"
    with pytest.raises(ConfigError, match=message):
        train(shard, *batch)
    assert rows(shard) == [1, 2]
    train(shard, 1, 2)


def test_rows_come_back_with_what_eviction_goes_by() -> None:
    first, second = (table(max_rows=3, when_full="lru") for _ in range(2))
    for i in (1, 2, 3, 1):
        train(first, i)
    second.import_rows(copy_of_rows(first))
    for shard in (first, second):
        train(shard, 4)
        train(shard, 5)
    assert rows(first) == rows(second) == [1, 4, 5]
