"""What a Parquet column must hold: ids, counts, labels, or lists of ids; and what a null becomes.

| column | types | a null is |
|---|---|---|
| ids | any integers | the id given for it, or refused |
| counts | any integers | MISSING_COUNT, a feature of 0 |
| label | integers, booleans or floats that are 0 or 1 | a malformed row |
| list of ids | list or large_list of any integers | an empty list; a null within a list is refused |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ett.trainer.data.columns import Jagged
from ett.trainer.data.parquet_source import ColumnRule

if TYPE_CHECKING:
    import pyarrow as pa

MALFORMED_LABEL = np.float32("nan")


def integers(null: int | None) -> ColumnRule:
    """Return the rule of a column of integers of at most 64 bits, in which a null becomes `null`."""

    def convert(array: pa.Array) -> NDArray[np.int64]:
        if array.null_count:
            if null is None:
                raise ValueError(f"{array.null_count} nulls, the first in row {_first_null(array)} of a row group")
            array = array.cast("int64").fill_null(null)
        return _int64(array)

    expected = "integers of 64 bits" if null is not None else "integers of 64 bits, none of them null"
    return ColumnRule(_is_integer, expected, convert, lambda: np.empty(0, np.int64))


def labels() -> ColumnRule:
    """Return the rule of a column of labels; one that is neither 0 nor 1 becomes MALFORMED_LABEL."""

    def convert(array: pa.Array) -> NDArray[np.float32]:
        values = array.cast("float32").fill_null(float("nan")).to_numpy(zero_copy_only=False)
        found: NDArray[np.float32] = np.where((values == 0) | (values == 1), values, MALFORMED_LABEL)
        return found

    return ColumnRule(
        _is_label, "labels: integers, booleans or floats that are 0 or 1", convert, lambda: np.empty(0, np.float32)
    )


def lists_of_integers() -> ColumnRule:
    def convert(array: pa.Array) -> Jagged:
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        values = array.flatten()  # without what null lists hide
        if values.null_count:
            raise ValueError(f"{values.null_count} nulls within lists")
        return Jagged(_int64(values), lengths)

    def empty() -> Jagged:
        return Jagged(np.empty(0, np.int64), np.empty(0, np.int64))

    return ColumnRule(_is_list, "lists of integers of 64 bits, without nulls in them", convert, empty)


def _int64(array: pa.Array) -> NDArray[np.int64]:
    """Return the values, without a copy where they are int64. Raises: ValueError: one does not fit."""
    found: NDArray[np.int64] = array.cast("int64").to_numpy(zero_copy_only=False)
    return found


def _first_null(array: pa.Array) -> int:
    import pyarrow.compute as pc

    first: int = pc.index(pc.is_null(array), True).as_py()
    return first


def _is_integer(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind))


def _is_label(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool((types.is_list(kind) or types.is_large_list(kind)) and types.is_integer(kind.value_type))
