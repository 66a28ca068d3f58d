"""A commit number belongs to one writer, whatever the store answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_world import saved_world

from ett.checkpoint.canonical_json import seal, unseal
from ett.checkpoint.commit import Commit, commit_name, parse_commit
from ett.checkpoint.commit_log import CommitLog, prepare_folder
from ett.checkpoint.local_store import LocalStore
from ett.errors import ConfigError, Conflict, CorruptState, Unreachable


class LossyStore(LocalStore):
    """Creates, but the answer is lost: before or after the name exists."""

    def __init__(self, root: Path, *, creates: bool) -> None:
        super().__init__(root)
        self.creates = creates

    def create(self, name: str, data: bytes) -> None:
        if self.creates:
            super().create(name, data)
        raise Unreachable("the answer was lost")


class ReplacingStore(LocalStore):
    """A file system whose link() replaces."""

    def create(self, name: str, data: bytes) -> None:
        self.delete(name)
        super().create(name, data)


@pytest.fixture
def example(tmp_path: Path) -> Commit:
    saved_world(tmp_path / "source", 1, [1])
    return replace(CommitLog(LocalStore(tmp_path / "source")).read(2), seq=7, parent_seq=6)


def test_a_number_is_given_once(tmp_path: Path, example: Commit) -> None:
    log = CommitLog(LocalStore(tmp_path))
    log.append(example)
    with pytest.raises(Conflict, match="commit 7"):
        log.append(replace(example, write_id="another's", epoch=9))
    assert log.read(7) == example


def test_a_lost_answer_to_our_own_commit_is_success(tmp_path: Path, example: Commit) -> None:
    CommitLog(LossyStore(tmp_path, creates=True)).append(example)
    assert CommitLog(LocalStore(tmp_path)).read(7) == example


def test_a_store_that_fails_just_after_the_commit_fails_no_save(tmp_path: Path, example: Commit) -> None:
    class FailsToList(LocalStore):
        def list(self, prefix: str) -> list[str]:
            raise Unreachable("for a moment")

    CommitLog(FailsToList(tmp_path)).append(example)
    assert CommitLog(LocalStore(tmp_path)).read(7) == example


def test_a_repeated_request_for_our_own_commit_is_success(tmp_path: Path, example: Commit) -> None:
    log = CommitLog(LocalStore(tmp_path))
    log.append(example)
    log.append(example)


def test_a_lost_request_is_a_failure(tmp_path: Path, example: Commit) -> None:
    with pytest.raises(Unreachable):
        CommitLog(LossyStore(tmp_path, creates=False)).append(example)


def test_a_record_under_another_number_is_refused(example: Commit) -> None:
    with pytest.raises(CorruptState, match="holds commit 7"):
        parse_commit(example.to_bytes(), commit_name(8))


def test_a_record_reads_back_equal(example: Commit) -> None:
    assert parse_commit(example.to_bytes(), commit_name(7)) == example


@pytest.mark.parametrize("change", [{"major": 2}, {"features_required": ["seg.v1", "future.v9"]}])
def test_a_newer_format_is_refused_by_name(example: Commit, change: dict[str, object]) -> None:
    fields = unseal(example.to_bytes())
    assert fields is not None
    with pytest.raises(ConfigError, match="format") as raised:
        parse_commit(seal({**fields, **change}), commit_name(7))
    assert "newer" in raised.value.do


def test_a_store_that_replaces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="replace"):
        prepare_folder(ReplacingStore(tmp_path))
    prepare_folder(LocalStore(tmp_path))
    assert LocalStore(tmp_path).list("") == ["FORMAT.json"]


def test_half_a_stream_is_never_visible(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        with store.create_stream("d/half") as file:
            file.write(b"half")
            raise KeyboardInterrupt
    assert store.list("") == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "4e94304"])
def test_a_number_that_is_not_finite_is_damage(number: str) -> None:
    whole = seal({"bytes": 4194304, "document": "commit"})
    assert unseal(whole) is not None
    assert unseal(whole.replace(b"4194304", number.encode())) is None
