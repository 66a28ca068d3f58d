"""Commits that are parsed once: a record that is other than it was is seen, and equal files are the same objects."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_world import Meeting, Rank, ThreadRanks, saved_world

from ett.checkpoint import commit_log as commit_log_module
from ett.checkpoint.commit import commit_name
from ett.checkpoint.commit_cache import CommitCache
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.retention import retire


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the records that were parsed."""
    names: list[str] = []
    real = commit_log_module.parse_commit

    def parse(data: bytes, name: str, *args: object) -> object:
        names.append(name)
        return real(data, name, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(commit_log_module, "parse_commit", parse)
    return names


def test_each_record_is_parsed_once(tmp_path: Path, parsed: list[str]) -> None:
    saved_world(tmp_path, 1, [1, 2], keep_last=9)
    log = CommitLog(LocalStore(tmp_path), CommitCache())
    parsed.clear()
    first = log.read_all()
    names = [commit_name(seq) for seq in log.seqs()]
    assert parsed == names
    assert log.read_all() == first == CommitLog(LocalStore(tmp_path)).read_all()
    assert parsed == names * 2  # by the one without a cache


@pytest.mark.slow
def test_a_save_parses_no_record_however_long_the_chain(tmp_path: Path, parsed: list[str]) -> None:
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)), keep_last=3)
    for step in range(1, 7):
        rank.fill(step)
        rank.checkpointer.save(step, step)
        rank.checkpointer.close()
        parsed.clear()
    rank.fill(7)
    rank.checkpointer.save(7, 7)
    rank.checkpointer.close()
    assert parsed == []
    known, _ = CommitLog(LocalStore(tmp_path)).read_all()
    assert [commit.step for commit in known.values()] == [5, 6, 7]


@pytest.mark.slow
def test_a_buffer_whose_log_nobody_reads_keeps_no_commits(tmp_path: Path) -> None:
    buffer = str(tmp_path / "buffer")
    rank = Rank(tmp_path / "store", ThreadRanks(0, 1, Meeting(1)), keep_last=2, buffer_dir=buffer)
    for step in (1, 2, 3):
        rank.fill(step)
        rank.checkpointer.save(step, step)
    place = rank.checkpointer._place
    assert place.is_buffer and not place.commits._commits
    rank.checkpointer.close()


def test_one_that_was_made_since_the_log_was_listed_stays(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1, 2], keep_last=9)
    cache = CommitCache()
    log = CommitLog(LocalStore(tmp_path), cache)
    log.read_all()
    first, newest = sorted(cache._commits)[0], sorted(cache._commits)[-1]
    cache.keep_only({first})
    assert newest in cache._commits
    cache.keep_only({newest})
    assert set(cache._commits) == {newest}


def test_a_record_that_was_damaged_meanwhile_is_noticed(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1, 2, 3], keep_last=3)
    store, cache = LocalStore(tmp_path), CommitCache()
    log = CommitLog(store, cache)
    log.read_all()
    path = tmp_path / commit_name(log.seqs()[-2])
    path.write_bytes(path.read_bytes().replace(b'"step":2', b'"step":5'))
    _, damaged = log.read_all()
    assert list(damaged) == [log.seqs()[-2]]
    assert retire(store, 1, cache) == []


def test_commits_that_list_the_same_files_share_them(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1, 2], keep_last=9)
    Rank(tmp_path, ThreadRanks(0, 1, Meeting(1))).checkpointer.restore()  # makes a record of the same state
    known, _ = CommitLog(LocalStore(tmp_path), CommitCache()).read_all()
    files = [file for commit in known.values() for table in commit.tables for file in table.files]
    assert len({id(file) for file in files}) == len({file.stored.path for file in files}) < len(files)


def test_what_is_gone_is_forgotten(tmp_path: Path, parsed: list[str]) -> None:
    saved_world(tmp_path, 1, [1, 2, 3], keep_last=3)
    log = CommitLog(LocalStore(tmp_path), CommitCache())
    log.read_all()
    name = commit_name(log.seqs()[0])
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    log.read_all()
    (tmp_path / name).write_bytes(data)
    parsed.clear()
    log.read_all()
    assert parsed == [name]
