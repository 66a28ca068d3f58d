"""Collections on real ranks: one process, gloo, and memory that the ranks of a host share give the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gloo_ranks import run_ranks_well, start_ranks
from wait import wait_until

pytestmark = pytest.mark.process


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_train_what_one_does_over_gloo_and_through_host_memory(tmp_path: Path, world_size: int) -> None:
    run_ranks_well("collections_over_gloo.py", world_size, tmp_path / "store", tmp_path)
    alone = dict(np.load(tmp_path / "alone.npz"))
    for rank in range(world_size):
        gloo, host = (dict(np.load(tmp_path / f"{name}{rank}.npz")) for name in ("gloo", "host"))
        assert np.array_equal(gloo.pop("large"), host.pop("large"))
        for name, rows in alone.items():
            assert np.array_equal(gloo[name], rows) and np.array_equal(host[name], rows), name


def test_a_killed_rank_is_named_and_leaves_no_memory_behind(tmp_path: Path) -> None:
    ranks = start_ranks("exchange_until_killed.py", 2, tmp_path / "store", tmp_path)
    pid = ranks[1].process.pid
    try:
        wait_until(lambda: ranks[1].out.read_text() == "exchanged\n", "an exchange")
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "/memfd:ett-exchange (deleted)" in maps  # a file without a name, which nobody has to delete
        assert not [line for line in maps.splitlines() if "/dev/shm" in line]
        ranks[1].process.kill()
        assert "LostPeer" in ranks[0].wait().out
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.wait()
