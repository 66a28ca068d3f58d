from __future__ import annotations

import gzip
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from criteo_cases import ids_of, lines_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ett.errors import ConfigError, DataError, NotFound
from ett.trainer.data.config import DataConfig
from ett.trainer.data.criteo import Batch, CriteoReader, criteo_rows
from ett.trainer.data.criteo_lines import MISSING_COUNT, MISSING_ID, parse_lines
from ett.trainer.data.criteo_text import CATEGORIES, COUNTS
from ett.trainer.data.position import BEGINNING, Position

ROWS = 170
CONFIG = DataConfig(window_rows=40, heldout_share=0.1)


def table_of(rows: int, first: int = 0) -> pa.Table:
    """Return the rows of `lines_of` as a table, with nulls where fields are missing."""
    lines = parse_lines(lines_of(rows, first), rows)
    columns: dict[str, pa.Array] = {"label": pa.array(lines.labels.astype(np.int8))}
    for name, counts in zip(COUNTS, lines.counts.T, strict=True):
        columns[name] = pa.array(counts, mask=counts == MISSING_COUNT)
    for name, ids in zip(CATEGORIES, lines.ids.T, strict=True):
        columns[name] = pa.array(ids, mask=ids == MISSING_ID)
    return pa.table(columns)


def reader_of(path: Path, config: DataConfig = CONFIG, **given: Any) -> CriteoReader:
    return CriteoReader(config, str(path), **{"batch_size": 16, "seed": 3, "epochs": 2} | given)


