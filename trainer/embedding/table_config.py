"""Tables of a collection, with TorchRec's names and order of fields; what it cannot do here it does not take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from math import sqrt

from torch import Tensor

from ett.errors import ConfigError

_DYNAMIC_SCALE = 0.01  # initial rows of a table that grows, where weight_init_max is not given


@unique
class DataType(Enum):
    FP32 = "FP32"


@unique
class PoolingType(Enum):
    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"  # a row for each id; of a job by recipe, whose tables stand side by side


@dataclass
class EmbeddingConfig:
    """One table; mutable as TorchRec's is, so that code which fills in feature_names works."""

    num_embeddings: int  # ids are in [0, num_embeddings); 0: any int64, and the table grows
    embedding_dim: int
    name: str = ""
    data_type: DataType = DataType.FP32
    feature_names: list[str] = field(default_factory=list)  # empty: one, named as the table
    weight_init_max: float | None = None  # None: sqrt(1 / num_embeddings), and minus that
    weight_init_min: float | None = None
    init_fn: Callable[[Tensor], Tensor | None] | None = None  # instead of the two; only where one rank has all rows
    use_virtual_table: bool = False  # any int64 is an id, whatever num_embeddings says

    def __post_init__(self) -> None:
        if not self.name or "." in self.name:
            raise ConfigError(f"the name of a table is {self.name!r}", expected="a name without '.'")
        if self.embedding_dim < 1:
            raise ConfigError(f"table {self.name}: embedding_dim is {self.embedding_dim}", expected="at least 1")
        if self.num_embeddings < 0:
            raise ConfigError(f"table {self.name}: num_embeddings is {self.num_embeddings}", expected="0 or more")
        if self.data_type is not DataType.FP32:
            raise ConfigError(f"table {self.name}: data_type is {self.data_type}", expected="DataType.FP32")
        if self.get_weight_init_min() > self.get_weight_init_max():
            raise ConfigError(
                f"table {self.name}: weight_init_min {self.get_weight_init_min()} is above"
                f" weight_init_max {self.get_weight_init_max()}",
                expected="min <= max",
            )

    @property
    def is_dynamic(self) -> bool:
        return self.use_virtual_table or self.num_embeddings == 0

    @property
    def features(self) -> list[str]:
        return self.feature_names or [self.name]

    def num_features(self) -> int:
        return len(self.features)

    def get_weight_init_max(self) -> float:
        return self._scale() if self.weight_init_max is None else self.weight_init_max

    def get_weight_init_min(self) -> float:
        return -self._scale() if self.weight_init_min is None else self.weight_init_min

    def _scale(self) -> float:
        return _DYNAMIC_SCALE if self.is_dynamic else sqrt(1 / self.num_embeddings)


@dataclass
class EmbeddingBagConfig(EmbeddingConfig):
    """One table whose rows are pooled."""

    pooling: PoolingType = PoolingType.SUM


def check_tables(tables: Sequence[EmbeddingConfig]) -> None:
    """Raise ConfigError where there is no table, or two have one name."""
    names = [table.name for table in tables]
    if not names:
        raise ConfigError("a collection was given no tables", expected="at least one")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two tables are named {name!r}", expected="one name for each")


def output_names(tables: Sequence[EmbeddingConfig]) -> list[str]:
    """Return each output's key: the feature, or feature@table where several tables have it."""
    features = [feature for table in tables for feature in table.features]
    return [
        f"{feature}@{table.name}" if features.count(feature) > 1 else feature
        for table in tables
        for feature in table.features
    ]
