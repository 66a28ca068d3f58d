"""However many batches are under way, training gives the bits of one batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ett.errors import DataError
from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.config import DenseConfig, ModelConfig, SparseConfig, TrainConfig, TrainerConfig
from ett.trainer.embedding.single_id_tables import SingleIdTables
from ett.trainer.embedding.table_config import EmbeddingBagConfig
from ett.trainer.loop import TrainingStep
from ett.trainer.pipeline.prefetched_batches import PrefetchedBatches
from ett.trainer.pipeline.stage_clock import StageClock, StageRun, write_trace
from ett.trainer.sparse.tiers.tiers import IN_MEMORY, RankPlace, Tiers, open_tiers
from ett.trainer.worker import build_model

OnRanks = Callable[[int, Callable[[Any], Any]], list[Any]]
STEPS, BATCH, DEPTHS = 12, 10, [1, 2, 4]
CONFIG = TrainerConfig(
    model=ModelConfig(embedding_dim=4, bottom_mlp=(5,), top_mlp=(6,), dropout=0.3),
    sparse=SparseConfig(optimizer="adam"),
    dense=DenseConfig(bucket_bytes=512),
    train=TrainConfig(batch_size=BATCH),
)


@dataclass
class SmallBatch:
    labels: np.ndarray[Any, Any]
    dense: np.ndarray[Any, Any]
    ids: np.ndarray[Any, Any]
    global_size: int = BATCH


@dataclass
class SmallReader:
    """Few ids, so that nearly every batch collides with the one before; uneven ranks, and some without a sample."""

    rank: int
    world_size: int
    fails_at: int = STEPS
    num_read: int = 0

    def __iter__(self) -> Iterator[SmallBatch]:
        for n in range(STEPS):
            if n == self.fails_at:
                raise DataError(f"line {n} is torn")
            rng = np.random.default_rng(n)
            cuts = np.sort(rng.integers(0, BATCH + 1, self.world_size - 1))
            mine = np.split(np.arange(BATCH), cuts)[self.rank]
            self.num_read = n + 1
            labels, dense = (rng.random(BATCH) < 0.4).astype(np.float32), rng.standard_normal((BATCH, 13))
            ids = rng.integers(0, 8 if n % 3 else 1000, (26, BATCH))
            yield SmallBatch(labels[mine], dense[mine].astype(np.float32), ids[:, mine])

    def state_dict(self) -> dict[str, Any]:
        return {"num_read": self.num_read}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_read = state["num_read"]


def prefetched(
    collectives: Any, reader: SmallReader, step: TrainingStep, depth: int, trace: int = 0
) -> PrefetchedBatches:
    any_reader: Any = reader
    ahead = collectives.beside() if depth else collectives
    return PrefetchedBatches(any_reader, step.model.ebc.exchange, ahead, StageClock(depth, trace), lambda: False)


def trained(
    collectives: Any,
    depth: int,
    last_step: int = STEPS,
    config: TrainerConfig = CONFIG,
    tiers: Tiers = IN_MEMORY,
) -> tuple[list[float], list[dict[str, Any]], Any]:
    step = TrainingStep(config, build_model(config, collectives, tiers), collectives)
    reader = SmallReader(collectives.rank, collectives.world_size)
    losses = []
    with prefetched(collectives, reader, step, depth) as batches:
        for ready in batches:
            losses.append(step.take(ready.number, ready, batches.clock)[0])
            assert batches.state_dict() == {"num_read": ready.number}
            if ready.number == last_step:
                break
    rows = [vars_of(shard.export_rows()) for shard in step.model.ebc.shards()]
    return losses, rows, [p.detach().tolist() for p in step.model.parameters()]


def vars_of(rows: Any) -> dict[str, Any]:
    states = {name: state.tolist() for name, state in rows.states.items()}
    return {"ids": rows.ids.tolist(), "weights": rows.weights.tolist(), **states}


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_no_bit_depends_on_the_depth(on_ranks: OnRanks, world_size: int) -> None:
    expected = on_ranks(world_size, lambda c: trained(c, 0))
    for depth in DEPTHS:
        assert on_ranks(world_size, lambda c, depth=depth: trained(c, depth)) == expected


@pytest.mark.parametrize("parts", [{"dense": {"precision": "bfloat16"}}, {"train": {"accumulate": 3}}])
def test_no_bit_depends_on_the_depth_in_bfloat16_or_where_gradients_accumulate(
    on_ranks: OnRanks, parts: dict[str, Any]
) -> None:
    config = replace(CONFIG, **{name: replace(getattr(CONFIG, name), **changes) for name, changes in parts.items()})
    expected = on_ranks(2, lambda c: trained(c, 0, config=config))
    assert on_ranks(2, lambda c: trained(c, 4, config=config)) == expected
    assert expected != on_ranks(2, lambda c: trained(c, 0))


@pytest.mark.parametrize("rules", [{"max_rows": 12, "when_full": "lru"}, {"ttl_updates": 3}, {"admit_after": 2}])
def test_no_bit_depends_on_the_depth_where_rows_come_and_go(on_ranks: OnRanks, rules: dict[str, Any]) -> None:
    config = replace(CONFIG, sparse=replace(CONFIG.sparse, **rules))
    expected = on_ranks(2, lambda c: trained(c, 0, config=config))
    assert on_ranks(2, lambda c: trained(c, 4, config=config)) == expected


def test_no_bit_depends_on_the_depth_over_the_smallest_cache(on_ranks: OnRanks, tmp_path: Path) -> None:
    sparse = replace(CONFIG.sparse, tier="ssd", cache_rows=BATCH, state_cache_rows=BATCH)
    config = replace(CONFIG, sparse=sparse)

    def body(collectives: Any, depth: int) -> Any:
        place = RankPlace(job_dir=tmp_path, rank=collectives.rank, world_size=2)
        with open_tiers(sparse, place) as tiers:
            return trained(collectives, depth, config=config, tiers=tiers)

    in_memory = on_ranks(2, lambda c: trained(c, 0))
    for depth in (0, 4):
        assert on_ranks(2, lambda c, depth=depth: body(c, depth)) == in_memory


@pytest.mark.parametrize("depth", DEPTHS)
def test_ranks_that_end_early_wait_for_nobody(on_ranks: OnRanks, depth: int) -> None:
    assert on_ranks(3, lambda c: trained(c, depth, last_step=5)) == on_ranks(3, lambda c: trained(c, 0, last_step=5))


def test_a_batch_that_cannot_be_read_is_an_error_at_its_turn(on_ranks: OnRanks) -> None:
    def body(collectives: Any) -> int:
        step = TrainingStep(CONFIG, build_model(CONFIG, collectives), collectives)
        taken = 0
        with pytest.raises(DataError, match="line 6 is torn"):
            with prefetched(collectives, SmallReader(0, 1, fails_at=6), step, 2) as batches:
                for ready in batches:
                    step.take(ready.number, ready, batches.clock)
                    taken += 1
        return taken

    assert on_ranks(1, body) == [6]


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_every_stage_began_after_what_the_graph_names(on_ranks: OnRanks, depth: int, tmp_path: Any) -> None:
    def body(collectives: Any) -> StageClock:
        step = TrainingStep(CONFIG, build_model(CONFIG, collectives), collectives)
        with prefetched(collectives, SmallReader(collectives.rank, 2), step, depth, trace=STEPS) as batches:
            for ready in batches:
                step.take(ready.number, ready, batches.clock)
        return batches.clock

    clock = on_ranks(2, body)[0]
    runs: dict[tuple[str, int], StageRun] = {(run.stage, run.batch): run for run in clock.runs}
    assert set(runs) == {(stage, batch) for stage in clock.graph for batch in range(1, STEPS + 1)}
    num_edges = 0
    for (name, batch), run in runs.items():
        for edge in clock.graph[name].after:
            if batch > edge.batches_before:
                assert runs[edge.stage, batch - edge.batches_before].end_ns <= run.begin_ns
                num_edges += 1
    write_trace(clock, tmp_path / "trace.json")
    assert (tmp_path / "trace.json").read_text().count('"ph": "f"') == num_edges


@given(moves=st.lists(st.booleans(), max_size=40), seed=st.integers(0, 99), depth=st.integers(1, 4))
@settings(max_examples=60)
def test_any_order_of_announcing_and_training_reads_what_was_written_before(
    moves: list[bool], seed: int, depth: int
) -> None:
    """One rank, stepped by hand: True announces the next batch, False trains on the oldest."""
    tables = [EmbeddingBagConfig(0, name=f"t{i}", embedding_dim=2) for i in range(3)]
    config = replace(CONFIG.sparse, optimizer="adagrad", init_scale=0.5)
    one, other = (SingleIdTables(tables, config, LocalCollectives(), seed=1) for _ in range(2))
    rng, announced = np.random.default_rng(seed), []
    for is_announcement in moves:
        if is_announcement and len(announced) < depth:
            ids = rng.integers(0, 6, (3, int(rng.integers(0, 5))))
            announced.append((ids, one.exchange.announce(ids, 0, LocalCollectives())))
        elif announced:
            ids, first = announced.pop(0)
            lookup, expected = one.exchange.complete(first), other.look_up(ids)
            assert torch.equal(lookup.rows_LD, expected.rows_LD)
            if rng.random() < 0.2:
                lookup.drop()
                continue
            grads = torch.from_numpy(rng.standard_normal(lookup.rows_LD.shape).astype(np.float32))
            lookup.apply_gradients(grads, 0.1)
            expected.apply_gradients(grads, 0.1)
    assert [vars_of(s.export_rows()) for s in one.shards()] == [vars_of(s.export_rows()) for s in other.shards()]
