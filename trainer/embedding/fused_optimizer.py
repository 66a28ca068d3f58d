"""How a table's rows are updated in the backward pass, with TorchRec's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, unique

from ett.errors import ConfigError
from ett.trainer.sparse.row_optimizer import Adagrad, Adam, RowOptimizer, RowWiseAdagrad, Sgd


@unique
class EmbOptimType(Enum):
    """Each sums the gradients of an id first and then updates its row once."""

    EXACT_SGD = "exact_sgd"
    EXACT_ADAGRAD = "exact_adagrad"
    EXACT_ROWWISE_ADAGRAD = "exact_row_wise_adagrad"
    ADAM = "adam"


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedParams:
    optimizer: EmbOptimType = EmbOptimType.EXACT_ROWWISE_ADAGRAD
    learning_rate: float = 0.01
    eps: float = 1e-8  # added to the root of the second moment
    beta1: float = 0.9  # adam only
    beta2: float = 0.999  # adam only

    def __post_init__(self) -> None:
        if not 0.0 <= self.learning_rate < float("inf"):
            raise ConfigError(f"learning_rate is {self.learning_rate}", expected="a finite number, zero or more")
        if not 0.0 < self.eps < float("inf"):
            raise ConfigError(f"eps is {self.eps}", expected="a finite number above zero")
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0.0 <= beta < 1.0:
                raise ConfigError(f"{name} is {beta}", expected="a number, 0 <= beta < 1")

    def row_optimizer(self) -> RowOptimizer:
        match self.optimizer:
            case EmbOptimType.EXACT_SGD:
                return Sgd()
            case EmbOptimType.EXACT_ADAGRAD:
                return Adagrad(self.eps)
            case EmbOptimType.EXACT_ROWWISE_ADAGRAD:
                return RowWiseAdagrad(self.eps)
            case EmbOptimType.ADAM:
                return Adam(self.beta1, self.beta2, self.eps)


def params_by_table(
    given: FusedParams | Mapping[str, FusedParams] | None, names: list[str]
) -> dict[str, FusedParams] | None:
    """Return each table's settings. Raises: ConfigError: a mapping that lacks a table, or has another one."""
    if given is None:
        return None
    if isinstance(given, FusedParams):
        return dict.fromkeys(names, given)
    if set(given) != set(names):
        raise ConfigError(
            f"fused_params are given for {sorted(given)}", expected=f"one for each of the tables {sorted(names)}"
        )
    return dict(given)
