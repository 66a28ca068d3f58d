"""What a plain leg of the paired benchmark saves is all that it needs to go on; it publishes what it learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ett.checkpoint.table import copy_of_rows
from ett.trainer.bench.plain_checkpoint import PlainCheckpoints
from ett.trainer.bench.plain_publish import publish
from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.config import ModelConfig, SparseConfig, TrainConfig, TrainerConfig
from ett.trainer.data.criteo import Batch
from ett.trainer.loop import TrainingStep
from ett.trainer.pipeline.prefetched_batches import PrefetchedBatches, ReadyBatch
from ett.trainer.pipeline.stage_clock import StageClock
from ett.trainer.rank_start import build_model

CONFIG = TrainerConfig(
    model=ModelConfig(embedding_dim=4, bottom_mlp=(5,), top_mlp=(6,)),
    sparse=SparseConfig(optimizer="adam"),
    train=TrainConfig(batch_size=8, prefetch_depth=0),
)
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


class Reader:
    """Batch n follows from n."""

    num_read = 0

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.num_read += 1
            rng = np.random.default_rng(self.num_read)
            features: Any = {f"C{i}": rng.integers(0, 20, 8) for i in range(1, 27)}
            labels = (rng.random(8) < 0.4).astype(np.float32)
            yield Batch(labels, rng.standard_normal((8, 13)).astype(np.float32), features, 8)

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.num_read}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_read = state["read"]


class Trained:
    def __init__(self, folder: Path) -> None:
        self.step = TrainingStep(CONFIG, build_model(CONFIG, LocalCollectives()), LocalCollectives())
        self._batches = PrefetchedBatches(
            Reader(), self.step.model.ebc, LocalCollectives(), StageClock(0), lambda: False
        )
        self.checkpoints = PlainCheckpoints(folder, self.step, self._batches, 0)
        self._ready: Iterator[ReadyBatch] | None = None

    def train(self, steps: range) -> list[float]:
        if self._ready is None:
            self._ready = iter(self._batches)
        return [self.step.take(step, next(self._ready), self._batches.clock)[0] for step in steps]


@pytest.mark.slow
def test_who_goes_on_from_a_plain_checkpoint_trains_the_same_bits(tmp_path: Path) -> None:
    whole = Trained(tmp_path)
    whole.train(range(1, 4))
    whole.checkpoints.save(3, 24)
    expected = whole.train(range(4, 7))
    again = Trained(tmp_path)
    assert again.checkpoints.load() == (3, 24)
    assert again.train(range(4, 7)) == expected
    for ours, theirs in zip(again.step.model.ebc.shards(), whole.step.model.ebc.shards(), strict=True):
        assert torch.equal(copy_of_rows(ours).weights, copy_of_rows(theirs).weights)


@pytest.mark.slow
def test_the_newest_plain_checkpoint_and_the_one_before_are_kept(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    assert trained.checkpoints.load() == (0, 0)
    for step in (1, 2, 3):
        trained.train(range(step, step + 1))
        trained.checkpoints.save(step, 8 * step)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["2", "3"]
    assert Trained(tmp_path).checkpoints.load() == (3, 24)


@pytest.mark.slow
def test_what_is_published_is_every_row_by_its_id(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    trained.train(range(1, 3))
    publish(trained.step.model, LocalCollectives(), tmp_path / "published")
    for shard in trained.step.model.ebc.shards():
        found, rows = load_file(tmp_path / "published" / f"{shard.name}.safetensors"), copy_of_rows(shard)
        assert torch.equal(found["ids"], rows.ids) and torch.equal(found["weights"], rows.weights)
    dense = load_file(tmp_path / "published" / "dense.safetensors")
    assert dense.keys() == dict(trained.step.model.named_parameters()).keys()
