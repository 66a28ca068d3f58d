"""Two lives of one job: the older one can no longer commit, whatever it does and however late it wakes up."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest
from checkpoint_world import Meeting, Rank, ThreadRanks, holds, restored_world

from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog, line_of_history
from ett.checkpoint.local_store import LocalStore
from ett.errors import Conflict, NotFound, Unreachable


def solo(folder: Path, **config: int) -> Rank:
    return Rank(folder, ThreadRanks(0, 1, Meeting(1)), **config)


def started(folder: Path, resume: str = "auto") -> Rank:
    rank = solo(folder)
    rank.checkpointer.restore(resume)
    return rank


def save(rank: Rank, step: int) -> None:
    rank.fill(step)
    rank.checkpointer.save(step, step * 10)


@pytest.mark.slow
def test_a_zombie_is_refused_before_it_writes(tmp_path: Path) -> None:
    zombie = started(tmp_path)
    save(zombie, 1)
    save(started(tmp_path), 2)
    files = sorted(tmp_path.rglob("*.seg"))
    with pytest.raises(Conflict, match="another process"):
        save(zombie, 3)
    assert sorted(tmp_path.rglob("*.seg")) == files
    assert holds(restored_world(tmp_path, 1), 2)


@pytest.mark.slow
def test_a_zombie_that_wakes_just_before_its_commit_is_refused(tmp_path: Path) -> None:
    zombie = started(tmp_path)
    save(zombie, 1)

    def replaced(point: str, step: int) -> None:
        if point == "ckpt_before_commit":
            save(started(tmp_path), 2)

    zombie.run.hook = replaced
    with pytest.raises(Conflict, match="epoch 2"):
        save(zombie, 3)
    assert holds(restored_world(tmp_path, 1), 2)


@pytest.mark.slow
def test_a_zombie_cannot_commit_under_a_number_that_retention_has_freed(tmp_path: Path) -> None:
    """Between its last look and its commit a newer life opens, saves twice, and retires the record in its way."""
    zombie = started(tmp_path)
    save(zombie, 1)
    append = CommitLog.append

    def late(self: CommitLog, commit: Commit) -> Commit:
        if commit.step == 2:
            newer = solo(tmp_path, keep_last=1)
            newer.checkpointer.restore()
            for step in (5, 6):
                save(newer, step)
        return append(self, commit)

    with patch.object(CommitLog, "append", late), pytest.raises(Conflict) as raised:
        save(zombie, 2)
    assert raised.value.code == "L008"
    known, _ = CommitLog(LocalStore(tmp_path)).read_all()
    assert [commit.step for commit in line_of_history(known)] == [6]
    assert holds(restored_world(tmp_path, 1), 6)


@pytest.mark.slow
def test_a_commit_that_a_newer_life_went_on_from_at_once_is_a_success(tmp_path: Path) -> None:
    older = started(tmp_path)
    create = LocalStore.create

    def and_then(self: LocalStore, name: str, data: bytes) -> None:
        create(self, name, data)
        if name == "commits/0000000000000002.json":
            assert started(tmp_path).checkpointer is not None

    with patch.object(LocalStore, "create", and_then):
        save(older, 1)
    assert holds(restored_world(tmp_path, 1), 1)


@pytest.mark.slow
def test_a_commit_of_ones_own_that_the_store_did_not_answer_for_is_gone_on_from(tmp_path: Path) -> None:
    """The record is there, and the store is gone before it says so: the save fails, and the next one knows its own."""
    rank = started(tmp_path)
    save(rank, 1)
    create, read = LocalStore.create, LocalStore.read
    is_gone: list[bool] = []

    def create_and_go(self: LocalStore, name: str, data: bytes) -> None:
        create(self, name, data)
        if name.startswith("commits/"):
            is_gone.append(True)
            raise Unreachable("no answer")

    def read_nothing(self: LocalStore, name: str) -> bytes:
        if is_gone:
            raise Unreachable("no answer")
        return read(self, name)

    with patch.object(LocalStore, "create", create_and_go), patch.object(LocalStore, "read", read_nothing):
        with pytest.raises(Unreachable):
            save(rank, 2)
    assert is_gone
    save(rank, 3)
    known, _ = CommitLog(LocalStore(tmp_path)).read_all()
    assert [commit.step for commit in line_of_history(known)][:3] == [3, 2, 1]
    assert holds(restored_world(tmp_path, 1), 3)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["record", "files"])
def test_a_commit_that_a_newer_life_goes_back_to_is_not_retired_under_it(tmp_path: Path, at: str) -> None:
    """The older life is about to retire commit 1 when a newer one goes back to it."""
    older = solo(tmp_path, keep_last=1)
    older.checkpointer.restore()
    save(older, 1)
    delete = LocalStore.delete
    opened: list[bool] = []

    def after_the_newer_life(self: LocalStore, name: str) -> None:
        is_now = name == "commits/0000000000000002.json" if at == "record" else name.startswith("m/")
        if is_now and not opened:
            opened.append(True)
            with suppress(NotFound, Conflict):
                started(tmp_path, resume="1")
        delete(self, name)

    with patch.object(LocalStore, "delete", after_the_newer_life):
        save(older, 2)
    assert opened
    assert holds(restored_world(tmp_path, 1), 1 if at == "record" else 2)


@pytest.mark.slow
def test_going_back_to_a_commit_that_is_collected_meanwhile_is_refused(tmp_path: Path) -> None:
    """The older life retires commit 1 after the newer one has read it, and before that one opens its epoch."""
    older = solo(tmp_path, keep_last=1)
    older.checkpointer.restore()
    save(older, 1)
    append = CommitLog.append
    saved: list[bool] = []

    def late(self: CommitLog, commit: Commit) -> Commit:
        if commit.type == "epoch_open" and not saved:
            saved.append(True)
            save(older, 2)
        return append(self, commit)

    with patch.object(CommitLog, "append", late), pytest.raises(Conflict, match="step 1"):
        started(tmp_path, resume="1")
    assert holds(restored_world(tmp_path, 1), 2)


def test_a_fenced_save_is_raised_by_step_at_once(tmp_path: Path) -> None:
    zombie = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)), interval="1 steps", background=False)
    zombie.checkpointer.restore()
    started(tmp_path)
    with pytest.raises(Conflict):
        zombie.checkpointer.step(1, 10)


def test_a_fenced_save_beside_training_is_raised_at_the_next_boundary(tmp_path: Path) -> None:
    """No boundary asks the store anything: it may not answer."""
    zombie = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)), interval="1 steps")
    zombie.checkpointer.restore()
    started(tmp_path)
    assert zombie.checkpointer.step(1, 10) is None
    assert zombie.checkpointer.has_settled(60)
    with pytest.raises(Conflict):
        zombie.checkpointer.step(2, 20)


@pytest.mark.slow
def test_fresh_starts_fence_each_other_before_any_save(tmp_path: Path) -> None:
    older = started(tmp_path)
    newer = started(tmp_path)
    with pytest.raises(Conflict):
        save(older, 1)
    save(newer, 2)
    assert holds(restored_world(tmp_path, 1), 2)


@pytest.mark.slow
def test_going_back_abandons_what_lies_between(tmp_path: Path) -> None:
    rank = started(tmp_path)
    for step in (1, 2, 3):
        save(rank, step)
    assert holds(restored_world(tmp_path, 1, resume="1"), 1)
    assert holds(restored_world(tmp_path, 1), 1)
    known, _ = CommitLog(LocalStore(tmp_path)).read_all()
    assert [commit.step for commit in line_of_history(known)] == [1, 1, 1]


@pytest.mark.slow
def test_never_starts_over_and_keeps_the_old_commits_reachable(tmp_path: Path) -> None:
    save(started(tmp_path), 4)
    assert restored_world(tmp_path, 1, resume="never")[0][1] is None
    assert restored_world(tmp_path, 1)[0][1] is None
    assert holds(restored_world(tmp_path, 1, resume="4"), 4)


@pytest.mark.slow
def test_the_environment_says_what_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = started(tmp_path)
    for step in (1, 2):
        save(rank, step)
    monkeypatch.setenv("ETT_RESUME", "1")
    position = solo(tmp_path).checkpointer.restore()
    assert position is not None
    assert position.step == 1


def test_saving_over_an_earlier_run_without_restoring_is_refused(tmp_path: Path) -> None:
    save(started(tmp_path), 1)
    with pytest.raises(Conflict, match="earlier run"):
        save(solo(tmp_path), 2)


def test_a_process_that_only_saves_opens_its_epoch_by_itself(tmp_path: Path) -> None:
    save(solo(tmp_path), 1)
    assert holds(restored_world(tmp_path, 1), 1)


@pytest.mark.slow
def test_what_a_dead_life_left_unfinished_is_swept_by_the_next(tmp_path: Path) -> None:
    rank = started(tmp_path)
    save(rank, 1)
    for name in ("d/aa", "m", "dense"):
        orphan = tmp_path / name / f"e000001-{'0' * 32}" / "left.seg"
        orphan.parent.mkdir(parents=True)
        orphan.write_bytes(b"left behind")
    started(tmp_path)
    assert not list(tmp_path.rglob("left.seg"))
    assert holds(restored_world(tmp_path, 1), 1)


def test_what_a_newer_life_is_writing_is_not_swept(tmp_path: Path) -> None:
    save(started(tmp_path), 1)
    writing = tmp_path / "d" / "aa" / f"e000009-{'0' * 32}" / "t0000.seg"
    writing.parent.mkdir(parents=True)
    writing.write_bytes(b"not yet committed")
    started(tmp_path)
    assert writing.exists()
