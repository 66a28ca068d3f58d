"""The loop with ranks as threads; the reader, the run and the checkpointer are small stand-ins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from ett.errors import ConfigError
from ett.trainer.config import (
    DenseConfig,
    EvalConfig,
    ModelConfig,
    OptimizerConfig,
    SparseConfig,
    TrainConfig,
    TrainerConfig,
)
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.evaluation import HeldOutScore, held_out_score
from ett.trainer.loop import Progress, TrainingLoop, TrainingStep
from ett.trainer.pipeline.prefetched_batches import PrefetchedBatches, ReadyBatch
from ett.trainer.pipeline.stage_clock import StageClock
from ett.trainer.rank_start import build_model

BATCH, STEPS = 12, 10
CONFIG = TrainerConfig(
    model=ModelConfig(embedding_dim=4, bottom_mlp=(5,), top_mlp=(6,), dropout=0.3),
    sparse=SparseConfig(optimizer="adam"),
    dense=DenseConfig(bucket_bytes=512),
    train=TrainConfig(batch_size=BATCH, prefetch_depth=0),
)
OnRanks = Callable[[int, Callable[[Any], Any]], list[Any]]


@dataclass
class PlainBatch:
    labels: np.ndarray[Any, Any]
    dense: np.ndarray[Any, Any]
    features: dict[str, np.ndarray[Any, Any]]
    global_size: int


@dataclass
class PlainReader:
    """STEPS global batches; batch n follows from n."""

    rank: int
    world_size: int
    first: int = 0
    read: int = 0

    def __iter__(self) -> Iterator[PlainBatch]:
        for n in range(self.first, STEPS):
            self.read = n + 1
            yield self.batch(n)

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read}

    def heldout_batches(self, batch_size: int) -> Generator[PlainBatch, None, None]:
        yield from map(self.batch, (100, 101))

    def batch(self, n: int) -> PlainBatch:
        rng = np.random.default_rng(n)
        ids = rng.integers(0, 20, (26, BATCH))
        dense = rng.standard_normal((BATCH, 13)).astype(np.float32)
        labels = (rng.random(BATCH) < 0.4).astype(np.float32)
        mine = np.array_split(np.arange(BATCH), self.world_size)[self.rank]
        features = {f"C{i + 1}": ids[i, mine] for i in range(26)}
        return PlainBatch(labels[mine], dense[mine], features, BATCH)


@dataclass
class StubRun:
    stop_after: int = STEPS + 1  # the step after which this rank is asked to stop
    steps: list[int] = field(default_factory=list)
    spans: list[str] = field(default_factory=list)
    stops_in_spans: bool = False  # asked only once a span began

    @property
    def stop_requested(self) -> bool:
        return len(self.steps) >= self.stop_after and (bool(self.spans) or not self.stops_in_spans)

    def step(self, samples: int, *, global_samples: int, step: int) -> Any:
        self.steps.append(step)
        return nullcontext()

    def span(self, name: str) -> Any:
        self.spans.append(f"{name} after {self.steps[-1]}")
        return nullcontext()


@dataclass
class Recorded:
    """Stands in for the loss log and the checkpointer."""

    losses: dict[int, float] = field(default_factory=dict)
    scores: dict[int, HeldOutScore] = field(default_factory=dict)
    offered: list[tuple[int, int]] = field(default_factory=list)

    def append(self, step: int, loss: float, factor: float) -> None:
        self.losses[step] = loss

    def append_score(self, step: int, score: HeldOutScore) -> None:
        self.scores[step] = score

    def step(self, step: int, cursor: int) -> None:
        self.offered.append((step, cursor))


def make_loop(collectives: Any, run: StubRun, config: TrainerConfig = CONFIG) -> tuple[TrainingLoop, Recorded]:
    model = build_model(config, collectives)
    recorded: Any = Recorded()
    reader: Any = PlainReader(collectives.rank, collectives.world_size)
    training_step = TrainingStep(config, model, collectives)
    any_run: Any = run
    depth = config.train.prefetch_depth
    batches = PrefetchedBatches(
        reader,
        model.ebc,
        collectives.beside() if depth else collectives,
        StageClock(depth, trace_batches=STEPS),
        lambda: run.stop_requested,
    )
    loop = TrainingLoop(
        config=config,
        training_step=training_step,
        batches=batches,
        checkpointer=recorded,
        run=any_run,
        losses=recorded,
    )
    return loop, recorded


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_ranks_report_the_same_losses_to_the_bit(on_ranks: OnRanks, world_size: int) -> None:
    def body(collectives: Any) -> dict[int, float]:
        loop, recorded = make_loop(collectives, StubRun())
        assert loop.run_from(Progress(0, 0)) == Progress(STEPS, STEPS * BATCH)
        return recorded.losses

    by_rank = on_ranks(world_size, body)
    assert all(losses == by_rank[0] for losses in by_rank)
    assert list(by_rank[0]) == list(range(1, STEPS + 1))
    assert by_rank == on_ranks(world_size, body)


@pytest.mark.slow
def test_without_dropout_losses_do_not_depend_on_the_world_size(on_ranks: OnRanks) -> None:
    config = TrainerConfig(model=ModelConfig(embedding_dim=4, bottom_mlp=(5,), top_mlp=(6,)), train=CONFIG.train)

    def body(collectives: Any) -> list[float]:
        loop, recorded = make_loop(collectives, StubRun(), config)
        loop.run_from(Progress(0, 0))
        return list(recorded.losses.values())

    # Only the order of float32 sums differs; ten steps of these learning rates do not amplify it beyond 1e-5.
    assert on_ranks(4, body)[0] == pytest.approx(on_ranks(1, body)[0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_ranks_asked_to_stop_three_steps_apart_stop_after_one_step(on_ranks: OnRanks, depth: int) -> None:
    config = replace(CONFIG, train=replace(CONFIG.train, prefetch_depth=depth))

    def body(collectives: Any) -> tuple[Progress, int]:
        run = StubRun(stop_after={0: 7, 1: STEPS + 1, 2: 4}[collectives.rank])
        loop, recorded = make_loop(collectives, run, config)
        return loop.run_from(Progress(0, 0)), len(recorded.offered)

    # Rank 2 says so with the next batch that it announces, and every rank completes the steps up to that one.
    by_rank = on_ranks(3, body)
    assert by_rank == [by_rank[0]] * 3
    end, num_offered = by_rank[0]
    assert end == Progress(end.step, end.step * BATCH, stopped=True)
    assert 5 <= end.step <= 5 + depth
    assert num_offered == end.step - 1


def test_a_job_that_reached_max_steps_takes_none(on_ranks: OnRanks) -> None:
    config = TrainerConfig(model=CONFIG.model, train=TrainConfig(batch_size=BATCH, max_steps=5))

    def body(collectives: Any) -> list[Progress]:
        loop, _ = make_loop(collectives, StubRun(), config)
        first = loop.run_from(Progress(0, 0))
        return [first, loop.run_from(first)]  # the second never asks for a batch

    assert on_ranks(1, body)[0] == [Progress(5, 5 * BATCH)] * 2


def test_frozen_embeddings_add_no_row(on_ranks: OnRanks) -> None:
    train = TrainConfig(batch_size=BATCH, freeze_embeddings=True)
    config = TrainerConfig(model=CONFIG.model, train=train)

    def body(collectives: Any) -> int:
        model = build_model(config, collectives)
        step = TrainingStep(config, model, collectives)
        batch: Any = next(iter(PlainReader(0, 1)))
        clock = StageClock(0)
        with clock.run("read", 1):
            pass
        with clock.run("exchange_samples", 1):
            ready = ReadyBatch(1, batch, 0, None)
        step.take(1, ready, clock)
        return sum(len(shard) for shard in model.ebc.shards())

    assert on_ranks(1, body) == [0]


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_frozen_embeddings_train_at_any_depth(on_ranks: OnRanks, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the thread of the exclusive updates comes as late as it may: after the next batch was completed."""
    config = replace(CONFIG, train=replace(CONFIG.train, freeze_embeddings=True, prefetch_depth=depth))
    start, complete = StageClock.start, JobTables.complete
    is_next_complete = [threading.Event() for _ in range(STEPS + 1)]
    num_completed = 0

    def start_late(clock: StageClock, stage: str, batch: int, work: Callable[[], None]) -> None:
        def late() -> None:
            assert not depth or batch == STEPS or is_next_complete[batch].wait(300)
            work()

        start(clock, stage, batch, late)

    def completed(tables: JobTables, announced: Any, columns: Any) -> Any:
        nonlocal num_completed
        try:
            return complete(tables, announced, columns)
        finally:
            is_next_complete[num_completed].set()
            num_completed += 1

    monkeypatch.setattr(StageClock, "start", start_late)
    monkeypatch.setattr(JobTables, "complete", completed)

    def body(collectives: Any) -> tuple[int, int]:
        loop, _ = make_loop(collectives, StubRun(), config)
        end = loop.run_from(Progress(0, 0))
        return end.step, sum(len(shard) for shard in loop.training_step.model.ebc.shards())

    assert on_ranks(1, body) == [(STEPS, 0)]


