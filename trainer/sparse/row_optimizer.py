"""Exact optimizers on unique rows: the gradients of an id are summed before its one update.

They agree with torch.optim on a dense table of which every row is a parameter of its own, skipped where it has no
gradient: a row's state changes only when the row is touched. For Adam that means that a row counts its own steps (state
"step"), and its moments do not decay while nobody looks it up. Row-wise Adagrad keeps one sum a row, of the mean square
of its gradient, as FBGEMM does. State names are TorchRec's; the arithmetic stands in `row_kernels.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ett.checkpoint.table import StateSpec
from ett.trainer.config import SparseConfig
from ett.trainer.sparse import row_kernels
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.row_sums import RowSums, each_row

States = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class RowsOfTable:
    """Distinct rows of a table: all of them where rows is None. Weights float32 [N, D], states name -> [N, width]."""

    weights: Tensor
    states: States
    rows: Ids | None = None
    threads: int = 1


class RowOptimizer(Protocol):
    def states(self, dim: int) -> tuple[StateSpec, ...]:
        """Return the states of a table whose rows have `dim` elements; all start at zero."""

    def update_rows(self, table: RowsOfTable, grads: RowSums, learning_rate: float) -> None:
        """Apply one step in place, with one sum of gradients for each row."""

    def update(self, weights: Tensor, grads: Tensor, states: States, learning_rate: float) -> None:
        """Apply one step in place to rows that were gathered: weights and grads float32 [N, dim], contiguous."""
        self.update_rows(RowsOfTable(weights, states), each_row(grads), learning_rate)


@dataclass(frozen=True, slots=True)
class Sgd(RowOptimizer):
    def states(self, dim: int) -> tuple[StateSpec, ...]:
        return ()

    def update_rows(self, table: RowsOfTable, grads: RowSums, learning_rate: float) -> None:
        row_kernels.sgd(table.weights, table.rows, grads, learning_rate, threads=table.threads)


@dataclass(frozen=True, slots=True)
class Adagrad(RowOptimizer):
    eps: float

    def states(self, dim: int) -> tuple[StateSpec, ...]:
        return (StateSpec(name="momentum1", dtype="float32", width=dim),)

    def update_rows(self, table: RowsOfTable, grads: RowSums, learning_rate: float) -> None:
        total = table.states["momentum1"]
        row_kernels.adagrad(
            table.weights, table.rows, grads, learning_rate, eps=self.eps, total=total, threads=table.threads
        )


@dataclass(frozen=True, slots=True)
class RowWiseAdagrad(RowOptimizer):
    eps: float

    def states(self, dim: int) -> tuple[StateSpec, ...]:
        return (StateSpec(name="momentum1", dtype="float32", width=1),)

    def update_rows(self, table: RowsOfTable, grads: RowSums, learning_rate: float) -> None:
        total = table.states["momentum1"]
        row_kernels.rowwise_adagrad(
            table.weights, table.rows, grads, learning_rate, eps=self.eps, total=total, threads=table.threads
        )


@dataclass(frozen=True, slots=True)
class Adam(RowOptimizer):
    beta1: float
    beta2: float
    eps: float

    def states(self, dim: int) -> tuple[StateSpec, ...]:
        return (
            StateSpec(name="exp_avg", dtype="float32", width=dim),
            StateSpec(name="exp_avg_sq", dtype="float32", width=dim),
            StateSpec(name="step", dtype="int64", width=1),
        )

    def update_rows(self, table: RowsOfTable, grads: RowSums, learning_rate: float) -> None:
        steps = table.states["step"].view(-1)
        at = slice(None) if table.rows is None else torch.from_numpy(table.rows)
        steps[at] += 1
        step = steps[at].to(torch.float64)
        step_size = (learning_rate / (1.0 - self.beta1**step)).to(torch.float32)
        root_correction = (1.0 - self.beta2**step).sqrt().to(torch.float32)
        row_kernels.adam(
            table.weights,
            table.rows,
            grads,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            moments=(table.states["exp_avg"], table.states["exp_avg_sq"]),
            corrections=(step_size, root_correction),
            threads=table.threads,
        )


def row_optimizer(config: SparseConfig) -> RowOptimizer:
    """Return the optimizer that a recipe's [sparse] names."""
    match config.optimizer:
        case "sgd":
            return Sgd()
        case "adagrad":
            return Adagrad(config.eps)
        case "rowwise_adagrad":
            return RowWiseAdagrad(config.eps)
        case "adam":
            return Adam(config.beta1, config.beta2, config.eps)
