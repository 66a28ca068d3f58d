"""One rank of a DistributedDataParallel program with an embedding: argv = rank, ranks, store file, checkpoints, last
step, optimizer; prints where it began, rows of the last save's table by kind, and a digest of model and optimizer.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.tensor_bytes import tensor_bytes

NUM_ROWS, DIM, BATCH = 8192, 32, 32
OPTIMIZERS = {"SparseAdam": True, "Adagrad": False}  # and whether gradients are sparse


class Bags(nn.Module):
    def __init__(self, *, is_sparse: bool) -> None:
        super().__init__()
        self.items = nn.EmbeddingBag(NUM_ROWS, DIM, mode="sum", sparse=is_sparse)

    def forward(self, ids: Tensor) -> Tensor:
        pooled: Tensor = self.items(ids)
        return pooled.square().sum()


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    found = hashlib.sha256()
    values = [*model.state_dict().values()]
    for entry in optimizer.state_dict()["state"].values():
        values += [entry[name] for name in sorted(entry)]
    for value in values:
        found.update(tensor_bytes(value).tobytes() if isinstance(value, Tensor) else repr(value).encode())
    return found.hexdigest()


def main() -> None:
    rank, world_size, last, kind = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[5]), sys.argv[6]
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world_size)
    torch.manual_seed(3)
    model = DistributedDataParallel(Bags(is_sparse=OPTIMIZERS[kind]))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    config = CheckpointConfig(uri=str(Path(sys.argv[4])), policy="incremental")
    checkpointer = Checkpointer(config, model=model, optimizer=optimizer)
    start = checkpointer.restore()
    first = start.step if start else 0
    commit = None
    for step in range(first, last):
        draw = torch.Generator().manual_seed(step)
        ids = torch.randint(NUM_ROWS, (BATCH, 2), generator=draw)[rank::world_size]
        optimizer.zero_grad()
        model(ids).backward()
        optimizer.step()
        if step % 2:
            commit = checkpointer.save(step + 1, step + 1)
    own = [] if commit is None else [file for file in commit.tables[0].files if file.seq == commit.seq]
    rows = {file.identity.kind: file.num_rows for file in own}
    writers = {file.identity.writer for file in own}
    print(first, rows, writers, digest(model, optimizer))
    checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
