"""However many batches are under way, training gives the bits of one batch after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ett.checkpoint.policy.table_tracker import TableTracker
from ett.checkpoint.table import copy_of_rows
from ett.checkpoint.tracked_table import NobodyTracks
from ett.errors import DataError
from ett.trainer.comm.collectives import Collectives, LocalCollectives
from ett.trainer.config import DenseConfig, ModelConfig, SparseConfig, TableConfig, TrainConfig, TrainerConfig
from ett.trainer.data.columns import Column, Columns, Jagged, take_rows
from ett.trainer.embedding.job_tables import JobTables, LookedUp
from ett.trainer.embedding.table_config import EmbeddingBagConfig, PoolingType
from ett.trainer.loop import TrainingStep
from ett.trainer.pipeline.prefetched_batches import PrefetchedBatches, SampleExchange, keep_samples
from ett.trainer.pipeline.stage_clock import StageClock, StageRun, write_trace
from ett.trainer.rank_start import build_model
from ett.trainer.sparse import exchange
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.tiers.tiers import IN_MEMORY, RankPlace, Tiers, open_tiers

OnRanks = Callable[[int, Callable[[Any], Any]], list[Any]]
STEPS, BATCH, DEPTHS = 12, 10, [1, 2, 4]
CONFIG = TrainerConfig(
    model=ModelConfig(embedding_dim=4, bottom_mlp=(5,), top_mlp=(6,), dropout=0.3),
    sparse=SparseConfig(optimizer="adam"),
    dense=DenseConfig(bucket_bytes=512),
    train=TrainConfig(batch_size=BATCH),
)
# Widths, optimizers and pooling of their own, a table of two features, and bags of any number of ids, weighted or not.
UNLIKE = {
    "C1": TableConfig(embedding_dim=3, pooling="mean", optimizer="sgd"),
    "C2": TableConfig(embedding_dim=9, optimizer="rowwise_adagrad", learning_rate=0.2),
    "C4": TableConfig(features=("C4", "C3"), pooling="mean"),
}
BAGS = replace(CONFIG, sparse=replace(CONFIG.sparse, tables=UNLIKE))
BAG_FEATURES = ("C1", "C3", "C5")


@pytest.fixture(autouse=True)
def tables_of_few_rows_are_updated_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_FEW", 1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Torch's threads wait at barriers for cores that other ranks are on."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class SmallBatch:
    labels: np.ndarray[Any, Any]
    dense: np.ndarray[Any, Any]
    features: Columns
    global_size: int = BATCH


@dataclass
class SmallReader:
    """Few ids, so that nearly every batch collides with the one before; uneven ranks, and some without a sample."""

    rank: int
    world_size: int
    fails_at: int = STEPS
    num_read: int = 0
    has_bags: bool = False

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
            features: dict[str, Column] = {f"C{i + 1}": ids[i] for i in range(26)}
            if self.has_bags:
                features |= {name: bags_of(rng, is_weighted=name == "C5") for name in BAG_FEATURES}
            features = take_rows(features, mine)
            yield SmallBatch(labels[mine], dense[mine].astype(np.float32), features)

    def state_dict(self) -> dict[str, Any]:
        return {"num_read": self.num_read}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_read = state["num_read"]


def bags_of(rng: np.random.Generator, *, is_weighted: bool) -> Jagged:
    lengths = rng.integers(0, 5, BATCH)
    weights = rng.random(lengths.sum(), np.float32) if is_weighted else None
    return Jagged(rng.integers(0, 8, lengths.sum()), lengths, weights)


def prefetched(
    collectives: Any,
    reader: SmallReader,
    step: TrainingStep,
    depth: int,
    *,
    trace: int = 0,
    exchange_samples: SampleExchange = keep_samples,
) -> PrefetchedBatches:
    any_reader: Any = reader
    ahead = collectives.beside() if depth else collectives
    clock = StageClock(depth, trace)
    return PrefetchedBatches(any_reader, step.model.ebc, ahead, clock, lambda: False, exchange_samples=exchange_samples)


def trained(
    collectives: Any,
    depth: int,
    last_step: int = STEPS,
    config: TrainerConfig = CONFIG,
    tiers: Tiers = IN_MEMORY,
    *,
    exchange_samples: SampleExchange = keep_samples,
) -> tuple[list[float], list[dict[str, Any]], Any]:
    step = TrainingStep(config, build_model(config, collectives, tiers), collectives)
    reader = SmallReader(collectives.rank, collectives.world_size, has_bags=bool(config.sparse.tables))
    losses = []
    with prefetched(collectives, reader, step, depth, exchange_samples=exchange_samples) as batches:
        for ready in batches:
            losses.append(step.take(ready.number, ready, batches.clock)[0])
            assert batches.state_dict() == {"num_read": ready.number}
            if ready.number == last_step:
                break
    rows = [vars_of(copy_of_rows(shard)) for shard in step.model.ebc.shards()]
    return losses, rows, [p.detach().tolist() for p in step.model.parameters()]


def vars_of(rows: Any) -> dict[str, Any]:
    states = {name: state.tolist() for name, state in rows.states.items()}
    return {"ids": rows.ids.tolist(), "weights": rows.weights.tolist(), **states}


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIG, BAGS], ids=["one id", "bags"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_no_bit_depends_on_the_depth(on_ranks: OnRanks, world_size: int, config: TrainerConfig) -> None:
    expected = on_ranks(world_size, lambda c: trained(c, 0, config=config))
    for depth in DEPTHS:
        assert on_ranks(world_size, lambda c, depth=depth: trained(c, depth, config=config)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("parts", [{"dense": {"precision": "bfloat16"}}, {"train": {"accumulate": 3}}])
def test_no_bit_depends_on_the_depth_in_bfloat16_or_where_gradients_accumulate(
    on_ranks: OnRanks, parts: dict[str, Any]
) -> None:
    config = replace(CONFIG, **{name: replace(getattr(CONFIG, name), **changes) for name, changes in parts.items()})
    expected = on_ranks(2, lambda c: trained(c, 0, config=config))
    assert on_ranks(2, lambda c: trained(c, 4, config=config)) == expected
    assert expected != on_ranks(2, lambda c: trained(c, 0))


@pytest.mark.slow
@pytest.mark.parametrize("rules", [{"max_rows": 12, "when_full": "lru"}, {"ttl_updates": 3}, {"admit_after": 2}])
def test_no_bit_depends_on_the_depth_where_rows_come_and_go(on_ranks: OnRanks, rules: dict[str, Any]) -> None:
    config = replace(CONFIG, sparse=replace(CONFIG.sparse, **rules))
    expected = on_ranks(2, lambda c: trained(c, 0, config=config))
    assert on_ranks(2, lambda c: trained(c, 4, config=config)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("whole", "num_rows"), [(CONFIG, BATCH), (BAGS, 2 * BATCH)], ids=["one id", "bags"])
def test_no_bit_depends_on_the_depth_over_the_smallest_cache(
    on_ranks: OnRanks, tmp_path: Path, whole: TrainerConfig, num_rows: int
) -> None:
    sparse = replace(whole.sparse, tier="ssd", cache_rows=num_rows, state_cache_rows=num_rows)
    config = replace(whole, sparse=sparse)

    def body(collectives: Any, depth: int) -> Any:
        place = RankPlace(job_dir=tmp_path, rank=collectives.rank, world_size=2)
        with open_tiers(sparse, place) as tiers:
            return trained(collectives, depth, config=config, tiers=tiers)

    in_memory = on_ranks(2, lambda c: trained(c, 0, config=whole))
    for depth in (0, 4):
        assert on_ranks(2, lambda c, depth=depth: body(c, depth)) == in_memory


@pytest.mark.slow
@pytest.mark.parametrize("depth", DEPTHS)
def test_ranks_that_end_early_wait_for_nobody(on_ranks: OnRanks, depth: int) -> None:
    assert on_ranks(3, lambda c: trained(c, depth, last_step=5)) == on_ranks(3, lambda c: trained(c, 0, last_step=5))


@pytest.mark.slow
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


@pytest.mark.slow
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


MIXED = [
    EmbeddingBagConfig(0, 3, "t0"),
    EmbeddingBagConfig(0, 2, "t1", feature_names=["t1", "bags"], pooling=PoolingType.MEAN),
    EmbeddingBagConfig(0, 3, "t2", pooling=PoolingType.NONE),
]


def draw_columns(rng: np.random.Generator) -> Columns:
    size = int(rng.integers(0, 5))
    one_each = {name: rng.integers(0, 6, size) for name in ("t0", "t1")}
    lengths = rng.integers(0, 4, (2, size))
    bags, history = (Jagged(rng.integers(0, 6, of_column.sum()), of_column) for of_column in lengths)
    return one_each | {"bags": bags, "t2": history}


def nothing() -> None:
    return None


def outputs_of(looked_up: LookedUp) -> Any:
    pooled = [sums.tolist() for sums in looked_up.inputs.pooled]
    return pooled, {name: (s.values().tolist(), s.lengths().tolist()) for name, s in looked_up.inputs.sequences.items()}


def permuted(batch: Any, collectives: Collectives) -> Any:
    """Give the ranks other samples of the global batch, and other numbers of them."""
    columns = {"labels": batch.labels, "dense": batch.dense, **batch.features}
    whole = {name: torch.cat(collectives.gather(torch.from_numpy(part))).numpy() for name, part in columns.items()}
    order = np.random.default_rng(len(whole["labels"])).permutation(BATCH)
    mine = np.array_split(order, collectives.world_size + 1)[collectives.rank :: collectives.world_size]
    taken = take_rows(whole, np.concatenate(mine))
    labels, dense = (np.asarray(taken.pop(name)) for name in ("labels", "dense"))
    return SmallBatch(labels, dense, taken)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 2])
def test_samples_may_train_on_other_ranks(on_ranks: OnRanks, depth: int) -> None:
    config = replace(CONFIG, model=replace(CONFIG.model, dropout=0.0))
    kept = on_ranks(3, lambda c: trained(c, depth, config=config))
    moved = on_ranks(3, lambda c: trained(c, depth, config=config, exchange_samples=permuted))
    assert moved[0] != kept[0]  # the samples of a rank are others, and so is the order of sums
    # Only the order of float32 sums differs; twelve steps of these learning rates do not amplify it beyond 1e-4.
    assert moved[0][0] == pytest.approx(kept[0][0], rel=1e-4)
    for of_moved, of_kept in zip(moved, kept, strict=True):
        for ours, theirs in zip(of_moved[1], of_kept[1], strict=True):
            assert ours["ids"] == theirs["ids"] and ours["step"] == theirs["step"]
            torch.testing.assert_close(
                torch.tensor(ours["weights"]), torch.tensor(theirs["weights"]), rtol=0, atol=1e-3
            )
        for mine, other in zip(of_moved[2], of_kept[2], strict=True):
            torch.testing.assert_close(torch.tensor(mine), torch.tensor(other), rtol=0, atol=1e-3)


class Seen(NobodyTracks):
    """Which ids a table was told of before it changed them, and which came."""

    def __init__(self, shard: EmbeddingShard) -> None:
        self.shard, self.announced_ids, self.guarded = shard, set[int](), set[int]()
        self.num_announced = 0
        self.before: dict[int, list[float]] = {}  # of each guarded id, what its row was
        self.came: set[int] = set()

    def announced(self, ids: Any, slots_of: Any) -> None:
        assert (np.diff(ids) > 0).all() and (self.shard.slots_of(ids) == slots_of(ids)).all()
        self.announced_ids.update(ids.tolist())
        self.num_announced += 1

    def updated(self, slots: Any, ids: Any) -> None:
        assert (self.shard.slots_of(ids) == slots).all() and (self.shard.ids_of_slots(slots) == ids).all()
        rows = torch.empty(len(ids), self.shard.dim)
        self.shard.read(ids, rows)
        self.before |= dict(zip(ids.tolist(), rows.tolist(), strict=True))
        self.guarded.update(ids.tolist())

    def evicted(self, slots: Any, ids: Any) -> None:
        self.updated(slots, ids)

    def inserted(self, slots: Any, ids: Any) -> None:
        self.came.update(ids.tolist())


def whole_rows(step: TrainingStep, shard: EmbeddingShard) -> dict[str, Any]:
    with step.model.ebc.exchange.rows:
        return vars_of(copy_of_rows(shard))


@pytest.mark.slow
@pytest.mark.parametrize("rules", [{}, {"max_rows": 12, "when_full": "lru"}])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_rows_are_guarded_before_they_change(on_ranks: OnRanks, depth: int, rules: dict[str, Any]) -> None:
    config = replace(CONFIG, sparse=replace(CONFIG.sparse, **rules))

    def body(collectives: Any) -> None:
        step = TrainingStep(config, build_model(config, collectives), collectives)
        shard = step.model.ebc.shards()[0]
        seen = Seen(shard)
        shard.track(seen)
        reader = SmallReader(collectives.rank, collectives.world_size)
        changed: dict[int, list[float]] = {}
        with prefetched(collectives, reader, step, depth) as batches:
            for ready in batches:
                seen.before.clear()
                seen.came.clear()
                was = whole_rows(step, shard)
                before = dict(zip(was["ids"], was["weights"], strict=True))
                step.take(ready.number, ready, batches.clock)
                now = whole_rows(step, shard)
                after = dict(zip(now["ids"], now["weights"], strict=True))
                changed = {i: before[i] for i in before if after.get(i) != before[i]}
                assert changed.keys() <= seen.before.keys()
                assert after.keys() - before.keys() <= seen.came
                assert all(seen.before[i] == row for i, row in changed.items())
        assert changed
        assert bool(seen.guarded & seen.announced_ids) == bool(seen.num_announced) == bool(depth)

    on_ranks(2, body)


def test_a_tracker_knows_which_announced_batches_have_not_passed() -> None:
    """Those that were announced before it came are nobody's, and take none of its own with them."""
    tables = JobTables(MIXED, CONFIG.sparse, LocalCollectives(), seed=1)
    shard, tracker, announced = tables.shards()[0], TableTracker(), deque[Any]()
    shard.update(np.arange(6), torch.zeros(6, 3), 0.1)

    def announce(ids: list[int]) -> None:
        empty = Jagged(np.zeros(0, np.int64), np.zeros(len(ids), np.int64))
        columns: Columns = {"t0": np.array(ids), "t1": np.array(ids), "bags": empty, "t2": empty}
        announced.append((columns, tables.announce(columns, 0, LocalCollectives())))

    def pass_first(*, is_dropped: bool) -> None:
        columns, first = announced.popleft()
        looked_up = tables.complete(first, columns)
        if is_dropped:
            looked_up.drop()
            return
        torch.autograd.backward(sum(rows.sum() for rows in looked_up.inputs.values()))
        looked_up.apply_gradients(0.1)

    announce([5, 1])
    shard.track(tracker)
    assert not tracker._coming
    announce([2, 2, 3])
    announce([4])
    for expected, is_dropped in (([[2, 3], [4]], False), ([[4]], False), ([], True)):
        pass_first(is_dropped=is_dropped)
        assert [ids.tolist() for ids in tracker._coming] == expected
    announce([0])
    assert [ids.tolist() for ids in tracker._coming] == [[0]]


