"""A model of plain torch with an embedding that is large enough to be a table, and its training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from checkpoint_world import Meeting, RecordingRun, ThreadRanks
from torch import Tensor, nn
from torch.optim import Optimizer

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.commit import Commit
from ett.checkpoint.store import Store
from ett.checkpoint.tensor_bytes import tensor_bytes

NUM_ROWS, DIM, BATCH = 8192, 32, 16  # 1 MiB
Make = Callable[[list[nn.Parameter]], Optimizer]
Values = dict[str, bytes]


class Model(nn.Module):
    """Ids with two embeddings: a table, and one that is too small for that."""

    def __init__(self, seed: int = 1, *, is_sparse: bool = False, num_rows: int = NUM_ROWS) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)  # ranks that are threads have torch's own in common
        rows = (torch.randn(size, DIM, generator=draw) for size in (num_rows, 8))
        self.items, self.small = (nn.Embedding.from_pretrained(r, freeze=False, sparse=is_sparse) for r in rows)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.items(ids) * self.small(ids % 8)
        return found


def batch(step: int, num_rows: int = NUM_ROWS) -> Tensor:
    return torch.randint(num_rows, (BATCH,), generator=torch.Generator().manual_seed(step))


class Job:
    """One rank's model, optimizer and checkpointer."""

    def __init__(
        self,
        folder: Path,
        make: Make,
        ranks: ThreadRanks | None = None,
        *,
        model: nn.Module | None = None,
        store: Store | None = None,
        **config: Any,
    ) -> None:
        self.model = Model() if model is None else model
        self.optimizer = make(list(self.model.parameters()))
        self.run = RecordingRun()
        config = {"policy": "incremental", "keep_last": 9} | config
        self.checkpointer = Checkpointer(
            CheckpointConfig(uri=str(folder), **config),
            model=self.model,
            optimizer=self.optimizer,
            run=self.run,
            ranks=ranks or ThreadRanks(0, 1, Meeting(1)),
            store=store,
        )
        self.next_step = 0

    @property
    def items(self) -> nn.Embedding:
        assert isinstance(self.model, Model)
        return self.model.items

    def restore(self, resume: str = "auto") -> Job:
        position = self.checkpointer.restore(resume)
        self.next_step = position.step if position else 0
        return self

    def train(self, num_steps: int) -> Job:
        for step in range(self.next_step, self.next_step + num_steps):

            def closure(step: int = step) -> Tensor:
                self.optimizer.zero_grad()
                loss: Tensor = (self.model.forward(batch(step)) - 0.1).square().sum()
                loss.backward()
                return loss

            self.optimizer.step(closure)
        self.next_step += num_steps
        return self

    def save(self) -> Commit:
        return self.checkpointer.save(self.next_step, self.next_step)

    def values(self) -> Values:
        """Return the bytes of everything that training goes on from."""
        found = {name: tensor_bytes(value).tobytes() for name, value in self.model.state_dict().items()}
        for index, entry in self.optimizer.state_dict()["state"].items():
            found |= {f"{index}.{name}": _bytes_of(value) for name, value in entry.items()}
        return found


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, Tensor):
        return f"{value.dtype}{tuple(value.shape)}".encode() + tensor_bytes(value).tobytes()
    if isinstance(value, list):
        return b"".join(map(_bytes_of, value))
    return repr(value).encode()


def rows_written(commit: Commit, table: str) -> dict[str, int]:
    """Return how many rows a commit itself has of a table, by kind."""
    (entry,) = [entry for entry in commit.tables if entry.spec.name == table]
    own = [file for file in entry.files if file.seq == commit.seq]
    return {
        kind: sum(file.num_rows for file in own if file.identity.kind == kind)
        for kind in {file.identity.kind for file in own}
    }
