"""Where a record would be large its files are listed beside it: found, verified, kept and collected with it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import FaultStore, Killed, Meeting, Rank, ThreadRanks, holds, oracle, restored_world, saved_world
from plain_reader import read_commit as read_plainly
from rewrite_world import saved_chain, state_of

from ett.checkpoint import commit as commit_module
from ett.checkpoint import file_lists
from ett.checkpoint.buffer import buffer_store
from ett.checkpoint.collection import Keep, collect, plan_collection
from ett.checkpoint.commit import FILE_LISTS, KNOWN_FEATURES, Commit, commit_name, parse_commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.compaction import compact, plan_compaction
from ett.checkpoint.export import export_commit
from ett.checkpoint.local_store import LocalStore
from ett.cli import run
from ett.errors import ConfigError


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record is large, and a list holds few files, so that a table's are in several and two tables' in one."""
    monkeypatch.setattr(file_lists, "RECORD_BYTES", 100)
    monkeypatch.setattr(file_lists, "LIST_FILES", 3)


def newest(folder: Path) -> Commit:
    log = CommitLog(LocalStore(folder))
    return log.read(max(log.seqs()))


def lists_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.glob("m/*/files-*.json")}


def assert_nothing_is_stray(folder: Path) -> None:
    known, damaged = CommitLog(LocalStore(folder)).read_all()
    assert not damaged
    live = {file.path for commit in known.values() for file in commit.stored_files()}
    assert {name for top in ("m", "d", "dense") for name in LocalStore(folder).list(top)} == live


@pytest.mark.slow
@pytest.mark.usefixtures("listed")
def test_a_state_whose_files_are_listed_beside_its_record_is_restored(tmp_path: Path) -> None:
    saved_world(tmp_path, 2, [1, 2])
    fields = json.loads((tmp_path / commit_name(3)).read_bytes())
    assert [table["files"] for table in fields["tables"]] == [[], []]
    assert (fields["min_reader"], "filelists.v1" in fields["features_required"]) == ("1.3", True)
    assert len(fields["file_lists"]) == 2
    assert {entry["path"] for entry in fields["file_lists"]} <= lists_in(tmp_path)
    assert holds(restored_world(tmp_path, 3), 2)
    assert_nothing_is_stray(tmp_path)


@pytest.mark.usefixtures("listed")
def test_a_reader_written_from_the_page_alone_finds_the_files(tmp_path: Path) -> None:
    saved_world(tmp_path, 2, [6])
    assert read_plainly(tmp_path, 2)[0] == oracle(6).rows()


@pytest.mark.slow
@pytest.mark.usefixtures("listed")
def test_lists_go_with_the_last_commit_that_needs_them(tmp_path: Path) -> None:
    """Those of step 2 are needed by the restart's record as well, which repeats its files."""
    saved_world(tmp_path, 1, [1, 2])
    restored_world(tmp_path, 1)
    assert len({commit.lists for commit in CommitLog(LocalStore(tmp_path)).read_all()[0].values() if commit.lists}) == 2
    store, keep = LocalStore(tmp_path), Keep(last=1)
    collect(store, keep, plan_collection(store, keep))
    assert_nothing_is_stray(tmp_path)
    assert lists_in(tmp_path) == {stored.path for stored in newest(tmp_path).lists}
    assert holds(restored_world(tmp_path, 1), 2)
    saved_world(tmp_path, 1, [3], keep_last=1)
    assert_nothing_is_stray(tmp_path)
    assert holds(restored_world(tmp_path, 1), 3)


