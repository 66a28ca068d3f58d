"""Saves through a buffer that come to an end: uploads that are given up, jobs that stop, and death at any change."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from buffered_world import Remote, die, is_state, remote_step, save, started, wait_for_an_answer
from checkpoint_world import Rank, ThreadRanks, keeps_a_program, raise_first, run_ranks

from ett.checkpoint import buffered_tier as buffered_tier_module
from ett.checkpoint import uploader as uploader_module
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.errors import AccessDenied, CorruptState, Unreachable
from ett.raised import raised_by

pytestmark = pytest.mark.usefixtures("quick_uploads")


def damage_segment(rank: Rank, seq: int) -> None:
    """Flip a bit of a file of commit `seq` of this rank, after the save and before it is sent."""
    uploader = rank.checkpointer._tier.uploader  # type: ignore[union-attr]
    submit = uploader.submit

    def damage(commit: Commit) -> None:
        if commit.seq == seq:
            path = next(file.path for file in uploader.share(commit) if file.path.endswith(".seg"))
            data = bytearray((uploader._store.local.root / path).read_bytes())
            data[len(data) // 2] ^= 1
            (uploader._store.local.root / path).write_bytes(bytes(data))
        submit(commit)

    uploader.submit = damage  # type: ignore[method-assign]


def wait_for_uploads(rank: Rank) -> None:
    """Return when nothing is on its way; what failed is kept for the next save."""
    uploader = rank.checkpointer._tier.uploader  # type: ignore[union-attr]
    with uploader._changed:
        assert uploader._changed.wait_for(lambda: not uploader._pending, 60), "an upload waits for ever"


@pytest.mark.slow
@pytest.mark.parametrize("is_one_host", [True, False])
def test_a_commit_that_one_rank_gives_up_holds_up_none_after_it(
    remote: Remote, tmp_path: Path, is_one_host: bool
) -> None:
    def work(ranks: ThreadRanks) -> list[str]:
        buffer = tmp_path / ("ssd" if is_one_host else f"host{ranks.rank}")
        rank = Rank(remote.root, ranks, store=remote, buffer_dir=str(buffer))
        if ranks.rank == 1:
            damage_segment(rank, seq=3)
        rank.checkpointer.restore()
        failures = []
        for seed in (1, 2, 3, 4):
            try:
                save(rank, seed)
            except CorruptState as err:
                failures.append(f"{seed} {err.fact}")
            wait_for_uploads(rank)
            ranks.gather(None)
        rank.checkpointer.close()
        return failures

    results = run_ranks(2, work)
    raise_first(results)
    for failures in results:
        assert len(failures) == 1  # type: ignore[arg-type]
        assert "before it was sent" in failures[0]  # type: ignore[index]
        assert failures[0].startswith("3 rank ")  # type: ignore[index]
    known, _ = CommitLog(LocalStore(remote.root)).read_all()
    assert sorted(commit.step for commit in known.values() if not commit.is_fresh) == [1, 4]
    elsewhere = started(remote, tmp_path / "another host")
    assert is_state(elsewhere, 4)
    die(elsewhere)


@pytest.mark.slow
def test_a_note_that_cannot_be_left_is_told_at_the_next_save(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise AccessDenied("no", code="P003")

    monkeypatch.setattr(uploader_module, "leave_note", refuse)

    def work(ranks: ThreadRanks) -> None:
        rank = Rank(remote.root, ranks, store=remote, buffer_dir=str(tmp_path / f"host{ranks.rank}"))
        if ranks.rank == 1:
            damage_segment(rank, seq=3)
        rank.checkpointer.restore()
        save(rank, 1)
        save(rank, 2)
        if ranks.rank == 1:
            wait_for_uploads(rank)
        ranks.gather(None)
        with pytest.raises(CorruptState, match=r"rank 1: .* before it was sent"):
            save(rank, 3)
        save(rank, 4)
        rank.checkpointer.close()

    raise_first(run_ranks(2, work))
    assert remote_step(remote) == 4


def test_no_request_of_an_upload_keeps_a_program_that_ends(remote: Remote, tmp_path: Path) -> None:
    asking: set[threading.Thread] = set()
    rank = started(remote, tmp_path / "ssd")
    remote.before = lambda name: asking.add(threading.current_thread())
    save(rank, 1)
    rank.checkpointer.close()
    assert asking and not any(map(keeps_a_program, asking))


def test_close_sends_what_follows_a_commit_that_a_rank_gave_up_and_then_says_so(remote: Remote, tmp_path: Path) -> None:
    def work(ranks: ThreadRanks) -> None:
        rank = Rank(remote.root, ranks, store=remote, buffer_dir=str(tmp_path / "ssd"))
        if ranks.rank == 1:
            damage_segment(rank, seq=2)
        remote.gate.clear()
        rank.checkpointer.restore()
        save(rank, 1)
        rank.checkpointer._tier.before_save = lambda: None  # type: ignore[method-assign, union-attr]
        save(rank, 2)
        remote.gate.set()
        with pytest.raises(CorruptState, match="before it was sent"):
            rank.checkpointer.close()

    raise_first(run_ranks(2, work))
    assert remote_step(remote) == 2


def test_an_error_that_nobody_foresaw_ends_one_upload_not_all(remote: Remote, tmp_path: Path) -> None:
    rank = started(remote, tmp_path / "ssd")

    def taken(name: str) -> None:
        raise FileExistsError(name)

    remote.before = taken
    save(rank, 1)
    wait_for_uploads(rank)
    with pytest.raises(Unreachable, match="FileExistsError"):
        save(rank, 2)
    remote.before = lambda name: None
    save(rank, 3)
    rank.checkpointer.close()
    assert remote_step(remote) == 3


@pytest.mark.slow
def test_a_job_that_is_told_to_stop_leaves_the_rest_to_the_next_start(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store does not answer: neither what is on its way nor the request under way is waited for."""
    monkeypatch.setattr(uploader_module, "STOPPED_S", 0.01)
    monkeypatch.setattr(buffered_tier_module, "REQUEST_S", 0.01)
    rank = started(remote, tmp_path / "ssd")
    remote.gate.clear()
    save(rank, 1)
    save(rank, 2)
    rank.checkpointer.close(wait=False)
    said = [
        record.getMessage()
        for record in caplog.records
        if "the next start of the job on this host" in record.getMessage()
    ]
    assert len(said) == 1
    assert "the checkpoints of steps 1, 2 wait in " in said[0]
    remote.gate.set()
    die(rank)
    assert CommitLog(LocalStore(remote.root)).seqs() == [1]
    again = started(remote, tmp_path / "ssd")
    assert is_state(again, 2)
    again.checkpointer.close(wait=False)


