"""A full publication with its deltas applied is a full publication of the same commit, bit for bit."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from chain_world import SPEC, ChainWorld, commit_of

from ett.checkpoint import id_sets
from ett.checkpoint.bench.large_commit import write_dense_weight
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog, prepare_folder
from ett.checkpoint.id_sets import IdSets
from ett.checkpoint.incarnation import new_write_id
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.publication import Publication, parse_publication
from ett.checkpoint.publication_log import PublicationLog
from ett.checkpoint.publish import plan_publish, publish
from ett.checkpoint.publish_delta import _reason_of_lineage, find_base
from ett.checkpoint.publish_settings import Pruning, PublishSettings
from ett.checkpoint.published_rows import chain_of, layers_of, part_ids, table_rows
from ett.checkpoint.segment import SegmentIdentity
from ett.cli import run
from ett.errors import CorruptState

ALL = PublishSettings()


class Job:
    """A folder whose commits are those of a world of one table with evictions."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = LocalStore(folder)
        self.world = ChainWorld(folder, self.rng, num_writers=self.rng.choice([1, 2]))
        self.epoch, self.parent = 1, 0
        prepare_folder(self.store)

    def commit(self, *, base: bool) -> Commit:
        for _ in range(self.rng.randrange(1, 4)):
            self.world.train()
        self.world.save_base() if base else self.world.save_delta()
        seq = self.world.seq
        identity = SegmentIdentity(
            ckpt_uuid=f"e{self.epoch:06d}-{seq:032x}",
            seq_parent=seq - 1,
            step=seq,
            table="",
            kind="dense",
            writer=0,
            part=0,
        )
        dense = write_dense_weight(self.store, identity, np.full(3, seq, np.float32))
        made = {"dense": dense, "ckpt_uuid": identity.ckpt_uuid, "epoch": self.epoch, "parent_seq": self.parent}
        commit = CommitLog(self.store).append(replace(commit_of(self.world), **made))
        self.parent = seq
        return commit


def served(to: LocalStore, publication: Publication) -> tuple[list[int], bytes]:
    ids, rows = table_rows(to, layers_of(chain_of(PublicationLog(to), publication), SPEC.name))
    return ids.tolist(), rows.tobytes()


@pytest.mark.parametrize("seed", range(4))
def test_a_base_with_deltas_is_a_full_publication(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_sets, "BUCKET_IDS", 150)  # so that there are several
    job, to, full = Job(tmp_path / "job", seed), LocalStore(tmp_path / "out"), LocalStore(tmp_path / "full")
    settings = PublishSettings(bits=0)
    kinds = []
    for number in range(7):
        commit = job.commit(base=number == 0 or job.rng.random() < 0.1)
        if number and job.rng.random() < 0.3:
            continue  # not every commit is published
        made = publish(job.store, commit, to, settings, delta=True).publication
        kinds.append(made.kind)
        whole = publish(job.store, commit, full, settings).publication
        ids, rows = served(to, made)
        assert (ids, rows) == served(full, whole)
        assert ids == sorted(job.world.rows)
        assert rows == b"".join(job.world.rows[row_id][0] for row_id in ids)
        assert (to.root / made.dense.stored.path).read_bytes() == (full.root / whole.dense.stored.path).read_bytes()
        again = publish(job.store, commit, to, settings, delta=True)
        assert (again.was_done, again.publication) == (True, made)
        assert publish(job.store, commit, to, settings, delta=True, verify=True).publication == made
    assert kinds[0] == "full"
    assert "delta" in kinds


def published_twice(tmp_path: Path) -> tuple[Job, LocalStore, Publication, Publication]:
    job, to = Job(tmp_path / "job", 3), LocalStore(tmp_path / "out")
    for _ in range(8):
        job.world.train()
    first = publish(job.store, job.commit(base=True), to, ALL).publication
    for _ in range(4):
        job.world.train()
    return job, to, first, publish(job.store, job.commit(base=False), to, ALL, delta=True).publication


def test_a_delta_has_only_what_changed(tmp_path: Path) -> None:
    _, _, first, second = published_twice(tmp_path)
    ((before,), (after,)) = first.tables, second.tables
    assert (after.kind, second.base, second.base_key) == ("delta", 1, first.key)
    changed = sum(file.num_rows for file in after.files)
    gone = sum(file.num_rows for file in after.gone)
    assert 0 < changed < after.num_rows
    assert gone
    assert before.num_rows - gone <= after.num_rows


def test_a_new_base_is_published_whole_and_says_so(tmp_path: Path) -> None:
    job, to, _, _ = published_twice(tmp_path)
    done = publish(job.store, job.commit(base=True), to, ALL, delta=True)
    assert (done.publication.kind, done.publication.base) == ("full", None)
    assert done.reasons == ("table users has a new base since publication 2",)


