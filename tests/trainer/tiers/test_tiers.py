from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ett.checkpoint.table import StateSpec
from ett.errors import ConfigError
from ett.trainer.config import SparseConfig
from ett.trainer.sparse.tiers.table_storage import HostStorage
from ett.trainer.sparse.tiers.tiers import RankPlace, open_tiers

STATES = (StateSpec(name="momentum1", dtype="float32", width=1),)


def ssd(**more: Any) -> SparseConfig:
    return SparseConfig(tier="ssd", cache_rows=8, **more)


def place(job_dir: Path, rank: int = 0, world_size: int = 1) -> RankPlace:
    return RankPlace(job_dir=job_dir, rank=rank, world_size=world_size)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def left_by_a_killed_life(config: SparseConfig, where: RankPlace) -> Any:
    """Return what keeps the life from ending in order; its files are there until somebody removes them."""
    life = open_tiers(config, where)
    storage = life.__enter__().storage("t", 4, STATES)
    storage.fill(np.arange(100), torch.zeros(100, 4), {"momentum1": torch.zeros(100, 1)})
    return life, storage


def test_the_host_tier_needs_no_place(tmp_path: Path) -> None:
    with open_tiers(SparseConfig(), place(tmp_path / "nowhere")) as tiers:
        assert isinstance(tiers.storage("t", 4, STATES), HostStorage)


@pytest.mark.slow
def test_a_life_that_ends_leaves_no_file(tmp_path: Path) -> None:
    with open_tiers(ssd(), place(tmp_path)) as tiers:
        storage = tiers.storage("t", 4, STATES)
        storage.fill(np.arange(100), torch.zeros(100, 4), {"momentum1": torch.zeros(100, 1)})
        assert len(files(tmp_path)) == 2
    assert files(tmp_path) == []


def test_a_new_life_removes_what_its_rank_left_and_what_ranks_that_are_no_more_left(tmp_path: Path) -> None:
    kept = [left_by_a_killed_life(ssd(), place(tmp_path, rank, 3)) for rank in range(3)]
    assert len(files(tmp_path)) == 6
    with open_tiers(ssd(), place(tmp_path, 0, 2)):
        assert len(files(tmp_path)) == 2
        assert all(path.parents[1].name.startswith("1-") for path in files(tmp_path))
    del kept


def test_jobs_that_share_a_disk_leave_each_other_alone(tmp_path: Path) -> None:
    config = ssd(tier_dir=str(tmp_path / "disk"))
    kept = left_by_a_killed_life(config, place(tmp_path / "a" / "job"))
    with open_tiers(config, place(tmp_path / "b" / "job")):
        assert len(files(tmp_path)) == 2
    del kept


def test_a_place_that_is_none_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        with open_tiers(ssd(tier_dir=str(tmp_path / "file")), place(tmp_path)):
            pass
    assert str(tmp_path / "file") in caught.value.fact


def test_state_has_a_cache_of_its_own_size(tmp_path: Path) -> None:
    def initial(ids: np.ndarray) -> torch.Tensor:
        return torch.zeros(len(ids), 4)

    with open_tiers(ssd(state_cache_rows=3), place(tmp_path)) as tiers:
        storage = tiers.storage("t", 4, STATES)
        with pytest.raises(Exception, match=r"a batch uses 4 rows at once, and the cache of 3 holds 0") as caught:
            with storage.opened(np.arange(4), initial):
                pass
        assert "raise sparse.state_cache_rows" in str(caught.value)
        assert len(storage) == 0
        storage.read(np.arange(8), torch.empty(8, 4))
        with storage.opened(np.arange(3), initial) as rows:
            assert [len(rows.weights), len(rows.states["momentum1"])] == [8, 3]
        assert len(storage) == 3
