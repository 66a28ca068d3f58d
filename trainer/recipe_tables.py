"""Which tables a recipe names: one for each feature of the data, but for those that a table of the recipe has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ett.errors import ConfigError
from ett.section import nearest
from ett.trainer.config import ModelConfig, SparseConfig, TableConfig


@dataclass(frozen=True, slots=True)
class RecipeTable:
    name: str
    features: tuple[str, ...]
    embedding_dim: int
    own: TableConfig
    settings: SparseConfig  # of this table alone


def recipe_tables(model: ModelConfig, sparse: SparseConfig, features: Sequence[str]) -> list[RecipeTable]:
    """Return the tables in the order of their first features.

    Args: features: the columns of ids that the data has.
    Raises: ConfigError: a table or a feature of [sparse.tables] is none of the data's, or a feature is in two tables.
    """
    owners: dict[str, str] = {}
    for name, own in sparse.tables.items():
        if not own.features and name not in features:
            raise ConfigError(
                f"sparse.tables.{name} names no feature of the data",
                expected=nearest(name, features),
                do="correct it, or say which features the table has: features = [...]",
                code="F002",
            )
        if own.features and name in features and name not in own.features:
            raise ConfigError(
                f"sparse.tables.{name} has the name of a feature that it does not have", expected="another name"
            )
        for feature in own.features or (name,):
            if feature not in features:
                raise ConfigError(
                    f"sparse.tables.{name}.features has {feature!r}", expected=nearest(feature, features), code="F002"
                )
            if feature in owners:
                raise ConfigError(
                    f"feature {feature} is in the tables {owners[feature]} and {name}", expected="one table a feature"
                )
            owners[feature] = name
    names = list(dict.fromkeys(owners.get(feature, feature) for feature in features))
    return [_table(name, model, sparse) for name in names]


def _table(name: str, model: ModelConfig, sparse: SparseConfig) -> RecipeTable:
    own = sparse.tables.get(name, TableConfig())
    dim = own.embedding_dim or model.embedding_dim
    return RecipeTable(name, own.features or (name,), dim, own, sparse.of_table(name))
