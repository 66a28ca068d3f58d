"""What a Parquet column must hold: ids, counts, labels, or lists of ids; and what a null becomes.

| column | types | a null is |
|---|---|---|
| ids | any integers | the id given for it, or refused |
| counts | any integers | MISSING_COUNT, a feature of 0 |
| label | integers, booleans or floats that are 0 or 1 | a malformed row |
| list of ids | list or large_list of any integers | an empty list; a null within a list is refused |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ett.native import native
from ett.trainer.data.columns import Jagged
from ett.trainer.data.parquet_source import ColumnRule

if TYPE_CHECKING:
    import pyarrow as pa

MALFORMED = math.nan  # a label that is none


def integers(null: int | None) -> ColumnRule:
    """Return the rule of a column of integers of at most 64 bits, in which a null becomes `null`."""

    def convert(array: pa.Array) -> NDArray[np.int64]:
        if array.null_count:
            if null is None:
                raise ValueError(f"{array.null_count} nulls, the first in row {_first_null(array)} of a row group")
            return _filled(array.cast("int64"), null)
        return _int64(array)

    expected = "integers of 64 bits" if null is not None else "integers of 64 bits, none of them null"
    return ColumnRule(_is_integer, expected, convert, lambda: np.empty(0, np.int64))


def labels() -> ColumnRule:
    """Return the rule of a column of labels; one that is neither 0 nor 1 becomes MALFORMED."""

    def convert(array: pa.Array) -> NDArray[np.float32]:
        array = array.cast("float32")
        values: NDArray[np.float32] = (array.fill_null(MALFORMED) if array.null_count else array).to_numpy()
        is_good = (values == 0) | (values == 1)
        return values if is_good.all() else np.where(is_good, values, np.float32(MALFORMED))

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


def _filled(array: pa.Array, null: int) -> NDArray[np.int64]:
    """Return int64 values with `null` for nulls; written into arrow's buffer where that is ours to write."""
    validity, buffer = array.buffers()
    if not buffer.is_mutable:
        filled: NDArray[np.int64] = array.fill_null(null).to_numpy()
        return filled
    values = np.frombuffer(buffer, np.int64)[array.offset : array.offset + len(array)]
    _fill_nulls(values, np.frombuffer(validity, np.uint8), array.offset, null)
    return values


def fill_nulls_reference(values: NDArray[np.int64], validity: NDArray[np.uint8], offset: int, null: int) -> None:
    """Write `null` over the values whose bit, from `offset` on, is 0: the definition of the native `fill_nulls`."""
    is_valid = np.unpackbits(validity, count=offset + len(values), bitorder="little")[offset:]
    values[np.flatnonzero(is_valid == 0)] = null


_built = native("ett.trainer.data._nulls")
_fill_nulls: Callable[[NDArray[np.int64], NDArray[np.uint8], int, int], None] = (
    _built.fill_nulls if _built else fill_nulls_reference
)


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
