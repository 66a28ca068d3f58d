"""Saves through a buffer: on the disk at once, in the remote folder behind training, in order, after a restart too."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import Meeting, Rank, ThreadRanks, holds, raise_first, run_ranks

from ett.checkpoint import buffered_tier as buffered_tier_module
from ett.checkpoint import uploader as uploader_module
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog, line_of_history
from ett.checkpoint.local_store import LocalStore
from ett.errors import AccessDenied, Conflict, CorruptState, Unreachable


class Remote(LocalStore):
    """A remote folder whose uploads wait at a gate, and which can be gone from its n-th change on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = threading.Event()
        self.gate.set()
        self.num_changes, self.gone_from = 0, 0
        self.before: Callable[[str], None] = lambda name: None

    def put_file(self, name: str, path: Path, digest: str) -> None:
        assert self.gate.wait(300)
        self._change(name)
        super().put_file(name, path, digest)

    @contextmanager
    def create_stream(self, name: str) -> Iterator[Any]:
        self._change(name)
        with super().create_stream(name) as file:
            yield file

    def delete(self, name: str) -> None:
        self._change(name)
        super().delete(name)

    def _change(self, name: str) -> None:
        self.before(name)
        self.num_changes += 1
        if self.gone_from and self.num_changes >= self.gone_from:
            raise Unreachable("gone")


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploader_module, "LONGEST_WAIT_S", 0.001)
    monkeypatch.setattr(uploader_module, "POLL_S", 0.001)


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path / "remote")


def started(remote: LocalStore, buffer: Path, **config: Any) -> Rank:
    rank = Rank(remote.root, ThreadRanks(0, 1, Meeting(1)), store=remote, buffer_dir=str(buffer), **config)
    rank.position = rank.checkpointer.restore()  # type: ignore[attr-defined]
    return rank


def save(rank: Rank, seed: int) -> None:
    rank.fill(seed)
    rank.checkpointer.save(seed, seed * 10)


def die(rank: Rank) -> None:
    """End a life without a word: nothing of it runs any more."""
    assert rank.checkpointer._tier is not None
    rank.checkpointer._tier.uploader.close()


def wait_for_an_answer(rank: Rank) -> None:
    """Return when a request of the upload has failed."""
    uploader, pause = rank.checkpointer._tier.uploader, threading.Event()  # type: ignore[union-attr]
    assert any(uploader._trouble or pause.wait(0.001) for _ in range(60_000)), "no request has failed"


def is_state(rank: Rank, seed: int) -> bool:
    return holds([(rank, None)], seed)


def remote_step(remote: LocalStore) -> int:
    known, damaged = CommitLog(LocalStore(remote.root)).read_all()
    assert not damaged
    return line_of_history(known)[0].step


def files(folder: Path) -> set[str]:
    return {path.name for top in ("d", "m", "dense") for path in folder.rglob(f"{top}/**/*") if path.is_file()}


def test_a_save_is_local_at_once_and_remote_when_it_has_arrived(remote: Remote, tmp_path: Path) -> None:
    rank = started(remote, tmp_path / "ssd")
    remote.gate.clear()
    save(rank, 1)
    assert [fields["tier"] for kind, fields in rank.run.said if kind == "committed"] == ["local"]
    assert CommitLog(LocalStore(remote.root)).seqs() == [1]
    remote.gate.set()
    rank.checkpointer.close()
    said = [kind for kind in rank.run.kinds() if kind in ("ckpt_begin", "committed", "ckpt_upload")]
    assert said == ["ckpt_begin", "committed", "ckpt_upload", "committed"]
    assert rank.run.said[-1][1]["tier"] == "remote"
    assert rank.run.said[-1][1]["ckpt_id"] == rank.run.said[-2][1]["id"]
    elsewhere = started(remote, tmp_path / "another host")
    assert is_state(elsewhere, 1)
    die(elsewhere)


def test_a_repeated_upload_leaves_the_generators_of_training_alone(remote: Remote, tmp_path: Path) -> None:
    rank = started(remote, tmp_path / "ssd")
    failures: list[str] = []

    def fail_once(name: str) -> None:
        if not failures:
            failures.append(name)
            raise Unreachable("for a moment")

    remote.before = fail_once
    before = random.getstate()
    save(rank, 1)
    rank.checkpointer.close()
    assert failures
    assert random.getstate() == before


def test_what_has_arrived_is_recorded_at_the_next_step(remote: Remote, tmp_path: Path) -> None:
    rank = started(remote, tmp_path / "ssd", interval="1000 steps")
    save(rank, 1)
    assert rank.checkpointer._tier is not None
    rank.checkpointer._tier.uploader.drain()
    rank.checkpointer.step(2, 20)
    assert rank.run.kinds()[-2:] == ["ckpt_upload", "committed"]
    die(rank)


