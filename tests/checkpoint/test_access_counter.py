"""What an access counter foretells is what its rows do, and its histogram is that of its bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ett.checkpoint.policy.access_counter import DOWN, NUM_VALUES, UP, AccessCounter

SLOTS = np.arange(4000)


def counter_of(num_slots: int = 4000, shared_cells: int = 0) -> AccessCounter:
    counter = AccessCounter(shared_cells)
    counter.grow(num_slots)
    counter.inserted(num_slots)
    return counter


def test_bytes_rise_with_updates_and_fall_without_them() -> None:
    value, levels = 0, []
    for _ in range(40):
        value = int(UP[value])
        levels.append(value >> 3)
    assert levels == sorted(levels)
    assert value == NUM_VALUES - 1
    for _ in range(40):
        assert (DOWN[value] >> 3) <= value >> 3
        value = int(DOWN[value])
    assert value == 0


def test_the_lowest_bits_are_the_last_three_intervals() -> None:
    value = 0
    for is_updated in (True, True, False, True):
        value = int((UP if is_updated else DOWN)[value])
    assert value & 7 == 0b101


@pytest.mark.parametrize("shared_cells", [0, 10_000])
def test_rows_that_are_alike_are_foretold_alike(shared_cells: int) -> None:
    """All are updated with probability 0.1 (a shared cell is four rows); odds are of thousands of rows."""
    rng = np.random.default_rng(1)
    counter = counter_of(40_000, shared_cells)
    for _ in range(60):
        counter.end_interval(np.flatnonzero(rng.random(40_000) < 0.1))
    rows = counter.population()
    assert rows.rows.sum() == pytest.approx(40_000)
    common = rows.rows > 1000
    assert rows.p[common] == pytest.approx(0.1, abs=0.05)
    assert (rows.p @ rows.rows) / 40_000 == pytest.approx(0.1, abs=0.01)


def test_a_burst_is_foretold_from_the_last_intervals() -> None:
    """Half of the rows alternate 12 busy intervals with 36 quiet ones, in all phases; the others never change."""
    counter = counter_of()
    phase = np.arange(4000) % 48
    for interval in range(192):
        is_busy = (phase + interval) % 48 < 12
        counter.end_interval(SLOTS[is_busy & (SLOTS < 2000)])
    odds = counter.odds()[counter.values(SLOTS)]
    since_start = (phase + 192) % 48
    assert odds[(SLOTS < 2000) & (since_start > 0) & (since_start < 12)].min() > 0.7
    assert odds[(SLOTS < 2000) & (since_start > 14)].max() < 0.1
    assert odds[SLOTS >= 2000].max() < 0.05


@pytest.mark.parametrize("seed", range(4))
def test_the_histogram_is_that_of_the_rows_that_exist(seed: int) -> None:
    rng = random.Random(seed)
    counter, known, size = AccessCounter(), set[int](), 0
    for _ in range(60):
        size += rng.randrange(20)
        counter.grow(size)
        new = set(rng.sample(range(size), rng.randrange(size + 1))) - known if size else set[int]()
        counter.inserted(len(new))
        known |= new
        gone = np.array(rng.sample(sorted(known), len(known) // 5), np.int64)
        counter.evicted(gone)
        known -= set(gone.tolist())
        counter.end_interval(np.array([slot for slot in sorted(known) if rng.random() < 0.5], np.int64))
        values = counter.values(np.array(sorted(known), np.int64))
        assert counter.population().rows.tolist() == np.bincount(values, minlength=NUM_VALUES).tolist()


def test_a_new_row_in_a_used_slot_begins_anew() -> None:
    counter = counter_of(3)
    for _ in range(9):
        counter.end_interval(np.array([0, 1]))
    counter.evicted(np.array([1]))
    counter.inserted(1)
    assert counter.values(np.arange(3)).tolist() == [int(counter.values(np.array([0]))[0]), 0, 0]
