"""A publication is what the commit holds, bit for bit, is there whole or not at all, and is made once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_world import bits, oracle, saved_world
from published_world import committed_rows, newest, served_rows
from rewrite_world import saved_chain
from s3_servers import S3Server, s3_store
from safetensors.torch import load_file

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.canonical_json import seal, unseal
from ett.checkpoint.commit import TableEntry
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.digest import ColumnGroup
from ett.checkpoint.incarnation import life_of, new_write_id
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.publication import parse_publication, publication_name
from ett.checkpoint.publication_log import PublicationLog
from ett.checkpoint.publish import plan_publish, problems_of, publish, publish_newest_whole, unfinished
from ett.checkpoint.publish_settings import LAST_UPDATE, NUM_UPDATES, Pruning, PublishSettings
from ett.checkpoint.quantised_rows import quantise, restored
from ett.checkpoint.segment import SegmentIdentity
from ett.checkpoint.store import open_store
from ett.checkpoint.table_segments import Bytes, Ids, TableSpec
from ett.checkpoint.table_writer import RowsToWrite, write_tables
from ett.errors import ConfigError, CorruptState, EttError, NotFound

ALL = PublishSettings()


class Killed(Exception):
    """The end of a publisher."""


class EndsAfter(LocalStore):
    """A store whose publisher ends when it has made a number of files and manifests."""

    def __init__(self, root: Path, most: int) -> None:
        super().__init__(root)
        self.left = most
        self.made: list[str] = []

    def create(self, name: str, data: bytes) -> None:
        self._spend(name)
        super().create(name, data)

    def create_stream(self, name: str) -> Any:
        if name.endswith(".safetensors"):
            self._spend(name)
        return super().create_stream(name)

    def _spend(self, name: str) -> None:
        if self.left == 0:
            raise Killed(name)
        self.left -= 1
        self.made.append(name)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chain") / "job"
    saved_chain(folder, LocalStore(folder), deltas=2)
    return folder


def test_a_publication_holds_the_commits_rows_bit_for_bit(chain: Path, tmp_path: Path) -> None:
    commit, store = newest(chain), LocalStore(chain)
    done = publish(store, commit, LocalStore(tmp_path), ALL)
    assert served_rows(tmp_path) == committed_rows(store, commit)
    dense = load_file(tmp_path / done.publication.dense.stored.path)
    expected = oracle(2).model.state_dict()
    assert {name: bits(value) for name, value in dense.items()} == {n: bits(v) for n, v in expected.items()}
    lineage = done.publication.lineage
    assert (lineage.seq, lineage.step, lineage.cursor) == (commit.seq, commit.step, commit.cursor)
    assert (lineage.ckpt_uuid, lineage.job) == (commit.ckpt_uuid, commit.job)
    assert store.list("leases") == []


@pytest.fixture(scope="module")
def whole(chain: Path) -> Path:
    publish(LocalStore(chain), newest(chain), LocalStore(chain.parent / "whole"), ALL)
    return chain.parent / "whole"


@pytest.mark.parametrize("most", range(8))  # of a format, three files with a record each, and a manifest
def test_whatever_ends_a_publisher_the_next_one_goes_on(chain: Path, whole: Path, tmp_path: Path, most: int) -> None:
    store, commit = LocalStore(chain), newest(chain)
    broken = EndsAfter(tmp_path / "out", most)
    with pytest.raises(Killed):
        publish(store, commit, broken, ALL)
    assert PublicationLog(broken).numbers() == []
    again = EndsAfter(tmp_path / "out", 1000)
    done = publish(store, commit, again, ALL)
    assert done.publication.stored_files() == PublicationLog(LocalStore(whole)).read(1).stored_files()
    assert served_rows(tmp_path / "out") == served_rows(whole)
    records = [name for name in broken.made if name.startswith("artefacts") and name.endswith(".json")]
    assert done.num_reused == len(records)
    assert not set(records) & set(again.made)
    assert unfinished(again) == []


def test_a_second_publisher_finds_it_done(chain: Path, tmp_path: Path) -> None:
    to = EndsAfter(tmp_path, 1000)
    first = publish(LocalStore(chain), newest(chain), to, ALL)
    to.left = 0
    second = publish(LocalStore(chain), newest(chain), to, ALL)
    assert (second.was_done, second.publication) == (True, first.publication)


def test_of_two_publishers_at_once_both_have_the_one_publication(chain: Path, tmp_path: Path) -> None:
    class MeetsAnother(LocalStore):
        is_met = False

        def create_stream(self, name: str) -> Any:
            if "dense" in name and not self.is_met:
                self.is_met = True
                publish(LocalStore(chain), newest(chain), LocalStore(tmp_path), ALL)
            return super().create_stream(name)

    done = publish(LocalStore(chain), newest(chain), MeetsAnother(tmp_path), ALL)
    assert PublicationLog(LocalStore(tmp_path)).numbers() == [done.publication.number] == [1]
    assert served_rows(tmp_path) == committed_rows(LocalStore(chain), newest(chain))


def test_a_number_that_another_commits_publisher_took_is_not_replaced(chain: Path, tmp_path: Path) -> None:
    old = publish(LocalStore(chain), newest(chain), LocalStore(tmp_path), ALL).publication

    class Late(LocalStore):
        """A listing from before the other's publication."""

        asked = 0

        def list(self, prefix: str) -> list[str]:
            self.asked += prefix == "publications"
            return [] if prefix == "publications" and self.asked < 4 else super().list(prefix)

    some = PublishSettings(tables=("users",))
    new = publish(LocalStore(chain), newest(chain), Late(tmp_path), some).publication
    assert (old.number, new.number) == (1, 2)
    log = PublicationLog(LocalStore(tmp_path))
    assert [found.key for found in log.read_all()[0]] == [new.key, old.key]


