"""Save then restore is the identity: bytes, dtypes, optimizer, reader, for any new number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_world import holds, restored_world, saved_world


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_restore_has_every_bit_of_the_save(tmp_path: Path, before: int, after: int) -> None:
    saved_world(tmp_path, before, [1, 2])
    world = restored_world(tmp_path, after)
    assert holds(world, 2)
    assert {(position.step, position.cursor) for _, position in world} == {(2, 20)}


def test_resharding_there_and_back_keeps_the_digest(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [5])
    for world_size in (2, 3, 1):
        world = restored_world(tmp_path, world_size)
        assert holds(world, 5)


def test_a_fresh_folder_restores_nothing(tmp_path: Path) -> None:
    ((_, position),) = restored_world(tmp_path, 1)
    assert position is None
