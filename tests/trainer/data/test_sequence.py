from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ett.errors import ConfigError, DataError
from ett.trainer.data.sequence import SequenceBatch, SequenceConfig, SequenceReader

ROWS = 150
CONFIG = SequenceConfig(window_rows=40, heldout_share=0.1)


def history_of(row: int) -> list[int]:
    return [row * 1000 + n for n in range((row * 7) % 23)]


def write(path: Path, rows: range, group_rows: int = 17) -> None:
    table = pa.table(
        {
            "label": pa.array([row % 2 for row in rows], pa.int8()),
            "user_id": pa.array([row + 5 for row in rows]),
            "item_id": pa.array(list(rows)),
            "history": pa.array([history_of(row) for row in rows], pa.list_(pa.int64())),
        }
    )
    pq.write_table(table, path, row_group_size=group_rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("sequences")
    write(path / "a.parquet", range(90))
    write(path / "b.parquet", range(90, ROWS))
    return str(path)


def reader_of(path: str, config: SequenceConfig = CONFIG, **given: Any) -> SequenceReader:
    return SequenceReader(config, path, **{"batch_size": 16, "seed": 3, "epochs": 2} | given)


def rows_of(batch: SequenceBatch) -> list[int]:
    rows: list[int] = batch.features["item_id"].values().tolist()
    return rows


def assert_whole(batch: SequenceBatch, max_length: int = 0) -> None:
    rows = rows_of(batch)
    assert batch.features.keys() == ["user_id", "item_id", "history"]
    assert batch.features.values().dtype == batch.features.lengths().dtype == torch.int64
    assert batch.labels.tolist() == [row % 2 for row in rows]
    assert batch.features["user_id"].values().tolist() == [row + 5 for row in rows]
    found = [history.tolist() for history in batch.features["history"].to_dense()]
    assert found == [history_of(row)[-max_length:] for row in rows]


def test_every_row_comes_once_an_epoch_with_its_own_history(folder: str) -> None:
    reader = reader_of(folder, epochs=1)
    batches = [*reader, *reader.heldout_batches(16)]
    for batch in batches:
        assert_whole(batch)
    assert sorted(row for batch in batches for row in rows_of(batch)) == list(range(ROWS))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    consumed=st.integers(0, 17),
    worlds=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    lanes=st.integers(1, 4),
    ahead=st.tuples(st.integers(1, 3), st.integers(0, 5)),
)
def test_a_reader_restored_anywhere_in_any_world_goes_on_exactly(
    folder: str, consumed: int, worlds: tuple[int, int], lanes: int, ahead: tuple[int, int]
) -> None:
    config = replace(CONFIG, lanes=lanes)
    whole = [rows_of(batch) for batch in reader_of(folder, config)]
    before = reader_of(folder, config, rank=worlds[0] - 1, world_size=worlds[0])
    list(islice(before, consumed))
    state = json.loads(json.dumps(before.state_dict()))
    rest = []
    for rank in range(worlds[1]):
        other = replace(config, readers=ahead[0], prefetch_batches=ahead[1])
        reader = reader_of(folder, other, rank=rank, world_size=worlds[1])
        reader.load_state_dict(state)
        batches = list(reader)
        for batch in batches:
            assert_whole(batch)
        rest.append([rows_of(batch) for batch in batches])
    assert [[row for part in parts for row in part] for parts in zip(*rest, strict=True)] == whole[consumed:]


@pytest.mark.parametrize("max_length", [1, 5, 100])
def test_the_latest_ids_of_a_longer_history_are_kept(folder: str, max_length: int) -> None:
    for batch in reader_of(folder, replace(CONFIG, max_length=max_length)):
        assert_whole(batch, max_length)


def test_the_number_of_samples_is_enough_to_go_on(folder: str) -> None:
    whole = [rows_of(batch) for batch in reader_of(folder)]
    reader = reader_of(folder)
    reader.seek(sum(len(rows) for rows in whole[:11]))
    assert [rows_of(batch) for batch in reader] == whole[11:]
    with pytest.raises(ConfigError, match="cursor -1"):
        reader.seek(-1)


def changed(path: Path, name: str, column: pa.Array) -> str:
    write(path, range(20))
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, column), path)
    return str(path)


@pytest.mark.parametrize(
    ("name", "column", "fact"),
    [
        ("history", pa.array([["a"]] * 20), "column 'history' is of type list<.*string>"),
        ("history", pa.array(range(20)), "column 'history' is of type int64"),
        ("history", pa.array([[1, None]] * 20), "column 'history': 20 nulls within lists"),
        ("item_id", pa.array([None, *range(19)]), "column 'item_id': 1 nulls, the first in row 0"),
        ("user_id", pa.array(["u"] * 20), "column 'user_id' is of type string"),
    ],
)
def test_wrong_columns_are_refused_with_file_and_name(tmp_path: Path, name: str, column: pa.Array, fact: str) -> None:
    with pytest.raises(DataError, match=rf"a\.parquet: {fact}"):
        list(reader_of(changed(tmp_path / "a.parquet", name, column)))


def test_a_null_history_is_an_empty_one(tmp_path: Path) -> None:
    path = changed(tmp_path / "a.parquet", "history", pa.array([None, [1, 2]] * 10))
    (batch,) = list(reader_of(path, replace(CONFIG, heldout_share=0, shuffle=False), batch_size=20, epochs=1))
    assert batch.features["history"].lengths().tolist() == [0, 2] * 10


def test_text_is_no_sequence_data(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"1\t2\n")
    with pytest.raises(DataError, match=r"a\.tsv is no Parquet file"):
        reader_of(str(tmp_path / "a.tsv"))


@pytest.mark.parametrize(
    "given", [{"histories": ()}, {"ids": ("label",)}, {"lanes": 0}, {"max_length": -1}, {"heldout_share": 1.0}]
)
def test_a_config_that_cannot_work_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SequenceConfig(**given)


def test_a_rank_without_a_row_has_a_batch_of_none(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", range(3))
    config = replace(CONFIG, heldout_share=0)
    batches = [next(iter(reader_of(str(tmp_path), config, rank=rank, world_size=5))) for rank in range(5)]
    assert sum(len(rows_of(batch)) for batch in batches) == 3
    assert [batch.features.stride() for batch in batches] == [len(rows_of(batch)) for batch in batches]
    assert np.isin(0, [len(batch.labels) for batch in batches])
