from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from ett.trainer.sparse.tiers.arena import Arena

PAGE_BYTES = 4096


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def test_rows_stay_and_new_ones_are_zero() -> None:
    arena = Arena(3, torch.int64)
    for num_rows in (1, 64, 65, 1000, 100_000):
        arena.reserve(num_rows)
        assert len(arena.rows) >= num_rows
        assert int(arena.rows[num_rows // 2].sum()) in (0, 3)
        arena.rows[:num_rows] = 1
    assert int(arena.rows.sum()) == 300_000


@pytest.mark.slow
def test_growth_holds_nothing_twice_and_takes_no_memory_ahead() -> None:
    arena = Arena(256, torch.float32)
    arena.reserve(100_000)
    arena.rows[:100_000] = 1.0
    gc.collect()
    before = resident_bytes()
    arena.reserve(8_000_000)  # 8 GB of address space
    arena.rows[7_999_999] = 2.0
    assert resident_bytes() - before < 20_000_000  # 100,000 rows are 102 MB
    assert arena.rows[99_999, 255] == 1.0


def test_who_still_looks_at_the_old_place_sees_the_old_rows() -> None:
    arena = Arena(2, torch.float32)
    arena.rows[5] = 7.0
    before = arena.rows
    arena.reserve(10_000)
    assert arena.rows[5].tolist() == before[5].tolist() == [7.0, 7.0]
    arena.rows[5] = 8.0
    assert before[5].tolist() == [7.0, 7.0]