@pytest.mark.slow
@pytest.mark.parametrize("has_answered", [False, True])
def test_a_job_that_is_told_to_stop_says_where_the_rest_goes_whether_a_request_has_failed_by_then_or_not(
    remote: Remote,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_answered: bool,
) -> None:
    monkeypatch.setattr(uploader_module, "STOPPED_S", 0.01)
    monkeypatch.setattr(buffered_tier_module, "REQUEST_S", 0.01)
    rank = started(remote, tmp_path / "ssd")
    if has_answered:
        remote.gone_from = 1
    else:
        remote.gate.clear()
    save(rank, 1)
    if has_answered:
        wait_for_an_answer(rank)
    rank.checkpointer.close(wait=False)
    remote.gate.set()
    (said,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("stopping: ")]
    assert f" for {remote.uri}; the next start of the job on this host sends them" in said
    assert said.endswith("; the last answer was: gone") == has_answered


def test_close_does_not_wait_for_a_request_that_the_store_never_answers(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffered_tier_module, "LAST_S", 0.01)
    monkeypatch.setattr(buffered_tier_module, "REQUEST_S", 0.01)
    rank = started(remote, tmp_path / "ssd")
    remote.gate.clear()
    save(rank, 1)
    failures: list[BaseException | None] = []
    closing = threading.Thread(target=lambda: failures.append(raised_by(rank.checkpointer.close)), daemon=True)
    closing.start()
    closing.join(60)
    has_ended = not closing.is_alive()
    remote.gate.set()
    assert has_ended, "close still waits for the store"
    assert isinstance(failures[0], Unreachable)
    assert "the next start of the job on this host sends it" in str(failures[0])
    die(rank)


@pytest.mark.slow
def test_death_at_any_change_of_the_remote_folder_leaves_a_commit_or_the_one_before(tmp_path: Path) -> None:
    """keep_last 1: the uploads' retention is among the changes."""
    found = {1: 0, 2: 0}
    fatal = 0
    while True:
        fatal += 1
        remote, ssd = Remote(tmp_path / f"remote{fatal}"), tmp_path / f"ssd{fatal}"
        rank = started(remote, ssd, keep_last=1)
        save(rank, 1)
        rank.checkpointer._tier.uploader.drain()  # type: ignore[union-attr]
        gone = threading.Event()
        remote.gone_from = remote.num_changes + fatal
        remote.before = lambda name, r=remote, g=gone: g.set() if r.num_changes + 1 >= r.gone_from else None  # type: ignore[misc]
        save(rank, 2)
        while rank.checkpointer._tier.uploader._pending and not gone.wait(0.001):  # type: ignore[union-attr]
            pass
        survived = not gone.is_set()
        die(rank)
        remote.gone_from, remote.before = 0, lambda name: None
        step = remote_step(remote)
        other = started(LocalStore(remote.root), tmp_path / f"other{fatal}")
        assert is_state(other, step), f"a mixture after change {fatal}"
        known, _ = CommitLog(LocalStore(remote.root)).read_all()
        live = {file.path for commit in known.values() for file in commit.stored_files()}
        assert {name for top in ("d", "m", "dense") for name in remote.list(top)} == live, f"strays after {fatal}"
        die(other)
        found[step] += 1
        if survived:
            break
    assert min(found.values()) > 0
    assert fatal > 8