@pytest.mark.slow
def test_a_restart_on_the_host_goes_on_from_the_buffer_and_sends_it(remote: Remote, tmp_path: Path) -> None:
    first = started(remote, tmp_path / "ssd")
    save(first, 1)
    first.checkpointer._tier.uploader.drain()  # type: ignore[union-attr]
    remote.gone_from = remote.num_changes + 1
    save(first, 2)
    save(first, 3)
    die(first)
    remote.gone_from = 0
    second = started(remote, tmp_path / "ssd")
    assert is_state(second, 3)
    assert second.position.fallback_from is None  # type: ignore[attr-defined]
    second.checkpointer.close()
    assert remote_step(remote) == 3
    third = started(remote, tmp_path / "another host")
    assert is_state(third, 3)
    save(third, 4)
    third.checkpointer.close()
    assert remote_step(remote) == 4


@pytest.mark.slow
def test_a_restart_without_an_upload_loses_nothing_the_second_time_either(remote: Remote, tmp_path: Path) -> None:
    rank = started(remote, tmp_path / "ssd")
    remote.gate.clear()
    save(rank, 1)
    for _ in range(3):
        remote.gone_from, _ = 10**9, remote.gate.set()
        remote.before = lambda name: (_ for _ in ()).throw(Unreachable("no uploads")) if name[0] in "dm" else None
        die(rank)
        rank = started(remote, tmp_path / "ssd")
        assert is_state(rank, 1)
    remote.before = lambda name: None
    rank.checkpointer.close()
    assert remote_step(remote) == 1


@pytest.mark.slow
def test_a_restart_on_another_host_takes_what_had_arrived_and_fences_the_uploads(
    remote: Remote, tmp_path: Path
) -> None:
    old = started(remote, tmp_path / "ssd")
    save(old, 1)
    old.checkpointer._tier.uploader.drain()  # type: ignore[union-attr]
    remote.gate.clear()
    save(old, 2)
    new = started(LocalStore(remote.root), tmp_path / "another host")
    assert is_state(new, 1)
    remote.gate.set()
    with pytest.raises(Conflict) as raised:
        old.checkpointer.close()
    assert raised.value.code == "L008"
    with pytest.raises(Conflict):
        save(old, 3)
    save(new, 5)
    new.checkpointer.close()
    assert remote_step(remote) == 5


@pytest.mark.slow
def test_a_buffer_that_another_host_has_gone_past_is_not_history(remote: Remote, tmp_path: Path) -> None:
    """Host A dies with commits that were not sent, host B goes on from before them; then the job is on A again."""
    first = started(remote, tmp_path / "a")
    save(first, 1)
    first.checkpointer._tier.uploader.drain()  # type: ignore[union-attr]
    remote.gone_from = remote.num_changes + 1
    for seed in (2, 3, 4):
        save(first, seed)
    die(first)
    remote.gone_from = 0
    second = started(remote, tmp_path / "b")
    assert is_state(second, 1)
    save(second, 7)
    second.checkpointer.close()
    third = started(remote, tmp_path / "a")
    assert is_state(third, 7)
    die(third)


@pytest.mark.slow
def test_two_hosts_that_died_opening_the_same_epoch_are_told_apart(remote: Remote, tmp_path: Path) -> None:
    """Host A dies between its buffer's record and the remote one; host B then takes the same number of epoch."""
    first = started(remote, tmp_path / "a")
    save(first, 1)
    first.checkpointer._tier.uploader.drain()  # type: ignore[union-attr]
    remote.gone_from = remote.num_changes + 1
    save(first, 2)
    die(first)
    with pytest.raises(Unreachable):
        started(remote, tmp_path / "a")
    remote.gone_from = 0
    second = started(remote, tmp_path / "b")
    assert is_state(second, 1)
    assert second.checkpointer._epoch == replace(second.checkpointer._epoch, epoch=2)  # type: ignore[type-var]
    third = started(remote, tmp_path / "a")
    assert is_state(third, 1)
    die(third)


def test_a_death_while_an_epoch_is_opened_loses_nothing(remote: Remote, tmp_path: Path) -> None:
    first = started(remote, tmp_path / "a")
    remote.gone_from = remote.num_changes + 1
    save(first, 1)
    die(first)
    for _ in range(2):
        with pytest.raises(Unreachable):
            started(remote, tmp_path / "a")
    remote.gone_from = 0
    again = started(remote, tmp_path / "a")
    assert is_state(again, 1)
    again.checkpointer.close()
    assert remote_step(remote) == 1


def test_a_full_buffer_holds_the_save_until_there_is_room(remote: Remote, tmp_path: Path) -> None:
    rank = started(remote, tmp_path / "ssd", buffer_bytes=1)
    order: list[str] = []
    remote.before = lambda name: order.append(name.partition("/")[0])
    rank.run.hook = lambda point, step: order.append(f"{point} {step}")
    remote.gate.clear()
    save(rank, 1)
    opener = threading.Thread(target=remote.gate.set)
    opener.start()
    save(rank, 2)
    opener.join()
    assert order.index("commits") < order.index("ckpt_before_write 2")
    rank.checkpointer.close()


