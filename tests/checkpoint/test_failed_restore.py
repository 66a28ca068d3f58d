"""A restore succeeds on every rank or on none: one rank's trouble is everybody's."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import Rank, ThreadRanks, holds, raise_first, run_ranks, saved_world

from ett.checkpoint import dense_reader, restore
from ett.checkpoint.local_store import LocalReader, LocalStore
from ett.errors import AccessDenied
from ett.os_failure import os_failure


class FaultyReader(LocalReader):
    """A disk that reports an error for some bytes."""

    def read_into(self, offset: int, target: memoryview) -> int:
        raise OSError(errno.EIO, "Input/output error")


class FaultyStore(LocalStore):
    """Reading a file of the step refuses, or reports an error of the disk."""

    def __init__(self, root: Path, uuid: str, code: int) -> None:
        super().__init__(root)
        self.uuid, self.code = uuid, code

    @contextmanager
    def open(self, name: str) -> Iterator[LocalReader]:
        with super().open(name) as reader:
            if self.uuid in name and self.code == errno.EACCES:
                raise os_failure(
                    OSError(errno.EACCES, "Permission denied"), self.root / name, elsewhere="checkpoint.uri"
                )
            if self.uuid in name:
                reader.__class__ = FaultyReader
            yield reader


def uuid_of_newest(folder: Path) -> str:
    return max(folder.glob("dense/*"), key=lambda path: path.stat().st_mtime_ns).name


@pytest.mark.slow
@pytest.mark.parametrize("broken", [0, 1])
def test_all_ranks_fall_back_when_one_cannot_read_its_part(tmp_path: Path, broken: int) -> None:
    saved_world(tmp_path, 2, [1, 2])
    uuid = uuid_of_newest(tmp_path)

    def work(ranks: ThreadRanks) -> tuple[Rank, object]:
        store = FaultyStore(tmp_path, uuid, errno.EIO) if ranks.rank == broken else LocalStore(tmp_path)
        rank = Rank(tmp_path, ranks, store=store)
        position = rank.checkpointer.restore()
        assert position is not None
        assert (position.step, position.fallback_from) == (1, 3)
        assert rank.run.said[-1][1]["fallback_from"] == "3"
        return rank, position

    results = run_ranks(2, work)
    raise_first(results)
    assert holds(results, 1)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("broken", [0, 1])
def test_missing_rights_are_no_reason_to_fall_back(tmp_path: Path, broken: int) -> None:
    saved_world(tmp_path, 2, [1, 2])
    uuid = uuid_of_newest(tmp_path)

    def work(ranks: ThreadRanks) -> None:
        store = FaultyStore(tmp_path, uuid, errno.EACCES) if ranks.rank == broken else LocalStore(tmp_path)
        with pytest.raises(AccessDenied, match=f"rank {broken}"):
            Rank(tmp_path, ranks, store=store).checkpointer.restore()

    raise_first(run_ranks(2, work))


def test_ctrl_c_while_tables_are_read_ends_the_dense_read_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_world(tmp_path, 1, [1])
    asked: list[bool] = []

    def read_runs(store: Any, stored: Any, runs: Any, buffers: Any, is_broken_off: Callable[[], bool]) -> None:
        while not is_broken_off():  # a large file, piece by piece
            continue
        asked.append(True)

    def interrupted(*parts: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dense_reader, "read_runs", read_runs)
    monkeypatch.setattr(restore, "read_tables", interrupted)
    with pytest.raises(KeyboardInterrupt):
        raise_first(run_ranks(1, lambda ranks: Rank(tmp_path, ranks).checkpointer.restore()))
    assert asked
