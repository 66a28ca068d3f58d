"""A rewrite holds what the chain held, bit for bit, or is not made; whenever it dies the chain is restored."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import FaultStore, Killed, Meeting, Rank, ThreadRanks, holds, restored_world, saved_world
from rewrite_world import append_delta, ids_of, saved_chain, state_of
from s3_servers import S3Server, s3_store

from ett.checkpoint import live_rows as live_rows_module
from ett.checkpoint import table_segments
from ett.checkpoint.buffered_store import BufferedStore
from ett.checkpoint.chain_picture import chain_picture
from ett.checkpoint.collection import Keep, collect, plan_collection
from ett.checkpoint.commit import Commit, commit_name
from ett.checkpoint.commit_log import CommitLog, line_of_history
from ett.checkpoint.compaction import compact, plan_compaction
from ett.checkpoint.file_hash import file_hash
from ett.checkpoint.live_rows import live_rows
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.verify import damage
from ett.cli import run
from ett.errors import Conflict, CorruptState, NoCheckpoint, UsageError
from ett.job_folder import JobFolder, Lease


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chain")
    saved_chain(folder, LocalStore(folder))
    return folder


@pytest.fixture
def folder(chain: Path, tmp_path: Path) -> Path:
    shutil.copytree(chain, tmp_path / "job")
    return tmp_path / "job"


def newest(folder: Path) -> Commit:
    log = CommitLog(LocalStore(folder))
    return log.read(max(log.seqs()))


def rewritten(folder: Path) -> Commit:
    store = LocalStore(folder)
    return compact(store, plan_compaction(store))


def owned_by_nobody(folder: Path) -> list[str]:
    known, _ = CommitLog(LocalStore(folder)).read_all()
    live = {file.path for commit in known.values() for file in commit.stored_files()}
    return [name for top in ("m", "d", "dense") for name in LocalStore(folder).list(top) if name not in live]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_restore_of_the_rewrite_is_that_of_the_chain_bit_for_bit(
    folder: Path, tmp_path: Path, world_size: int
) -> None:
    shutil.copytree(folder, tmp_path / "chain")
    commit = rewritten(folder)
    assert (commit.type, commit.step, commit.chain_len) == ("rewrite", 5, 0)
    assert {file.identity.kind for table in commit.tables for file in table.files} == {"base"}
    assert state_of(folder, world_size) == state_of(tmp_path / "chain", world_size)


@pytest.mark.slow
def test_its_dense_files_and_fragments_are_those_of_its_source(folder: Path) -> None:
    source = newest(folder)
    commit = rewritten(folder)
    assert (commit.dense, commit.fragments) == (source.dense, source.fragments)
    assert chain_picture(commit).count(">seq ") == 1 < chain_picture(source).count(">seq ")
    assert all(damage(LocalStore(folder), commit, level) is None for level in ("size", "hash", "load"))


def test_rows_of_many_small_files_become_few_segments(folder: Path) -> None:
    source = newest(folder)
    commit = rewritten(folder)
    assert [len(table.files) for table in commit.tables] == [1, 1]
    assert all(len(table.files) > 5 for table in source.tables)
    assert [table.num_rows for table in commit.tables] == [table.num_rows for table in source.tables]


@pytest.mark.slow
@pytest.mark.parametrize("range_ids", [16, 100, 1000])
def test_live_rows_are_found_a_range_of_ids_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, range_ids: int
) -> None:
    monkeypatch.setattr(live_rows_module, "RANGE_IDS", range_ids)
    store = LocalStore(folder)
    for table in newest(folder).tables:
        with live_rows(store, table.spec, table.files) as live:
            assert live.num_rows == len(ids_of(store, table)) == table.num_rows


@pytest.mark.slow
def test_segments_are_cut_where_they_are_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_segments, "BLOCK_BYTES", 512)
    monkeypatch.setattr(table_segments, "SEGMENT_BYTES", 1 << 12)
    saved_chain(tmp_path / "job", LocalStore(tmp_path / "job"), deltas=1)
    shutil.copytree(tmp_path / "job", tmp_path / "chain")
    for table in rewritten(tmp_path / "job").tables:
        assert len(table.files) > 1
        assert all(file.num_rows <= table.spec.segment_rows for file in table.files)
    assert state_of(tmp_path / "job") == state_of(tmp_path / "chain")


def test_two_files_of_one_commit_with_one_row_are_refused(folder: Path) -> None:
    table = newest(folder).tables[0]
    twice = (*table.files, table.files[-1])
    with pytest.raises(CorruptState, match="two files of commit 6 have id"):
        with live_rows(LocalStore(folder), table.spec, twice):
            pass


def test_a_commit_of_bases_needs_none(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1])
    assert not plan_compaction(LocalStore(tmp_path)).is_needed
    assert plan_compaction(LocalStore(tmp_path)).source.step == 1


def test_only_the_newest_step_can_be_rewritten(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is of step 5, not 2"):
        plan_compaction(LocalStore(folder), 2)
    with pytest.raises(NoCheckpoint):
        plan_compaction(LocalStore(tmp_path / "empty"))


@pytest.mark.parametrize("wrong", ["digest", "rows"])
def test_a_state_that_is_not_the_committed_one_is_refused(folder: Path, wrong: str) -> None:
    """The digest that the source has stored is another: as if a row had been lost or changed unseen."""
    store = LocalStore(folder)
    plan = plan_compaction(store)
    table = plan.source.tables[1]
    bad = replace(table, digest="0" * 16) if wrong == "digest" else replace(table, num_rows=table.num_rows + 1)
    plan = replace(plan, source=replace(plan.source, tables=(plan.source.tables[0], bad)))
    before = store.list("")
    with pytest.raises(CorruptState, match="in its chain has"):
        compact(store, plan)
    assert store.list("") == before


def test_what_was_written_is_read_back_before_it_is_committed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that loses what it took: one bit of a new file."""

    class Forgets(LocalStore):
        def sync(self, names: list[str]) -> None:
            for name in names:
                if ".base." in name:
                    data = bytearray((self.root / name).read_bytes())
                    data[len(data) // 2] ^= 1
                    (self.root / name).chmod(0o644)
                    (self.root / name).write_bytes(data)
            super().sync(names)

    before = LocalStore(folder).list("")
    store = Forgets(folder)
    with pytest.raises(CorruptState, match=r"t0000\.base\.w00000\.0\.seg"):
        compact(store, plan_compaction(store))
    assert LocalStore(folder).list("") == before


def test_damage_of_the_chain_is_no_rewrite(folder: Path) -> None:
    file = newest(folder).tables[0].files[-1]
    data = bytearray((folder / file.stored.path).read_bytes())
    data[5000] ^= 4
    (folder / file.stored.path).write_bytes(data)
    with pytest.raises(CorruptState, match=file.stored.path):
        rewritten(folder)
    assert newest(folder).type == "delta"
    assert owned_by_nobody(folder) == []


@pytest.mark.slow
def test_the_old_chain_stays_until_it_is_collected(folder: Path) -> None:
    source = newest(folder)
    commit = rewritten(folder)
    assert damage(LocalStore(folder), source, "hash") is None
    before = state_of(folder)
    keep = Keep(last=1)
    store = LocalStore(folder)
    collect(store, keep, plan_collection(store, keep))
    gone = {file.path for file in source.stored_files()} - {file.path for file in commit.stored_files()}
    assert gone and not gone & set(store.list(""))
    assert state_of(folder) == before


def test_a_restore_falls_back_to_the_chain_when_the_rewrite_is_damaged(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "chain")
    commit = rewritten(folder)
    (folder / commit.tables[0].files[0].stored.path).unlink()
    line = line_of_history(CommitLog(LocalStore(folder)).read_all()[0])
    assert [known.seq for known in line] == [7, 6, 5, 4, 3, 2]
    assert state_of(folder) == state_of(tmp_path / "chain")


@pytest.mark.slow
def test_a_job_goes_on_from_a_rewrite(folder: Path) -> None:
    rewritten(folder)
    saved_world(folder, 2, [7])
    assert holds(restored_world(folder, 3), 7)


def test_a_commit_that_is_made_meanwhile_is_kept_and_the_rewrite_refused(folder: Path) -> None:
    store = LocalStore(folder)
    plan = plan_compaction(store)
    newer = append_delta(store, 9)
    with pytest.raises(Conflict, match="commit 7 was made"):
        compact(store, plan)
    assert newest(folder) == newer
    assert owned_by_nobody(folder) == []


def test_a_commit_at_the_last_instant_wins_as_well(folder: Path) -> None:
    class Late(LocalStore):
        def create(self, name: str, data: bytes) -> None:
            if name == commit_name(7):
                append_delta(LocalStore(folder), 9)
            super().create(name, data)

    store = Late(folder)
    with pytest.raises(Conflict, match="commit 7 was made"):
        compact(store, plan_compaction(store))
    assert newest(folder).type == "delta"
    assert owned_by_nobody(folder) == []
    assert store.list("leases") == []


def test_a_process_that_still_saves_is_fenced_off_and_nothing_is_mixed(folder: Path) -> None:
    """It stops at its next save; the job then goes on from the rewrite, which is what it had committed last."""
    rank = Rank(folder, ThreadRanks(0, 1, Meeting(1)))
    rank.checkpointer.restore()
    commit = rewritten(folder)
    rank.fill(9)
    with pytest.raises(Conflict) as caught:
        rank.checkpointer.save(9, 90)
    assert caught.value.code == "L008"
    assert newest(folder) == commit
    assert owned_by_nobody(folder) == []
    assert state_of(folder)[0] == 5


@pytest.mark.slow
def test_the_source_is_not_collected_while_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a newer commit would displace it: the job saves and retires in the middle of the rewrite."""
    store = LocalStore(folder)
    plan = plan_compaction(store)
    source = plan.source
    whole: list[bool] = []

    class Meanwhile(LocalStore):
        def sync(self, names: list[str]) -> None:
            if not whole and any(".base." in name for name in names):
                saved_world(folder, 1, [8], keep_last=1)
                whole.append(damage(LocalStore(folder), source, "hash") is None)
            super().sync(names)

    with pytest.raises(Conflict):
        compact(Meanwhile(folder), plan)
    assert whole == [True]
    assert holds(restored_world(folder, 1), 8)


@pytest.mark.slow
def test_death_at_any_operation_of_a_rewrite_leaves_the_chain_or_the_whole_rewrite(
    folder: Path, tmp_path: Path
) -> None:
    expected = state_of_copy(folder, tmp_path / "expected")
    found = {"delta": 0, "rewrite": 0}
    fail_at, survived = 0, False
    while not survived:
        fail_at += 1
        at = tmp_path / str(fail_at)
        shutil.copytree(folder, at)
        store = FaultStore(at, fail_at, Killed())
        try:
            compact(store, plan_compaction(store))
            survived = True
        except Killed:
            pass
        found[newest(at).type] += 1
        known, damaged = CommitLog(LocalStore(at)).read_all()
        assert not damaged
        assert all(damage(LocalStore(at), commit, "size") is None for commit in known.values())
        assert state_of(at) == expected, f"after a death at operation {fail_at}"
        assert owned_by_nobody(at) == [], "what a death left is swept when the job starts"
        shutil.rmtree(at)
    assert fail_at > 20
    assert min(found.values()) > 0


def state_of_copy(folder: Path, copy: Path) -> object:
    shutil.copytree(folder, copy)
    return state_of(copy)


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run(["checkpoint", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["data"]


@pytest.fixture
def job(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """The job that made the commits, by the name that they carry."""
    monkeypatch.setenv("ETT_HOME", str(tmp_path / "home"))
    made = JobFolder(tmp_path / "home" / "jobs" / "test-job")
    made.path.mkdir(parents=True)
    folder.rename(made.path / "checkpoints")
    return made


def test_compact_says_what_it_would_write_then_writes_it(job: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    plan = document(capsys, "compact", "test-job", "--dry-run")
    assert (plan["step"], plan["seq"], plan["chain_len"], plan["rewrite"]) == (5, 6, 3, None)
    chain = document(capsys, "show", "test-job")
    computed = document(capsys, "show", "test-job", "--digest")
    assert (chain["digest"], chain["tables"][0]["digest"]) == (None, None)
    done = document(capsys, "compact", "test-job")["rewrite"]
    assert (computed["step"], computed["digest"]) == (5, done["digest"])
    assert (done["seq"], done["files"]) == (7, 2)
    assert abs(done["bytes"] - plan["live_bytes"]) < 32768  # headers, indices, and zeros up to whole pages
    shown = document(capsys, "show", "test-job", "--digest")
    assert (shown["type"], shown["step"], shown["digest"]) == ("rewrite", 5, done["digest"])
    assert [(part["seq"], part["kind"]) for part in shown["chain"]] == [(3, "dense"), (7, "base")]
    assert [row["type"] for row in document(capsys, "ls", "test-job")["commits"]][:2] == ["rewrite", "delta"]
    assert not document(capsys, "compact", "test-job")["is_needed"]
    assert run(["checkpoint", "compact", "test-job"]) == 0
    assert "nothing to rewrite" in capsys.readouterr().out


def test_the_checkpoints_of_a_running_job_are_not_rewritten(job: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    running = Lease(job)
    for target in ("test-job", str(job.path / "checkpoints")):
        assert run(["checkpoint", "compact", target]) == 7
        assert "ETT-L007" in capsys.readouterr().err
    running.release()
    assert run(["checkpoint", "compact", str(job.path / "checkpoints")]) == 0


def test_where_a_job_is_not_known_its_end_must_be_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ETT_HOME", str(tmp_path / "home"))
    assert run(["checkpoint", "compact", str(folder)]) == 2
    assert "--stopped" in capsys.readouterr().err
    assert run(["checkpoint", "compact", str(folder), "--stopped", "--step", "5"]) == 0


def test_what_a_buffer_has_not_sent_is_not_hidden_by_a_rewrite(folder: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    shutil.copytree(folder, remote)
    append_delta(LocalStore(folder), 9)
    store = BufferedStore(LocalStore(folder), LocalStore(remote))
    with pytest.raises(Conflict, match="steps 6 wait"):
        plan_compaction(store)
    shutil.rmtree(folder)
    assert compact(store, plan_compaction(store)).seq == 7
    assert newest(remote).type == "rewrite"
    assert not folder.exists()


@pytest.mark.slow
def test_a_bucket_is_rewritten(folder: Path, moto: S3Server) -> None:
    store = s3_store(moto.url)
    for name in LocalStore(folder).list(""):
        store.put_file(name, folder / name, file_hash(folder / name))
    commit = compact(store, plan_compaction(store))
    assert damage(store, commit, "load") is None
    assert {name for name in store.list("") if name.startswith("leases/")} == set()
    rewritten(folder)
    assert [table.digest for table in commit.tables] == [table.digest for table in newest(folder).tables]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    """With segments of 4 MiB, two threads hold some of them each: 40 MiB were measured for 64 MiB, 42 for 256 MiB of
    rows; with segments of 64 MiB it is 335 MiB."""
    program = Path(__file__).with_name("large_chain.py")
    folder = str(tmp_path / "large")
    for size in (["96"], []):
        argv = [sys.executable, "-P", str(program), folder, *size, "--small"]
        done = subprocess.run(argv, check=True, capture_output=True, text=True)
    assert float(done.stdout.split()[0]) < 64
