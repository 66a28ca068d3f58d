"""Rows that a batch waits for are updated first; the others after, while that batch is completed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from ett.checkpoint.table import copy_of_rows
from ett.errors import CorruptState
from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.config import SparseConfig
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.embedding.table_config import EmbeddingBagConfig
from ett.trainer.pipeline.stage_clock import StageClock
from ett.trainer.sparse import exchange
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.rows_gate import RowsGate

FIRST, SECOND = {"t": np.arange(10)}, {"t": np.arange(7, 12)}  # 7, 8 and 9 collide


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> JobTables:
    monkeypatch.setattr(exchange, "_FEW", 1)
    return make()


def make(**rules: Any) -> JobTables:
    config = SparseConfig(optimizer="sgd", learning_rate=1.0, init_scale=0.0, **rules)
    return JobTables([EmbeddingBagConfig(0, 2, "t")], config, LocalCollectives(), seed=1)


def trained_on_first(tables: JobTables) -> tuple[Any, Callable[[], None]]:
    """Return the second batch, announced, and what ends the first one's update: its rows become one."""
    first, second = (tables.announce(columns, 0, LocalCollectives()) for columns in (FIRST, SECOND))
    looked_up = tables.complete(first, FIRST)
    looked_up.inputs.pooled[0].backward(-torch.ones(10, 1, 2))
    return second, looked_up.start_update(1.0)


def weights(tables: JobTables) -> dict[int, float]:
    shard = tables.shards()[0]
    rows = torch.empty(12, 2)
    shard.read(np.arange(12), rows)
    return dict(enumerate(rows[:, 0].tolist()))


def test_the_next_batch_has_its_rows_before_the_others_are_updated(tables: JobTables) -> None:
    second, update_others = trained_on_first(tables)
    assert [i for i, weight in weights(tables).items() if weight] == [7, 8, 9]
    assert tables.complete(second, SECOND).inputs.pooled[0][:, 0, 0].tolist() == [1, 1, 1, 0, 0]
    update_others()
    assert [i for i, weight in weights(tables).items() if weight] == list(range(10))


@pytest.mark.parametrize("rules", [{"max_rows": 20}, {"ttl_updates": 5}, {"admit_after": 1, "max_rows": 10}])
def test_a_table_with_rules_for_a_whole_update_has_one(tables: JobTables, rules: dict[str, Any]) -> None:
    tables = make(**rules)
    _, update_others = trained_on_first(tables)
    assert [i for i, weight in weights(tables).items() if weight] == list(range(10))
    update_others()


def test_a_save_waits_for_the_whole_step(tables: JobTables, monkeypatch: pytest.MonkeyPatch) -> None:
    _, update_others = trained_on_first(tables)
    has_come, close = threading.Event(), RowsGate.close

    def seen(gate: RowsGate) -> None:
        has_come.set()
        close(gate)

    def save() -> list[int]:
        with tables.exchange.rows:
            ids: list[int] = copy_of_rows(tables.shards()[0]).ids.tolist()
            return ids

    monkeypatch.setattr(RowsGate, "close", seen)
    with ThreadPoolExecutor(1) as pool:
        saved = pool.submit(save)
        assert has_come.wait(300)
        update_others()
    assert saved.result() == list(range(10))


def test_after_an_update_that_failed_half_way_nobody_gets_rows(
    tables: JobTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, update_others = trained_on_first(tables)

    def fails(*_: Any) -> None:
        raise CorruptState("the disk is gone")

    monkeypatch.setattr(EmbeddingShard, "update_sums", fails)
    clock = StageClock(1)
    stages = list(clock.graph)
    for stage in stages[: stages.index("update_exclusive")]:
        with clock.run(stage, 1):
            pass
    clock.start("update_exclusive", 1, update_others)
    with pytest.raises(CorruptState, match="the disk is gone"), clock.run("take", 2):
        pass
    with pytest.raises(CorruptState, match="the disk is gone"):
        clock.finish(abort=False)
    with pytest.raises(CorruptState, match="the disk is gone"), tables.exchange.rows:
        pass
    with pytest.raises(CorruptState, match="the disk is gone"):
        tables.look_up(FIRST)