def bits(batches: list[Batch]) -> list[tuple[bytes, bytes, bytes, int]]:
    return [(b.labels.tobytes(), b.dense.tobytes(), ids_of(b).tobytes(), b.global_size) for b in batches]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same two files of rows as text, gzip and Parquet of small row groups."""
    root = tmp_path_factory.mktemp("formats")
    for name in ("text", "gzip", "parquet"):
        (root / name).mkdir()
    for index, (rows, first) in enumerate(((100, 0), (70, 100))):
        (root / "text" / f"{index}.tsv").write_bytes(lines_of(rows, first))
        (root / "gzip" / f"{index}.gz").write_bytes(gzip.compress(lines_of(rows, first)))
        pq.write_table(table_of(rows, first), root / "parquet" / f"{index}.parquet", row_group_size=27)
    return {name: root / name for name in ("text", "gzip", "parquet")}


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("form", ["gzip", "parquet"])
def test_batches_do_not_depend_on_the_format(folders: dict[str, Path], form: str, lanes: int) -> None:
    config = replace(CONFIG, lanes=lanes)
    for rank in range(2):
        text, other = (reader_of(folders[name], config, rank=rank, world_size=2) for name in ("text", form))
        assert bits(list(other)) == bits(list(text))
        assert bits(list(other.heldout_batches(9))) == bits(list(text.heldout_batches(9)))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(consumed=st.integers(0, 20), lanes=st.integers(1, 4), world=st.integers(1, 4), window_rows=st.integers(5, 90))
def test_a_parquet_reader_restored_anywhere_in_any_world_goes_on(
    folders: dict[str, Path], consumed: int, lanes: int, world: int, window_rows: int
) -> None:
    config = replace(CONFIG, lanes=lanes, window_rows=window_rows)
    whole = reader_of(folders["parquet"], config)
    batches = iter(whole)
    list(islice(batches, consumed))
    rest = []
    for rank in range(world):
        reader = reader_of(folders["parquet"], config, rank=rank, world_size=world)
        reader.load_state_dict(whole.state_dict())
        rest.append(list(reader))
    expected = list(batches)
    assert len(expected) == len(rest[0])
    for n, batch in enumerate(expected):
        assert np.concatenate([ids_of(part[n]) for part in rest], axis=1).tobytes() == ids_of(batch).tobytes()


def test_a_rank_decodes_its_own_lanes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table_of(320), tmp_path / "a.parquet", row_group_size=40)
    decoded: list[int] = []
    plain = pq.ParquetFile.read_row_group

    def counted(self: pq.ParquetFile, group: int, **given: Any) -> pa.Table:
        decoded.append(group)
        return plain(self, group, **given)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    for rank in range(4):
        decoded.clear()
        list(reader_of(tmp_path, replace(CONFIG, lanes=4, heldout_share=0), epochs=1, rank=rank, world_size=4))
        assert decoded == [rank, rank + 4]


def written(path: Path, **columns: pa.Array) -> Path:
    table = table_of(20)
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize(
    ("name", "column", "fact"),
    [
        ("C3", pa.array(["68fd1e64"] * 20), "column 'C3' is of type string"),
        ("I2", pa.array([1.5] * 20), "column 'I2' is of type double"),
        ("label", pa.array(["0"] * 20), "column 'label' is of type string"),
        ("C1", pa.array([2**64 - 1] * 20, pa.uint64()), r"column 'C1': .*not in range"),
        ("C1", pa.array([[1]] * 20), r"column 'C1' is of type list"),
    ],
)
def test_a_column_of_another_type_is_refused_with_file_and_name(
    tmp_path: Path, name: str, column: pa.Array, fact: str
) -> None:
    path = written(tmp_path / "a.parquet", **{name: column})
    with pytest.raises(DataError, match=rf"a\.parquet: {fact}"):
        list(reader_of(path))


def test_a_missing_column_is_named_beside_those_that_are_there(tmp_path: Path) -> None:
    pq.write_table(table_of(20).drop_columns(["I5"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: no column 'I5'") as caught:
        list(reader_of(tmp_path))
    assert "I4, I6" in caught.value.do


def test_a_later_file_of_another_schema_is_refused_by_its_name(tmp_path: Path) -> None:
    pq.write_table(table_of(20), tmp_path / "a.parquet")
    written(tmp_path / "b.parquet", I1=pa.array(["x"] * 20))
    with pytest.raises(DataError, match=r"b\.parquet: column 'I1' is of type string"):
        list(reader_of(tmp_path))


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64()])
def test_integers_of_any_width_are_read(tmp_path: Path, kind: pa.DataType) -> None:
    path = written(tmp_path / "a.parquet", C1=pa.array([7, None] * 10, kind))
    (batch,) = list(reader_of(path, replace(CONFIG, heldout_share=0, shuffle=False), batch_size=20, epochs=1))
    assert ids_of(batch)[0].tolist() == [7, MISSING_ID] * 10


@pytest.mark.slow
@pytest.mark.parametrize("label", [pa.array([1, 0, None] + [0] * 17), pa.array([0.0, 1.0, 0.5] + [1.0] * 17)])
def test_a_label_that_is_neither_0_nor_1_is_a_malformed_row(tmp_path: Path, label: pa.Array) -> None:
    path = written(tmp_path / "a.parquet", label=label)
    with pytest.raises(DataError, match=r"a\.parquet: row 2 \(from 0\): column 'label' is neither 0 nor 1"):
        list(reader_of(path))
    lenient = reader_of(path, replace(CONFIG, max_bad_lines=1, heldout_share=0), epochs=1)
    assert sum(len(batch.labels) for batch in lenient) == 19
    assert lenient.skipped_lines == 1


@pytest.mark.parametrize("cut", [4, 100, -1, -8])
def test_a_parquet_file_that_is_cut_off_is_refused_by_name(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "a.parquet")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"a\.parquet: damaged Parquet data"):
        list(reader_of(path))


def test_damaged_pages_are_a_typed_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet")
    body = bytearray(path.read_bytes())
    body[4:2000] = bytes(1996)
    path.write_bytes(body)
    with pytest.raises(DataError, match=r"a\.parquet: damaged Parquet data"):
        list(reader_of(path))


def test_formats_are_not_mixed_within_a_folder(tmp_path: Path) -> None:
    (tmp_path / "b.tsv").write_bytes(lines_of(5))
    written(tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet is a Parquet file by its name, .*b\.tsv holds text"):
        reader_of(tmp_path)
    (tmp_path / "b.tsv").rename(tmp_path / "d.tsv")
    with pytest.raises(DataError, match=r"d\.tsv is no Parquet file by its name, .*c\.parquet holds Parquet"):
        reader_of(tmp_path)


def test_a_parquet_file_under_another_name_among_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(lines_of(5))
    written(tmp_path / "b")
    with pytest.raises(DataError, match=r"/b is a Parquet file among files of text"):
        list(reader_of(tmp_path))


def test_text_that_is_named_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(lines_of(5))
    with pytest.raises(DataError, match=r"a\.parquet is a Parquet file by its name"):
        reader_of(tmp_path)


def test_a_machine_without_pyarrow_is_told_what_to_install(folders: dict[str, Path], monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match="pyarrow is not installed") as caught:
        reader_of(folders["parquet"])
    assert "ett[parquet]" in caught.value.do


def test_a_file_that_went_away_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes((folders["parquet"] / "0.parquet").read_bytes())
    rows = criteo_rows(str(path))
    path.unlink()
    with pytest.raises(NotFound, match=r"a\.parquet is gone"):
        list(rows.windows(10, BEGINNING))


def test_an_empty_file_among_others_is_passed_over(tmp_path: Path) -> None:
    pq.write_table(table_of(20)[:0], tmp_path / "a.parquet")
    pq.write_table(table_of(20), tmp_path / "b.parquet")
    assert sum(len(batch.labels) for batch in reader_of(tmp_path, epochs=1)) > 10


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    groups=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    window_rows=st.integers(1, 70),
    begin=st.integers(0, 200),
)
def test_windows_of_any_row_groups_hold_every_row_in_order(
    tmp_path_factory: pytest.TempPathFactory, groups: list[int], window_rows: int, begin: int
) -> None:
    path = tmp_path_factory.mktemp("groups") / "a.parquet"
    with pq.ParquetWriter(path, table_of(1).schema) as writer:
        for first, rows in zip(np.cumsum([0, *groups[:-1]]).tolist(), groups, strict=True):
            writer.write_table(table_of(rows, first))
    total = sum(groups)
    start = Position(0, min(begin, total), min(begin, total), min(begin, total))
    rows = criteo_rows(str(path))
    found: list[int] = []
    for window in rows.windows(window_rows, start):
        columns, _ = rows.take(window, np.arange(window.num_rows))
        found += np.asarray(columns["I1"]).tolist()
    assert found == list(range(start.offset, total))
