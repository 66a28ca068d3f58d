"""Random interleavings of all that happens to a table, in every layout, against a dict."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flat_table import FlatTable
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tier_stores import OpenStore, cached, host, ssd

from ett.checkpoint.table import copy_of_rows
from ett.trainer.config import SparseConfig
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_optimizer import row_optimizer
from ett.trainer.sparse.row_rules import RowRules
from ett.trainer.sparse.tiers.table_storage import HostStorage, TableStorage, tiered_storage

DIM, BATCH, LR = 3, 5, 0.1
UNIVERSE = [-(2**63), -5, *range(30), 2**63 - 1]
batches = st.lists(st.sampled_from(UNIVERSE), max_size=BATCH, unique=True).map(sorted)
RULES = [
    RowRules(),
    RowRules(admit_after=2),
    RowRules(max_rows=6, when_full="lru"),
    RowRules(max_rows=6, when_full="lfu", admit_after=2),
    RowRules(max_rows=20, when_full="error"),
    RowRules(ttl_updates=9),
    RowRules(max_rows=9, when_full="lru", ttl_updates=4),
]
LAYOUTS = ["memory", "host", "ssd", "cache over ssd"]


class Layout:
    """Implements `Tiers`: a name of LAYOUTS, with the smallest caches that are enough."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder

    def storage(self, table: str, dim: int, states: Any) -> TableStorage:
        if self._name == "memory":
            return HostStorage(dim, states)
        lower: OpenStore = host if self._name == "host" else ssd(self._folder)
        if self._name.startswith("cache"):
            lower = cached(lower, BATCH + 3)
        return tiered_storage(table, dim, states, lower, cache_rows=BATCH, state_cache_rows=BATCH)


class TableMachine(RuleBasedStateMachine):
    @initialize(
        layout=st.sampled_from(LAYOUTS), rules=st.sampled_from(RULES), optimizer=st.sampled_from(["adam", "sgd"])
    )
    def begin(self, layout: str, rules: RowRules, optimizer: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ett-machine-"))
        self.rules = rules
        self.optimizer = row_optimizer(SparseConfig(optimizer=optimizer))
        self.init = RowInit("t", seed=1, dim=DIM, scale=0.5)
        self.flat = FlatTable(self.init, self.optimizer, DIM, rules)
        self.shard = self.make(layout)
        self.draws = torch.Generator().manual_seed(3)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def make(self, layout: str) -> EmbeddingShard:
        tiers = Layout(layout, self.folder)
        return EmbeddingShard(
            "t", self.init, self.optimizer, dim=DIM, num_rows=0, rank=0, world_size=1, rules=self.rules, tiers=tiers
        )

    @rule(ids=batches)
    def look_up(self, ids: list[int]) -> None:
        out = torch.full((len(ids), DIM), float("nan"))
        self.shard.read(np.array(ids, np.int64), out)
        assert torch.equal(out, self.flat.read(ids))

    @rule(ids=batches)
    def train(self, ids: list[int]) -> None:
        grads = torch.randn(len(ids), DIM, generator=self.draws)
        if self.flat.update(ids, grads, LR):
            self.shard.update(np.array(ids, np.int64), grads, LR)
        else:
            with pytest.raises(Exception, match="table t is full"):
                self.shard.update(np.array(ids, np.int64), grads, LR)

    @rule()
    def list_the_evicted(self) -> None:
        assert self.shard.take_tombstones().tolist() == sorted(self.flat.gone)
        self.flat.gone.clear()

    @rule()
    def save(self) -> None:
        self.flat.assert_exported(copy_of_rows(self.shard))
        self.flat.gone.clear()
        assert len(self.shard) == len(self.flat.rows)
        if self.shard.sightings is not None:
            seen = copy_of_rows(self.shard.sightings)
            assert dict(zip(seen.ids.tolist(), seen.weights.flatten().tolist(), strict=True)) == self.flat.seen

    @rule(layout=st.sampled_from(LAYOUTS))
    def restore_into_another_layout(self, layout: str) -> None:
        before, self.shard = self.shard, self.make(layout)
        self.shard.begin_import(0)
        self.shard.import_rows(copy_of_rows(before))
        self.flat.gone.clear()
        if self.shard.sightings is not None and before.sightings is not None:
            self.shard.sightings.begin_import(0)
            self.shard.sightings.import_rows(copy_of_rows(before.sightings))


@pytest.mark.parametrize(
    "examples", [pytest.param(100, marks=pytest.mark.slow), pytest.param(2000, marks=pytest.mark.campaign)]
)
def test_no_interleaving_makes_a_wrong_row(examples: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        TableMachine,
        settings=settings(max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=checks),
    )
