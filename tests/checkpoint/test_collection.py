"""Collection: what nothing keeps goes, what anything needs stays, and whenever it dies no record lacks a file."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import FaultStore, Killed, Meeting, Rank, ThreadRanks, holds, restored_world, saved_world

from ett.checkpoint import collection as collection_module
from ett.checkpoint.buffered_store import BufferedStore
from ett.checkpoint.canonical_json import seal
from ett.checkpoint.collection import Keep, collect, plan_collection
from ett.checkpoint.commit import commit_name
from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.pins import LEASE_S, leased, pin, unpin
from ett.checkpoint.pins import holds as holds_of
from ett.checkpoint.retention import retire
from ett.checkpoint.verify import damage
from ett.cli import run
from ett.errors import ConfigError, Conflict, CorruptState, NotFound

ONE = Keep(last=1)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    saved_world(tmp_path / "job", 1, [1, 2, 3, 4], keep_last=9)
    return tmp_path / "job"


def steps(folder: Path) -> list[int]:
    known, damaged = CommitLog(LocalStore(folder)).read_all()
    assert not damaged
    return [commit.step for commit in known.values() if not commit.is_fresh]


def gc(folder: Path, keep: Keep = ONE) -> None:
    store = LocalStore(folder)
    collect(store, keep, plan_collection(store, keep))


def assert_whole(folder: Path) -> None:
    store = LocalStore(folder)
    known, _ = CommitLog(store).read_all()
    for commit in known.values():
        assert damage(store, commit, "hash") is None


def orphan(folder: Path, epoch: int, age_s: float) -> Path:
    path = folder / "d" / "ab" / f"e{epoch:06d}-{'f' * 32}" / "t0000.base.w00000.0.seg"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"left")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_a_plan_deletes_nothing(saved: Path) -> None:
    before = LocalStore(saved).list("")
    plan = plan_collection(LocalStore(saved), ONE)
    assert [plan.commits[seq].step for seq in plan.gone] == [1, 2, 3]
    assert LocalStore(saved).list("") == before


def test_what_nothing_keeps_goes_with_its_files(saved: Path) -> None:
    gc(saved)
    assert steps(saved) == [4]
    known, _ = CommitLog(LocalStore(saved)).read_all()
    live = {file.path for commit in known.values() for file in commit.stored_files()}
    assert {name for name in LocalStore(saved).list("") if name[0] in "dm"} == live
    assert holds(restored_world(saved, 1), 4)


def test_a_pin_keeps_a_commit_from_collection_and_from_the_job(saved: Path) -> None:
    store = LocalStore(saved)
    pin(store, find_commit(store, 2)[0], "good")
    gc(saved)
    assert steps(saved) == [2, 4]
    assert retire(store, 1) == []
    unpin(store, "good")
    gc(saved)
    assert steps(saved) == [4]
    with pytest.raises(NotFound, match="good"):
        unpin(store, "good")


def test_a_pins_name_holds_one_commit(saved: Path) -> None:
    store = LocalStore(saved)
    pin(store, find_commit(store, 2)[0], "good")
    pin(store, find_commit(store, 2)[0], "good")
    with pytest.raises(Conflict, match="another commit"):
        pin(store, find_commit(store, 3)[0], "good")
    with pytest.raises(ConfigError, match="cannot be named"):
        pin(store, find_commit(store, 3)[0], "../x")


def test_a_commit_that_just_went_is_not_pinned(saved: Path) -> None:
    store = LocalStore(saved)
    commit, _ = find_commit(store, 2)
    gc(saved)
    with pytest.raises(CorruptState, match="not whole"):
        pin(store, commit, "late")
    assert store.list("pins") == []


class PinnedMeanwhile(LocalStore):
    """Somebody pins the commit of step 2 once its deletion is decided."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.commit, _ = find_commit(self, 2)

    def delete(self, name: str) -> None:
        if name == commit_name(self.commit.seq):
            pin(LocalStore(self.root), self.commit, "late")
        super().delete(name)


@pytest.mark.parametrize("by_the_job", [True, False])
def test_a_commit_that_is_pinned_while_it_goes_stays(saved: Path, by_the_job: bool) -> None:
    """Whoever has been told that it is pinned may count on it."""
    store = PinnedMeanwhile(saved)
    if by_the_job:
        retire(store, 1)
    else:
        collect(store, ONE, plan_collection(store, ONE))
    assert steps(saved) == [2, 4]
    assert_whole(saved)
    unpin(LocalStore(saved), "late")
    gc(saved)
    assert steps(saved) == [4]


