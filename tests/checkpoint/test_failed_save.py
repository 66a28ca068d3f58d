"""A save that fails fails on every rank, with a typed error, changes nothing, and does not end training."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest
import torch
from checkpoint_world import (
    FaultStore,
    Meeting,
    Model,
    Rank,
    RecordingRun,
    ThreadRanks,
    holds,
    raise_first,
    restored_world,
    run_ranks,
    saved_world,
)

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.errors import AccessDenied, ConfigError, EttError, Unreachable


def break_store(rank: Rank, code: int) -> None:
    store = rank.checkpointer._place.store
    assert isinstance(store, LocalStore)
    folder = store.root
    store.__class__ = FaultStore
    FaultStore.__init__(store, folder, 1, OSError(code, "injected"), stays=True)  # type: ignore[arg-type]


def mend_store(rank: Rank) -> None:
    rank.checkpointer._place.store.__class__ = LocalStore


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "kind", "word"),
    [
        (errno.ENOSPC, Unreachable, "no space"),
        (errno.EACCES, AccessDenied, "permission"),
        (errno.EIO, Unreachable, "failed"),
    ],
)
@pytest.mark.parametrize("broken", [0, 1])
def test_one_ranks_failure_fails_the_save_on_all(
    tmp_path: Path, code: int, kind: type[EttError], word: str, broken: int
) -> None:
    def work(ranks: ThreadRanks) -> None:
        rank = Rank(tmp_path, ranks)
        rank.checkpointer.restore()
        rank.fill(1)
        rank.checkpointer.save(1, 10)
        if ranks.rank == broken:
            break_store(rank, code)
        rank.fill(2)
        with pytest.raises(kind, match=word) as raised:
            rank.checkpointer.save(2, 20)
        assert f"rank {broken}" in raised.value.fact
        assert str(tmp_path) in raised.value.fact

    raise_first(run_ranks(2, work))
    assert holds(restored_world(tmp_path, 2), 1)


def test_what_a_failed_save_wrote_is_removed(tmp_path: Path) -> None:
    saved_world(tmp_path, 2, [1])
    before = {path for path in tmp_path.rglob("*") if path.is_file()}

    def work(ranks: ThreadRanks) -> None:
        rank = Rank(tmp_path, ranks)
        rank.checkpointer.restore()
        if ranks.rank == 1:
            break_store(rank, errno.ENOSPC)
        with pytest.raises(Unreachable):
            rank.checkpointer.save(2, 20)

    raise_first(run_ranks(2, work))
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert [path.parent.name for path in new] == ["commits"]


def test_training_goes_on_after_a_failed_periodic_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)

    def work(ranks: ThreadRanks) -> None:
        rank = Rank(tmp_path, ranks, interval="1 steps", background=False)
        rank.checkpointer.restore()
        rank.fill(1)
        if ranks.rank == 1:
            break_store(rank, errno.ENOSPC)
        assert rank.checkpointer.step(1, 10) is None
        if ranks.rank == 1:
            mend_store(rank)
        assert rank.checkpointer.step(2, 20) is not None
        assert rank.run.kinds().count("ckpt_abandoned") == (1 if ranks.rank == 0 else 0)

    raise_first(run_ranks(2, work))
    assert restored_world(tmp_path, 1)[0][1].step == 2
    assert "no space" in caplog.text


def test_the_third_failure_in_a_row_is_raised(tmp_path: Path) -> None:
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)), interval="1 steps", background=False)
    rank.checkpointer.restore()
    break_store(rank, errno.ENOSPC)
    assert rank.checkpointer.step(1, 10) is None
    assert rank.checkpointer.step(2, 20) is None
    with pytest.raises(Unreachable, match="no space"):
        rank.checkpointer.step(3, 30)


@pytest.mark.slow
def test_a_save_in_between_forgives_the_failures_before(tmp_path: Path) -> None:
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)), interval="1 steps", background=False)
    rank.checkpointer.restore()
    for step in range(1, 10, 3):
        break_store(rank, errno.ENOSPC)
        assert rank.checkpointer.step(step, 0) is None
        assert rank.checkpointer.step(step + 1, 0) is None
        mend_store(rank)
        assert rank.checkpointer.step(step + 2, 0) is not None


def test_a_folder_without_rights_names_itself(tmp_path: Path) -> None:
    store = FaultStore(tmp_path / "closed", 1, PermissionError(errno.EACCES, "Permission denied"), stays=True)
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)), store=store)
    with pytest.raises(AccessDenied, match=str(tmp_path / "closed")) as raised:
        rank.checkpointer.restore()
    assert raised.value.exit_code == 5


def test_a_rank_with_other_tables_fails_the_save_by_name(tmp_path: Path) -> None:
    def work(ranks: ThreadRanks) -> None:
        model = Model(ranks.rank, 2)
        if ranks.rank == 1:
            model.items.name = "bags/others"
        Checkpointer(CheckpointConfig(uri=str(tmp_path)), model=model, run=RecordingRun(), ranks=ranks).save(1, 10)

    for result in run_ranks(2, work):
        assert isinstance(result, ConfigError)
        assert "rank 1 has other tables than rank 0" in result.fact
    assert CommitLog(LocalStore(tmp_path)).seqs() == [1]


@pytest.mark.parametrize("broken", [0, 1])
def test_a_table_that_shows_wrong_ids_on_one_rank_fails_the_save_on_all(tmp_path: Path, broken: int) -> None:
    def work(ranks: ThreadRanks) -> None:
        rank = Rank(tmp_path, ranks)
        rank.checkpointer.restore()
        rank.fill(1)
        if ranks.rank == broken:
            rank.model.users.begin_export = lambda: torch.tensor([3, 2])  # type: ignore[method-assign]
        with pytest.raises(ConfigError, match="do not ascend"):
            rank.checkpointer.save(1, 10)

    raise_first(run_ranks(2, work))
