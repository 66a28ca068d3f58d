"""Saves through a buffer: on the disk at once, in the remote folder behind training, in order, after a restart too."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from buffered_world import Remote, die, files, is_state, remote_step, save, started, wait_for_an_answer
from checkpoint_world import LateClock, Rank, ThreadRanks, holds, raise_first, run_ranks

from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.errors import Conflict, CorruptState, Unreachable

pytestmark = pytest.mark.usefixtures("quick_uploads")


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_what_a_full_buffer_holds_is_stall_and_the_save_is_made(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LateClock()
    rank = started(remote, tmp_path / "ssd", buffer_bytes=1, clock=clock)
    remote.gate.clear()
    save(rank, 1)
    span = rank.run.span

    @contextmanager
    def opening(name: str, blocking: bool = True) -> Iterator[None]:
        with span(name, blocking):
            if name == "ckpt_save":  # the save has begun, and has no room yet
                remote.gate.set()
            yield

    def late(name: str) -> None:
        clock.late_ns += 1000 * 10**9 * name.startswith("commits/")

    monkeypatch.setattr(rank.run, "span", opening)
    remote.before = late
    save(rank, 2)
    rank.checkpointer.close()
    stalls = {fields["step"]: fields["stall_s"] for kind, fields in rank.run.said if kind == "ckpt_detail"}
    assert list(stalls) == [1, 2]
    assert stalls[1] < 1000 <= stalls[2]
    assert remote_step(remote) == 2


@pytest.mark.slow
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


@pytest.mark.slow
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