def test_it_stays_where_what_was_committed_meanwhile_cannot_be_read(saved: Path) -> None:
    class AndDamaged(PinnedMeanwhile):
        def delete(self, name: str) -> None:
            super().delete(name)
            (self.root / commit_name(99)).write_bytes(b"torn")

    store = AndDamaged(saved)
    with pytest.raises(CorruptState):
        collect(store, ONE, plan_collection(store, ONE))
    (saved / commit_name(99)).unlink()
    assert 2 in steps(saved)
    assert_whole(saved)


def test_a_commit_that_is_read_stays_until_its_reader_is_done_or_dead(saved: Path) -> None:
    store = LocalStore(saved)
    with leased(store, find_commit(store, 1)[0], "a test"):
        gc(saved)
        assert steps(saved) == [1, 4]
        plan = plan_collection(store, ONE, now_unix_s=time.time() + LEASE_S + 60)
        assert [plan.commits[seq].step for seq in plan.gone] == [1]
    gc(saved)
    assert steps(saved) == [4]


def test_leases_of_dead_readers_go(saved: Path) -> None:
    store = LocalStore(saved)
    for name in ("dead", "living"):
        store.create(f"leases/{name}.json", seal({"document": "lease", "seq": 2, "reader": name}))
    os.utime(saved / "leases" / "dead.json", (time.time() - LEASE_S - 60,) * 2)
    gc(saved)
    assert store.list("leases") == ["leases/living.json"]
    assert steps(saved) == [1, 4]


def test_a_reader_that_may_not_write_reads_without_a_lease(saved: Path) -> None:
    store = FaultStore(saved, 1, PermissionError(errno.EACCES, "Permission denied"), stays=True)
    commit, _ = find_commit(store, 1)
    with leased(store, commit, "a test"):
        assert damage(store, commit, "hash") is None


def test_a_damaged_pin_stops_everything(saved: Path) -> None:
    (saved / "pins").mkdir()
    (saved / "pins" / "x.json").write_bytes(b"{}")
    with pytest.raises(CorruptState, match="pins/x"):
        plan_collection(LocalStore(saved), ONE)
    assert retire(LocalStore(saved), 1) == []


def test_a_damaged_record_stops_everything(saved: Path) -> None:
    (saved / "commits" / f"{2:016d}.json").write_bytes(b"{}")
    with pytest.raises(CorruptState, match="cannot be read"):
        plan_collection(LocalStore(saved), ONE)


def test_older_commits_stay_while_the_newest_is_torn(saved: Path) -> None:
    commit, _ = find_commit(LocalStore(saved), None)
    os.truncate(saved / commit.fragments[0].path, 3)
    with pytest.raises(CorruptState):
        plan_collection(LocalStore(saved), ONE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epoch", "age_s", "stays"),
    [(1, 25 * 3600, False), (1, 23 * 3600, True), (2, 10**7, True), (3, 10**7, True)],
)
def test_files_without_a_commit_go_when_their_writer_is_fenced_and_they_are_old(
    saved: Path, epoch: int, age_s: float, stays: bool
) -> None:
    """Epoch 2 is the newest here: its writer may live, and be about to commit them."""
    restored_world(saved, 1)
    left = orphan(saved, epoch, 0)
    os.utime(left, (time.time() - age_s,) * 2)
    gc(saved, Keep(last=9))
    assert left.exists() == stays


def test_what_is_not_a_files_of_ours_is_never_touched(saved: Path) -> None:
    restored_world(saved, 1)
    for name in ("d/notes.txt", "mine.txt", "m/readme"):
        (saved / name).write_text("mine")
        os.utime(saved / name, (0, 0))
    gc(saved)
    assert all((saved / name).exists() for name in ("d/notes.txt", "mine.txt", "m/readme"))


def test_one_commit_of_each_span_of_time_stays(saved: Path) -> None:
    hour = time.time() // 3600 * 3600 - 10 * 3600
    for seq, saved_s in ((2, hour + 60), (3, hour + 120), (4, hour + 5 * 3600)):
        os.utime(saved / "commits" / f"{seq:016d}.json", (saved_s, saved_s))
    gc(saved, Keep(last=1, every_s=3600))
    assert steps(saved) == [2, 3, 4]


def test_a_bound_of_bytes_drops_the_oldest_but_leaves_two(saved: Path) -> None:
    commit, _ = find_commit(LocalStore(saved), None)
    gc(saved, Keep(last=9, max_bytes=3 * commit.num_bytes + 100))
    assert steps(saved) == [2, 3, 4]
    gc(saved, Keep(last=9, max_bytes=1))
    assert steps(saved) == [3, 4]


def test_a_change_between_plan_and_deletion_stops_it(saved: Path) -> None:
    store = LocalStore(saved)
    plan = plan_collection(store, ONE)
    pin(store, find_commit(store, 2)[0], "late")
    with pytest.raises(Conflict, match="changed meanwhile"):
        collect(store, ONE, plan)
    assert steps(saved) == [1, 2, 3, 4]
    assert store.list("gc") == []


