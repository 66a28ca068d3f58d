from __future__ import annotations

from typing import Any

import pytest

from ett.errors import ConfigError
from ett.trainer.config import ModelConfig, SparseConfig, TableConfig
from ett.trainer.recipe import check
from ett.trainer.recipe_tables import recipe_tables

FEATURES = ("user", "item", "history")


def tables_of(**tables: TableConfig) -> list[tuple[str, tuple[str, ...], int, str, float]]:
    sparse = SparseConfig(optimizer="adam", learning_rate=0.5, tables=tables)
    found = recipe_tables(ModelConfig(embedding_dim=8), sparse, FEATURES)
    return [(t.name, t.features, t.embedding_dim, t.settings.optimizer, t.settings.learning_rate) for t in found]


def test_without_tables_each_feature_has_one() -> None:
    assert tables_of() == [(name, (name,), 8, "adam", 0.5) for name in FEATURES]


def test_a_table_has_what_it_says_and_else_what_the_sections_say() -> None:
    own = TableConfig(embedding_dim=3, optimizer="sgd", learning_rate=0.25)
    assert tables_of(item=own)[1] == ("item", ("item",), 3, "sgd", 0.25)
    assert tables_of(item=TableConfig(embedding_dim=3))[1] == ("item", ("item",), 3, "adam", 0.5)


def test_features_may_share_a_table() -> None:
    assert tables_of(things=TableConfig(features=("history", "item"))) == [
        ("user", ("user",), 8, "adam", 0.5),
        ("things", ("history", "item"), 8, "adam", 0.5),
    ]


WRONG: list[tuple[dict[str, TableConfig], str, str]] = [
    ({"itme": TableConfig()}, "sparse.tables.itme names no feature", "did you mean 'item'?"),
    ({"t": TableConfig(features=("itm",))}, "sparse.tables.t.features has 'itm'", "did you mean 'item'?"),
    ({"item": TableConfig(), "t": TableConfig(features=("item",))}, "feature item is in the tables item and t", ""),
    ({"item": TableConfig(features=("user",))}, "sparse.tables.item has the name of a feature", "another name"),
]


@pytest.mark.parametrize(("tables", "fact", "expected"), WRONG)
def test_tables_that_fit_no_data_are_refused(tables: dict[str, TableConfig], fact: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tables_of(**tables)
    assert fact in caught.value.fact and expected in caught.value.expected


@pytest.mark.parametrize("wrong", [{"embedding_dim": -1}, {"num_embeddings": -1}, {"learning_rate": -0.5}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TableConfig(**wrong)


@pytest.mark.parametrize("kind", ["dlrm", "dcn_v2"])
def test_a_model_that_begins_with_dense_features_is_refused_for_data_without(kind: str) -> None:
    sections = {
        "data": {"format": "sequence", "ids": ["item"], "histories": ["item_history"]},
        "model": {"kind": kind},
    }
    with pytest.raises(ConfigError, match=f"model.kind is '{kind}', which begins with dense features"):
        check(sections, ".")
