"""A recipe's batches of histories, against the reader of histories by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ett.errors import DataError
from ett.trainer.data.columns import Jagged
from ett.trainer.data.config import DataConfig, GenerateConfig
from ett.trainer.data.criteo import Batch
from ett.trainer.data.generated_file import ensure_generated, write_criteo
from ett.trainer.data.recipe_reader import RecipeReader, recipe_reader
from ett.trainer.data.sequence import SequenceConfig, SequenceReader

GENERATE = GenerateConfig(rows=300, seed=3, items=50, max_length=40)
CONFIG = DataConfig(
    format="sequence", ids=("user_id", "item_id"), max_length=7, window_rows=64, heldout_share=0.2, generate=GENERATE
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("pyarrow")
    return str(ensure_generated(GENERATE, tmp_path_factory.mktemp("histories"), "sequence"))


def opened(path: str, rank: int = 0, world_size: int = 1, config: DataConfig = CONFIG) -> RecipeReader:
    return recipe_reader(config, path, batch_size=50, seed=2, epochs=1, rank=rank, world_size=world_size)


def lengths(batch: Batch) -> list[int]:
    history = batch.features["history"]
    assert isinstance(history, Jagged)
    found: list[int] = history.lengths.tolist()
    return found


def test_batches_are_those_of_the_reader_of_histories(path: str) -> None:
    columns = SequenceConfig(ids=CONFIG.ids, max_length=7, window_rows=64, heldout_share=0.2)
    theirs = SequenceReader(columns, path, batch_size=50, seed=2)
    num_batches = 0
    for ours, other in zip(opened(path), theirs, strict=True):
        assert np.array_equal(ours.labels, other.labels.numpy()) and ours.global_size == other.global_size
        assert ours.dense.shape == (len(ours.labels), 0)
        for name in CONFIG.id_features:
            column = ours.features[name]
            values = column.values if isinstance(column, Jagged) else column
            assert np.array_equal(values, other.features[name].values().numpy())
        assert lengths(ours) == other.features["history"].lengths().tolist()
        assert max(lengths(ours)) == 7
        num_batches += 1
    assert num_batches == 5


def test_ranks_share_each_batch_and_go_on_from_a_cursor(path: str) -> None:
    whole = [batch.labels.tolist() for batch in opened(path)]
    ranks = [opened(path, rank, 3) for rank in range(3)]
    parts = zip(*ranks, strict=True)
    assert [[label for part in batch for label in part.labels.tolist()] for batch in parts] == whole
    first, second = opened(path), opened(path)
    batches = iter(first)
    next(batches)
    second.load_state_dict(first.state_dict())
    assert [batch.labels.tolist() for batch in second] == whole[1:]


def test_a_generated_file_has_as_many_items_as_were_asked_for_and_a_name_that_says_so(path: str) -> None:
    items = {int(item) for batch in opened(path) for item in np.asarray(batch.features["item_id"])}
    assert 20 < len(items) <= 50
    assert Path(path).name.endswith("-300-rows-seed-3-50-items-40-long.parquet")


def test_lines_of_criteo_are_no_histories(tmp_path: Path) -> None:
    write_criteo(tmp_path / "a.tsv", 10, 1)
    with pytest.raises(DataError, match="is no Parquet file"):
        opened(str(tmp_path / "a.tsv"))