@pytest.mark.slow
@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("harm", ["gone", "bit", "short"])
def test_a_damaged_list_is_a_damaged_commit(tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    saved_world(tmp_path, 1, [1, 2])
    path = tmp_path / newest(tmp_path).lists[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if harm != "gone":
        path.write_bytes(data if harm == "bit" else data[:-1])
    assert run(["checkpoint", "verify", str(tmp_path), "--level", "manifest"]) == 8
    assert path.name in capsys.readouterr().out
    world = restored_world(tmp_path, 1)
    assert holds(world, 1)
    assert world[0][1].fallback_from == 3


@pytest.mark.usefixtures("listed")
def test_an_older_reader_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_world(tmp_path, 1, [1])
    monkeypatch.setattr(commit_module, "KNOWN_FEATURES", tuple(set(KNOWN_FEATURES) - {FILE_LISTS}))
    with pytest.raises(ConfigError, match=r"with filelists\.v1"):
        newest(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("listed")
def test_a_rewrite_and_an_export_have_lists_of_their_own(tmp_path: Path) -> None:
    saved_chain(tmp_path / "job", LocalStore(tmp_path / "job"), deltas=1)
    shutil.copytree(tmp_path / "job", tmp_path / "chain")
    store = LocalStore(tmp_path / "job")
    commit = compact(store, plan_compaction(store))
    assert {stored.path.split("/")[1] for stored in commit.lists} == {commit.ckpt_uuid}
    exported = export_commit(store, None, tmp_path / "out")
    assert exported.num_files == sum(path.is_file() for path in (tmp_path / "out").rglob("*"))
    shutil.rmtree(tmp_path / "job")
    assert state_of(tmp_path / "out") == state_of(tmp_path / "chain")


@pytest.mark.slow
@pytest.mark.usefixtures("listed")
def test_lists_are_uploaded_and_leave_the_buffer_with_their_commit(tmp_path: Path) -> None:
    remote, config = LocalStore(tmp_path / "remote"), {"buffer_dir": str(tmp_path / "ssd"), "keep_last": 1}
    local = buffer_store(tmp_path / "ssd" / "test-job", remote.uri)

    def started() -> Rank:
        rank = Rank(remote.root, ThreadRanks(0, 1, Meeting(1)), store=remote, **config)
        rank.checkpointer.restore()
        return rank

    rank = started()
    for seed in (1, 2, 3):
        rank.fill(seed)
        rank.checkpointer.save(seed, seed * 10)
        rank.checkpointer._tier.uploader.drain()  # type: ignore[union-attr]
    rank.checkpointer.close()
    assert_nothing_is_stray(remote.root)
    assert len(lists_in(local.root)) <= 2 * len(newest(remote.root).lists)
    again = started()
    assert holds([(again, None)], 3)
    assert_nothing_is_stray(local.root)
    again.checkpointer.close()
    shutil.rmtree(local.root)
    assert holds([(started(), None)], 3)


@pytest.mark.usefixtures("listed")
def test_death_between_lists_and_record_leaves_no_commit(tmp_path: Path) -> None:
    saved_world(tmp_path / "job", 1, [1])
    commit = replace(newest(tmp_path / "job"), seq=3, ckpt_uuid=f"e000001-{1:032x}", write_id="w" * 32)
    outcomes = set()
    fail_at, survived = 0, False
    while not survived:
        fail_at += 1
        shutil.copytree(tmp_path / "job", tmp_path / str(fail_at))
        try:
            CommitLog(FaultStore(tmp_path / str(fail_at), fail_at, Killed())).append(commit)
            survived = True
        except Killed:
            pass
        known, damaged = CommitLog(LocalStore(tmp_path / str(fail_at))).read_all()
        assert not damaged
        outcomes.add(len(known))
    assert outcomes == {1, 2}


def wide(commit: Commit, num_files: int) -> Commit:
    """Return a commit whose first table has very many files, which do not exist."""
    table = commit.tables[0]
    files = tuple(
        replace(table.files[0], stored=replace(table.files[0].stored, path=f"d/ab/x/{number}.seg"))
        for number in range(num_files)
    )
    return replace(commit, seq=commit.seq + 1, write_id="w" * 32, tables=(replace(table, files=files),))


@pytest.mark.slow
def test_a_record_of_many_thousand_files_stays_small(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1])
    small = newest(tmp_path)
    assert small.lists == ()
    commit = wide(small, 9_000)
    stored = CommitLog(LocalStore(tmp_path)).append(commit)
    sizes = [(tmp_path / name).stat().st_size for name in (commit_name(commit.seq), *lists_in(tmp_path))]
    assert (len(stored.lists), max(sizes) < file_lists.RECORD_BYTES) == (5, True)
    assert newest(tmp_path) == stored == replace(commit, lists=stored.lists)
    assert parse_commit(stored.to_bytes(), commit_name(stored.seq)) == stored, "as ranks tell it each other"


@pytest.mark.slow
def test_a_stored_record_is_never_taken_for_a_commit_without_files(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1])
    CommitLog(LocalStore(tmp_path)).append(wide(newest(tmp_path), 9_000))
    data: Any = (tmp_path / commit_name(3)).read_bytes()
    with pytest.raises(AssertionError):
        parse_commit(data, commit_name(3))
