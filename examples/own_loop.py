"""A training loop of one's own under `ett launch`: timed, saved, and restarted to the same bits.

    ett launch --nproc 2 --max-restarts 1 --chaos kill:rank=1,step=30 examples/own_loop.py

Without `ett launch` it runs too; then nothing is recorded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

import ett
from ett.checkpoint import CheckpointConfig, Checkpointer

NUM_STEPS, BATCH, NUM_IDS = 60, 256, 1000


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_IDS, 8)
        self.top = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.top(self.embedding(ids).flatten(1))
        return logits.squeeze(1)


def batches(rank: int, world_size: int, skip: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's slice of each global batch after `skip` samples: ids int64 [b, 2], labels float32 [b]."""
    for step in range(skip // BATCH, NUM_STEPS):
        draw = torch.Generator().manual_seed(step)
        ids = torch.randint(NUM_IDS, (BATCH, 2), generator=draw)
        labels = ((ids[:, 0] + ids[:, 1]) % 7 < 3).float()
        yield ids[rank::world_size], labels[rank::world_size]


def train_one(model: Model, optimizer: torch.optim.Optimizer, ids: Tensor, labels: Tensor, world_size: int) -> float:
    loss = nn.functional.binary_cross_entropy_with_logits(model(ids), labels, reduction="sum") / BATCH
    optimizer.zero_grad()
    loss.backward()
    if world_size > 1:
        # DistributedDataParallel sums in another order after a restart; a sum in the order of names is the same always.
        for _, parameter in model.named_parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
    return float(loss.detach())


def stops(run: ett.Run) -> bool:
    """Return whether the job is told to stop: ranks hear of it at different steps, and have to save at the same one."""
    told = torch.tensor(int(run.stop_requested))
    if run.world_size > 1:
        dist.all_reduce(told, dist.ReduceOp.MAX)
    return bool(told)


def main() -> None:
    run = ett.init()
    with run.span("process_group"):
        if run.world_size > 1:
            dist.init_process_group("gloo")
    with run.span("model_build"):
        torch.manual_seed(1)
        model = Model()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    uri = os.environ.get("CHECKPOINTS", "" if run.job else "checkpoints")  # "": in the job's folder
    config = CheckpointConfig(uri=uri, interval="10 steps")
    checkpointer = Checkpointer(config, model=model, optimizer=optimizer)
    start = checkpointer.restore()  # None on a fresh start
    step, cursor = (start.step, start.cursor) if start else (0, 0)
    is_saved = start is not None
    is_stopped = False
    loss: float | None = None
    for ids, labels in batches(run.rank, run.world_size, skip=cursor):
        with run.step(global_samples=BATCH, step=step + 1):
            loss = train_one(model, optimizer, ids, labels, run.world_size)
        step, cursor = step + 1, cursor + BATCH
        is_saved = checkpointer.step(step, cursor) is not None  # saves when due; None: not, or beside training
        if is_stopped := stops(run):
            break
    run.train_end()
    if not is_saved:
        checkpointer.save(step, cursor)  # waits for a save that is under way; saves what came after it
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    if run.rank == 0:
        loss_text = "no step was left" if loss is None else f"loss of rank 0 {loss:.6f}"
        print(f"step {step}, {loss_text}, weights {float(weights.double().sum()).hex()}", flush=True)
    if run.world_size > 1:
        dist.destroy_process_group()
    if is_stopped:
        raise SystemExit(143)  # stopped, not done: `ett launch --job JOB` resumes it


if __name__ == "__main__":
    main()
