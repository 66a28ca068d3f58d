"""A quantised row is within half a step of what it was, and is stored as it is when it comes back."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ett.checkpoint.digest import ColumnGroup
from ett.checkpoint.quantised_rows import BITS, bits_of, first_unfit, quantise, restored, stored_row_bytes

Floats = NDArray[np.float32]
WIDTHS = (1, 7, 64)
KINDS = ("normal", "outliers", "far from zero", "a few ulps wide", "around a power of two", "any size", "any bits")


def rows_of(kind: str, width: int, num_rows: int = 400) -> Floats:
    rng = np.random.default_rng([KINDS.index(kind), width])
    shape = num_rows, width
    powers = 2.0 ** rng.integers(-20, 20, (num_rows, 1))
    made: dict[str, Any] = {
        "normal": rng.normal(size=shape),
        "outliers": rng.standard_cauchy(shape),
        "far from zero": 1000 + 1e-4 * rng.normal(size=shape),
        "a few ulps wide": powers * (1 + rng.integers(-20, 20, shape) * 2.0**-24),
        "around a power of two": powers * (1 + rng.integers(-300, 300, shape) * 2.0**-24),
        "any size": rng.normal(size=shape) * 10.0 ** rng.integers(-44, 38, (num_rows, 1)),
    }
    if kind in made:
        return np.asarray(made[kind], np.float32)
    drawn = rng.integers(0, 2**32, shape, np.uint32).view(np.float32)
    return np.where(np.isfinite(drawn), drawn, np.float32(0))


def once(rows: Floats, bits: int) -> Floats:
    stored = quantise(np.ascontiguousarray(rows).view(np.uint8), bits)
    back: Floats = restored(stored, rows.shape[1], bits).view(np.float32)
    return back


def lost(rows: Floats, back: Floats) -> NDArray[np.float64]:
    return back.astype(np.float64) - rows


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_element_in_8_bits_is_off_by_half_a_step_at_most(kind: str, width: int) -> None:
    """And by half a unit in the last place: what comes back is a float32."""
    rows = rows_of(kind, width)
    ends = rows.astype(np.float64)
    step = (ends.max(axis=1) - ends.min(axis=1)) / 255
    ulp = np.spacing(np.abs(rows).max(axis=1)).astype(np.float64)
    assert (np.abs(lost(rows, once(rows, 8))).max(axis=1) <= step / 2 * (1 + 1e-9) + ulp / 2).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_came_back_come_back_bit_for_bit(kind: str, width: int, bits: int) -> None:
    first = once(rows_of(kind, width), bits)
    assert once(first, bits).tobytes() == first.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_range_in_4_bits_loses_no_more_than_the_whole_one(kind: str) -> None:
    rows = rows_of(kind, 64)
    low, high = rows.min(axis=1, keepdims=True).astype(np.float64), rows.max(axis=1, keepdims=True).astype(np.float64)
    step = np.where(high > low, (high - low) / 15, 1)
    whole = np.rint((rows - low) / step) * step + low - rows
    theirs, ours = (np.sqrt((error**2).sum(axis=1)) for error in (whole, lost(rows, once(rows, 4))))
    ulp = np.spacing(np.abs(rows).max(axis=1)).astype(np.float64)
    assert (ours <= theirs * (1 + 1e-6) + 8 * ulp).all()


def test_the_range_in_4_bits_gains_by_leaving_outliers_out() -> None:
    rows = rows_of("normal", 64)
    low, high = rows.min(axis=1, keepdims=True), rows.max(axis=1, keepdims=True)
    whole = np.rint((rows - low) / (high - low) * 15) / 15 * (high - low) + low - rows
    assert (lost(rows, once(rows, 4)) ** 2).sum() < 0.9 * (whole.astype(np.float64) ** 2).sum()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("value", [0.0, -0.0, -3.3, 1e-45, 3.4e38])
def test_a_row_of_equal_elements_comes_back_bit_for_bit(value: float, bits: int) -> None:
    rows = np.full((3, 5), value, np.float32)
    assert once(rows, bits).tobytes() == rows.tobytes()


def test_a_row_lies_as_the_format_says() -> None:
    row = np.array([[-1.0, 0.0, 2.0]], np.float32)
    assert quantise(row.view(np.uint8), 8).tobytes() == struct.pack("<ff", -1, 2) + bytes([0, 85, 255])
    assert quantise(row.view(np.uint8), 4).tobytes() == struct.pack("<ff", -1, 2) + bytes([0 | 5 << 4, 15])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_the_first_row_that_is_not_finite_is_found(bad: float) -> None:
    rows = np.zeros((5000, 64), np.float32)
    assert first_unfit(rows.view(np.uint8)) is None
    rows[4321, 63] = rows[4400, 0] = bad
    assert first_unfit(rows.view(np.uint8)) == 4321


def test_only_float32_that_shrinks_is_quantised() -> None:
    wide, narrow = ColumnGroup("weight", "float32", 64), ColumnGroup("weight", "float32", 2)
    assert [bits_of(wide, bits) for bits in (0, 4, 8)] == [0, 4, 8]
    assert [stored_row_bytes(wide, bits) for bits in (0, 4, 8)] == [256, 40, 72]
    assert bits_of(narrow, 8) == 0
    assert bits_of(ColumnGroup("weight", "bfloat16", 64), 8) == 0
