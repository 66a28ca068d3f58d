from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ett.cli import run
from ett.trainer.auc import auc
from ett.trainer.data import sequence_generator
from ett.trainer.data.sequence import SequenceConfig, SequenceReader
from ett.trainer.data.sequence_generator import history_lengths, sequence_tables

SEED = 4


def table_of(rows: int, seed: int = SEED, max_length: int = 21_000) -> pa.Table:
    return pa.concat_tables(list(sequence_tables(rows, seed, max_length=max_length))).combine_chunks()


@pytest.mark.parametrize("group_rows", [1, 7, 60])
def test_rows_do_not_depend_on_the_size_of_groups(group_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = table_of(60)
    monkeypatch.setattr(sequence_generator, "_GROUP_ROWS", group_rows)
    assert table_of(60).equals(whole)


def test_more_rows_begin_with_fewer() -> None:
    assert table_of(60).slice(0, 20).combine_chunks().equals(table_of(20))


def test_another_seed_is_another_population() -> None:
    first, second = (set(table_of(50, seed)["item_id"].to_pylist()) for seed in (1, 2))
    assert not first & second


def test_lengths_are_very_uneven_and_clipped() -> None:
    lengths = history_lengths(np.arange(200_000, dtype=np.uint64), SEED, 21_000)
    assert lengths.min() >= 1
    assert lengths.max() == 21_000
    assert 130 < np.median(lengths) < 170
    assert 0.0003 < np.mean(lengths == 21_000) < 0.003
    assert lengths.mean() > 3 * np.median(lengths)
    assert history_lengths(np.arange(5000, dtype=np.uint64), SEED, 30).max() == 30


def test_a_user_has_one_history() -> None:
    table = table_of(3000, max_length=50)
    histories: dict[int, list[int]] = {}
    for user, history in zip(table["user_id"].to_pylist(), table["history"].to_pylist(), strict=True):
        assert histories.setdefault(user, history) == history
    assert 2500 < len(histories) < 3000


@pytest.mark.slow
def test_items_are_popular_by_a_zipf_law() -> None:
    values = table_of(2000)["history"].combine_chunks().flatten().to_numpy()
    _, counts = np.unique(values, return_counts=True)
    assert counts.max() > 0.03 * len(values)
    assert (values >= 0).all()
    assert len(counts) > 50_000


@pytest.mark.slow
def test_labels_are_told_by_item_with_history_not_by_either() -> None:
    rows = 20_000
    numbers = np.arange(rows, dtype=np.uint64)
    user = (sequence_generator.draw_uniform(numbers, SEED, sequence_generator._USER, 0) * 1e6).astype(np.uint64)
    lengths = history_lengths(user, SEED, 200)
    history = sequence_generator._items(
        sequence_generator._history_keys(user, lengths), SEED, sequence_generator._HISTORY
    )
    item = sequence_generator._items(numbers, SEED, sequence_generator._ITEM)
    label = np.array(table_of(rows, max_length=200)["label"], dtype=np.int64)
    assert 0.2 < label.mean() < 0.4
    rate = sequence_generator._click_rate(item, history, lengths, SEED)
    taste = np.add.reduceat(sequence_generator._taste(history, SEED), np.cumsum(lengths) - lengths)
    assert auc(rate, label) > 0.7
    assert abs(auc(taste, label) - 0.5) < 0.1


def test_generate_writes_what_the_reader_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.parquet"
    assert run(["data", "generate", "sequence", "--rows", "300", "--out", str(out), "--max-length", "40"]) == 0
    assert "a.parquet: 300 rows" in capsys.readouterr().out
    assert pq.ParquetFile(out).metadata.num_rows == 300
    reader = SequenceReader(SequenceConfig(), str(out), batch_size=64, seed=1)
    batches = [*reader, *reader.heldout_batches(64)]
    assert sum(batch.global_size for batch in batches) == 300
    assert max(int(batch.features["history"].lengths().max()) for batch in batches) == 40
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_generate_of_sequences_is_repeatable_and_not_packed_twice(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run(["data", "generate", "sequence", "--rows", "30", "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert run(["data", "generate", "sequence", "--rows", "30", "--out", str(tmp_path / "c"), "--gzip"]) == 2
