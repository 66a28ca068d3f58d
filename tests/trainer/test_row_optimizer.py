"""Against torch.optim, with every row of a dense table as a parameter of its own: one without gradient is skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ett.checkpoint.table import copy_of_rows
from ett.trainer.config import SparseConfig
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_optimizer import row_optimizer

ROWS, DIM, STEPS, LR = 12, 4, 25, 0.05
# Each step adds at most a few float32 roundings (2^-24) to values below 4; 25 steps stay below 64 of them.
TOLERANCE = 64 * 2**-24


def shard_of(optimizer: Any) -> EmbeddingShard:
    config = SparseConfig(optimizer=optimizer, init_scale=0.5, learning_rate=LR)
    init = RowInit("t", seed=3, dim=DIM, scale=config.init_scale)
    return EmbeddingShard("t", init, row_optimizer(config), dim=DIM, num_rows=0, rank=0, world_size=1)


def initial_rows() -> Tensor:
    return torch.from_numpy(RowInit("t", seed=3, dim=DIM, scale=0.5).rows(np.arange(ROWS)))


def gradients() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    steps = []
    for _ in range(STEPS):
        ids = torch.randperm(ROWS, generator=generator)[: ROWS // 2].sort().values
        steps.append((ids, torch.randn(len(ids), DIM, generator=generator)))
    return steps


def torch_rows(make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> Tensor:
    rows = [row.clone().requires_grad_() for row in initial_rows()]
    optimizer = make(rows)
    for ids, grads in gradients():
        optimizer.zero_grad(set_to_none=True)
        for i, grad in zip(ids.tolist(), grads, strict=True):
            rows[i].grad = grad.clone()
        optimizer.step()
    return torch.stack([row.detach() for row in rows])


def rowwise_adagrad_rows() -> Tensor:
    rows, total = initial_rows(), torch.zeros(ROWS)
    for ids, grads in gradients():
        for i, grad in zip(ids.tolist(), grads, strict=True):
            total[i] += grad.square().mean()
            rows[i] -= LR * grad / (total[i].sqrt() + 1e-8)
    return rows


REFERENCES: dict[str, Callable[[], Tensor]] = {
    "sgd": lambda: torch_rows(lambda rows: torch.optim.SGD(rows, lr=LR)),
    "adagrad": lambda: torch_rows(lambda rows: torch.optim.Adagrad(rows, lr=LR, eps=1e-8)),
    "adam": lambda: torch_rows(lambda rows: torch.optim.Adam(rows, lr=LR, eps=1e-8)),
    "rowwise_adagrad": rowwise_adagrad_rows,
}


@pytest.mark.parametrize("name", REFERENCES)
def test_updates_equal_a_dense_table_whose_untouched_rows_are_skipped(name: str) -> None:
    shard = shard_of(name)
    for ids, grads in gradients():
        shard.update(ids.numpy(), grads, LR)
    torch.testing.assert_close(copy_of_rows(shard).weights, REFERENCES[name](), rtol=0, atol=TOLERANCE)


def test_adam_counts_the_steps_of_each_row() -> None:
    shard = shard_of("adam")
    for ids, grads in gradients():
        shard.update(ids.numpy(), grads, LR)
    counts = torch.bincount(torch.cat([ids for ids, _ in gradients()]), minlength=ROWS)
    assert copy_of_rows(shard).states["step"].flatten().tolist() == counts.tolist()
