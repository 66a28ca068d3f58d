"""Exact optimizers on unique rows: the caller has summed the gradients of an id before.

Each updates gathered rows in place. They agree with torch.optim on a dense table of which every row is a parameter of
its own, skipped where it has no gradient: a row's state changes only when the row is touched. For Adam that means that
a row counts its own steps (state "step"), and its moments do not decay while nobody looks it up. Row-wise Adagrad keeps
one sum a row, of the mean square of its gradient, as FBGEMM does. State names are TorchRec's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ett.checkpoint.table import StateSpec
from ett.trainer.config import SparseConfig

States = dict[str, Tensor]


class RowOptimizer(Protocol):
    def states(self, dim: int) -> tuple[StateSpec, ...]:
        """Return the states of a table whose rows have `dim` elements; all start at zero."""

    def update(self, weights: Tensor, grads: Tensor, states: States, learning_rate: float) -> None:
        """Apply one step in place: weights and grads float32 [N, dim], states name -> [N, width]."""


@dataclass(frozen=True, slots=True)
class Sgd:
    def states(self, dim: int) -> tuple[StateSpec, ...]:
        return ()

    def update(self, weights: Tensor, grads: Tensor, states: States, learning_rate: float) -> None:
        weights.add_(grads, alpha=-learning_rate)


@dataclass(frozen=True, slots=True)
class Adagrad:
    eps: float

    def states(self, dim: int) -> tuple[StateSpec, ...]:
        return (StateSpec(name="momentum1", dtype="float32", width=dim),)

    def update(self, weights: Tensor, grads: Tensor, states: States, learning_rate: float) -> None:
        total = states["momentum1"].addcmul_(grads, grads)
        weights.addcdiv_(grads, total.sqrt().add_(self.eps), value=-learning_rate)


@dataclass(frozen=True, slots=True)
class RowWiseAdagrad:
    eps: float

    def states(self, dim: int) -> tuple[StateSpec, ...]:
        return (StateSpec(name="momentum1", dtype="float32", width=1),)

    def update(self, weights: Tensor, grads: Tensor, states: States, learning_rate: float) -> None:
        total = states["momentum1"].add_(grads.square().mean(dim=1, keepdim=True))
        weights.addcdiv_(grads, total.sqrt().add_(self.eps), value=-learning_rate)


@dataclass(frozen=True, slots=True)
class Adam:
    beta1: float
    beta2: float
    eps: float

    def states(self, dim: int) -> tuple[StateSpec, ...]:
        return (
            StateSpec(name="exp_avg", dtype="float32", width=dim),
            StateSpec(name="exp_avg_sq", dtype="float32", width=dim),
            StateSpec(name="step", dtype="int64", width=1),
        )

    def update(self, weights: Tensor, grads: Tensor, states: States, learning_rate: float) -> None:
        step = states["step"].add_(1).to(torch.float64)
        mean = states["exp_avg"].lerp_(grads, 1.0 - self.beta1)
        square = states["exp_avg_sq"].mul_(self.beta2).addcmul_(grads, grads, value=1.0 - self.beta2)
        step_size = (learning_rate / (1.0 - self.beta1**step)).to(torch.float32)
        root_correction = (1.0 - self.beta2**step).sqrt().to(torch.float32)
        weights.sub_(mean.mul(step_size).div_(square.sqrt().div_(root_correction).add_(self.eps)))


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