def test_no_delta_follows_what_it_does_not_continue(tmp_path: Path) -> None:
    job, to, _, _ = published_twice(tmp_path)
    commit = job.commit(base=False)

    def reasons(commit: Commit, settings: PublishSettings = ALL) -> str:
        return " ".join(plan_publish(job.store, commit, to, settings, delta=True).reasons)

    def opened(parent: int, seq: int, epoch: int) -> None:
        record = replace(CommitLog(job.store).read(parent), type="epoch_open", parent_seq=parent, write_id="o")
        CommitLog(job.store).append(replace(record, seq=seq, epoch=epoch, opened_seq=seq))

    assert "nothing is published there of these tables" in reasons(commit, PublishSettings(bits=8))
    assert "of job j" in reasons(replace(commit, job="another"))
    of_next_life = replace(commit, ckpt_uuid="e000002-0", write_id=new_write_id("b" * 16))
    opened(commit.seq, seq=4, epoch=2)  # a restart goes on from the newest
    assert reasons(replace(of_next_life, epoch=2)) == ""
    opened(1, seq=5, epoch=3)  # a rollback leaves behind what is published
    assert "left behind by a rollback" in reasons(replace(of_next_life, epoch=3))


def test_a_pruned_publication_is_whole(tmp_path: Path) -> None:
    job, to, _, _ = published_twice(tmp_path)
    pruned = PublishSettings(pruning=Pruning(max_age_updates=1))
    assert find_base(job.store, job.commit(base=False), to, pruned) == "a row may be pruned though it has not changed"


@pytest.mark.parametrize("which", ["rows", "gone", "base"])
def test_a_damaged_layer_is_not_served_or_built_on(tmp_path: Path, which: str) -> None:
    job, to, first, second = published_twice(tmp_path)
    parts = {"rows": second.tables[0].files, "gone": second.tables[0].gone, "base": first.tables[0].files}[which]
    path = to.root / parts[0].stored.path
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start] ^= 1  # the first id
    path.write_bytes(data)
    with pytest.raises(CorruptState, match="does not match its checksum"):
        served(to, second)
    with pytest.raises(CorruptState, match="does not match its checksum"):
        publish(job.store, job.commit(base=False), to, ALL, delta=True)


def test_a_block_without_a_live_row_has_nothing_to_say(tmp_path: Path) -> None:
    job, to = Job(tmp_path / "job", 3), LocalStore(tmp_path / "out")
    publish(job.store, job.commit(base=True), to, ALL)
    world = job.world
    for row_id in world.rows:
        world.rows[row_id] = tuple(job.rng.randbytes(group.row_bytes) for group in SPEC.groups)
    world.dirty, world.since_base = set(world.rows), set(world.rows)
    done = publish(job.store, job.commit(base=False), to, ALL, delta=True)
    assert (done.publication.kind, done.reasons) == ("delta", ())
    assert served(to, done.publication)[0] == sorted(world.rows)


def test_ids_are_kept_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of each call of `add` would else grow with the blocks times the buckets of a table."""
    job, to, _, _ = published_twice(tmp_path)
    for _ in range(4):
        commit = job.commit(base=False)
    added: list[str] = []
    add = IdSets.add
    monkeypatch.setattr(IdSets, "add", lambda self, name, ids: (added.append(name), add(self, name, ids)))
    assert publish(job.store, commit, to, ALL, delta=True).publication.kind == "delta"
    assert len(commit.tables[0].files) > 4
    assert sorted(added) == sorted(set(added))


def test_a_delta_follows_nothing_of_another_job_of_the_same_name(tmp_path: Path) -> None:
    job, to = Job(tmp_path / "job", 3), LocalStore(tmp_path / "out")
    published = publish(job.store, replace(job.commit(base=True), write_id=new_write_id("a" * 16)), to, ALL).publication
    commit = job.commit(base=False)
    foreign = replace(published, lineage=replace(published.lineage, ckpt_uuid="e000001-" + "f" * 32))
    same_life = replace(commit, write_id=new_write_id("a" * 16))
    assert _reason_of_lineage(job.store, same_life, foreign) is None
    other_life = replace(commit, write_id=new_write_id("b" * 16))
    assert other_life.epoch == foreign.lineage.epoch
    assert "not there any more" in (_reason_of_lineage(job.store, other_life, foreign) or "")


def test_damage_of_what_is_published_is_no_reason_to_go_back_to_an_older_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, to, first, _ = published_twice(tmp_path)
    path = to.root / first.tables[0].files[0].stored.path
    data = bytearray(path.read_bytes())
    data[8 + int.from_bytes(data[:8], "little")] ^= 1
    path.write_bytes(data)
    commit = job.commit(base=False)
    argv = ["publish", str(job.store.root), "--to", str(to.root), "--delta"]
    assert run(argv) == 8
    assert first.tables[0].files[0].stored.path in capsys.readouterr().err
    assert PublicationLog(to).numbers() == [1, 2]
    assert run([*argv, "--commit", str(commit.seq)]) == 8


@pytest.mark.parametrize("damage", ["cut", "header"])
def test_a_file_is_not_believed_before_it_is_checked(tmp_path: Path, damage: str) -> None:
    _, to, first, _ = published_twice(tmp_path)
    part = first.tables[0].files[0]
    path = to.root / part.stored.path
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[8 + int.from_bytes(data[:8], "little") + 11 :]
    else:
        data[7] = 255
    path.write_bytes(data)
    with pytest.raises(CorruptState, match="does not match"):
        list(part_ids(to, part))


@pytest.mark.parametrize("base", [2, 3, "1", True])
def test_a_publication_follows_an_earlier_one(tmp_path: Path, base: int) -> None:
    _, _, _, second = published_twice(tmp_path)
    with pytest.raises(CorruptState, match=r"0002\.json"):
        parse_publication(replace(second, base=base).to_bytes(), "publications/0000000000000002.json")