@given(moves=st.lists(st.booleans(), max_size=40), seed=st.integers(0, 99), depth=st.integers(1, 4))
@settings(max_examples=60)
@pytest.mark.slow
def test_any_order_of_announcing_and_training_reads_what_was_written_before(
    moves: list[bool], seed: int, depth: int
) -> None:
    """One rank, stepped by hand: True announces the next batch, False trains on the oldest."""
    config = replace(CONFIG.sparse, optimizer="adagrad", init_scale=0.5, learning_rate=1.0)
    one, other = (JobTables(MIXED, config, LocalCollectives(), seed=1) for _ in range(2))
    rng, announced, update_others = np.random.default_rng(seed), [], nothing
    for is_announcement in moves:
        if is_announcement and len(announced) < depth:
            update_others()
            update_others = nothing
            columns = draw_columns(rng)
            announced.append((columns, one.announce(columns, 0, LocalCollectives())))
        elif announced:
            columns, first = announced.pop(0)
            pair = one.complete(first, columns), other.look_up(columns)  # before the other rows of the last are updated
            update_others()
            update_others = nothing
            assert outputs_of(pair[0]) == outputs_of(pair[1])
            if rng.random() < 0.2:
                pair[0].drop()
                continue
            factor = rng.standard_normal()
            for looked_up in pair:
                torch.autograd.backward(sum((factor * rows.square()).sum() for rows in looked_up.inputs.values()))
            update_others = pair[0].start_update(0.1)
            pair[1].apply_gradients(0.1)
    update_others()
    assert [vars_of(copy_of_rows(s)) for s in one.shards()] == [vars_of(copy_of_rows(s)) for s in other.shards()]