def test_a_loss_that_is_not_finite_stops_all_ranks_before_a_save(on_ranks: OnRanks) -> None:
    config = TrainerConfig(model=CONFIG.model, train=CONFIG.train, optimizer=OptimizerConfig(learning_rate=1e30))

    def body(collectives: Any) -> list[tuple[int, int]]:
        loop, recorded = make_loop(collectives, StubRun(), config)
        with pytest.raises(ConfigError, match=r"step 2: the loss is (nan|inf)"):
            loop.run_from(Progress(0, 0))
        offered: list[tuple[int, int]] = recorded.offered
        return offered

    assert on_ranks(2, body) == [[(1, BATCH)]] * 2


def scoring_loop(collectives: Any, run: StubRun, every_steps: int) -> tuple[TrainingLoop, Recorded]:
    config = replace(CONFIG, eval=EvalConfig(every_steps=every_steps))
    loop, recorded = make_loop(collectives, run, config)
    reader: Any = PlainReader(collectives.rank, collectives.world_size)
    model = loop.training_step.model

    def score() -> HeldOutScore | None:
        return held_out_score(config.eval, model, reader, collectives, lambda: run.stop_requested)

    return replace(loop, score=score), recorded


@pytest.mark.slow
def test_scoring_between_steps_changes_no_loss(on_ranks: OnRanks) -> None:
    def body(collectives: Any) -> tuple[dict[int, float], list[int], list[str]]:
        run = StubRun()
        loop, recorded = scoring_loop(collectives, run, every_steps=4)
        loop.run_from(Progress(0, 0))
        return recorded.losses, list(recorded.scores), run.spans

    def plain(collectives: Any) -> dict[int, float]:
        loop, recorded = make_loop(collectives, StubRun())
        loop.run_from(Progress(0, 0))
        return recorded.losses

    losses, scored, spans = on_ranks(2, body)[0]
    assert losses == on_ranks(2, plain)[0]
    assert (scored, spans) == ([4, 8], ["eval after 4", "eval after 8"])


@pytest.mark.slow
def test_ranks_asked_to_stop_while_they_score_stop_together_without_a_score(on_ranks: OnRanks) -> None:
    def body(collectives: Any) -> tuple[Progress, list[int]]:
        run = StubRun(stop_after=0 if collectives.rank else STEPS + 1, stops_in_spans=True)
        loop, recorded = scoring_loop(collectives, run, every_steps=4)
        return loop.run_from(Progress(0, 0)), list(recorded.scores)

    assert on_ranks(2, body) == [(Progress(4, 4 * BATCH, stopped=True), [])] * 2


@pytest.mark.slow
def test_each_batch_is_told_of_before_it_is_read(on_ranks: OnRanks) -> None:
    def body(collectives: Any) -> list[int]:
        loop, _ = make_loop(collectives, StubRun())
        numbers: list[int] = []
        loop.batches.before_read = numbers.append
        loop.run_from(Progress(0, 0))
        return numbers

    assert on_ranks(1, body)[0] == list(range(1, STEPS + 2))  # the last is where the input's end is found
