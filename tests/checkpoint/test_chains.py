"""Of a chain of hot and cold files the newest version of every row wins, whatever happened to it in between."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from chain_world import ChainWorld, commit_of, example, read_chain
from plain_reader import read_tables

from ett.checkpoint import table_segments
from ett.checkpoint.canonical_json import seal, unseal
from ett.checkpoint.chain_picture import chain_picture
from ett.checkpoint.commit import commit_name, parse_commit
from ett.checkpoint.digest import combine
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.segment_reader import open_segment
from ett.checkpoint.table_segments import TableFile
from ett.errors import ConfigError, CorruptState


def history(folder: Path, seed: int, *, hands_off: bool = True, saves: int = 6) -> ChainWorld:
    """Return a world after a base and some saves, of which some fail and some are bases."""
    rng = random.Random(seed)
    world = ChainWorld(folder, rng, num_writers=rng.choice([1, 2]), hands_off=hands_off)
    world.train()
    world.save_base()
    for _ in range(saves):
        for _ in range(rng.choice([0, 1, 2])):
            world.train()
        if rng.random() < 0.1:
            world.save_base()
        else:
            world.save_delta(fails=rng.random() < 0.3)
    world.save_delta()
    return world


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_chain_reads_as_the_table_was(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_segments, "SEGMENT_BYTES", 1 << 13)
    world = history(tmp_path, seed)
    assert read_chain(tmp_path, world.live) == (world.rows, len(world.rows), world.digest())


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_of_another_world_read_each_row_once(tmp_path: Path, world_size: int) -> None:
    world = history(tmp_path, 100 + world_size)
    parts = [read_chain(tmp_path, world.live, rank, world_size) for rank in range(world_size)]
    assert {k: v for rows, _, _ in parts for k, v in rows.items()} == world.rows
    assert sum(num_rows for _, num_rows, _ in parts) == len(world.rows)
    assert combine([digest for _, _, digest in parts]) == world.digest()


def test_the_order_of_files_in_a_manifest_changes_nothing(tmp_path: Path) -> None:
    world = history(tmp_path, 7)
    files = list(world.live)
    random.Random(1).shuffle(files)
    assert read_chain(tmp_path, files)[0] == world.rows


@pytest.mark.slow
def test_without_the_hand_off_of_demoted_rows_their_updates_are_lost(tmp_path: Path) -> None:
    """The worlds of these tests do demote rows: a policy that forgets them is seen."""
    lost = 0
    for seed in range(12):
        world = history(tmp_path / str(seed), seed, hands_off=False)
        lost += read_chain(tmp_path / str(seed), world.live)[0] != world.rows
    assert lost > 0


def test_tombstones_alone_are_a_segment(tmp_path: Path) -> None:
    world = ChainWorld(tmp_path, random.Random(1))
    world.train()
    world.save_base()
    victims = sorted(world.rows)[::2]
    for row_id in victims:
        del world.rows[row_id]
    world.gone = set(victims)
    world.save_delta()
    (cold,) = (file for file in world.live if file.identity.kind == "cold")
    assert (cold.num_rows, cold.num_tombstones, cold.min_id) == (0, len(victims), victims[0])
    assert read_chain(tmp_path, world.live)[0] == world.rows


def base_and_cold(folder: Path, seed: int) -> tuple[ChainWorld, TableFile]:
    """Return a chain of a base and one cold file."""
    world = ChainWorld(folder, random.Random(seed))
    world.train()
    world.save_base()
    world.train()
    world.hot = set()
    world.save_delta()
    (cold,) = (file for file in world.live if file.identity.kind == "cold")
    return world, cold


def test_two_files_of_one_commit_with_one_row_are_refused(tmp_path: Path) -> None:
    world, cold = base_and_cold(tmp_path, 2)
    with pytest.raises(CorruptState, match="two files of commit 2 have id"):
        read_chain(tmp_path, [*world.live, cold])


def test_what_changed_before_the_base_of_its_ids_is_not_read(tmp_path: Path) -> None:
    """Though the base has no row of an id: it went in between."""
    world = ChainWorld(tmp_path, random.Random(3))
    world.train()
    world.hot = set()
    world.save_delta()
    (cold,) = world.live
    for row_id in sorted(world.rows)[1:-1:2]:
        del world.rows[row_id]
    world.save_base()
    assert read_chain(tmp_path, [cold, *world.live])[0] == world.rows


@pytest.mark.slow
def test_every_byte_of_a_change_counts(tmp_path: Path) -> None:
    """Rows and tombstones of a cold file of a few blocks; every 37th byte, and all of the envelope."""
    world, cold = base_and_cold(tmp_path, 4)
    path = tmp_path / cold.stored.path
    data = path.read_bytes()
    with open_segment(LocalStore(tmp_path), cold.stored, cold.identity) as segment:
        assert [section["name"] for section in segment.header["sections"]][-1] == "tombstones"
    for offset in sorted({*range(0, len(data), 37), *range(400), *range(len(data) - 400, len(data))}):
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        with pytest.raises(CorruptState):
            read_chain(tmp_path, world.live)


@pytest.mark.slow
def test_a_manifest_lists_every_live_file_of_its_chain(tmp_path: Path) -> None:
    commit = commit_of(history(tmp_path, 5))
    data = commit.to_bytes()
    assert parse_commit(data, commit_name(commit.seq)) == commit
    fields = unseal(data)
    assert fields is not None
    assert (fields["features_required"], fields["min_reader"]) == (["hotcold.v1", "seg.v1"], "1.1")
    seqs = {file["seq"] for file in fields["tables"][0]["files"]}
    assert (fields["base_seq"], fields["chain_len"]) == (min(seqs), len(seqs) - 1)
    assert sum(fields["chain_bytes"].values()) == commit.num_bytes
    assert commit.digest is None
    assert replace(commit, tables=()).digest is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "newer", [{"min_reader": "1.9"}, {"min_reader": "2.0"}, {"features_required": ["seg.v1", "zip.v9"]}, {"major": 2}]
)
def test_a_commit_for_newer_readers_is_refused(tmp_path: Path, newer: dict[str, object]) -> None:
    commit = commit_of(history(tmp_path, 5))
    fields = unseal(commit.to_bytes())
    assert fields is not None
    with pytest.raises(ConfigError, match="for readers of"):
        parse_commit(seal({**fields, **newer}), commit_name(commit.seq))
    parse_commit(seal({**fields, "minor": 9, "features_optional": ["new.v1"]}), commit_name(commit.seq))


@pytest.mark.slow
def test_the_picture_in_the_docs_is_of_the_example() -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert example().to_bytes() == (docs / "chain-example" / commit_name(5)).read_bytes()
    assert ElementTree.fromstring(chain_picture(example())).tag.endswith("svg")
    assert chain_picture(example()) == (docs / "img" / "chain.svg").read_text()


@pytest.mark.slow
def test_a_reader_written_from_the_page_alone_reads_a_chain(tmp_path: Path) -> None:
    """Promotions, demotions, evictions and failed saves of several worlds, as for our own reader."""
    for seed in range(200, 204):
        folder = tmp_path / str(seed)
        world = history(folder, seed)
        assert read_tables(folder, json.loads(commit_of(world).to_bytes())) == {
            ("users", row_id): b"".join(values) for row_id, values in world.rows.items()
        }


def test_an_interval_without_a_change_writes_no_file(tmp_path: Path) -> None:
    world = ChainWorld(tmp_path, random.Random(3))
    world.train()
    world.save_base()
    before = list(world.live)
    world.save_delta()
    assert world.live == before
    assert read_chain(tmp_path, world.live)[0] == world.rows
