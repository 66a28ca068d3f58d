from __future__ import annotations

import gzip
import json
import logging
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from criteo_cases import ids_of, line_of, lines_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ett.errors import ConfigError, CorruptState, DataError
from ett.trainer.data.config import DataConfig
from ett.trainer.data.criteo import Batch, CriteoReader
from ett.trainer.data.criteo_lines import MISSING_ID
from ett.trainer.data.text_source import TextSource

ROWS = 230
CONFIG = DataConfig(window_rows=40, heldout_share=0.1)
SAMPLE = Path(__file__).parents[3].parent / "shared" / "data" / "criteo_kaggle_sample.tsv"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three files of ROWS rows in all, one of them packed; the last lacks its line feed."""
    path = tmp_path_factory.mktemp("criteo")
    (path / "a").write_bytes(lines_of(100))
    (path / "b.gz").write_bytes(gzip.compress(lines_of(50, first=100)))
    (path / "c").write_bytes(lines_of(80, first=150)[:-1])
    return str(path)


def reader_of(path: str, config: DataConfig = CONFIG, **given: Any) -> CriteoReader:
    return CriteoReader(config, path, **{"batch_size": 16, "seed": 3, "epochs": 2} | given)


def row_of(batch: Batch) -> list[int]:
    """Return the row numbers of a batch: `line_of` writes them into the first count."""
    rows: list[int] = np.rint(np.expm1(batch.dense[:, 0].astype(np.float64))).astype(int).tolist()
    return rows


def rows_of(batches: Iterator[Batch]) -> list[int]:
    return [row for batch in batches for row in row_of(batch)]


def same(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        a.global_size == b.global_size
        and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("labels", "dense"))
        and np.array_equal(ids_of(a), ids_of(b))
        for a, b in zip(left, right, strict=True)
    )


def test_an_epoch_holds_every_row_once_but_the_held_out_ones(folder: str) -> None:
    reader = reader_of(folder, epochs=1)
    trained, held = rows_of(iter(reader)), rows_of(reader.heldout_batches(16))
    assert sorted(trained + held) == list(range(ROWS))
    assert 5 < len(held) < 50
    assert reader.cursor == len(trained)


def test_held_out_rows_do_not_depend_on_seed_or_world(folder: str) -> None:
    held = rows_of(reader_of(folder).heldout_batches(16))
    assert held == sorted(held)
    other = [reader_of(folder, seed=9, rank=rank, world_size=2).heldout_batches(7) for rank in range(2)]
    assert sorted(row for batches in other for row in rows_of(batches)) == held


def test_every_rank_gets_as_many_held_out_batches_as_the_others(folder: str) -> None:
    # A lookup is collective: a rank that ended earlier would leave the others waiting.
    counts = {len(list(reader_of(folder, rank=rank, world_size=40).heldout_batches(7))) for rank in range(40)}
    assert len(counts) == 1


def test_without_a_held_out_share_every_row_is_trained_on(folder: str) -> None:
    reader = reader_of(folder, replace(CONFIG, heldout_share=0.0), epochs=1)
    assert list(reader.heldout_batches(16)) == []
    assert sorted(rows_of(iter(reader))) == list(range(ROWS))


def test_scoring_does_not_move_the_cursor(folder: str) -> None:
    reader = reader_of(folder)
    first = list(islice(reader, 3))
    state = reader.state_dict()
    list(reader.heldout_batches(8))
    assert reader.state_dict() == state
    assert same(first + list(reader), list(reader_of(folder)))


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 20])
def test_the_slices_of_all_ranks_make_up_the_same_global_batches(folder: str, world_size: int) -> None:
    whole = list(reader_of(folder))
    ranks = [list(reader_of(folder, rank=rank, world_size=world_size)) for rank in range(world_size)]
    for n, batch in enumerate(whole):
        slices = [rank[n] for rank in ranks]
        assert {part.global_size for part in slices} == {batch.global_size} == {len(batch.labels)}
        np.testing.assert_array_equal(np.concatenate([part.labels for part in slices]), batch.labels)
        np.testing.assert_array_equal(np.concatenate([part.dense for part in slices]), batch.dense)
        np.testing.assert_array_equal(np.concatenate([ids_of(part) for part in slices], axis=1), ids_of(batch))
    assert all(len(rank) == len(whole) for rank in ranks)


def test_only_the_last_batch_of_an_epoch_is_short(folder: str) -> None:
    sizes = [batch.global_size for batch in reader_of(folder, epochs=1)]
    assert set(sizes[:-1]) == {16}
    assert 0 < sizes[-1] <= 16


def test_each_epoch_and_seed_has_an_order_of_its_own(folder: str) -> None:
    rows = rows_of(iter(reader_of(folder)))
    first, second = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert sorted(first) == sorted(second)
    assert first != second
    assert first != rows_of(iter(reader_of(folder, seed=4, epochs=1)))
    assert rows == rows_of(iter(reader_of(folder)))


def test_without_shuffling_rows_keep_the_order_of_the_file(folder: str) -> None:
    rows = rows_of(iter(reader_of(folder, replace(CONFIG, shuffle=False), epochs=1)))
    assert rows == sorted(rows)


def test_rows_are_shuffled_within_their_window_only(folder: str) -> None:
    rows = rows_of(iter(reader_of(folder, replace(CONFIG, heldout_share=0.0), epochs=1)))
    assert sorted(rows[:40]) == list(range(40))
    assert rows[:40] != list(range(40))


@pytest.mark.slow
@settings(max_examples=40)
@given(
    consumed=st.integers(0, 30), batch_size=st.integers(1, 50), worlds=st.tuples(st.integers(1, 4), st.integers(1, 4))
)
def test_a_reader_restored_anywhere_in_another_world_yields_what_was_left(
    folder: str, consumed: int, batch_size: int, worlds: tuple[int, int]
) -> None:
    whole = list(reader_of(folder, batch_size=batch_size))
    before = reader_of(folder, batch_size=batch_size, rank=worlds[0] - 1, world_size=worlds[0])
    list(islice(before, consumed))
    state = json.loads(json.dumps(before.state_dict()))
    after = [reader_of(folder, batch_size=batch_size, rank=rank, world_size=worlds[1]) for rank in range(worlds[1])]
    for reader in after:
        reader.load_state_dict(state)
        assert reader.cursor == before.cursor == sum(batch.global_size for batch in whole[:consumed])
    left = [[row_of(batch) for batch in reader] for reader in after]
    assert [[row for part in parts for row in part] for parts in zip(*left, strict=True)] == [
        row_of(batch) for batch in whole[consumed:]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [16, 197])  # 197 training rows: the last batch short, and full
def test_a_restored_reader_is_equal_to_the_bit_at_every_boundary(folder: str, batch_size: int) -> None:
    whole = list(reader_of(folder, batch_size=batch_size, epochs=3))
    first = reader_of(folder, batch_size=batch_size, epochs=3)
    states = [first.state_dict(), *(first.state_dict() for _ in first)]
    assert len(states) == len(whole) + 1
    for consumed, state in enumerate(states):
        second = reader_of(folder, batch_size=batch_size, epochs=3)
        second.load_state_dict(json.loads(json.dumps(state)))
        assert same(list(second), whole[consumed:])


def test_state_does_not_depend_on_the_rank(folder: str) -> None:
    states = []
    for rank in range(3):
        reader = reader_of(folder, rank=rank, world_size=3)
        list(islice(reader, 9))
        states.append(reader.state_dict())
    assert states[0] == states[1] == states[2]


def test_a_restored_reader_parses_nothing_before_its_window(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(folder, epochs=1)
    list(islice(reader, 12))  # 192 of about 207 rows
    first_rows: list[int] = []
    windows = TextSource.windows

    def watched(self: TextSource, *args: Any) -> Iterator[Any]:
        for window in windows(self, *args):
            first_rows.append(window.start.first_row)
            yield window

    monkeypatch.setattr(TextSource, "windows", watched)
    restored = reader_of(folder, epochs=1)
    restored.load_state_dict(reader.state_dict())
    list(restored)
    assert first_rows == [190]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("train.seed", {"seed": 4}),
        ("data.window_rows", {"config": replace(CONFIG, window_rows=41)}),
        ("data.heldout_share", {"config": replace(CONFIG, heldout_share=0.2)}),
        ("data.shuffle", {"config": replace(CONFIG, shuffle=False)}),
    ],
)
def test_a_place_in_another_order_is_refused(folder: str, name: str, other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"saved with {name} ="):
        reader_of(folder, **other).load_state_dict(reader_of(folder).state_dict())


def test_a_place_in_a_file_of_another_size_is_refused_by_its_name(folder: str, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "c").write_bytes(lines_of(79, first=150))
    with pytest.raises(ConfigError, match=r"saved with \d+ bytes of data where .*/c now has \d+;"):
        reader_of(str(tmp_path)).load_state_dict(reader_of(folder).state_dict())


def test_a_place_in_fewer_files_is_refused(folder: str, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "d").write_bytes(lines_of(5))
    with pytest.raises(ConfigError, match=r"saved with 3 data files, now data\.path holds 4, the last .*/d;"):
        reader_of(str(tmp_path)).load_state_dict(reader_of(folder).state_dict())


def test_input_that_moved_as_a_whole_is_the_same_input(folder: str, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "moved")
    first, second = reader_of(folder), reader_of(str(tmp_path / "moved"))
    list(islice(first, 5))
    second.load_state_dict(first.state_dict())
    assert same(list(first), list(second))


def test_a_state_of_another_version_is_refused(folder: str) -> None:
    with pytest.raises(CorruptState, match="version"):
        reader_of(folder).load_state_dict(reader_of(folder).state_dict() | {"version": 99})


@pytest.fixture
def flawed(tmp_path: Path) -> str:
    """Two files of 60 rows with malformed lines 2 and 51 (of 60) in the second."""
    lines = [line_of(row) for row in range(60, 120)]
    lines[1] = lines[1].rsplit(b"\t", 2)[0]
    lines[50] = lines[50].replace(b"\t110\t", b"\tmany\t", 1)
    (tmp_path / "a.tsv").write_bytes(lines_of(60))
    (tmp_path / "b.tsv").write_bytes(b"\n".join(lines) + b"\n")
    return str(tmp_path)


def test_a_malformed_line_stops_the_job_with_file_line_and_fault(flawed: str) -> None:
    with pytest.raises(DataError, match=r"b\.tsv:2: 38 fields;") as caught:
        list(reader_of(flawed))
    assert caught.value.exit_code == 3
    assert "40 fields" in caught.value.expected
    assert "max_bad_lines" in caught.value.do


@pytest.mark.parametrize("window_rows", [10, 60])
def test_one_malformed_line_more_than_allowed_is_the_one_that_is_named(flawed: str, window_rows: int) -> None:
    with pytest.raises(DataError, match=r"b\.tsv:51: field 2 is 'many' \(1 malformed lines before it were skipped\)"):
        list(reader_of(flawed, replace(CONFIG, max_bad_lines=1, window_rows=window_rows)))


@pytest.mark.parametrize("last_batch", ["short", "full"])
def test_allowed_malformed_lines_are_counted_per_epoch(flawed: str, last_batch: str) -> None:
    config = replace(CONFIG, max_bad_lines=2, window_rows=10)
    num_rows = len(rows_of(iter(reader_of(flawed, config, epochs=1))))
    reader = reader_of(flawed, config, batch_size=num_rows if last_batch == "full" else num_rows - 1)
    rows = rows_of(iter(reader)) + rows_of(reader.heldout_batches(16)) * 2
    assert sorted(rows) == sorted([row for row in range(120) if row not in (61, 110)] * 2)
    assert reader.skipped_lines == 2


def test_a_skipped_line_is_logged_with_file_and_line_by_rank_0_only(
    flawed: str, caplog: pytest.LogCaptureFixture
) -> None:
    for rank in range(2):
        with caplog.at_level(logging.WARNING):
            list(reader_of(flawed, replace(CONFIG, max_bad_lines=2), epochs=1, rank=rank, world_size=2))
    told = [record.getMessage().rpartition("/")[2] for record in caplog.records]
    assert told == [
        "b.tsv:2: 38 fields; the line is skipped (data.max_bad_lines)",
        "b.tsv:51: field 2 is 'many'; the line is skipped (data.max_bad_lines)",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("window_rows", [10, 40])
@pytest.mark.parametrize("allowed", [1, 2])
def test_a_restored_reader_skips_and_stops_where_the_first_one_did(flawed: str, allowed: int, window_rows: int) -> None:
    config = replace(CONFIG, max_bad_lines=allowed, window_rows=window_rows)

    def rows_and_end(reader: CriteoReader) -> tuple[list[int], str]:
        rows: list[int] = []
        try:
            for batch in reader:
                rows += row_of(batch)
        except DataError as err:
            return rows, err.fact
        return rows, ""

    whole, end = rows_and_end(reader_of(flawed, config))
    for consumed in range(len(whole) // 16 + 1):
        first, second = reader_of(flawed, config), reader_of(flawed, config)
        begun = rows_of(islice(first, consumed))
        second.load_state_dict(first.state_dict())
        rest, second_end = rows_and_end(second)
        assert (begun + rest, second_end) == (whole, end)


def test_input_of_malformed_lines_only_is_refused_however_many_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"label\tI1\n" * 100)
    with pytest.raises(DataError, match=r"a\.tsv:1: 2 fields;"):
        list(reader_of(str(tmp_path / "a.tsv")))
    with pytest.raises(DataError, match=r"a\.tsv: no row to train on"):
        list(reader_of(str(tmp_path / "a.tsv"), replace(CONFIG, max_bad_lines=100)))


@pytest.mark.parametrize("text", [b"", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_input_without_rows_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.tsv").write_bytes(text)
    with pytest.raises(DataError, match=r"a\.tsv(: no row to train on|:1: 1 fields)"):
        list(reader_of(str(tmp_path / "a.tsv")))


def test_carriage_returns_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(lines_of(30))
    (tmp_path / "dos").write_bytes(b"\xef\xbb\xbf" + lines_of(30).replace(b"\n", b"\r\n"))
    plain, dos = (list(reader_of(str(tmp_path / name))) for name in ("plain", "dos"))
    assert same(plain, dos)


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ett-read")]


def test_a_reader_that_is_left_early_leaves_no_thread(folder: str) -> None:
    batches = iter(reader_of(folder))
    next(batches)
    assert reading_threads()
    batches.close()  # type: ignore[attr-defined]
    assert not reading_threads()


def test_a_loop_that_breaks_leaves_no_thread(folder: str) -> None:
    reader = reader_of(folder)
    for _ in reader:
        break
    for _ in reader.heldout_batches(4):
        break
    assert not reading_threads()


def test_a_reader_that_stopped_at_a_malformed_line_leaves_no_thread(flawed: str) -> None:
    with pytest.raises(DataError):
        list(reader_of(flawed))
    assert not reading_threads()


def test_an_error_of_the_reading_thread_rises_in_the_caller(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(lines_of(100))[:-20])
    with pytest.raises(DataError, match="damaged gzip data"):
        list(reader_of(str(tmp_path / "a.gz")))


def test_a_batch_of_no_sample_is_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match="batch_size is 0"):
        reader_of(folder, batch_size=0)


@pytest.mark.skipif(not SAMPLE.exists(), reason="the public sample is not beside the repository")
def test_the_public_sample_is_read_whole() -> None:
    config = DataConfig(window_rows=500)
    reader = CriteoReader(config, str(SAMPLE), batch_size=128, seed=1)
    batches = [*reader, *reader.heldout_batches(128)]
    labels = np.concatenate([batch.labels for batch in batches])
    ids = np.concatenate([ids_of(batch) for batch in batches], axis=1)
    assert len(labels) == 1999
    assert 0.15 < labels.mean() < 0.30
    assert [len(np.unique(column)) for column in ids[[0, 1, 8]]] == [79, 252, 2]
    assert 0.4 < np.mean(ids[18] == MISSING_ID) < 0.55
    assert all(np.isfinite(batch.dense).all() for batch in batches)


def test_another_file_of_the_same_size_is_not_resumed_on(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(lines_of(50))
    saved = reader_of(str(path)).state_dict()
    path.write_bytes(b"".join(reversed(lines_of(50).splitlines(keepends=True))))
    with pytest.raises(ConfigError, match="other content in"):
        reader_of(str(path)).load_state_dict(saved)