@pytest.mark.parametrize("how", ["gone", "cut", "flipped", "record"])
def test_what_is_damaged_is_made_anew(chain: Path, tmp_path: Path, how: str) -> None:
    to = LocalStore(tmp_path)
    done = publish(LocalStore(chain), newest(chain), to, ALL)
    stored = done.publication.tables[1].files[0].stored
    path = tmp_path / (stored.path + ".json" if how == "record" else stored.path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if how != "gone":
        path.write_bytes(bytes(data[:-1] if how == "cut" else data))
    again = publish(LocalStore(chain), newest(chain), to, ALL, verify=how in ("flipped", "record"))
    assert (again.num_written, again.publication) == (1, done.publication)
    assert served_rows(tmp_path) == committed_rows(LocalStore(chain), newest(chain))


def test_a_manifest_with_any_bit_flipped_is_no_publication(chain: Path, tmp_path: Path) -> None:
    publish(LocalStore(chain), newest(chain), LocalStore(tmp_path), ALL)
    path = tmp_path / publication_name(1)
    data = path.read_bytes()
    for at in range(0, len(data), 97):
        with pytest.raises(CorruptState):
            parse_publication(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], publication_name(1))
    with pytest.raises(CorruptState, match="holds publication 1"):
        parse_publication(data, publication_name(2))


@pytest.mark.parametrize(
    ("field", "value"),
    [("path", "artefacts/../../etc/passwd"), ("path", "/etc/passwd"), ("bytes", -1), ("path", None), ("bytes", "9")],
)
def test_a_manifest_with_a_right_checksum_leads_nobody_out_of_the_folder(whole: Path, field: str, value: Any) -> None:
    fields = unseal((whole / publication_name(1)).read_bytes())
    assert fields is not None
    fields["tables"][0]["files"][0]["stored"][field] = value
    with pytest.raises(CorruptState, match=publication_name(1)):
        parse_publication(seal(fields), publication_name(1))
    del fields["tables"]
    with pytest.raises(CorruptState, match=publication_name(1)):
        parse_publication(seal(fields), publication_name(1))


def test_a_damaged_commit_is_not_published(tmp_path: Path) -> None:
    saved_world(tmp_path / "job", 1, [1, 2])
    store, to = LocalStore(tmp_path / "job"), LocalStore(tmp_path / "out")
    path = tmp_path / "job" / newest(tmp_path / "job").tables[0].files[0].stored.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptState):
        publish(store, newest(tmp_path / "job"), to, ALL)
    assert PublicationLog(to).numbers() == []
    done = publish_newest_whole(store, to, ALL)
    assert (done.publication.lineage.step, done.fallback_from) == (1, newest(tmp_path / "job").seq)


