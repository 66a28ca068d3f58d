"""Old commits are deleted, never the last good one, and a file that a kept commit needs never is."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from checkpoint_world import Meeting, Rank, ThreadRanks, holds, restored_world, saved_world

from ett.checkpoint import retention_thread
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.retention import retire
from ett.checkpoint.verify import damage


def steps(folder: Path) -> list[int]:
    known, _ = CommitLog(LocalStore(folder)).read_all()
    return [commit.step for commit in known.values()]


def live_files(folder: Path) -> set[str]:
    known, _ = CommitLog(LocalStore(folder)).read_all()
    return {file.path for commit in known.values() for file in commit.stored_files()}


def data_files(folder: Path) -> set[str]:
    tops = ("d", "m", "dense")
    return {str(path.relative_to(folder)) for top in tops for path in (folder / top).rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("keep_last", [1, 2, 3])
def test_the_newest_commits_are_kept_with_exactly_their_files(tmp_path: Path, keep_last: int) -> None:
    saved_world(tmp_path, 2, [1, 2, 3, 4, 5], keep_last=keep_last)
    assert steps(tmp_path) == [1, 2, 3, 4, 5][-keep_last:]
    assert data_files(tmp_path) == live_files(tmp_path)
    assert holds(restored_world(tmp_path, 1), 5)


@pytest.mark.slow
def test_a_restored_commit_counts_once_however_often_it_is_restored(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1, 2], keep_last=2)
    for _ in range(3):
        assert holds(restored_world(tmp_path, 1, keep_last=2), 2)
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)), keep_last=2)
    rank.checkpointer.restore()
    rank.fill(3)
    rank.checkpointer.save(3, 30)
    assert set(steps(tmp_path)) == {2, 3}
    assert data_files(tmp_path) == live_files(tmp_path)


class SlowToDelete(LocalStore):
    """Deletes nothing before it may."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.may_delete, self.deleted = threading.Event(), list[str]()
        self.failure: BaseException | None = None

    def delete(self, name: str) -> None:
        assert self.may_delete.wait(300)
        if self.failure is not None:
            raise self.failure
        super().delete(name)
        self.deleted.append(name)


def saving(store: LocalStore, steps: list[int]) -> Rank:
    rank = Rank(store.root, ThreadRanks(0, 1, Meeting(1)), store=store, retires_beside=True, keep_last=1)
    rank.checkpointer.restore()
    for step in steps:
        rank.fill(step)
        rank.checkpointer.save(step, 10 * step)
    return rank


def test_training_does_not_wait_for_what_is_deleted(tmp_path: Path) -> None:
    store = SlowToDelete(tmp_path)
    rank = saving(store, [1, 2, 3, 4])
    assert steps(tmp_path) == [0, 1, 2, 3, 4]
    store.may_delete.set()
    rank.checkpointer.close()
    assert steps(tmp_path) == [4]
    assert data_files(tmp_path) == live_files(tmp_path)


def test_records_go_first_then_fragments_then_data(tmp_path: Path) -> None:
    store = SlowToDelete(tmp_path)
    store.may_delete.set()
    saving(store, [1, 2]).checkpointer.close()
    tops = [name.split("/")[0] for name in store.deleted]
    order = [top for at, top in enumerate(tops) if at == 0 or tops[at - 1] != top]
    assert order[:2] == ["commits", "m"]
    assert set(order[2:]) == {"d", "dense"}
    assert len(order) == len(set(order))


@pytest.mark.slow
@pytest.mark.parametrize("failure", [OSError("gone"), KeyError("a mistake of ours")])
def test_what_cannot_be_deleted_never_fails_training(
    tmp_path: Path, failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    store = SlowToDelete(tmp_path)
    store.failure = failure
    store.may_delete.set()
    rank = saving(store, [1, 2])
    rank.checkpointer.close()
    assert steps(tmp_path) == [0, 1, 2]
    assert "could not remove old commits" in caplog.text
    store.failure = None
    saving(store, [3]).checkpointer.close()
    assert steps(tmp_path) == [3]


def test_a_job_that_ends_does_not_wait_for_ever_for_a_store_that_does_not_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention_thread, "CLOSE_S", 0.01)
    store = SlowToDelete(tmp_path)
    rank = saving(store, [1, 2])
    rank.checkpointer.close()
    assert "not deleted within" in caplog.text
    store.may_delete.set()
    monkeypatch.setattr(retention_thread, "CLOSE_S", 30)
    rank.checkpointer.close()
    assert steps(tmp_path) == [2]


def test_nothing_is_deleted_while_the_newest_is_torn(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1, 2, 3], keep_last=3)
    known, _ = CommitLog(LocalStore(tmp_path)).read_all()
    newest = known[max(known)]
    os.truncate(tmp_path / newest.tables[0].files[0].stored.path, 10)
    before = data_files(tmp_path)
    assert retire(LocalStore(tmp_path), 1) == []
    assert data_files(tmp_path) == before


def test_nothing_is_deleted_while_a_record_is_damaged(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1, 2, 3], keep_last=3)
    next(iter(sorted((tmp_path / "commits").iterdir()))).write_bytes(b"{}")
    before = data_files(tmp_path)
    assert retire(LocalStore(tmp_path), 1) == []
    assert data_files(tmp_path) == before


@pytest.mark.slow
def test_abandoned_commits_go_with_the_next_save(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1, 2, 3])
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)))
    rank.checkpointer.restore("1")
    rank.fill(7)
    rank.checkpointer.save(7, 70)
    assert sorted(set(steps(tmp_path))) == [1, 7]
    known, _ = CommitLog(LocalStore(tmp_path)).read_all()
    assert all(damage(LocalStore(tmp_path), commit, "load") is None for commit in known.values())


def test_a_folder_that_is_not_there_yet_keeps_nothing(tmp_path: Path) -> None:
    assert retire(LocalStore(tmp_path / "not yet"), 1) == []
