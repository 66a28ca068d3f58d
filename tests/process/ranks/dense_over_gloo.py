"""One rank: argv = rank, world size, store file, output folder. Trains the dense part in each way over gloo."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ett.checkpoint.sharded_tensor import local_part, whole
from ett.checkpoint.table import copy_of_rows
from ett.trainer.comm.collectives import Collectives, GroupCollectives, LocalCollectives
from ett.trainer.config import DenseConfig, ModelConfig, SparseConfig, TrainConfig, TrainerConfig
from ett.trainer.data.criteo import Batch
from ett.trainer.loop import TrainingStep
from ett.trainer.pipeline.prefetched_batches import ReadyBatch
from ett.trainer.pipeline.stage_clock import StageClock
from ett.trainer.rank_start import build_model

BATCH, STEPS = 24, 6
WAYS = ("buckets", "ddp", "fsdp")


def config_of(way: Any, **dense: Any) -> TrainerConfig:
    return TrainerConfig(
        model=ModelConfig(kind="dcn_v2", embedding_dim=4, bottom_mlp=(7,), top_mlp=(9, 5), cross_rank=3),
        sparse=SparseConfig(optimizer="adagrad"),
        dense=DenseConfig(parallel=way, bucket_bytes=512, **dense),
        train=TrainConfig(batch_size=BATCH, accumulate=2),
    )


def batch(step: int, rank: int, world_size: int) -> Batch:
    """Uneven slices; in every third batch, all but one rank have none."""
    rng = np.random.default_rng(step)
    cuts = [BATCH] * (world_size - 1) if step % 3 == 0 else np.sort(rng.integers(0, BATCH, world_size - 1))
    mine = np.split(np.arange(BATCH), cuts)[rank]
    labels, dense = (rng.random(BATCH) < 0.4).astype(np.float32), rng.standard_normal((BATCH, 13)).astype(np.float32)
    ids = {f"C{column}": rng.integers(0, 30, BATCH)[mine] for column in range(1, 27)}
    return Batch(labels[mine], dense[mine], ids, BATCH)


class Trained:
    def __init__(self, config: TrainerConfig, collectives: Collectives) -> None:
        self._ranks = collectives
        self.step = TrainingStep(config, build_model(config, collectives), collectives)
        self.found: dict[str, np.ndarray] = {}

    def run(self, first: int, last: int, *, rank: int, world_size: int) -> None:
        losses = []
        for number in range(first, last + 1):
            clock = StageClock(0)
            with clock.run("read", 1):
                pass
            with clock.run("exchange_samples", 1):
                ready = ReadyBatch(1, batch(number, rank, world_size), 0, None)
            losses.append(self.step.take(number, ready, clock)[0])
            if number == 1:
                for name, param in self.step.model.named_parameters():
                    self.found[f"first_gradient.{name}"] = whole(param.grad).clone().numpy()
        self.found["losses"] = np.array(losses)
        for name, value in self.step.model.state_dict().items():
            self.found[f"weight.{name}"] = whole(value).numpy()
        for shard in self.step.model.ebc.shards():
            self.found[f"rows.{shard.name}.{self._ranks.rank}"] = copy_of_rows(shard).weights.numpy()


def main(rank: int, world_size: int, store: str, out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size)
    collectives = GroupCollectives()
    for way in WAYS:
        for precision in ("float32", "bfloat16"):
            trained = Trained(config_of(way, precision=precision), collectives)
            trained.run(1, STEPS, rank=rank, world_size=world_size)
            np.savez(out / f"{way}-{precision}-{rank}.npz", **trained.found)  # type: ignore[arg-type]
            if way == "fsdp":
                sizes = [(local_part(p).numel(), p.numel()) for p in trained.step.model.parameters()]
                assert sum(mine for mine, _ in sizes) < sum(everything for _, everything in sizes)
    alone = Trained(config_of("buckets"), LocalCollectives())
    alone.run(1, 1, rank=rank, world_size=world_size)
    np.savez(out / f"alone-{rank}.npz", **alone.found)  # type: ignore[arg-type]
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
