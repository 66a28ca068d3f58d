from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ett.errors import DataError
from ett.trainer.data.batch_stream import BatchStream
from ett.trainer.data.columns import Columns
from ett.trainer.data.data_source import DataSource, Order, Share
from ett.trainer.data.position import Bookmark, Cursor, Position
from ett.trainer.data.row_source import Fault

few = settings(max_examples=40, deadline=None)


@dataclass(frozen=True)
class _Window:
    start: Position
    num_rows: int


class _NumberedRows:
    """Files of rows that are their numbers; notes which of them were taken."""

    columns = ("row",)
    reads_single_rows = True

    def __init__(self, file_rows: list[int], bad: frozenset[int] = frozenset()) -> None:
        self.files: Any = [Position(file) for file in range(len(file_rows))]
        self._file_rows, self._bad = file_rows, bad
        self.taken: list[int] = []

    def windows(self, num_rows: int, start: Position) -> Generator[_Window, None, None]:
        row = start.first_row
        for file in range(start.file, len(self._file_rows)):
            begin = start.offset if file == start.file else 0
            for offset in range(begin, self._file_rows[file], num_rows):
                size = min(num_rows, self._file_rows[file] - offset)
                yield _Window(Position(file, offset, offset, row), size)
                row += size

    def take(self, window: _Window, rows: NDArray[np.int64]) -> tuple[Columns, NDArray[np.int64]]:
        numbers = window.start.first_row + rows
        self.taken += numbers.tolist()
        return {"row": numbers}, np.isin(numbers, list(self._bad)).astype(np.int64)

    def states(self, window: _Window) -> NDArray[np.int64]:
        return np.isin(window.start.first_row + np.arange(window.num_rows), list(self._bad)).astype(np.int64)

    def empty(self) -> Columns:
        return {"row": np.empty(0, np.int64)}

    def fault(self, window: _Window, row: int) -> Fault:
        return Fault(f"row {window.start.first_row + row}", "bad", "good")


@dataclass(frozen=True)
class _Input:
    """An input and an order of it."""

    file_rows: list[int]
    order: Order
    batch_size: int
    epochs: int
    bad: frozenset[int] = frozenset()
    max_bad_rows: int = 0

    def source(self, **other: Any) -> DataSource[_Window]:
        rows = _NumberedRows(self.file_rows, self.bad)
        given = {"batch_size": self.batch_size, "epochs": self.epochs, "max_bad_rows": self.max_bad_rows} | other
        return DataSource(rows, self.order, **given)

    def batches(self, rank: int = 0, world: int = 1, **other: Any) -> list[list[int]]:
        source = self.source(**other)
        return [rows_of(source, share) for share in source.plan(Cursor.beginning(), rank, world)]


def rows_of(source: DataSource[_Window], share: Share[_Window]) -> list[int]:
    column = source.read(share)["row"]
    assert isinstance(column, np.ndarray)
    rows: list[int] = column.tolist()
    return rows


def orders() -> st.SearchStrategy[Order]:
    return st.builds(
        Order,
        seed=st.integers(0, 2**63 - 1),
        window_rows=st.integers(1, 30),
        lanes=st.integers(1, 6),
        shuffle=st.booleans(),
        heldout_share=st.sampled_from([0.0, 0.0, 0.2]),
    )


@st.composite
def inputs(draw: st.DrawFn) -> _Input:
    file_rows = draw(st.lists(st.integers(0, 60), min_size=1, max_size=3).filter(lambda rows: sum(rows) >= 15))
    bad = draw(st.frozensets(st.integers(0, sum(file_rows) - 1), max_size=4))
    is_lenient = draw(st.booleans())
    return _Input(
        file_rows=file_rows,
        order=draw(orders()),
        batch_size=draw(st.integers(1, 50)),
        epochs=draw(st.integers(1, 3)),
        bad=bad if is_lenient else frozenset(),
        max_bad_rows=len(bad) if is_lenient else 0,
    )


