from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gloo_ranks import run_ranks_well

pytestmark = pytest.mark.process


def run_ranks(world_size: int, folder: Path) -> list[dict[str, np.ndarray]]:
    folder.mkdir()
    run_ranks_well("exchange_over_gloo.py", world_size, folder / "store", folder)
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [2, 3])
def test_tables_trained_over_gloo_equal_those_of_one_rank(tmp_path: Path, world_size: int) -> None:
    by_rank = run_ranks(world_size, tmp_path / "ranks")
    alone = dict(np.load(tmp_path / "ranks" / "alone.npz"))
    for rank in by_rank:
        assert all(np.array_equal(rank[name], alone[name]) for name in alone)


@pytest.mark.parametrize("world_size", [3, 4])
def test_sums_have_the_same_bits_on_all_ranks_at_all_times_in_all_runs(tmp_path: Path, world_size: int) -> None:
    first, second = (run_ranks(world_size, tmp_path / name) for name in ("first", "second"))
    bits = {values.tobytes() for rank in first + second for values in (rank["first"], rank["again"])}
    assert len(bits) == 1