@pytest.mark.slow
def test_death_at_any_operation_of_a_collection_leaves_no_record_without_its_files(saved: Path, tmp_path: Path) -> None:
    fail_at, survived = 0, False
    while not survived:
        fail_at += 1
        folder = tmp_path / str(fail_at)
        shutil.copytree(saved, folder)
        store = FaultStore(folder, fail_at, Killed())
        try:
            collect(store, ONE, plan_collection(store, ONE))
            survived = True
        except Killed:
            pass
        assert_whole(folder)
        assert holds(restored_world(folder, 1), 4)
        gc(folder)
        known, _ = CommitLog(LocalStore(folder)).read_all()
        live = {file.path for commit in known.values() for file in commit.stored_files()}
        assert {name for name in LocalStore(folder).list("") if name[0] in "dm"} == live
    assert fail_at > 15


@pytest.mark.slow
def test_a_save_during_a_collection_is_kept(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(saved, ThreadRanks(0, 1, Meeting(1)), keep_last=9)
    rank.checkpointer.restore()
    first = holds_of
    saves: list[int] = []

    def save_once(store: Any, now: float) -> Any:
        if not saves:
            saves.append(5)
            rank.fill(5)
            rank.checkpointer.save(5, 50)
        return first(store, now)

    store = LocalStore(saved)
    plan = plan_collection(store, ONE)
    monkeypatch.setattr(collection_module, "holds", save_once)
    collect(store, ONE, plan)
    assert saves
    assert holds(restored_world(saved, 1), 5)


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run(["checkpoint", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["data"]


def test_gc_says_what_it_would_delete_and_deletes_only_with_yes(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = document(capsys, "gc", str(saved), "--keep-last", "2")
    assert [row["kept_as"] for row in plan["commits"]] == ["newest 1 of 2", "newest 2 of 2", None, None]
    assert steps(saved) == [1, 2, 3, 4]
    assert run(["checkpoint", "gc", str(saved), "--keep-last", "2"]) == 0
    assert "--yes deletes them" in capsys.readouterr().out
    assert document(capsys, "gc", str(saved), "--keep-last", "2", "--yes")["deleted"]
    assert steps(saved) == [3, 4]


def test_what_only_a_buffer_holds_displaces_nothing_that_is_uploaded(saved: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    shutil.copytree(saved, remote)
    known, _ = CommitLog(LocalStore(saved)).read_all()
    for seq, commit in known.items():
        if commit.step > 2:
            (remote / commit_name(seq)).unlink()
    store = BufferedStore(LocalStore(saved), LocalStore(remote))
    assert max(commit.step for commit in CommitLog(store).read_all()[0].values()) == 4
    collect(store, ONE, plan_collection(store, ONE))
    assert steps(remote) == [2] and steps(saved) == [1, 2, 3, 4]
    assert_whole(remote)


def test_nothing_goes_where_the_newest_is_damaged_within(saved: Path) -> None:
    known, _ = CommitLog(LocalStore(saved)).read_all()
    segment = saved / known[max(known)].tables[0].files[0].stored.path
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.chmod(0o644)
    segment.write_bytes(data)
    before = LocalStore(saved).list("")
    with pytest.raises(CorruptState, match="the newest, is damaged") as caught:
        gc(saved)
    assert caught.value.did == "deleted nothing"
    assert LocalStore(saved).list("") == before


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--keep-every", "soon"], ["--max-bytes", "2TB"]])
def test_gc_refuses_what_it_cannot_read(saved: Path, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "gc", str(saved), *flags]) == 2
    assert flags[1] in capsys.readouterr().err


def test_pins_are_listed_and_given_up(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "pin", str(saved), "--step", "2")["name"] == "step-2"
    rows = document(capsys, "ls", str(saved))["commits"]
    assert [row["pins"] for row in rows if row["step"] == 2] == [["step-2"]]
    assert document(capsys, "unpin", str(saved), "step-2") == {"uri": str(saved), "name": "step-2"}
    assert run(["checkpoint", "unpin", str(saved), "step-2"]) == 4


def test_diff_says_what_changed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = document(capsys, "diff", str(saved), "3", "3")
    assert same["equal"]
    assert {row["content"] for row in same["tables"]} == {"equal"}
    other = document(capsys, "diff", str(saved), "3", "4")
    assert not other["equal"]
    assert [(row["table"], row["content"]) for row in other["tables"]] == [
        ("bags/items", "changed"),
        ("users", "changed"),
        ("(dense)", "changed"),
    ]
    assert run(["checkpoint", "diff", str(saved), "3", "4"]) == 0
    assert "different; 0 files in common" in capsys.readouterr().out