@pytest.mark.parametrize("bits_wanted", [8, 4])
def test_rows_are_quantised_where_that_is_asked_for(tmp_path: Path, bits_wanted: int) -> None:
    table_rows = finite_job(tmp_path / "job")
    done = publish(
        LocalStore(tmp_path / "job"), newest(tmp_path / "job"), LocalStore(tmp_path), PublishSettings(bits=bits_wanted)
    )
    (table,) = done.publication.tables
    assert table.weight_bits == bits_wanted
    served = served_rows(tmp_path)[table.name]
    ids = sorted(table_rows)
    weights = np.array([np.frombuffer(table_rows[row_id], np.float32) for row_id in ids])
    stored = np.array([np.frombuffer(served[row_id], np.uint8) for row_id in ids])
    assert (stored == quantise(weights.view(np.uint8), bits_wanted)).all()
    back = restored(stored, weights.shape[1], bits_wanted).view(np.float32)
    step = (weights.max(axis=1) - weights.min(axis=1)) / (2**bits_wanted - 1)
    if bits_wanted == 8:  # half a step, and a rounding to float32 (quantised_rows.py)
        assert (np.abs(back - weights) <= step[:, None] * 0.5 + np.spacing(np.abs(weights))).all()
    assert done.publication.num_bytes < sum(t.num_bytes for t in newest(tmp_path / "job").tables) + 2000


def test_rows_that_cannot_be_quantised_are_refused_by_id(chain: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"table users: the weights of id .* are not all finite"):
        publish(LocalStore(chain), newest(chain), LocalStore(tmp_path), PublishSettings(bits=8))


def test_rows_are_pruned_by_what_is_saved_with_them(tmp_path: Path) -> None:
    finite_job(tmp_path / "job")
    store, commit = LocalStore(tmp_path / "job"), newest(tmp_path / "job")
    everything = committed_rows(store, commit)["rows"]

    def kept(**pruning: int) -> set[int]:
        settings = PublishSettings(pruning=Pruning(**pruning))
        done = publish(store, commit, LocalStore(tmp_path), settings).publication
        rows = served_rows(tmp_path, done)["rows"]
        assert rows == {row_id: everything[row_id] for row_id in rows}
        assert (done.tables[0].num_rows, done.tables[0].num_pruned) == (len(rows), len(everything) - len(rows))
        return set(rows)

    # Row n was updated n times, last at update 2 * n, of 100 rows.
    assert kept(min_updates=40) == set(range(40, 100))
    assert kept(max_age_updates=50) == set(range(74, 100))
    assert kept(min_updates=80, max_age_updates=50) == set(range(80, 100))


def test_what_does_not_fit_is_refused_before_anything_is_written(chain: Path, tmp_path: Path) -> None:
    for settings, error, text in (
        (PublishSettings(tables=("user",)), NotFound, "no table 'user'"),
        (PublishSettings(pruning=Pruning(min_updates=2)), ConfigError, "its rows have no row_updates"),
        (PublishSettings(pruning=Pruning(max_age_updates=2)), ConfigError, "its rows have no row_last_update"),
    ):
        with pytest.raises(EttError, match=text) as raised:
            publish(LocalStore(chain), newest(chain), LocalStore(tmp_path / "out"), settings)
        assert isinstance(raised.value, error)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="weights in 5 bits"):
        PublishSettings(bits=5)
    with pytest.raises(ConfigError, match="of format rckpt"):
        publish(LocalStore(chain), newest(chain), LocalStore(chain), ALL)


def test_a_plan_writes_nothing(chain: Path, tmp_path: Path) -> None:
    plan = plan_publish(LocalStore(chain), newest(chain), LocalStore(tmp_path / "out"), ALL)
    assert (plan.done, plan.num_parts) == (None, 0)
    assert not (tmp_path / "out").exists()
    done = publish(LocalStore(chain), newest(chain), LocalStore(tmp_path / "out"), ALL).publication
    heads = 600 * len(done.stored_files())  # of the files
    assert plan.num_bytes < sum(f.stored.bytes for t in done.tables for f in t.files) < plan.num_bytes + heads
    assert plan_publish(LocalStore(chain), newest(chain), LocalStore(tmp_path / "out"), ALL).done == done


