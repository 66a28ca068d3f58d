from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.trainer.data.columns import Jagged, join_rows, take_rows

LISTS = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), min_size=1, max_size=12)


def jagged_of(rows: list[list[int]]) -> Jagged:
    values = np.array([value for row in rows for value in row], np.int64)
    return Jagged(values, np.array([len(row) for row in rows], np.int64))


def rows_of(column: object) -> list[list[int]]:
    assert isinstance(column, Jagged)
    parts = np.split(column.values, np.cumsum(column.lengths)[:-1]) if len(column) else []
    return [part.tolist() for part in parts]


@pytest.mark.slow
@given(LISTS, st.data())
def test_rows_are_taken_by_number(rows: list[list[int]], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20))
    index = np.array(wanted, np.int64)
    columns = take_rows({"a": jagged_of(rows), "b": np.arange(len(rows))}, index)
    assert rows_of(columns["a"]) == [rows[n] for n in wanted]
    assert np.asarray(columns["b"]).tolist() == wanted


@pytest.mark.slow
@given(LISTS, LISTS)
def test_parts_are_joined_in_their_order(first: list[list[int]], second: list[list[int]]) -> None:
    joined = join_rows([{"a": jagged_of(first)}, {"a": jagged_of(second)}])
    assert rows_of(joined["a"]) == first + second