def test_a_store_that_never_takes_anything_is_reported_not_waited_for_for_ever(remote: Remote, tmp_path: Path) -> None:
    rank = started(remote, tmp_path / "ssd", buffer_bytes=1, buffer_wait_s=0.05)
    remote.gone_from = 1
    save(rank, 1)
    wait_for_an_answer(rank)
    with pytest.raises(Unreachable, match=r"steps 1 wait in .*; the last answer was: ") as raised:
        save(rank, 2)
    assert (raised.value.code, raised.value.expected) == ("S005", "an upload that ends within 0.05 s")
    assert rank.run.kinds().count("ckpt_begin") == 1, "the second save has taken nothing"
    die(rank)
    remote.gone_from = 0
    assert is_state(started(remote, tmp_path / "ssd"), 1)


@pytest.mark.slow
def test_the_buffer_keeps_the_newest_uploaded_commit_only(remote: Remote, tmp_path: Path) -> None:
    rank = started(remote, tmp_path / "ssd")
    for seed in (1, 2, 3):
        save(rank, seed)
        rank.checkpointer._tier.uploader.drain()  # type: ignore[union-attr]
    save(rank, 4)
    rank.checkpointer._tier.uploader.drain()  # type: ignore[union-attr]
    tier = rank.checkpointer._tier
    assert tier is not None
    known, _ = CommitLog(tier.local).read_all()
    assert sorted(commit.step for commit in known.values()) == [3, 4]
    listed = {Path(file.path).name for commit in known.values() for file in commit.stored_files()}
    assert files(tmp_path / "ssd") == listed
    die(rank)


def test_a_damaged_copy_in_the_buffer_is_replaced_by_the_uploaded_one(remote: Remote, tmp_path: Path) -> None:
    rank = started(remote, tmp_path / "ssd")
    save(rank, 1)
    save(rank, 2)
    rank.checkpointer.close()
    for path in (tmp_path / "ssd").rglob("*.seg"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    again = started(remote, tmp_path / "ssd")
    assert is_state(again, 2)
    assert again.position.fallback_from is None  # type: ignore[attr-defined]
    die(again)


def test_a_file_that_is_damaged_before_it_is_sent_never_becomes_a_commit(remote: Remote, tmp_path: Path) -> None:
    rank = started(remote, tmp_path / "ssd")
    save(rank, 1)
    rank.checkpointer._tier.uploader.drain()  # type: ignore[union-attr]

    def damage(point: str, step: int) -> None:
        for path in (tmp_path / "ssd").rglob("*.seg") if point == "ckpt_after_commit" else ():
            path.write_bytes(path.read_bytes()[:-1])

    rank.run.hook = damage
    save(rank, 2)
    with pytest.raises(CorruptState, match="before it was sent"):
        rank.checkpointer.close()
    assert remote_step(remote) == 1


@pytest.mark.slow
def test_two_ranks_commit_when_both_have_sent_their_files(remote: Remote, tmp_path: Path) -> None:
    sent: list[str] = []
    remote.before = sent.append

    def work(ranks: ThreadRanks) -> None:
        rank = Rank(remote.root, ranks, store=remote, buffer_dir=str(tmp_path / "ssd"))
        rank.checkpointer.restore()
        for seed in (1, 2, 3):
            save(rank, seed)
        rank.checkpointer.close()

    raise_first(run_ranks(2, work))
    known, _ = CommitLog(LocalStore(remote.root)).read_all()
    for commit in known.values():
        record = sent.index(f"commits/{commit.seq:016d}.json")
        assert all(sent.index(file.path) < record for file in commit.stored_files())
    elsewhere = started(remote, tmp_path / "another host")
    assert is_state(elsewhere, 3)
    die(elsewhere)


@pytest.mark.slow
def test_ranks_on_several_hosts_have_committed_only_what_has_arrived(remote: Remote, tmp_path: Path) -> None:
    def work(ranks: ThreadRanks) -> tuple[Rank, Any]:
        buffer = str(tmp_path / f"host{ranks.rank}")
        rank = Rank(remote.root, ranks, store=remote, buffer_dir=buffer)
        rank.checkpointer.restore()
        for seed in (1, 2):
            save(rank, seed)
        rank.checkpointer.close()
        tiers = [fields["tier"] for kind, fields in rank.run.said if kind == "committed"]
        assert tiers == (["remote", "remote"] if ranks.rank == 0 else [])
        again = Rank(remote.root, ranks, store=remote, buffer_dir=buffer)
        position = again.checkpointer.restore()
        die(again)
        return again, position

    results = run_ranks(2, work)
    raise_first(results)
    assert holds(results, 2)  # type: ignore[arg-type]


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
