from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.trainer.data.columns import Jagged
from ett.trainer.data.parquet_columns import fill_nulls_reference, integers, labels, lists_of_integers

NATIVE = "ett.trainer.data._nulls"
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.slow
@pytest.mark.skipif(find_spec(NATIVE) is None, reason="the extension is not built")
@given(st.lists(st.booleans(), max_size=300), st.integers(0, 70))
def test_native_null_filling_agrees_with_the_reference(is_valid: list[bool], offset: int) -> None:
    bits = np.packbits(np.concatenate([np.zeros(offset, bool), np.array(is_valid, bool)]), bitorder="little")
    native, reference = np.arange(len(is_valid)), np.arange(len(is_valid))
    import_module(NATIVE).fill_nulls(native, bits, offset, -7)
    fill_nulls_reference(reference, bits, offset, -7)
    np.testing.assert_array_equal(native, reference)
    assert native.tolist() == [n if valid else -7 for n, valid in enumerate(is_valid)]


@pytest.mark.skipif(find_spec(NATIVE) is None, reason="the extension is not built")
def test_native_null_filling_reads_no_bit_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="too few bits"):
        import_module(NATIVE).fill_nulls(np.arange(9), np.zeros(1, np.uint8), 0, 1)


@pytest.mark.slow
@given(values=st.lists(INT64 | st.none(), max_size=100), begin=st.integers(0, 100))
def test_nulls_become_the_value_given_for_them(values: list[int | None], begin: int) -> None:
    array = pa.array(values, pa.int64())[begin:]
    found = integers(null=5).convert(array)
    assert np.asarray(found).tolist() == [5 if value is None else value for value in values[begin:]]


def test_nulls_of_ids_without_a_value_for_them_are_refused_with_the_row() -> None:
    with pytest.raises(ValueError, match="1 nulls, the first in row 2"):
        integers(null=None).convert(pa.array([1, 2, None, 4]))


@pytest.mark.parametrize("values", [[1, 0, 1], [True, False, True], [1.0, 0.0, 1.0]])
def test_labels_of_every_kind_are_floats(values: list[object]) -> None:
    assert np.asarray(labels().convert(pa.array(values))).tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("values", [[1, None, 0], [1, 2, 0], [1.0, 0.5, 0.0], [1.0, float("nan"), 0.0]])
def test_what_is_no_label_is_marked(values: list[object]) -> None:
    found = np.asarray(labels().convert(pa.array(values)))
    assert np.isnan(found).tolist() == [False, True, False]


@pytest.mark.slow
@given(
    rows=st.lists(st.lists(INT64, max_size=6) | st.none(), max_size=30), is_large=st.booleans(), begin=st.integers(0, 9)
)
def test_lists_become_values_with_lengths(rows: list[list[int] | None], is_large: bool, begin: int) -> None:
    kind = pa.large_list(pa.int64()) if is_large else pa.list_(pa.int64())
    found = lists_of_integers().convert(pa.array(rows, kind)[begin:])
    assert isinstance(found, Jagged)
    kept = [row or [] for row in rows[begin:]]
    assert found.lengths.tolist() == [len(row) for row in kept]
    assert found.values.tolist() == [value for row in kept for value in row]


def test_nulls_within_a_list_are_refused() -> None:
    with pytest.raises(ValueError, match="1 nulls within lists"):
        lists_of_integers().convert(pa.array([[1, None], [2]]))
