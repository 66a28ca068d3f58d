"""Whatever a policy decides, and whatever happens in between, every commit is read back as the table was."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from chain_world import SPEC, ChainWorld, commit_of
from plain_reader import read_tables
from policy_files import RealFiles, values_of
from policy_world import RULES, MemoryFiles, identity_of, live_through

from ett.checkpoint import table_segments
from ett.checkpoint.commit import TableEntry
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.rewritten_table import rewrite_table


def memory(rng: random.Random) -> MemoryFiles:
    return MemoryFiles(rng)


@pytest.mark.slow
def test_every_commit_of_any_life_is_read_back() -> None:
    worlds = [live_through(seed, memory) for seed in range(60)]
    assert not [seed for seed, world in enumerate(worlds) if world.wrong]
    assert sum(len(world.commits) for world in worlds) > 300


@pytest.mark.slow
def test_every_commit_of_hundreds_of_lives_is_read_back() -> None:
    assert not [seed for seed in range(1000, 1400) if live_through(seed, memory).wrong]


@pytest.mark.campaign  # python -m pytest -m campaign tests/checkpoint/test_policy_chains.py
def test_every_commit_of_thousands_of_lives_is_read_back() -> None:
    assert not [seed for seed in range(1400, 5000) if live_through(seed, memory).wrong]


@pytest.mark.slow
@pytest.mark.parametrize("rule", sorted(RULES - {"newest wins", "evicted in flight"}))
def test_without_a_rule_commits_are_read_back_wrong(rule: str) -> None:
    """Of 60 lives more than a tenth are seen to go wrong."""
    assert sum(live_through(seed, memory, RULES - {rule}).wrong > 0 for seed in range(60)) > 6


@pytest.mark.slow
def test_if_the_newest_did_not_win_commits_would_be_read_back_wrong() -> None:
    worlds = [live_through(seed, lambda rng: MemoryFiles(rng, newest_wins=False)) for seed in range(40)]
    assert sum(world.wrong > 0 for world in worlds) > 20


@pytest.mark.slow
def test_what_is_evicted_while_a_checkpoint_is_in_flight_would_be_looked_for_in_its_slot() -> None:
    failed = 0
    for seed in range(40):
        try:
            failed += live_through(seed, memory, RULES - {"evicted in flight"}).wrong > 0
        except KeyError:
            failed += 1
    assert failed > 4


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power failure would leave is not asked here, and a segment has 12 rows."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(table_segments.TableSpec, "block_rows", 4)
    monkeypatch.setattr(table_segments.TableSpec, "segment_rows", 12)


@pytest.mark.slow
@pytest.mark.usefixtures("unsynced")
def test_files_that_the_product_writes_are_read_back(tmp_path: Path) -> None:
    for seed in range(4):
        assert not live_through(seed, lambda _, seed=seed: RealFiles(tmp_path / str(seed))).wrong


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(5000, 5040), marks=pytest.mark.slow, id="dozens"),
        pytest.param(range(5040, 5240), marks=pytest.mark.campaign, id="hundreds"),
    ],
)
@pytest.mark.usefixtures("unsynced")
def test_files_of_many_lives_are_read_back(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        assert not live_through(seed, lambda _, seed=seed: RealFiles(tmp_path / str(seed))).wrong, seed


@pytest.mark.slow
@pytest.mark.usefixtures("unsynced")
def test_a_reader_written_from_the_page_alone_reads_bases_of_many_commits(tmp_path: Path) -> None:
    spread = 0
    for seed in range(6000, 6020):
        folder = tmp_path / str(seed)
        world = live_through(seed, lambda _, folder=folder: RealFiles(folder))
        newest = world.commits[-1]
        written = ChainWorld(folder, random.Random(0), rows=dict.fromkeys(newest.rows, ()), live=list(newest.files))
        assert read_tables(folder, json.loads(commit_of(written).to_bytes())) == {
            ("users", row_id): b"".join(values_of(value)) for row_id, value in newest.rows.items()
        }
        spread += len({file.seq for file in newest.files if file.identity.kind == "base"}) > 1
    assert spread > 1


@pytest.mark.slow
@pytest.mark.usefixtures("unsynced")
def test_what_a_policy_wrote_is_rewritten_as_a_base(tmp_path: Path) -> None:
    for seed in range(7000, 7004):
        folder, store = tmp_path / str(seed), LocalStore(tmp_path / str(seed))
        for number, commit in enumerate(live_through(seed, lambda _, folder=folder: RealFiles(folder)).commits[-2:]):
            table = TableEntry(spec=SPEC, num_rows=len(commit.rows), digest=None, files=tuple(commit.files))
            identity = identity_of("base", 900 + number, 0)
            made = rewrite_table(store, table, identity, 0, [])
            assert {file.identity.kind for file in made.files} <= {"base"}
            assert RealFiles(folder).read(made.files) == commit.rows
