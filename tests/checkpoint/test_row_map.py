"""A map marks what it was told, natively and in numpy alike, and keeps it as the table grows."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ett.checkpoint.policy import row_map
from ett.checkpoint.policy.row_map import RowMap


@pytest.fixture(params=["native", "numpy"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(row_map, "NATIVE", None)
    else:
        assert row_map.NATIVE is not None


@pytest.mark.parametrize("seed", range(5))
def test_a_map_is_a_set_of_slots(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_map, "_CHUNK_BYTES", 8)
    rng = random.Random(seed)
    marked, expected, size = RowMap(), set[int](), 0
    for _ in range(60):
        size += rng.choice([0, 0, 1, 63, 64, 200])
        marked.grow(size)
        some = [rng.randrange(size) for _ in range(rng.randrange(90))] if size else []
        other = RowMap(size)
        other.mark(np.array(some, np.int64))
        match rng.randrange(4):
            case 0:
                marked.clear(np.array(some, np.int64))
                expected -= set(some)
            case 1:
                marked.merge(other)
                expected |= set(some)
            case 2:
                marked = marked.union(other)
                expected |= set(some)
            case 3:
                marked.mark(np.array(some, np.int64))
                expected |= set(some)
        assert (marked.slots().tolist(), len(marked)) == (sorted(expected), len(expected))


@pytest.mark.parametrize("slot", [-1, 100])
def test_a_slot_beyond_the_table_is_refused(slot: int) -> None:
    with pytest.raises(AssertionError, match="beyond"):
        RowMap(100).mark(np.array([5, slot], np.int64))