@pytest.mark.slow
def test_of_two_publishers_to_a_bucket_both_have_the_one_publication(chain: Path, whole: Path, moto: S3Server) -> None:
    to, commit = s3_store(moto.url), newest(chain)
    others = [publish(LocalStore(chain), commit, to, PublishSettings(tables=("users",))).publication]
    real = PublicationLog.append

    class MeetsAnother(PublicationLog):
        """Between its look at what is published and its own manifest, somebody else's of the same artefact is made."""

        def numbers(self) -> list[int]:
            found = super().numbers()
            if len(others) < 2:
                others.append(real(PublicationLog(to), parse_publication(manifest, publication_name(1)), lambda: None))
            return found

    manifest = (whole / publication_name(1)).read_bytes()
    late = real(MeetsAnother(to), parse_publication(manifest, publication_name(1)), lambda: None)
    assert [publication.number for publication in others] == [1, 2]
    assert late == others[1]
    assert PublicationLog(to).numbers() == [1, 2]
    done = publish(LocalStore(chain), commit, to, ALL)
    assert (done.was_done, done.num_written) == (False, 3)  # the files that the manifest names were not there
    assert problems_of(to, done.publication, verify=True) == []


def test_any_file_system_of_fsspec_takes_a_publication(chain: Path) -> None:
    to = open_store("memory://test-publish")
    done = publish(LocalStore(chain), newest(chain), to, PublishSettings(tables=("users",)))
    assert publish(LocalStore(chain), newest(chain), to, PublishSettings(tables=("users",)), verify=True).was_done
    assert {table.name for table in done.publication.tables} == {"users"}


def test_damage_of_the_same_size_is_made_whole_on_any_file_system(chain: Path) -> None:
    to, settings = open_store("memory://test-publish-damaged"), PublishSettings(tables=("users",))
    made = publish(LocalStore(chain), newest(chain), to, settings).publication
    path = made.tables[0].files[0].stored.path
    data = bytearray(to.read(path))
    data[-1] ^= 1
    to.delete(path)
    to.create(path, bytes(data))
    assert problems_of(to, made, verify=True)
    publish(LocalStore(chain), newest(chain), to, settings, verify=True)
    assert not problems_of(to, made, verify=True)


def finite_job(folder: Path) -> dict[int, bytes]:
    """Save a job of one table of 100 rows, of finite weights and with a ledger; return their weights by id."""
    saved_world(folder, 1, [1])
    store, before = LocalStore(folder), newest(folder)
    states = [ColumnGroup(f"state:{name}", "int64", 1) for name in (LAST_UPDATE, NUM_UPDATES)]
    spec = TableSpec(table_id="t0000", name="rows", dim=16, groups=(ColumnGroup("weight", "float32", 16), *states))
    ids = np.arange(100)
    weights = np.random.default_rng(1).normal(size=(100, 16)).astype(np.float32)
    columns = [column.reshape(100, -1).view(np.uint8) for column in (weights, 2 * ids, ids)]

    def gather(some: Ids, out: tuple[Bytes, ...]) -> None:
        for column, target in zip(columns, out, strict=True):
            target[:] = column[some]

    identity = SegmentIdentity(
        ckpt_uuid=f"e000001-{2:032x}", seq_parent=before.seq, step=2, table="", kind="base", writer=0, part=0
    )
    rows = RowsToWrite(spec=spec, kind="base", ids=ids, gather=gather)
    (written,) = write_tables(store, [rows], identity, BufferPool(), [])
    table = TableEntry(spec=spec, num_rows=100, digest=written.digest, files=written.files)
    made = {"seq": before.seq + 1, "parent_seq": before.seq, "step": 2, "ckpt_uuid": identity.ckpt_uuid}
    CommitLog(store).append(replace(before, **made, write_id=new_write_id(life_of(before)), tables=(table,)))
    return {row_id: weights[row_id].tobytes() for row_id in ids.tolist()}
