"""An exported commit is a checkpoint folder of its own: complete, verified, restorable."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from checkpoint_world import holds, restored_world, saved_world

from ett.checkpoint.export import export_commit
from ett.checkpoint.local_store import LocalStore
from ett.errors import ConfigError, CorruptState, NoCheckpoint, NotFound, RestoreFailed


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    saved_world(tmp_path / "saved", 2, [1, 2])
    return tmp_path / "saved"


@pytest.mark.slow
@pytest.mark.parametrize(("step", "seed"), [(None, 2), (1, 1), (2, 2)])
def test_an_export_restores_without_its_source(saved: Path, tmp_path: Path, step: int | None, seed: int) -> None:
    exported = export_commit(LocalStore(saved), step, tmp_path / "out")
    shutil.rmtree(saved)
    assert (exported.step, exported.cursor, exported.fallback_from) == (seed, seed * 10, None)
    assert exported.num_files == sum(path.is_file() for path in (tmp_path / "out").rglob("*"))
    assert holds(restored_world(tmp_path / "out", 3), seed)


@pytest.mark.slow
def test_an_export_falls_back_as_a_restore_does(saved: Path, tmp_path: Path) -> None:
    newest = max(saved.glob("dense/*/*"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-100] + bytes(100))
    exported = export_commit(LocalStore(saved), None, tmp_path / "out")
    assert (exported.step, exported.fallback_from) == (1, 3)
    assert holds(restored_world(tmp_path / "out", 1), 1)
    with pytest.raises(CorruptState):
        export_commit(LocalStore(saved), 2, tmp_path / "other")
    assert not list((tmp_path / "other").glob("commits/*"))


def test_nothing_good_to_export_is_an_error(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="steps 1, 2"):
        export_commit(LocalStore(saved), 9, tmp_path / "out")
    for path in saved.glob("dense/*/*"):
        os.truncate(path, 5)
    with pytest.raises(RestoreFailed):
        export_commit(LocalStore(saved), None, tmp_path / "out")
    with pytest.raises(NoCheckpoint):
        export_commit(LocalStore(tmp_path / "empty"), None, tmp_path / "out")


def test_an_export_never_adds_to_a_folder_in_use(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    with pytest.raises(ConfigError, match="not an empty folder"):
        export_commit(LocalStore(saved), None, tmp_path / "out")


def test_a_destination_that_cannot_be_made_is_no_damage_of_the_checkpoints(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for to in (tmp_path / "file" / "x", Path("/proc/none/x")):
        with pytest.raises(NotFound, match="cannot be made"):
            export_commit(LocalStore(saved), None, to)
