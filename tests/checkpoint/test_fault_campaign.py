"""The fault campaign sees what it should: no silent loss in the product, and each that a fault in the product makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from ett.checkpoint import collection, dense_files
from ett.checkpoint.bench.bench_faults import _cells, _table
from ett.checkpoint.bench.faults import save_faults
from ett.checkpoint.bench.faults.campaign import Campaign, CellTally, scratch_folder
from ett.checkpoint.bench.faults.family import Cell
from ett.checkpoint.bench.faults.fault_table import FaultTable
from ett.checkpoint.bench.faults.surroundings import surroundings
from ett.checkpoint.bench.faults.unverified import unverified
from ett.checkpoint.bench.faults.verdict import OUTCOMES
from ett.checkpoint.bench.seaweed import find_weed
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.policy.table_tracker import TableTracker
from ett.checkpoint.tracked_table import TrackedTable


@pytest.fixture(scope="module")
def campaign() -> Iterator[Campaign]:
    with scratch_folder() as scratch:  # in memory: a disk would take a second for each fault's syncs
        yield Campaign(7, scratch)


def wrong(tallies: list[CellTally]) -> list[str]:
    return [line for tally in tallies for line in tally.wrong]


def lost(campaign: Campaign, family: str, cell: Cell, times: int) -> int:
    """Return how many of the faults of a cell are silent losses."""
    verdicts = [campaign.inject(campaign.families[family], cell, number) for number in range(times)]
    return sum(verdict.outcome == "silent" for verdict in verdicts)


@pytest.mark.slow
def test_faults_at_every_sixth_point_are_never_silent(campaign: Campaign) -> None:
    tallies = campaign.run(1, share=(2, 6))
    assert wrong(tallies) == []
    assert len(tallies) > 50


@pytest.mark.slow
@pytest.mark.process
def test_faults_of_processes_and_of_a_real_server_are_never_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_weed() is None:
        pytest.skip("there is no SeaweedFS here: make peers")
    monkeypatch.chdir(tmp_path)
    with scratch_folder() as scratch, surroundings(scratch) as around:
        campaign = Campaign(7, scratch / "campaign", around)
        tallies = campaign.run(1, share=(1, 12), families=("process", "s3"))
    assert wrong(tallies) == []
    assert {tally.family for tally in tallies} == {"process", "s3"}
    assert list(tmp_path.iterdir()) == []


def test_faults_here_and_there_are_never_silent(campaign: Campaign) -> None:
    tallies = campaign.run(1, share=(5, 47))
    assert wrong(tallies) == []
    assert sum(tally.count for tally in tallies) >= 8


def test_a_fault_is_the_same_when_it_is_injected_again(campaign: Campaign) -> None:
    with scratch_folder() as scratch:
        other = Campaign(7, scratch)
        for family in ("damage", "save"):
            cell = campaign.families[family].cells()[0]
            first, second = (c.inject(c.families[family], cell, 3) for c in (campaign, other))
            assert first.outcome == second.outcome


def test_without_verification_damage_is_silent(campaign: Campaign) -> None:
    cell = Cell("flip", "base segment")
    assert lost(campaign, "damage", cell, 10) == 0
    with unverified():
        assert lost(campaign, "damage", cell, 10) > 0


@pytest.mark.slow
def test_a_file_whose_hash_is_not_checked_is_seen(campaign: Campaign) -> None:
    cell = Cell("zeros", "dense")
    assert lost(campaign, "damage", cell, 20) == 0
    with patch.object(dense_files, "_check_hash", lambda *args: None):
        assert lost(campaign, "damage", cell, 60) > 0


@pytest.mark.slow
def test_a_commit_whose_name_is_not_synced_is_seen(campaign: Campaign) -> None:
    """The save has returned, and after a loss of power its commit is not there."""
    cell = Cell("power", "6 save returned")
    assert lost(campaign, "save", cell, 8) == 0
    with patch.object(LocalStore, "sync", lambda self, names: None):
        assert lost(campaign, "save", cell, 8) > 0


@pytest.mark.slow
def test_changes_that_a_failed_save_takes_with_it_are_seen(campaign: Campaign) -> None:
    """The next save of the process writes what changed since the failed one, and not what that one was to write."""

    def forget(self: TableTracker) -> None:
        self._in_flight = None

    cell = Cell("ENOSPC", "4 fragment write")
    with patch.object(save_faults, "GOES_ON", 1.0):
        assert lost(campaign, "save", cell, 16) == 0
        with patch.object(TableTracker, "give_back", forget):
            assert lost(campaign, "save", cell, 16) > 0


def test_files_of_a_save_that_a_collector_takes_are_seen(campaign: Campaign) -> None:
    cell = Cell("collector years ahead", "5 record create")
    assert lost(campaign, "clock", cell, 3) == 0
    with patch.object(collection, "_is_orphan", lambda *args: True):
        assert lost(campaign, "clock", cell, 3) > 0


def test_a_tally_is_plain_data(campaign: Campaign) -> None:
    tally = campaign.run(1, share=(0, 1000))[0]
    assert json.loads(json.dumps(tally.as_json()))["count"] == 1


def test_the_figure_says_how_many_faults_each_cell_has_and_what_could_not_be_run() -> None:
    tallies = [
        {"family": family, "kind": "k", "point": str(count), "count": count, "wrong": [], **dict.fromkeys(OUTCOMES, 0)}
        for family, count in (("save", 100), ("start", 101), ("process", 10))
    ]
    assert _cells(tallies) == "3 cells, 100 or more each, 10 of SIGKILL; no S3 server here: make peers"
    assert [line.split()[:4] for line in _table(tallies)][1:] == [
        ["save", "k", "1", "100"],
        ["start", "k", "1", "101"],
        ["process", "k", "1", "10"],
    ]


def test_the_tracked_table_is_one_to_the_product() -> None:
    """A table that no policy recognises is written whole, and the campaign would have no chain of a policy."""
    assert isinstance(FaultTable("users", 4), TrackedTable)
