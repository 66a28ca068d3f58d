"""Whatever instant a process dies at, a restore gives the last commit or the one before, bit for bit."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from checkpoint_world import (
    FaultStore,
    Killed,
    Rank,
    ThreadRanks,
    holds,
    raise_first,
    restored_world,
    run_ranks,
    saved_world,
)

from ett.checkpoint.commit import commit_name
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.errors import EttError, Unreachable

POINTS = ("ckpt_before_write", "ckpt_after_shard_write", "ckpt_before_commit", "ckpt_after_commit")


@pytest.fixture(scope="module")
def two_commits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    saved_world(folder, 2, [1, 2])
    return folder


def train_on(folder: Path, fail_at: int, error: BaseException, **config: int) -> FaultStore:
    """Restore on two ranks, then save step 3 while rank 0's store fails at an operation of the save."""
    stores: list[FaultStore] = []

    def work(ranks: ThreadRanks) -> None:
        rank = Rank(folder, ranks, **config)
        rank.checkpointer.restore()
        if ranks.rank == 0:
            # The faults belong to the save: what restoring does is covered by its own tests.
            rank.checkpointer._place.store.__class__ = FaultStore
            store = rank.checkpointer._place.store
            assert isinstance(store, FaultStore)
            FaultStore.__init__(store, folder, fail_at, error)
            stores.append(store)
        rank.fill(3)
        rank.checkpointer.save(3, 30)

    results = run_ranks(2, work)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, Killed | EttError | RuntimeError):
            raise result
    return stores[0]


def strays(folder: Path) -> list[str]:
    """Return every file that no commit needs."""
    known, _ = CommitLog(LocalStore(folder)).read_all()
    needed = {file.path for commit in known.values() for file in commit.stored_files()} | {"FORMAT.json"}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return sorted(found - needed - {commit_name(seq) for seq in known})


def num_operations(folder: Path, scratch: Path, **config: int) -> int:
    shutil.copytree(folder, scratch)
    return train_on(scratch, 10**9, Killed(), **config).num_operations


@pytest.mark.parametrize(
    "keep_last", [pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.campaign)]
)
def test_death_at_any_operation_of_a_save_loses_at_most_that_save(
    two_commits: Path, tmp_path: Path, keep_last: int
) -> None:
    """With keep_last 1 the save also deletes the two older commits, so that retention's operations are among these."""
    found = {2: 0, 3: 0}
    total = num_operations(two_commits, tmp_path / "dry", keep_last=keep_last)
    for fail_at in range(1, total + 4):  # some saves take an operation more: threads write side by side
        folder = tmp_path / str(fail_at)
        shutil.copytree(two_commits, folder)
        train_on(folder, fail_at, Killed(), keep_last=keep_last)
        world = restored_world(folder, 1)
        step = world[0][1].step
        assert holds(world, step), f"a mixture after operation {fail_at} of {total}"
        assert strays(folder) == [], f"left behind by a death at operation {fail_at} of {total}"
        assert world[0][1].fallback_from is None
        found[step] += 1
    assert total > 50
    assert min(found.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_death_at_a_fault_point_loses_at_most_that_save(two_commits: Path, tmp_path: Path, point: str) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(two_commits, folder)

    def die(at: str, step: int) -> None:
        if at == point:
            raise Killed

    def work(ranks: ThreadRanks) -> None:
        rank = Rank(folder, ranks)
        rank.checkpointer.restore()
        rank.fill(3)
        rank.run.hook = die if ranks.rank == 0 else rank.run.hook
        rank.checkpointer.save(3, 30)

    assert any(isinstance(result, Killed) for result in run_ranks(2, work))
    assert holds(restored_world(folder, 2), 3 if point == "ckpt_after_commit" else 2)


@pytest.mark.slow
def test_an_error_at_any_operation_of_a_save_is_raised_everywhere_or_harmless(
    two_commits: Path, tmp_path: Path
) -> None:
    total = num_operations(two_commits, tmp_path / "dry")
    outcomes: set[str] = set()
    for fail_at in range(1, total + 1):
        folder = tmp_path / str(fail_at)
        shutil.copytree(two_commits, folder)

        code = errno.ENOSPC if fail_at % 2 else errno.EIO

        def work(ranks: ThreadRanks, fail_at: int = fail_at, folder: Path = folder, code: int = code) -> str:
            store = LocalStore(folder)
            rank = Rank(folder, ranks, store=store)
            rank.checkpointer.restore()
            if ranks.rank == 0:
                store.__class__ = FaultStore
                FaultStore.__init__(store, folder, fail_at, OSError(code, "injected"))  # type: ignore[arg-type]
            rank.fill(3)
            try:
                rank.checkpointer.save(3, 30)
            except Unreachable:
                return "failed"
            return "saved"

        results = run_ranks(2, work)
        raise_first(results)
        assert len(set(results)) == 1, f"the ranks disagree after operation {fail_at}: {results}"
        outcomes.add(results[0])
        assert holds(restored_world(folder, 2), 3 if results[0] == "saved" else 2)
    assert outcomes == {"saved", "failed"}


@pytest.mark.slow
def test_death_at_any_operation_of_a_restore_loses_nothing(two_commits: Path, tmp_path: Path) -> None:
    fail_at, survived = 0, False
    while not survived:
        fail_at += 1
        folder = tmp_path / str(fail_at)
        shutil.copytree(two_commits, folder)

        def work(ranks: ThreadRanks, fail_at: int = fail_at, folder: Path = folder) -> None:
            Rank(folder, ranks, store=FaultStore(folder, fail_at, Killed())).checkpointer.restore()

        (died,) = run_ranks(1, work)
        assert died is None or isinstance(died, Killed)
        survived = died is None
        assert holds(restored_world(folder, 2), 2)
        assert strays(folder) == []
    assert fail_at > 5