@pytest.mark.slow
@few
@given(inputs())
def test_an_epoch_holds_each_row_once_but_those_that_are_held_out_or_malformed(given_input: _Input) -> None:
    source = given_input.source(epochs=1)
    trained = [row for share in source.plan(Cursor.beginning(), 0, 1) for row in rows_of(source, share)]
    held = [row for share in source.plan_heldout(7, 0, 1) for row in rows_of(source, share)]
    assert sorted(trained + held) == sorted(set(range(sum(given_input.file_rows))) - given_input.bad)
    if not given_input.order.heldout_share:
        assert not held


@pytest.mark.slow
@few
@given(inputs(), st.integers(1, 9))
def test_slices_of_all_ranks_in_turn_are_the_global_batches_and_even(given_input: _Input, world: int) -> None:
    whole = given_input.batches()
    ranks = [given_input.batches(rank, world) for rank in range(world)]
    assert [[row for part in parts for row in part] for parts in zip(*ranks, strict=True)] == whole
    for parts in zip(*ranks, strict=True):
        sizes = [len(part) for part in parts]
        tolerance = 0 if given_input.order.lanes == 1 else min(2, sum(sizes) // world // 4)  # see lanes.py
        # Both cuts of a slice may move, towards each other in one and apart in another.
        assert max(sizes) - min(sizes) <= 1 + 4 * tolerance


@pytest.mark.slow
@few
@given(inputs(), st.data())
def test_training_resumed_at_any_batch_in_any_world_loses_and_repeats_nothing(
    given_input: _Input, data: st.DataObject
) -> None:
    whole = given_input.batches()
    consumed = data.draw(st.integers(0, len(whole)))
    worlds = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    source = given_input.source()
    shares = list(islice(source.plan(Cursor.beginning(), 0, worlds[0]), consumed))
    cursor = shares[-1].after if shares else Cursor.beginning()
    assert cursor.samples == sum(len(batch) for batch in whole[:consumed])
    rest = [
        [rows_of(source, share) for share in given_input.source().plan(cursor, rank, worlds[1])]
        for rank in range(worlds[1])
    ]
    assert [[row for part in parts for row in part] for parts in zip(*rest, strict=True)] == whole[consumed:]


@pytest.mark.slow
@few
@given(inputs(), st.data())
def test_the_number_of_consumed_samples_is_enough_to_go_on(given_input: _Input, data: st.DataObject) -> None:
    source = given_input.source()
    shares = list(source.plan(Cursor.beginning(), 0, 1))
    consumed = data.draw(st.integers(0, len(shares)))
    samples = shares[consumed - 1].after.samples if consumed else 0
    rest = [rows_of(source, share) for share in given_input.source().plan(Cursor(samples), 0, 1)]
    assert rest == given_input.batches()[consumed:]


@pytest.mark.slow
@few
@given(inputs(), st.data())
def test_a_cursor_between_batches_goes_on_with_the_next_sample(given_input: _Input, data: st.DataObject) -> None:
    one_by_one = [row for batch in given_input.batches(batch_size=1) for row in batch]
    samples = data.draw(st.integers(0, len(one_by_one)))
    rest = [rows_of(given_input.source(), share) for share in given_input.source().plan(Cursor(samples), 0, 1)]
    assert sorted(row for batch in rest for row in batch) == sorted(one_by_one[samples:])


@pytest.mark.slow
@few
@given(inputs(), st.integers(1, 50))
def test_what_is_consumed_at_a_cursor_does_not_depend_on_the_batch_size(given_input: _Input, batch_size: int) -> None:
    order = [row for batch in given_input.batches(batch_size=1, epochs=1) for row in batch]
    seen = 0
    for batch in given_input.batches(batch_size=batch_size, epochs=1):
        assert sorted(batch) == sorted(order[seen : seen + len(batch)])
        seen += len(batch)


@pytest.mark.slow
@few
@given(inputs())
def test_rows_of_an_epoch_stay_among_the_windows_of_their_lanes(given_input: _Input) -> None:
    order = given_input.order
    group_of, group = {}, 0
    windows = _NumberedRows(given_input.file_rows).windows(order.window_rows, Position())
    while together := list(islice(windows, order.lanes)):
        for window in together:
            group_of |= dict.fromkeys(range(window.start.first_row, window.start.first_row + window.num_rows), group)
        group += 1
    groups = [group_of[row] for batch in given_input.batches(batch_size=1, epochs=1) for row in batch]
    assert all(before <= after for before, after in pairwise(groups))


@pytest.mark.slow
@few
@given(inputs(), st.integers(1, 4), st.integers(0, 9))
def test_readers_and_depth_change_no_batch(given_input: _Input, readers: int, depth: int) -> None:
    stream = BatchStream(
        given_input.source(), lambda columns, size: (columns["row"], size), readers=readers, depth=depth
    )
    assert [np.asarray(rows).tolist() for rows, _ in stream] == given_input.batches()


def test_lanes_one_is_window_after_window() -> None:
    rows = [row for batch in _Input([90], Order(seed=5, window_rows=30), 7, 1).batches() for row in batch]
    assert [sorted(rows[n : n + 30]) for n in (0, 30, 60)] == [list(range(n, n + 30)) for n in (0, 30, 60)]
    assert rows != sorted(rows)


def test_every_batch_mixes_all_lanes_evenly() -> None:
    order = Order(seed=5, window_rows=100, lanes=4)
    for batch in _Input([400], order, 20, 1).batches():
        assert np.bincount(np.array(batch) // 100, minlength=4).tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_with_as_many_lanes_as_ranks_a_rank_takes_rows_of_its_own_windows_only(world: int) -> None:
    given_input = _Input([400], Order(seed=5, window_rows=50, lanes=world), 8 * world, 1)
    for rank in range(world):
        taken = {row // 50 % world for batch in given_input.batches(rank, world) for row in batch}
        assert taken == {rank}


@pytest.mark.slow
@few
@given(inputs(), st.integers(1, 5))
def test_ranks_together_take_each_row_once_where_no_malformed_row_is_allowed(given_input: _Input, world: int) -> None:
    strict = _Input(given_input.file_rows, given_input.order, given_input.batch_size, 1)
    taken = []
    for rank in range(world):
        rows = _NumberedRows(strict.file_rows)
        source = DataSource(rows, strict.order, batch_size=strict.batch_size)
        for share in source.plan(Cursor.beginning(), rank, world):
            source.read(share)
        taken += rows.taken
    assert sorted(taken) == list(range(sum(strict.file_rows)))  # held-out ones too: they are checked while one trains


@pytest.mark.slow
@few
@given(inputs(), st.integers(1, 4), st.data())
def test_a_malformed_row_is_met_by_a_rank_wherever_it_is(given_input: _Input, world: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, sum(given_input.file_rows) - 1))
    flawed = _Input(given_input.file_rows, given_input.order, given_input.batch_size, 1, bad=frozenset([bad]))
    facts = []
    for rank in range(world):
        try:
            flawed.batches(rank, world)
        except DataError as err:
            facts.append(err.fact)
    assert facts == [f"row {bad}: bad"]


def test_the_place_of_a_cursor_is_found_in_any_epoch() -> None:
    source = _Input([10, 5], Order(seed=1, window_rows=4), 6, 3).source()
    places = [source.locate(samples).bookmark for samples in (0, 5, 14, 15, 20, 45)]
    assert places == [
        Bookmark(0),
        Bookmark(0, Position(0, 4, 4, 4), 1),
        Bookmark(0, Position(1, 4, 4, 14), 0),
        Bookmark(1),
        Bookmark(1, Position(0, 4, 4, 4), 1),
        Bookmark(3),
    ]
